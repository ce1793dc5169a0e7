"""The graph of some parties, for as long as that of all is there: what was made of that one is cut, not made again."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from atoll.device import CPU
from atoll.graphs.blocks import spans
from atoll.graphs.cuts import Cut, cut_rows
from atoll.graphs.sparse import SparseMatrix, Stored

if TYPE_CHECKING:
    from atoll.graphs.graph import Graph

EDGES_AT_ONCE = 1 << 21  # that are looked at together


class Slices:
    """What makes the graph of some parties out of that of all."""

    def slice(self, parties: NDArray[np.int64]) -> Graph:
        """As `select`, but its matrices are cut out of those of this graph, which is kept for it."""
        whole, index = cast("Graph", self), torch.from_numpy(np.array(parties, dtype=np.int64))
        if whole.device != CPU:
            return whole.select(parties)
        starts = None if torch.equal(index, torch.arange(whole.parties)) else edge_starts(whole)
        if starts is None or not whole.of_nodes or whole.table is not None:
            return whole.select(parties)
        return _sliced(whole, index, starts)

    @cached_property
    def shifted(self) -> SlicedFeatures | None:
        """The sparse features, each party's in columns of its own, cut out of those of all parties; None: nothing to cut from."""
        part = cast("Graph", self)
        if "_parties" not in part.__dict__ or isinstance(part.x, Tensor):
            return None
        cut, parties = part.__dict__["_cut"], part.__dict__["_parties"]
        return SlicedFeatures(cut.graph.features.values, cut, parties, part.num_features)


def _sliced(whole: Graph, parties: Tensor, edge_ptr: Tensor) -> Graph:
    cut = Cut(whole, parties, whole.ptr)
    first, last = edge_ptr[parties], edge_ptr[parties + 1]
    edges, rows = spans(first, last), cut.rows
    widths, classes = (
        None if values is None else tuple(values[p] for p in parties.tolist()) for values in (whole.widths, whole.classes)
    )
    part = replace(
        whole,
        x=whole.x[rows] if isinstance(whole.x, Tensor) else whole.x[rows.numpy()],
        edge_index=whole.edge_index[:, edges] - torch.repeat_interleave(cut.shift, last - first),
        edge_weight=None if whole.edge_weight is None else whole.edge_weight[edges],
        **{name: getattr(whole, name)[rows] for name in ("y", "train", "val", "test", "ids")},
        ptr=cut.graph_ptr,
        majority=None if whole.majority is None else whole.majority[rows],
        y_columns=None if whole.y_columns is None else whole.y_columns[rows],
        node_names=None if whole.node_names is None else whole.node_names[rows.numpy()],
        widths=widths,
        classes=classes,
        borders=None if whole.borders is None else whole.borders.select(whole.ptr, parties),
    )
    part.__dict__.update(_cut=cut, _parties=parties)
    return part


def edge_starts(graph: Graph) -> Tensor | None:
    """(P + 1,) where each party's edges begin; None where they are not stored party after party."""
    if "edge_starts" not in graph.derived:
        counts, last, ordered = torch.zeros(graph.parties, dtype=torch.int64, device=graph.device), 0, True
        for first in range(0, graph.edge_index.shape[1], EDGES_AT_ONCE):
            source = graph.edge_index[0, first : first + EDGES_AT_ONCE]
            owner = torch.searchsorted(graph.ptr[1:], source, right=True)
            counts += torch.bincount(owner, minlength=graph.parties)
            ordered = ordered and int(owner[0]) >= last and bool((owner[1:] >= owner[:-1]).all())
            last = int(owner[-1])
        graph.derived["edge_starts"] = pad(counts.cumsum(0), (1, 0)) if ordered else torch.empty(0)
    starts = graph.derived["edge_starts"]
    return starts if len(starts) else None


class SlicedFeatures(SparseMatrix):
    """(N, P·d) the shifted features of some parties."""

    def __init__(self, whole: SparseMatrix, cut: Cut, parties: Tensor, width: int) -> None:
        self._parts = whole, cut, parties, width
        self.shape, self.symmetric = (len(cut.rows), len(parties) * width), False
        shift = (parties - torch.arange(len(parties))) * width
        self.forward = cut_rows(whole.forward, cut.starts, cut.ends, shift, self.shape)

    @cached_property
    def transposed(self) -> Stored:
        """Mᵀ, cut out of that of all parties."""
        whole, cut, parties, width = self._parts
        return cut_rows(whole.transposed, parties * width, (parties + 1) * width, cut.shift, self.shape[::-1])
