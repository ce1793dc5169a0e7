"""Some of the small graphs of a graph, with what a step hardly ever needs (columns, edges, names) made on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atoll.graphs.blocks import spans
from atoll.graphs.graph import Graph

if TYPE_CHECKING:
    from atoll.graphs.cuts import Cut

LAZY = (
    "x",
    "edge_index",
    "edge_weight",
    "ids",
    "node_names",
)  # fields of a graph that are cut out of the whole one's on first use


def _on_first_use(make: Callable[[Any], Any]) -> Any:
    """In the place of a field of the class above: made when it is asked for, unless it is set."""
    return cached_property(make)


class GraphBatch(Graph):
    """Small graphs that were taken from a graph; its matrices are cut out of the whole graph's."""

    whole: Graph
    cut: Cut

    @classmethod
    def of(cls, whole: Graph, graphs: Tensor, cut: Cut, ptr: Tensor) -> GraphBatch:
        """The small graphs of that number; their parties begin at `ptr`."""
        taken = object.__new__(cls)
        values = {name: getattr(whole, name) for name in Graph.__dataclass_fields__ if name not in LAZY}
        for name in ("y", "train", "val", "test", "graph_ids", "majority", "y_columns"):
            values[name] = None if values[name] is None else values[name][graphs]
        names = values["graph_names"]
        values["graph_names"] = None if names is None else names[graphs.cpu().numpy()]
        taken.__dict__.update(values, ptr=ptr, graph_ptr=cut.graph_ptr, whole=whole, graphs=graphs, cut=cut, _cut=cut)
        return taken

    def complete(self, **changes: Any) -> Graph:
        """The same as a graph that stands alone: the whole one need not be kept for it."""
        return Graph(**{name: getattr(self, name) for name in Graph.__dataclass_fields__} | changes)

    @property
    def num_nodes(self) -> int:
        """N, of all parties together."""
        return int(self.ptr[-1])

    @_on_first_use
    def x(self) -> Any:
        """(N, d)."""
        x = self.whole.x
        return x[self.cut.rows] if isinstance(x, Tensor) else x[self.cut.rows.cpu().numpy()]

    @_on_first_use
    def ids(self) -> Tensor:
        """(N,)."""
        return self.whole.ids[self.cut.rows]

    @_on_first_use
    def node_names(self) -> Any:
        """(N,)."""
        names = self.whole.node_names
        return None if names is None else names[self.cut.rows.cpu().numpy()]

    @cached_property
    def edges(self) -> tuple[Tensor, Tensor]:
        """The columns of `edge_index` of the whole graph that are edges here, and by how much each is shifted."""
        graphs: Tensor = self.__dict__["graphs"]
        first, last = self.whole.edge_ptr[graphs], self.whole.edge_ptr[graphs + 1]
        return spans(first, last), torch.repeat_interleave(self.cut.shift, last - first)

    @_on_first_use
    def edge_index(self) -> Tensor:
        """(2, E)."""
        columns, shift = self.edges
        return self.whole.edge_index[:, columns] - shift

    @_on_first_use
    def edge_weight(self) -> Tensor | None:
        """(E,)."""
        return None if self.whole.edge_weight is None else self.whole.edge_weight[self.edges[0]]
