"""Named partitions: the published lists by digest, and what is said of other graphs and numbers."""

from __future__ import annotations

import hashlib
import os
import random
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.data.named_partitions import digest, named_partitions
from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.data.statistics import partition_statistics
from atoll.errors import AtollError
from atoll.runs.config import resolve

ROOT = Path(os.environ.get("ATOLL_DATA", ""))
needs_data = pytest.mark.skipif(not (ROOT / "CiteSeer" / "raw").is_dir(), reason="no Planetoid files under ATOLL_DATA")
SHIPPED = [name for name in named_partitions() if not name.startswith("fedspray_")]


def test_the_digest_is_that_of_the_bytes() -> None:
    """Sorted, eight bytes each, a bar after each party; the order of parties counts, that of their nodes does not."""
    raw = b"".join(int(node).to_bytes(8, "little") for node in (0, 2)) + b"|" + (1).to_bytes(8, "little") + b"|"
    assert digest([np.array([2, 0]), np.array([1])]) == hashlib.sha256(raw).hexdigest()
    assert digest([np.array([1]), np.array([0, 2])]) != hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_lists_are_whole(name: str) -> None:
    """Every node belongs to one party; a split gives every node at most one role and every party training nodes."""
    named = named_partitions()[name]
    lists, roles = named.lists()
    assert sorted(np.concatenate(lists).tolist()) == list(range(named.nodes))
    assert len(lists) == named.parties
    assert (roles is not None) == bool(named.split)
    assert roles is None or all((roles[nodes] == 0).any() for nodes in lists)


PUBLISHED = {  # as `test_balanced` gets them from the rules
    "fedtad_cora_5": "d075a90a0f14108c",
    "fedtad_cora_10": "ab36b9aa3bb9a5d2",
    "fedtad_cora_20": "ab5d3bf14c553896",
    "fedtad_citeseer_5": "d930274e823e37b3",
    "fedtad_citeseer_10": "405802e1a6baaa4a",
    "fedtad_citeseer_20": "eeb465e84e2c3f80",
    "fedgta_cora_10": "62ca0a62f50021fb",
    "fedgta_citeseer_10": "49d69b5b6c0b4fd4",
    "openfgl_cora_20": "1c367e2250208b04",
}


def test_published_digests() -> None:
    """The lists in the package are those with the published digests, all of them."""
    assert {name: digest(named_partitions()[name].lists()[0])[:16] for name in SHIPPED} == PUBLISHED


@needs_data
@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("fedtad")])
def test_fedtad_masks_are_those_of_the_rule(name: str) -> None:
    """Party by party, class by class: shuffled by Python's `random`, seed 2024; ⌊.2c⌋ train, ⌊.4c⌋ validate, the rest tests."""
    named = named_partitions()[name]
    lists, roles = named.lists()
    y = atoll.load(named.dataset).y.numpy()
    source, expected = random.Random(2024), np.full(named.nodes, -1)
    for nodes in lists:
        for label in range(y.max() + 1):
            of_class = nodes[y[nodes] == label].tolist()
            source.shuffle(of_class)
            first = len(of_class) * 2 // 10
            second = first + len(of_class) * 4 // 10
            expected[of_class[:first]], expected[of_class[first:second]], expected[of_class[second:]] = 0, 1, 2
    assert np.array_equal(roles, expected)


@needs_data
def test_a_named_partition_brings_its_split() -> None:
    """FedTAD's Cora-10: 4,333 edges kept; 20 % of each class of a party train, 40 % validate; used unless another is set."""
    graph = atoll.load("cora")
    parts = partition(graph, "fedtad_cora_10", None, PartitionSettings(), seed=0)
    found = partition_statistics(parts, graph)
    assert (found.edges_kept, found.nodes_lost) == (4333, 0)
    for party in range(10):
        one = parts.select([party])
        for label in range(graph.num_classes):
            of_class = one.y == label
            count = int(of_class.sum())
            assert int((one.train & of_class).sum()) == count * 2 // 10
            assert int((one.val & of_class).sum()) == count * 4 // 10
            assert int((one.test & of_class).sum()) == count - count * 2 // 10 - count * 4 // 10
    assert resolve("fedavg", dataset="cora", partition="fedtad_cora_10").split.split == "auto"
    assert resolve("fedavg", dataset="cora", partition="fedtad_cora_10", values={"split": "random"}).split.split == "random"


def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another graph, another number of parties, lists that are not here or are not the published ones."""
    graph = atoll.load("csbm", nodes=60)
    with pytest.raises(AtollError, match="is for cora with 2708 nodes, but this graph has 60; use --dataset cora"):
        partition(graph, "fedtad_cora_10", None, PartitionSettings(), seed=0)
    named = replace(named_partitions()["fedtad_cora_10"], nodes=60)
    monkeypatch.setattr(sys.modules["atoll.data.partition"], "named_partitions", lambda: {"fedtad_cora_10": named})
    with pytest.raises(AtollError, match="has 10 parties, not 3; leave --parties out or set it to 10"):
        partition(graph, "fedtad_cora_10", 3, PartitionSettings(), seed=0)
    with pytest.raises(AtollError, match="are not the published ones"):
        replace(named, sha256="0").lists()
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    with pytest.raises(AtollError, match=r"not part of the package; put fedspray_pubmed\.npz"):
        named_partitions()["fedspray_pubmed"].lists()


def test_components_of_each_party() -> None:
    """By a naive search."""
    parts = partition(atoll.load("csbm", nodes=90), "random", 3, PartitionSettings(), seed=1)
    counted = []
    for party in range(3):
        one = parts.select([party])
        left, components = set(range(one.num_nodes)), 0
        neighbors: dict[int, set[int]] = {node: set() for node in left}
        for source, target in one.edge_index.T.tolist():
            neighbors[source].add(target)
            neighbors[target].add(source)
        while left:
            stack, components = [left.pop()], components + 1
            while stack:
                reached = neighbors[stack.pop()] & left
                left -= reached
                stack.extend(reached)
        counted.append(components)
    assert [party.components for party in partition_statistics(parts).parties] == counted
