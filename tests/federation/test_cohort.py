"""Cohorts: only verbs can be reached, memory is sliced exactly, randomness belongs to the party."""

from __future__ import annotations

import pytest
import torch

from atoll import wire
from atoll.algorithms import fedavg
from atoll.errors import AtollError
from atoll.federation.cohort import NODE, PARTY, Cohort, Message, verb
from atoll.runs import runner
from small import small


class Counting(Cohort):
    """Every party counts its calls, every node its own, and draws a number."""

    memory = {"calls": PARTY, "seen": NODE}

    def setup(self) -> None:
        """Start at zero."""
        self.calls = torch.zeros(self.graph.parties, 2)
        self.seen = torch.zeros(self.graph.num_nodes)

    @verb
    def count(self, by: int) -> dict[str, torch.Tensor]:
        """Add to the counts."""
        self.calls = self.calls + by
        self.seen = self.seen + 1
        return {"calls": self.calls, "drawn": self.draws().uniform(3), "sum": torch.ones(self.graph.parties)}

    def secret(self) -> str:
        """No verb."""
        return "secret"


def cohort(parties: list[int] | None = None) -> Counting:
    """Three parties of a small graph, or some of them."""
    parts = runner.prepare(small("local")).party_data.parts
    chosen = parties if parties is not None else [0, 1, 2]
    return Counting(parts.select(chosen), None, None, 5, chosen)  # type: ignore[arg-type]


def message(parties: tuple[int, ...], round: int = 1, call: int = 0) -> Message:
    """Count by two."""
    return Message("count", round, call, True, parties, {"by": 2}, {})


def test_some_parties_answer_and_the_others_are_untouched() -> None:
    """A message to parties 0 and 2 changes their memory and their nodes' memory only."""
    whole = cohort()
    whole.answer(message((0, 2)))
    assert whole.calls.tolist() == [[2, 2], [0, 0], [2, 2]]
    assert torch.equal(whole.seen, (whole.graph.party != 1).float())
    whole.answer(message((0, 1, 2)))
    assert whole.calls.tolist() == [[4, 4], [2, 2], [4, 4]]


def test_a_partys_draws_do_not_depend_on_its_company() -> None:
    """Alone or with others, a party draws the same numbers; another call, round, party or seed draws others."""
    together = cohort().answer(message((0, 1, 2)))["drawn"]
    assert torch.equal(cohort([1]).answer(message((1,)))["drawn"][0], together[1])
    assert torch.equal(cohort().answer(message((1, 2)))["drawn"], together[1:])
    assert not torch.equal(together[0], together[1])
    for other in (message((0, 1, 2), round=2), message((0, 1, 2), call=1)):
        assert not torch.equal(cohort().answer(other)["drawn"], together)


@pytest.mark.parametrize("name", ["secret", "setup", "state", "clear_round", "__init__", "nothing"])
def test_only_verbs_can_be_reached(name: str) -> None:
    """Nothing but a verb answers the server."""
    with pytest.raises(AtollError, match=f"no verb '{name}'; its verbs are count"):
        cohort().answer(Message(name, 1, 0, True, (0, 1, 2), {}, {}))


def test_evaluation_keeps_no_gradient() -> None:
    """Replies to evaluation messages carry no graph of gradients."""
    experiment = runner.prepare(small("fedavg"))
    state = fedavg.start(experiment.federation, experiment.config.settings)
    engine_cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    assert torch.is_grad_enabled()
    reply = engine_cohort.answer(Message("evaluate", 1, 0, False, (0, 1, 2), state, {}))
    assert not any(value.requires_grad for value in reply.values())


class Collecting(Cohort):
    """Every party collects the numbers it was sent in this round, and counts all of them."""

    memory = {"count": PARTY}
    round_memory = {"numbers": PARTY, "on_nodes": NODE}

    def setup(self) -> None:
        """Start at zero."""
        self.count = torch.zeros(self.graph.parties)

    def clear_round(self) -> None:
        """Nothing has arrived."""
        self.numbers = torch.zeros(self.graph.parties)
        self.on_nodes = torch.zeros(self.graph.num_nodes)

    @verb
    def collect(self, by: float) -> dict[str, torch.Tensor]:
        """Add to both."""
        self.count, self.numbers, self.on_nodes = self.count + 1, self.numbers + by, self.on_nodes + by
        return {"numbers": self.numbers}


def collecting() -> Collecting:
    """Three parties of a small graph."""
    parts = runner.prepare(small("local")).party_data.parts
    return Collecting(parts, None, None, 5, [0, 1, 2])  # type: ignore[arg-type]


def collect(where: Cohort, parties: tuple[int, ...], by: float, round: int = 1, *, training: bool = True) -> list[float]:
    """What the parties have of this round after one more number."""
    return where.answer(Message("collect", round, 0, training, parties, {"by": by}, {}))["numbers"].tolist()


def test_round_memory_is_cleared_when_a_round_begins() -> None:
    """Within a round it grows; the next round, and each evaluation, begin with nothing. Other memory stays."""
    cohort = collecting()
    assert collect(cohort, (0, 1, 2), 1) == [1, 1, 1]
    assert collect(cohort, (0, 1, 2), 10) == [11, 11, 11]
    assert collect(cohort, (0, 1, 2), 100, training=False) == [100, 100, 100]
    assert collect(cohort, (0, 1, 2), 1, 2) == [1, 1, 1]
    assert cohort.count.tolist() == [4, 4, 4]


def test_round_memory_is_each_partys_own() -> None:
    """A round begins for a party with the first message it gets, whoever it shares a process with."""
    cohort = collecting()
    collect(cohort, (0, 1, 2), 1)
    assert collect(cohort, (1,), 10, 2) == [10]
    assert cohort.numbers.tolist() == [1, 10, 1]
    assert collect(cohort, (0, 1, 2), 100, 2) == [100, 110, 100]
    assert torch.equal(cohort.on_nodes, torch.where(cohort.graph.party == 1, 110.0, 100.0))


def test_round_memory_is_part_of_the_state() -> None:
    """A cohort that is rebuilt in the middle of a round goes on with it."""
    before, after = collecting(), collecting()
    collect(before, (0, 1, 2), 1, 7)
    after.restore(wire.decode(wire.encode(before.state(), compact=True)))
    assert collect(after, (0, 1, 2), 10, 7) == [11, 11, 11]
    assert after.count.tolist() == [2, 2, 2]
    again = collecting()
    again.restore(wire.decode(wire.encode(after.state(), compact=True)))
    assert collect(again, (0, 1, 2), 5, 8) == [5, 5, 5]


def test_memory_that_is_not_declared_is_refused() -> None:
    """A checkpoint of another algorithm, or a name that is declared twice."""
    with pytest.raises(AtollError, match="holds 'calls', which is not declared"):
        collecting().restore(cohort().state())
    with pytest.raises(AtollError, match="'count' cannot be memory"):
        type("Twice", (Collecting,), {"round_memory": {"count": PARTY}})
