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


@pytest.mark.parametrize("width", [(64, 5), (64, 64), (5, 64), (3, 4), (16, 16), (100, 7)])
@pytest.mark.parametrize("biased", [False, True])
def test_parties_of_one_size_are_multiplied_together(width: tuple[int, int], biased: bool) -> None:
    """Bit for bit as one after the other: many parties of a few sizes, among them none and one row."""
    source = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 9, (200,), generator=source).tolist()
    blocks = Blocks(sizes)
    assert len(blocks.by_size) == 9
    rows, gradient = (torch.randn(sum(sizes), columns, generator=source) for columns in width)
    weight, bias = torch.randn(200, *width, generator=source), torch.randn(200, width[1], generator=source)
    alone = Blocks(sizes)
    alone.by_size = []
    chosen = bias if biased else None
    assert torch.equal(blocks.product(rows, weight, chosen), alone.product(rows, weight, chosen))
    assert torch.equal(blocks.gram(rows, gradient), alone.gram(rows, gradient))
    plain = [rows[start:end].t() @ gradient[start:end] for start, end in blocks.ranges]
    torch.testing.assert_close(blocks.gram(rows, gradient), torch.stack(plain))


def test_few_parties_and_many_sizes_go_one_by_one() -> None:
    """There is nothing to multiply together."""
    assert Blocks([3, 3, 4] * 20).by_size == []
    assert Blocks(range(100)).by_size == []


@pytest.mark.parametrize("sizes", [[0, 4, 0], [3, 0, 5, 2], [0, 0]])
def test_parties_without_rows_have_zeros(sizes: list[int]) -> None:
    """Products, their gradients and sums of the others are as if they were alone."""
    blocks, rows = Blocks(sizes), torch.randn(sum(sizes), 3)
    weight, bias, gradient = torch.randn(len(sizes), 3, 2), torch.randn(len(sizes), 2), torch.randn(sum(sizes), 2)
    naive = [block @ w + b for block, w, b in zip(rows.split(sizes), weight, bias, strict=True)]
    torch.testing.assert_close(blocks.product(rows, weight, bias), torch.cat(naive))
    grams = [block.t() @ g for block, g in zip(rows.split(sizes), gradient.split(sizes), strict=True)]
    torch.testing.assert_close(blocks.gram(rows, gradient), torch.stack(grams))
    torch.testing.assert_close(blocks.sum(rows), torch.stack([block.sum(0) for block in rows.split(sizes)]))
    torch.testing.assert_close(blocks.add_(rows.clone(), weight[:, :, 0]), rows + blocks.broadcast(weight[:, :, 0]))
