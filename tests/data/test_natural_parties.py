"""Datasets that bring their own parties, the default partition of other graphs, and what is said of nodes that are left out."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import atoll
from atoll.data import DATASETS, PartitionSettings, partition
from atoll.data.catalog import DataSettings
from atoll.data.federated import SCENARIOS, federate
from atoll.data.natural_parties import as_one_graph
from atoll.data.partition import first_kind, present_kind
from atoll.data.statistics import partition_statistics
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph
from atoll.papers.execute import folder_of
from atoll.runs.comparison import Comparison
from atoll.runs.config import from_dict, resolve
from graphs import dense, edge_set, make_graph, same

ROOT = Path(os.environ.get("ATOLL_DATA", ""))
needs_twitch = pytest.mark.skipif(not (ROOT / "twitch").is_dir(), reason="no twitch under ATOLL_DATA")
TWITCH = {"DE": 9498, "EN": 7126, "ES": 4648, "FR": 6549, "PT": 1912, "RU": 4385, "TW": 2772}


class Valleys:
    """Two villages without a road between them."""

    name, nodes, edges, features, classes = "valleys", 40, 0, 7, 3
    folder, available, Settings = "", True, DataSettings
    villages = {"north": 15, "south": 25}

    def load_parties(self, settings: DataSettings, *, seed: int, fold: int) -> dict[str, Graph]:
        """A graph per village, without splits."""
        graphs = {name: make_graph(nodes, 2 * nodes, nodes) for name, nodes in self.villages.items()}
        none = {name: torch.zeros(nodes, dtype=torch.bool) for name, nodes in self.villages.items()}
        return {name: replace(graph, train=none[name], val=none[name], test=none[name]) for name, graph in graphs.items()}

    def load(self, settings: DataSettings, *, seed: int, fold: int) -> Graph:
        """Both as one graph."""
        return as_one_graph(self.load_parties(settings, seed=seed, fold=fold))


@pytest.fixture
def _valleys() -> Iterator[None]:
    DATASETS.register("valleys", Valleys())
    yield
    DATASETS.unregister("valleys")


@pytest.mark.usefixtures("_valleys")
def test_own_parties_are_the_default() -> None:
    """Named, in order, nothing lost or added; another partition divides the union of the same nodes."""
    config = resolve("fedavg", dataset="valleys")
    assert (config.partition, config.parties) == ("natural", None)
    data = federate(config, None, ("horizontal", "overlapping"))
    assert (data.scenario, data.names, data.parts.sizes) == ("horizontal", ("north", "south"), [15, 25])
    graphs = Valleys().load_parties(DataSettings(), seed=0, fold=0)
    for party, graph in enumerate(graphs.values()):
        mine = data.parts.select([party])
        assert torch.equal(dense(mine), dense(graph))
        assert edge_set(mine) == edge_set(graph)
        assert torch.equal(mine.y, graph.y)
    union = atoll.load("valleys")
    assert (union.parties, union.num_nodes) == (1, 40)
    assert torch.equal(dense(union), dense(data.parts))
    assert edge_set(union) == edge_set(data.parts)
    divided = federate(resolve("fedavg", dataset="valleys", partition="random", parties=3), None, ("horizontal",))
    assert (sum(divided.parts.sizes), divided.names) == (40, ())
    whole = federate(resolve("centralized", dataset="valleys"), None, ("whole",))
    assert (whole.scenario, whole.parts.parties, whole.parts.num_nodes) == ("whole", 1, 40)


@pytest.mark.usefixtures("_valleys")
def test_a_run_and_a_comparison_on_own_parties() -> None:
    """Placement does not matter, and baselines have the same nodes."""
    values = {"rounds": 2, "hidden": 4}
    together = atoll.run("fedavg", dataset="valleys", **values)
    apart = atoll.run("fedavg", dataset="valleys", placement="apart", **values)
    assert together.metrics == apart.metrics
    comparison = Comparison(["local", "fedavg", "centralized"], dataset="valleys", values=values)
    assert {trial.config.partition for trial in comparison.trials()} == {"natural"}
    assert resolve("glasu", dataset="valleys").partition == "vertical"


@pytest.mark.usefixtures("_valleys")
def test_what_own_parties_cannot_be() -> None:
    """One sentence each."""
    with pytest.raises(AtollError, match="valleys holds 2 parties, not 3; leave --parties out"):
        federate(resolve("fedavg", dataset="valleys", parties=3), None, ("horizontal",))
    with pytest.raises(AtollError, match="'csbm' has no parties of its own; choose another partition than natural"):
        federate(resolve("fedavg", dataset="csbm", partition="natural"), None, ("horizontal",))
    with pytest.raises(AtollError, match="set split_scope=party"):
        federate(resolve("fedavg", dataset="valleys", values={"split_scope": "graph", "split": "random"}), None, ("horizontal",))


@needs_twitch
def test_twitch() -> None:
    """Seven countries with the published sizes, the same columns, one class name each; mature language or partners."""
    data = federate(resolve("fedavg", dataset="twitch"), None, ("horizontal",))
    assert dict(zip(data.names, data.parts.sizes, strict=True)) == TWITCH
    assert (data.parts.num_features, data.parts.class_names) == (3170, ("general", "mature"))
    found = partition_statistics(data.parts, data.source)
    assert (found.nodes, found.edges_kept, found.nodes_lost, found.edges_lost) == (36890, 492575, 0, 0)
    shares = [round(100 * party.labels[1] / party.nodes, 1) for party in found.parties]
    assert shares == [60.5, 54.6, 29.3, 36.9, 34.6, 24.5, 39.2]
    partners = resolve("fedavg", dataset="Twitch", values={"label": "partner", "normalize_features": True})
    data = federate(partners, None, ("horizontal",))
    assert data.parts.class_names == ("other", "partner")
    assert np.allclose(abs(data.parts.nonzero_features).sum(1), 1)


def test_twitch_that_is_not_here(no_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It cannot be downloaded; a broken file is named."""
    with pytest.raises(AtollError, match=r"put DE\.npz, EN\.npz, ES\.npz and 4 more into the folder"):
        atoll.load("twitch")
    for country in TWITCH:
        (tmp_path / "twitch").mkdir(exist_ok=True)
        np.savez(tmp_path / "twitch" / f"{country}.npz", y=np.zeros(3, np.int64))
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    with pytest.raises(AtollError, match=r"DE\.npz cannot be read"):
        atoll.load("twitch")


def test_defaults_lose_no_node(tmp_path: Path) -> None:
    """METIS for csbm and for a user's own data; the paper's on the public graphs of the catalog."""
    for algorithm in ("fedavg", "local", "fedspray", "centralized"):
        for dataset in ("csbm", "given", str(tmp_path)):
            assert resolve(algorithm, dataset=dataset).partition == "metis"
        assert resolve(algorithm, dataset="pubmed").partition == "louvain_largest"
    assert (
        resolve("fedavg", dataset="csbm").parties == resolve("fedavg", dataset="csbm", partition="louvain_largest").parties == 5
    )
    assert resolve("fedgl", dataset="csbm").partition == "overlap"
    data = federate(resolve("fedavg", dataset="csbm"), None, SCENARIOS)
    assert partition_statistics(data.parts, data.source).nodes_lost == 0


def test_louvain_has_a_name_that_says_what_it_does() -> None:
    """The old name still works, with a warning, gives the same parties, and recorded runs are found under it."""
    graph = atoll.load("csbm", nodes=300)
    with pytest.warns(AtollWarning, match="louvain is called louvain_largest now"):
        old = partition(graph, "louvain", 3, PartitionSettings(), 0)
    assert same(old, partition(graph, "louvain_largest", 3, PartitionSettings(), 0))
    with pytest.warns(AtollWarning, match="louvain is called louvain_largest now"):
        config = resolve("fedavg", dataset="csbm", partition="louvain", parties=3)
    assert config.partition == "louvain_largest"
    document = config.to_dict() | {"partition": "louvain"}
    assert from_dict(document, "config.toml", warn=False) == config
    assert (first_kind("louvain_largest"), first_kind("metis"), present_kind("metis")) == ("louvain", "metis", "metis")
    assert folder_of(resolve("fedavg", dataset="pubmed"), Path()).name == "fedavg-pubmed-0-f3cd86150ba5"


def test_nodes_that_are_left_out_are_counted() -> None:
    """By every kind of partition that drops some, and by none that does not."""
    for asked in ({"partition": "louvain_largest", "parties": 3}, {"partition": "metis_overlap", "parties": 5}):
        config = resolve("fedavg", dataset="csbm", values={"nodes": 400}, **asked)  # type: ignore[arg-type]
        with pytest.warns(
            AtollWarning, match=rf"of 400 nodes are at no party and left out \(partition {config.partition}\)"
        ) as told:
            data = federate(config, None, SCENARIOS)
        lost = partition_statistics(data.parts, data.source).nodes_lost
        assert str(told[0].message).startswith(f"{lost} of 400")
    config = resolve("fedavg", dataset="csbm", partition="random", parties=2, values={"degree": 3.0, "largest_component": True})
    with pytest.warns(AtollWarning, match=r"\(partition random, largest_component\)"):
        federate(config, None, SCENARIOS)
