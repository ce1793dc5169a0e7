"""What all parties agree on before the first round, where the task needs it: class weights, the scale of values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.federation import class_counts, value_scale
from atoll.federation.messages import Message

if TYPE_CHECKING:
    from atoll.federation.cohort import Cohort
    from atoll.federation.federation import Federation

AGREED: tuple[Any, ...] = (class_counts, value_scale)
MEMORIES = tuple(each.MEMORY for each in AGREED)  # attributes of a cohort that only training needs
VERBS = tuple(name for each in AGREED for name in each.VERBS)
Lost = list[tuple[Any, list[int]]]


def declare(cohort: Cohort) -> None:
    """Add to a cohort's memory what its task needs."""
    for each in AGREED:
        each.declare(cohort)


def apply(cohort: Cohort, message: Message) -> None:
    """Apply what was agreed to the task, before a message is answered."""
    for each in AGREED:
        each.apply(cohort, message)


def agree(federation: Federation) -> None:
    """Before the first round."""
    for each in AGREED:
        each.agree(federation)


def restore(federation: Federation, saved: dict[str, Any]) -> None:
    """What a checkpoint holds."""
    for each in AGREED:
        each.restore(federation, saved.get(each.MEMORY, []))


def state(federation: Federation) -> dict[str, list[float]]:
    """What a checkpoint is to hold."""
    return {each.MEMORY: values for each in AGREED if (values := each.state(federation))}


def lost(federation: Federation) -> Lost:
    """Parties that failed in this round because they lost what was agreed."""
    return [(each, each.lost(federation)) for each in AGREED]


def tell(federation: Federation, lost: Lost) -> None:
    """Tell them again."""
    for each, parties in lost:
        each.tell(federation, parties)
