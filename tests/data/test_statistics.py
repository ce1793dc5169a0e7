"""What a partition made, compared with loops over nodes, and FedSpray's Table 1."""

import dataclasses
import io
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from atoll.cli.partition import partition_table
from atoll.data import PartitionSettings, load, partition, partition_statistics, statistics
from atoll.data.federated import SCENARIOS, federate
from atoll.data.statistics import DEGREES, degree_shares
from atoll.graphs.graph import Graph
from atoll.runs.config import resolve
from graphs import edge_set, make_graph


def homophily(graph: Graph, nodes: list[int]) -> float | None:
    """The mean share of same-class neighbors over these nodes, by loops."""
    y, shares = graph.y.tolist(), []
    for node in nodes:
        neighbors = [a for a, b in edge_set(graph) if b == node and y[a] >= 0]
        if neighbors:
            shares.append(np.mean([y[a] == y[node] for a in neighbors]))
    return float(np.mean(shares)) if shares else None


@given(st.integers(0, 500))
def test_facts_are_those_of_a_loop(seed: int) -> None:
    """Counts, majority class and homophily of every party, by loops over its nodes and edges."""
    whole = make_graph(30, 60, seed)
    parties = partition(whole, "random", 3, PartitionSettings(), seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "EDGES_AT_ONCE", 7)
        found = partition_statistics(parties, whole)
    for p, said in enumerate(found.parties):
        one = parties.select([p])
        y = one.y.tolist()
        counts = [y.count(label) for label in range(3)]
        majority = counts.index(max(counts))
        assert (said.nodes, said.edges, said.labels) == (10, len(edge_set(one)) // 2, counts)
        assert (said.train, said.val, said.test) == (int(one.train.sum()), int(one.val.sum()), int(one.test.sum()))
        assert said.majority_class == majority
        assert (said.majority_nodes, said.minority_nodes) == (max(counts), sum(counts) - max(counts))
        assert said.majority_homophily == pytest.approx(homophily(one, [i for i in range(10) if y[i] == majority]))
        assert said.minority_homophily == pytest.approx(homophily(one, [i for i in range(10) if y[i] not in (-1, majority)]))
    kept = sum(one.edges for one in found.parties)
    assert (found.nodes, found.nodes_lost) == (30, 0)
    assert (found.edges_kept, found.edges_lost) == (kept, len(edge_set(whole)) // 2 - kept)


def test_shared_nodes_and_edges_count_once(graph: Graph) -> None:
    """Overlapping and vertical parties hold an edge several times; kept and lost are about distinct ones."""
    for kind, parties in (("overlap", 6), ("vertical", 3)):
        cut = partition(graph, kind, parties, PartitionSettings(), 0)
        ids = cut.ids.tolist()
        distinct = {(ids[a], ids[b]) for a, b in edge_set(cut)}
        found = partition_statistics(cut, graph)
        assert found.edges_kept == len(distinct) // 2
        assert found.edges_kept + (found.edges_lost or 0) == len(edge_set(graph)) // 2
        assert found.nodes == len(set(ids))
        assert found.nodes_lost == 60 - len(set(ids))


def test_facts_are_json_and_a_table(graph: Graph) -> None:
    """Plain numbers go to result files; the table names what was lost and does not grow with a million parties."""
    cut = partition(graph, "node", None, PartitionSettings(), 0)
    found = partition_statistics(cut, graph)
    assert json.loads(json.dumps(dataclasses.asdict(found)))["parties"][3]["nodes"] == 1
    unlabeled = [one for one in found.parties if not sum(one.labels)]
    assert unlabeled
    assert all(one.majority_class is None for one in unlabeled)
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(partition_table(found, most=4))
    text = console.export_text()
    assert "56 more" in text
    assert f"{found.edges_lost} lost" in text
    assert partition_statistics(cut).edges_lost is None


def test_fedspray_table_1(real: Path) -> None:
    """PubMed on the authors' node lists: majority class, majority/minority nodes and homophily of all parties, as printed."""
    whole = load("pubmed")
    found = partition_statistics(partition(whole, "fedspray_pubmed", 7, PartitionSettings(), 0), whole)
    rows = {
        (
            one.majority_class,
            one.majority_nodes,
            one.minority_nodes,
            f"{one.majority_homophily:.2f}",
            f"{one.minority_homophily:.2f}",
        )
        for one in found.parties
    }
    assert rows == {
        (1, 1384, 384, "0.91", "0.33"),
        (1, 1263, 152, "0.97", "0.24"),
        (2, 2001, 286, "0.92", "0.17"),
        (2, 1236, 97, "0.98", "0.48"),
        (1, 1160, 140, "0.95", "0.41"),
        (0, 934, 467, "0.84", "0.47"),
        (2, 948, 806, "0.83", "0.70"),
    }


def test_degree_shares_by_a_loop_over_nodes() -> None:
    """Each party's share of nodes by their number of edges; the shares of a party sum to 1."""
    parts = partition(load("csbm", nodes=120, degree=4), "random", 3, PartitionSettings(), 0)
    targets = [b for _, b in edge_set(parts)]
    for party, shares in enumerate(degree_shares(parts)):
        rows = [row for row in range(parts.num_nodes) if int(parts.party[row]) == party]
        degrees = [targets.count(row) for row in rows]
        bounds = [*DEGREES.values(), 10**9]
        expected = [sum(low <= d < high for d in degrees) / len(rows) for low, high in pairwise(bounds)]
        assert list(shares.values()) == pytest.approx(expected)
        assert sum(shares.values()) == pytest.approx(1)


def test_pairs_are_of_the_parties_that_were_cut() -> None:
    """Link prediction: edges that are held out are a party's like the others, and nothing is said about classes."""
    values = {"nodes": 60, "split": "random"}
    of = {
        task: federate(resolve("fedavg", partition="random", parties=2, values={**values, "task": task}), None, SCENARIOS)
        for task in ("node-classification", "link-prediction")
    }
    nodes, pairs = (partition_statistics(data.parts, data.source) for data in of.values())
    parts = of["link-prediction"].parts
    assert [one.edges for one in pairs.parties] == [one.edges for one in nodes.parties]
    assert pairs.edges_kept == nodes.edges_kept
    assert pairs.edges_lost is None
    assert [one.train for one in pairs.parties] == parts.num_train.tolist()
    assert all(one.majority_class is None and one.majority_homophily is None for one in pairs.parties)
    assert "lost" not in str(partition_table(pairs).caption)
