"""GFL-APPNP's gradient compensation for MLPs of any depth (`layers` other than 2; one layer is SGC's linear classifier).

With a⁰ = x, aˡ = relu(aˡ⁻¹·W̄ˡ) and Bˡ (C, width of layer l) what the outputs' gradient becomes at layer l of one vector
(Bᴸ = I, Bˡ = (Bˡ⁺¹·W̄ˡ⁺¹ᵀ)∘[aˡ > 0]), a Jacobian is ∂h_c/∂Wˡ = aˡ⁻¹·Bˡ_c, and ∇C_k's part of layer l is
Gˡ_kc = Σ_{j≠k} Ã_kj·mean_s aˡ⁻¹_js·Bˡ_js,c. What carries over from two layers is the first, the one that is as large as the
features: its weight is W̄¹ minus Σ_c F_kc·G¹_kc minus mixtures of the party's own vectors, and the steps only ask for
x_ks·G¹_kc = Σ_js (Ã_kj/n_j)·(x_ks·x_js)·B¹_js,c, a product with the same coupling. Hidden layers are small: their Gˡ_k
(C, h, h) are written out for the parties that train.

Two layers have a module of their own (`local_steps`), though this one could do them: there B¹_c is a mask times a column of W̄²,
so x·M_k (K, n, h) stands for all C of x·G¹_k (K, n, C, h), and R_k (K, h) for G²_k. On Cora a round takes 15 ms with it and
103 ms with this module, on CiteSeer 18 and 93, and the numbers differ in their last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.compensation import coupling, to_means, to_rows
from atoll.algorithms.gfl_appnp.deep_explicit import DeepExplicit
from atoll.algorithms.gfl_appnp.first_weights import FirstWeights
from atoll.algorithms.gfl_appnp.local_steps import Trained
from atoll.algorithms.gfl_appnp.propagation import Toward
from atoll.deferred import Deferred
from atoll.graphs.blocks import spans
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph


def activations(graph: Graph, weights: Sequence[Tensor]) -> list[Tensor]:
    """(rows, width) a¹, …, aᴸ⁻¹ and the outputs."""
    states = [graph.merged.features.product(weights[0][None])]
    for weight in weights[1:]:
        states[-1].relu_()
        states.append(states[-1] @ weight)
    return states


@dataclass(frozen=True)
class DeepSources:
    """What the parties' ∇ĥ are made of at W̄."""

    graph: Graph
    parties: Tensor  # (P,) their numbers
    states: list[Tensor]  # (rows, width) a¹, …, aᴸ⁻¹
    backward: list[Tensor]  # (rows, C, width) B¹, …, Bᴸ
    kept: dict[str, Tensor | Toward] = field(default_factory=dict)  # the coupling of earlier rounds

    @classmethod
    def at(
        cls, graph: Graph, parties: Tensor, weights: Sequence[Tensor], states: list[Tensor], kept: dict[str, Tensor | Toward]
    ) -> DeepSources:
        """The sources at weights whose activations are known."""
        classes = weights[-1].shape[1]
        backward = [torch.eye(classes, device=graph.device).expand(graph.num_nodes, classes, classes)]
        for weight, state in zip(reversed(weights[1:]), reversed(states), strict=True):
            backward.insert(0, (backward[0] @ weight.t()) * (state > 0)[:, None])
        return cls(graph, parties, states, backward, kept)

    @property
    def widths(self) -> list[tuple[int, int]]:
        """(in, out) of every layer."""
        sizes = [self.graph.num_features, *(one.shape[2] for one in self.backward)]
        return list(pairwise(sizes))

    @property
    def shares(self) -> Tensor:
        """(rows, 1) 1/n_j."""
        return to_rows(1 / self.graph.ptr.diff()[:, None], self.graph)

    def outer(self) -> list[Tensor]:
        """(P, C, in, out) mean_s aˡ⁻¹_s·Bˡ_s,c of every layer."""
        inputs = [self.graph.features, *(Features.of(state, self.graph.blocks) for state in self.states)]
        result = []
        for one, back, (fan_in, fan_out) in zip(inputs, self.backward, self.widths, strict=True):
            product = one.gram((back.flatten(1) * self.shares).contiguous())
            result.append(product.view(len(self.parties), fan_in, -1, fan_out).transpose(1, 2))
        return result

    def mixed(self, toward: Toward) -> list[Tensor]:
        """(K, C, h, width) G², …, Gᴸ."""
        sizes = [(back.shape[1], state.shape[1], back.shape[2]) for state, back in self._hidden]
        result = [self.backward[0].new_empty(len(toward.nodes), *size) for size in sizes]
        party = self.parties[self.graph.party]
        for targets, block in toward.blocks():
            for k, row in enumerate(block[:, party]):
                for out, (state, back) in zip(result, self._hidden, strict=True):
                    product = (state * (row[:, None] * self.shares)).t() @ back.flatten(1)
                    out[targets.start + k] = product.view(state.shape[1], back.shape[1], -1).transpose(0, 1)
        return result

    @property
    def _hidden(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.states, self.backward[1:], strict=True))

    def reach(self, toward: Toward, trained: Trained) -> Tensor:
        """(K, n, C, width) x_ks·G¹_kc."""
        known = coupling(self.graph, self.parties, self.kept, toward, trained.graph, trained.rows)
        return trained.pad((known.t() @ self.backward[0].flatten(1)).view(-1, *self.backward[0].shape[1:]))

    def combined(self, steered: Tensor) -> Tensor:
        """(d, width) Σ_jc f_jc·mean_s x_js·B¹_js,c for f (P, C)."""
        rows = torch.einsum("rc,rcw->rw", to_rows(steered, self.graph), self.backward[0]) * self.shares
        return self.graph.merged.features.gram(rows)[0]


@dataclass(frozen=True)
class DeepUpload(Deferred):
    """∇ĥ of the parties, (P, C, w)."""

    sources: DeepSources

    @property
    def shape(self) -> tuple[int, ...]:
        """(P, C, w)."""
        size = sum(fan_in * fan_out for fan_in, fan_out in self.sources.widths)
        return (len(self.sources.parties), self.sources.backward[-1].shape[1], size)

    def dense(self) -> Tensor:
        """The Jacobians, layer after layer."""
        return torch.cat([each.flatten(2) for each in self.sources.outer()], 2)

    def take(self, index: Tensor) -> DeepUpload:
        """Those of some parties."""
        s = self.sources
        rows = spans(s.graph.ptr[index], s.graph.ptr[index + 1])
        states, backward = [each[rows] for each in s.states], [each[rows] for each in s.backward]
        return DeepUpload(DeepSources(s.graph.select(index.tolist()), s.parties[index], states, backward))

    def total(self) -> Tensor:
        """Σ_j ∇ĥ_j."""
        return self.dense().sum(0)

    def probe(self) -> Tensor:
        """Finite if all factors are."""
        return torch.stack([each.sum() for each in (*self.sources.states, *self.sources.backward)]).sum()


@dataclass(frozen=True)
class DeepMixture(Deferred):
    """∇C_k = Σ_{j≠k} Ã_kj·∇ĥ_j of K parties."""

    upload: DeepUpload
    toward: Toward

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, C, w)."""
        return (len(self.toward.nodes), *self.upload.shape[1:])

    def dense(self) -> Tensor:
        """The tensor itself."""
        gradient, parties = self.upload.dense(), self.upload.sources.parties
        parts = [torch.einsum("kj,jcw->kcw", block[:, parties], gradient) for _, block in self.toward.blocks()]
        return torch.cat(parts)

    def take(self, index: Tensor) -> DeepMixture:
        """Those of some parties."""
        return DeepMixture(self.upload, Toward(self.toward.propagation, self.toward.nodes[index]))

    def total(self) -> Tensor:
        """Σ_k ∇C_k."""
        return self.dense().sum(0)

    def probe(self) -> Tensor:
        """Finite if ∇ĥ is."""
        return self.upload.probe()


class DeepModels:
    """The parties' own models: hidden layers as they are, the first weight by F (K, C) and S (K, n, width)."""

    def __init__(self, trained: Trained, weights: Sequence[Tensor], mixture: DeepMixture | None) -> None:
        self.trained, self.first, self.mixture = trained, weights[0], mixture
        parties = trained.graph.parties
        self.before = trained.pad(trained.graph.merged.features.product(weights[0][None])[trained.rows])  # x·W̄¹
        self.rest = [weight.repeat(parties, 1, 1) for weight in weights[1:]]
        self.scale, self.moved = 1.0, False
        self.steered = weights[0].new_zeros(parties, weights[-1].shape[1])  # F
        self.own = weights[0].new_zeros(parties, trained.most, weights[0].shape[1])  # S
        self.others = [] if mixture is None else mixture.upload.sources.mixed(mixture.toward)  # G², …, Gᴸ

    @cached_property
    def reached(self) -> Tensor:
        """(K, n, C, width) x·G¹_k."""
        assert self.mixture is not None
        return self.mixture.upload.sources.reach(self.mixture.toward, self.trained)

    def outputs(self) -> Tensor:
        """(K, n, C) h of every training row."""
        inner = torch.baddbmm(self.before, self.trained.gram, self.own, beta=self.scale, alpha=-1)
        if self.mixture is not None and self.moved:
            inner -= torch.einsum("kc,kncw->knw", self.steered, self.reached)
        self.states = []
        for weight in self.rest:
            self.states.append(inner.relu_())
            inner = torch.bmm(inner, weight)
        return inner

    def descend(self, errors: Tensor, weight: Tensor, lr: float, decay: float) -> None:
        """One step along Σ_s errors_s·(Ã_kk·∇h_s + ∇C_k)."""
        back, total = weight[:, None, None] * errors, errors.sum(1)
        gradients: list[Tensor] = []
        for state, layer in zip(reversed(self.states), reversed(self.rest), strict=True):
            gradients.insert(0, torch.bmm(state.transpose(1, 2), back))
            back = torch.bmm(back, layer.transpose(1, 2)) * (state > 0)
        if decay:
            self.scale *= 1 - lr * decay
            for tensor in (self.own, self.steered, *self.rest):
                tensor.mul_(1 - lr * decay)
        self.own.add_(back, alpha=lr)
        for layer, gradient in zip(self.rest, gradients, strict=True):
            layer.sub_(gradient, alpha=lr)
        if self.mixture is None:
            return
        for layer, other in zip(self.rest, self.others, strict=True):
            layer.sub_(torch.einsum("kc,kcio->kio", total, other), alpha=lr)
        self.steered.add_(total, alpha=lr)
        self.moved = True

    def weights(self) -> tuple[Deferred | Tensor, ...]:
        """A description of the first weights; the others themselves."""
        return FirstWeights(self), *self.rest

    def subtract(self, result: Tensor) -> None:
        """Take Σ_c F_kc·G¹_kc from every party's W¹ (K, d, width), in place."""
        assert self.mixture is not None
        sources, toward = self.mixture.upload.sources, self.mixture.toward
        for targets, block in toward.blocks():
            for k, row in enumerate(block[:, sources.parties]):
                result[targets.start + k] -= sources.combined(row[:, None] * self.steered[targets.start + k])

    def subtract_total(self, result: Tensor, often: Tensor | None) -> None:
        """Take their sum, each once or `often` (K,) times, from that of the W¹ (d, width), in place."""
        assert self.mixture is not None
        sources, steered = self.mixture.upload.sources, self.steered if often is None else self.steered * often[:, None]
        result -= sources.combined(self.mixture.toward.scatter(steered)[sources.parties])


def represent(
    graph: Graph, parties: Tensor, weights: Sequence[Tensor], kept: dict[str, Tensor | Toward], *, gradient: bool
) -> dict[str, Tensor | DeepUpload]:
    """ĥ and, if asked for, ∇ĥ."""
    *states, output = activations(graph, weights)
    reply: dict[str, Tensor | DeepUpload] = {"hidden": to_means(output, graph)}
    if gradient:
        reply["gradient"] = DeepUpload(DeepSources.at(graph, parties, weights, states, kept))
    return reply


def local_models(trained: Trained, weights: Sequence[Tensor], gradient: Tensor | DeepMixture | None) -> DeepModels | DeepExplicit:
    """W_k ← W̄; written out where ∇C_k is."""
    if isinstance(gradient, Tensor):
        return DeepExplicit(trained, weights, gradient)
    return DeepModels(trained, weights, gradient)
