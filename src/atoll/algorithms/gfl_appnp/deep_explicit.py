"""GFL-APPNP's local steps for an MLP of any depth with ∇C_k as it was sent, beside `deep`, which never writes it out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.local_steps import Trained


class DeepExplicit:
    """The parties' own models for ∇C_k as it was sent."""

    def __init__(self, trained: Trained, weights: Sequence[Tensor], gradient: Tensor) -> None:
        self.x, self.gradient = trained.x, gradient
        self.layers = [weight.repeat(trained.graph.parties, 1, 1) for weight in weights]

    def outputs(self) -> Tensor:
        """(K, n, C) h of every training row."""
        inner, self.states = self.x, [self.x]
        for layer in self.layers[:-1]:
            inner = torch.bmm(inner, layer).relu_()
            self.states.append(inner)
        return torch.bmm(inner, self.layers[-1])

    def descend(self, errors: Tensor, weight: Tensor, lr: float, decay: float) -> None:
        """W ← W − η·g."""
        back = weight[:, None, None] * errors
        pulled = torch.bmm(errors.sum(1)[:, None], self.gradient)[:, 0]
        others = torch.split(pulled, [layer[0].numel() for layer in self.layers], 1)
        for index in reversed(range(len(self.layers))):
            state, layer = self.states[index], self.layers[index]
            gradient = torch.bmm(state.transpose(1, 2), back) + others[index].view_as(layer)
            if index:
                back = torch.bmm(back, layer.transpose(1, 2)) * (state > 0)
            layer.mul_(1 - lr * decay).sub_(gradient, alpha=lr)

    def weights(self) -> tuple[Tensor, ...]:
        """The models themselves."""
        return tuple(self.layers)
