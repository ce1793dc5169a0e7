"""An engine of one's own: registered from outside the package, chosen by name, the same numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import atoll
from atoll.engines import ENGINES, inprocess
from atoll.errors import AtollError
from atoll.federation.cohort import Fields, Message
from atoll.federation.federation import Answer, Engine, Failure

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 80, "partition": "random", "parties": 3, "rounds": 2}


class CountingEngine:
    """Hands every message on and counts it by verb."""

    def __init__(self, inner: Engine) -> None:
        self.inner = inner
        self.messages: dict[str, int] = {}

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Count, then deliver."""
        self.messages[message.verb] = self.messages.get(message.verb, 0) + 1
        return self.inner.deliver(message)

    def state(self) -> Fields:
        """As the inner engine's."""
        return self.inner.state()

    def restore(self, memory: Fields) -> None:
        """As the inner engine's."""
        self.inner.restore(memory)


class ToyEngine:
    """What is registered: `connect` makes the engine of a run."""

    def __init__(self) -> None:
        self.made: list[CountingEngine] = []

    def connect(self, make: inprocess.Make, parties: int, settings: inprocess.Placement) -> CountingEngine:
        """Wrap the in-process engine."""
        self.made.append(CountingEngine(inprocess.connect(make, parties, settings)))
        return self.made[-1]


def test_a_registered_engine_carries_the_messages() -> None:
    """The same state and history as in process, every message counted."""
    toy = ToyEngine()
    ENGINES.register("toy", toy)
    try:
        result = atoll.run("fedavg", **TINY, engine="toy")
    finally:
        ENGINES.unregister("toy")
    here = atoll.run("fedavg", **TINY)
    assert toy.made[0].messages == {"fit": 2, "evaluate": 2}
    assert all(torch.equal(value, here.state["model"][name]) for name, value in result.state["model"].items())
    assert [{**row, "seconds": 0} for row in result.rows] == [{**row, "seconds": 0} for row in here.rows]
    assert result.config.engine == "toy"


def test_an_unknown_engine_is_named() -> None:
    """With what there is."""
    with pytest.raises(AtollError, match="There is no engine 'nvflair'; did you mean 'nvflare'"):
        atoll.run("fedavg", **TINY, engine="nvflair")
