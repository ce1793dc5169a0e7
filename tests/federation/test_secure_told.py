"""What secure totals are bound to beside lists and keys: the arguments, the configuration, the record; and what refusals tell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from lying import Talk, World, value
from test_secure import BASE, EXTRA, PARTIES, assert_sum, federation, total
from test_secure_faults import LIAR, OTHERS, tampered
from test_secure_sites import Crashing, config_of, crashed, over

from atoll import wire
from atoll.deploy.site import TOTALS_FILE
from atoll.errors import AtollError
from atoll.federation.cohort import Message
from atoll.federation.federation import Answer, Failure
from atoll.privacy.masking import Call, threshold
from atoll.privacy.opened_totals import OpenedTotals
from atoll.runs import runner
from small import Wrapper, small

APART = [[party] for party in range(PARTIES)]


class Inconsistent(Wrapper):
    """A server that tells the parties different things: one a model, the others one to which their replies are known."""

    def __init__(self, engine: Any, **others: Any) -> None:
        super().__init__(engine)
        self.others = others

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """The first party gets what was meant, the others get something else."""
        if message.verb != "give":
            return self.engine.deliver(message)
        victim, *rest = message.parties
        changed = replace(message.select(rest), **{name: make(message) for name, make in self.others.items()})
        return [*self.engine.deliver(message.select([victim])), *self.engine.deliver(changed)]


@pytest.mark.parametrize(
    "others",
    [
        {"common": lambda message: {**message.common, "base": torch.zeros(3)}},
        {"common": lambda message: {**message.common, "base": message.common["base"].double()}},
        {"training": lambda message: False},
    ],
)
def test_parties_that_were_told_different_arguments_have_no_sum(others: dict[str, Any]) -> None:
    """Their masks do not cancel, and they do not sign for each other."""
    found = federation(APART, wrap=lambda engine: Inconsistent(engine, **others))
    with pytest.raises(AtollError, match="signed something else than who answered"):
        total(found)


class Apart(Wrapper):
    """A server that sends everybody a model of its own, as what is told each apart."""

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """`base` with a row for each party."""
        if message.verb == "give":
            common = {name: value for name, value in message.common.items() if name != "base"}
            each = {**message.each, "base": BASE.expand(len(message.parties), -1)}
            message = replace(message, common=common, each=each)
        return self.engine.deliver(message)


def test_what_is_told_apart_must_be_declared() -> None:
    """`extra` is, `base` is not."""
    with pytest.raises(AtollError, match="refuses 'base' sent to it apart: in a secure total all parties must be sent the same"):
        total(federation(APART, wrap=Apart))
    assert_sum(total(federation(APART)), list(range(PARTIES)))


class Sly(Crashing):
    """A server that tells all sites but one that they do not learn."""

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """`begin` with another configuration."""
        sent = {}
        for site, data in requests.items():
            request = wire.decode(data)
            if request["kind"] == "begin" and site != "site-0":
                request["config"][0]["settings"]["lr"] = 1e-12
            sent[site] = wire.encode(request)
        return super().send(sent, timeout)


def test_sites_with_different_configurations_have_no_total(tmp_path: Path) -> None:
    """Replies of a party that does not learn are known, but for their weights: their keys are not those of the same run."""
    with pytest.raises(AtollError, match="refuses keys that are not signed by party"):
        over(config_of(4), Sly(tmp_path / "sites"))


def test_the_steps_of_a_total_are_not_totaled() -> None:
    """A session whose masked reply would be another step of it."""
    world, talk = World(4), Talk(Call(1, 1, "secure_confirm"))
    world.keys_of(talk, range(4))
    world.share(talk, range(4))
    world.open(talk, range(4))
    session = talk.session
    agreed = {"session": torch.frombuffer(bytearray(session), dtype=torch.uint8)}
    common = {**agreed, "answered": torch.ones(4, dtype=torch.bool)}
    secure = {**agreed, "users": torch.arange(4)}
    assert "refuses a total of the steps" in world.send(0, "secure_confirm", talk.call, common, secure=secure)


def test_a_refusal_does_not_tell_the_number() -> None:
    """The server sets the bounds: a reason with the number in it would be a reply in clear."""
    with pytest.raises(AtollError, match="field 'n' is not finite, or beyond its bounds") as caught:
        runner.run(small("fedavg", secure=True, max_weight=1))
    assert "goes to" not in str(caught.value)


@pytest.mark.parametrize("least", [3, 4])
def test_sums_over_different_parties_tell_the_difference_unless_all_must_take_part(least: int) -> None:
    """Two calls with the same arguments: no record of totals tells them from two rounds. `--secure-min` of all parties does."""
    world = World(4, least=least)
    world.honest(Call(1, 1, "reply"), [0, 1, 2, 3])
    world.honest(Call(1, 2, "reply"), [0, 1, 2])
    sums = {tuple(sorted(party for _, party in combination)): number for combination, number in world.learned()}
    if least == 3:
        assert sums[0, 1, 2, 3] - sums[0, 1, 2] == value(3, 1)
    else:
        assert set(sums) == {(0, 1, 2, 3)}


def test_fewer_than_a_third_cannot_have_two_lists_confirmed() -> None:
    """Honest parties sign one list, those who help the server both: two quorums take 2(t - c) of n - c honest ones."""
    for parties in range(2, 200):
        helpers = next(c for c in range(parties + 1) if 2 * (threshold(parties) - c) <= parties - c)
        assert 3 * helpers > parties, parties


# The record of opened totals


@pytest.mark.parametrize("harm", ["deleted", "emptied", "shortened", "another number"])
def test_a_run_does_not_go_on_without_its_record(tmp_path: Path, harm: str) -> None:
    """Whatever became of the file: totals could be opened twice."""
    config = config_of(4)
    folder = crashed(tmp_path, config, None)
    for path in (tmp_path / "sites").glob(f"*/*/{TOTALS_FILE}"):
        lines = path.read_text().splitlines(keepends=True)
        if harm == "deleted":
            path.unlink()
        else:
            lines[1] = lines[1].replace('"round":1', '"round":9')
            path.write_text({"emptied": "", "shortened": "".join(lines[2:]), "another number": "".join(lines)}[harm])
    with pytest.raises(AtollError, match=r"its record of totals, totals\.jsonl, cannot be read"):
        over(config, Crashing(tmp_path / "sites"), folder, folder.load())


def test_a_flipped_bit_in_the_record_never_passes(tmp_path: Path) -> None:
    """All bits of all whole lines."""
    path, call = tmp_path / TOTALS_FILE, Call(1, 1, "fit")
    OpenedTotals(path).add([0], call, (0, 1, 2))
    whole = path.read_bytes()
    assert OpenedTotals(path, known=True).find(0, call) == (0, 1, 2)
    for place in range(8 * (len(whole) - 1)):  # without its end, a last line was never acted on
        path.write_bytes(whole[: place // 8] + bytes([whole[place // 8] ^ 1 << place % 8]) + whole[place // 8 + 1 :])
        with pytest.raises(AtollError, match="cannot be read"):
            OpenedTotals(path, known=True)


def test_a_record_that_was_cut_off_as_it_began_is_begun_again(tmp_path: Path) -> None:
    """A crash in the very first line: nothing was opened yet."""
    path = tmp_path / TOTALS_FILE
    path.write_text('{"form')
    OpenedTotals(path).add([0], Call(1, 1, "fit"), (0, 1, 2))
    assert sorted(json.loads(path.read_text().partition("\n")[0])) == ["check", "format"]
    assert OpenedTotals(path, known=True).find(0, Call(1, 1, "fit")) == (0, 1, 2)


# Parties that lie about others


@pytest.mark.parametrize("claimed", [[LIAR], [0, 1, 2, LIAR], [0, 1], list(range(PARTIES - 1))])
def test_who_claims_that_a_total_was_opened_does_not_choose_who_takes_part(claimed: list[int]) -> None:
    """One that says the total was opened over others before is left out; nobody else is."""

    def claim(fields: dict[str, torch.Tensor]) -> None:
        fields["settled"][claimed] = True

    found = tampered("secure_keys", claim)
    assert_sum(total(found), OTHERS)
    assert found.missing == {LIAR: "says that this total was opened over other parties before"}


def test_of_a_lone_complaint_it_is_said_whose_it_is() -> None:
    """Of three parties all must open all shares: one that says it cannot may lie, so both names are told."""

    def complain(fields: dict[str, torch.Tensor]) -> None:
        fields["opened"][0] = False

    found = tampered("secure_open", complain)
    with pytest.raises(AtollError, match=rf"party 0: dealt shares that party {LIAR} says it could not open"):
        found.total("give", to=[0, 1, LIAR], base=BASE, each={"extra": EXTRA[:3]})
