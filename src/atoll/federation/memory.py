"""What a cohort remembers, as tensors: the axes memory is kept along, its state, and which rows of it are some parties'."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atoll.errors import AtollError, AtollWarning
from atoll.federation.fields import split_rows
from atoll.graphs.blocks import spans
from atoll.graphs.graph import Graph
from atoll.models.parameters import get_parameters, set_parameters

PARTY = "party"
"""First axis of a piece of memory: one row per party."""
NODE = "node"
"""First axis of a piece of memory: one row per node."""
TRAIN_ITEM = "train_item"
"""First axis of a piece of memory: one row per training item, such as a training node."""
STORED_FEATURE = "stored_feature"
"""First axis of a piece of memory: one row per non-zero feature."""
AXES = (PARTY, NODE, TRAIN_ITEM, STORED_FEATURE)
SHARED = "shared"
"""What a piece of the server's state is where it is the same for all data, whatever its shape; for `STATE_AXES`."""
FRESH = "fresh"
"""What a piece of the server's state is where every run begins with its own, such as an optimizer's; for `STATE_AXES`."""
PHASE = "phase"  # the name in a cohort's state of what its round memory belongs to


@runtime_checkable
class Stateful(Protocol):
    """Something whose whole state is a dict of tensors with a leading party axis: an optimizer."""

    def state(self) -> Mapping[str, Any]:
        """The current state."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to an earlier state."""
        ...


def declared_memory(module: str, memory: Any, round_memory: Mapping[str, str]) -> Mapping[str, str]:
    """The memory that a cohort's class declares, checked; a tuple of names, as before 0.2, is accepted with a warning."""
    if isinstance(memory, tuple):
        mapping = ", ".join(f"{name!r}: PARTY" for name in memory)
        warnings.warn(f"{module}: memory is a mapping now: {{{mapping}}}.", AtollWarning, stacklevel=3)
        memory = dict.fromkeys(memory, PARTY)
    if unknown := {*memory.values(), *round_memory.values()} - set(AXES):
        raise AtollError(f"{module}: memory has an unknown axis {min(unknown)!r}; there is {', '.join(AXES)}.")
    if twice := (memory.keys() & round_memory.keys()) | ({*memory, *round_memory} & {PHASE}):
        raise AtollError(f"{module}: {min(twice)!r} cannot be memory; rename it, or declare it once.")
    declared: Mapping[str, str] = memory
    return declared


def state_of(value: Any) -> Any:
    """A piece of memory as tensors."""
    if isinstance(value, nn.Module):
        return get_parameters(value)
    return value.state() if isinstance(value, Stateful) else value


def restore_attributes(owner: object, memory: Mapping[str, Any]) -> None:
    """Give attributes the states that `state_of` gave."""
    for name, saved in memory.items():
        value = getattr(owner, name)
        if isinstance(value, nn.Module):
            set_parameters(value, saved)
        elif isinstance(value, Stateful):
            value.restore(saved)
        else:
            setattr(owner, name, saved)


def rows_of(parties: NDArray[np.int64], axis: str, graph: Graph) -> Tensor:
    """The rows of some parties (by their index in the graph) in memory that is kept along an axis."""
    index = torch.from_numpy(parties).to(graph.device)
    if axis == PARTY:
        return index
    if axis == STORED_FEATURE:
        starts = torch.from_numpy(graph.nonzero_features.indptr.astype(np.int64)).to(graph.device)[graph.ptr]
    else:
        sizes = graph.ptr.diff() if axis == NODE else graph.num_train
        starts = nn.functional.pad(sizes.cumsum(0), (1, 0))
    return spans(starts[index], starts[index + 1])


def axes_of(memory: Mapping[str, str], round_memory: Mapping[str, str]) -> dict[str, str]:
    """The axis of each piece of the state of a cohort that declares these."""
    return {PHASE: PARTY, **round_memory, **memory}


def rows_along(axes: Collection[str], graph: Graph) -> dict[str, int]:
    """How many rows the parties of a graph have along these axes."""
    everybody = np.arange(graph.parties)
    return {axis: len(rows_of(everybody, axis, graph)) for axis in axes}


def divided(memory: Mapping[str, Any], axes: Mapping[str, str], rows: Sequence[Mapping[str, int]]) -> list[dict[str, Any]]:
    """The memory of several cohorts, one after the other, cut into each one's; `rows`: how many it has along each axis."""
    parts: list[dict[str, Any]] = [{} for _ in rows]
    for name, value in memory.items():
        if name not in axes:
            raise AtollError(f"The saved memory holds {name!r}, which is not declared.")
        for part, piece in zip(parts, split_rows(value, [count[axes[name]] for count in rows]), strict=True):
            part[name] = piece
    return parts
