"""The form of a site's graph, told by digests; and the graph put in the order that the federation agreed on.

Names of columns and classes and numbers of nodes may be secrets, so a site sends keyed digests of them. The key is in the sites'
kits and not in the server's: sites can be compared, but the server cannot look a name up, here or across federations.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.deploy.kit import NAMES_KEY
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.graphs.graph import Graph

SCALING_TOLERANCE = 1e-3  # how near sums are to 1, and means and deviations to 0 and 1, where features were scaled
SCALINGS = {
    "rows": "add up to 1 at every node",
    "standard": "have mean 0 and deviation 1 in every column",
    "unit": "lie between 0 and 1",
    "none": "are not scaled in any of the usual ways",
}


def digest_key(kit: Path | None) -> bytes:
    """The key of the digests; none where sites are simulated."""
    if kit is None:
        return b""
    try:
        return bytes.fromhex((kit / NAMES_KEY).read_text().strip())
    except (OSError, ValueError) as error:
        raise AtollError(f"its kit has no readable {NAMES_KEY}; make new kits with this version's `atoll provision`.") from error


def digests(values: Iterable[str], kind: str, key: bytes) -> Tensor:
    """(n,) int64: a keyed digest of each value; the same text as another kind of thing has another one."""
    person = kind.encode()
    hashed = [hashlib.blake2b(value.encode(), digest_size=8, key=key, person=person).digest() for value in values]
    return torch.tensor([int.from_bytes(each, "little", signed=True) for each in hashed], dtype=torch.int64)


def describe(graph: Graph, setting: str, key: bytes) -> Fields:
    """What sites are compared by: numbers of features and classes, and digests of what they are called.

    Overlapping parties add the nodes that have a role, in the order of their digests, vertical ones one digest of all nodes.
    """
    about: Fields = {
        "features": graph.num_features,
        "classes": graph.num_classes,
        "names": digests(graph.class_names or (), "class", key),
    }
    if setting == "vertical":
        ids = hashlib.blake2b(graph.ids.numpy().tobytes(), digest_size=32, key=key, person=b"nodes")
        return about | {"nodes": graph.num_nodes, "ids": ids.hexdigest()}
    about |= {"columns": digests(graph.feature_names or (), "column", key), "scaling": scaling(graph)}
    if setting == "overlapping":
        role = torch.where(graph.train, 0, torch.where(graph.val, 1, torch.where(graph.test, 2, -1)))
        chosen = (role >= 0).nonzero()[:, 0]
        shared, order = digests(map(str, graph.ids[chosen].tolist()), "node", key).sort()
        about |= {"shared": shared, "roles": role[chosen][order].to(torch.int8)}
    return about


def scaling(graph: Graph) -> str:
    """Which of the usual ways the features look scaled in: a key of SCALINGS."""
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


def reorder(graph: Graph, order: Fields, key: bytes, say: Callable[[str], None]) -> Graph:
    """The graph with columns and classes in the order of the digests in `order`; what has no names is left as it is."""
    columns, names = (_listed(order, field) for field in ("columns", "names"))
    if graph.feature_names is not None and len(columns):
        places = _permutation(digests(graph.feature_names, "column", key), columns)
        if places is None:
            log_differences(graph, "columns", columns, "the federation", key, say)
            raise AtollError("its columns are not those of the federation; its log names them.")
        graph = _with_columns(graph, places)
    if graph.class_names is not None and len(names):
        places = _permutation(digests(graph.class_names, "class", key), names)
        if places is None:
            log_differences(graph, "names", names, "the federation", key, say)
            raise AtollError("its classes are not those of the federation; its log names them.")
        graph = _with_classes(graph, places)
    return graph


def log_differences(graph: Graph, field: str, others: Tensor, whose: str, key: bytes, say: Callable[[str], None]) -> None:
    """Name, in the site's own log, its columns or classes that another does not have, and count those that it lacks."""
    kind, noun = ("column", "columns") if field == "columns" else ("class", "classes")
    called = (graph.feature_names if kind == "column" else graph.class_names) or ()
    own = digests(called, kind, key)
    extra = [name for name, there in zip(called, torch.isin(own, others).tolist(), strict=True) if not there]
    lacking = int((~torch.isin(others, own)).sum())
    listed = ", ".join(map(repr, extra[:10])) + (f" and {len(extra) - 10} more" if len(extra) > 10 else "")
    say(f"{noun} here and not at {whose}: {listed or 'none'}; {noun} there and not here: {lacking}")


def _listed(order: Fields, field: str) -> Tensor:
    value = order.get(field, torch.empty(0, dtype=torch.int64))
    if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.dim() != 1:
        raise AtollError("the order of columns and classes could not be read.")
    return value


def _permutation(own: Tensor, wanted: Tensor) -> Tensor | None:
    """Where each wanted digest stands among the own ones; None where they are not the same ones, each once."""
    sorted_own, place = own.sort()
    sorted_wanted, order = wanted.sort()
    if not torch.equal(sorted_own, sorted_wanted) or bool((sorted_own[1:] == sorted_own[:-1]).any()):
        return None
    return torch.empty_like(place).scatter_(0, order, place)


def _with_columns(graph: Graph, places: Tensor) -> Graph:
    if torch.equal(places, torch.arange(len(places))):
        return graph
    names = tuple((graph.feature_names or ())[place] for place in places.tolist())
    if isinstance(graph.x, Tensor):
        return replace(graph, x=graph.x.index_select(1, places), feature_names=names)
    target = torch.empty_like(places).scatter_(0, places, torch.arange(len(places))).numpy()
    indices = target[graph.x.indices].astype(graph.x.indices.dtype)
    x = sp.csr_array((graph.x.data, indices, graph.x.indptr), shape=graph.x.shape, copy=True)
    x.sort_indices()
    return replace(graph, x=x, feature_names=names)


def _with_classes(graph: Graph, places: Tensor) -> Graph:
    names = tuple((graph.class_names or ())[place] for place in places.tolist())
    target = torch.empty_like(places).scatter_(0, places, torch.arange(len(places)))
    y = torch.where(graph.y >= 0, target[graph.y.clamp(min=0)], graph.y)
    return replace(graph, y=y, class_names=names)
