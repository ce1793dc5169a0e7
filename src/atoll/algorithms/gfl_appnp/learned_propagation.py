"""Generalized PageRank (Chien et al., ICLR 2021) for GFL-APPNP: Ã = Σ_t γ_t·Âᵗ, and the server learns γ (`propagation=gpr`).

γ does not change within a round, so the local steps and their exact shortcut are those of a fixed Ã; only what depends on Ã
alone (`compensation.coupling`) is made again in every round. At W̄, in its first step, a party also computes its loss's gradient

∂F_k/∂γ_t = Σ_s (ŷ_s − y_s)·((Âᵗ)_kk·h_s + Σ_{j≠k} (Âᵗ)_kj·ĥ_j)

from the second summand, which the server sends for every t, and the server takes a step along the mean over the parties. With
I = 1 a round is one step of gradient descent on W and γ together. Payload bytes per round and training party: down
4·(M + 1)·(C + 1) more, up 4·(M + 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.propagation import BLOCK, LOOPS, Propagation
from atoll.device import precise
from atoll.graphs.walks import closed_walks
from atoll.stages import report, tracked


class Learned(Propagation):
    """Σ_t γ_t·Âᵗ of the graph of another propagation."""

    def __init__(self, base: Propagation, weights: Tensor) -> None:
        self.nodes, self.steps, self.base, self.weights = base.nodes, base.steps, base, weights
        self.graph, self.normalized, self._toward = base.graph, base.normalized, None

    def __matmul__(self, values: Tensor) -> Tensor:
        result, power = self.weights[0] * values, values
        for weight in self.weights[1:]:
            power = self.normalized @ power
            result = result + weight * power
        return result

    def at(self, nodes: Tensor) -> Callable[[Tensor], Tensor]:
        """A function of values (N, c): Ã·values at some nodes, (K, c)."""
        return lambda values: (self @ values)[nodes]

    @property
    def coefficients(self) -> Tensor:
        """(M + 1,) γ."""
        return precise(self.weights)

    def diagonal(self, nodes: Tensor) -> Tensor:
        """(K,) Σ_t γ_t·(Âᵗ)_kk."""
        return self.loops(nodes) @ self.weights

    def loops(self, nodes: Tensor) -> Tensor:
        """(K, M + 1) (Âᵗ)_kk; remembered with the graph."""
        if self.base.walks is None:
            self.base.walks = torch.full((self.nodes, self.steps + 1), torch.nan, device=nodes.device)
        known = self.base.walks
        unknown = nodes[known[nodes, 0].isnan()]
        if self.large and self.graph.symmetric:
            for span, walks in closed_walks(self.graph.normalized, unknown, self.steps):
                report(LOOPS, span.start, len(unknown))
                known[unknown[span]] = walks.t().float().to(known.device)
            return known[nodes]
        blocks = torch.unique(unknown // BLOCK).tolist()
        for block in tracked(blocks, LOOPS, len(blocks)):
            some = torch.arange(block * BLOCK, min((block + 1) * BLOCK, self.nodes), device=known.device)
            column = torch.arange(len(some), device=known.device)
            power = known.new_zeros(self.nodes, len(some))
            power[some, column] = 1
            for t in range(self.steps + 1):
                known[some, t] = power[some, column]
                power = self.normalized @ power if t < self.steps else power
        return known[nodes]

    def arrived(self, hidden: Tensor, nodes: Tensor) -> Tensor:
        """(K, M + 1, C) Σ_{j≠k} (Âᵗ)_kj·ĥ_j at some nodes."""
        powers = [hidden]
        for _ in range(self.steps):
            powers.append(self.normalized @ powers[-1])
        return torch.stack([power[nodes] for power in powers], 1) - self.loops(nodes)[:, :, None] * hidden[nodes][:, None]


def slopes(errors: Tensor, outputs: Tensor, loops: Tensor, arrived: Tensor) -> Tensor:
    """(K, M + 1) ∂F_k/∂γ for errors and outputs (K, n, C) of the training vectors at W̄; errors carry 1/|B|."""
    looped = (errors * outputs).sum((1, 2))[:, None] * loops
    return looped + torch.einsum("kc,ktc->kt", errors.sum(1), arrived)
