"""One party that sends nonsense in a secure total is named, and the others' sum is right; where that cannot be, it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_secure import EXTRA, PARTIES, assert_sum, federation, total

from atoll.errors import AtollError
from atoll.federation.cohort import Message
from atoll.federation.federation import Answer, Failure
from atoll.privacy import masking
from atoll.privacy.secrets import Secrets
from small import Wrapper

LIAR = 4
OTHERS = [party for party in range(PARTIES) if party != LIAR]


class Tampered(Wrapper):
    """One party's reply in one step is another one."""

    def __init__(self, engine: Any, step: str, change: Callable[[dict[str, torch.Tensor]], None], party: int = LIAR) -> None:
        super().__init__(engine)
        self.step, self.change, self.party = step, change, party

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Change the row of the party in place."""
        results = self.engine.deliver(message)
        for result in results:
            if message.verb == self.step and isinstance(result, Answer) and self.party in result.parties:
                place = result.parties.index(self.party)
                self.change({name: value[place] for name, value in result.fields.items()})
        return results


def flip(name: str, *where: Any) -> Callable[[dict[str, torch.Tensor]], None]:
    """One bit of one byte is another."""

    def change(fields: dict[str, torch.Tensor]) -> None:
        fields[name][where] ^= 1

    return change


def low_order(fields: dict[str, torch.Tensor]) -> None:
    """A public key with which no secret can be agreed."""
    fields["keys"][0] = 0


def tampered(step: str, change: Callable[[dict[str, torch.Tensor]], None], fatal: bool = False) -> Any:
    """Six parties, one of which lies in a step."""
    found = federation([[party] for party in range(PARTIES)], wrap=lambda engine: Tampered(engine, step, change))
    found.missing_is_fatal = fatal
    return found


@pytest.mark.parametrize(
    ("step", "change", "reason", "counted"),
    [
        ("secure_keys", flip("keys", 1, 3), "sent keys that it did not sign", OTHERS),
        ("secure_keys", flip("signature", 5), "sent keys that it did not sign", OTHERS),
        ("secure_keys", low_order, "sent keys that it did not sign", OTHERS),
        ("secure_shares", flip("shares", slice(None), 0), "dealt shares that the others could not open", OTHERS),
        ("secure_shares", flip("shares", slice(0, 2), 60), "dealt shares that the others could not open", OTHERS),
        ("secure_confirm", flip("signature", 5), "signed something else than who answered", list(range(PARTIES))),
        ("secure_reveal", flip("shares", 2, 7), "sent a wrong share of party 2's masks", list(range(PARTIES))),
    ],
)
def test_who_sends_nonsense_is_named_and_the_sum_is_right(step: str, change: Any, reason: str, counted: list[int]) -> None:
    """By default the round goes on; with on_missing=stop the run stops, by name."""
    found = tampered(step, change)
    assert_sum(total(found), counted)
    assert found.missing == {LIAR: reason}
    with pytest.raises(AtollError, match=rf"Round 1: 'give' stopped the run \(party {LIAR}: {reason}\)"):
        total(tampered(step, change, fatal=True))


def test_one_damaged_share_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It hurts nobody: the others' shares are enough. Who of the two is wrong cannot be told, so both are named."""
    found = tampered("secure_shares", flip("shares", 1, 0))
    assert_sum(total(found), list(range(PARTIES)))
    assert found.missing == {}
    assert "party 1 could not open the share of party 4" in caplog.text


def test_a_false_complaint_hurts_nobody() -> None:
    """A party that says it could open nobody's share is one voice."""

    def complain(fields: dict[str, torch.Tensor]) -> None:
        fields["opened"][:] = False

    found = tampered("secure_open", complain)
    assert_sum(total(found), list(range(PARTIES)))


def test_keys_of_low_order_are_refused_even_if_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party that signs a useless key is left out by the server; without that the others refuse it."""
    found = tampered("secure_keys", low_order)
    found.identities = None  # the server does not look at signatures
    monkeypatch.setattr(masking, "usable", lambda key: True)
    with pytest.raises(AtollError, match=r"no party answered 'secure_shares' \(party 0: refuses keys .* not signed by party 4"):
        total(found)
    monkeypatch.undo()
    found = tampered("secure_keys", low_order)
    found.identities = None
    assert_sum(total(found), OTHERS)
    assert found.missing == {LIAR: "sent keys that cannot be used"}


def test_a_dealer_is_bound_to_what_is_in_its_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes that open, but hold other shares than the dealer committed to, are as good as damaged."""
    deal, bind = Secrets._deal, masking.share_commitment

    def crooked(self: Secrets, party: int, own: Any) -> list[bytes]:
        if party == LIAR:
            monkeypatch.setattr(masking, "share_commitment", lambda *anything: bytes(32))
        try:
            return deal(self, party, own)
        finally:
            monkeypatch.setattr(masking, "share_commitment", bind)

    monkeypatch.setattr(Secrets, "_deal", crooked)
    found = federation([[party] for party in range(PARTIES)])
    assert_sum(total(found), OTHERS)
    assert found.missing == {LIAR: "dealt shares that the others could not open"}


def test_shares_that_do_not_fit_together_are_never_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dealer bound to shares of no single polynomial is found out when they are put together; the sum is not told."""
    split, dealt = masking.split, []

    def crooked(seed: bytes, needed: int, count: int) -> list[bytes]:
        dealt.append(seed)
        return [bytes([place] * 16) for place in range(1, count + 1)] if len(dealt) in (1, 2) else split(seed, needed, count)

    monkeypatch.setattr(masking, "split", crooked)
    with pytest.raises(AtollError, match="Round 1: party 0 dealt shares that do not fit together, so that 'give' cannot be"):
        total(federation([[party] for party in range(PARTIES)]))


def test_whole_numbers_that_would_wrap_are_refused() -> None:
    """A sum beyond 63 bits is refused at the party, by party and field; one that fits is exact, in int64 as without masks."""
    for number, fits in ((2**62 // PARTIES - 1, True), (2**62 // PARTIES, False), (-(2**63), False)):
        extra = torch.zeros(PARTIES, 1, dtype=torch.int64)
        extra[3] = number
        found = federation([[party] for party in range(PARTIES)])
        sums = found.total("give", base=torch.zeros(3), each={"extra": extra})
        assert int(sums["extra"]) == (number if fits else 0)
        assert found.missing == ({} if fits else {3: "field 'extra' of party 3 is not finite, or too large for a secure total"})
    narrow = torch.full((PARTIES, 1), 100, dtype=torch.int8)
    plain, secure = (
        federation(secure=secure).total("give", base=torch.zeros(3), each={"extra": narrow})["extra"] for secure in (False, True)
    )
    assert plain.dtype == secure.dtype == torch.int64
    assert torch.equal(plain, secure)


def test_a_party_names_the_one_that_does_not_fit_among_those_of_its_site() -> None:
    """Several parties in one process: the sentence says which."""
    broken = EXTRA.clone()
    broken[4, 1] = float("nan")
    with pytest.raises(AtollError, match="field 'extra' of party 4 is not finite"):
        federation().total("give", base=torch.zeros(3), each={"extra": broken})


def test_a_session_that_is_not_known_does_not_run_the_verb() -> None:
    """A repeated masked step must not train again: it is refused before the verb is called."""
    found = federation()
    total(found)
    secrets: Secrets = found.engine.cohorts[0].secrets  # type: ignore[attr-defined]
    session = masking.as_bytes(secrets.sessions[0].session)
    agreed = {"session": session, "users": masking.ids(range(PARTIES))}
    message = Message("give", 1, found.calls, True, range(PARTIES), {}, {"extra": EXTRA}, agreed)
    found.engine.cohorts[0].give = None  # type: ignore[attr-defined]
    (first, *_) = found.engine.deliver(message)
    assert isinstance(first, Failure)
    assert "refuses the step 'mask' of a secure total after 'reveal'" in first.reason
