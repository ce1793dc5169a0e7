"""Quadratic penalties and corrections of gradients in closed form: added to gradients, which autograd need not pass through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atoll.models.party_tensors import MAX_PIECES


@dataclass(frozen=True)
class Pull:
    """The gradient of Σ_k μ_k/2·‖w_k − a‖² + ⟨w_k, d_k⟩, of the parameters that have an anchor a or a direction d, + λ·‖w_k‖₁.

    Attributes:
        strength: μ, of all parties or (P,) each.
        anchor: Tensors by name, (…) of all parties or (P, …) each.
        direction: likewise.
        shrinkage: λ, of all parameters.
    """

    strength: float | Tensor = 0.0
    anchor: Mapping[str, Tensor] = field(default_factory=dict)
    direction: Mapping[str, Tensor] = field(default_factory=dict)
    shrinkage: float = 0.0

    @torch.no_grad()
    def added(self, parameters: Mapping[str, Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients, in the order of the parameters, with the pull of each; on the CPU party by party, in the cache."""
        pairs = zip(parameters.items(), gradients, strict=True)
        return [self._added(name, value.detach(), gradient) for (name, value), gradient in pairs]

    def _added(self, name: str, value: Tensor, gradient: Tensor) -> Tensor:
        anchor, direction = self.anchor.get(name), self.direction.get(name)
        if anchor is None and not self.shrinkage:
            return gradient if direction is None else gradient + direction
        strength = self.strength
        if isinstance(strength, Tensor):
            strength = strength.view(-1, *[1] * (value.ndim - 1))
        result = torch.empty_like(gradient, memory_format=torch.contiguous_format)
        for part in _parts(value):
            away = value[part].sgn().mul_(self.shrinkage) if self.shrinkage else None
            if anchor is not None:
                by = strength if isinstance(strength, float) else strength[part]
                towards = (value[part] - _rows(anchor, value, part)).mul_(by)
                away = towards if away is None else away.add_(towards)
            assert away is not None
            if direction is not None:
                away.add_(_rows(direction, value, part))
            torch.add(gradient[part], away, out=result[part])
        return result


def _rows(tensor: Tensor, value: Tensor, part: slice) -> Tensor:
    """Some parties' rows of a tensor that may lack the party axis."""
    return tensor if tensor.ndim < value.ndim else tensor[part]


def _parts(value: Tensor) -> Iterable[slice]:
    """The parties one by one, or all at once where they are many or not on the CPU."""
    parties = value.shape[0]
    if value.is_cpu and parties <= MAX_PIECES:
        return [slice(party, party + 1) for party in range(parties)]
    return [slice(0, parties)]
