"""A small configuration of every algorithm, and engines with faults, for the tests of the promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atoll import algorithms, wire
from atoll.data import DataSettings, PartitionSettings, SplitSettings
from atoll.data.federated import SCENARIOS, federate
from atoll.data.sharded import SHARDS
from atoll.deferred import Deferred, dense
from atoll.federation.cohort import Message, pick
from atoll.federation.federation import Answer, Engine, Failure
from atoll.runs import config
from atoll.runs.config import Config
from atoll.runs.stored_shards import cut

ALGORITHMS = algorithms.names()

GRAPH = {"data.nodes": 60, "data.features": 12, "data.degree": 4, "data.classes": 3, "split": "random"}

PARTITIONS: dict[str, dict[str, Any]] = {
    "horizontal": {"partition": "random", "parties": 3},
    "overlapping": {"partition": "overlap", "parties": 3, "proportions": "0.5,0.6,0.7"},
    "vertical": {"partition": "vertical", "parties": 3},
    "node": {"partition": "node", "parties": None},
    "whole": {"partition": "random", "parties": 3},
}

SAMPLES = {"edge_signal": 1, "samples": 4, "connected": "false", "train": 0.5, "val": 0.25, "test": 0.25, "batch_size": 1}
EXTRA_SETTINGS: dict[str, dict[str, Any]] = {  # of single algorithms
    "gfl_appnp": {"connected_train_share": 0, "edge_signal": 1},
    "adafgl": {"shared_rounds": 1, "personal_epochs": 2},
    "fedmlp": SAMPLES,
    "mlps": SAMPLES,
    "feddep": {
        "embedding_width": 6, "encoder_hidden": 5, "encoder_epochs": 8, "num_prototypes": 3, "min_count": 3, "code_width": 4,
        "code_epochs": 5, "generator_epochs": 8, "generator_widths": "8,8", "generator_latent": 4, "generator_hidden": 4,
        "generator_lr": 0.1, "train": 0.3, "val": 0.5, "test": 0.2, "hidden_share": 1.0,
    },
    "fedsage": {
        "generator_epochs": 8, "generator_rounds": 2, "generator_widths": "8,8", "generator_latent": 4, "generator_hidden": 4,
        "generator_lr": 0.1, "min_targets": 3, "train": 0.3, "val": 0.5, "test": 0.2, "hidden_share": 1.0,
    },
}  # fmt: skip


def small(algorithm: str, *, seed: int = 3, rounds: int = 3, scenario: str = "", **values: Any) -> Config:
    """The algorithm on a graph of 60 nodes, in a scenario (the first that it is made for)."""
    settings = dict(PARTITIONS[scenario or algorithms.find(algorithm).SCENARIOS[0]])
    partition, parties = settings.pop("partition"), settings.pop("parties")
    values = {**GRAPH, **settings, "rounds": rounds, "patience": 0, **EXTRA_SETTINGS.get(algorithm, {}), **values}
    return config.resolve(algorithm, dataset="csbm", partition=partition, parties=parties, seed=seed, values=values)


def on_shards(config: Config, folder: Path, budget: float = 0.0) -> Config:
    """The same run from shards, which are written into the folder."""
    data = federate(config, None, SCENARIOS, unlabeled=algorithms.takes_unlabeled(config.algorithm))
    cut(config, data, folder)
    settings = {"partition_settings": PartitionSettings(), "split": SplitSettings(), "data": DataSettings(memory_budget=budget)}
    return replace(config, dataset=str(folder), partition=SHARDS, parties=None, **settings)


def parties_of(algorithm: str) -> int:
    """The number of parties of `small`."""
    scenario = algorithms.find(algorithm).SCENARIOS[0]
    return {"whole": 1, "node": GRAPH["data.nodes"]}.get(scenario, 3)


class Wrapper:
    """An engine around another one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Forward."""
        return self.engine.deliver(message)

    def state(self) -> dict[str, Any]:
        """Forward."""
        return self.engine.state()

    def restore(self, memory: dict[str, Any]) -> None:
        """Forward."""
        self.engine.restore(memory)

    def snapshot(self, into: dict[str, Any] | None = None) -> dict[str, Any]:
        """Forward."""
        snapshot: dict[str, Any] = self.engine.snapshot(into)  # type: ignore[attr-defined]
        return snapshot


class Absent(Wrapper):
    """Some parties do not answer in some rounds: they are not reached, or (`late`) their answers come too late."""

    def __init__(self, engine: Engine, rounds: set[int], parties: set[int], late: bool = False) -> None:
        super().__init__(engine)
        self.rounds, self.absent, self.late = rounds, parties, late

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Leave out the absent parties."""
        if message.round not in self.rounds:
            return self.engine.deliver(message)
        failures = [Failure(party, "timed out") for party in message.parties if party in self.absent]
        present = [party for party in message.parties if party not in self.absent]
        results = self.engine.deliver(message if self.late else message.select(present)) if present else []
        return [_without(result, self.absent) for result in results] + failures


class Poisoned(Wrapper):
    """In one round the first field of one party's training replies is NaN."""

    def __init__(self, engine: Engine, round: int, party: int) -> None:
        super().__init__(engine)
        self.round, self.party = round, party

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Poison the party's row."""
        results = self.engine.deliver(message)
        if message.round != self.round or not message.training:
            return results
        for result in results:
            if isinstance(result, Answer) and self.party in result.parties:
                index = result.parties.index(self.party)
                for name, value in wire.leaves(result.fields):
                    if not isinstance(value, Deferred) and value.is_floating_point() and not name.endswith("]"):
                        value.detach()[index] = float("nan")
                        break
        return results


class Recorded(Wrapper):
    """Counts the bytes of every message and reply by encoding each party's on its own."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.bytes: dict[
            tuple[int, str, bool, int], list[int]
        ] = {}  # (round, verb, training, party) → up, down, wire up, wire down
        self.delivered: list[tuple[Message, list[Answer | Failure]]] = []

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Forward and count."""
        for party in message.parties:
            one = message.select([party])
            envelope = {"verb": one.verb, "round": one.round, "call": one.call, "training": one.training}
            self._add(message, party, 1, dense({**envelope, **one.common, **one.each}))
        results = self.engine.deliver(message)
        self.delivered.append((message, results))
        for result in results:
            if isinstance(result, Answer):
                for index, party in enumerate(result.parties):
                    self._add(message, party, 0, dense(pick(result.fields, [index])))
        return results

    def _add(self, message: Message, party: int, direction: int, payload: dict[str, Any]) -> None:
        row = self.bytes.setdefault((message.round, message.verb, message.training, party), [0, 0, 0, 0])
        row[direction] += tensor_bytes(payload)
        row[direction + 2] += len(wire.encode(payload))


def tensor_bytes(payload: dict[str, Any]) -> int:
    """Bytes of a payload's tensors alone: what papers count."""
    tensors = [value for _, value in wire.leaves(payload) if isinstance(value, torch.Tensor)]
    return sum(value.numel() * value.element_size() for value in tensors)


def _without(result: Answer | Failure, absent: set[int]) -> Answer | Failure:
    if isinstance(result, Failure):
        return result
    index = [i for i, party in enumerate(result.parties) if party not in absent]
    return Answer(tuple(result.parties[i] for i in index), pick(result.fields, index))
