"""The server's door: sums in party order, billing, missing parties, checks of what arrives, the secure policy."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from atoll.errors import AtollError
from atoll.federation.cohort import Message, Schema
from atoll.federation.federation import PARTICIPANTS, Answer, Failure, Federation


class Scripted:
    """An engine whose sites answer what a function says."""

    def __init__(self, reply: Callable[[int, Message], dict[str, Any] | str], sites: list[list[int]]) -> None:
        self.reply, self.sites, self.messages = reply, sites, []

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Site by site; a text is a failure."""
        self.messages.append(message)
        results: list[Answer | Failure] = []
        for site in self.sites:
            here = [party for party in site if party in message.parties]
            rows = {party: self.reply(party, message) for party in here}
            results += [Failure(party, row) for party, row in rows.items() if isinstance(row, str)]
            good = {party: row for party, row in rows.items() if not isinstance(row, str)}
            if good:
                names = next(iter(good.values()))
                ragged = {name for name in names if isinstance(names[name], list)}
                fields = {
                    name: [row[name][0] for row in good.values()]
                    if name in ragged
                    else torch.stack([row[name] for row in good.values()])
                    for name in names
                }
                results.append(Answer(tuple(good), fields))
        return results

    def state(self) -> dict[str, Any]:
        """Nothing is kept."""
        return {}

    def restore(self, memory: dict[str, Any]) -> None:
        """Nothing is kept."""


def federation(reply: Callable[[int, Message], Any], sites: list[list[int]] | None = None, **options: Any) -> Federation:
    """Four parties."""
    engine = Scripted(reply, sites or [[0, 1, 2, 3]])
    return Federation(engine, Schema(2, 2, 4), verbs={"say": "private", "tell": "public"}, **options)


def ten_to(party: int, message: Message) -> dict[str, torch.Tensor]:
    """A reply that shows who gave it."""
    return {"x": torch.tensor([10.0**party])}


@pytest.mark.parametrize("sites", [[[0, 1, 2, 3]], [[2], [0], [3], [1]], [[1, 3], [0, 2]]])
def test_replies_come_in_party_order_wherever_parties_live(sites: list[list[int]]) -> None:
    """Stacked replies and sums do not depend on the sites."""
    fed = federation(ten_to, sites)
    replies = fed.ask("say")
    assert replies.parties == (0, 1, 2, 3)
    assert replies.stack("x").squeeze(1).tolist() == [1.0, 10.0, 100.0, 1000.0]
    assert replies[2]["x"].tolist() == [100.0]
    assert fed.total("say")["x"].tolist() == [1111.0]


def test_sums_are_the_same_bits_in_every_placement() -> None:
    """Floating-point sums are added in party order, so placement cannot change a bit."""
    values = torch.rand(4, 1000) * torch.tensor([[1e-4], [1e4], [1.0], [1e2]])
    together, apart = (
        federation(lambda party, message: {"x": values[party]}, sites).total("say")["x"]
        for sites in ([[0, 1, 2, 3]], [[3], [1], [0], [2]])
    )
    assert torch.equal(together, apart)


def test_each_goes_to_its_party() -> None:
    """`each` has a row for all parties, or for those in `to`, and every party gets its own."""

    def echo(party: int, message: Message) -> dict[str, torch.Tensor]:
        return {"x": message.select([party]).each["x"][0]}

    rows = torch.arange(4.0).view(4, 1)
    assert federation(echo, [[1], [0, 3], [2]]).ask("say", each={"x": rows}).stack("x").squeeze(1).tolist() == [0, 1, 2, 3]
    assert federation(echo).ask("say", to=[1, 3], each={"x": rows[:2]}).stack("x").squeeze(1).tolist() == [0, 1]


def test_the_ledger_knows_who_sent_what() -> None:
    """Payload bytes by party, ragged ones too; training and evaluation apart."""

    def reply(party: int, message: Message) -> dict[str, Any]:
        return {"rows": [torch.zeros(party, 3)], "n": torch.tensor(party)}

    fed = federation(reply)
    fed.begin(1)
    fed.ask("say", w=torch.zeros(5))
    with fed.evaluating():
        fed.ask("tell", to=[2], w=torch.zeros(7, dtype=torch.float64))
    assert fed.ledger.by_party[:, 0].tolist() == [8, 8 + 12, 8 + 24, 8 + 36]
    assert fed.ledger.by_party[:, 1].tolist() == [20] * 4
    summary = fed.ledger.summary()
    assert (summary["up"], summary["down"], summary["messages"]) == (4 * 8 + 72, 80, 4)
    assert (summary["evaluation"]["up"], summary["evaluation"]["down"]) == (8 + 24, 56)
    assert fed.ledger.total(round=1, verb="say")["up"] == 104
    restored = federation(reply).ledger
    restored.restore(fed.ledger.state())
    assert restored.summary() == summary


def test_participants_are_a_fixed_share_that_changes_by_round() -> None:
    """The same seed and round choose the same parties; evaluation reaches everybody."""
    fed = federation(ten_to, participation=0.5, seed=1)
    chosen = []
    for round in range(1, 9):
        fed.begin(round)
        chosen.append(fed.ask("say").parties)
        assert chosen[-1] == fed.participants()
    assert {len(parties) for parties in chosen} == {2}
    assert len(set(chosen)) > 1
    with fed.evaluating():
        assert fed.ask("tell").parties == (0, 1, 2, 3)


def test_a_missing_party_stays_out_of_the_round_and_is_back_in_the_next() -> None:
    """Who did not answer once is not waited for again in that round."""
    fed = federation(lambda party, message: "cut off" if (party, message.round) == (1, 1) else ten_to(party, message))
    fed.begin(1)
    assert fed.total("say")["x"].tolist() == [1101.0]
    fed.ask("say")
    assert fed.engine.messages[1].parties == (0, 2, 3)  # type: ignore[attr-defined]
    assert fed.missing == {1: "cut off"}
    fed.begin(2)
    assert fed.total("say")["x"].tolist() == [1111.0]
    assert fed.missing == {}


def test_nobody_left_is_an_error_that_says_why() -> None:
    """A round without any answer cannot go on."""
    fed = federation(lambda party, message: "cut off")
    fed.begin(5)
    with pytest.raises(AtollError, match=r"Round 5: no party answered 'say' \(party 0: cut off; party 1"):
        fed.total("say")


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ({"x": torch.tensor([1.0, 2.0])}, r"field 'x' is .*\(2,\).* expected .*\(1,\)"),
        ({"x": torch.tensor([1.0], dtype=torch.float64)}, "field 'x' is .*float64"),
        ({"y": torch.tensor([1.0])}, "field 'x' is None"),
        ({"x": torch.tensor([float("inf")])}, "field 'x' is not finite"),
        ({"x": torch.tensor([float("nan")])}, "field 'x' is not finite"),
    ],
)
def test_what_arrives_is_checked(odd: dict[str, torch.Tensor], reason: str) -> None:
    """A reply with other names, shapes or types than the others', or that is not finite, names its party and field."""
    fed = federation(lambda party, message: odd if party == 0 else ten_to(party, message), [[0], [1], [2], [3]])
    assert fed.total("say")["x"].tolist() == [1110.0]
    assert list(fed.missing) == [0]
    assert re.search(reason, fed.missing[0])


def test_rows_are_added_up_where_their_numbers_say() -> None:
    """Scatter-add totals: party p's rows, times its weight, at its row numbers; the weights beside them."""
    index = [[0, 1], [1], [3, 1, 0], [2]]
    rows = [torch.arange(2.0 * len(own)).view(-1, 2) + party for party, own in enumerate(index)]
    replies = federation(
        lambda party, message: {"rows": [rows[party]], "at": [torch.tensor(index[party])], "n": torch.tensor(party)}
    ).ask("say")
    total = replies.total(scatter="at", size=5, weights=[1.0, 2.0, 3.0, 4.0])
    expected, weights = torch.zeros(5, 2), torch.zeros(5)
    for party, own in enumerate(index):
        for row, number in enumerate(own):
            expected[number] += (party + 1) * rows[party][row]
            weights[number] += party + 1
    assert torch.equal(total["rows"], expected)
    assert torch.equal(total["at"], weights)
    assert int(total["n"]) == 6


@pytest.mark.parametrize("secure", [False, True])
def test_nothing_comes_back_from_tell(secure: bool) -> None:
    """The verb is called and its bytes are counted; also a private one under secure aggregation, without a session."""
    fed = federation(lambda party, message: {}, secure=secure)
    assert fed.tell("say", to=[1, 2], x=torch.zeros(5)) is None  # type: ignore[func-returns-value]
    (message,) = fed.engine.messages  # type: ignore[attr-defined]
    assert (message.verb, message.parties) == ("say", (1, 2))
    assert fed.ledger.total()["down"] == 2 * 20
    assert fed.ledger.total()["up"] == 0


def test_a_reply_to_tell_is_an_error_that_names_verb_and_field() -> None:
    """Where the server means to see nothing, it sees nothing."""
    with pytest.raises(AtollError, match="'say' was called with `tell`, but it replies 'x'"):
        federation(ten_to).tell("say")


def test_secure_aggregation_refuses_private_asks() -> None:
    """With secure aggregation on, the server may ask public verbs only."""
    fed = federation(ten_to, secure=True)
    with pytest.raises(AtollError, match="'say' is private"):
        fed.ask("say")
    assert fed.ask("tell").parties == (0, 1, 2, 3)


def test_some_parties_evaluate() -> None:
    """A share is drawn once and is the same in every round; participants are those of the round; training is not affected."""

    def asked(**options: Any) -> list[tuple[list[int], list[int]]]:
        door = federation(ten_to, participation=0.5, **options)
        for number in range(1, 7):
            door.begin(number)
            door.ask("say")
            with door.evaluating():
                door.ask("say")
        messages = [list(message.parties) for message in door.engine.messages]
        return list(zip(messages[::2], messages[1::2], strict=True))

    everybody, sample, participants = asked(), asked(evaluated=0.5), asked(evaluated=PARTICIPANTS)
    assert all(evaluated == [0, 1, 2, 3] for _, evaluated in everybody)
    assert [trained for trained, _ in everybody] == [trained for trained, _ in sample] == [trained for trained, _ in participants]
    assert len({tuple(evaluated) for _, evaluated in sample}) == 1
    assert all(len(evaluated) == 2 for _, evaluated in sample)
    assert all(trained == evaluated for trained, evaluated in participants)
    assert len({tuple(evaluated) for _, evaluated in participants}) > 1
