"""Rows by party against a loop over the parties."""

from __future__ import annotations

import pytest
import torch
from products import SIZES, agree

from atoll.graphs.blocks import Blocks, broadcast_to_rows


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
def test_sums_and_broadcasts_by_party(sizes: list[int]) -> None:
    """Sums by party and their opposite, for few parties and for many."""
    blocks = Blocks(sizes)
    rows = torch.randn(sum(sizes), 3)
    torch.testing.assert_close(blocks.sum(rows), torch.stack([block.sum(0) for block in rows.split(sizes)]))
    values = torch.randn(len(sizes), 3, requires_grad=True)
    naive = torch.repeat_interleave(values, torch.tensor(sizes), 0)
    agree(broadcast_to_rows(values, blocks), naive, [values])
    torch.testing.assert_close(blocks.add_(rows.clone(), values.detach()), rows + naive)
