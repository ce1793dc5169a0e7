"""Synthetic labels and values of a graph's nodes, which follow from features, classes and neighbors."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from atoll.data.builder import plain
from atoll.data.target_columns import LABELS, with_targets
from atoll.graphs.graph import Graph
from atoll.random import seed_of

Floats = NDArray[np.float64]
NOISE = 0.3  # its deviation, where that of what nodes determine is 1
RAREST, COMMONEST = 0.15, 0.5  # shares of the nodes that have a label, from the first to the last


def with_drawn_targets(graph: Graph, kind: str, count: int, unknown: float, seed: int) -> Graph:
    """The graph with `count` labels or values in place of its classes, a share of which is not known.

    h = S(s(X·W) + s(U[y])) + noise with random W (d, T) and U (C, T), s standardizing columns and S the mean over a node and its
    neighbors, standardized. A label is there where h is among the highest; value t has mean t and deviation t + 1.
    """
    rng = np.random.default_rng(seed_of("csbm", "targets", kind, count, seed))
    x, nodes = plain(graph.x, "csbm"), graph.num_nodes
    of_features = _standard(x @ rng.standard_normal((x.shape[1], count)))
    of_classes = _standard(rng.standard_normal((graph.num_classes, count))[graph.y.numpy()])
    edges = graph.edge_index.numpy()
    adjacency = sp.csr_array((np.ones(edges.shape[1]), edges), shape=(nodes, nodes)) + sp.eye_array(nodes)
    hidden = _standard(adjacency @ (of_features + of_classes) / adjacency.sum(1)[:, None])
    hidden += NOISE * rng.standard_normal(hidden.shape)
    if kind == LABELS:
        shares = np.linspace(COMMONEST, RAREST, count)
        cuts = [np.quantile(column, 1 - share) for column, share in zip(hidden.T, shares, strict=True)]
        values = (hidden > np.array(cuts)).astype(np.float32)
    else:
        values = (np.arange(count) + (np.arange(count) + 1) * hidden).astype(np.float32)
    missing = rng.random(values.shape) < unknown
    missing[:, 0] = False
    values[missing] = np.nan
    return with_targets(graph, torch.from_numpy(values), tuple(f"{kind.removesuffix('s')}{index}" for index in range(count)))


def _standard(values: Floats) -> Floats:
    """Every column with mean 0 and deviation 1; a constant one is 0."""
    deviation = values.std(0)
    scaled: Floats = (values - values.mean(0)) / np.where(deviation > 0, deviation, 1)
    return scaled
