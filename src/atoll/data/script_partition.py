"""Partitions from Python: lists of nodes, a party number per node, or a function of the graph that gives either.

[[0, 1, 4], [2, 3]]           each party's nodes: rows, or ids where the nodes have ids
[0, 0, 1, 1, -1]              each node's party; −1: nobody holds it
{"ann": 0, "bob": 1}          the same by id
lambda graph: …               either of them, of the atoll Graph; nodes are its rows
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from atoll.data.builder import Ints, distinct
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph

WHAT = "a list of node lists, an array with one party number per node, or a function of the graph that gives one of them"


def node_lists(value: Any, graph: Graph, ids: Callable[[], Sequence[str] | None]) -> list[Ints]:
    """The rows that each party holds; `ids` gives the nodes' ids, where they have any."""
    names: Sequence[str] | None = None
    if callable(value):
        value = value(graph)
    else:
        names = ids()
    if isinstance(value, Mapping):
        lists = _of_mapping(value, graph.num_nodes, names)
    else:
        items = _items(value)
        nested = [isinstance(item, Iterable) and not isinstance(item, str) for item in items]
        if items and all(nested):
            lists = [_rows(item, number, graph.num_nodes, names) for number, item in enumerate(items)]
        elif any(nested):
            raise AtollError(f"partition mixes lists and single values; give {WHAT}.")
        else:
            lists = _of_numbers(items, graph.num_nodes)
    _warn_left_out(lists, graph.num_nodes)
    return lists


def _items(value: Any) -> list[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise AtollError(f"partition is of type {type(value).__name__}; give {WHAT}.")
    return list(value)


def _of_numbers(items: list[Any], nodes: int) -> list[Ints]:
    """From one party number per node."""
    if len(items) != nodes:
        raise AtollError(f"partition has {len(items)} party numbers for {nodes} nodes; give one per node, -1 for nobody.")
    wrong = next((row for row, item in enumerate(items) if not _is_whole(item) or item < -1), None)
    if wrong is not None:
        raise AtollError(f"partition gives node {wrong} the party {items[wrong]!r}; number parties from 0, -1 is nobody.")
    owner = np.array(items, dtype=np.float64).astype(np.int64)
    if not (owner >= 0).any():
        raise AtollError("partition gives every node to nobody (-1); number parties from 0.")
    empty = np.flatnonzero(np.bincount(owner[owner >= 0]) == 0)
    if len(empty):
        raise AtollError(
            f"partition numbers parties up to {owner.max()}, but party {empty[0]} has no node; number them without a gap."
        )
    return [np.flatnonzero(owner == party) for party in range(int(owner.max()) + 1)]


def _of_mapping(value: Mapping[Any, Any], nodes: int, names: Sequence[str] | None) -> list[Ints]:
    """From one party number per id (or row)."""
    rows = _rows(list(value), None, nodes, names)
    owner: list[Any] = [-1] * nodes
    for row, party in zip(rows.tolist(), value.values(), strict=True):
        owner[row] = party
    return _of_numbers(owner, nodes)


def _rows(items: Any, party: int | None, nodes: int, names: Sequence[str] | None) -> Ints:
    """The rows of one party's nodes, by id where the nodes have ids, else by row."""
    of = "partition" if party is None else f"partition: party {party}"
    if names is None and (numbers := _integers(items)) is not None and _in_range(numbers, nodes):
        return _once(numbers, numbers, of)
    listed = _items(items)
    if party is not None and listed and all(isinstance(item, (bool, np.bool_)) for item in listed):
        raise AtollError(f"{of} is a mask; give node numbers, for instance mask.nonzero().")
    if names is not None and (any(isinstance(item, str) for item in listed) or _are_numbers(names)):
        known = {name: row for row, name in enumerate(names)}
        texts = [str(item) for item in listed]
        unknown = next((text for text in texts if text not in known), None)
        if unknown is not None:
            raise AtollError(f"{of} names the node {unknown!r}, which the graph does not have; give the nodes' ids.")
        rows = np.array([known[text] for text in texts], dtype=np.int64)
    else:
        wrong = next((item for item in listed if not _is_whole(item) or not 0 <= item < nodes), None)
        if wrong is not None:
            raise AtollError(f"{of} names the node {wrong!r}, but the graph's nodes are 0 to {nodes - 1}.")
        rows = np.array(listed, dtype=np.float64).astype(np.int64)
    return _once(rows, listed, of)


def _once(rows: Ints, listed: Sequence[Any] | Ints, of: str) -> Ints:
    """The rows, ascending; refuse a node that is named twice."""
    ascending = np.sort(rows)
    if (ascending[1:] == ascending[:-1]).any():
        twice = listed[int(np.flatnonzero(np.isin(rows, np.flatnonzero(np.bincount(rows) > 1)))[0])]
        raise AtollError(f"{of} names the node {twice} twice; name each node once.")
    return ascending


def _integers(items: Any) -> Ints | None:
    """The rows that an array or a tensor of whole numbers holds, which need not be looked at one by one."""
    array = items if isinstance(items, np.ndarray) else items.numpy() if isinstance(items, Tensor) and items.is_cpu else None
    return array.astype(np.int64) if array is not None and array.ndim == 1 and array.dtype.kind in "iu" else None


def _in_range(rows: Ints, nodes: int) -> bool:
    return not len(rows) or bool(rows.min() >= 0 and rows.max() < nodes)


def _are_numbers(names: Sequence[str]) -> bool:
    """Whether the ids are whole numbers, so that a number in a partition is an id."""
    return all(name.isascii() and name.isdigit() for name in names)


def _is_whole(item: Any) -> bool:
    return isinstance(item, (int, float, np.integer, np.floating)) and not isinstance(item, bool) and item == int(item)


def _warn_left_out(lists: Sequence[Ints], nodes: int) -> None:
    held = len(distinct(np.concatenate(lists))) if lists else 0
    if held < nodes:
        sentence = f"partition: {nodes - held:,} of {nodes:,} nodes are at no party and left out."
        warnings.warn(sentence, AtollWarning, stacklevel=4)
