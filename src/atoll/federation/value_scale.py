"""`value_scale=federation`: sums of the parties' training values are added up before the first round, and every party receives
each value's mean and standard deviation, by which values are fitted.

Both verbs are functions of a cohort; `Cohort` lists them among its own. The scale belongs to the parties' memory, so it is saved
and restored with it; the server keeps it in its checkpoints.

Payload bytes, once, with T values: up 24·T per party, down 16·T. The server sees, of the federation's training items (of each
party's, unless totals are secure), how many known values there are, their sum and their sum of squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from atoll.errors import AtollError, PartyFailure
from atoll.federation.declarations import MAX_REAL, real
from atoll.federation.fields import Fields
from atoll.federation.memory import PARTY
from atoll.federation.messages import Message, verb
from atoll.privacy.masking import SECURE_STEPS
from atoll.tasks.regression import fitted_scale
from atoll.tasks.targets import per_target, targets_of
from atoll.tasks.task import ScaledTask

if TYPE_CHECKING:
    from atoll.federation.cohort import Cohort
    from atoll.federation.federation import Federation

MEMORY = "scale_of_values"  # the attribute of a cohort: (P, T, 2), NaN until it is set
SUMMED = "_values_summed_in"  # the attribute of a cohort, once it has answered: round and call; it is not memory
VERBS = ("sum_values", "set_value_scale")
UNKNOWN = "does not know the scale of the values, after a restart without a save"


@verb(takes={}, gives={"sums": real("classes", 3, low=-MAX_REAL, double=True)})
def sum_values(cohort: Cohort) -> Fields:
    """(P, T, 3) known training values, their sum and that of their squares; answered to one call, before the scale is known."""
    _require_scaled(cohort)
    call = (cohort.message.round, cohort.message.call) if cohort.message is not None else None
    if getattr(cohort, SUMMED, call) != call or not bool(cohort.scale_of_values.isnan().any()):
        raise AtollError("the values are summed once in a run, before the first round.")
    setattr(cohort, SUMMED, call)
    values = targets_of(cohort.graph).double()
    known = cohort.graph.train[:, None] & ~values.isnan()
    return {"sums": per_target([values, values.square()], known, cohort.graph)}


@verb(takes={"scale": real("classes", 2, double=True)}, gives={})
def set_value_scale(cohort: Cohort, scale: Tensor) -> None:
    """Keep each value's mean and deviation, from now on."""
    _require_scaled(cohort)
    if not bool((scale[..., 1] > 0).all()):
        raise AtollError("a deviation of the values' scale is not above 0.")
    known, new = cohort.scale_of_values, scale.double().expand(cohort.graph.parties, -1, -1)
    if not bool((known.isnan() | (known == new)).all()):
        raise AtollError("the scale of a run's values does not change.")
    cohort.scale_of_values = new.clone()


def _require_scaled(cohort: Cohort) -> None:
    """Refuse what only `value_scale=federation` needs; the configuration does not let it be combined with noise."""
    if MEMORY not in cohort.memory:
        raise AtollError("the run's values are not scaled by the federation's.")


def declare(cohort: Cohort) -> None:
    """Add the scale to a cohort's memory, unknown yet, where its task needs it."""
    if cohort.task.by_federation:
        cohort.memory = {**cohort.memory, MEMORY: PARTY}  # type: ignore[misc]
        shape = (cohort.graph.parties, cohort.schema.classes, 2)
        cohort.scale_of_values = torch.full(shape, torch.nan, dtype=torch.float64, device=cohort.device)


def apply(cohort: Cohort, message: Message) -> None:
    """Apply the scale in the parties' memory to the task, before a message is answered."""
    if MEMORY not in cohort.memory or message.verb in (*SECURE_STEPS, *VERBS):
        return
    if bool(cohort.scale_of_values.isnan().any()):
        if not message.training:
            return  # a model without its scale, to predict with: whoever asks knows it
        raise PartyFailure(UNKNOWN)
    task = cast("ScaledTask", cohort.task)
    cohort.task = task.scaled(cohort.scale_of_values[0].tolist())


def agree(federation: Federation) -> None:
    """Before the first round: sum the training values of all parties, and send them the scale."""
    if not needed(federation):
        return
    sums = federation.total("sum_values")["sums"]
    restore(federation, [number for pair in fitted_scale(sums) for number in pair])
    tell(federation)
    if federation.missing:
        raise AtollError(
            f"value_scale=federation needs the sums of every party ({federation.reasons(federation.missing)}); "
            "start again when all are here, or give the scale: value_scale=7.5:2."
        )


def needed(federation: Federation) -> bool:
    """Whether the scale of the values follows from the parties' sums."""
    return federation.task.by_federation


def restore(federation: Federation, scale: Sequence[float]) -> None:
    """The server's own task with this scale (mean, deviation, mean, …), if it follows from sums: new, or a checkpoint's."""
    if not needed(federation):
        return
    if len(scale) != 2 * federation.schema.classes:
        raise AtollError("The checkpoint has lost the scale of value_scale=federation; start a new run.")
    task = cast("ScaledTask", federation.task)
    federation.task = task.scaled(list(zip(scale[::2], scale[1::2], strict=True)))


def state(federation: Federation) -> list[float]:
    """For a checkpoint: the scale that was agreed; empty where none was."""
    scale = cast("ScaledTask", federation.task).scale if needed(federation) else ()
    return [number for pair in scale for number in pair]


def lost(federation: Federation) -> list[int]:
    """Parties that failed in this round because they lost the scale."""
    return [party for party, reason in federation.missing.items() if UNKNOWN in reason]


def tell(federation: Federation, to: Sequence[int] | None = None) -> None:
    """Send the scale to all parties, or to those that lost it."""
    if to is None or len(to):
        scale = torch.tensor(state(federation), dtype=torch.float64).view(-1, 2)
        federation.tell("set_value_scale", to=to, scale=scale)
