"""Personalized propagation (Gasteiger et al., ICLR 2019) as a matrix: Ã = α·Σ_{i<M} (1−α)ⁱ·Âⁱ + (1−α)ᴹ·Âᴹ, and some of its rows.

Â = D^(-1/2)·(A + I)·D^(-1/2). Ã is dense in all but name (ten steps reach most of a citation graph), so it is never formed:
products with it are sparse ones, and only the rows somebody needs are ever written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor

from atoll.device import CPU
from atoll.graphs.funnel import Funnel
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import diffuse
from atoll.graphs.walks import closed_walks
from atoll.models.appnp import APPNP, Settings
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.parameters import set_parameters
from atoll.stages import report, tracked

BLOCK = 128  # columns computed at once
MAX_DENSE = 20_000  # nodes up to which the diagonal is made from dense columns
LOOPS = "Weights of the parties themselves (the diagonal of Ã)"
DENSE_ADVANTAGE = 50  # a stored row entry costs about 1/50 of a sparse one that is used in every step


class Propagation:
    """Ã of a graph: `propagation @ values` spreads values (N, c) over it."""

    def __init__(
        self, edge_index: Tensor, nodes: int, teleport: float = 0.1, steps: int = 10, *, device: torch.device = CPU
    ) -> None:
        self.nodes, self.teleport, self.steps = nodes, teleport, steps
        none = torch.zeros(nodes, dtype=torch.bool)
        bare = torch.empty(nodes, 0)
        graph = Graph(bare, edge_index, none.long(), none, none, none, 1, torch.arange(nodes), torch.tensor([0, nodes]))
        self.graph = graph.to(device)
        self.normalized = self.graph.normalized_adjacency  # Â
        self._diagonal = torch.full((nodes,), torch.nan, device=device)
        self._toward: Toward | None = None
        self.walks: Tensor | None = None  # (N, M + 1) (Âᵗ)_kk, where `learned` has asked for them

    def __matmul__(self, values: Tensor) -> Tensor:
        return diffuse(self.normalized, values, self.steps, self.teleport)

    def at(self, nodes: Tensor) -> Callable[[Tensor], Tensor]:
        """A function of values (N, c): Ã·values at some nodes, (K, c)."""
        return Funnel(self.normalized, nodes, self.steps, self.teleport).__matmul__

    def transposed(self, values: Tensor) -> Tensor:
        """Ãᵀ·values."""
        if self.graph.symmetric:
            return self @ values
        with torch.enable_grad():
            start = torch.zeros_like(values, requires_grad=True)
            return torch.autograd.grad(self @ start, start, values)[0]

    def columns(self, nodes: Tensor) -> Tensor:
        """(N, K): the columns of Ãᵀ at some nodes, which are the rows of Ã."""
        chosen = torch.zeros(self.nodes, len(nodes), device=self.graph.device)
        chosen[nodes, torch.arange(len(nodes), device=nodes.device)] = 1
        return self.transposed(chosen)

    def diagonal(self, nodes: Tensor) -> Tensor:
        """(K,) Ã_kk; remembered, and the bits do not depend on who asked first: made in fixed blocks, or each by itself."""
        unknown = nodes[self._diagonal[nodes].isnan()]
        if self.large and self.graph.symmetric:
            self._diagonal[unknown] = self._sparse_loops(unknown)
            return self._diagonal[nodes]
        blocks = torch.unique(unknown // BLOCK).tolist()
        for block in tracked(blocks, LOOPS, len(blocks)):
            some = torch.arange(block * BLOCK, min((block + 1) * BLOCK, self.nodes), device=nodes.device)
            self._diagonal[some] = self._loops(some)
        return self._diagonal[nodes]

    @property
    def large(self) -> bool:
        """Whether dense columns of the graph's length are to be avoided."""
        return self.nodes > MAX_DENSE

    @property
    def coefficients(self) -> Tensor:
        """(M + 1,) of Âⁱ."""
        return coefficients(self.teleport, self.steps)

    def _sparse_loops(self, nodes: Tensor) -> Tensor:
        """Ã_kk from the nodes within half the steps of k alone."""
        result, coefficients = torch.empty(len(nodes)), self.coefficients
        for span, walks in closed_walks(self.graph.normalized, nodes, self.steps):
            report(LOOPS, span.start, len(nodes))
            result[span] = (coefficients @ walks).float()
        return result.to(nodes.device)

    def _loops(self, nodes: Tensor) -> Tensor:
        """Ã_kk by half the steps: (Âⁱ⁺ʲ)_kk = (Âᵀⁱ·e_k)·(Âʲ·e_k)."""
        if not self.graph.symmetric:
            return self.columns(nodes)[nodes, torch.arange(len(nodes), device=nodes.device)]
        power = torch.zeros(self.nodes, len(nodes), device=self.graph.device)  # Âⁱ·e_k
        power[nodes, torch.arange(len(nodes), device=nodes.device)] = 1
        walks = [power.new_ones(len(nodes))]  # (Âⁱ)_kk for i = 0, 1, …
        while len(walks) <= self.steps:
            after = self.normalized @ power
            walks += [(power * after).sum(0), (after * after).sum(0)]
            power = after
        shares = self.coefficients.tolist()
        return sum((share * walk for share, walk in zip(shares, walks, strict=False)), torch.zeros_like(walks[0]))

    def toward(self, nodes: Tensor) -> Toward:
        """The rows of Ã at some nodes without its diagonal; kept as long as the same nodes are asked for."""
        if self._toward is None or not torch.equal(self._toward.nodes, nodes):
            self._toward = Toward(self, nodes)
        return self._toward


class Toward:
    """A_o: the rows of Ã at K nodes, diagonal zeroed: how the others' values reach these nodes."""

    def __init__(self, propagation: Propagation, nodes: Tensor) -> None:
        self.propagation, self.nodes = propagation, nodes
        self.diagonal = propagation.diagonal(nodes)  # Ã_kk

    @cached_property
    def rows(self) -> Tensor | None:
        """(K, N) where that is less work than the sparse steps."""
        nodes, edges = self.propagation.nodes, self.propagation.graph.edge_index.shape[1]
        few = 0 < len(self.nodes) * nodes <= DENSE_ADVANTAGE * (nodes + edges)
        return torch.cat([block for _, block in self.blocks()]) if few else None

    @cached_property
    def spread(self) -> Callable[[Tensor], Tensor]:
        """Ã·values at these nodes; in large graphs without most of the last steps."""
        propagation, nodes = self.propagation, self.nodes
        return propagation.at(nodes) if propagation.large else lambda values: (propagation @ values)[nodes]

    def columns(self) -> Iterator[tuple[slice, Tensor]]:
        """(N, k) the rows, written as columns, a block after the other."""
        for start in range(0, len(self.nodes), BLOCK):
            some = self.nodes[start : start + BLOCK]
            block = self.propagation.columns(some)
            block[some, torch.arange(len(some), device=some.device)] = 0
            yield slice(start, start + len(some)), block

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """(k, N) dense rows, a block after the other."""
        for targets, columns in self.columns():
            yield targets, columns.t().contiguous()

    def root(self, sources: Tensor) -> Tensor:
        """L (K, K) with L·Lᵀ = A_o·A_oᵀ over some source nodes: L·z is what arrives of independent normal noise at them."""
        rows = torch.cat([block for _, block in self.blocks()])[:, sources].cpu().double()  # another device has other vectors
        values, vectors = torch.linalg.eigh(rows @ rows.t())
        root: Tensor = vectors * values.clamp(min=0).sqrt()
        return root.float().to(self.nodes.device)

    def gather(self, values: Tensor) -> Tensor:
        """A_o·values: (N, c) → (K, c)."""
        if self.rows is not None:
            return self.rows @ values
        return self.spread(values) - self.diagonal[:, None] * values[self.nodes]

    def scatter(self, values: Tensor) -> Tensor:
        """A_oᵀ·values: (K, c) → (N, c)."""
        if self.rows is not None:
            return self.rows.t() @ values
        placed = values.new_zeros(self.propagation.nodes, values.shape[1]).index_copy_(0, self.nodes, values)
        result = self.propagation.transposed(placed)
        result[self.nodes] -= self.diagonal[:, None] * values
        return result


def coefficients(teleport: float, steps: int) -> Tensor:
    """(M + 1,) the weights of Âⁱ: α·(1−α)ⁱ, and (1−α)ᴹ of the last."""
    kept = 1 - teleport
    return torch.tensor([*(teleport * kept**i for i in range(steps)), kept**steps], dtype=torch.float64)


def appnp(model: Mapping[str, Tensor], parties: int, teleport: float, steps: int) -> Backbone:
    """Ã·MLP(x) as a backbone, the same for all parties."""
    first, *_, last = (*model.values(), *model.values())
    shape = ModelShape(parties, first.shape[0], last.shape[1], first.shape[1], len(model), bias=False)
    made = APPNP(shape, settings=Settings(steps, teleport))
    set_parameters(made, model)
    return made


def connectivity(edge_index: Tensor, nodes: int) -> float:
    """λ_max(B_N·L†), B_N = I/N − 11ᵀ/N²: 1 / (N·λ₂(L)), infinite where the graph is not connected (GFL-APPNP, Theorem 4.1)."""
    laplacian = torch.zeros(nodes, nodes, dtype=torch.float64)
    laplacian[edge_index[0], edge_index[1]] = laplacian[edge_index[1], edge_index[0]] = -1
    laplacian -= torch.diag(laplacian.sum(1))
    second = float(torch.linalg.eigvalsh(laplacian)[1])
    return 1 / (nodes * second) if second > 1e-9 else float("inf")
