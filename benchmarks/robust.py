"""Accuracy where two of seven parties lie: FedAvg on cSBM with each robust rule, five seeds, every number on the same graphs.

Attacks: `noise` (random numbers in the thousands), `reversed` (the update backwards, five times as long), `weight` (the same with
a million times the party's training nodes), `little` (both liars one standard deviation from the mean; Baruch et al., 2019).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PARTIES, LIARS, SEEDS, ROUNDS = 7, [1, 4], 5, 30
Lie = Callable[[Tensor, Tensor, torch.Generator], Tensor]  # models (P, …), what the server sent → what the liars say


def noise(models: Tensor, sent: Tensor, random: torch.Generator) -> Tensor:
    return 1e4 * torch.randn(len(LIARS), *sent.shape, generator=random)


def reversed_update(models: Tensor, sent: Tensor, random: torch.Generator) -> Tensor:
    return sent - 5 * (models[LIARS] - sent)


def little(models: Tensor, sent: Tensor, random: torch.Generator) -> Tensor:
    return (models.mean(0) - models.std(0)).expand(len(LIARS), *sent.shape)


ATTACKS: dict[str, tuple[Lie, int]] = {
    "noise": (noise, 1),
    "reversed": (reversed_update, 1),
    "weight": (reversed_update, 10**6),
    "little": (little, 1),
}


class Lying:
    """An engine two of whose parties do not reply what they computed."""

    def __init__(self, engine: Any, lie: Lie, weight: int) -> None:
        self.engine, self.lie, self.weight = engine, lie, weight
        self.state, self.restore = engine.state, engine.restore

    def deliver(self, message: Any) -> Any:
        results = self.engine.deliver(message)
        if message.verb == "fit":
            random = torch.Generator().manual_seed(message.round)
            (answer,) = results
            n = answer.fields["n"].clone()
            n[LIARS] *= self.weight
            for name, value in answer.fields["model"].items():
                axes = [1] * (value.ndim - 1)
                models = value / answer.fields["n"].view(-1, *axes)
                value[LIARS] = self.lie(models, message.common["model"][name], random) * n[LIARS].view(-1, *axes)
            answer.fields["n"] = n
        return results


def accuracy(rule: str, attack: str | None, seed: int) -> float | None:
    """Of the last round's model; 0 where it is not finite, None where too few replies were left for the rule."""
    from atoll.errors import AtollError
    from atoll.runs import config, runner

    values = {"robust": rule, "byzantine": len(LIARS), "rounds": ROUNDS, "evaluate_every": ROUNDS, "data.graph_seed": seed}
    chosen = config.resolve("fedavg", dataset="csbm", partition="random", parties=PARTIES, seed=seed, values=values)
    wrap = None if attack is None else lambda engine: Lying(engine, *ATTACKS[attack])
    try:
        return float(runner.rounds(runner.prepare(chosen, engine=wrap)).last["accuracy"])
    except AtollError as error:
        if "is not finite" in str(error):
            return 0.0
        if "needs at least" in str(error):  # the liars' replies were out of bounds, and the rule still allows for two more
            return None
        raise


def main() -> list[dict[str, Any]]:
    from atoll.federation.robust import RULES

    rows: list[dict[str, Any]] = []
    for rule in RULES:
        row: dict[str, Any] = {"robust": rule}
        for attack in (None, *ATTACKS):
            found = [accuracy(rule, attack, seed) for seed in range(SEEDS)]
            known = [100 * value for value in found if value is not None]
            judged = f"{statistics.mean(known):.1f} ± {statistics.stdev(known):.1f}" if len(known) == SEEDS else "the run stops"
            row[attack or "nobody lies"] = judged
        rows.append(row)
    return rows
