"""Graphs of several parties in one form: the same columns and classes in the same order, features all sparse or all dense.

A deployed federation agrees on the same form by digests (`deploy.description`), and refuses what is refused here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.data.target_columns import with_targets
from atoll.errors import AtollError
from atoll.graphs.graph import Graph


def align(graphs: Sequence[Graph], where: Sequence[str], *, extend_classes: bool = False) -> list[Graph]:
    """The graphs with the columns and classes of the first that names them, in its order.

    `where` names the graphs in error messages. With `extend_classes` (graphs of one script, not of sites), classes are those of
    all graphs together, sorted by name, and a graph without labels has them, too.
    """
    graphs = _aligned_columns(graphs, where)
    graphs = _aligned_classes(graphs, where, extend_classes)
    if len({isinstance(graph.x, Tensor) for graph in graphs}) > 1:
        graphs = [replace(graph, x=_dense(graph.x)) for graph in graphs]
    return list(graphs)


def _dense(x: sp.csr_array | Tensor) -> Tensor:
    return x if isinstance(x, Tensor) else torch.from_numpy(x.toarray())


def _aligned_columns(graphs: Sequence[Graph], where: Sequence[str]) -> Sequence[Graph]:
    named = [index for index, graph in enumerate(graphs) if graph.feature_names is not None]
    first = named[0] if named else 0
    reference = graphs[first].feature_names
    result = list(graphs)
    for index, graph in enumerate(graphs):
        if reference is not None and graph.feature_names is not None:
            _require_same(where[first], where[index], reference, graph.feature_names, "column")
            result[index] = with_columns(graph, _permutation(graph.feature_names, reference))
        elif graph.num_features != graphs[first].num_features:
            raise AtollError(
                f"{where[first]} has {graphs[first].num_features} features and {where[index]} has {graph.num_features}; "
                "parties that share a model need the same ones."
            )
    return result


def _aligned_classes(graphs: Sequence[Graph], where: Sequence[str], extend: bool) -> Sequence[Graph]:
    if extend:
        graphs = _with_all_classes(graphs)
    reference = graphs[0].class_names
    for graph, path in zip(graphs, where, strict=True):
        if (graph.class_names is None) != (reference is None):
            named, other = (where[0], path) if reference is not None else (path, where[0])
            raise AtollError(f"{named} names its classes and {other} does not; put the same classes.txt into both.")
    if reference is not None:
        result = []
        for graph, path in zip(graphs, where, strict=True):
            noun = "class" if graph.y_columns is None else "label or value"
            _require_same(where[0], path, reference, graph.class_names or (), noun)
            result.append(with_classes(graph, _permutation(graph.class_names or (), reference)))
        return result
    most = max(graph.num_classes for graph in graphs)
    for graph, path in zip(graphs, where, strict=True):
        if graph.num_classes != graphs[0].num_classes and not extend:
            raise AtollError(
                f"{where[0]} has {graphs[0].num_classes} classes and {path} has {graph.num_classes}; "
                "put the same classes.txt into both."
            )
    return [replace(graph, num_classes=most) for graph in graphs]


def _with_all_classes(graphs: Sequence[Graph]) -> Sequence[Graph]:
    """Graphs whose named classes differ get the names of all of them; so does a graph without labels."""
    named = [graph.class_names for graph in graphs if graph.class_names is not None]
    if not named:
        return graphs
    names = (
        named[0]
        if all(set(each) == set(named[0]) for each in named)
        else tuple(sorted({name for each in named for name in each}))
    )
    result = []
    for graph in graphs:
        if graph.class_names is not None and graph.y_columns is not None:
            graph = with_targets(graph, _placed(graph.y_columns, graph.class_names, names), names)
        elif graph.class_names is not None:
            target = torch.tensor([names.index(name) for name in graph.class_names] or [0])
            y = torch.where(graph.y >= 0, target[graph.y.clamp(min=0)], graph.y)
            graph = replace(graph, y=y, class_names=names, num_classes=len(names))
        elif graph.num_classes == 0:
            graph = replace(graph, class_names=names, num_classes=len(names))
        result.append(graph)
    return result


def _placed(targets: Tensor, names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """The targets in the columns of these names; those that are lacking are not known."""
    made = torch.full((len(targets), len(wanted)), torch.nan)
    made[:, [list(wanted).index(name) for name in names]] = targets
    return made


def _require_same(first: str, other: str, reference: Sequence[str], names: Sequence[str], noun: str) -> None:
    """Refuse names that only one of two parties has."""
    remedy = "put the same classes.txt into both" if noun == "class" else "give both the same columns"
    for here, there, mine, theirs in ((other, first, names, reference), (first, other, reference, names)):
        extra = [name for name in mine if name not in set(theirs)]
        if extra:
            raise AtollError(f"{here} has the {noun} {extra[0]!r}, which {there} does not have; {remedy}.")


def _permutation(names: Sequence[str], wanted: Sequence[str]) -> Tensor:
    index = {name: number for number, name in enumerate(names)}
    return torch.tensor([index[name] for name in wanted], dtype=torch.int64)


def with_columns(graph: Graph, permutation: Tensor) -> Graph:
    """The graph with its columns in another order: column i is the present column `permutation[i]`."""
    if torch.equal(permutation, torch.arange(len(permutation))):
        return graph
    names = tuple((graph.feature_names or ())[index] for index in permutation.tolist())
    if isinstance(graph.x, Tensor):
        return replace(graph, x=graph.x.index_select(1, permutation), feature_names=names)
    target = torch.empty_like(permutation).scatter_(0, permutation, torch.arange(len(permutation))).numpy()
    indices = target[graph.x.indices].astype(graph.x.indices.dtype)
    x = sp.csr_array((graph.x.data, indices, graph.x.indptr), shape=graph.x.shape, copy=True)
    x.sort_indices()
    return replace(graph, x=x, feature_names=names)


def with_classes(graph: Graph, permutation: Tensor) -> Graph:
    """The graph with its classes in another order: class i is the present class `permutation[i]`."""
    names = tuple((graph.class_names or ())[index] for index in permutation.tolist())
    if graph.y_columns is not None:
        return replace(graph, y_columns=graph.y_columns[:, permutation], class_names=names)
    target = torch.empty_like(permutation).scatter_(0, permutation, torch.arange(len(permutation)))
    y = torch.where(graph.y >= 0, target[graph.y.clamp(min=0)], graph.y)
    return replace(graph, y=y, class_names=names)
