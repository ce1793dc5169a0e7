"""A GLASU round (sampling, joint inference, Q steps) against the bare arithmetic of the same batch, in one run.

The bare loop is given the batch: the matrices between its levels with their transposes, the rows of the features, the labels. It
does the same forward and backward passes of the same parties (GCNII, the mean of the parties' representations, SGD with momentum,
dropout) in plain torch, with nothing around it: no sampling, no messages, no memory. Both take turns; figures are fastest turns.
"""

from __future__ import annotations

import math
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.models.parameters import get_parameters
from atoll.runs import config, runner

warnings.filterwarnings("ignore")

ROUNDS = 12


class Product(torch.autograd.Function):
    """A constant sparse matrix with its transpose."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, transposed: Tensor, x: Tensor) -> Tensor:
        ctx.transposed = transposed
        return matrix @ x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.transposed @ gradients[0]


class Bare:
    """The parties' GCNIIs on one batch after the other."""

    def __init__(self, cohort: Any) -> None:
        self.s, self.parties, self.shared = cohort.settings, len(cohort.parties), cohort.shared
        self.w = {name: value.clone().requires_grad_() for name, value in get_parameters(cohort.model).items()}
        self.v = {name: torch.zeros_like(value) for name, value in self.w.items()}

    def take(self, batch: Any, targets: Tensor) -> None:
        """Prepare a batch for the loop; not timed."""
        layers = self.s.layers
        self.sizes = [batch.blocks(level).sizes for level in range(layers + 1)]
        self.matrices = [(m.forward, m.transposed) for m in map(batch.matrix, range(layers))]
        values = batch.features.values
        self.x = (values.forward, values.transposed) if not isinstance(values, Tensor) else values
        self.y = targets[torch.from_numpy(batch.level(layers).rows)]
        levels = [torch.from_numpy(batch.level(level).rows) for level in range(layers + 1)]
        self.first = [torch.searchsorted(levels[0], rows) for rows in levels]

    def dense(self, x: Tensor, weight: Tensor, level: int) -> Tensor:
        return torch.cat([rows @ own for rows, own in zip(x.split(self.sizes[level]), weight, strict=True)])

    def drop(self, x: Tensor) -> Tensor:
        rate = self.s.dropout
        return x * torch.rand_like(x).ge_(rate).div_(1 - rate) if rate else x

    def forward(self, stale: dict[int, Tensor]) -> Tensor:
        w, s = self.w, self.s
        weight = w["encoder.weight"]
        if isinstance(self.x, Tensor):
            h = self.dense(self.x, weight, 0)
        else:
            h = Product.apply(*self.x, weight.reshape(-1, weight.shape[2]))
        bias = torch.cat([b.expand(size, -1) for b, size in zip(w["encoder.bias"], self.sizes[0], strict=True)])
        first = h = (h + bias).relu()
        for layer in range(s.layers):
            beta = math.log(s.theta / (layer + 1) + 1)
            near = Product.apply(*self.matrices[layer], self.drop(h))
            mixed = torch.lerp(near, first.index_select(0, self.first[layer + 1]), s.teleport)
            h = torch.lerp(mixed, self.dense(mixed, w[f"layers.{layer}.weight"], layer + 1), beta).relu()
            if layer in self.shared:
                own = h.view(self.parties, -1, s.hidden) / self.parties
                if layer not in stale:
                    stale[layer] = (own.sum(0) - own).detach()
                h = (stale[layer] + own).flatten(0, 1)
        return h

    def round(self) -> None:
        stale: dict[int, Tensor] = {}
        for _ in range(self.s.local_steps):
            top = self.drop(self.forward(stale)).view(self.parties, -1, self.s.hidden)
            logits = torch.baddbmm(self.w["classifier.bias"][:, None], top, self.w["classifier.weight"])
            loss = self.parties * F.cross_entropy(logits.flatten(0, 1), self.y)
            gradients = torch.autograd.grad(loss, list(self.w.values()))
            with torch.no_grad():
                torch._fused_sgd_(
                    list(self.w.values()),
                    [gradient.contiguous() for gradient in gradients],
                    list(self.v.values()),
                    weight_decay=self.s.weight_decay,
                    momentum=self.s.momentum,
                    lr=self.s.lr,
                    dampening=0.0,
                    nesterov=False,
                    maximize=False,
                    is_first_step=False,
                )


def measure(dataset: str, **values: Any) -> dict[str, object]:
    chosen = {"lr": 0.1, **values}
    experiment = runner.prepare(config.resolve("glasu", dataset=dataset, partition="vertical", parties=3, values=chosen))
    federation, settings = experiment.federation, experiment.config.settings
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    bare, batches, clear_round = Bare(cohort), [], cohort.clear_round

    def keep_batch() -> None:
        if cohort.forward is not None:
            batches.append(cohort.forward.batch())
        clear_round()

    cohort.clear_round = keep_batch
    times: dict[str, list[float]] = {"atoll": [], "bare": []}
    for number in range(1, ROUNDS + 1):
        federation.begin(number)
        start = time.perf_counter()
        experiment.algorithm.step(federation, {}, settings)
        times["atoll"].append(time.perf_counter() - start)
        bare.take(batches[-1], cohort.targets)
        start = time.perf_counter()
        bare.round()
        times["bare"].append(time.perf_counter() - start)
        if number == 1 and not settings.dropout:  # the same arithmetic
            for name, value in get_parameters(cohort.model).items():
                torch.testing.assert_close(value, bare.w[name].detach(), atol=1e-4, rtol=1e-4)
    fastest = {name: 1e3 * min(seconds) for name, seconds in times.items()}
    what = f"{dataset}, Q = {settings.local_steps}, dropout {settings.dropout:g}"
    return {"round": what, "atoll ms": fastest["atoll"], "bare ms": fastest["bare"], "ratio": fastest["atoll"] / fastest["bare"]}


def main() -> list[dict[str, object]]:
    return [
        measure("cora", local_steps=1, dropout=0.0),
        measure("cora", local_steps=4, dropout=0.0),
        measure("cora", local_steps=4, dropout=0.5),
        measure("pubmed", local_steps=4, dropout=0.5, model="gcnii"),
    ]


if __name__ == "__main__":
    for row in main():
        print(row)
