"""Structure embeddings against dense powers and degrees counted one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import plain
from atoll.graphs.graph import Graph
from atoll.graphs.structure import degree_embedding, return_probabilities
from atoll.runs import runner
from small import small


def parts(*, directed: bool = False) -> Graph:
    """Three parties' graphs; one node of the first has no neighbor."""
    graph = runner.prepare(small("local")).party_data.parts
    edges = graph.edge_index[:, (graph.edge_index != 0).all(0)]
    return replace(graph, edge_index=edges[:, ::2] if directed else edges)


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("width", [3, 64])
def test_return_probabilities_are_the_diagonals_of_powers(directed: bool, width: int) -> None:
    """Against M = A·D⁻¹ multiplied with itself, party by party; odd and even powers, several batches of columns."""
    graph = parts(directed=directed)
    assert graph.symmetric is not directed
    found = return_probabilities(graph, 5, width).split(graph.sizes)
    for party, own in zip(plain.parties(graph), found, strict=True):
        walk = party.adjacency / party.adjacency.sum(0).clamp(min=1)
        expected = torch.stack([torch.linalg.matrix_power(walk, k).diagonal() for k in range(1, 6)], 1)
        torch.testing.assert_close(own, expected, atol=1e-6, rtol=1e-5)


def test_degrees_are_one_hot() -> None:
    """Degree 1 in the first place, `degrees` and more in the last, none for a node without neighbors."""
    graph = parts()
    found = degree_embedding(graph, 3)
    for v in range(graph.num_nodes):
        degree = int((graph.edge_index[1] == v).sum())
        assert found[v].tolist() == [float(min(degree, 3) == place) for place in (1, 2, 3)]
