"""The in-process engine: sites, parties that fail, and parties that are rebuilt from their declared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from atoll.engines.inprocess import InProcessEngine, apart, together
from atoll.errors import PartyFailure
from atoll.federation.cohort import PARTY, Cohort, Message, verb
from atoll.federation.federation import Answer, Failure
from atoll.runs import runner
from small import small

PARTS = runner.prepare(small("local")).party_data.parts


class Tally(Cohort):
    """Counts its calls in declared memory, and in an attribute that is not declared."""

    memory = {"calls": PARTY}

    def setup(self) -> None:
        """Start at zero."""
        self.calls = torch.zeros(self.graph.parties)
        self.undeclared = 0

    @verb
    def count(self, fail: bool = False) -> dict[str, Any]:
        """Add one."""
        if fail:
            raise PartyFailure("out of order")
        self.calls = self.calls + 1
        self.undeclared += 1
        return {"calls": self.calls, "undeclared": torch.full((self.graph.parties,), self.undeclared)}


def make(parties: Sequence[int], blank: bool) -> Tally:
    """The cohort of some parties."""
    return Tally(PARTS.select(list(parties)), None, None, 0, list(parties))  # type: ignore[arg-type]


def message(parties: tuple[int, ...], **fields: Any) -> Message:
    """A call of `count`."""
    return Message("count", 1, 0, True, parties, fields, {})


def counts(results: list[Answer | Failure], field: str = "calls") -> dict[int, float]:
    """A field of the answers by party."""
    return {
        party: float(value)
        for result in results
        if isinstance(result, Answer)
        for party, value in zip(result.parties, result.fields[field], strict=True)
    }


@pytest.mark.parametrize("sites", [together(3), apart(3), [[2], [0, 1]]], ids=["together", "apart", "mixed"])
def test_only_the_addressed_parties_answer(sites: Sequence[Sequence[int]]) -> None:
    """Whatever the sites are."""
    engine = InProcessEngine(make, sites)
    assert counts(engine.deliver(message((0, 2)))) == {0: 1, 2: 1}
    assert counts(engine.deliver(message((0, 1, 2)))) == {0: 2, 1: 1, 2: 2}


def test_a_failing_site_fails_for_its_parties() -> None:
    """One failure per party, with the reason."""
    engine = InProcessEngine(make, together(3))
    failures = engine.deliver(message((1, 2), fail=True))
    assert [(failure.party, failure.reason) for failure in failures] == [(1, "out of order"), (2, "out of order")]


@pytest.mark.parametrize("amnesia", [False, True])
def test_amnesia_keeps_declared_memory_only(amnesia: bool) -> None:
    """What is not declared is lost before every message."""
    engine = InProcessEngine(make, apart(3), amnesia=amnesia)
    engine.deliver(message((0, 1, 2)))
    second = engine.deliver(message((0, 1, 2)))
    assert counts(second) == {0: 2, 1: 2, 2: 2}
    assert counts(second, "undeclared") == dict.fromkeys(range(3), 1 if amnesia else 2)


def test_state_and_restore() -> None:
    """The memory of every site, into a new engine."""
    engine, other = InProcessEngine(make, apart(3)), InProcessEngine(make, apart(3))
    engine.deliver(message((0, 2)))
    other.restore(engine.state())
    assert counts(other.deliver(message((0, 1, 2)))) == {0: 2, 1: 1, 2: 2}
