"""Balanced Louvain: the released lists of FedTAD, FedGTA and OpenFGL node by node, and what holds on any graph."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.data.balanced import FEDGTA, FillRule, communities, fill, louvain_balanced
from atoll.data.named_partitions import digest
from atoll.errors import AtollError

ROOT = Path(os.environ.get("ATOLL_DATA", ""))
needs_data = pytest.mark.skipif(not (ROOT / "CiteSeer" / "raw").is_dir(), reason="no Planetoid files under ATOLL_DATA")


@needs_data
@pytest.mark.parametrize(
    ("dataset", "parties", "sizes", "expected"),
    [
        ("cora", 5, [541, 541, 525, 558, 543], "d075a90a0f14108c"),
        ("cora", 10, [276, 273, 277, 272, 271, 273, 270, 232, 278, 286], "ab36b9aa3bb9a5d2"),
        ("cora", 20, None, "ab5d3bf14c553896"),
        ("citeseer", 5, [665, 653, 677, 667, 665], "d930274e823e37b3"),
        ("citeseer", 10, None, "405802e1a6baaa4a"),
        ("citeseer", 20, None, "eeb465e84e2c3f80"),
    ],
)
def test_fedtad(dataset: str, parties: int, sizes: list[int] | None, expected: str) -> None:
    """The parties that FedTAD's rule gives with its seed; Cora-10 is the released one."""
    lists = louvain_balanced(atoll.load(dataset), parties, seed=2024)
    assert sizes is None or [len(nodes) for nodes in lists] == sizes
    assert digest(lists)[:16] == expected


@needs_data
@pytest.mark.parametrize(("dataset", "expected"), [("cora", "62ca0a62f50021fb"), ("citeseer", "49d69b5b6c0b4fd4")])
def test_fedgta(dataset: str, expected: str) -> None:
    """FedGTA's released lists, whose repeats within a party are dropped."""
    graph = atoll.load(dataset)
    assert digest(louvain_balanced(graph, 10, seed=2023, rule=FEDGTA))[:16] == expected
    rows = fill(communities(graph, 2023), graph.num_nodes, 10, FEDGTA)
    assert sum(map(len, rows)) == (2712 if dataset == "cora" else graph.num_nodes)


@needs_data
def test_openfgl() -> None:
    """OpenFGL's committed Cora-20."""
    lists = louvain_balanced(atoll.load("cora"), 20, seed=0, program="scikit-network")
    sizes = [153, 144, 142, 141, 139, 136, 136, 141, 137, 139, 137, 135, 135, 135, 134, 82, 145, 130, 122, 145]
    assert [len(nodes) for nodes in lists] == sizes
    assert digest(lists)[:16] == "1c367e2250208b04"


@pytest.mark.parametrize("parties", [1, 2, 3, 7])
@pytest.mark.parametrize("seed", range(5))
def test_no_node_is_lost(parties: int, seed: int) -> None:
    """Every node has exactly one party, whatever the communities are."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, rng.integers(1, 40), 500)
    pieces = [np.flatnonzero(label == one) for one in np.unique(label)]
    lists = fill(pieces, 500, parties, FillRule(slack=20, cut=20))
    assert sorted(np.concatenate(lists).tolist()) == list(range(500))


def test_too_many_parties() -> None:
    """Pieces must have at least one node."""
    with pytest.raises(AtollError, match="use at most --parties"):
        louvain_balanced(atoll.load("csbm", nodes=200), 20, seed=0)
