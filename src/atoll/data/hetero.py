"""Graphs of PyG with several types of nodes and edges: `torch_geometric.data.HeteroData` → a graph of one type."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from atoll.data.builder import plain
from atoll.data.pyg import ID_NAMES
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.edges import stacked_weights

PER_NODE = ("y", "train_mask", "val_mask", "test_mask")


def merged_types(data: Any, where: str) -> SimpleNamespace:
    """What a `Data` of all nodes and edges would hold; the nodes of the type that has `y` are labeled, all others are not.

    Each type of node keeps its features in columns of its own (one constant column where it has none), so that no two
    features of different meaning share a column.
    """
    types = list(data.node_types)
    labeled = [name for name in types if getattr(data[name], "y", None) is not None]
    if len(labeled) != 1:
        which = f"{', '.join(labeled)} have" if labeled else "no type of node has"
        raise AtollError(f"{where}: {which} labels `y`; exactly one type of node is predicted: give `y` to it alone.")
    sizes = {name: _size(data[name], name, where) for name in types}
    starts = dict(zip(types, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    blocks, names = [], []
    for name in types:
        x = getattr(data[name], "x", None)
        block = np.ones((sizes[name], 1), np.float32) if x is None else plain(x, f"{where}, {name}")
        blocks.append(block)
        names += [name] if x is None else [f"{name}.{column}" for column in range(block.shape[1])]
    kinds = list(data.edge_types)
    edges = [torch.empty(2, 0, dtype=torch.int64)]
    for source, kind, target in kinds:
        ends = data[source, kind, target].edge_index.cpu()
        edges.append(ends + torch.tensor([[starts[source]], [starts[target]]]))
    given = [torch.ones(0), *(getattr(data[kind], "edge_weight", None) for kind in kinds)]
    weights = stacked_weights(edges, given) if any(each is not None for each in given[1:]) else None
    extra = {"edge_attr": True} if any(getattr(data[kind], "edge_attr", None) is not None for kind in kinds) else {}
    start, total = starts[labeled[0]], sum(sizes.values())
    fields = {name: _placed(data[labeled[0]], name, start, total) for name in PER_NODE}
    ids = _ids(data, types)
    _warn(where, types, [kind for _, kind, _ in kinds], labeled[0])
    return SimpleNamespace(
        x=sp.csr_array(sp.block_diag(blocks, format="csr")),
        edge_index=torch.cat(edges, 1),
        edge_weight=weights,
        feature_names=names,
        **extra,
        **{name: value for name, value in fields.items() if value is not None},
        **({} if ids is None else {"name": ids}),
    )


def _size(store: Any, name: str, where: str) -> int:
    nodes = store.num_nodes
    if nodes is None:
        raise AtollError(f"{where}: the number of nodes of type {name!r} is not known; give it `x` or `num_nodes`.")
    return int(nodes)


def _placed(store: Any, name: str, start: int, total: int) -> torch.Tensor | None:
    """A field of the labeled type for all nodes: unlabeled, or in no split, elsewhere."""
    value = getattr(store, name, None)
    if value is None:
        return None
    value = torch.as_tensor(value).cpu()
    result = value.new_full((total, *value.shape[1:]), -1 if name == "y" else 0)
    result[start : start + len(value)] = value
    return result


def _ids(data: Any, types: list[str]) -> list[str] | None:
    """The nodes' ids with their type in front, where every type has ids of the same name."""
    for field in ID_NAMES:
        values = [getattr(data[name], field, None) for name in types]
        if all(value is not None and not isinstance(value, str) for value in values):
            return [f"{name}:{each}" for name, value in zip(types, values, strict=True) for each in torch_list(value)]
    return None


def torch_list(value: Any) -> list[Any]:
    """A tensor's or a list's entries."""
    return list(value.tolist() if hasattr(value, "tolist") else value)


def _warn(where: str, types: list[str], kinds: list[str], labeled: str) -> None:
    nodes = f"{len(types)} types of nodes ({', '.join(types)})" if len(types) > 1 else "one type of node"
    edges = f"{len(kinds)} types of edges ({', '.join(dict.fromkeys(kinds))})" if len(kinds) > 1 else "one type of edge"
    warnings.warn(
        f"{where} is heterogeneous: its {nodes} and {edges} become one graph, each type of node has columns of its own, "
        f"the types of edges are lost, and {labeled!r} is predicted.",
        AtollWarning,
        stacklevel=4,
    )
