"""Which nodes each party holds: Louvain, METIS, Dirichlet, overlapping samples, or the lists of a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from atoll import storage
from atoll.data.builder import Ints
from atoll.data.multilevel import louvain
from atoll.data.npz import read_npz
from atoll.data.partition_cache import cached_parts
from atoll.errors import AtollError
from atoll.graphs.edges import edge_pattern
from atoll.graphs.graph import Graph
from atoll.graphs.symmetric_matrices import goes_both_ways, is_sorted

MAX_DIRICHLET_DRAWS = 100  # to give every party its `min_nodes`


def louvain_largest(graph: Graph, parties: int, resolution: float, seed: int) -> list[Ints]:
    """The largest communities of the whole graph by Louvain (ties: the lowest node first); the rest is dropped."""
    source, target = graph.edge_index.numpy()
    once = source < target if graph.symmetric else np.ones(len(source), bool)
    membership = louvain(graph.num_nodes, np.stack([source[once], target[once]], axis=1), resolution, seed)
    sizes = np.bincount(membership)
    if len(sizes) < parties:
        raise AtollError(
            f"Louvain finds {len(sizes)} communities, fewer than {parties} parties; "
            f"use at most --parties {len(sizes)}, or a higher `resolution` than {resolution:g}."
        )
    first = np.full(len(sizes), graph.num_nodes)
    np.minimum.at(first, membership, np.arange(graph.num_nodes))
    largest = np.lexsort((first, -sizes))[:parties]
    return [np.flatnonzero(membership == community) for community in largest]


def metis(graph: Graph, parties: int, seed: int, method: str = "auto", shares: NDArray[np.float64] | None = None) -> list[Ints]:
    """Parts with few edges between them (Karypis and Kumar), of equal size or of `shares` of it.

    `seed` is METIS's own, −1 for its default. Large partitions are kept in a folder (`atoll.data.partition_cache`).
    """
    pattern = edge_pattern(graph.edge_index, graph.num_nodes)
    source, target = graph.edge_index.numpy()
    same = is_sorted(source, target) and goes_both_ways(source, target, graph.num_nodes)
    both = pattern if same else sp.csr_array(pattern + pattern.T)
    weights = None if shares is None else shares.tolist()

    def compute() -> Ints:
        import pymetis

        recursive = None if method == "auto" else method == "recursive"
        adjacency, options = pymetis.CSRAdjacency(both.indptr, both.indices), pymetis.Options(seed=seed)
        _, part = pymetis.part_graph(parties, adjacency, tpwgts=weights, recursive=recursive, options=options)
        return np.asarray(part, np.int64)

    return by_owner(cached_parts(both, parties, (seed, method, weights), compute), parties)


def sampled_parts(parts: Sequence[Ints], copies: int, share: float, rng: np.random.Generator) -> list[Ints]:
    """FED-PUB's overlapping parties: each part gives `copies` of them in a row, each a random ⌊share·n⌋ of its n nodes."""
    if share <= 0:
        raise AtollError(f"copy_share must be more than 0, not {share:g}.")
    return [np.sort(rng.choice(part, int(share * len(part)), replace=False)) for part in parts for _ in range(copies)]


def dirichlet(labels: Ints, parties: int, concentration: float, min_nodes: int, rng: np.random.Generator) -> list[Ints]:
    """Each class is dealt in proportions drawn from a Dirichlet distribution; unlabeled nodes count as one more class."""
    check_concentration(concentration)
    for _ in range(MAX_DIRICHLET_DRAWS):
        owner = np.empty(len(labels), np.int64)
        for label in np.unique(labels):
            nodes = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(parties, concentration))
            owner[nodes] = np.searchsorted(shares.cumsum()[:-1] * len(nodes), np.arange(len(nodes)), side="right")
        if np.bincount(owner, minlength=parties).min() >= min_nodes:
            break
    return by_owner(owner, parties)


def check_concentration(concentration: float) -> None:
    """Refuse a Dirichlet distribution that does not exist."""
    if concentration <= 0:
        raise AtollError(f"The Dirichlet concentration must be more than 0, not {concentration:g}.")


def overlap(nodes: int, parties: int | None, proportions: str, common_share: float, rng: np.random.Generator) -> list[Ints]:
    """FedGL: each party holds a random share of the nodes.

    Independent samples by default. With `overlap` = r, exactly r·N nodes are held by every party (as the paper counts: its
    independent samples have "about 1 %", and 0.3·0.4·0.5·0.5·0.6·0.7 = 1.3 %): each other node is first assigned one party that
    must not hold it, and a party fills up from the nodes that it may hold.
    """
    shares = _proportions(proportions, parties)
    sizes = np.round(shares * nodes).astype(np.int64)
    if common_share < 0:
        return [np.sort(rng.choice(nodes, size, replace=False)) for size in sizes]
    common = round(common_share * nodes)
    shuffled = rng.permutation(nodes)
    shared, others = shuffled[:common], shuffled[common:]
    left_out = nodes - sizes  # by each party
    if (sizes < common).any() or left_out.sum() < len(others):
        raise AtollError(
            f"proportions={proportions} cannot have overlap={common_share:g}: the smallest party holds "
            f"{shares.min():.0%} of the nodes, and together the parties must leave out at least {1 - common_share:.0%}."
        )
    quota = np.floor(left_out.cumsum() / max(left_out.sum(), 1) * len(others)).astype(np.int64)
    barred = np.searchsorted(quota, np.arange(len(others)), side="right")
    return [
        np.sort(np.concatenate([shared, rng.permutation(others[barred != party])[: size - common]]))
        for party, size in enumerate(sizes)
    ]


def read_node_lists(path: Path, nodes: int) -> list[Ints]:
    """The lists `party_0`, `party_1`, … of an .npz file, in the order of their numbers."""
    try:
        arrays = read_npz(path)
    except ValueError as error:
        raise AtollError(
            f"The partition file {path} cannot be read ({error}); give an .npz of node lists party_0, party_1, …"
        ) from error
    if not arrays or set(arrays) != {f"party_{number}" for number in range(len(arrays))}:
        listed = ", ".join(sorted(arrays)) or "nothing"
        raise AtollError(f"The partition file {path} holds {listed}; name its node lists party_0, party_1, … without a gap.")
    lists = [arrays[f"party_{number}"] for number in range(len(arrays))]
    for number, members in enumerate(lists):
        if members.ndim != 1 or not np.issubdtype(members.dtype, np.integer):
            raise AtollError(f"party_{number} in {path} is not a list of whole numbers; give the numbers of its nodes.")
        wrong = members[(members < 0) | (members >= nodes)]
        if len(wrong):
            raise AtollError(f"party_{number} in {path} names node {wrong[0]}, but the graph's nodes are 0 to {nodes - 1}.")
        repeated = np.flatnonzero(np.bincount(members, minlength=nodes) > 1)
        if len(repeated):
            raise AtollError(f"party_{number} in {path} names node {repeated[0]} twice; name each node once.")
    return [members.astype(np.int64) for members in lists]


def write_node_lists(path: Path, lists: Sequence[Ints]) -> None:
    """An .npz file that `read_node_lists` takes."""
    with storage.replacing(path) as file:
        np.savez(file, allow_pickle=False, **{f"party_{number}": nodes for number, nodes in enumerate(lists)})


def by_owner(owner: Ints, parties: int) -> list[Ints]:
    """Each party's nodes in ascending order, from each node's party."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, parties)))


def _proportions(text: str, parties: int | None) -> NDArray[np.float64]:
    try:
        shares = np.array([float(share) for share in text.split(",")])
    except ValueError:
        raise AtollError(f"proportions={text!r} is not a list of numbers; write for instance 0.3,0.4,0.5.") from None
    if len(shares) == 1 and parties is not None:
        shares = np.repeat(shares, parties)
    if parties is not None and len(shares) != parties:
        raise AtollError(f"There are {len(shares)} proportions for {parties} parties; give one per party, or one for all.")
    if not ((shares > 0) & (shares <= 1)).all():
        raise AtollError(f"proportions={text!r} must be more than 0 and at most 1 each.")
    return shares
