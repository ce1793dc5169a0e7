"""What a lying server tries on a secure total: the parties refuse it. Where a check is left out, the attack is seen to work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lying import Talk, World, value

from atoll.privacy import masking
from atoll.privacy.masking import Call
from atoll.privacy.secrets import Secrets, Session

CALL = Call(1, 1, "reply")


def test_an_honest_session_tells_the_sum_and_nothing_else() -> None:
    """What follows from everything the server holds is one number: the sum over those who answered."""
    world = World(4)
    world.honest(CALL, range(4), [set(), set(), set(), {2}, set(), set()])
    ((combination, number),) = world.learned()
    assert {party for _, party in combination} == {0, 1, 3}
    assert number == sum(factor * value(party, 1) for (_, party), factor in combination.items())
    assert world.opened_below_the_minimum() == ""
    assert not world.refusals


class Careless(Secrets):
    """Parties without the record of opened totals."""

    def _require_same_parties(self, *anything: Any) -> None:
        pass


def test_a_drop_out_and_a_resume_do_not_give_the_difference(tmp_path: Any) -> None:
    """Attack 1: the same call over all and, after a crash of everybody, without one: the difference would be its reply."""
    for kind in (Careless, Secrets):
        world = World(4, tmp_path / kind.__name__, secrets=kind)
        assert world.honest(CALL, range(4)).revealed == [0, 1, 2, 3]
        for party in range(4):
            world.crash(party)
        talk = world.honest(CALL, range(4), [set(), set(), set(), {3}, set(), set()])
        if kind is Careless:
            assert world.opened_below_the_minimum() == "the replies of (0, 3) can be isolated"
        else:
            assert talk.revealed == []
            assert all("refuses to open this total over other parties" in text for text in world.refusals)
            assert world.opened_below_the_minimum() == ""
            again = world.honest(CALL, range(4))  # over the same parties it is the same sum, and welcome
            assert again.revealed == [0, 1, 2, 3]
            assert world.opened_below_the_minimum() == ""


def test_no_secret_survives_a_restart() -> None:
    """Attack 1: a party that was lost in between knows nothing of the session; its old shares cannot be asked for again."""
    world, talk = World(4), Talk(CALL)
    world.keys_of(talk, range(4))
    world.share(talk, range(4))
    world.open(talk, range(4))
    world.mask(talk, range(4))
    world.crash(2)
    world.confirm(talk, range(4))
    assert sorted(talk.confirmed) == [0, 1, 3]
    assert "does not know the session" in world.refusals[0]
    assert world.hosts[0].state() == {}  # nothing of it is in what a site saves


def test_every_box_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attack 1: no key of ChaCha20-Poly1305 encrypts twice, neither in a second session of the same call nor after a crash."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    derived: list[bytes] = []

    class Recording:
        """The cipher, and its key written down when it encrypts."""

        def __init__(self, key: bytes) -> None:
            self.key, self.cipher = key, ChaCha20Poly1305(key)

        def encrypt(self, *arguments: bytes) -> bytes:
            """Encrypt."""
            derived.append(self.key)
            return self.cipher.encrypt(*arguments)

        def decrypt(self, *arguments: bytes) -> bytes:
            """Decrypt."""
            return self.cipher.decrypt(*arguments)

    monkeypatch.setattr("cryptography.hazmat.primitives.ciphers.aead.ChaCha20Poly1305", Recording)
    world = World(3)
    session = Talk(CALL).session
    for _ in range(2):
        talk = Talk(CALL, session)  # the server repeats its own number
        world.keys_of(talk, range(3))
        world.share(talk, range(3))
        world.crash(1)
    assert len(derived) == len(set(derived)) == 18


@pytest.mark.parametrize("step", ["users", "dealers", "masks", "answered"])
def test_a_victim_alone_is_refused(step: str) -> None:
    """Attacks 2 and 3: lists of users with the victim alone, or with too few beside it, in any step."""
    for few in ([2], [1, 2]):
        world, talk = World(4), Talk(CALL)
        world.keys_of(talk, range(4))
        world.share(talk, few if step == "users" else range(4), [2])
        if step != "users":
            world.share(talk, range(4), [0, 1, 3])
            world.open(talk, few if step == "dealers" else range(4), few if step == "dealers" else None)
        if step in ("masks", "answered"):
            world.mask(talk, few if step == "masks" else range(4), few if step == "masks" else None)
        if step == "answered":
            world.confirm(talk, few, few)
            assert not talk.confirmed
        assert len(world.refusals) == (1 if step == "users" else len(few))
        assert all("at least 3 must take part" in text for text in world.refusals)
        assert world.opened_below_the_minimum() == ""


def test_four_steps_with_one_party_are_refused_at_the_first() -> None:
    """Attack 3: the victim in a session of its own."""
    world, talk = World(3), Talk(CALL)
    world.keys_of(talk, [1])
    world.share(talk, [1])
    assert world.refusals == ["refuses a secure total of 1 parties: at least 3 must take part"]


def test_a_session_is_over_when_another_one_begins() -> None:
    """Attack 4: reveal A, B, A. Each session is known until the next, and each step is taken once."""
    world = World(3)
    first, second = world.honest(CALL, range(3)), world.honest(Call(2, 1, "reply"), range(3))
    assert first.revealed == second.revealed == [0, 1, 2]
    refused = world.reveal(first, [0, 1], [0, 1, 2])
    assert len(refused) == 3
    assert all("does not know the session" in text for text in refused)
    refused = world.reveal(second, [0, 1], [0, 1, 2])
    assert all("each comes once, in order" in text for text in refused)
    assert world.opened_below_the_minimum() == ""


class Forgetful(Secrets):
    """Parties that take every step as often as asked."""

    def _advance(self, step: str, parties: Any, call: Call, session: torch.Tensor) -> list[Session]:
        return [self.sessions[party] for party in parties]


def test_one_session_hides_one_reply() -> None:
    """Attack 5: the same masks on two replies would give their exact difference."""
    for kind in (Forgetful, Secrets):
        world, talk = World(3, secrets=kind), Talk(CALL)
        world.keys_of(talk, range(3))
        world.share(talk, range(3))
        world.open(talk, range(3))
        world.mask(talk, range(3))
        talk.call = Call(1, 1, "other")
        world.mask(talk, range(3))
        if kind is Forgetful:
            assert world.opened_below_the_minimum()
        else:
            assert len(world.refusals) == 3
            assert all("session of one secure total for another" in text for text in world.refusals)
            assert world.opened_below_the_minimum() == ""
            talk.call = CALL
            world.mask(talk, range(3))
            assert all("each comes once, in order" in text for text in world.refusals[3:])


def test_the_server_cannot_put_its_own_keys_in_a_partys_place() -> None:
    """Attack 6: another advert, a signature of somebody else, one for another session: refused by all, with the name."""
    world = World(4)
    for lie in ("advert", "signature", "old", "own"):
        talk, old = Talk(CALL), Talk(CALL)
        world.keys_of(old, range(4))
        world.keys_of(talk, range(4))
        if lie == "advert":
            talk.adverts[3] = torch.randint(0, 256, (4, 32), dtype=torch.uint8)
        elif lie == "signature":
            talk.signatures[3] = talk.signatures[2]
        elif lie == "old":
            talk.adverts[3], talk.signatures[3] = old.adverts[3], old.signatures[3]
        else:
            talk.adverts[0], talk.signatures[0] = talk.adverts[1], talk.signatures[1]
        world.refusals.clear()
        world.share(talk, range(4))
        assert talk.shares == {}
        blamed = 0 if lie == "own" else 3
        assert world.refusals == [f"refuses keys that are not signed by party {blamed}"] * 4


def test_a_party_looks_for_its_own_keys_in_the_list() -> None:
    """Attack 6: keys that the party did sign, in an earlier session under the same number."""
    world, session = World(3), Talk(CALL).session
    old, talk = Talk(CALL, session), Talk(CALL, session)
    world.keys_of(old, range(3))
    world.keys_of(talk, range(3))
    talk.adverts[1], talk.signatures[1] = old.adverts[1], old.signatures[1]
    world.share(talk, range(3))
    assert sorted(talk.shares) == [0, 2]
    assert world.refusals == ["refuses a list of keys in which its own are not those it sent"]


def test_parties_that_were_told_different_things_do_not_open_each_other() -> None:
    """The server shows two groups other lists of who answered, to get both kinds of shares: too few sign the same list."""
    world, talk = World(6), Talk(CALL)
    world.keys_of(talk, range(6))
    world.share(talk, range(6))
    world.open(talk, range(6))
    world.mask(talk, range(6))
    world.confirm(talk, [0, 1, 2, 3, 4, 5], [0, 1, 2])
    world.confirm(talk, [0, 1, 3, 4, 5], [3, 4, 5])
    refused = world.reveal(talk, [0, 1, 2, 3, 4, 5], [0, 1, 2]) + world.reveal(talk, [0, 1, 3, 4, 5], [3, 4, 5])
    assert refused == ["refuses to reveal shares: 3 parties confirmed who answered, 5 must"] * 6
    assert world.opened_below_the_minimum() == ""


def test_a_party_reveals_for_those_it_confirmed() -> None:
    """One list confirmed, another one in the last step."""
    world, talk = World(6), Talk(CALL)
    world.keys_of(talk, range(6))
    world.share(talk, range(6))
    world.open(talk, range(6))
    world.mask(talk, range(6))
    world.confirm(talk, range(6))
    assert world.reveal(talk, [0, 1, 3, 4, 5], [0]) == ["refuses to reveal shares for other parties than it confirmed"]


def test_signatures_of_strangers_do_not_count() -> None:
    """Signatures of those not in the sum, repeated ones and made-up ones are not parties that confirmed."""
    world, talk = World(6), Talk(CALL)
    world.keys_of(talk, range(6))
    world.share(talk, range(6))
    world.open(talk, range(6))
    world.mask(talk, range(6))
    world.confirm(talk, range(6), [0, 1, 2, 3])
    talk.confirmed[4] = talk.confirmed[3]
    talk.confirmed[5] = torch.randint(1, 256, (64,), dtype=torch.uint8)
    assert world.reveal(talk, range(6), [0]) == ["refuses to reveal shares: 4 parties confirmed who answered, 5 must"]


def test_other_user_lists_do_not_decrypt() -> None:
    """Two parties that were sent other lists of keys cannot open each other's shares: the list is in the cipher's key."""
    world, talk = World(5), Talk(CALL)
    world.keys_of(talk, range(5))
    world.share(talk, [0, 1, 2, 3], [0])
    world.share(talk, range(5), [1, 2, 3, 4])
    column = talk.users.index(1)
    talk.shares[0] = torch.cat([talk.shares[0], talk.shares[0][:1]])  # its four columns, for a list of five
    mine = torch.stack([talk.shares[dealer][column] for dealer in range(5)])[None]
    common = {"session": masking.as_bytes(talk.session), "dealers": masking.ids(range(5))}
    reply = world.send(1, "secure_open", CALL, common, {"shares": mine})
    assert reply["opened"].tolist() == [[False, True, True, True, True]]


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("session", torch.zeros(3, dtype=torch.uint8)),
        ("session", torch.zeros(16)),
        ("users", torch.tensor([0, 1, 1, 2])),
        ("users", torch.tensor([2, 1, 0])),
        ("users", torch.tensor([0, 1, 2, 99])),
        ("users", torch.tensor([-1, 0, 1, 2])),
        ("users", torch.tensor([0.0, 1.0, 2.0])),
        ("keys", torch.zeros(3, 4, 31, dtype=torch.uint8)),
        ("signatures", torch.zeros(3, 64)),
    ],
)
def test_malformed_lists_are_refused(field: str, bad: torch.Tensor) -> None:
    """Doubled, unordered, unknown numbers, other shapes and types: one sentence each, and nothing is dealt."""
    world, talk = World(3), Talk(CALL)
    world.keys_of(talk, range(3))
    common = {
        "session": masking.as_bytes(talk.session),
        "users": masking.ids(range(3)),
        "keys": torch.stack([talk.adverts[user] for user in range(3)]),
        "signatures": torch.stack([talk.signatures[user] for user in range(3)]),
    }
    rows = len(bad) if field == "users" else 3  # so that nothing else is wrong
    for name in ("keys", "signatures"):
        common[name] = torch.cat([common[name], common[name]])[:rows]
    reason = str(world.send(0, "secure_shares", CALL, common | {field: bad}))
    assert reason.startswith("refuses a list of parties that" if field == "users" else f"refuses a field {field!r} that")


@pytest.mark.parametrize("step", ["dealers", "masks"])
@pytest.mark.parametrize("listed", [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4], [0, 1, 2]])
def test_later_lists_are_part_of_earlier_ones(step: str, listed: list[int]) -> None:
    """Somebody who advertised nothing, a list without the party itself, or fewer than the threshold: refused."""
    world, talk = World(6), Talk(CALL)
    world.keys_of(talk, range(5))
    world.share(talk, range(5))
    talk.shares[5] = talk.shares[4]
    world.open(talk, listed if step == "dealers" else range(5), [0])
    if step == "masks":
        world.mask(talk, listed, [0])
    few = "refuses a secure total of 3 parties: at least 4 must take part"
    assert world.refusals == [few if len(listed) == 3 else "refuses a list of parties that does not match earlier messages"]


def test_who_is_not_in_the_sum_does_not_confirm_it() -> None:
    """A party that helps the server signs a list it is not in: it does not count."""
    world, talk = World(6), Talk(CALL)
    world.keys_of(talk, range(6))
    world.share(talk, range(6))
    world.open(talk, range(6))
    world.mask(talk, range(6))
    inside = [0, 1, 2, 3, 4]
    world.confirm(talk, inside, [0, 1, 2, 3])
    transcript = world.hosts[0].secrets.sessions[0].transcript  # type: ignore[union-attr]
    signature = world.keys[5].sign(masking.answered_statement(transcript, 5, inside))
    talk.confirmed[5] = masking.as_bytes(signature)
    assert world.reveal(talk, inside, [0]) == ["refuses to reveal shares: 4 parties confirmed who answered, 5 must"]
