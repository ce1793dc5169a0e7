"""Theorem 1 measured beside a run: the gradient's norm, how stale the others' representations get, the variance of sampling.

With `theory=N`, before every N-th round the cohort takes the round's Q steps on a copy and looks at them from all sides at once,
which takes all parties in one process. Squared norms, summed over the parties:

    gradient    mean over q of ‖∇L(W^{t,q}; D)‖²                the left side of Theorem 1; L = Σ_m L_m on the whole graph
    variance    ‖∇L(W^{t,0}; S^t) − ∇L(W^{t,0}; D)‖²            what Lemma 1 bounds by σ
    change      ‖∇L(W^{t,q+1}; D) − ∇L(W^{t,q}; D)‖², and `moved`, ‖W^{t,q+1} − W^{t,q}‖²: the root of their ratio is at most
                Lemma 2's C₀
    stale       Σ_l ‖H_−m[l + 1] − fresh‖² after the Q steps, and `fresh`, the squared norm of what a new joint inference gives

L is without dropout; the steps and the stale representations are those that the round then takes, dropout included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atoll.algorithms.glasu.forward import ForwardPass
from atoll.algorithms.glasu.inbox import Inbox
from atoll.algorithms.glasu.sampling import Sampler
from atoll.algorithms.glasu.settings import Settings, rate
from atoll.device import precise
from atoll.federation.cohort import Fields
from atoll.models import optim
from atoll.random import Draws

if TYPE_CHECKING:
    from atoll.algorithms.glasu import Cohort

Gradient = list[Tensor]  # of all parameters, each (P, …)
METERS = ("gradient", "variance", "stale", "fresh", "loss")  # numbers per party
STEPS = ("change", "moved")  # numbers per party and step
TOTALS = ("count", "gradient", "variance", "stale", "fresh", "smoothness", "loss")  # what the server keeps, see `updated`


class JointPass(ForwardPass):
    """All parties at once, every representation fresh and differentiable: L(W; S), without dropout."""

    def _aggregate(self, layer: int, local: Tensor) -> Tensor:
        """Agg(H⁺_1[l], …, H⁺_M[l]), the same for all."""
        return joined(self.per_party(local), self.settings).expand(self.parties, -1, -1).flatten(0, 1)

    def _dropout(self, layer: int) -> Draws | None:
        return None


def joined(local: Tensor, settings: Settings) -> Tensor:
    """(M, n, h) → (n, h) the mean, or (n, M·h) side by side: what the server makes of all parties' representations."""
    return local.mean(0) if settings.aggregation == "mean" else local.transpose(0, 1).flatten(1)


def measure(cohort: Cohort, round: int) -> Fields:
    """The numbers of METERS, (P,), and of STEPS, (P, Q), for the coming round."""
    settings = cohort.settings
    everything = cohort.sampler(round, replace(settings, batch_size=0))

    def whole() -> tuple[Tensor, Gradient]:
        joint = cohort.pass_over(JointPass, Inbox(cohort.shared, len(cohort.parties)), everything)
        return _descent(joint, cohort)

    sampler = cohort.sampler(round, settings)
    nodes = _united(cohort, sampler)
    loss, gradient = whole()
    _, on_batch = _descent(cohort.pass_over(JointPass, nodes(), sampler), cohort)
    norms, change, moved = [_squared(gradient)], [], []
    with _undone(cohort):
        forward = cohort.pass_over(ForwardPass, nodes(), sampler)
        sent = _infer(forward)
        cohort.optimizer.lr = rate(settings, round, cohort.schema.parties)
        last = gradient
        for _ in range(settings.local_steps):
            before = [parameter.detach().clone() for parameter in cohort.model.parameters()]
            optim.descend(cohort.optimizer, forward.loss(forward.run()))
            forward.next_step()
            now = whole()[1]
            norms.append(_squared(now))
            change.append(_squared(_minus(now, last)))
            moved.append(_squared(_minus(list(cohort.model.parameters()), before)))
            last = now
        again = cohort.pass_over(ForwardPass, nodes(), sampler)
        pairs = [(_others(forward, *old), _others(again, *new)) for old, new in zip(sent, _infer(again), strict=True)]
    return {
        "gradient": torch.stack(norms[:-1]).mean(0),
        "variance": _squared(_minus(on_batch, gradient)),
        "stale": _squared([old - new for old, new in pairs]),
        "fresh": _squared([new for _, new in pairs]),
        "loss": loss,
        "change": torch.stack(change, 1),
        "moved": torch.stack(moved, 1),
    }


def _descent(joint: ForwardPass, cohort: Cohort) -> tuple[Tensor, Gradient]:
    """(P,) L_m and ∇L with respect to every party's parameters."""
    losses = torch.stack([part.sum() for part in joint.node_losses(joint.run()).chunk(len(cohort.parties))])
    return losses.detach(), list(torch.autograd.grad(losses.sum(), list(cohort.model.parameters())))


def _united(cohort: Cohort, sampler: Sampler) -> Callable[[], Inbox]:
    """Algorithm 2 with the server's part: inboxes that hold the united index sets of the round's batch."""
    reached: dict[int, Tensor] = {}

    def inbox() -> Inbox:
        made = Inbox(cohort.shared, len(cohort.parties))
        for level, nodes in reached.items():
            made.store("nodes", level, nodes)
        return made

    if cohort.settings.batch_size and cohort.model.edges:
        for layer in reversed(cohort.shared[:-1]):
            drawn = cohort.pass_over(ForwardPass, inbox(), sampler).draw(layer + 1).nodes(cohort.graph)
            reached[layer + 1] = torch.unique(torch.cat(drawn))
    return inbox


def _infer(forward: ForwardPass) -> list[tuple[int, Tensor]]:
    """Algorithm 3 with the server's part: every shared layer's aggregate into the inbox; the layers and what was sent there."""
    sent = []
    for layer in forward.shared:
        sent.append((layer, forward.local_output(layer).detach()))
        forward.inbox.store("aggregate", layer, joined(sent[-1][1], forward.settings))
    return sent


def _others(forward: ForwardPass, layer: int, sent: Tensor) -> Tensor:
    """(P, n, h) H_−m[l + 1]: the aggregate without the party's own part, as it was sent."""
    aggregate = forward.inbox.required("aggregate", layer)
    if forward.settings.aggregation == "mean":
        return aggregate - sent / forward.parties
    eye = torch.eye(forward.parties, device=sent.device)
    same_party = eye.repeat_interleave(forward.settings.hidden, 1)  # (P, M·h)
    return aggregate * (1 - same_party)[:, None]


@contextmanager
def _undone(cohort: Cohort) -> Iterator[None]:
    """Whatever steps are taken inside, model and optimizer are afterwards what they were."""
    model = [parameter.detach().clone() for parameter in cohort.model.parameters()]
    moments = {name: value.clone() for name, value in cohort.optimizer.state().items()}
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in zip(cohort.model.parameters(), model, strict=True):
                parameter.copy_(value)
        cohort.optimizer.restore(moments)


def _squared(tensors: Gradient) -> Tensor:
    """(P,) the squared norm over all tensors of each party."""
    return torch.stack([precise(tensor.detach().flatten(1)).square().sum(1) for tensor in tensors]).sum(0).float()


def _minus(one: Gradient, other: Gradient) -> Gradient:
    return [a - b for a, b in zip(one, other, strict=True)]


# The server.


def first() -> Tensor:
    """The totals before the first measurement, by TOTALS."""
    return torch.zeros(len(TOTALS), dtype=torch.float64)


def updated(totals: Tensor, measured: dict[str, Tensor]) -> Tensor:
    """The totals after one more measurement: sums of what is averaged, the largest of what is a bound, the first loss."""
    sums = {name: value.double().sum(0) for name, value in measured.items()}
    known = dict(zip(TOTALS, totals, strict=True))
    ratio = sums["change"] / sums["moved"].clamp(min=torch.finfo(torch.float32).tiny)
    return torch.stack(
        [
            known["count"] + 1,
            known["gradient"] + sums["gradient"],
            torch.maximum(known["variance"], sums["variance"]),
            known["stale"] + sums["stale"].sqrt(),
            known["fresh"] + sums["fresh"].sqrt(),
            torch.maximum(known["smoothness"], ratio.max().sqrt()),
            known["loss"] if bool(known["count"] > 0) else sums["loss"],
        ]
    )


def report(totals: Tensor, settings: Settings, parties: int, rounds: int) -> dict[str, Any]:
    """The meters as metrics, and Theorem 1's bound with what was measured in place of its constants.

    Δ = L(W⁰), as L* ≥ 0; σ and C₀ are the largest measured, so they may be too small, and the bound with them.
    """
    known = {name: float(value) for name, value in zip(TOTALS, totals, strict=True)}
    if not known["count"]:
        return {}
    return {
        "gradient_norm": known["gradient"] / known["count"],
        "staleness": known["stale"] / known["count"],
        "staleness_share": known["stale"] / known["fresh"] if known["fresh"] else 0.0,
        "sampling_variance": known["variance"],
        "smoothness": known["smoothness"],
        "theorem_bound": theorem_bound(
            settings.lr, rounds, settings.local_steps, parties, known["loss"], known["smoothness"], known["variance"]
        ),
        "theorem_rate": largest_rate(settings.local_steps, parties, known["smoothness"]),
    }


def theorem_bound(rate: float, rounds: int, steps: int, parties: int, gap: float, smoothness: float, variance: float) -> float:
    """Theorem 1: 2Δ/(ηTQ) + 28/3 · ηM·(C₀ + √(M+1)·Q)·σ.

    >>> round(theorem_bound(0.01, 100, 4, 3, 2.0, 1.0, 0.5), 4)
    2.26
    """
    first = 2 * gap / (rate * rounds * steps) if rate else math.inf
    return first + 28 / 3 * rate * parties * (smoothness + math.sqrt(parties + 1) * steps) * variance


def largest_rate(steps: int, parties: int, smoothness: float) -> float:
    """Theorem 1's condition: η ≤ 1 / (C₀·(1 + 2Q²M))."""
    return 1 / (smoothness * (1 + 2 * steps**2 * parties)) if smoothness else math.inf
