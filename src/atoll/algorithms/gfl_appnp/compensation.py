"""GFL-APPNP's gradient compensation: what ∇ĥ and ∇C are as messages, and what they are when they need not be written out.

h = relu(x·W₁)·W₂ for W₁ (d, h), W₂ (h, C). With the mask m = [x·W̄₁ > 0] and r = relu(x·W̄₁) a party's Jacobian has two factors:
∂ĥ_c/∂W₁ = mean_s x_s m_sᵀ · diag(W̄₂[:, c]) and ∂ĥ_c/∂W₂ = r̄ e_cᵀ. So has every mixture of them, ∇C_k = Σ_{j≠k} Ã_kj·∇ĥ_j:
M_k = Σ_j Ã_kj·mean_s x_js m_jsᵀ and R_k = Σ_j Ã_kj·r̄_j. On the wire, both ways, either the paper's `jacobian` (C, d·h + h·C)
or, C times smaller, the `factored` (d + 1, h), M_k over R_k.

M_k does not change within a round, so after any number of steps a party's first weight is
W₁ = s·W̄₁ − M_k·diag(D_k) − Σ_s x_ks S_ksᵀ, and all that the steps ever ask of M_k is
x_ks·M_k = Σ_j Ã_kj·mean_s' (x_ks·x_js') m_js': one product with a matrix of Gram entries that never changes (`coupling`).
`atoll.algorithms.gfl_appnp.local_steps` takes the steps, with real messages or without.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.propagation import BLOCK, Toward
from atoll.deferred import Deferred
from atoll.graphs.blocks import spans
from atoll.graphs.graph import Graph
from atoll.random import generator
from atoll.stages import tracked

if TYPE_CHECKING:
    from atoll.algorithms.gfl_appnp.local_steps import Trained

MAX_COUPLING = 1 << 29  # Gram entries that are kept from round to round, 2 GB
SPREAD_COLUMNS = 128  # spread over the graph at once where they are not kept: more fall out of the caches


def width(encoding: str, features: int, hidden: int, classes: int) -> tuple[int, int]:
    """The shape of one party's ∇ĥ."""
    return (classes, features * hidden + hidden * classes) if encoding == "jacobian" else (features + 1, hidden)


def encode(outer: Tensor, hidden: Tensor, second: Tensor, encoding: str) -> Tensor:
    """(P, d, h) M and (P, h) R as they are sent."""
    if encoding == "factored":
        return torch.cat([outer, hidden[:, None]], 1)
    classes = second.shape[1]
    of_first = outer[:, None] * second.t()[None, :, None]  # (P, C, d, h)
    of_second = hidden[:, None, :, None] * torch.eye(classes, device=hidden.device)[:, None]  # (P, C, h, C)
    return torch.cat([of_first.flatten(2), of_second.flatten(2)], 2)


@dataclass(frozen=True)
class Sources:
    """What the parties' ∇ĥ are made of at W̄."""

    graph: Graph
    parties: Tensor  # (P,) their numbers
    active: Tensor  # (rows, h) m
    hidden: Tensor  # (P, h) r̄
    second: Tensor  # (h, C) W̄₂
    kept: dict[str, Tensor | Toward] = field(default_factory=dict)  # the coupling of earlier rounds

    def outer(self) -> Tensor:
        """(P, d, h) mean_s x_s m_sᵀ."""
        return self.graph.features.gram(self.active * to_rows(1 / self.graph.ptr.diff()[:, None], self.graph))

    def combined(self, weights: Tensor) -> Tensor:
        """(d, h) Σ_j mean_s x_js (w_j∘m_js)ᵀ for weights (P, h)."""
        shares = weights if single(self.graph) else weights / self.graph.ptr.diff()[:, None]
        return self.graph.merged.features.gram(self.active * to_rows(shares, self.graph))[0]

    def everywhere(self, values: Tensor, nodes: int) -> Tensor:
        """(P, …) → (N, …): zero at the nodes whose parties are not here."""
        if len(self.parties) == nodes:
            return values
        return values.new_zeros(nodes, *values.shape[1:]).index_copy_(0, self.parties, values)

    def reach(self, toward: Toward, trained: Trained) -> Tensor:
        """(K, n, h) x_ks·M_k: by the coupling or, where nodes have more vectors than these have entries, by M_k itself.

        Where the coupling would be too large to keep, M is spread over the graph, some of its rows after the others.
        """
        graph, here = trained.graph, self.graph
        entries = here.num_features * (here.num_nodes + here.parties * graph.parties + len(trained.rows))
        if entries < here.num_nodes * len(trained.rows):
            return torch.bmm(trained.x, mixed(self.outer(), self.parties, toward))
        if here.num_nodes * len(trained.rows) > MAX_COUPLING:
            return trained.pad(self.by_feature(toward, graph, trained.rows))
        known = coupling(here, self.parties, self.kept, toward, graph, trained.rows)
        return trained.pad(known.t() @ self.active)

    def by_feature(self, toward: Toward, graph: Graph, rows: Tensor) -> Tensor:
        """(T, h) x_ks·M_k as Σ_f x_ks,f·(A_o·mean_s x_s,f m_s)_k, feature by feature: memory grows with N, time with N·d·h."""
        hidden, nodes = self.active.shape[1], toward.propagation.nodes
        result = self.active.new_zeros(len(rows), hidden)
        step = max(1, SPREAD_COLUMNS // hidden)
        for first in tracked(
            range(0, self.graph.num_features, step), "Gradients of the parties", self.graph.num_features // step
        ):
            some = slice(first, first + step)
            here = to_means((dense_columns(self.graph, some)[:, :, None] * self.active[:, None]).flatten(1), self.graph)
            arrived = toward.gather(self.everywhere(here, nodes)).view(graph.parties, -1, hidden)
            result += torch.einsum("tf,tfh->th", dense_columns(graph, some)[rows], arrived[graph.party[rows]])
        return result


def coupling(
    here: Graph, parties: Tensor, kept: dict[str, Tensor | Toward], toward: Toward, graph: Graph, rows: Tensor
) -> Tensor:
    """(rows here, T): Ã_kj/n_j·(x_js'·x_ks) for T rows ks of the graph of the `toward` parties; kept for the next round."""
    if kept.get("toward") is not toward or not torch.equal(kept["parties"], parties):  # type: ignore[arg-type]
        single = len(parties) == here.num_nodes == toward.propagation.nodes and len(rows) == len(toward.nodes)
        made = _of_all(here, toward, graph, rows) if single else _of_some(here, parties, toward, graph, rows)
        kept.update(toward=toward, parties=parties, coupling=made)
    return kept["coupling"]  # type: ignore[return-value]


def _of_some(here: Graph, parties: Tensor, toward: Toward, graph: Graph, rows: Tensor) -> Tensor:
    result = torch.empty(here.num_nodes, len(rows), device=here.device)
    party, means = parties[here.party], to_rows(1 / here.ptr.diff()[:, None], here)
    starts = torch.searchsorted(graph.party[rows].cpu(), torch.arange(graph.parties + 1)).tolist()
    for targets, block in toward.blocks():
        span = slice(starts[targets.start], starts[targets.stop])
        some = rows[span]
        gram = here.merged.features.product(graph.dense_features(some).t()[None].contiguous())
        result[:, span] = gram.mul_(block.t()[:, graph.party[some] - targets.start][party]).mul_(means)
    return result


def _of_all(here: Graph, toward: Toward, graph: Graph, rows: Tensor) -> Tensor:
    """The same for one vector per party, and all parties here: nothing has to be looked up or transposed."""
    result = torch.empty(here.num_nodes, len(rows), device=here.device)
    blocks = -(-len(rows) // BLOCK)
    for targets, columns in tracked(toward.columns(), "Couplings of the parties", blocks):
        gram = here.merged.features.product(graph.dense_features(rows[targets]).t()[None].contiguous())
        torch.mul(gram, columns, out=result[:, targets])
    return result


@dataclass(frozen=True)
class Upload(Deferred):
    """∇ĥ of the parties."""

    sources: Sources
    encoding: str

    @property
    def shape(self) -> tuple[int, ...]:
        """(P, C, d·h + h·C) or (P, d + 1, h)."""
        features, (hidden, classes) = self.sources.graph.num_features, self.sources.second.shape
        return (len(self.sources.parties), *width(self.encoding, features, hidden, classes))

    def dense(self) -> Tensor:
        """The tensor itself."""
        return encode(self.sources.outer(), self.sources.hidden, self.sources.second, self.encoding)

    def take(self, index: Tensor) -> Upload:
        """Those of some parties."""
        s = self.sources
        graph = s.graph.select(index.tolist())
        rows = spans(s.graph.ptr[index], s.graph.ptr[index + 1])
        return Upload(Sources(graph, s.parties[index], s.active[rows], s.hidden[index], s.second), self.encoding)

    def total(self) -> Tensor:
        """Σ_j ∇ĥ_j."""
        s = self.sources
        outer = s.combined(torch.ones_like(s.hidden))
        return encode(outer[None], s.hidden.sum(0, keepdim=True), s.second, self.encoding)[0]

    def probe(self) -> Tensor:
        """Finite if r̄ and W̄₂ are: the features are, and a mask is 0 or 1."""
        return self.sources.hidden.sum() + self.sources.second.sum()


@dataclass(frozen=True)
class Arriving:
    """E_k = Σ_{j≠k} Ã_kj·ε_j of K parties, for standard normal ε_j (C, d·h + h·C): normal, covariance A_o·A_oᵀ between the k.

    Local steps see it on the columns of the parties' own features alone; elsewhere it is only ever summed, and the sum
    Σ_kc F_kc·E_kc is drawn as the one normal number that it is. Every column is drawn once, in one of these two ways.
    """

    root: Tensor  # (K, Z), L·Lᵀ = A_o·A_oᵀ
    seed: int
    sizes: tuple[int, int, int]  # d, h, C

    def first(self, columns: Tensor) -> Tensor:
        """(K, C, c, h) what falls on W₁ at some columns."""
        _, hidden, classes = self.sizes
        return self._draw("first", classes, len(columns), hidden)

    def second(self) -> Tensor:
        """(K, C, h·C) what falls on W₂."""
        _, hidden, classes = self.sizes
        return self._draw("second", classes, hidden * classes)

    def rest(self, columns: Tensor) -> Tensor:
        """(K, C, d − c, h) what falls on W₁ at all other columns."""
        features, hidden, classes = self.sizes
        return self._draw("rest", classes, features - len(columns), hidden)

    def summed_rest(self, steered: Tensor, columns: Tensor) -> Tensor:
        """(d − c, h) Σ_kc F_kc·E_kc at all other columns: independent normal numbers, of variance Σ_c |Lᵀ·F_c|²."""
        features, hidden, _ = self.sizes
        drawn = torch.randn(features - len(columns), hidden, generator=generator(self.seed, "rest")).to(self.root.device)
        spread: Tensor = torch.linalg.vector_norm(self.root.t() @ steered)
        return drawn * spread

    def dense(self) -> Tensor:
        """(K, C, d·h + h·C) all of it."""
        first = self.first(torch.arange(self.sizes[0], device=self.root.device))
        return torch.cat([first.flatten(2), self.second()], 2)

    def take(self, index: Tensor) -> Arriving:
        """That of some parties."""
        return replace(self, root=self.root[index])

    def _draw(self, what: str, *shape: int) -> Tensor:
        drawn = torch.randn(self.root.shape[1], prod(shape), generator=generator(self.seed, what)).to(self.root.device)
        return (self.root @ drawn).view(-1, *shape)


@dataclass(frozen=True)
class Mixture(Deferred):
    """∇C_k = Σ_{j≠k} Ã_kj·∇ĥ_j of K parties; with `noise`, of ∇ĥ_j + ε_j."""

    upload: Upload
    toward: Toward
    noise: Arriving | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, C, d·h + h·C) or (K, d + 1, h)."""
        return (len(self.toward.nodes), *self.upload.shape[1:])

    def dense(self) -> Tensor:
        """The tensor itself."""
        clean = mixed(self.upload.dense(), self.upload.sources.parties, self.toward)
        return clean if self.noise is None else clean + self.noise.dense()

    def take(self, index: Tensor) -> Mixture:
        """Those of some parties."""
        chosen = Toward(self.toward.propagation, self.toward.nodes[index])
        return Mixture(self.upload, chosen, None if self.noise is None else self.noise.take(index))

    def total(self) -> Tensor:
        """Σ_k ∇C_k."""
        return self.dense().sum(0)

    def probe(self) -> Tensor:
        """Finite if ∇ĥ is."""
        return self.upload.probe()


def mix(gradient: Tensor | Upload, parties: Tensor, toward: Toward, noise: int | None = None) -> Tensor | Mixture:
    """∇C_k for the parties `toward` is about, from the ∇ĥ_j of some parties; a description of it where that is what came.

    `noise`, a seed, is for descriptions alone: whoever sends numbers adds its own to them.
    """
    if not isinstance(gradient, Upload):
        return mixed(gradient, parties, toward)
    arriving = None
    if noise is not None:
        sizes = (gradient.sources.graph.num_features, *gradient.sources.second.shape)
        arriving = Arriving(toward.root(parties), noise, sizes)
    return Mixture(gradient, toward, arriving)


def mixed(gradient: Tensor, parties: Tensor, toward: Toward) -> Tensor:
    """Σ_{j≠k} Ã_kj·∇ĥ_j, number by number."""
    result = gradient.new_empty(len(toward.nodes), *gradient.shape[1:])
    for targets, block in [(slice(None), toward.rows)] if toward.rows is not None else toward.blocks():
        result[targets] = (block[:, parties] @ gradient.flatten(1)).view(-1, *gradient.shape[1:])
    return result


def dense_columns(graph: Graph, columns: slice) -> Tensor:
    """(rows, c) some columns of the features."""
    if isinstance(graph.x, Tensor):
        return graph.x[:, columns]
    return torch.from_numpy(graph.x[:, columns].toarray()).to(graph.device)


def single(graph: Graph) -> bool:
    """Whether every party has one row."""
    return graph.parties == graph.num_nodes


def to_rows(values: Tensor, graph: Graph) -> Tensor:
    """(P, …) → (rows, …): every row gets its party's values."""
    return values if single(graph) else values[graph.party]


def to_means(values: Tensor, graph: Graph) -> Tensor:
    """(rows, …) → (P, …): the mean over each party's rows."""
    return values if single(graph) else graph.blocks.sum(values) / graph.ptr.diff()[:, None]
