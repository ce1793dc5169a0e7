"""The first layer of distinct rows alone, beside that of all nodes; and what batches make on first use."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs import distinct_rows
from atoll.graphs.graph import Graph
from atoll.models.backbone import ModelShape
from atoll.models.graph_level import GraphNetwork
from atoll.random import Draws
from atoll.runs import runner
from small_graphs import graph_data, small_graphs

__all__ = ["graph_data"]
pytestmark = pytest.mark.usefixtures("graph_data")


def parts() -> Graph:
    """Seven parties with many small graphs."""
    return runner.prepare(small_graphs("local")).party_data.parts


def gradients(graph: Graph, dropout: float) -> list[Tensor]:
    """Of a GIN with a fixed loss, on a graph, with the masks of one call."""
    shape = ModelShape(graph.parties, graph.num_features, graph.num_classes, 8, 2, dropout)
    model = GraphNetwork(shape, Draws(0, range(graph.parties), "model"))
    out = model(graph, Draws(0, range(graph.parties), "step"))
    return [out.detach(), *torch.autograd.grad(out.square().sum(), list(model.parameters()))]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("batch", [False, True])
def test_the_first_layer_of_distinct_rows_is_that_of_all(dropout: float, batch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs and gradients, of all graphs and of a batch in which one party has none."""
    found = []
    for share in (1.0, 0.0):
        monkeypatch.setattr(distinct_rows, "MAX_SHARE", share)
        graph = parts()
        if batch:
            graph = graph.take((graph.owner != 2).nonzero()[::3, 0])
        assert (graph.distinct is None) == (share == 0)
        found.append(gradients(graph, dropout))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


def test_rows_are_distinct_and_those_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each node has its own row of [(A + I)·X ‖ row sums], no row twice at a party."""
    monkeypatch.setattr(distinct_rows, "MAX_SHARE", 1.0)
    graph = parts().take(torch.arange(0, 200, 3))
    rows = graph.distinct
    assert rows is not None
    looped = graph.adjacency + sp.eye_array(graph.num_nodes)
    expected = np.hstack([(looped @ graph.nonzero_features).toarray(), looped.sum(1)[:, None]])
    table = rows.table.numpy()
    assert np.array_equal(table[rows.kind.numpy()], expected)
    assert torch.equal(rows.party[rows.kind], graph.party)
    assert len(np.unique(np.hstack([rows.party[:, None].numpy(), table]), axis=0)) == len(table)
    assert rows.blocks.sizes == torch.bincount(rows.party, minlength=7).tolist()


def test_many_values_or_rows_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where hardly any two nodes are alike the usual layer is used."""
    monkeypatch.setattr(distinct_rows, "MAX_VALUES", 1)
    assert parts().distinct is None


def test_a_batch_is_the_graph_of_its_small_graphs() -> None:
    """Every field, made on first use or not, is that of the graphs chosen one by one."""
    whole = parts()
    graphs = torch.arange(1, len(whole.y), 4)
    batch = whole.take(graphs)
    assert whole.graph_ptr is not None
    rows = torch.cat([torch.arange(*whole.graph_ptr[g : g + 2].tolist()) for g in graphs.tolist()])
    none = torch.zeros(whole.num_nodes, dtype=torch.bool)
    nodes = replace(whole, graph_ptr=None, graph_ids=None, y=none.long(), train=none, val=none, test=none, majority=None)
    alone = nodes.rows(rows)
    for name in ("x", "ids", "edge_index"):
        one, other = getattr(batch, name), getattr(alone, name)
        same = (one != other).nnz == 0 if sp.issparse(one) else torch.equal(one, other)
        assert same, name
    assert torch.equal(batch.origin if batch.origin is not None else rows[:0], rows)
    assert {field.name for field in fields(batch)} == {field.name for field in fields(Graph)}
    standing = batch.complete()
    assert type(standing) is Graph
    assert standing.digest == batch.digest
