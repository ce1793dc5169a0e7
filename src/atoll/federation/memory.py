"""What a cohort remembers, as tensors: the axes memory is kept along, its state, and which rows of it are some parties'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atoll.graphs.graph import Graph, spans
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


@runtime_checkable
class Stateful(Protocol):
    """Something whose whole state is a dict of tensors with a leading party axis: an optimizer."""

    def state(self) -> Mapping[str, Any]:
        """The current state."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to an earlier state."""
        ...


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
    index = torch.from_numpy(parties)
    if axis == PARTY:
        return index
    if axis == STORED_FEATURE:
        starts = torch.from_numpy(graph.nonzero_features.indptr.astype(np.int64))[graph.ptr]
    else:
        sizes = graph.ptr.diff() if axis == NODE else graph.num_train
        starts = nn.functional.pad(sizes.cumsum(0), (1, 0))
    return spans(starts[index], starts[index + 1])
