"""Secure totals: the same sums, nothing else in sight, and parties may drop out at every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll import algorithms, wire
from atoll.engines.inprocess import InProcessEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Cohort, Message, Schema, verb
from atoll.federation.federation import Answer, Failure, Federation
from atoll.graphs.graph import Graph
from atoll.privacy.identities import simulated_identities
from atoll.privacy.masking import threshold
from atoll.privacy.secrets import Secrets
from atoll.runs import runner
from atoll.runs.runner import Result
from small import ALGORITHMS, Absent, Recorded, Wrapper, parties_of, small

PARTIES = 6


class Giving(Cohort):
    """Party k gives numbers of every kind."""

    @verb(apart=("extra",))
    def give(self, base: torch.Tensor, extra: torch.Tensor) -> dict[str, Any]:
        """Replies with a recognizable value."""
        own = torch.tensor([float(party) for party in self.parties])
        return {
            "model": {"w": base + own[:, None] * 1.25, "b": -own.double()},
            "n": torch.tensor([10 + int(party) for party in self.parties]),
            "extra": extra,
        }


def graph(parties: int) -> Graph:
    """Parties of one node each."""
    none = torch.zeros(parties, dtype=torch.bool)
    ids = torch.arange(parties)
    return Graph(
        torch.ones(parties, 1), torch.zeros(2, 0, dtype=torch.int64), ids * 0, none, none, none, 1, ids, torch.arange(parties + 1)
    )


def federation(sites: list[list[int]] | None = None, wrap: Any = None, secure: bool = True, amnesia: bool = False) -> Federation:
    """Six giving parties."""
    whole = graph(PARTIES)
    schema = Schema(1, 1, PARTIES)
    known = simulated_identities(PARTIES)
    secrets = Secrets(known, min_parties=3) if secure else None
    engine: Any = InProcessEngine(
        lambda parties, blank: Giving(whole.select(parties), None, schema, 0, parties, secrets=secrets, blank=blank),
        sites or [list(range(PARTIES))],
        amnesia=amnesia,
    )
    found = Federation(
        wrap(engine) if wrap else engine, schema, verbs=Giving.verbs(), secure=secure, secure_min=3, identities=known
    )
    found.begin(1)
    return found


BASE = torch.tensor([0.1, -2.5e3, 7e-7])
EXTRA = torch.arange(PARTIES * 2.0).view(PARTIES, 2)


def total(found: Federation) -> dict[str, torch.Tensor]:
    """The total by flat name."""
    return dict(wire.leaves(found.total("give", base=BASE, each={"extra": EXTRA})))


def assert_sum(found: dict[str, torch.Tensor], parties: list[int]) -> None:
    """The sums over these parties, to the precision of the fixed point."""
    own = torch.tensor([float(party) for party in parties])
    torch.testing.assert_close(found["model/w"], (BASE + own[:, None] * 1.25).sum(0), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(found["model/b"], -own.double().sum(), atol=1e-8, rtol=0)
    assert found["n"] == sum(10 + party for party in parties)
    assert found["n"].dtype == torch.int64
    torch.testing.assert_close(found["extra"], EXTRA[parties].sum(0))


@pytest.mark.parametrize("sites", [[[0, 1, 2, 3, 4, 5]], [[5], [1], [0], [3], [2], [4]], [[1, 4], [0, 2, 3, 5]]])
@pytest.mark.parametrize("amnesia", [False, True])
def test_the_sum_is_the_sum(sites: list[list[int]], amnesia: bool) -> None:
    """Masks cancel wherever the parties live, even when they are rebuilt from memory between the steps."""
    assert_sum(total(federation(sites, amnesia=amnesia)), list(range(PARTIES)))


def test_the_bill_of_a_secure_total() -> None:
    """As docs/privacy.md says: of N parties, with U taking part, each gets 96 + 394·U bytes more and sends 256 + N + 129·U."""
    found, plain = federation(), federation(secure=False)
    for asked in ([0, 1, 2, 3, 4, 5], [1, 2, 4, 5]):
        bills = []
        for one in (found, plain):
            one.begin(one.round + 1)
            one.total("give", to=asked, base=BASE, each={"extra": EXTRA[asked]})
            bills.append(one.ledger.total(round=one.round))
        secure, usual = bills
        count = len(asked)
        numbers = {"float32": 3 + 2, "others": 1 + 1}  # those of 4 bytes are 8 now
        assert secure["down"] - usual["down"] == count * (96 + 394 * count)
        assert secure["up"] - usual["up"] == count * (256 + PARTIES + 129 * count + 4 * numbers["float32"])


class DropsAt(Wrapper):
    """Some parties fall silent from a step on."""

    def __init__(self, engine: Any, step: str, parties: set[int]) -> None:
        super().__init__(engine)
        self.step, self.silent, self.over = step, parties, False

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Leave the silent ones out."""
        self.over = self.over or message.verb == self.step
        present = [party for party in message.parties if not (self.over and party in self.silent)]
        failures = [Failure(party, "gone") for party in message.parties if party not in present]
        return [*self.engine.deliver(message.select(present)), *failures]


@pytest.mark.parametrize(
    ("step", "counted"),
    [
        ("secure_keys", [0, 2, 3, 4, 5]),
        ("secure_shares", [0, 2, 3, 4, 5]),
        ("secure_open", [0, 2, 3, 4, 5]),
        ("give", [0, 2, 3, 4, 5]),
        ("secure_confirm", [0, 1, 2, 3, 4, 5]),
        ("secure_reveal", [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_party_may_drop_out_at_every_step(step: str, counted: list[int]) -> None:
    """Before its masked reply it is not in the sum; after it, it still is. It is named either way."""
    found = federation([[0, 1, 2], [3, 4, 5]], wrap=lambda engine: DropsAt(engine, step, {1}))
    assert_sum(total(found), counted)
    assert found.missing == {1: "gone"}


@pytest.mark.parametrize("step", ["secure_shares", "secure_open", "give", "secure_confirm", "secure_reveal"])
def test_too_few_parties_end_it(step: str) -> None:
    """Without the threshold nothing is unmasked, and one sentence says so."""
    assert threshold(PARTIES) == 5
    found = federation(wrap=lambda engine: DropsAt(engine, step, {1, 3}))
    with pytest.raises(AtollError, match=r"Round 1.*(needs 5 parties|5 are needed)"):
        total(found)


def test_a_single_party_is_refused() -> None:
    """The sum of one party would be its reply."""
    found = federation()
    with pytest.raises(AtollError, match="needs 3 parties, but 1 answered"):
        found.total("give", to=[2], base=BASE, each={"extra": EXTRA[:1]})


def test_the_server_sees_noise() -> None:
    """Without masks the server finds a planted number in a reply; with them, the same reply is other noise in every session."""
    seen: dict[bool, list[torch.Tensor]] = {}
    for secure in (False, True):
        recorders: list[Recorded] = []
        found = federation(wrap=lambda engine, kept=recorders: kept.append(Recorded(engine)) or kept[0], secure=secure)
        total(found)
        total(found)
        given = [answers[0] for message, answers in recorders[0].delivered if message.verb == "give"]
        seen[secure] = [dict(wire.leaves(answer.fields)) for answer in given]  # type: ignore[union-attr, misc]
    assert seen[False][0]["model/w"][3, 0] == pytest.approx(0.1 + 3 * 1.25)
    first, second = (reply["float32/model/w"] for reply in seen[True])
    planted = round((0.1 + 3 * 1.25) * 2**30)
    assert not (first == planted).any()
    assert not (first == second).any()
    assert (first.abs() > 2**40).all()  # uniform over 64 bits; a single one this small has a chance of 2⁻²³


def test_parties_refuse_what_would_unmask_them() -> None:
    """A party answers no private verb unmasked, and reveals its shares of a total once."""
    found = federation()
    with pytest.raises(AtollError, match="'give' is private"):
        found.ask("give", base=BASE, each={"extra": EXTRA})
    with pytest.raises(AtollError, match="does not leave the party unmasked"):
        found.exchange("give", range(PARTIES), {"extra": EXTRA}, {"base": BASE})
    recorders: list[Recorded] = []
    found = federation(wrap=lambda engine: recorders.append(Recorded(engine)) or recorders[0])
    total(found)
    message = next(message for message, _ in recorders[0].delivered if message.verb == "secure_reveal")
    assert all(
        isinstance(answer, Failure) and "each comes once, in order" in answer.reason
        for answer in recorders[0].engine.deliver(message)
    )


def test_a_number_that_does_not_fit_is_refused_at_the_party() -> None:
    """Infinite or huge numbers never wrap around silently."""
    found = federation([[party] for party in range(PARTIES)])
    broken = EXTRA.clone()
    broken[4, 1] = float("inf")
    broken[4, 0] = 1e30
    sums = found.total("give", base=BASE, each={"extra": broken})
    torch.testing.assert_close(sums["extra"], EXTRA[[0, 1, 2, 3, 5]].sum(0))
    assert "too large for a secure total" in found.missing[4]


def attempt(algorithm: str) -> Result | AtollError:
    """A secure run, or why there is none."""
    try:
        return runner.run(small(algorithm, secure=True))
    except AtollError as error:
        return error


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_securely_or_says_that_it_cannot(algorithm: str) -> None:
    """The same numbers to the precision of the fixed point; an algorithm that needs single replies says so in one sentence."""
    if parties_of(algorithm) == 1 or algorithms.find(algorithm).SCENARIOS[0] == "node":
        pytest.skip(f"{algorithm}: a secure total is of a few parties")
    plain = runner.run(small(algorithm))
    secure = attempt(algorithm)
    if isinstance(secure, AtollError):
        assert "is private" in str(secure)
        assert algorithm not in ("local", "fedavg", "fedprox", "fedper", "fedspray")  # these need sums only
        return
    for name, value in wire.leaves(plain.state):
        torch.testing.assert_close(value, dict(wire.leaves(secure.state))[name], atol=1e-4, rtol=1e-4)
    assert secure.metrics["accuracy"] == pytest.approx(plain.metrics["accuracy"], abs=1e-6)
    assert "party_accuracy" not in secure.metrics


def test_a_secure_run_survives_missing_parties_and_resume(tmp_path: Any) -> None:
    """A party silent in one round is named and left out; broken off and resumed, a run ends with the same bits."""
    config = small("fedavg", secure=True, rounds=3, checkpoint_every=1)
    whole = runner.run(config)

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            raise Broken

    with pytest.raises(Broken):
        runner.run(config, out=tmp_path / "run", watch=watch)
    resumed = runner.resume(tmp_path / "run")
    for name, value in wire.leaves(whole.state):
        assert torch.equal(value, dict(wire.leaves(resumed.state))[name]), name

    def absent(engine: Any) -> Absent:
        return Absent(engine, {2}, {1})

    with pytest.raises(
        AtollError, match=r"Round 2: .* needs 3 parties, but 2 answered \(party 1: timed out\).* lower secure_min"
    ):
        runner.rounds(runner.prepare(small("fedavg", secure=True), engine=absent))
    experiment = runner.prepare(small("fedavg", secure=True, secure_min=2), engine=absent)
    assert [row.get("missing") for row in runner.rounds(experiment).rows] == [None, {"1": "timed out"}, None]
