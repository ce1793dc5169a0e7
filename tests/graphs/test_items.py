"""Graphs of graphs: batches cut out of a cohort's arrays, beside the same computed again."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.data.tu import graph_of_graphs
from atoll.errors import AtollError
from atoll.graphs import items
from atoll.graphs.graph import Graph, stack
from atoll.graphs.segments import segment_max
from atoll.graphs.sparse import SparseMatrix

OPERATORS = ("normalized_adjacency", "summed_adjacency", "unlooped_adjacency", "mean_adjacency")


def graphs_of(sizes: list[int], seed: int, columns: int = 3) -> Graph:
    """One party with graphs of these sizes."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *sizes[:-1]])
    pairs = [
        (start + i, start + j)
        for start, size in zip(starts, sizes, strict=True)
        for i in range(size)
        for j in range(i)
        if rng.random() < 0.6
    ]
    edges = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    labels = np.arange(len(sizes)) % 2
    graph = graph_of_graphs(rng.random((sum(sizes), columns)).astype(np.float32), edges, np.array(sizes), labels, where="here")
    train = torch.arange(len(sizes)) % 3 != 2
    return Graph(**{**{f: getattr(graph, f) for f in graph.__dataclass_fields__}, "train": train, "val": ~train})


def parties() -> Graph:
    """Three parties with 5, 1 and 4 graphs; one of a single node."""
    return stack([graphs_of([3, 1, 4, 2, 5], 0), graphs_of([6], 1), graphs_of([2, 3, 1, 4], 2)])


def dense(matrix: SparseMatrix) -> Tensor:
    """The matrix itself."""
    forward = matrix.forward
    arrays = (forward.values().numpy(), forward.col_indices().numpy(), forward.crow_indices().numpy())
    return torch.from_numpy(sp.csr_array(arrays, shape=matrix.shape).toarray())


def test_items_of_nodes_are_the_nodes() -> None:
    """Node tasks use the very objects that they always did."""
    graph = parties()
    nodes = Graph(
        **{
            **{f: getattr(graph, f) for f in graph.__dataclass_fields__},
            "graph_ptr": None,
            "graph_ids": None,
            "y": graph.ids,
            "train": graph.ids >= 0,
        }
    )
    assert nodes.items is nodes.blocks
    assert nodes.owner is nodes.party
    assert nodes.judged is nodes
    assert nodes.active is None


def test_graphs_have_owners() -> None:
    """Items, owners and training items of each party."""
    graph = parties()
    assert graph.items.sizes == [5, 1, 4]
    assert graph.owner.tolist() == [0] * 5 + [1] + [2] * 4
    assert graph.num_train.tolist() == [4, 1, 3]
    assert graph.num_nodes == 15 + 6 + 10


@pytest.mark.parametrize("name", OPERATORS)
def test_a_batch_is_cut_out_of_the_whole(name: str) -> None:
    """Operators, features and edges of a batch are those of the graphs alone, bit for bit, forward and back."""
    graph = parties()
    chosen = torch.tensor([1, 4, 6, 7, 9])
    batch = graph.take(chosen)
    alone = Graph(**{f: getattr(batch, f) for f in batch.__dataclass_fields__})  # without what it was cut from
    assert torch.equal(dense(getattr(batch, name)), dense(getattr(alone, name)))
    rows = torch.rand(batch.num_nodes, 4)
    assert torch.equal(getattr(batch, name).transposed_matmul(rows), getattr(alone, name).transposed_matmul(rows))
    assert batch.items.sizes == [2, 0, 3]
    assert torch.equal(batch.y, graph.y[chosen])
    assert graph.graph_ptr is not None
    assert batch.graph_ptr is not None
    whole = graph.adjacency.toarray()
    for index, g in enumerate(chosen.tolist()):
        there = slice(*graph.graph_ptr[g : g + 2].tolist())
        here = slice(*batch.graph_ptr[index : index + 2].tolist())
        assert np.array_equal(batch.adjacency.toarray()[here, here], whole[there, there])
        assert torch.equal(batch.x[here], graph.x[there])  # type: ignore[arg-type]


def test_some_parties_are_their_own_graphs() -> None:
    """`select` gives what the parties alone would be, in the asked order."""
    graph = parties()
    chosen = graph.select([2, 0])
    alone = stack([graphs_of([2, 3, 1, 4], 2), graphs_of([3, 1, 4, 2, 5], 0)])
    assert torch.equal(chosen.edge_index, alone.edge_index)
    assert torch.equal(chosen.ptr, alone.ptr)
    assert chosen.graph_ptr is not None
    assert torch.equal(chosen.graph_ptr, alone.graph_ptr)
    assert torch.equal(chosen.y, alone.y)


def test_judged_graphs_validate_or_test() -> None:
    """Evaluation runs on the graphs that are judged alone."""
    graph = parties()
    assert graph.judged.items.sizes == [1, 0, 1]
    assert not bool(graph.judged.train.any())
    assert graph.take(torch.tensor([0, 5])).active is not None


def test_pooling_and_its_gradient() -> None:
    """Sums and maxima over graphs beside a loop, forward and back."""
    graph = parties()
    assert graph.graph_ptr is not None
    rows = torch.randn(graph.num_nodes, 4, requires_grad=True)
    again = rows.detach().clone().requires_grad_()
    pieces = torch.split(again, graph.graph_ptr.diff().tolist())
    for fast, plain in (
        (graph.pool @ rows, torch.stack([piece.sum(0) for piece in pieces])),
        (segment_max(rows, graph.graph_ptr), torch.stack([piece.amax(0) for piece in pieces])),
    ):
        torch.testing.assert_close(fast, plain)
        weights = torch.randn_like(plain)
        ours = torch.autograd.grad((fast * weights).sum(), rows, retain_graph=True)[0]
        torch.testing.assert_close(ours, torch.autograd.grad((plain * weights).sum(), again, retain_graph=True)[0])


def test_an_empty_graph_is_refused() -> None:
    """So is an edge between two graphs."""
    with pytest.raises(AtollError, match="graph 1 has no nodes"):
        graph_of_graphs(np.ones((3, 1)), np.zeros((2, 0), np.int64), np.array([2, 0, 1]), np.array([0, 1, 0]), where="here")
    with pytest.raises(AtollError, match="edge 0 joins graph 0 and graph 1"):
        graph_of_graphs(np.ones((3, 1)), np.array([[0], [2]]), np.array([2, 1]), np.array([0, 1]), where="here")


@pytest.mark.parametrize("name", OPERATORS)
def test_steps_that_are_cut_out_at_once_are_those_cut_out_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: rows, operators, pointers and who takes the step; some parties have no graph in a step."""
    monkeypatch.setattr(items, "CUT_AT_ONCE", 2)
    graph = parties()
    steps = [torch.tensor(each) for each in ([1, 4, 6, 7, 9], [0, 2, 5], [3], [5, 6], [8, 9])]
    for one, other in zip(graph.take_each(steps), map(graph.take, steps), strict=True):
        assert torch.equal(one.ptr, other.ptr)
        assert one.graph_ptr is not None
        assert other.graph_ptr is not None
        assert torch.equal(one.graph_ptr, other.graph_ptr)
        assert torch.equal(one.cut.rows, other.cut.rows)
        assert torch.equal(one.edge_index, other.edge_index)
        assert (one.active is None) == (other.active is None)
        assert one.active is None or other.active is None or torch.equal(one.active, other.active)
        assert torch.equal(dense(getattr(one, name)), dense(getattr(other, name)))
        rows = torch.rand(one.num_nodes, 4)
        assert torch.equal(getattr(one, name).transposed_matmul(rows), getattr(other, name).transposed_matmul(rows))
