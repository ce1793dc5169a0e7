"""GFL-APPNP's local steps for K parties at once: with ∇C_k as it was sent (`Explicit`), or never written out (`Implicit`).

The mathematics and the letters are those of `atoll.algorithms.gfl_appnp.compensation`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.compensation import Mixture, mixed
from atoll.algorithms.gfl_appnp.first_weights import FirstWeights
from atoll.deferred import Deferred
from atoll.graphs.graph import Graph


class Trained:
    """The training rows of K parties, padded to the longest: (K, n)."""

    @classmethod
    def of(cls, graph: Graph) -> Trained:
        """Those of a graph, computed once."""
        kept: Trained | None = graph.__dict__.get("trained")
        if kept is None:
            kept = graph.__dict__["trained"] = cls(graph)
        return kept

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.rows = (graph.train & (graph.y >= 0)).nonzero()[:, 0]
        counts = torch.bincount(graph.party[self.rows], minlength=graph.parties)
        self.counts = counts  # (K,)
        self.most = int(counts.max())
        starts = counts.cumsum(0) - counts
        every = torch.arange(max(len(self.rows), self.most), device=graph.device)
        self.offset = every[: len(self.rows)] - starts[graph.party[self.rows]]  # of a row within its party
        self.real = every[: self.most] < counts[:, None]  # (K, n)
        self.even = self.real / counts[:, None]
        self.targets = self.pad(torch.nn.functional.one_hot(graph.y[self.rows], graph.num_classes).float())  # y

    def pad(self, values: Tensor) -> Tensor:
        """(T, …) → (K, n, …), zero where there is no row."""
        if self.most == 1 and len(self.rows) == self.graph.parties:
            return values[:, None]
        result = values.new_zeros(self.graph.parties, self.most, *values.shape[1:])
        result[self.graph.party[self.rows], self.offset] = values
        return result

    def gather(self, values: Tensor) -> Tensor:
        """(K, n, …) → (T, …)."""
        return values[self.graph.party[self.rows], self.offset]

    def shares(self, batch: int, keys: Tensor | None) -> Tensor:
        """(K, n) 1/|B| at the rows of the batch: all, or the `batch` lowest keys (K, n) of each party."""
        if keys is None:
            return self.even
        order = keys.masked_fill(~self.real, 2.0).argsort(1).argsort(1)
        return (self.real & (order < batch)) / self.counts.clamp(max=batch)[:, None]

    @cached_property
    def x(self) -> Tensor:
        """(K, n, d) the rows themselves."""
        return self.pad(self.graph.dense_features(self.rows))

    @cached_property
    def columns(self) -> Tensor:
        """(c,) the features that are not zero in all of the rows."""
        return self._used.nonzero()[:, 0]

    @cached_property
    def others(self) -> Tensor:
        """(d − c,) the features that are."""
        return (~self._used).nonzero()[:, 0]

    @cached_property
    def _used(self) -> Tensor:
        return (self.x != 0).flatten(0, 1).any(0)

    @cached_property
    def gram(self) -> Tensor:
        """(K, n, n) a party's own x_s·x_s'."""
        chunks = []
        party = self.graph.party[self.rows]
        for start in range(0, self.graph.parties, 512):
            some = (party >= start) & (party < start + 512)
            sizes = (min(512, self.graph.parties - start), self.most, self.graph.num_features)
            x = torch.zeros(sizes, device=self.graph.device)
            x[party[some] - start, self.offset[some]] = self.graph.dense_features(self.rows[some])
            chunks.append(torch.bmm(x, x.transpose(1, 2)))
        return torch.cat(chunks)


class LocalModels(Protocol):
    """The parties' own models during the I local steps."""

    def outputs(self) -> Tensor:
        """(K, n, C) h of every training row."""
        ...

    def descend(self, errors: Tensor, weight: Tensor, lr: float, decay: float) -> None:
        """One step along Σ_s errors_s·(Ã_kk·∇h_s + ∇C_k); errors (K, n, C) carry 1/|B|, weight (K,) is Ã_kk."""
        ...

    def weights(self) -> tuple[Tensor | Deferred, ...]:
        """(K, in, out) of every layer."""
        ...


class Explicit:
    """Models as they are, for ∇C_k as it was sent."""

    def __init__(self, trained: Trained, first: Tensor, second: Tensor, gradient: Tensor, encoding: str) -> None:
        parties = trained.graph.parties
        self.x = trained.x
        self.first, self.second = first.repeat(parties, 1, 1), second.repeat(parties, 1, 1)
        self.shared, self.gradient, self.encoding = second, gradient, encoding

    def outputs(self) -> Tensor:
        """h = relu(x·W₁)·W₂."""
        self.hidden = torch.bmm(self.x, self.first).relu_()
        return torch.bmm(self.hidden, self.second)

    def descend(self, errors: Tensor, weight: Tensor, lr: float, decay: float) -> None:
        """W ← W − η·g."""
        below = torch.bmm(errors, self.second.transpose(1, 2)) * (self.hidden > 0)
        of_first, of_second = self.compensation(errors.sum(1))
        of_first = of_first + weight[:, None, None] * torch.bmm(self.x.transpose(1, 2), below)
        of_second = of_second + weight[:, None, None] * torch.bmm(self.hidden.transpose(1, 2), errors)
        self.first.mul_(1 - lr * decay).sub_(of_first, alpha=lr)
        self.second.mul_(1 - lr * decay).sub_(of_second, alpha=lr)

    def compensation(self, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_c v_c·∇C_k,c for v (K, C)."""
        if self.encoding == "factored":
            of_first = self.gradient[:, :-1] * (errors @ self.shared.t())[:, None]
            return of_first, self.gradient[:, -1, :, None] * errors[:, None]
        pulled = torch.bmm(errors[:, None], self.gradient)[:, 0]
        cut = self.first[0].numel()
        return pulled[:, :cut].view_as(self.first), pulled[:, cut:].view_as(self.second)

    def weights(self) -> tuple[Tensor, Tensor]:
        """The models themselves."""
        return self.first, self.second


class Implicit:
    """Models by what was subtracted from W̄₁: F (K, C), the sum of the steps' η·v (D = F·W̄₂ᵀ), and S (K, n, h)."""

    def __init__(self, trained: Trained, first: Tensor, second: Tensor, mixture: Mixture | None) -> None:
        self.trained, self.first, self.shared, self.mixture = trained, first, second, mixture
        graph, rows = trained.graph, trained.rows
        hidden, classes = second.shape
        self.before = trained.pad(graph.merged.features.product(first[None])[rows])  # x·W̄₁
        self.second = second.repeat(graph.parties, 1, 1)
        self.scale = 1.0
        self.moved = False  # whether F is more than zero: a single step does not need x·M_k
        self.steered = first.new_zeros(graph.parties, classes)  # F
        self.own = first.new_zeros(graph.parties, trained.most, hidden)  # S
        if mixture is not None:
            sources, toward = mixture.upload.sources, mixture.toward
            self.others = toward.gather(sources.everywhere(sources.hidden, toward.propagation.nodes))  # R_k
            if mixture.noise is not None:
                self.noise = mixture.noise.first(trained.columns)  # E_k, (K, C, c, h)
                self.noise_second = mixture.noise.second()
                self.noise_reached = torch.einsum("knd,kcdh->kcnh", trained.x[:, :, trained.columns], self.noise)

    @cached_property
    def reached(self) -> Tensor:
        """(K, n, h) x·M_k."""
        assert self.mixture is not None
        return self.mixture.upload.sources.reach(self.mixture.toward, self.trained)

    def outputs(self) -> Tensor:
        """h = relu(x·W₁)·W₂ with x·W₁ = s·x·W̄₁ − D∘(x·M_k) − Σ_s' (x·x_s')·S_s'."""
        inner = torch.baddbmm(self.before, self.trained.gram, self.own, beta=self.scale, alpha=-1)
        if self.mixture is not None and self.moved:
            inner.addcmul_((self.steered @ self.shared.t())[:, None], self.reached, value=-1)
            if self.mixture.noise is not None:
                inner -= torch.einsum("kc,kcnh->knh", self.steered, self.noise_reached)
        self.hidden = inner.relu_()
        return torch.bmm(self.hidden, self.second)

    def descend(self, errors: Tensor, weight: Tensor, lr: float, decay: float) -> None:
        """S ← S + η·Ã_kk·(W₂·v)∘m, F ← F + η·v, W₂ ← W₂ − η·(Ã_kk·r·vᵀ + R_k·vᵀ)."""
        weighted = weight[:, None, None] * errors  # Ã_kk·v
        below = torch.bmm(weighted, self.second.transpose(1, 2)).mul_(self.hidden > 0)
        if decay:
            self.scale *= 1 - lr * decay
            for tensor in (self.own, self.second, self.steered):
                tensor.mul_(1 - lr * decay)
        self.own.add_(below, alpha=lr)
        total = errors.sum(1)
        if self.trained.most == 1:  # one outer product, (Ã_kk·r + R_k)·vᵀ: several times faster than a product and another
            pulled = weight[:, None] * self.hidden[:, 0]
            self.second.addcmul_((pulled if self.mixture is None else pulled.add_(self.others))[:, :, None], errors, value=-lr)
        else:
            self.second.baddbmm_(self.hidden.transpose(1, 2), weighted, alpha=-lr)
            if self.mixture is not None:
                self.second.addcmul_(self.others[:, :, None], total[:, None], value=-lr)
        if self.mixture is None:
            return
        self.steered.add_(total, alpha=lr)
        self.moved = True
        if self.mixture.noise is not None:
            self.second.sub_(torch.bmm(total[:, None], self.noise_second).view_as(self.second), alpha=lr)

    def weights(self) -> tuple[Deferred, Tensor]:
        """A description of the first weights; the second themselves."""
        return FirstWeights(self), self.second

    def subtract(self, result: Tensor) -> None:
        """Take M_k·diag(D_k) from every party's W₁ (K, d, h), in place."""
        assert self.mixture is not None
        sources, toward = self.mixture.upload.sources, self.mixture.toward
        result -= mixed(sources.outer(), sources.parties, toward) * (self.steered @ self.shared.t())[:, None]
        if self.mixture.noise is not None:
            columns, others = self.trained.columns, self.trained.others
            result[:, columns] -= torch.einsum("kc,kcdh->kdh", self.steered, self.noise)
            result[:, others] -= torch.einsum("kc,kcdh->kdh", self.steered, self.mixture.noise.rest(columns))

    def subtract_total(self, result: Tensor, often: Tensor | None) -> None:
        """Take their sum, each once or `often` (K,) times, from that of the W₁ (d, h), in place."""
        assert self.mixture is not None
        sources, toward = self.mixture.upload.sources, self.mixture.toward
        steered = self.steered if often is None else self.steered * often[:, None]
        result -= sources.combined(toward.scatter(steered @ self.shared.t())[sources.parties])
        if self.mixture.noise is not None:
            columns, others = self.trained.columns, self.trained.others
            result[columns] -= torch.einsum("kc,kcdh->dh", steered, self.noise)
            result[others] -= self.mixture.noise.summed_rest(steered, columns)
