"""Dropout in place: what multiplying by a mask gives, and its gradient."""

from __future__ import annotations

import pytest
import torch

from atoll.graphs import dropout
from atoll.graphs.dropout import relu_dropout
from atoll.random import Draws


@pytest.mark.parametrize("piece", [4, 16, 1 << 20])
@pytest.mark.parametrize("probability", [0.0, 0.3, 0.99])
def test_it_is_a_mask_and_its_gradient(piece: int, probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers as relu(x) times `Draws.keep`, bit for bit."""
    monkeypatch.setattr(dropout, "MAX_NUMBERS_AT_ONCE", piece)
    source = torch.Generator().manual_seed(0)
    rows, upstream = torch.randn(13, 7, generator=source, requires_grad=True), torch.randn(13, 7, generator=source)
    kept = Draws(1, [0], "dropout").keep(1 - probability, [13], 7) if probability else 1
    expected = rows.relu() * kept
    result = relu_dropout(rows * 1, probability, Draws(1, [0], "dropout"))
    assert torch.equal(result, expected)
    assert (result.detach() == 0).any()
    (expected_gradient,), (gradient,) = (torch.autograd.grad(out, rows, upstream) for out in (expected, result))
    assert torch.equal(gradient, expected_gradient)
    assert torch.equal(relu_dropout(rows * 1, probability, None), rows.relu())
