"""Round memory: what a cohort keeps within one round, or one evaluation, and clears when the next begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atoll.federation.fields import put, take
from atoll.federation.memory import restore_attributes, rows_of, state_of

if TYPE_CHECKING:
    from atoll.federation.cohort import Cohort


def enter_phase(cohort: Cohort, phase: int) -> None:
    """Clear the round memory of the parties for which another round, or an evaluation, begins."""
    if cohort.entered == phase:
        return
    current, cohort.entered = cohort.phase == phase, phase
    if bool(current.all()):
        return
    kept = {name: state_of(getattr(cohort, name)) for name in cohort.round_memory} if bool(current.any()) else {}
    cohort.clear_round()
    if kept:
        parties = current.nonzero()[:, 0].cpu().numpy()
        rows = {name: rows_of(parties, cohort.round_memory[name], cohort.graph) for name in kept}
        cleared = {name: state_of(getattr(cohort, name)) for name in kept}
        restore_attributes(cohort, {name: put(cleared[name], rows[name], take(kept[name], rows[name])) for name in kept})
    cohort.phase = torch.full_like(cohort.phase, phase)
