"""Items: what is judged. A node, a pair of nodes or, of many small graphs, a graph; and batches of such graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from atoll.device import CPU
from atoll.graphs.blocks import Blocks, spans
from atoll.graphs.cuts import Cut, Cuts
from atoll.graphs.distinct_rows import DistinctRows, distinct_rows
from atoll.graphs.pairs import RIVAL, pair_ptr, some_pairs, trained_pairs
from atoll.graphs.sparse import SparseMatrix, stored

if TYPE_CHECKING:
    from atoll.graphs.graph import Graph
    from atoll.graphs.graph_batch import GraphBatch

CUT_AT_ONCE = 8  # steps whose graphs are cut out together: more take memory, fewer take longer


class Items:
    """The items of a graph. For node tasks they are its nodes, and every property is that of the nodes."""

    ptr: Tensor
    graph_ptr: Tensor | None
    pairs: Tensor | None
    train: Tensor
    val: Tensor
    test: Tensor

    if TYPE_CHECKING:

        @property
        def party(self) -> Tensor: ...  # noqa: D102

        @property
        def blocks(self) -> Blocks: ...  # noqa: D102

    @property
    def of_nodes(self) -> bool:
        """Whether the items are the nodes."""
        return self.graph_ptr is None and self.pairs is None

    @cached_property
    def item_ptr(self) -> Tensor:
        """(P + 1,) where each party's items begin."""
        if self.pairs is not None:
            return pair_ptr(self.pairs, self.ptr)
        return self.ptr if self.graph_ptr is None else torch.searchsorted(self.graph_ptr, self.ptr)

    @cached_property
    def items(self) -> Blocks:
        """How the items are divided into parties."""
        return self.blocks if self.of_nodes else Blocks(self.item_ptr.diff().tolist(), self.ptr.device)

    @cached_property
    def owner(self) -> Tensor:
        """(I,) which party each item belongs to."""
        return self.party if self.of_nodes else self.items.party

    @cached_property
    def num_train(self) -> Tensor:
        """(P,) training items of each party."""
        parties = len(self.ptr) - 1
        return torch.zeros(parties, dtype=torch.int64, device=self.ptr.device).index_add_(0, self.owner, self.train.long())

    @cached_property
    def train_counts(self) -> tuple[int, ...]:
        """`num_train` as numbers of the host, which a step can read without waiting for the device."""
        return tuple(self.num_train.tolist())

    @cached_property
    def train_rows(self) -> Tensor:
        """The training items."""
        return self.train.nonzero()[:, 0]

    @cached_property
    def pool(self) -> SparseMatrix:
        """(G, N): the sum over the nodes of each small graph."""
        assert self.graph_ptr is not None
        return _Pool(self.graph_ptr)

    @cached_property
    def judged(self) -> Graph:
        """What evaluation runs on: the graphs, or pairs, that validate or test; all nodes where the items are nodes."""
        graph = cast("Graph", self)
        if graph.pairs is not None:
            return some_pairs(graph, (graph.val | graph.test | (graph.y == RIVAL)).nonzero()[:, 0])
        if graph.graph_ptr is None or bool((graph.val | graph.test).all()):
            return graph
        return graph.take((graph.val | graph.test).nonzero()[:, 0])

    @cached_property
    def trained(self) -> Graph:
        """What a step of all training items runs on: the graphs that train; all nodes where the items are nodes.

        Of pairs: the training edges, and as many other pairs.
        """
        graph = cast("Graph", self)
        if graph.pairs is not None:
            return trained_pairs(graph)
        if graph.graph_ptr is None or bool(graph.train.all()):
            return graph
        return graph.take(graph.train.nonzero()[:, 0])

    @cached_property
    def distinct(self) -> DistinctRows | None:
        """The distinct rows of (A + I)·X, found once for the graph that a batch is taken from; None where there are too many."""
        cut: Cut | None = self.__dict__.get("_cut")
        if cast("Graph", self).device != CPU:
            return None
        if cut is None:
            return distinct_rows(cast("Graph", self))
        whole = cut.graph.distinct
        return None if whole is None else whole.take(cut.rows)

    @property
    def origin(self) -> Tensor | None:
        """(N,) where the rows of a batch are in the graph that it was taken from; None for a graph that was not.

        The graph of some parties (`selection`) is one by itself: what these parties keep has its rows.
        """
        cut: Cut | None = None if "_parties" in self.__dict__ else self.__dict__.get("_cut")
        if cut is None or cut.graph.origin is None:
            return None if cut is None else cut.rows
        return cut.graph.origin[cut.rows]

    def take(self, graphs: Tensor) -> GraphBatch:
        """Some of the small graphs, in party order, as a graph of the same parties; a party may have none of them."""
        return self._taken(graphs, Cut(cast("Graph", self), graphs))

    def take_each(self, steps: Sequence[Tensor]) -> Iterator[GraphBatch]:
        """`take`, step after step; what several steps need is cut out at once."""
        for first in range(0, len(steps), CUT_AT_ONCE):
            parts = steps[first : first + CUT_AT_ONCE]
            cuts = Cuts(cast("Graph", self), parts)
            for number, graphs in enumerate(parts):
                yield self._taken(graphs, cuts.part(number))

    def _taken(self, graphs: Tensor, cut: Cut) -> GraphBatch:
        from atoll.graphs.graph_batch import GraphBatch  # it is a Graph, which has these items

        whole = cast("Graph", self)
        counts = torch.bincount(whole.owner[graphs], minlength=whole.parties)
        taken = GraphBatch.of(whole, graphs, cut, cut.graph_ptr[pad(counts.cumsum(0), (1, 0))])
        if not bool((taken.num_train > 0).all()):
            taken.__dict__["active"] = taken.num_train > 0  # the others take no step
        return taken

    def select_graphs(self, parties: Tensor) -> Graph:
        """The graphs of some of the parties, in the given order."""
        from atoll.graphs.graph_batch import GraphBatch  # it is a Graph, which has these items

        whole = cast("Graph", self)
        starts, ends = whole.item_ptr[parties], whole.item_ptr[parties + 1]
        graphs = spans(starts, ends)
        cut = Cut(whole, graphs)
        chosen = GraphBatch.of(whole, graphs, cut, cut.graph_ptr[pad((ends - starts).cumsum(0), (1, 0))])
        widths, classes = (
            None if values is None else tuple(values[p] for p in parties.tolist()) for values in (whole.widths, whole.classes)
        )
        return chosen.complete(widths=widths, classes=classes)

    @cached_property
    def edge_ptr(self) -> Tensor:
        """(G + 1,) where each small graph's edges begin; they are stored graph after graph."""
        graph = cast("Graph", self)
        assert graph.graph_ptr is not None
        every = torch.arange(len(graph.graph_ptr) - 1, device=graph.device)
        small = torch.repeat_interleave(every, graph.graph_ptr.diff(), output_size=graph.num_nodes)
        return pad(torch.bincount(small[graph.edge_index[1]], minlength=len(graph.graph_ptr) - 1).cumsum(0), (1, 0))


class _Pool(SparseMatrix):
    """Ones where a node (column) belongs to a graph (row)."""

    def __init__(self, graph_ptr: Tensor) -> None:
        nodes = int(graph_ptr[-1])
        self.shape, self.symmetric = (len(graph_ptr) - 1, nodes), False
        device = graph_ptr.device
        columns, ones = torch.arange(nodes, dtype=torch.int32, device=device), torch.ones(nodes, device=device)
        self.forward = stored(graph_ptr.int(), columns, ones, self.shape)
        self.graph = torch.repeat_interleave(torch.arange(self.shape[0], device=device), graph_ptr.diff(), output_size=nodes)

    def transposed_matmul(self, dense: Tensor) -> Tensor:
        """Every node gets its graph's row."""
        return dense.index_select(0, self.graph)
