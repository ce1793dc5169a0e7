"""The user's own vertical data: a folder with one folder per party, each with the same nodes and its own columns and edges.

    bank/          each as `files.read` takes it: tables `nodes` and `edges`, or `graph.npz`
    insurer/       the parties are numbered in the order of their folders' names

Nodes are matched by their ids (`id` of the tables, `ids` of an .npz), in whatever order each party lists them. Nodes that some
party does not hold are reported and left out. Labels and splits may be at all parties or at some; where several parties label
a node, they must agree.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.data.builder import Ints
from atoll.data.files import read
from atoll.data.tables import node_names
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph, stack


def read_parties(folder: Path, *, directed: bool = False) -> Graph:
    """The parties' graphs, block-diagonal, row i of every block the same node; x padded with zero columns to the widest."""
    folders = party_folders(folder)
    graphs = [read(path, directed=directed) for path in folders]
    names = [pd.Index(_names(path, graph)) for path, graph in zip(folders, graphs, strict=True)]
    common = names[0][np.logical_and.reduce([names[0].isin(other) for other in names])]
    if len(common) == 0:
        raise AtollError(f"The parties in {folder} hold no node in common; their ids must be the same for the same nodes.")
    _warn_left_out(folders, names, common)
    graphs = [_matched(graph, ids.get_indexer(common)) for graph, ids in zip(graphs, names, strict=True)]
    classes, class_names = _classes(folders, graphs)
    _check_agreement(folders, graphs, common)
    widest = max(graph.num_features for graph in graphs)
    sparse = all(not isinstance(graph.x, Tensor) for graph in graphs)
    blocks = [
        replace(graph, x=_padded(graph.x, widest, sparse), widths=(graph.num_features,), num_classes=classes) for graph in graphs
    ]
    return replace(stack(_with_roles(blocks)), class_names=class_names)


def joined(parts: Graph) -> Graph:
    """The graph that no party has: all columns side by side, all edges, and every label that some party has."""
    blocks = [parts.select([party]) for party in range(parts.parties)]
    widths = parts.widths or [parts.num_features] * len(blocks)
    columns = [block.x[:, :width] for block, width in zip(blocks, widths, strict=True)]
    dense = isinstance(parts.x, Tensor)
    edges = torch.unique(torch.cat([block.edge_index for block in blocks], 1), dim=1)
    train, val, test = (torch.stack(masks).any(0) for masks in zip(*((b.train, b.val, b.test) for b in blocks), strict=True))
    y = torch.stack([block.y for block in blocks]).amax(0)
    x = torch.cat(columns, 1) if dense else sp.csr_array(sp.hstack(columns, format="csr"))
    return replace(blocks[0], x=x, edge_index=edges, y=y, widths=None, train=train, val=val, test=test)


def party_folders(folder: Path) -> list[Path]:
    """The folders in it, sorted by name; digits in a name sort as numbers."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise AtollError(f"There is no folder {folder}; --partition files takes a folder with one folder per party.")
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise AtollError(f"{folder} holds no folders; --partition files takes a folder with one folder per party.")
    return sorted(
        folders, key=lambda path: [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _parts(path)]
    )


def _parts(path: Path) -> list[str]:
    return [part for part in re.split(r"(\d+)", path.name) if part]


def _names(folder: Path, graph: Graph) -> Sequence[str]:
    if not (folder / "graph.npz").is_file():
        return list(node_names(folder))
    names = [str(number) for number in graph.ids.tolist()]
    if len(set(names)) < len(names):
        raise AtollError(f"`ids` in {folder / 'graph.npz'} names a node twice; make ids unique.")
    return names


def _warn_left_out(folders: Sequence[Path], names: Sequence[pd.Index], common: pd.Index) -> None:
    """Warn about the nodes that are left out."""
    for folder, ids in zip(folders, names, strict=True):
        left = ids[~ids.isin(common)]
        if len(left):
            listed = ", ".join(left[:3]) + (", …" if len(left) > 3 else "")
            sentence = f"{folder}: {len(left)} of {len(ids)} nodes are not held by every party and left out ({listed})."
            warnings.warn(sentence, AtollWarning, stacklevel=3)


def _matched(graph: Graph, rows: Ints) -> Graph:
    """The common nodes in the common order."""
    return replace(graph.rows(torch.from_numpy(rows.astype(np.int64))), ids=torch.arange(len(rows)))


def _classes(folders: Sequence[Path], graphs: Sequence[Graph]) -> tuple[int, tuple[str, ...] | None]:
    """The number of classes and their names: those of the parties that have labels, which must agree."""
    holders = [(path, graph) for path, graph in zip(folders, graphs, strict=True) if bool((graph.y >= 0).any())]
    if not holders:
        raise AtollError(
            f"No party in {folders[0].parent} has a label of a node that all of them hold; label some nodes at one of them."
        )
    first, reference = holders[0]
    for path, graph in holders[1:]:
        if graph.class_names != reference.class_names:
            raise AtollError(f"{first} and {path} name their classes differently; put the same classes.txt into both.")
    return max(graph.num_classes for _, graph in holders), reference.class_names


def _check_agreement(folders: Sequence[Path], graphs: Sequence[Graph], common: pd.Index) -> None:
    """Refuse two parties that give one node different labels or splits."""
    label = torch.full((len(common),), -1)
    role = torch.full((len(common),), -1)
    for path, graph in zip(folders, graphs, strict=True):
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


def _with_roles(blocks: Sequence[Graph]) -> list[Graph]:
    """A node's split is that of any party that gives one, at every party that has its label."""
    role = torch.stack([_roles(block) for block in blocks]).amax(0)
    known = [block.y >= 0 for block in blocks]
    return [
        replace(block, train=(role == 0) & mine, val=(role == 1) & mine, test=(role == 2) & mine)
        for block, mine in zip(blocks, known, strict=True)
    ]


def _padded(x: sp.csr_array | Tensor, width: int, sparse: bool) -> sp.csr_array | Tensor:
    if sparse and not isinstance(x, Tensor):
        return sp.csr_array((x.data, x.indices, x.indptr), shape=(x.shape[0], width))
    dense = x if isinstance(x, Tensor) else torch.from_numpy(x.toarray())
    return torch.nn.functional.pad(dense, (0, width - dense.shape[1]))
