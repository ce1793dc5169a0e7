"""`class_weight=balanced`: the parties' class counts are added up before the first round, and every party receives the weights.

Both verbs are functions of a cohort; `Cohort` lists them among its own. The weights belong to the parties' memory, so they are
saved and restored with it; the server keeps them in its checkpoints.

Payload bytes, once: up 8·C per party, down 8·C. The server sees the number of training nodes of each class in the federation (of
each party, unless totals are secure).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from atoll.device import precise
from atoll.errors import AtollError, PartyFailure
from atoll.federation.declarations import real, whole
from atoll.federation.fields import Fields
from atoll.federation.memory import PARTY
from atoll.federation.messages import Message, verb
from atoll.privacy.masking import SECURE_STEPS
from atoll.tasks.class_weights import balanced
from atoll.tasks.tallies import tally
from atoll.tasks.task import ClassTask

if TYPE_CHECKING:
    from atoll.federation.cohort import Cohort
    from atoll.federation.federation import Federation

MEMORY = "class_weights"  # the attribute of a cohort: (P, C), NaN until they are set
COUNTED = "_classes_counted_in"  # the attribute of a cohort, once it has counted: round and call; it is not memory
VERBS = ("count_classes", "set_class_weights")
UNKNOWN = "does not know the class weights, after a restart without a save"


@verb(takes={}, gives={"counts": whole("classes", high="max_weight")})
def count_classes(cohort: Cohort) -> Fields:
    """(P, C) labeled training nodes of each class; answered to one call, before the weights are known."""
    _require_balanced(cohort)
    call = (cohort.message.round, cohort.message.call) if cohort.message is not None else None
    if getattr(cohort, COUNTED, call) != call or not bool(cohort.class_weights.isnan().any()):
        raise AtollError("the classes are counted once in a run, before the first round.")
    setattr(cohort, COUNTED, call)
    graph = cohort.graph
    rows = (graph.train & (graph.y >= 0)).nonzero()[:, 0]
    return {"counts": tally(graph.owner[rows], graph.y[rows][:, None], graph.parties, (graph.num_classes,))}


@verb(takes={"weights": real("classes", low=0, double=True)}, gives={})
def set_class_weights(cohort: Cohort, weights: Tensor) -> None:
    """Keep what each class weighs in the loss, from now on."""
    _require_balanced(cohort)
    known, new = cohort.class_weights, precise(weights).expand(cohort.graph.parties, -1)
    if not bool((known.isnan() | (known == new)).all()):
        raise AtollError("the class weights of a run do not change.")
    cohort.class_weights = new.clone()


def _require_balanced(cohort: Cohort) -> None:
    """Refuse what only `class_weight=balanced` needs; the configuration does not let it be combined with noise."""
    if MEMORY not in cohort.memory:
        raise AtollError("the run's class weights do not follow from class counts.")


def declare(cohort: Cohort) -> None:
    """Add the weights to a cohort's memory, unknown yet, where its task needs them."""
    if cohort.task.balanced:
        cohort.memory = {**cohort.memory, MEMORY: PARTY}  # type: ignore[misc]
        unknown = torch.full((cohort.graph.parties, cohort.schema.classes), torch.nan, device=cohort.device)
        cohort.class_weights = precise(unknown)


def apply(cohort: Cohort, message: Message) -> None:
    """Apply the class weights in the parties' memory to the task's loss, before a training message is answered."""
    if MEMORY not in cohort.memory or not message.training or message.verb in (*SECURE_STEPS, *VERBS):
        return
    if bool(cohort.class_weights.isnan().any()):
        raise PartyFailure(UNKNOWN)
    task = cast("ClassTask", cohort.task)
    cohort.task = task.weighted(tuple(cohort.class_weights[0].tolist()))


def agree(federation: Federation) -> None:
    """Before the first round: count the classes of all parties, and send them the weights."""
    if not needed(federation):
        return
    counts = federation.total("count_classes")["counts"]
    if not float(counts.sum()) > 0:
        raise AtollError("class_weight=balanced found no labeled training node; label some, or leave it out.")
    restore(federation, balanced(counts).tolist())
    tell(federation)
    if federation.missing:
        raise AtollError(
            f"class_weight=balanced needs the class counts of every party ({federation.reasons(federation.missing)}); "
            "start again when all are here, or give the weights: class_weight=1,5."
        )


def needed(federation: Federation) -> bool:
    """Whether the run's weights follow from class counts."""
    return federation.task.balanced


def restore(federation: Federation, weights: Sequence[float]) -> None:
    """The server's own task with these weights, if they follow from class counts: new ones, or a checkpoint's."""
    if not needed(federation):
        return
    if len(weights) != federation.schema.classes:
        raise AtollError("The checkpoint has lost the class weights of class_weight=balanced; start a new run.")
    task = cast("ClassTask", federation.task)
    federation.task = task.weighted(tuple(map(float, weights)))


def state(federation: Federation) -> list[float]:
    """For a checkpoint: the weights that were agreed; empty where none were."""
    return list(cast("ClassTask", federation.task).class_weights) if needed(federation) else []


def lost(federation: Federation) -> list[int]:
    """Parties that failed in this round because they lost the weights."""
    return [party for party, reason in federation.missing.items() if UNKNOWN in reason]


def tell(federation: Federation, to: Sequence[int] | None = None) -> None:
    """Send the weights to all parties, or to those that lost them."""
    if to is None or len(to):
        federation.tell("set_class_weights", to=to, weights=torch.tensor(state(federation), dtype=torch.float64))
