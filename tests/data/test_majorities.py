"""The graphs of FedSpray's Section 3.2, and its Proposition 3.1 on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.data.federated import SCENARIOS, federate
from atoll.data.majorities import MajoritiesSettings, centers, generate
from atoll.data.separability import facts, proposition, separability
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs.config import resolve

SMALL = MajoritiesSettings(clients=4, majority_nodes=300, degree=12, neighbor_share=(0.6, 0.7, 0.8, 0.9), minority_ratio=(0.5,))


def parts(settings: MajoritiesSettings) -> Graph:
    """The parties' graphs as a run has them."""
    return federate(resolve("local", dataset="majorities", values=vars(settings)), None, SCENARIOS).parts


def test_every_party_has_its_majority_and_both_classes_the_same_neighbors() -> None:
    """p holds for the neighbors of majority and of minority nodes, at every party."""
    graphs = list(generate(replace(SMALL, majority_nodes=3000)).values())
    assert [int(graph.y.bincount().argmax()) for graph in graphs] == [0, 0, 1, 1]
    for graph, share in zip(graphs, SMALL.neighbor_share, strict=True):
        assert sorted(graph.y.bincount().tolist()) == [1500, 3000]
        majority = int(graph.y.bincount().argmax())
        assert graph.edge_index.shape[1] / graph.num_nodes == pytest.approx(SMALL.degree, rel=0.03)
        for c in (0, 1):
            neighbors = graph.y[graph.edge_index[1][graph.y[graph.edge_index[0]] == c]]
            assert float((neighbors == majority).double().mean()) == pytest.approx(share, abs=0.015)


def naive(graphs: list[Graph]) -> dict[str, float]:
    """dist and dist′ node by node."""
    features: list[dict[int, list[Any]]] = []
    around: list[dict[int, list[Any]]] = []
    for graph in graphs:
        x = np.asarray(graph.x)
        by_class, neighbors = {0: [], 1: []}, {0: [], 1: []}  # type: ignore[var-annotated]
        for node in range(graph.num_nodes):
            by_class[int(graph.y[node])].append(x[node])
            sources = [int(a) for a, b in graph.edge_index.t() if int(b) == node]
            if sources:
                neighbors[int(graph.y[node])].append(sum(x[source] for source in sources) / len(sources))
        features.append(by_class)
        around.append(neighbors)
    local = []
    sums, weights = [0.0, 0.0], [0.0, 0.0]
    for own, near in zip(features, around, strict=True):
        means = [np.mean(own[c], 0) + np.mean(near[c], 0) for c in (0, 1)]
        local.append(np.linalg.norm(means[0] - means[1]) / 2)
        for c in (0, 1):
            weight = len(own[c]) / max(len(own[0]), len(own[1]))
            sums[c] = sums[c] + weight * np.mean(near[c], 0)
            weights[c] += weight
    middle = [np.mean([np.mean(own[c], 0) for own in features], 0) for c in (0, 1)]
    added = [middle[c] + sums[c] for c in (0, 1)]
    averaged = [middle[c] + sums[c] / weights[c] for c in (0, 1)]
    return {
        "local": float(np.mean(local)),
        "sum": float(np.linalg.norm(added[0] - added[1])) / 2,
        "mean": float(np.linalg.norm(averaged[0] - averaged[1])) / 2,
    }


def test_distances_equal_those_counted_node_by_node() -> None:
    """The matrix products and plain loops over nodes agree."""
    settings = replace(SMALL, majority_nodes=40, degree=3)
    measured = separability(parts(settings))
    assert measured == pytest.approx(naive(list(generate(settings).values())), rel=1e-6)


def test_the_proposition_holds_on_its_graphs() -> None:
    """dist and dist′ come out as stated; global neighbors separate better than local ones."""
    settings = replace(SMALL, majority_nodes=3000)
    stated, measured = proposition(settings), separability(parts(settings))
    assert stated["theory_local"] == 1
    assert stated["theory_sum"] == pytest.approx(1 + 0.5 * (0.1 + 0.2 + 0.3 + 0.4))
    assert stated["imbalance"] == 0
    for name in ("local", "sum", "mean"):
        assert measured[name] == pytest.approx(stated[f"theory_{name}"], abs=0.06)
    assert measured["local"] < measured["mean"] < measured["sum"]


def test_without_balance_the_stated_sum_is_not_the_measured_one() -> None:
    """The assumption of the proof matters."""
    settings = MajoritiesSettings(clients=4, first=3, majority_nodes=2000, offset=2.0)
    stated, measured = proposition(settings), separability(parts(settings))
    assert stated["imbalance"] == pytest.approx(1.6)
    assert measured["sum"] - stated["theory_sum"] > 1
    assert measured["mean"] == pytest.approx(stated["theory_mean"], abs=0.06)


def test_facts_are_of_this_dataset_alone() -> None:
    """Other graphs have no such facts; what cannot be measured is refused."""
    graph = atoll.load("csbm", nodes=50, classes=3)
    assert facts(graph, object()) == {}
    with pytest.raises(AtollError, match="two classes, but the graph has 3"):
        separability(graph)
    with pytest.raises(AtollError, match="needs nodes of both classes with neighbors at every party"):
        separability(parts(replace(SMALL, degree=0)))


def test_centers_and_seeds() -> None:
    """Centers are as far apart as asked; a seed gives the same graph again."""
    mu = centers(replace(SMALL, offset=3.0, separation=1.0))
    assert np.linalg.norm(mu[0] - mu[1]) == pytest.approx(1)
    assert np.linalg.norm(mu.mean(0)) == pytest.approx(3)
    one, same, other = (next(iter(generate(replace(SMALL, graph_seed=seed)).values())) for seed in (0, 0, 1))
    assert one.edge_index.equal(same.edge_index)
    assert not one.edge_index.equal(other.edge_index)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"neighbor_share": (0.6, 0.7)}, "neighbor_share has 2 numbers for 6 parties; give one, or one per party"),
        ({"neighbor_share": (0.5,)}, "neighbor_share must be above 0.5 and below 1, but it is 0.5"),
        ({"minority_ratio": (1.0,)}, "minority_ratio must be above 0 and below 1"),
        ({"minority_ratio": (float("nan"),)}, "minority_ratio must be above 0 and below 1"),
        ({"first": 7}, "first is 7, but there are 6 parties"),
        ({"majority_nodes": 4, "degree": 10.0}, "degree 10 is too high for party 0"),
        ({"clients": 100, "majority_nodes": 10**7}, "cannot make more than 100,000,000 nodes"),
    ],
)
def test_parameters_that_give_no_graph(given: dict[str, Any], message: str) -> None:
    """One sentence for each."""
    with pytest.raises(AtollError, match=message):
        generate(MajoritiesSettings(**given))


def test_a_method_learns_them() -> None:
    """Its parties are the default partition."""
    result = atoll.run("fedavg", dataset="majorities", majority_nodes=60, clients=3, rounds=2)
    assert result.parties == 3
    assert 0 <= result.metrics["minority_accuracy"] <= 1
