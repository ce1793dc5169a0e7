"""Dense products: pieces by oneDNN are what torch computes, and are used only where they are."""

from __future__ import annotations

import pytest
import torch

from atoll.graphs import dense

ROWS = (1, 511, 512, 513, 700, 1536, 4096 + 2048 + 3)


@pytest.fixture(autouse=True)
def trials():
    """Every test decides anew, and leaves nothing decided."""
    dense._is_same.cache_clear()
    yield
    dense._is_same.cache_clear()


def made(rows: int, fan_in: int, fan_out: int) -> tuple[torch.Tensor, ...]:
    """Rows, a weight and a bias."""
    draws = torch.Generator().manual_seed(rows + fan_in + fan_out)
    return tuple(torch.randn(*shape, generator=draws) for shape in ((rows, fan_in), (fan_in, fan_out), (fan_out,)))


@pytest.mark.parametrize("shape", [(64, 64), (100, 16), (192, 48), (193, 64), (64, 7)])
def test_a_product_is_torchs_bit_for_bit(shape):
    """Whatever computes it, with and without a bias, of a weight as it is stored and of a transposed one."""
    for count in ROWS:
        rows, weight, bias = made(count, *shape)
        for one in (weight, weight.t().contiguous().t()):
            plain, biased = torch.empty(count, shape[1]), torch.empty(count, shape[1])
            dense.product_into(plain, rows, one)
            dense.product_into(biased, rows, one, bias)
            assert torch.equal(plain, torch.mm(rows, one))
            assert torch.equal(biased, torch.addmm(bias, rows, one))


def test_pieces_and_the_rest_cover_all_rows(monkeypatch):
    """Computed in pieces on any processor, every row is there, once, to rounding."""
    monkeypatch.setattr(dense, "_is_same", lambda fan_in, fan_out: True)
    for count in ROWS:
        rows, weight, bias = made(count, 64, 64)
        out = torch.full((count, 64), torch.nan)
        dense.product_into(out, rows, weight, bias)
        torch.testing.assert_close(out, rows @ weight + bias, rtol=1e-5, atol=1e-4)


def test_sums_that_underflow_have_the_sign_of_torchs():
    """Zeros that are left of products too small for float32: equal bit for bit means their sign, too."""
    rows, weight, _ = made(4096, 33, 64)
    rows, weight = rows * 1e-25, weight * 1e-25
    out = torch.empty(4096, 64)
    dense.product_into(out, rows, weight)
    assert (rows @ weight == 0).all()
    assert torch.equal(out.view(torch.int32), torch.mm(rows, weight).view(torch.int32))


def test_other_numbers_are_not_used(monkeypatch):
    """Where the trial gives other bits than torch, torch computes everything."""
    real = dense._by_onednn

    def rounded(out, *arguments):
        real(out, *arguments)
        out.mul_(1 + 2**-20)

    monkeypatch.setattr(dense, "_is_faster", lambda: True)
    monkeypatch.setattr(dense, "_by_onednn", rounded)
    rows, weight, _ = made(1024, 64, 64)
    out = torch.empty(1024, 64)
    dense.product_into(out, rows, weight)
    assert not dense._is_same(64, 64)
    assert torch.equal(out, torch.mm(rows, weight))
