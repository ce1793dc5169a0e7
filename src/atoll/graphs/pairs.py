"""Pairs of nodes as items: what link prediction judges. Messages pass along `edge_index` alone, whatever the pairs are.

The pairs of a graph stand party after party; y is 1 for an edge and 0 for none. A pair that neither trains, validates nor tests
is one of two things. With y = 0 it stands beside a training edge where nothing is drawn (as many, in their order). With y = −1 it
competes with a test edge for a rank (equally many for each test edge, in the order of these).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from atoll.graphs.blocks import spans

if TYPE_CHECKING:
    from atoll.graphs.graph import Graph

OF_ITEMS = ("item_ptr", "items", "owner", "active", "_parties", "_cut")  # what a graph of other pairs does not share
NO_EDGE, EDGE, RIVAL = 0, 1, -1  # values of y
CLASS_NAMES = ("no edge", "edge")


def pair_ptr(pairs: Tensor, ptr: Tensor) -> Tensor:
    """(P + 1,) where each party's pairs begin."""
    owner = torch.searchsorted(ptr[1:], pairs[0].contiguous(), right=True)
    return pad(torch.bincount(owner, minlength=len(ptr) - 1).cumsum(0), (1, 0))


def with_pairs(
    graph: Graph, pairs: Tensor, y: Tensor, train: Tensor, val: Tensor, test: Tensor, pair_party: Tensor | None = None
) -> Graph:
    """The same nodes and edges with these pairs; whatever does not depend on them is shared, also among such graphs."""
    from atoll.graphs.graph import TRAIN_DEPENDENT  # it imports this module

    before = {**graph.__dict__, **graph.__dict__.get("_fitted", graph).__dict__}
    made = replace(
        graph,
        pairs=pairs,
        y=y,
        train=train,
        val=val,
        test=test,
        pair_party=pair_party,
        num_classes=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
        majority=None,
        classes=None,
        y_columns=None,
    )
    left_out = (*graph.__dataclass_fields__, *TRAIN_DEPENDENT, *OF_ITEMS)
    made.__dict__.update({name: value for name, value in before.items() if name not in left_out})
    graph.__dict__["_fitted"] = made
    return made


def some_pairs(graph: Graph, rows: Tensor) -> Graph:
    """The same nodes and edges with some of the pairs, in ascending order."""
    assert graph.pairs is not None
    group = None if graph.pair_party is None else graph.pair_party[rows]
    return with_pairs(graph, graph.pairs[:, rows], graph.y[rows], graph.train[rows], graph.val[rows], graph.test[rows], group)


def trained_pairs(graph: Graph, chosen: Tensor | None = None) -> Graph:
    """The training edges, or those `chosen` by a mask, each with the pair that stands beside it where nothing is drawn."""
    beside = (graph.y == NO_EDGE) & ~(graph.val | graph.test)
    train = graph.train if chosen is None else graph.train & chosen
    if chosen is not None:
        rows, owner = graph.train_rows, graph.owner[graph.train_rows]
        counts = graph.items.sum(beside.long())  # as many as training edges, or none
        index = torch.arange(len(rows), device=graph.device) - (graph.num_train.cumsum(0) - graph.num_train)[owner]
        partner = (counts.cumsum(0) - counts)[owner] + index
        partner = partner[train[rows] & (counts > 0)[owner]]
        every, beside = beside.nonzero()[:, 0], torch.zeros_like(beside)
        beside[every[partner]] = True
    made = some_pairs(graph, (train | beside).nonzero()[:, 0])
    nobody = torch.zeros_like(made.train)
    assert made.pairs is not None
    return stepping(with_pairs(graph, made.pairs, made.y, ~nobody, nobody, nobody, made.pair_party))


def stepping(graph: Graph) -> Graph:
    """The graph of one step: parties without pairs in it take none."""
    if not bool((graph.num_train > 0).all()):
        graph.__dict__["active"] = graph.num_train > 0
    return graph


def without_pairs(graph: Graph) -> Graph:
    """The nodes and edges alone, unlabeled."""
    nobody = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    y = torch.full_like(graph.ids, -1)
    return replace(graph, pairs=None, pair_party=None, y=y, train=nobody, val=nobody, test=nobody, majority=None, y_columns=None)


def select_pairs(graph: Graph, parties: Tensor, nodes: Graph) -> Graph:
    """The graph of some parties, whose nodes and edges are those of `nodes`, with their pairs."""
    assert graph.pairs is not None
    starts, ends = graph.item_ptr[parties], graph.item_ptr[parties + 1]
    rows, shift = spans(starts, ends), graph.ptr[parties] - nodes.ptr[:-1]
    fields: dict[str, Any] = {name: getattr(graph, name)[rows] for name in ("y", "train", "val", "test")}
    fields["pair_party"] = None if graph.pair_party is None else graph.pair_party[rows]
    return replace(nodes, pairs=graph.pairs[:, rows] - torch.repeat_interleave(shift, ends - starts), **fields)
