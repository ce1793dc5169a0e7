"""Secure totals under every order of events: drop-outs, crashes, resumes, repeated, reordered, mixed and forged steps.

The server is the adversary; it chooses what comes next and keeps everything. After every event all that follows from what it
holds is worked out (`lying.World`): no party's session may show both kinds of shares, and no combination of sums may single out
fewer parties than the minimum cohort.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from lying import Talk, World
from test_secure_attacks import Careless

from atoll.federation.cohort import Message
from atoll.privacy.masking import Call
from atoll.privacy.secrets import STEPS, Secrets

CALLS = (Call(1, 1, "reply"), Call(2, 1, "reply"), Call(1, 1, "other"))
DROPS = [(0, 3), (0, 6), *((party, step) for step in range(6) for party in range(6)), (1, 3)]  # who drops out before which step
SOME = st.integers(0, 63)  # a set of up to six parties, as bits


def chosen(bits: int, among: Any) -> list[int]:
    """The parties that the bits name."""
    return [party for party in among if bits >> party & 1]


class Replay(RuleBasedStateMachine):
    """Everything a server may do, in any order."""

    secrets: ClassVar[type[Secrets]] = Secrets

    @initialize(parties=st.sampled_from((4, 5, 6, 3)))
    def begin(self, parties: int) -> None:
        """Three to six parties, with a disk each."""
        self.folder = Path(tempfile.mkdtemp())
        self.world = World(parties, self.folder, secrets=self.secrets)
        self.talks: list[Talk] = []
        self.checked = (0, 0, 0)

    @rule(call=st.sampled_from(CALLS), absent=st.none() | SOME, gone=st.sampled_from(DROPS))
    def a_whole_session(self, call: Call, absent: int | None, gone: tuple[int, int]) -> None:
        """An honest attempt, also the next one after a resume: some may be absent, and one drops out on the way."""
        here = [party for party in range(self.world.count) if not (absent or 0) >> party & 1]
        party, step = gone
        self.talks.append(self.world.honest(call, here, [{party} if number == step else set() for number in range(6)]))
        self.check()

    @rule(party=st.integers(0, 5))
    def crash(self, party: int) -> None:
        """A party's process is lost, and back."""
        self.world.crash(party % self.world.count)

    @rule(call=st.sampled_from(CALLS), whom=SOME)
    def begin_a_session(self, call: Call, whom: int) -> None:
        """The first step, for some."""
        talk = Talk(call)
        self.world.keys_of(talk, chosen(whom, range(self.world.count)) or range(self.world.count))
        self.talks.append(talk)

    @precondition(lambda self: self.talks)
    @rule(which=st.integers(0, 9), step=st.sampled_from(STEPS[1:]), listed=SOME, to=SOME, honest=st.booleans())
    def any_step(self, which: int, step: str, listed: int, to: int, honest: bool) -> None:
        """Some step of some session with any list, to anybody; or (`honest`) with the list that belongs there."""
        talk, world = self.talks[-1 - which % len(self.talks)], self.world
        base: dict[str, Any] = {
            "shares": sorted(talk.adverts),
            "open": sorted(talk.shares),
            "mask": sorted(set(talk.opened)),
            "confirm": sorted(set(talk.answered)),
            "reveal": sorted(set(talk.answered)),
        }
        names = base[step] if honest else chosen(listed, base[step])
        whom = base[step] if honest else chosen(to, base[step])
        if not names:
            return
        if step == "shares":
            world.share(talk, names, whom)
        elif step == "open":
            world.open(talk, names, whom)
        elif step == "mask":
            world.mask(talk, names, whom)
        elif step == "confirm":
            world.confirm(talk, names, whom)
        else:
            world.reveal(talk, names, whom)
        self.check()

    @precondition(lambda self: self.talks)
    @rule(which=st.integers(0, 9), honest_until=st.sampled_from(STEPS[1:]), split=SOME)
    def two_views(self, which: int, honest_until: str, split: int) -> None:
        """A session in which one group is told other things from some step on."""
        world, talk = self.world, Talk(CALLS[which % len(CALLS)])
        everybody = list(range(world.count))
        left, right = chosen(split, everybody), [party for party in everybody if not split >> party & 1]
        world.keys_of(talk, everybody)
        for step, act in (("shares", world.share), ("open", world.open), ("mask", world.mask), ("confirm", world.confirm)):
            if STEPS.index(step) < STEPS.index(honest_until):
                act(talk, everybody)
            else:
                for group in (left, right):
                    act(talk, sorted({*group, *everybody[:3]}), group)
        for group in (everybody, left, right):
            world.reveal(talk, group, everybody)
        self.check()

    @precondition(lambda self: self.world.sent)
    @rule(which=st.integers(0, 10**6), other=st.integers(0, 10**6), mix=st.sampled_from(("repeat", "session", "call")))
    def replay(self, which: int, other: int, mix: str) -> None:
        """A message from before again: as it was, under the number of another session, or for another call."""
        party, message = self.world.sent[which % len(self.world.sent)]
        another = self.world.sent[other % len(self.world.sent)][1]
        round, common, secure = message.round, dict(message.common), message.secure
        if mix == "call":
            round = 3 - round
        elif mix == "session":
            number = dict(another.secure or another.common)["session"]
            if secure is not None:
                secure = {**secure, "session": number}
            else:
                common["session"] = number
        self.world.deliver(party, Message(message.verb, round, message.call, True, [party], common, message.each, secure))
        self.check()

    def check(self) -> None:
        """What the server can work out is never about fewer parties than the minimum."""
        held = (len(self.world.replies), len(self.world.kinds), len(self.world.both))
        if held != self.checked:
            assert self.world.opened_below_the_minimum() == ""
            self.checked = held

    def teardown(self) -> None:
        """Take the disks away."""
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)


def play(machine: type[Replay], examples: int, steps: int) -> None:
    """Games of a given length, a given number of them."""
    game = settings(
        max_examples=examples,
        stateful_step_count=steps,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # making a lost game shorter would take minutes
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(machine, settings=game)  # type: ignore[no-untyped-call]


def test_no_order_of_events_opens_a_reply() -> None:
    """Small games."""
    play(Replay, 40, 18)


@pytest.mark.full
def test_no_order_of_events_opens_a_reply_in_many_games() -> None:
    """Longer games, and many of them."""
    play(Replay, 600, 30)


def test_the_game_is_lost_without_the_record_of_totals() -> None:
    """Parties that open a call over two sets of parties: a few games are enough to see the difference."""

    class Lost(Replay):
        secrets = Careless

    with pytest.raises(AssertionError, match="can be isolated"):
        play(Lost, 40, 18)
