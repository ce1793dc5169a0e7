"""Batch norm of P parties at once: Ioffe & Szegedy, ICML 2015, over each party's own nodes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.graphs.blocks import Blocks, broadcast_to_rows
from atoll.graphs.normalization import EPSILON, row_counts, standardize

NORMS = ("none", "batch")
NORM = "What stands between a hidden layer and its activation: nothing, or batch norm over the party's own nodes."
MOMENTUM = 0.1  # the share of a batch's statistics in the running ones


class BatchNorm(nn.Module):
    """γ·(x − μ)/√(σ² + ε) + β: in training by the rows at hand, in evaluation by the running statistics, as torch.nn.BatchNorm1d.

    The running statistics are parameters that no gradient reaches: they travel, are kept and are averaged with the others.
    """

    def __init__(self, parties: int, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(parties, width))  # γ
        self.shift = nn.Parameter(torch.zeros(parties, width))  # β
        self.mean = nn.Parameter(torch.zeros(parties, width), requires_grad=False)  # μ, running
        self.variance = nn.Parameter(torch.ones(parties, width), requires_grad=False)  # σ², running

    def forward(self, rows: Tensor, blocks: Blocks, *, training: bool, active: Tensor | None = None) -> Tensor:
        """(N, h) → (N, h). `active`: (P,) which parties take the step that this is for; None for all."""
        if not training:
            scale, shift = self.folded()
            return rows * broadcast_to_rows(scale, blocks) + broadcast_to_rows(shift, blocks)
        out, mean, variance = standardize(rows, self.scale, self.shift, blocks)
        with torch.no_grad():
            counts = row_counts(blocks, rows)
            counted = counts > 0 if active is None else (counts > 0) & active[:, None]
            share = MOMENTUM * counted  # a party without rows, or that takes no step, keeps its statistics
            self.mean.lerp_(mean, share)
            self.variance.lerp_(variance * counts / (counts - 1).clamp(min=1), share)
        return out

    def folded(self) -> tuple[Tensor, Tensor]:
        """What evaluation multiplies each column by, and adds to it; (P, h) each."""
        scale = self.scale * (self.variance.clamp(min=0) + EPSILON).rsqrt()
        return scale, self.shift - self.mean * scale
