"""Balanced Louvain, the partition of FedSage, FedTAD, OpenFGL, FedGTA and AdaFGL: no node is lost, parties are nearly equal.

Communities are cut to pieces that a party can hold; the pieces, largest first, fill the parties. Each of these codes has its own
variant of the rule and its own program for the communities, so the same seed gives other parties: published lists have names
(`atoll partition --list`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.data.builder import Ints
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

PROGRAMS = ("python-louvain", "scikit-network")
MAX_MOVES = 1000  # before a piece that fits nowhere is given to a party anyway


@dataclass(frozen=True)
class FillRule:
    """How pieces of communities fill the parties; `mean` is ⌊N / P⌋.

    `slack` is δ: pieces have at most mean − cut nodes, and a party takes a piece while it stays below mean + slack. With `strict`
    (FedGTA, AdaFGL) a party is full only above the mean, may be filled up to mean + slack itself, and a piece that fits nowhere
    is appended twice to the party where the search began: the released lists have these repeats.
    """

    slack: int = 20
    cut: int = 20
    strict: bool = False


FEDGTA = FillRule(slack=1, cut=0, strict=True)


def louvain_balanced(
    graph: Graph, parties: int, seed: int, rule: FillRule | None = None, program: str = PROGRAMS[0]
) -> list[Ints]:
    """The nodes of each party, in ascending order.

    The graph is undirected, without loops, with all its components. `seed` is that of the communities (scikit-network's are
    without randomness).
    """
    rule = rule or FillRule()
    if graph.num_nodes // parties <= rule.cut:
        raise AtollError(
            f"louvain_balanced has {graph.num_nodes // parties} nodes per party but needs more than slack={rule.cut}; "
            f"use at most --parties {graph.num_nodes // (rule.cut + 1)}, or a smaller slack."
        )
    lists = fill(communities(graph, seed, program), graph.num_nodes, parties, rule)
    return [np.unique(nodes) for nodes in lists]


def communities(graph: Graph, seed: int, program: str = PROGRAMS[0]) -> list[Ints]:
    """The communities in the order of their first nodes, each in ascending order."""
    source, target = graph.edge_index.numpy()
    if program == "python-louvain":
        labels = _python_louvain(graph.num_nodes, source, target, seed)
    elif program == "scikit-network":
        labels = _scikit_network(graph.num_nodes, source, target)
    else:
        raise AtollError(f"There is no program {program!r} for communities; there is {' and '.join(PROGRAMS)}.")
    _, first, label = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(np.argsort(first))[label]
    return np.split(np.argsort(order, kind="stable"), np.bincount(order).cumsum()[:-1])


def fill(pieces: Sequence[Ints], nodes: int, parties: int, rule: FillRule) -> list[Ints]:
    """Cut the communities and give the pieces, largest first, to the parties; one that fits nowhere goes to some party anyway."""
    mean = nodes // parties
    held: list[list[Ints]] = [[] for _ in range(parties)]
    sizes = [0] * parties
    open_parties, at = list(range(parties)), 0
    for piece in sorted(_cut(pieces, mean - rule.cut), key=len, reverse=True):
        while len(open_parties) > 1 and _full(sizes[open_parties[at]], mean, rule):
            del open_parties[at]
            at %= len(open_parties)
        at, fits = _search(len(piece), [sizes[party] for party in open_parties], at, mean, rule)
        for _ in range(2 if rule.strict and not fits else 1):
            held[open_parties[at]].append(piece)
            sizes[open_parties[at]] += len(piece)
    return [np.concatenate(mine) if mine else np.empty(0, np.int64) for mine in held]


def _cut(pieces: Sequence[Ints], longest: int) -> list[Ints]:
    """Pieces of at most `longest` nodes; what is cut off goes to the end of the list and is cut in its turn."""
    cut = list(pieces)
    for index, piece in enumerate(cut):  # the list grows meanwhile
        if len(piece) > longest:
            cut[index] = piece[:longest]
            cut.append(piece[longest:])
    return cut


def _full(size: int, mean: int, rule: FillRule) -> bool:
    return size > mean if rule.strict else size >= mean


def _search(length: int, sizes: Sequence[int], at: int, mean: int, rule: FillRule) -> tuple[int, bool]:
    """The first party from `at` on, in a circle, that can take a piece; else one that must, and False."""
    limit = mean + rule.slack + (1 if rule.strict else 0)
    for step in range(len(sizes)):
        if sizes[(at + step) % len(sizes)] + length < limit:
            return (at + step) % len(sizes), True
    if rule.strict:
        return at, False
    at = (at + MAX_MOVES + 1) % len(sizes)
    smallest = sum(sizes) + 1
    for index in range(len(sizes)):  # as in the authors' code: it compares the current party, not the one it looks at
        if sizes[at] < smallest:
            smallest, at = sizes[at], index
    return at, False


def _python_louvain(nodes: int, source: Ints, target: Ints, seed: int) -> Ints:
    try:
        import community
        import networkx
    except ImportError as error:
        raise AtollError("louvain_balanced needs python-louvain; install it with `pip install 'atoll[partitions]'`.") from error
    net = networkx.Graph()
    net.add_nodes_from(range(nodes))
    once = source <= target
    order = np.lexsort((target[once], source[once]))
    net.add_edges_from(np.stack([source[once][order], target[once][order]], 1).tolist())
    label_of = community.best_partition(net, random_state=seed)
    return np.array([label_of[node] for node in range(nodes)])


def _scikit_network(nodes: int, source: Ints, target: Ints) -> Ints:
    try:
        from sknetwork.clustering import Louvain
    except ImportError as error:
        raise AtollError("This partition needs scikit-network; install it with `pip install 'atoll[partitions]'`.") from error
    import scipy.sparse as sp

    adjacency = sp.csr_matrix((np.ones(len(source)), (source, target)), shape=(nodes, nodes))
    return np.asarray(Louvain(modularity="newman", resolution=1).fit_predict(adjacency))
