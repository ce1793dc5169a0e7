"""A cohort's side of secure totals: the verbs that are the steps of one, and what a masked reply requires.

They are functions of a cohort, which `Cohort` lists as its verbs; what the parties keep for them is in `cohort.secrets`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from atoll.errors import AtollError, PartyFailure, short
from atoll.federation.declarations import flag, secret
from atoll.federation.fields import Fields
from atoll.federation.messages import Message, verb
from atoll.privacy import masking
from atoll.privacy.identities import SIGNATURE_BYTES
from atoll.privacy.masking import ADVERT_PARTS, SECURE_STEPS, SEED_BYTES, SHARE_BYTES, Call
from atoll.privacy.secrets import Secrets
from atoll.privacy.sessions import Session

if TYPE_CHECKING:
    from atoll.federation.cohort import Cohort

SIGNATURE = secret(SIGNATURE_BYTES)


@verb(public=True, gives={"keys": secret(ADVERT_PARTS, 32), "signature": SIGNATURE, "settled": flag("parties")})
def secure_keys(cohort: Cohort, session: Tensor, total: str) -> Fields:
    """The first step of a secure total of the verb `total`; the fourth is the verb itself, masked."""
    message = _message(cohort)
    return secrets_of(cohort).keys(message.parties, _call(message, total), session)


@verb(public=True, gives=lambda case: {"shares": secret(case.length("users"), SHARE_BYTES)})
def secure_shares(cohort: Cohort, session: Tensor, users: Tensor, keys: Tensor, signatures: Tensor) -> Fields:
    """The second step: shares of the secrets, one for each party."""
    message = _message(cohort)
    return secrets_of(cohort).shares(message.parties, _call(message), session, users, keys, signatures)


@verb(public=True, gives=lambda case: {"opened": flag(case.length("dealers"))})
def secure_open(cohort: Cohort, session: Tensor, dealers: Tensor, shares: Tensor) -> Fields:
    """The third step: take the others' shares."""
    message = _message(cohort)
    return secrets_of(cohort).open(message.parties, _call(message), session, dealers, shares)


@verb(public=True, gives={"signature": SIGNATURE})
def secure_confirm(cohort: Cohort, session: Tensor, answered: Tensor) -> Fields:
    """The fifth step: sign who answered."""
    message = _message(cohort)
    return secrets_of(cohort).confirm(message.parties, _call(message), session, answered)


@verb(public=True, gives=lambda case: {"shares": secret(case.length("answered"), SEED_BYTES)})
def secure_reveal(cohort: Cohort, session: Tensor, answered: Tensor, signatures: Tensor) -> Fields:
    """The last step: one share of each party's secrets."""
    message = _message(cohort)
    return secrets_of(cohort).reveal(message.parties, _call(message), session, answered, signatures)


def enter_sessions(cohort: Cohort, message: Message, agreed: Mapping[str, Any]) -> list[Session]:
    """The sessions of a masked reply; refused unless all parties were sent the same arguments."""
    secrets, method = secrets_of(cohort), cohort.verb_named(message.verb)
    if message.verb in SECURE_STEPS:
        raise PartyFailure("refuses a total of the steps of secure totals")
    if odd := sorted(set(message.each) - set(getattr(method, "apart", ()))):
        raise PartyFailure(f"refuses {short(odd[0])!r} sent to it apart: in a secure total all parties must be sent the same")
    arguments = masking.arguments_digest(message.common, message.training, message.each)
    return secrets.enter(message.parties, _call(message, message.verb), arguments, **agreed)


def secrets_of(cohort: Cohort) -> Secrets:
    """What the parties keep for secure totals; refused where they were started without."""
    if cohort.secrets is None:
        raise AtollError("The server asks for a secure total, but this party was started without secure aggregation.")
    return cohort.secrets


def _message(cohort: Cohort) -> Message:
    assert cohort.message is not None
    return cohort.message


def _call(message: Message, total: str = "") -> Call:
    """Where in the run we are; the verb that is totaled is named in the first and in the fourth step only."""
    return Call(message.round, message.call, str(total))
