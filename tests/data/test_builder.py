"""From arrays to a tidy, checked graph."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.data import load
from atoll.data.builder import build_graph, compact, row_normalize, tidy_edges
from atoll.errors import AtollError
from graphs import dense

PAIRS = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=30)


@given(PAIRS, st.booleans())
def test_tidy_edges_is_the_set_of_proper_pairs(pairs: list[tuple[int, int]], directed: bool) -> None:
    """Sorted, no loops, no repeats, both directions unless directed: what a loop over a set gives."""
    expected = {(a, b) for a, b in pairs if a != b}
    if not directed:
        expected |= {(b, a) for a, b in expected}
    found = tidy_edges(np.array(pairs, np.int64).reshape(-1, 2).T, 7, directed)
    assert [(int(a), int(b)) for a, b in found.T] == sorted(expected)


@pytest.mark.parametrize("kind", [sp.csr_array, sp.coo_array, np.asarray, torch.tensor])
def test_compact_keeps_values_and_chooses_by_density(kind: type) -> None:
    """Under a quarter of non-zeros gives CSR float32 without stored zeros, more gives a dense tensor; values never change."""
    few, many = np.zeros((4, 5)), np.ones((4, 5))
    few[1, 2], few[3, 0] = 2.5, -1
    sparse, full = compact(kind(few)), compact(kind(many))
    assert isinstance(sparse, sp.csr_array)
    assert sparse.dtype == np.float32
    assert sparse.nnz == 2
    np.testing.assert_array_equal(sparse.toarray(), few)
    assert isinstance(full, torch.Tensor)
    assert full.dtype == torch.float32
    np.testing.assert_array_equal(full.numpy(), many)


def arrays() -> dict[str, object]:
    """A graph that nothing is wrong with."""
    masks = (np.array([1, 0, 0], bool), np.array([0, 1, 0], bool), np.array([0, 0, 1], bool))
    return {"x": np.eye(3), "edges": np.array([[0, 1], [1, 2]]), "y": np.array([0, 1, -1]), "masks": masks, "where": "here"}


def spoilt(name: str) -> dict[str, object]:
    """The same with one mistake."""
    nan = np.eye(3)
    nan[2, 1] = np.nan
    overlapping = (np.ones(3, bool), np.array([0, 1, 0], bool), np.zeros(3, bool))
    changes: dict[str, dict[str, object]] = {
        "dense nan": {"x": nan},
        "sparse nan": {"x": sp.csr_array(nan)},
        "torch inf": {"x": torch.tensor(np.where(np.isnan(nan), np.inf, nan))},
        "rows": {"x": np.eye(2)},
        "edge": {"edges": np.array([[0, 1], [1, 3]])},
        "negative edge": {"edges": np.array([[0, -1], [1, 2]])},
        "edge shape": {"edges": np.array([0, 1])},
        "edge type": {"edges": np.array([[0.5], [1.0]])},
        "label": {"y": np.array([0, -2, 1])},
        "label above": {"y": np.array([0, 5, 1]), "num_classes": 3},
        "label type": {"y": np.array([0.0, 1.0, 2.0])},
        "two roles": {"masks": overlapping},
        "mask shape": {"masks": (np.zeros(2, bool),) * 3},
        "nothing": {"x": np.zeros((0, 3)), "y": np.zeros(0, np.int64), "edges": np.zeros((2, 0), np.int64), "masks": None},
    }
    return arrays() | changes[name]


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ("dense nan", "feature 1 of node 2"),
        ("sparse nan", "feature 1 of node 2"),
        ("torch inf", "feature 1 of node 2"),
        ("rows", r"shape \(2, 2\) for 3 nodes"),
        ("edge", "edge 1 goes from 1 to 3.*0 to 2"),
        ("negative edge", "edge 1 goes from -1 to 2"),
        ("edge shape", "two rows"),
        ("edge type", "whole node numbers"),
        ("label", "label -2 of node 1"),
        ("label above", "label 5 of node 1.*0 to 2"),
        ("label type", "one whole number per node"),
        ("two roles", "node 1 is in two"),
        ("mask shape", "train mask"),
        ("nothing", "no nodes"),
    ],
)
def test_a_mistake_is_one_sentence_that_says_where(mistake: str, said: str) -> None:
    """Whatever is wrong with the arrays is named together with its place."""
    with pytest.raises(AtollError, match=f"here.*{said}"):
        build_graph(**spoilt(mistake))  # type: ignore[arg-type]


def test_good_arrays_become_a_whole_graph() -> None:
    """P = 1, classes counted from the labels, ids from 0; a node without a label has no role."""
    graph = build_graph(**arrays() | {"y": np.array([0, 1, 0])})  # type: ignore[arg-type]
    assert (graph.parties, graph.num_nodes, graph.num_classes, graph.num_features) == (1, 3, 2, 3)
    assert graph.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert graph.ids.tolist() == [0, 1, 2]
    assert graph.test.tolist() == [False, False, True]
    assert not build_graph(**arrays()).test.any()  # type: ignore[arg-type]


def test_row_normalize_sparse_and_dense() -> None:
    """Both kinds divide a row by the sum of absolute values."""
    graph = load("csbm", nodes=20, features=4)
    expected = dense(graph) / dense(graph).abs().sum(1, keepdim=True)
    torch.testing.assert_close(dense(row_normalize(graph)), expected)
    sparse = replace(graph, x=sp.csr_array(dense(graph).numpy()))
    torch.testing.assert_close(dense(row_normalize(sparse)), expected)
    assert torch.equal(dense(sparse), dense(graph))  # the graph itself is not changed
