"""Cohorts: only verbs can be reached, memory is sliced exactly, randomness belongs to the party."""

from __future__ import annotations

import pytest
import torch

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
    parts = runner.prepare(small("local")).spread.parts
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


@pytest.mark.parametrize("name", ["secret", "setup", "recall", "__init__", "nothing"])
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
