"""Graphs of one or many parties, block-diagonal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.device import CPU
from atoll.graphs import edges
from atoll.graphs.blocks import Blocks, spans
from atoll.graphs.borders import Borders, stacked_borders
from atoll.graphs.features import Features, nonzero_values
from atoll.graphs.hops import AllNodes
from atoll.graphs.items import Items
from atoll.graphs.joining import joined_fields
from atoll.graphs.matrices import Matrices
from atoll.graphs.pairs import select_pairs, without_pairs
from atoll.graphs.selection import Slices
from atoll.graphs.sparse import SparseMatrix
from atoll.graphs.table import Table

TRAIN_DEPENDENT = (  # what `Graph.fitting` must not share
    *("derived", "num_train", "train_counts", "train_rows", "merged", "judged", "trained"),
    *("_fitted", "_host"),
)


@dataclass(frozen=True, eq=False)
class Graph(Items, Matrices, Slices, AllNodes):
    """Nodes with features, edges, labels and splits: the blocks of P ≥ 1 parties, one after the other.

    Party p owns the rows `ptr[p]:ptr[p + 1]`; no edge joins two parties. A whole graph is the case P = 1.
    Everything derived (normalized adjacency, sparse products) is computed once, on first use.

    Attributes:
        x: (N, d) features, float32; a scipy CSR array where they are sparse, else a tensor.
        edge_index: (2, E) source → target; both directions where undirected.
        y: (N,) classes, −1 where unlabeled.
        train, val, test: (N,) masks of the splits.
        num_classes: C, the number of classes.
        ids: (N,) each node's index in the whole graph.
        ptr: (P + 1,) where each party's rows begin.
        node_names: (N,) what the nodes are called in the data, as text; None where they are only numbered (`ids`).
        edge_weight: (E,) weights of the edges, float32, not negative; None where every edge counts the same.

    Examples:
        >>> import atoll
        >>> graph = atoll.load("csbm", nodes=200)
        >>> graph.num_nodes, graph.parties, graph.edge_index.shape[0]
        (200, 1, 2)
    """

    x: sp.csr_array | Tensor  # (N, d) features, float32: CSR where they are sparse, else a dense tensor
    edge_index: Tensor  # (2, E) int64, source → target; both directions where undirected; no loops, no repeats
    y: Tensor  # (N,) int64 class, −1 where unlabeled
    train: Tensor  # (N,) bool
    val: Tensor  # (N,) bool
    test: Tensor  # (N,) bool
    num_classes: int
    ids: Tensor  # (N,) int64: the node's index in the whole graph
    ptr: Tensor  # (P + 1,) int64: where each party's rows begin
    widths: tuple[int, ...] | None = None  # vertical: party p's columns are x[:, :widths[p]], the rest is zero padding
    class_names: tuple[str, ...] | None = None  # where the classes have names
    majority: Tensor | None = None  # (N,) int64: the majority class where each node comes from, if not the block itself
    feature_names: tuple[str, ...] | None = None  # where the columns have names
    edge_weight: Tensor | None = None  # (E,) float32, finite, not negative; None: every edge counts the same
    table: Table | None = None  # columns that have to be encoded before there is an x, which is (N, 0) until then
    node_names: NDArray[np.object_] | None = None  # (N,) the nodes' ids as text; subgraphs share the texts
    edge_split: Tensor | None = None  # (E,) int8: the data's own split of its edges, train 0, val 1, test 2, −1: none
    graph_ptr: Tensor | None = None  # (G + 1,) graph tasks: where each small graph's rows begin; y and masks then have G rows
    graph_ids: Tensor | None = None  # (G,) graph tasks: each small graph's index in its dataset
    graph_names: NDArray[np.object_] | None = None  # (G,) graph tasks: the small graphs' ids as text
    classes: tuple[int, ...] | None = None  # party p's classes are 0 … classes[p] − 1, where parties differ
    pairs: Tensor | None = None  # (2, M) link tasks: the judged pairs of rows, party after party; y and masks then have M rows
    pair_party: Tensor | None = None  # (M,) the party that each pair is judged with, if not the block itself
    borders: Borders | None = None  # the edges between parties, where an algorithm wants them
    y_columns: Tensor | None = None  # (I, T) float32: several labels (0, 1) or values per item, NaN where unknown

    @property
    def num_nodes(self) -> int:
        """N, of all parties together."""
        return self.ids.shape[0]

    @property
    def num_features(self) -> int:
        """d, the columns of x."""
        return self.x.shape[1]

    @property
    def parties(self) -> int:
        """P, the number of blocks."""
        return self.ptr.shape[0] - 1

    @property
    def device(self) -> torch.device:
        """Where its tensors are; whatever is of numpy or scipy is in the memory of the CPU."""
        return self.y.device

    def to(self, device: torch.device) -> Graph:
        """The same graph with its tensors on a device; what it was is kept as `host`."""
        if device == self.device:
            return self
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        tensors: dict[str, Any] = {name: value.to(device) for name, value in fields.items() if isinstance(value, Tensor)}
        moved = replace(self, **tensors)
        moved.__dict__["_host"] = self if self.device == CPU else None
        return moved

    @property
    def host(self) -> Graph:
        """The same graph with its tensors in the memory of the CPU."""
        kept: Graph | None = self if self.device == CPU else self.__dict__.get("_host")
        if kept is None:
            kept = self.__dict__["_host"] = self.to(CPU)
        return kept

    @cached_property
    def sizes(self) -> list[int]:
        """Nodes of each party."""
        return self.ptr.diff().tolist()

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """(P + 1,) where each party's rows begin: `ptr` in the memory of the CPU."""
        array: NDArray[np.int64] = self.ptr.cpu().numpy()
        return array

    @cached_property
    def blocks(self) -> Blocks:
        """How the rows are divided into parties: the arithmetic of rows times each party's own weights."""
        return Blocks(self.sizes, self.device)

    @cached_property
    def features(self) -> Features:
        """`graph.features @ weight` with weight (P, d, h): each party's features times its own weight."""
        return Features.of(self.x, self.blocks) if self.shifted is None else Features(self.shifted, self.blocks)

    @property
    def dense(self) -> bool:
        """Whether the features are a dense tensor."""
        return isinstance(self.x, Tensor)

    @cached_property
    def propagated_features(self) -> Features:
        """Â·X of dense features."""
        assert isinstance(self.features.values, Tensor)
        return Features(self.normalized_adjacency @ self.features.values, self.blocks)

    def dense_features(self, rows: Tensor) -> Tensor:
        """(T, d) some rows of the features."""
        if isinstance(self.x, Tensor):
            return self.x[rows]
        return torch.from_numpy(self.x[rows.cpu().numpy()].toarray()).to(self.device)

    @cached_property
    def nonzero_features(self) -> sp.csr_array:
        """(N, d) the features as CSR, without zeros."""
        return nonzero_values(self.x.cpu()) if isinstance(self.x, Tensor) else self.x

    @property
    def digest(self) -> int:
        """A number that changes with the features, edges, labels or splits."""
        x = [self.x.cpu().numpy()] if isinstance(self.x, Tensor) else [self.x.data, self.x.indices, self.x.indptr]
        rest = (self.edge_index, self.y, self.train, self.val, self.test, self.ids, self.ptr)
        total = hashlib.blake2b(digest_size=7)
        optional = (self.edge_weight, self.graph_ptr, self.pairs, self.pair_party, self.y_columns)
        more = [tensor for tensor in optional if tensor is not None]
        more += [] if self.borders is None else self.borders.arrays().values()
        for array in [*x, *(tensor.cpu().numpy() for tensor in (*rest, *more))]:
            total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return int.from_bytes(total.digest(), "little")

    @cached_property
    def merged(self) -> Graph:
        """The same graph as one block (P = 1): what a model that all parties share runs on."""
        ends, shared = torch.stack([self.ptr[0], self.ptr[-1]]), ("normalized_adjacency", "mean_adjacency", "neighbors")
        graph = replace(self, ptr=ends, widths=None)
        graph.__dict__.update({name: self.__dict__[name] for name in shared if name in self.__dict__})
        return graph

    def with_adjacency(self, adjacency: SparseMatrix) -> Graph:
        """The same graph with another matrix instead of D^(-1/2)·(A + I)·D^(-1/2)."""
        return self._with(normalized_adjacency=adjacency, _adjacency=adjacency)

    def with_attention(self, weights: sp.csr_array | None = None, beside: SparseMatrix | None = None) -> Graph:
        """The same graph with `attention_weights` and `beside_attention`, for models that attend."""
        return self._with(attention_weights=weights, beside_attention=beside)

    def _with(self, **derived: Any) -> Graph:
        """The same graph with other derived values; what depends on none of them is shared."""
        graph = replace(self)
        kept = ("sizes", "blocks", "features", "derived", "num_train", "party")
        graph.__dict__.update({name: getattr(self, name) for name in kept} | derived)
        return graph

    def forget_adjacency(self) -> None:
        """Drop the float64 adjacency once the matrices made of it are there: it is as large as these, and can be made again."""
        for name in ("adjacency", "weighted_adjacency"):
            self.__dict__.pop(name, None)

    def fitting(self, train: Tensor) -> Graph:
        """The same graph with other training rows; whatever does not depend on them is shared, also among such graphs."""
        before = {**self.__dict__, **self.__dict__.get("_fitted", self).__dict__}
        graph = replace(self, train=train)
        graph.__dict__.update(
            {name: value for name, value in before.items() if name not in (*self.__dataclass_fields__, *TRAIN_DEPENDENT)}
        )
        self.__dict__["_fitted"] = graph
        return graph

    @cached_property
    def derived(self) -> dict[str, Tensor]:
        """A cache, by name, of values that others compute once for this graph (for instance the losses' node weights)."""
        return {}

    @cached_property
    def party(self) -> Tensor:
        """(N,) which party each row belongs to."""
        every = torch.arange(self.parties, device=self.device)
        return torch.repeat_interleave(every, self.ptr.diff(), output_size=self.num_nodes)

    def select(self, parties: Sequence[int] | NDArray[np.int64]) -> Graph:
        """The graph of some of the parties, in the given order."""
        numbers = np.array(parties, dtype=np.int64)
        if np.array_equal(numbers, np.arange(self.parties)):
            return self
        if self.device != CPU and self.__dict__.get("_host") is not None:  # without a wait for the device
            return self.host.select(parties).to(self.device)
        index = torch.from_numpy(numbers).to(self.device)
        if self.graph_ptr is not None:
            return self.select_graphs(index)
        if self.pairs is not None:
            return select_pairs(self, index, without_pairs(self).select(parties))
        rows = spans(self.ptr[index], self.ptr[index + 1])
        sizes = self.ptr.diff()[index]
        widths = None if self.widths is None else tuple(self.widths[p] for p in parties)
        borders = None if self.borders is None else self.borders.select(self.ptr.cpu(), torch.from_numpy(numbers))
        ptr = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return replace(self.rows(rows), ptr=ptr, widths=widths, borders=borders)

    def rows(self, rows: Tensor) -> Graph:
        """The induced subgraph of distinct rows as one block (P = 1)."""
        position = torch.full((self.num_nodes,), -1, dtype=torch.int64, device=self.device)
        position[rows] = torch.arange(len(rows), device=self.device)
        moved = position[self.edge_index]
        kept = (moved >= 0).all(0)
        x = self.x[rows] if isinstance(self.x, Tensor) else self.x[rows.cpu().numpy()]
        return Graph(
            x=x,
            edge_index=moved[:, kept],
            edge_weight=None if self.edge_weight is None else self.edge_weight[kept],
            edge_split=None if self.edge_split is None else self.edge_split[kept],
            y=self.y[rows],
            train=self.train[rows],
            val=self.val[rows],
            test=self.test[rows],
            num_classes=self.num_classes,
            ids=self.ids[rows],
            ptr=torch.tensor([0, len(rows)]).to(self.device),
            class_names=self.class_names,
            majority=None if self.majority is None else self.majority[rows],
            feature_names=self.feature_names,
            table=None if self.table is None else self.table.rows(rows.cpu().numpy()),
            node_names=None if self.node_names is None else self.node_names[rows.cpu().numpy()],
            y_columns=None if self.y_columns is None else self.y_columns[rows],
        )


def stack(graphs: Sequence[Graph]) -> Graph:
    """The graphs one after the other, block-diagonal; each may itself hold several parties."""
    starts = np.cumsum([0, *(graph.num_nodes for graph in graphs)])[:-1].tolist()
    return Graph(
        edge_index=torch.cat([graph.edge_index + start for graph, start in zip(graphs, starts, strict=True)], 1),
        edge_weight=edges.stacked_weights([graph.edge_index for graph in graphs], [graph.edge_weight for graph in graphs]),
        pairs=edges.stacked_pairs([graph.pairs for graph in graphs], starts),
        num_classes=graphs[0].num_classes,
        class_names=graphs[0].class_names,
        feature_names=graphs[0].feature_names if len({graph.feature_names for graph in graphs}) == 1 else None,
        borders=stacked_borders([graph.borders for graph in graphs], starts),
        **joined_fields(graphs),
    )


def majority_class(graph: Graph) -> Tensor:
    """(I,) the most frequent training class of each item's party (the lowest of several); minority items are of another."""
    if graph.majority is not None:
        return graph.majority
    labeled = graph.train & (graph.y >= 0)
    cells = graph.owner[labeled] * graph.num_classes + graph.y[labeled]
    counts = torch.bincount(cells, minlength=graph.parties * graph.num_classes).view(graph.parties, graph.num_classes)
    return counts.argmax(1)[graph.owner]
