"""Adam and AdamW, with a state per party."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from typing import ClassVar

import torch
from torch import Tensor

from atoll.device import precise
from atoll.models.party_tensors import (
    MAX_PIECES,
    Parameters,
    decay_groups,
    device_of,
    has_fused_kernels,
    named_tensors,
    number_of_parties,
    party_pieces,
    party_views,
    put_rows,
    restore_tensors,
    rows_of,
)


class Adam:
    """Adam: Kingma & Ba, ICLR 2015, with L2 weight decay as in torch.optim.Adam.

    m ← β₁m + (1−β₁)g;  v ← β₂v + (1−β₂)g²;  w ← w − η·m̂ / (√v̂ + ε), bias-corrected by each party's own step count.
    """

    kernel: ClassVar[Callable[..., None]] = staticmethod(torch._fused_adam_)

    def __init__(
        self,
        params: Parameters,
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        clip: float = 0.0,
        decayed: Collection[str] | None = None,
    ) -> None:
        self.params = named_tensors(params)
        self.lr, self.weight_decay, self.betas, self.eps, self.clip = lr, weight_decay, betas, eps, clip
        self.groups = decay_groups(self.params, weight_decay, decayed)
        self.first = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.params.items()}
        self.steps = torch.zeros(number_of_parties(self.params), device=device_of(self.params))
        self.fused = has_fused_kernels(self.steps.device)
        self.in_step = True  # whether all parties have taken the same number of steps
        self._live: dict[str, list[list[Tensor]]] = {}  # pieces of parameters and moments: views that stay
        self._views: list[dict[str, tuple[Tensor, ...]]] = []  # each party's parameters and moments: likewise

    @torch.no_grad()
    def step_some(self, gradients: Sequence[Tensor], rows: Sequence[int]) -> None:
        """One step for some of the parties, each alone; the others, and their state, stay as they are."""
        counts = [self.steps[row] for row in rows]
        torch._foreach_add_(counts, 1)
        self.in_step = False
        self._views = self._views or party_views(self.params, self.first, self.second)
        by_name = dict(zip(self.params, gradients, strict=True))
        for decay, names in self.groups:
            grads = [by_name[name][row] for name in names for row in rows]
            own, *moments = ([part[name][row] for name in names for row in rows] for part in self._views)
            self.kernel(
                *(own, grads, *moments, [], counts * len(names)),
                lr=self.lr,
                beta1=self.betas[0],
                beta2=self.betas[1],
                weight_decay=decay,
                eps=self.eps,
                amsgrad=False,
                maximize=False,
            )

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        """One step for every party; gradients in the order of the parameters."""
        if self.fused and not self.in_step and self.steps.is_cpu and len(self.steps) <= MAX_PIECES:
            self.step_some(gradients, range(len(self.steps)))
            return
        self.steps += 1
        if not len(self.steps):
            return
        by_name = dict(zip(self.params, gradients, strict=True))
        for decay, names in self.groups:
            self._step(names, [by_name[name] for name in names], decay)

    def _step(self, names: Sequence[str], gradients: Sequence[Tensor], weight_decay: float) -> None:
        """The step of some of the parameters."""
        if not self.fused:
            self._step_apart(names, gradients, weight_decay)
            return
        if self.in_step:
            if names[0] not in self._live:
                self._live[names[0]] = [party_pieces(part) for part in self._parts(names)]
            (params, first, second), grads = self._live[names[0]], party_pieces(gradients)
            counts = [self.steps[0]] * len(params)
        else:
            distinct, lengths = torch.unique_consecutive(self.steps, return_counts=True)  # parties with equal counts go together
            if len(distinct) > MAX_PIECES:
                self._step_apart(names, gradients, weight_decay)
                return
            runs = lengths.tolist()
            own, *moments = self._parts(names)
            columns = [own, gradients, *moments]
            groups = [[run for tensor in column for run in torch.split(tensor, runs)] for column in columns]
            params, grads, first, second = (party_pieces(group) for group in groups)
            each = list(distinct.unbind()) * len(names)
            counts = [count for run, count in zip(groups[0], each, strict=True) for _ in party_pieces([run])]
        self.kernel(
            params,
            grads,
            first,
            second,
            [],
            counts,
            lr=self.lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def _parts(self, names: Sequence[str]) -> list[list[Tensor]]:
        """Some of the parameters, and their moments."""
        return [[part[name] for name in names] for part in (self.params, self.first, self.second)]

    def _step_apart(self, names: Sequence[str], gradients: Sequence[Tensor], weight_decay: float) -> None:
        """The same step for parties with too many different step counts to go one group after the other, or without a kernel."""
        decay, lead = self.betas, precise(self.steps)
        for name, gradient in zip(names, gradients, strict=True):
            param, first, second = self.params[name], self.first[name], self.second[name]
            shape = (-1, *[1] * (param.ndim - 1))
            gradient = self._decayed(param, gradient, weight_decay)
            first.lerp_(gradient, 1 - decay[0])
            second.mul_(decay[1]).addcmul_(gradient, gradient, value=1 - decay[1])
            rate = (self.lr / (1 - decay[0] ** lead)).float().view(shape)
            scale = (1 - decay[1] ** lead).rsqrt().float().view(shape)
            param.sub_(rate * first / (second.sqrt() * scale + self.eps))

    def _decayed(self, param: Tensor, gradient: Tensor, weight_decay: float) -> Tensor:
        """The gradient with that of the L2 penalty."""
        return gradient.add(param, alpha=weight_decay)

    def state(self) -> dict[str, Tensor]:
        """The live state by name, every tensor (P, …)."""
        moments = {f"{kind}.{name}": t for kind in ("first", "second") for name, t in getattr(self, kind).items()}
        return {"steps": self.steps, **moments}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Copy in a state of the same parties."""
        restore_tensors(self.state(), state)
        self.in_step = bool((self.steps == self.steps[0]).all())

    def reset(self) -> None:
        """Back to the state before the first step."""
        for tensor in self.state().values():
            tensor.zero_()
        self.in_step = True

    def select(self, rows: Tensor) -> Adam:
        """The same optimizer on copies of some parties' parameters and state."""
        part = copy(self)
        part.params, part.first, part.second = (rows_of(values, rows) for values in (self.params, self.first, self.second))
        part.steps, part.in_step, part._live, part._views = self.steps[rows], self.in_step, {}, []
        return part

    def put(self, rows: Tensor, part: Adam) -> None:
        """Take over what a selected part has become."""
        self.in_step = False
        put_rows({**self.params, **self.state()}, rows, {**part.params, **part.state()})


class AdamW(Adam):
    """Adam with decoupled weight decay: Loshchilov & Hutter, ICLR 2019, as in torch.optim.AdamW.

    w ← (1 − ηλ)·w, then Adam's step down the gradient alone: the decay is not divided by √v̂, so that a parameter whose gradient
    is zero or tiny is not driven to zero at the full learning rate.
    """

    kernel = staticmethod(torch._fused_adamw_)

    def _decayed(self, param: Tensor, gradient: Tensor, weight_decay: float) -> Tensor:
        """The gradient as it is; the parameter decays."""
        param.mul_(1 - self.lr * weight_decay)
        return gradient
