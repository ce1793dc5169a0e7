"""FED-PUB's protocol and its ingredients, each usable alone: largest component, METIS, overlap, a split before the cut."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.data import PartitionSettings, SplitSettings, partition, save, split
from atoll.data.components import largest_component
from atoll.data.federated import federate
from atoll.data.node_lists import metis
from atoll.data.presets import PRESETS
from atoll.data.splits import split_before_cut
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs.config import Config, from_dict, resolve
from graphs import edge_set, make_graph

ROOT = Path(os.environ.get("ATOLL_DATA", ""))
needs_data = pytest.mark.skipif(not (ROOT / "Photo" / "raw").is_dir(), reason="no public graphs under ATOLL_DATA")


def roles(graph: Graph) -> dict[int, str]:
    """The role of each node by id."""
    masks = {"train": graph.train, "val": graph.val, "test": graph.test}
    return {node: name for name, mask in masks.items() for node in graph.ids[mask].tolist()}


@given(st.integers(0, 1000))
def test_the_largest_component(seed: int) -> None:
    """By a naive search; nodes keep their ids and order, and no edge among them is lost."""
    graph = make_graph(30, int(np.random.default_rng(seed).integers(0, 40)), seed)
    groups = [{node} for node in range(30)]
    for a, b in edge_set(graph):
        one, other = (next(group for group in groups if node in group) for node in (a, b))
        if one is not other:
            groups.remove(other)
            one |= other
    expected = sorted(max(groups, key=lambda group: (len(group), -min(group))))
    found = largest_component(graph)
    assert found.ids.tolist() == expected
    assert {(expected[a], expected[b]) for a, b in edge_set(found)} == {e for e in edge_set(graph) if set(e) <= set(expected)}


def test_rows_that_share_an_id_are_one_node() -> None:
    """Several samples of a node stay together, although edges join first rows only."""
    graph = atoll.load("csbm", nodes=60, samples=3, degree=3.0, communities=0)
    found = largest_component(graph)
    assert found.num_nodes == 3 * len(torch.unique(found.ids))
    assert 0 < found.num_nodes < graph.num_nodes


@needs_data
@pytest.mark.parametrize(
    ("dataset", "nodes", "edges"),
    [
        ("cora", 2485, 5069),
        ("citeseer", 2120, 3679),
        ("pubmed", 19717, 44324),
        ("photo", 7487, 119043),
        ("computers", 13381, 245778),
    ],
)
def test_components_of_the_public_graphs(dataset: str, nodes: int, edges: int) -> None:
    """The sizes that FED-PUB's papers report."""
    found = largest_component(atoll.load(dataset))
    assert (found.num_nodes, found.edge_index.shape[1]) == (nodes, 2 * edges)


@needs_data
def test_fedpub_on_cora() -> None:
    """497/994/994 nodes of the component, rows of x with sum 1, near equal parties; the same parties and roles for every seed."""
    config = resolve("fedavg", dataset="cora", partition="fedpub", parties=10, values={"split_seed": 7})
    data = federate(config, None, ("horizontal",))
    parts = data.parts
    assert (int(parts.train.sum()), int(parts.val.sum()), int(parts.test.sum())) == (497, 994, 994)
    assert np.allclose(abs(parts.nonzero_features).sum(1), 1)
    assert max(parts.sizes) <= 1.04 * 2485 / 10
    assert data.source.num_nodes == 2708
    again = federate(replace(config, seed=3), None, ("horizontal",))
    assert again.parts.digest == parts.digest


def test_what_a_preset_sets() -> None:
    """Its values are defaults: `--set` wins, and a written configuration is read back as it is."""
    config = resolve("fedavg", dataset="cora", partition="fedpub", parties=10, values={"split": "public", "metis_seed": 5})
    assert (config.partition, config.partition_settings.metis_seed, config.split.split) == ("fedpub", 5, "public")
    assert config.partition_settings.largest_component
    assert config.data.normalize_features
    assert (config.split.split_scope, config.split.train) == ("graph", 0.2)
    assert from_dict(config.to_dict(), "config.toml") == config
    assert not resolve("fedavg", dataset="cora", partition="metis", parties=10).partition_settings.largest_component
    assert {preset.kind for preset in PRESETS.values()} <= set(atoll.data.SCENARIO_OF)


def test_metis_method_and_seed() -> None:
    """As pymetis gives them; METIS's own seed makes the parts independent of the run's."""
    import pymetis

    graph = make_graph(200, 600, 1)
    both = graph.adjacency + graph.adjacency.T
    for method, recursive in (("kway", False), ("recursive", True), ("auto", True)):
        adjacency = pymetis.CSRAdjacency(both.indptr, both.indices)
        expected = pymetis.part_graph(5, adjacency, recursive=recursive, options=pymetis.Options(seed=-1))[1]
        lists = metis(graph, 5, -1, method)
        assert [nodes.tolist() for nodes in lists] == [np.flatnonzero(np.array(expected) == p).tolist() for p in range(5)]
    cuts = {}
    for method in ("kway", "recursive"):
        settings = PartitionSettings(metis_method=method, metis_seed=-1)
        cuts[method] = [partition(graph, "metis", 5, settings, seed).ids.tolist() for seed in (0, 1)]
        assert cuts[method][0] == cuts[method][1]
    assert cuts["kway"] != cuts["recursive"]


def test_overlapping_parts() -> None:
    """Five parties per part, each half of it, neighbors in the list; a role belongs to the node wherever it is held."""
    graph = make_graph(203, 600, 2)
    settings = PartitionSettings(metis_seed=-1)
    parts = [set(nodes.tolist()) for nodes in metis(graph, 2, -1)]
    found = partition(graph, "metis_overlap", 10, settings, seed=4)
    lists = [set(found.select([party]).ids.tolist()) for party in range(10)]
    for party, nodes in enumerate(lists):
        assert nodes <= parts[party // 5]
        assert len(nodes) == len(parts[party // 5]) // 2
    assert len({frozenset(nodes) for nodes in lists}) == 10
    masked = split_before_cut(found, graph, SplitSettings("random", split_scope="graph"), 0)
    assert set(roles(masked)) == set(masked.ids[masked.y >= 0].tolist())
    for name in ("train", "val", "test"):
        held = set(masked.ids[getattr(masked, name)].tolist())
        assert all(role == name for node, role in roles(masked).items() if node in held)


def test_a_split_before_the_cut_does_not_know_the_parties() -> None:
    """A node's role is the same whatever the partition and the number of parties are, and whoever is dropped."""
    graph = replace(make_graph(150, 400, 3), train=torch.zeros(150, dtype=torch.bool))
    graph = replace(graph, val=graph.train, test=graph.train)
    settings = SplitSettings("by_class", split_scope="graph")
    whole = roles(split(graph, settings, 0))
    for kind, parties in (("random", 3), ("random", 7), ("metis", 4), ("louvain_largest", 2), ("node", None), ("overlap", None)):
        parts = partition(graph, kind, parties, PartitionSettings(), seed=1)
        found = roles(split_before_cut(parts, graph, settings, 0))
        assert found.items() <= whole.items()
        assert set(found) == set(parts.ids.tolist()) & set(whole)
    auto = split_before_cut(parts, graph, SplitSettings(split_scope="graph"), 0)
    assert roles(auto).items() <= roles(split(graph, SplitSettings("random", split_scope="graph"), 0)).items()


def test_a_split_that_exists_is_used() -> None:
    """auto and public take the graph's own roles, before or after the cut."""
    graph = make_graph(80, 200, 5)
    parts = partition(graph, "random", 4, PartitionSettings(), seed=1)
    for kind in ("auto", "public"):
        assert roles(split_before_cut(parts, graph, SplitSettings(kind, split_scope="graph"), 0)) == roles(graph)


@pytest.mark.parametrize("count", [*range(12), 19717, 2485])
def test_numbers_of_nodes(count: int) -> None:
    """cumulative: ⌊.2n⌋, ⌊.6n⌋; floor: ⌊.2n⌋, ⌊.4n⌋, the rest tests; round: train, then test, the rest validates."""
    graph = make_graph(max(count, 3), 0, 0)
    y = torch.zeros(graph.num_nodes, dtype=torch.int64)
    y[count:] = -1
    graph = replace(graph, y=y)
    expected = {
        "cumulative": (count * 2 // 10, count * 6 // 10 - count * 2 // 10, count - count * 6 // 10),
        "floor": (count * 2 // 10, count * 4 // 10, count - count * 2 // 10 - count * 4 // 10),
        "round": (round(count * 0.2), count - round(count * 0.2) - round(count * 0.4), round(count * 0.4)),
    }
    for rounding, sizes in expected.items():
        found = split(graph, SplitSettings("random", 0.2, 0.4, 0.4, split_rounding=rounding), 0)
        assert (int(found.train.sum()), int(found.val.sum()), int(found.test.sum())) == sizes


@pytest.mark.parametrize("rounding", ["cumulative", "floor", "round"])
def test_shares_below_one_leave_nodes_out(rounding: str) -> None:
    """Half of the nodes have no role, whatever the rounding."""
    graph = replace(make_graph(40, 0, 0), y=torch.zeros(40, dtype=torch.int64))
    found = split(graph, SplitSettings("random", 0.1, 0.2, 0.2, split_rounding=rounding), 0)
    assert (int(found.train.sum()), int(found.val.sum()), int(found.test.sum())) == (4, 8, 8)


def test_seed_of_the_split_alone() -> None:
    """The run's seed then says nothing about the split."""
    graph = make_graph(60, 100, 1)
    fixed = [split(graph, SplitSettings("random", split_seed=4), seed).digest for seed in (0, 1)]
    assert fixed[0] == fixed[1] == split(graph, SplitSettings("random"), 4).digest
    assert split(graph, SplitSettings("random"), 0).digest != fixed[0]


def config(**asked: object) -> Config:
    """A configuration of FedAvg on csbm."""
    arguments = {name: asked.pop(name) for name in ("dataset", "partition", "parties") if name in asked}
    return resolve("fedavg", **({"dataset": "csbm"} | arguments), values=asked)  # type: ignore[arg-type]


def test_what_cannot_be(tmp_path: Path) -> None:
    """One sentence each."""
    with pytest.raises(AtollError, match="cannot be 5 per part; use a multiple, for instance --parties 10"):
        federate(config(partition="metis_overlap", parties=7), None, ("overlapping",))
    with pytest.raises(AtollError, match="copy_share is 0 but must be more than 0"):
        federate(config(partition="metis_overlap", parties=5, copy_share=0), None, ("overlapping",))
    with pytest.raises(AtollError, match="leaves party 0 with 0 nodes"):
        federate(config(partition="metis_overlap", parties=5, nodes=5, copies=5, copy_share=0.1), None, ("overlapping",))
    graph = make_graph(20, 30, 0)
    for name in ("a", "b"):
        save(graph, tmp_path / "sites" / name)
    with pytest.raises(AtollError, match="every party has its own; set split_scope=party"):
        federate(config(dataset=str(tmp_path / "sites"), partition="files", split_scope="graph"), None, ("horizontal",))
    listed = config(dataset=str(tmp_path / "sites" / "a"), partition="parts.npz", largest_component=True)
    with pytest.raises(AtollError, match="lists the nodes of the whole graph; leave largest_component out"):
        federate(listed, None, ("horizontal",))


def test_nodes_outside_the_component_are_counted_as_lost() -> None:
    """The statistics compare with the graph as it was."""
    from atoll.data.statistics import partition_statistics

    chosen = config(partition="random", parties=2, nodes=200, degree=3.0, largest_component=True)
    data = federate(chosen, None, ("horizontal",))
    found = partition_statistics(data.parts, data.source)
    assert found.nodes == largest_component(data.source).num_nodes
    assert found.nodes_lost == 200 - found.nodes > 0
