"""The user's own vertical data: a folder with one folder per party, each with the same nodes and its own columns and edges.

    bank/          each as `files.read` takes it: tables `nodes` and `edges`, or `graph.npz`
    insurer/       the parties are numbered in the order of their folders' names

Nodes are matched by their ids (`id` of the tables, `ids` of an .npz), in whatever order each party lists them. Nodes that some
party does not hold are reported and left out. Labels and splits may be at all parties or at some; where several parties label
a node, they must agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.data.datasets import encoded_alone
from atoll.data.party_graphs import PartyGraph, read_folders
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.edges import distinct_edges, stacked_weights
from atoll.graphs.graph import Graph, stack


def read_parties(folder: Path, *, directed: bool = False) -> Graph:
    """The graph of `match`, of the folders in a folder."""
    return match(read_folders(folder, directed=directed))


def match(parties: Sequence[PartyGraph], classes: int | None = None) -> Graph:
    """The parties' graphs, block-diagonal, row i of every block the same node; x padded with zero columns to the widest.

    Some party must have labels unless the number of `classes` is given.
    """
    where, graphs = [party.where for party in parties], [encoded_alone(party.graph) for party in parties]
    names = [pd.Index(node_ids) for node_ids in _names(parties)]
    common = names[0][np.logical_and.reduce([names[0].isin(other) for other in names])]
    if len(common) == 0:
        raise AtollError(
            f"{', '.join(where[:3])}{', …' if len(where) > 3 else ''} hold no node in common; "
            "their ids must be the same for the same nodes."
        )
    _warn_left_out(where, names, common)
    rows = (torch.from_numpy(ids.get_indexer(common).astype(np.int64)) for ids in names)
    graphs = [matched(graph, order) for graph, order in zip(graphs, rows, strict=True)]
    class_names = graphs[0].class_names
    if classes is None:
        classes, class_names = _classes(where, graphs)
    _check_agreement(where, graphs, common)
    widest = max(graph.num_features for graph in graphs)
    sparse = all(not isinstance(graph.x, Tensor) for graph in graphs)
    blocks = [
        replace(graph, x=padded(graph.x, widest, sparse), widths=(graph.num_features,), num_classes=classes) for graph in graphs
    ]
    return replace(stack(with_roles(blocks)), class_names=class_names)


def joined(parts: Graph) -> Graph:
    """The graph that no party has: all columns side by side, all edges, and every label that some party has."""
    blocks = [parts.select([party]) for party in range(parts.parties)]
    widths = parts.widths or [parts.num_features] * len(blocks)
    columns = [block.x[:, :width] for block, width in zip(blocks, widths, strict=True)]
    dense = isinstance(parts.x, Tensor)
    all_edges = [block.edge_index for block in blocks]
    weights = stacked_weights(all_edges, [block.edge_weight for block in blocks])
    edges, weights = distinct_edges(torch.cat(all_edges, 1), weights)
    train, val, test = (torch.stack(masks).any(0) for masks in zip(*((b.train, b.val, b.test) for b in blocks), strict=True))
    y = torch.stack([block.y for block in blocks]).amax(0)
    x = torch.cat(columns, 1) if dense else sp.csr_array(sp.hstack(columns, format="csr"))
    return replace(blocks[0], x=x, edge_index=edges, edge_weight=weights, y=y, widths=None, train=train, val=val, test=test)


def _names(parties: Sequence[PartyGraph]) -> list[Sequence[str]]:
    """By what nodes are matched: their ids or, where no party has any, their rows."""
    sizes = [party.graph.num_nodes for party in parties]
    if all(party.node_ids is None for party in parties) and len(set(sizes)) > 1:
        raise AtollError(
            f"{parties[0].where} has {sizes[0]} nodes and another party {next(n for n in sizes if n != sizes[0])}; vertical "
            "parties hold the same nodes: give ids by which they can be matched."
        )
    rows = [list(map(str, range(size))) for size in sizes]
    return [order if party.node_ids is None else party.node_ids for party, order in zip(parties, rows, strict=True)]


def _warn_left_out(where: Sequence[str], names: Sequence[pd.Index], common: pd.Index) -> None:
    """Warn about the nodes that are left out."""
    for path, ids in zip(where, names, strict=True):
        left = ids[~ids.isin(common)]
        if len(left):
            listed = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
            sentence = f"{path}: {len(left)} of {len(ids)} nodes are not held by every party and left out ({listed})."
            warnings.warn(sentence, AtollWarning, stacklevel=3)


def matched(graph: Graph, rows: Tensor) -> Graph:
    """A party's graph with the common nodes in the common order, which `rows` are."""
    return replace(graph.rows(rows), ids=torch.arange(len(rows)))


def _classes(where: Sequence[str], graphs: Sequence[Graph]) -> tuple[int, tuple[str, ...] | None]:
    """The number of classes and their names: those of the parties that have labels, which must agree."""
    holders = [(path, graph) for path, graph in zip(where, graphs, strict=True) if bool((graph.y >= 0).any())]
    if not holders:
        raise AtollError(
            f"None of {', '.join(where[:3])} has a label of a node that all of them hold; label some nodes at one of them."
        )
    first, reference = holders[0]
    for path, graph in holders[1:]:
        if graph.class_names != reference.class_names:
            raise AtollError(f"{first} and {path} name their classes differently; put the same classes.txt into both.")
    return max(graph.num_classes for _, graph in holders), reference.class_names


def _check_agreement(where: Sequence[str], graphs: Sequence[Graph], common: pd.Index) -> None:
    """Refuse two parties that give one node different labels or splits."""
    label = torch.full((len(common),), -1)
    role = torch.full((len(common),), -1)
    for path, graph in zip(where, graphs, strict=True):
        for what, known, given in (("label", label, graph.y), ("split", role, _roles(graph))):
            different = ((known >= 0) & (given >= 0) & (known != given)).nonzero()
            if len(different):
                raise AtollError(
                    f"{path} gives node '{common[int(different[0])]}' another {what} than a party before it; make them agree."
                )
            known[:] = torch.where(given >= 0, given, known)


def _roles(graph: Graph) -> Tensor:
    """0 train, 1 val, 2 test, −1 nothing."""
    return torch.where(graph.train, 0, torch.where(graph.val, 1, torch.where(graph.test, 2, -1)))


def with_roles(blocks: Sequence[Graph]) -> list[Graph]:
    """A node's split is that of any party that gives one, at every party that has its label."""
    role = torch.stack([_roles(block) for block in blocks]).amax(0)
    known = [block.y >= 0 for block in blocks]
    return [
        replace(block, train=(role == 0) & mine, val=(role == 1) & mine, test=(role == 2) & mine)
        for block, mine in zip(blocks, known, strict=True)
    ]


def padded(x: sp.csr_array | Tensor, width: int, sparse: bool) -> sp.csr_array | Tensor:
    """Features with zero columns appended, up to `width`."""
    if sparse and not isinstance(x, Tensor):
        return sp.csr_array((x.data, x.indices, x.indptr), shape=(x.shape[0], width))
    dense = x if isinstance(x, Tensor) else torch.from_numpy(x.toarray())
    return torch.nn.functional.pad(dense, (0, width - dense.shape[1]))
