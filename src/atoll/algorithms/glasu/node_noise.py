"""Appendix C: how much noise on the first shared layer hides one node's features, by sensitivity and the maximum degree.

`dp.verb=embed` with `dp.protected_unit=row` clips each row of H⁺_m[l] to norm C and adds noise of deviation noise·C. One node's
features reach the rows of all nodes within l + 1 edges, at most R = 1 + d + d·(d−1) + … + d·(d−1)^l of them for maximum degree d,
so another node in its place moves the whole reply by at most 2C·√R: its sensitivity. A Gaussian mechanism with it costs
ρ = 2R / noise², and all T replies of a run T times as much. The paper says what σ depends on and gives no formula; this is one.
"""

from __future__ import annotations

import math

from atoll.errors import AtollError
from atoll.privacy.releases import epsilon_of

PRECISION = 1e-6  # relative, of the noise


def rows_reached(max_degree: int, hops: int, nodes: int) -> int:
    """R: in how many rows one node's features can appear, `hops` layers later; at most all of them.

    >>> rows_reached(3, 2, 1000), rows_reached(100, 3, 2708)
    (10, 2708)
    """
    reached, ring = 1, max_degree
    for _ in range(hops):
        reached += ring
        ring *= max(max_degree - 1, 0)
        if reached >= nodes:
            return nodes
    return reached


def sensitivity(clip: float, reached: int) -> float:
    """2C·√R: by how much a reply can move, in norm, where one node's features are others."""
    return 2 * clip * math.sqrt(reached)


def node_noise(epsilon: float, delta: float, replies: int, *, max_degree: int, hops: int, nodes: int) -> float:
    """The `dp.noise` with which all replies of a run together are (ε, δ)-private for one node's features.

    Args:
        epsilon: ε, above 0.
        delta: δ.
        replies: Of `embed`: one per round, and one per evaluation.
        max_degree: The largest number of neighbors of a node at any party.
        hops: Graph layers up to and including the first shared one.
        nodes: N, or those of a batch's level: no more rows are sent.

    Example:
        >>> from atoll.algorithms.glasu.node_noise import node_noise
        >>> round(node_noise(8.0, 1e-5, 544, max_degree=5, hops=2, nodes=2708), 1)
        151.7
    """
    if not (epsilon > 0 and 0 < delta < 1 and replies >= 1 and max_degree >= 0 and hops >= 0 and nodes >= 1):
        raise AtollError("Noise for nodes needs epsilon above 0, delta between 0 and 1, and at least one reply and one node.")
    cost = 2.0 * rows_reached(max_degree, hops, nodes) * replies  # ρ · noise²
    low, high = 2.0**-10, 1.0
    while epsilon_of(cost / high**2, delta) > epsilon:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(cost / middle**2, delta) > epsilon else (low, middle)
    return high
