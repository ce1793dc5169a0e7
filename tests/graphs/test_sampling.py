"""Layer-wise sampling against loops over nodes and dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import plain_vertical as naive
from atoll.graphs.graph import Graph
from atoll.graphs.sampling import Batch, Level, attention_between, below, between
from atoll.random import Draws
from atoll.runs import runner
from plain import dense
from small import small


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Three parties on the same 60 nodes."""
    return runner.prepare(small("glasu", **{"data.degree": 8})).party_data.parts


def top(graph: Graph, *nodes: int) -> Level:
    """The same nodes of every party."""
    return Level.from_nodes(graph, [torch.tensor(nodes)] * graph.parties)


def draws(parties: list[int]) -> list[torch.Generator]:
    """The parties' generators."""
    return Draws(5, parties, "sample").generators


def neighbors(graph: Graph, rows: set[int]) -> set[int]:
    """By a loop over the edges."""
    return {s for s, t in graph.edge_index.t().tolist() if t in rows}


def test_a_level_is_the_one_above_and_a_sample_of_its_neighbors(graph: Graph) -> None:
    """Never more than the fan-out a node, never a stranger, the nodes themselves always; a party's level is in its own block."""
    upper = top(graph, 3, 17, 40)
    lower = below(graph, upper, 2, draws([0, 1, 2]))
    for party, (start, end) in enumerate(lower.blocks.ranges):
        own = set(upper.rows[3 * party : 3 * party + 3].tolist())
        found = set(lower.rows[start:end].tolist())
        assert own <= found <= own | neighbors(graph, own)
        assert len(found) == len(own) + min(6, len(neighbors(graph, own) - own))
    assert (np.diff(lower.rows) > 0).all()


def test_without_a_fan_out_all_neighbors_come(graph: Graph) -> None:
    """Fan-out 0 is the whole neighborhood."""
    upper = top(graph, 5, 6)
    rows = set(upper.rows.tolist())
    assert set(below(graph, upper, 0, draws([0, 1, 2])).rows.tolist()) == rows | neighbors(graph, rows)


def test_a_party_draws_the_same_alone(graph: Graph) -> None:
    """What party 2 samples does not depend on who else is in the cohort, but on its own seed."""
    together = below(graph, top(graph, 3, 17, 40), 2, draws([0, 1, 2])).nodes(graph)[2]
    alone = graph.select([2])
    assert torch.equal(below(alone, top(alone, 3, 17, 40), 2, draws([2])).nodes(alone)[0], together)
    assert not torch.equal(below(alone, top(alone, 3, 17, 40), 2, draws([1])).nodes(alone)[0], together)


def test_every_neighbor_is_as_likely_as_any_other(graph: Graph) -> None:
    """Over 400 draws each of the candidates comes about as often."""
    alone = graph.select([0])
    upper = top(alone, 3, 17, 40)
    counts = np.zeros(alone.num_nodes)
    for seed in range(400):
        counts[below(alone, upper, 1, Draws(seed, [0]).generators).rows] += 1
    candidates = sorted(neighbors(alone, set(upper.rows.tolist())) - set(upper.rows.tolist()))
    expected = 400 * 3 / len(candidates)
    assert len(candidates) > 6
    assert np.abs(counts[candidates] - expected).max() < 5 * expected**0.5


def test_the_matrix_between_levels_is_the_scaled_submatrix(graph: Graph) -> None:
    """Â_ij·d_i / d_i[l] for sampled neighbors, Â_ii for the node itself: entry by entry."""
    upper = top(graph, 3, 17, 40, 41)
    lower = below(graph, upper, 1, draws([0, 1, 2]))
    got = between(graph, upper, lower).forward.to_dense()
    for party in range(3):
        whole = dense(graph.select([party]))
        rows, columns = (level.nodes(graph)[party] for level in (upper, lower))
        (a, b), (c, d) = upper.blocks.ranges[party], lower.blocks.ranges[party]
        torch.testing.assert_close(got[a:b, c:d], naive.between(whole, rows, columns))
        assert got[a:b].count_nonzero() == got[a:b, c:d].count_nonzero()  # nothing outside the party's block


def test_with_all_neighbors_the_matrix_is_exact(graph: Graph) -> None:
    """Â's own rows: a product with it is the whole graph's."""
    upper = top(graph, 3, 17)
    lower = below(graph, upper, 0, draws([0, 1, 2]))
    x = torch.randn(graph.num_nodes, 4, generator=torch.Generator().manual_seed(0))
    near = between(graph, upper, lower) @ x[torch.from_numpy(lower.rows)]
    torch.testing.assert_close(near, (graph.normalized_adjacency @ x)[torch.from_numpy(upper.rows)])


def test_the_whole_graph_is_not_copied(graph: Graph) -> None:
    """A batch of everything uses the graph's own matrix and features."""
    batch = Batch.everything(graph, 2)
    assert batch.matrix(0) is graph.normalized_adjacency
    assert batch.features is graph.features
    hidden = torch.randn(graph.num_nodes, 3)
    assert batch.take(hidden, 0, 2) is hidden


def test_upper_rows_are_found_among_the_lower(graph: Graph) -> None:
    """`take` gives the same nodes' rows."""
    upper = top(graph, 3, 17, 40)
    lower = below(graph, upper, 2, draws([0, 1, 2]))
    batch = Batch(graph, [lower, upper])
    taken = batch.take(torch.from_numpy(lower.rows).float()[:, None], 0, 1)
    assert taken[:, 0].tolist() == upper.rows.tolist()


def test_attention_looks_at_the_sampled_edges_only(graph: Graph) -> None:
    """The pattern over the lower level: the edges into the upper level's nodes, and a loop at every row."""
    upper = top(graph, 3, 17, 40)
    lower = below(graph, upper, 2, draws([0, 1, 2]))
    pattern = attention_between(graph, upper, lower, 1).pattern.forward.to_dense() > 0
    edges = {(s, t) for s, t in graph.edge_index.t().tolist()}
    for i, target in enumerate(lower.rows.tolist()):
        for j, source in enumerate(lower.rows.tolist()):
            expected = i == j or (target in upper.rows and (source, target) in edges)
            assert bool(pattern[i, j]) == expected
