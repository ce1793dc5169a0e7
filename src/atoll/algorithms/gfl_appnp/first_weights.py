"""The first weights of GFL-APPNP's local models, as large as the features, described by what the steps subtracted from W̄₁."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from atoll.deferred import Deferred

if TYPE_CHECKING:
    from atoll.algorithms.gfl_appnp.local_steps import Trained


class FactoredModels(Protocol):
    """Models whose first weights are s·W̄₁ less what their steps subtracted: of their own rows, S, and along ∇C, F."""

    trained: Trained
    first: Tensor  # W̄₁ (d, h)
    scale: float  # s
    own: Tensor  # S (K, n, h)
    steered: Tensor  # F (K, C)

    @property
    def mixture(self) -> object | None:
        """∇C; None without compensation."""
        ...

    def subtract(self, result: Tensor) -> None:
        """Take what F says from every party's W₁, in place."""
        ...

    def subtract_total(self, result: Tensor, often: Tensor | None) -> None:
        """Take its sum over the parties, each once or `often` (K,) times, from that of the W₁, in place."""
        ...


@dataclass(frozen=True)
class FirstWeights(Deferred):
    """W₁ of K parties: s·W̄₁ − what F says − Σ_s x_ks S_ksᵀ."""

    models: FactoredModels
    index: Tensor | None = None  # which of them

    @property
    def shape(self) -> tuple[int, ...]:
        """(K, d, h)."""
        return (self.models.trained.graph.parties if self.index is None else len(self.index), *self.models.first.shape)

    def dense(self) -> Tensor:
        """The weights themselves."""
        m = self.models
        result = m.scale * m.first - m.trained.graph.features.gram(self._own())
        if m.mixture is not None:
            m.subtract(result)
        return result if self.index is None else result[self.index]

    def take(self, index: Tensor) -> FirstWeights:
        """Those of some parties."""
        return replace(self, index=index if self.index is None else self.index[index])

    def probe(self) -> Tensor:
        """Finite if all it is made of is."""
        m = self.models
        return m.first.sum() + m.own.sum() + m.steered.sum()

    def total(self) -> Tensor:
        """Σ_k W₁: one product with the features of the parties, one with those of their sources."""
        m = self.models
        graph = m.trained.graph
        own, often = self._own(), None if self.index is None else torch.bincount(self.index, minlength=graph.parties).float()
        if often is not None:
            own *= often[graph.party, None]
        count = graph.parties if often is None else float(often.sum())
        result = count * m.scale * m.first - graph.merged.features.gram(own)[0]
        if m.mixture is not None:
            m.subtract_total(result, often)
        return result

    def _own(self) -> Tensor:
        """(rows, h) S at the training rows, zero elsewhere."""
        m = self.models
        placed = m.own.new_zeros(m.trained.graph.num_nodes, m.own.shape[2])
        placed[m.trained.rows] = m.trained.gather(m.own)
        return placed
