"""Stochastic gradient descent, with a state per party."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor

from atoll.models.party_tensors import (
    Parameters,
    decay_groups,
    device_of,
    has_fused_kernels,
    named_tensors,
    party_pieces,
    party_views,
    put_rows,
    restore_tensors,
    rows_of,
)


class SGD:
    """Stochastic gradient descent with momentum and L2 weight decay as in torch.optim.SGD: v ← μv + g; w ← w − η·v."""

    def __init__(
        self,
        params: Parameters,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        *,
        clip: float = 0.0,
        decayed: Collection[str] | None = None,
    ) -> None:
        self.params = named_tensors(params)
        self.groups = decay_groups(self.params, weight_decay, decayed)
        self.lr, self.weight_decay, self.momentum, self.clip = lr, weight_decay, momentum, clip
        self.velocity = {name: torch.zeros_like(p) for name, p in self.params.items()} if momentum else {}
        self.kernel = torch._fused_sgd_ if has_fused_kernels(device_of(self.params)) else plain_sgd
        self._live: dict[str, list[list[Tensor]]] = {}  # the pieces of parameters and velocities, as in Adam
        self._views: list[dict[str, tuple[Tensor, ...]]] = []

    @torch.no_grad()
    def step_some(self, gradients: Sequence[Tensor], rows: Sequence[int]) -> None:
        """One step for some of the parties, each alone; the others, and their state, stay as they are."""
        self._views = self._views or party_views(self.params, self.velocity)
        views = [self._views[0], *party_views(dict(zip(self.params, gradients, strict=True))), self._views[1]]
        for decay, names in self.groups:
            params, grads, velocity = ([part[name][row] for name in names if part for row in rows] for part in views)
            self._kernel(params, grads, velocity, decay)

    def _kernel(self, params: list[Tensor], gradients: list[Tensor], velocity: list[Tensor], weight_decay: float) -> None:
        self.kernel(
            params,
            gradients,
            velocity,
            weight_decay=weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step for every party; gradients in the order of the parameters."""
        by_name = dict(zip(self.params, gradients, strict=True))
        for decay, names in self.groups:
            if names[0] not in self._live:
                kept = [[part[name] for name in names if part] for part in (self.params, self.velocity)]
                self._live[names[0]] = [party_pieces(part) for part in kept]
            params, velocity = self._live[names[0]]
            self._kernel(params, party_pieces(by_name[name] for name in names), velocity, decay)

    def state(self) -> dict[str, Tensor]:
        """The live state by name, every tensor (P, …); empty without momentum."""
        return {f"velocity.{name}": t for name, t in self.velocity.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Copy in a state of the same parties."""
        restore_tensors(self.state(), state)

    def reset(self) -> None:
        """Back to the state before the first step."""
        for tensor in self.state().values():
            tensor.zero_()

    def select(self, rows: Tensor) -> SGD:
        """The same optimizer on copies of some parties' parameters and state."""
        part = copy(self)
        part.params, part.velocity = rows_of(self.params, rows), rows_of(self.velocity, rows)
        part._live, part._views = {}, []
        return part

    def put(self, rows: Tensor, part: SGD) -> None:
        """Take over what a selected part has become."""
        put_rows({**self.params, **self.state()}, rows, {**part.params, **part.state()})


def plain_sgd(
    params: Sequence[Tensor],
    gradients: Sequence[Tensor],
    velocity: Sequence[Tensor],
    *,
    weight_decay: float,
    momentum: float,
    lr: float,
    **_: Any,
) -> None:
    """What `torch._fused_sgd_` computes, tensor by tensor."""
    for index, (param, gradient) in enumerate(zip(params, gradients, strict=True)):
        step = gradient.add(param, alpha=weight_decay) if weight_decay else gradient
        if velocity:
            step = velocity[index].mul_(momentum).add_(step)
        param.sub_(step, alpha=lr)
