"""What the parties of one run begin with where another run's parties have trained before: their memory, by party."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atoll import wire
from atoll.federation.cohort import PARTY, STORED_FEATURE, Cohort
from atoll.federation.fields import put, take


def adopt(cohorts: Sequence[Cohort], trained: Mapping[str, Any], before: Tensor | None) -> list[str]:
    """Give the parties what those of another run remembered; the names of what was given.

    Parameters:
        cohorts: The parties, in party order; none where they are elsewhere.
        trained: What `Cohort.trained` gave in the other run, all parties' rows in party order.
        before: (P,) the row of each party in it, −1 for a party that is new; None where the data is the same, and so every row
            of it fits. Otherwise only what is kept per party does, and where a party's weights are kept by its features
            (`STORED_FEATURE`), the rest of them is not given either.

    Raises:
        ValueError: A piece of it has another form here.
    """
    memory = cohorts[0].memory if cohorts else {}
    if before is None:
        names = [name for name in trained if name in memory]
    elif STORED_FEATURE in memory.values() or not bool((before >= 0).any()):
        return []
    else:
        about_graphs = cohorts[0].graph_memory if cohorts else frozenset()
        names = [name for name in trained if memory.get(name) == PARTY and name not in about_graphs]
    done = dict.fromkeys(names, 0)  # rows that the cohorts before have
    for cohort in cohorts:
        held = cohort.trained()
        for name in names:
            check_form(f"the parties' {name}", trained[name], held[name], rows=True)
            length = _length(held[name])
            if before is None:
                here, source = torch.arange(length), torch.arange(done[name], done[name] + length)
            else:
                source = before[torch.tensor(cohort.parties.numbers)]
                here = (source >= 0).nonzero()[:, 0]
                source = source[here]
            done[name] += length
            with torch.no_grad():
                held[name] = put(held[name], here, take(trained[name], source))
        cohort.restore({name: held[name] for name in names})
    return names


def check_form(what: str, trained: Any, here: Any, *, rows: bool = False) -> None:
    """Refuse values of other names, shapes or types than those here; with `rows`, there may be more or fewer of them."""
    if rows and isinstance(trained, list) and isinstance(here, list):  # one tensor per party, of as many parties as there are
        trained, here = trained[:1], here[:1]
    left, right = (dict(wire.leaves({"": value})) for value in (trained, here))
    if odd := sorted(left.keys() ^ right.keys()):
        name = odd[0].lstrip("/") or "value"
        raise ValueError(f"{what} had no {name}" if odd[0] in right else f"{what} had {name}, which it does not have here")
    for name, value in left.items():
        if isinstance(value, Tensor) != isinstance(right[name], Tensor):
            raise ValueError(f"{what} {name.lstrip('/')}".strip() + " was of another type")
        if not isinstance(value, Tensor):
            continue
        skip = int(rows)
        if value.shape[skip:] != right[name].shape[skip:] or value.dtype != right[name].dtype:
            of = f"{what} {name.lstrip('/')}".strip()
            raise ValueError(f"{of} would be {tuple(right[name].shape)[skip:]} and was {tuple(value.shape)[skip:]}")


def _length(value: Any) -> int:
    """Rows of a piece of memory."""
    if isinstance(value, Mapping):
        return _length(next(iter(value.values())))
    return len(value)
