"""Partitions from Python: node lists, party numbers, functions; what is refused and what is said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atoll.data.script_partition import node_lists
from atoll.errors import AtollError, AtollWarning
from graphs import make_graph

GRAPH = make_graph(6, 10, seed=1)
WANTED = [[0, 1, 4], [2, 3, 5]]


def lists(value: Any, ids: list[str] | None = None) -> list[list[int]]:
    """The rows of each party."""
    return [rows.tolist() for rows in node_lists(value, GRAPH, lambda: ids)]


@pytest.mark.parametrize(
    "value",
    [
        WANTED,
        ([4, 1, 0], np.array([5, 3, 2])),
        [torch.tensor([0, 1, 4]), {2, 3, 5}],
        np.array(WANTED),
        [0, 0, 1, 1, 0, 1],
        np.array([0, 0, 1, 1, 0, 1], dtype=np.float32),
        torch.tensor([0, 0, 1, 1, 0, 1]),
        {0: 0, 1: 0, 2: 1, 3: 1, 4: 0, 5: 1},
        lambda graph: [graph.ids[[0, 1, 4]], graph.ids[[2, 3, 5]]],
        lambda graph: np.isin(np.arange(graph.num_nodes), [2, 3, 5]).astype(int),
    ],
)
def test_the_same_partition_in_every_form(value: Any) -> None:
    """Lists, arrays, tensors and sets; in any order; a number per node; a function of the graph."""
    assert lists(value) == WANTED


def test_nodes_by_id() -> None:
    """Texts are ids; numbers are ids where the ids are numbers; a function sees rows."""
    names = ["a", "b", "c", "d", "e", "f"]
    assert lists([["e", "a", "b"], list("cdf")], names) == WANTED
    assert lists({name: int(name in "cdf") for name in names}, names) == WANTED
    assert lists(WANTED, names) == WANTED
    assert lists([[5, 4, 1], [3, 2, 0]], ["5", "4", "3", "2", "1", "0"]) == WANTED
    assert lists(lambda graph: WANTED, ["5", "4", "3", "2", "1", "0"]) == WANTED


def test_shared_nodes_and_nodes_of_nobody() -> None:
    """Parties may share nodes; nodes that nobody holds are counted in a warning."""
    with pytest.warns(AtollWarning, match="partition: 2 of 6 nodes are at no party"):
        assert lists([[0, 1, 2], [2, 3]]) == [[0, 1, 2], [2, 3]]
    with pytest.warns(AtollWarning, match="partition: 1 of 6 nodes"):
        assert lists([0, 0, 1, 1, -1, 1]) == [[0, 1], [2, 3, 5]]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([[0, 1], [6]], "party 1 names the node 6, but the graph's nodes are 0 to 5"),
        ([[0, 1], [-1]], "names the node -1"),
        ([[0, 0], [1]], "party 0 names the node 0 twice"),
        ([[0, 1.5], [2]], r"names the node 1\.5"),
        ([["a"], ["b"]], "names the node 'a'"),
        ([0, 1], "2 party numbers for 6 nodes"),
        ([0, 0, 1, 1, 0, "x"], "node 5 the party 'x'"),
        ([0, 0, 1, 1, 0, -2], "node 5 the party -2"),
        ([0, 0, 2, 2, 0, 2], "party 1 has no node"),
        ([-1] * 6, "every node to nobody"),
        ([[True] * 6, [False] * 6], "party 0 is a mask"),
        ([[0], 1], "mixes lists and single values"),
        (5, "of type int"),
        (lambda graph: None, "of type NoneType"),
        ({0: "north"}, "the party 'north'"),
    ],
)
def test_what_is_refused(value: Any, sentence: str) -> None:
    """One sentence."""
    with pytest.raises(AtollError, match=sentence):
        lists(value)


def test_an_unknown_id() -> None:
    """One sentence."""
    with pytest.raises(AtollError, match="party 0 names the node 'z', which the graph does not have"):
        lists([["z"]], list("abcdef"))
