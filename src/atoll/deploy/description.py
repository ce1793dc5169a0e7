"""Describing a site's graph by digests, and reordering it as the federation agreed.

Names of columns and classes and ids of nodes may be secret, so a site sends keyed digests of them. The key is in the sites' kits
but not in the server's: the server can compare sites, but it cannot guess a name, within a federation or across them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.alignment import with_classes, with_columns
from atoll.deploy.digests import digests
from atoll.deploy.node_matching import describe_nodes
from atoll.deploy.table_forms import column_documents, digested
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.graphs.graph import Graph

SCALING_TOLERANCE = 1e-3  # of row sums from 1, and of means and deviations from 0 and 1, in scaled features
SCALINGS = {
    "rows": "add up to 1 at every node",
    "standard": "have mean 0 and deviation 1 in every column",
    "unit": "lie between 0 and 1",
    "none": "are not scaled in any of the usual ways",
}


def describe(graph: Graph, scenario: str, key: bytes, *, first: bool = True) -> Fields:
    """What sites are compared by: the numbers of features and classes, and digests of their names.

    Where columns need an encoding, what each of them is (`table`), and digests of those that are `ignored`. Overlapping parties
    add the nodes that have a role, sorted by digest; vertical ones add all nodes, in their order if the site is the `first`.
    """
    description: Fields = {
        "features": graph.num_features if graph.table is None else len(graph.table.columns),
        "classes": graph.num_classes,
        "names": digests(graph.class_names or (), "class", key),
    }
    if scenario == "vertical":
        return description | describe_nodes(graph, key, in_order=first)
    description |= {"columns": digests(_columns(graph), "column", key), "scaling": scaling(graph)}
    if graph.table is not None:
        documents = column_documents(digested(graph.table.columns, key))
        description |= {"table": documents, "ignored": digests(graph.table.ignored, "column", key)}
    if scenario == "overlapping":
        role = torch.where(graph.train, 0, torch.where(graph.val, 1, torch.where(graph.test, 2, -1)))
        nodes = (role >= 0).nonzero()[:, 0]
        shared, order = digests(map(str, graph.ids[nodes].tolist()), "node", key).sort()
        description |= {"shared": shared, "roles": role[nodes][order].to(torch.int8)}
    return description


def _columns(graph: Graph) -> tuple[str, ...]:
    return graph.feature_names or () if graph.table is None else graph.table.column_names


def scaling(graph: Graph) -> str:
    """How the features appear to be scaled: a key of SCALINGS."""
    x = graph.x.numpy() if isinstance(graph.x, Tensor) else graph.x
    values: NDArray[np.float32] = np.asarray(x.data if sp.issparse(x) else x)
    totals = np.asarray(abs(x).sum(1, dtype=np.float64)).ravel()
    if bool((np.abs(totals[totals > 0] - 1) <= SCALING_TOLERANCE).all()) and bool((totals > 0).any()):
        return "rows"
    if values.size == 0 or (float(values.min()) >= 0 and float(values.max()) <= 1):
        return "unit"
    if not sp.issparse(x) and len(x) > 1:
        mean, deviation = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
        varying = deviation > SCALING_TOLERANCE
        near = (np.abs(mean) <= SCALING_TOLERANCE) & (
            np.abs(deviation - 1) <= max(SCALING_TOLERANCE, 1 / len(x))
        )  # by n or by n − 1
        if varying.any() and bool((near | ~varying).all()):
            return "standard"
    return "none"


def reorder(graph: Graph, order: Fields, key: bytes, notify: Callable[[str], None]) -> Graph:
    """The graph with columns and classes in the order of the digests in `order`; unnamed ones stay as they are."""
    columns, names = (_digests_in(order, field) for field in ("columns", "names"))
    if graph.feature_names is not None and len(columns):
        permutation = _permutation(digests(graph.feature_names, "column", key), columns)
        if permutation is None:
            log_differences(graph, "columns", columns, "the federation", key, notify)
            raise AtollError("its columns are not those of the federation; its log lists them.")
        graph = with_columns(graph, permutation)
    if graph.class_names is not None and len(names):
        permutation = _permutation(digests(graph.class_names, "class", key), names)
        if permutation is None:
            log_differences(graph, "names", names, "the federation", key, notify)
            raise AtollError("its classes are not those of the federation; its log lists them.")
        graph = with_classes(graph, permutation)
    return graph


def log_differences(graph: Graph, field: str, others: Tensor, other: str, key: bytes, notify: Callable[[str], None]) -> None:
    """List, in the site's own log, its columns or classes that another site lacks, and count those that it lacks itself.

    For the field `table`, `others` are columns that both have: the site says what they are here.
    """
    if field == "table":
        columns = graph.table.columns if graph.table is not None else ()
        here = torch.isin(digests([column.name for column in columns], "column", key), others).tolist()
        for column in [column for column, listed in zip(columns, here, strict=True) if listed]:
            notify(f"column {column.name!r}, a {column.kind} here, is not encoded as at {other}; agree on one features.toml")
        return
    kind, noun = ("column", "columns") if field == "columns" else ("class", "classes")
    names = _columns(graph) if kind == "column" else graph.class_names or ()
    local = digests(names, kind, key)
    extra = [name for name, known in zip(names, torch.isin(local, others).tolist(), strict=True) if not known]
    lacking = int((~torch.isin(others, local)).sum())
    listed = ", ".join(map(repr, extra[:10])) + (f" and {len(extra) - 10} more" if len(extra) > 10 else "")
    notify(f"{noun} here and not at {other}: {listed or 'none'}; {noun} there and not here: {lacking}")


def _digests_in(order: Fields, field: str) -> Tensor:
    value = order.get(field, torch.empty(0, dtype=torch.int64))
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.dim() != 1:
        raise AtollError("the order of columns and classes could not be read.")
    return value


def _permutation(local: Tensor, wanted: Tensor) -> Tensor | None:
    """The index of each wanted digest among the local ones; None unless both hold the same digests, each once."""
    sorted_local, index = local.sort()
    sorted_wanted, order = wanted.sort()
    if not torch.equal(sorted_local, sorted_wanted) or bool((sorted_local[1:] == sorted_local[:-1]).any()):
        return None
    return torch.empty_like(index).scatter_(0, order, index)
