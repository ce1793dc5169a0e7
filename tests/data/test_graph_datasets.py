"""Datasets of graphs: the readers, the deals and splits of the papers, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import atoll
from atoll.data.graph_datasets import GROUPS, SIZES
from atoll.data.graph_parties import deal, dealt, halves
from atoll.data.partition_settings import PartitionSettings
from atoll.data.tu import _numbers
from atoll.errors import AtollError
from atoll.runs import config, runner
from small_graphs import SHAPES, graph_data, small_graphs

__all__ = ["graph_data"]
REAL = Path(os.environ.get("ATOLL_DATA", ""))
needs_data = pytest.mark.skipif(not (REAL / "graph_splits").is_dir(), reason="needs ATOLL_DATA with graph datasets")


@needs_data
@pytest.mark.parametrize("name", ["MUTAG", "PTC_MR", "ENZYMES", "Letter-low", "PROTEINS", "IMDB-BINARY"])
def test_sizes_and_published_splits(name: str) -> None:
    """Graphs, nodes, edges, columns and classes as they are published; the papers' rule gives the published roles."""
    graph = atoll.load(name)
    found = (len(graph.y), graph.num_nodes, graph.edge_index.shape[1] // 2, graph.num_features, graph.num_classes)
    assert found == SIZES[name]
    published = np.load(REAL / "graph_splits" / "datasets.npz")[name]
    assert np.array_equal(halves(graph.y, 0.8, 123).numpy(), published)


@needs_data
@pytest.mark.parametrize(("name", "parties"), [("PROTEINS", 10), ("IMDB-BINARY", 10)])
def test_the_published_deal(name: str, parties: int) -> None:
    """GCFL's deal of one dataset over parties is the default one, and so are its splits."""
    parts = runner.prepare(config.resolve("fedavg", dataset=name, values={"rounds": 1})).party_data.parts
    published = np.load(REAL / "graph_splits" / f"{name}-{parties}.npz")
    assert parts.parties == parties
    assert parts.graph_ids is not None
    owner = np.empty(len(parts.y), int)
    owner[parts.graph_ids.numpy()] = parts.owner.numpy()
    assert np.array_equal(owner, published["owner"])
    role = np.empty(len(parts.y), int)
    role[parts.graph_ids.numpy()] = torch.where(parts.train, 0, torch.where(parts.val, 1, 2)).numpy()
    assert np.array_equal(role, published["role"])


@pytest.mark.usefixtures("graph_data")
@pytest.mark.parametrize("kind", ["chunks", "random", "dirichlet", "label_skew"])
def test_every_graph_is_dealt_once(kind: str) -> None:
    """Whatever the rule; a party's graphs are the dataset's own."""
    graph = atoll.load("nci1")
    lists = deal(graph, kind, 3, PartitionSettings(), 0)
    assert np.array_equal(np.sort(np.concatenate(lists)), np.arange(60))
    parts = dealt(graph, lists)
    assert parts.items.sizes == [len(own) for own in lists]
    assert parts.graph_ptr is not None
    assert graph.graph_ptr is not None
    assert torch.equal(parts.graph_ptr.diff(), graph.graph_ptr.diff()[np.concatenate(lists)])


@pytest.mark.usefixtures("graph_data")
def test_parties_of_a_group_have_their_own_columns_and_classes() -> None:
    """The widest party's shape is everybody's; `widths` and `classes` say what each has."""
    data = runner.prepare(small_graphs("local")).party_data
    assert data.names == GROUPS["chem"]
    assert data.parts.widths == tuple(columns for _, columns, _ in SHAPES.values())
    assert data.parts.classes == tuple(classes for _, _, classes in SHAPES.values())
    assert (data.parts.num_features, data.parts.num_classes) == (7, 3)


@pytest.mark.usefixtures("graph_data")
@pytest.mark.parametrize(
    ("dataset", "values", "sentence"),
    [
        ("mutag", {"partition": "metis"}, "cannot be dealt by 'metis'"),
        ("mutag", {"parties": 100}, "100 parties cannot share 40 graphs"),
        ("mutag", {"split": "per_class"}, "Graphs are split by auto"),
        ("mutag", {"data.features": "attributes"}, "have no attributes"),
        ("mutag", {"task": "node-classification"}, "graph-classification"),
        ("csbm", {"task": "graph-classification"}, "graph-classification"),
        ("chem", {"partition": "random", "parties": 3}, "one dataset per party"),
        ("enzymes", {}, "not here"),
    ],
)
def test_mistakes_are_said_in_one_sentence(dataset: str, values: dict[str, str], sentence: str) -> None:
    """What, where and what to do."""
    arguments = {name: values.pop(name) for name in ("partition", "parties") if name in values}
    with pytest.raises(AtollError, match=sentence):
        runner.prepare(config.resolve("fedavg", dataset=dataset, values=values, **arguments))  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "1, 2\n2, nan\n", "1, x\n", "1, 2\n3\n"])
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    """Empty, not finite, not a number, or rows of different lengths."""
    (tmp_path / "MUTAG_A.txt").write_text(text)
    with pytest.raises(AtollError, match=r"MUTAG_A.txt .*put a fresh copy there"):
        _numbers(tmp_path / "MUTAG_A.txt")
