"""Masks, sums over them and random batches."""

from __future__ import annotations

import pytest
import torch

from atoll.graphs import masks
from atoll.graphs.graph import Graph
from atoll.random import Draws
from labeled import SIZES, blocks, labeled_graph


@pytest.fixture
def graph() -> Graph:
    """Three parties; the last has no validation nodes; some nodes have no label."""
    return labeled_graph()


def test_sums_by_party(graph: Graph) -> None:
    """Sums of numbers and of rows over a party's nodes, all or masked; masked-out NaNs do not leak; integers stay integers."""
    values = torch.arange(float(sum(SIZES)))
    torch.testing.assert_close(masks.party_sums(values, graph), torch.stack([block.sum() for block in blocks(values)]))
    values[~graph.train] = torch.nan
    expected = torch.stack([block.nansum() for block in blocks(values)])
    torch.testing.assert_close(masks.party_sums(values, graph, "train"), expected)
    counts = masks.party_sums(torch.ones(sum(SIZES), 2, dtype=torch.int64), graph, graph.val)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [[2, 2], [3, 3], [0, 0]]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_batch_is_drawn_by_each_party(graph: Graph, size: int) -> None:
    """`size` training nodes of each party, all of a party that has no more; the same whether parties are alone or together."""
    draws = Draws(0, [0, 1, 2], "batch")
    batch = masks.random_batch(graph, size, draws)
    if size == int(graph.num_train.max()):
        assert isinstance(batch, str)
        return
    assert isinstance(batch, torch.Tensor)
    assert not bool((batch & ~graph.train).any())
    assert masks.party_sums(batch.long(), graph).tolist() == graph.num_train.clamp(max=size).tolist()
    batches = [batch, masks.random_batch(graph, size, draws)]  # the second with what the first left of the draws
    for party in range(3):
        alone, own = graph.select([party]), Draws(0, [party], "batch")
        for batch in batches:
            drawn = masks.random_batch(alone, size, own)
            expected = alone.train if isinstance(drawn, str) else drawn
            assert torch.equal(blocks(batch)[party], expected)
