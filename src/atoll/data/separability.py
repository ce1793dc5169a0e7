"""FedSpray's Proposition 3.1, computed and measured: how far two classes are apart with a node's neighbors or all parties' ones.

A linear GNN sees x + h, h the mean of the neighbors' features. Both classes of a party have the same neighbors on average, so h
does not separate them: dist = ‖μ₁ − μ₂‖/2. With s of its class in place of h, the neighbors of that class at all parties, the
paper has dist′ = (1 + Σ_k (1 − ρ_k)(p_k − ½))·‖μ₁ − μ₂‖/2, exact where both classes are the majority alike
(Σ_{k≤M} (1 − ρ_k) = Σ_{k>M} (1 − ρ_k)).

Deviation: the paper's s is a sum in which a party counts with its nodes of the class per majority node (Eqs. 21, 22), so dist′
grows with the number of parties; FedAvg, which the text names, takes the mean with these weights. Both are here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from atoll.data.majorities import MajoritiesSettings, parties_of
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

Matrix = NDArray[np.float64]


def proposition(s: MajoritiesSettings) -> dict[str, float]:
    """The distances that the proposition states, that of the mean in place of the sum, and the imbalance, which it takes as 0."""
    parties = parties_of(s)
    centers = (s.offset + s.separation / 2, s.offset - s.separation / 2)  # along μ₁ − μ₂
    around = [party.share * centers[party.majority] + (1 - party.share) * centers[1 - party.majority] for party in parties]
    weights = [[1.0 if party.majority == c else party.ratio for party in parties] for c in (0, 1)]
    means = [np.average(around, weights=of_class) for of_class in weights]
    gain = sum((1 - party.ratio) * (party.share - 0.5) for party in parties)
    return {
        "theory_local": s.separation / 2,
        "theory_sum": (1 + gain) * s.separation / 2,
        "theory_mean": float(abs(s.separation + means[0] - means[1])) / 2,
        "imbalance": math.fsum([*weights[0], *(-one for one in weights[1])]),
    }


def separability(graph: Graph) -> dict[str, float]:
    """Half the distance between two classes' means of x + h at a party (mean over parties), and of x + s with the sum and mean.

    Every node has its class's s, so its label is used: the proposition compares classes, it does not classify.
    """
    if graph.num_classes != 2:
        raise AtollError(f"Proposition 3.1 is about two classes, but the graph has {graph.num_classes}.")
    x = graph.nonzero_features.toarray().astype(np.float64)
    y, party = graph.y.numpy(), graph.party.numpy()
    neighbors, has = neighbor_means(graph, x)
    groups = [[(party == k) & (y == c) for c in (0, 1)] for k in range(graph.parties)]
    if any(not (group & has).any() for pair in groups for group in pair):
        raise AtollError("Proposition 3.1 needs nodes of both classes with neighbors at every party; choose a higher degree.")
    within = np.array([[x[group].mean(0) for group in pair] for pair in groups])  # (K, 2, d)
    around = np.array([[neighbors[group & has].mean(0) for group in pair] for pair in groups])
    counts = np.array([[group.sum() for group in pair] for pair in groups])
    weights = counts / counts.max(1, keepdims=True)  # 1 for the majority, ρ for the minority
    total, features = np.einsum("kc,kcd->cd", weights, around), within.mean(0)
    return {
        "local": float(np.mean([_half(means) for means in within + around])),
        "sum": _half(features + total),
        "mean": _half(features + total / weights.sum(0)[:, None]),
    }


def neighbor_means(graph: Graph, x: Matrix) -> tuple[Matrix, NDArray[np.bool_]]:
    """(N, d) the mean features of each node's neighbors, and which nodes have any."""
    degree = graph.adjacency.sum(1)
    return (graph.adjacency @ x) / np.maximum(degree, 1)[:, None], degree > 0


def _half(means: Matrix) -> float:
    return float(np.linalg.norm(means[0] - means[1])) / 2


def facts(graph: Graph, settings: object) -> Mapping[str, float]:
    """Theory and measurement for the parties' graphs of the dataset `majorities`; nothing for others."""
    return {**proposition(settings), **separability(graph)} if isinstance(settings, MajoritiesSettings) else {}
