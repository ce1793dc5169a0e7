"""How a whole graph is spread over parties: Louvain, METIS, Dirichlet, random, overlapping, vertical, node level, from a file.

Every partition gives one block-diagonal `Graph`: party p's nodes are the rows ptr[p]:ptr[p + 1], `ids` are their numbers in the
whole graph, and labels and splits travel with the nodes.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from atoll.data.builder import Ints, read_npz
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.random import seed_of
from atoll.settings import setting

SCENARIO_OF = {
    "louvain": "horizontal",
    "metis": "horizontal",
    "dirichlet": "horizontal",
    "random": "horizontal",
    "whole": "horizontal",
    "overlap": "overlapping",
    "vertical": "vertical",
    "node": "node",
}


@dataclass(frozen=True)
class PartitionSettings:
    """How the graph is cut."""

    partition_seed: int = setting(-1, "Seed of the partition alone; negative takes the run's seed.")
    resolution: float = setting(1.0, "Louvain: higher gives more and smaller communities.", low=0)
    concentration: float = setting(1.0, "Dirichlet: lower gives parties with fewer classes.", low=0)
    proportions: str = setting(
        "0.3,0.4,0.5,0.5,0.6,0.7", "Overlap: the share of all nodes that each party holds, or one for all."
    )
    overlap: float = setting(
        -1.0, "Overlap: the exact share of nodes that every party holds; negative draws the parties' nodes independently.", high=1
    )
    edge_fraction: float = setting(0.8, "Vertical: the share of the undirected edges that each party keeps.", low=0, high=1)
    min_nodes: int = setting(1, "The fewest nodes a party may have; Dirichlet draws again until it holds.", low=0, high=10**9)


def scenario_of(kind: str, graph: Graph | None = None) -> str:
    """The setting's word for result files; a file of node lists is horizontal unless its parties share nodes."""
    if kind in SCENARIO_OF:
        return SCENARIO_OF[kind]
    if graph is not None and graph.widths is not None:
        return "vertical"
    shared = graph is not None and len(torch.unique(graph.ids)) < graph.num_nodes
    return "overlapping" if shared else "horizontal"


def partition(graph: Graph, kind: str, parties: int | None, settings: PartitionSettings, seed: int) -> Graph:
    """The graph of the parties; `kind` is a key of `SETTING` or a file of node lists.

    `parties` may be None where the kind says how many there are (whole, node, overlap, a file).
    """
    if graph.parties != 1:
        raise AtollError(f"Only a whole graph can be partitioned; this one already has {graph.parties} parties.")
    if parties is not None and parties < 1:
        raise AtollError(f"There must be at least one party, not {parties}.")
    if kind not in SCENARIO_OF:
        return _from_file(graph, kind, parties, settings)
    if kind in ("node", "whole"):
        return _fixed(graph, kind, parties)
    if kind == "overlap":
        lists = overlap(graph.num_nodes, parties, settings, _rng(seed, kind))
        return _checked_blocks(graph, lists, settings, kind)
    if parties is None:
        raise AtollError(f"The {kind} partition needs a number of parties; say --parties N.")
    if kind == "vertical":
        return vertical(graph, parties, settings, seed)
    if parties > graph.num_nodes:
        raise AtollError(f"{parties} parties cannot share {graph.num_nodes} nodes; use at most {graph.num_nodes} parties.")
    if kind == "random":
        lists = [np.sort(part) for part in np.array_split(_rng(seed, kind).permutation(graph.num_nodes), parties)]
    elif kind == "louvain":
        lists = louvain(graph, parties, settings.resolution, seed_of(seed, kind))
    elif kind == "metis":
        lists = metis(graph, parties, seed_of(seed, kind))
    else:
        lists = dirichlet(graph.y.numpy(), parties, settings, _rng(seed, kind))
    return _checked_blocks(graph, lists, settings, kind)


def blocks(graph: Graph, lists: Sequence[Ints]) -> Graph:
    """The induced subgraphs of the node lists, block-diagonal; lists may share nodes, edges between parties are dropped."""
    rows = np.concatenate(lists)
    sizes = np.array([len(nodes) for nodes in lists])
    starts = np.concatenate([[0], sizes.cumsum()])
    edges = graph.edge_index.numpy()
    if len(np.unique(rows)) == len(rows):
        owner, place = np.full(graph.num_nodes, -1), np.zeros(graph.num_nodes, np.int64)
        owner[rows], place[rows] = np.repeat(np.arange(len(lists)), sizes), np.arange(len(rows))
        inner = (owner[edges[0]] == owner[edges[1]]) & (owner[edges[0]] >= 0)
        kept = place[edges[:, inner]]
        kept = kept[:, np.argsort(owner[edges[0, inner]], kind="stable")]
    else:
        pieces = []
        for start, nodes in zip(starts, lists, strict=False):
            place = np.full(graph.num_nodes, -1)
            place[nodes] = np.arange(len(nodes)) + start
            piece = place[edges]
            pieces.append(piece[:, (piece >= 0).all(axis=0)])
        kept = np.concatenate(pieces, axis=1)
    return _take(graph, rows, kept, starts)


def louvain(graph: Graph, parties: int, resolution: float, seed: int) -> list[Ints]:
    """The largest communities that Louvain finds on the whole graph (equals: the lowest node first); the rest is dropped."""
    import igraph

    source, target = graph.edge_index.numpy()
    once = source < target if graph.symmetric else np.ones(len(source), bool)
    net = igraph.Graph(graph.num_nodes, np.stack([source[once], target[once]], axis=1))
    with _IGRAPH:
        try:
            igraph.set_random_number_generator(random.Random(seed))
            membership = np.array(net.community_multilevel(resolution=resolution).membership)
        finally:
            igraph.set_random_number_generator(random)
    sizes = np.bincount(membership)
    if len(sizes) < parties:
        raise AtollError(
            f"Louvain finds {len(sizes)} communities, fewer than {parties} parties; "
            f"use --parties {len(sizes)} or less, or a higher `resolution` than {resolution:g}."
        )
    first = np.full(len(sizes), graph.num_nodes)
    np.minimum.at(first, membership, np.arange(graph.num_nodes))
    largest = np.lexsort((first, -sizes))[:parties]
    return [np.flatnonzero(membership == community) for community in largest]


_IGRAPH = threading.Lock()  # igraph has one random number generator for the whole process


def metis(graph: Graph, parties: int, seed: int) -> list[Ints]:
    """Balanced parts with few edges between them (Karypis and Kumar)."""
    import pymetis

    both = graph.adjacency + graph.adjacency.T
    options = pymetis.Options(seed=seed % 2**31)
    _, part = pymetis.part_graph(parties, pymetis.CSRAdjacency(both.indptr, both.indices), options=options)
    return _by_owner(np.asarray(part, np.int64), parties)


def dirichlet(labels: Ints, parties: int, settings: PartitionSettings, rng: np.random.Generator) -> list[Ints]:
    """Each class is dealt in proportions drawn from a Dirichlet distribution; unlabelled nodes count as one more class."""
    if settings.concentration <= 0:
        raise AtollError(f"The Dirichlet concentration must be more than 0, not {settings.concentration:g}.")
    for _ in range(DRAWS):
        owner = np.empty(len(labels), np.int64)
        for label in np.unique(labels):
            nodes = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(parties, settings.concentration))
            owner[nodes] = np.searchsorted(shares.cumsum()[:-1] * len(nodes), np.arange(len(nodes)), side="right")
        if np.bincount(owner, minlength=parties).min() >= settings.min_nodes:
            break
    return _by_owner(owner, parties)


DRAWS = 100  # how often Dirichlet tries to give every party its `min_nodes`


def overlap(nodes: int, parties: int | None, settings: PartitionSettings, rng: np.random.Generator) -> list[Ints]:
    """FedGL: each party holds a random share of the nodes.

    Independent samples by default. With `overlap` = r, exactly r·N nodes are held by every party (so the paper counts: its
    independent samples have "about 1 %", and 0.3·0.4·0.5·0.5·0.6·0.7 = 1.3 %): each other node is first dealt one party that must
    not hold it, and a party fills up from the nodes it may hold.
    """
    shares = _proportions(settings.proportions, parties)
    sizes = np.round(shares * nodes).astype(np.int64)
    if settings.overlap < 0:
        return [np.sort(rng.choice(nodes, size, replace=False)) for size in sizes]
    common = round(settings.overlap * nodes)
    shuffled = rng.permutation(nodes)
    everywhere, others = shuffled[:common], shuffled[common:]
    free = nodes - sizes  # nodes a party leaves out
    if (sizes < common).any() or free.sum() < len(others):
        raise AtollError(
            f"proportions={settings.proportions} cannot have overlap={settings.overlap:g}: the smallest party holds "
            f"{shares.min():.0%} of the nodes, and together the parties must leave out at least {1 - settings.overlap:.0%}."
        )
    quota = np.floor(free.cumsum() / max(free.sum(), 1) * len(others)).astype(np.int64)
    barred = np.searchsorted(quota, np.arange(len(others)), side="right")
    return [
        np.sort(np.concatenate([everywhere, rng.permutation(others[barred != party])[: size - common]]))
        for party, size in enumerate(sizes)
    ]


def vertical(graph: Graph, parties: int, settings: PartitionSettings, seed: int) -> Graph:
    """GLASU: every party holds all nodes, a block of the shuffled features and a uniform share of the undirected edges.

    Blocks are as equal as can be; x is padded with zero columns on the right to the widest, `widths` holds the real widths.
    """
    width = graph.num_features
    if parties > width:
        raise AtollError(f"{parties} parties cannot share {width} features; use at most {width} parties.")
    if not 0 < settings.edge_fraction <= 1:
        raise AtollError(f"edge_fraction must be more than 0 and at most 1, not {settings.edge_fraction:g}.")
    columns = [np.sort(part) for part in np.array_split(_rng(seed, "vertical", "features").permutation(width), parties)]
    widest = max(len(part) for part in columns)
    nodes = graph.num_nodes
    source, target = graph.edge_index.numpy()
    pairs, pair = np.unique(np.minimum(source, target) * nodes + np.maximum(source, target), return_inverse=True)
    pieces = []
    for party in range(parties):
        kept = np.zeros(len(pairs), bool)
        count = round(settings.edge_fraction * len(pairs))
        kept[_rng(seed, "vertical", "edges", party).choice(len(pairs), count, replace=False)] = True
        pieces.append(graph.edge_index.numpy()[:, kept[pair]] + party * nodes)
    everyone = np.tile(np.arange(nodes), parties)
    whole = _take(replace(graph, x=graph.x[:, :0]), everyone, np.concatenate(pieces, axis=1), np.arange(parties + 1) * nodes)
    padded = [_padded(graph.x, part, widest) for part in columns]
    x = torch.cat(padded) if isinstance(graph.x, torch.Tensor) else sp.csr_array(sp.vstack(padded, format="csr"))
    return replace(whole, x=x, widths=tuple(len(part) for part in columns))


def node_lists(path: Path, nodes: int) -> list[Ints]:
    """The lists `party_0`, `party_1`, … of an .npz file, in the order of their numbers."""
    try:
        found = read_npz(path)
    except ValueError as error:
        raise AtollError(
            f"The partition file {path} cannot be read ({error}); give an .npz of node lists party_0, party_1, …"
        ) from error
    if not found or set(found) != {f"party_{number}" for number in range(len(found))}:
        listed = ", ".join(sorted(found)) or "nothing"
        raise AtollError(f"The partition file {path} holds {listed}; name its node lists party_0, party_1, … without a gap.")
    lists = [found[f"party_{number}"] for number in range(len(found))]
    for number, members in enumerate(lists):
        if members.ndim != 1 or not np.issubdtype(members.dtype, np.integer):
            raise AtollError(f"party_{number} in {path} is no list of whole numbers; give the numbers of its nodes.")
        wrong = members[(members < 0) | (members >= nodes)]
        if len(wrong):
            raise AtollError(f"party_{number} in {path} names node {wrong[0]}, but the graph's nodes are 0 to {nodes - 1}.")
        again = np.flatnonzero(np.bincount(members, minlength=nodes) > 1)
        if len(again):
            raise AtollError(f"party_{number} in {path} names node {again[0]} twice; name each node once.")
    return [members.astype(np.int64) for members in lists]


def _from_file(graph: Graph, kind: str, parties: int | None, settings: PartitionSettings) -> Graph:
    name = kind if kind.endswith(".npz") else f"{kind}.npz"
    places = [Path(name).expanduser()]
    if os.environ.get("ATOLL_DATA"):
        places.append(Path(os.environ["ATOLL_DATA"]).expanduser() / "partitions" / name)
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        looked = " and ".join(str(place) for place in places)
        raise AtollError(f"There is no partition {kind!r}, and no file {looked}{suggest(kind, SCENARIO_OF)}")
    lists = node_lists(path, graph.num_nodes)
    if parties is not None and parties != len(lists):
        raise AtollError(
            f"The partition file {path} has {len(lists)} parties, not {parties}; leave --parties out or say {len(lists)}."
        )
    return _checked_blocks(graph, lists, settings, kind)


def _fixed(graph: Graph, kind: str, parties: int | None) -> Graph:
    """`whole`: one party with everything. `node`: one party a node (all rows that share its id), without edges."""
    count = 1 if kind == "whole" else int((graph.ids.diff() != 0).sum()) + 1
    if parties is not None and parties != count:
        raise AtollError(
            f"The {kind} partition makes {count} part{'y' if count == 1 else 'ies'} here, not {parties}; leave --parties out."
        )
    if kind == "whole":
        return graph
    starts = torch.cat([torch.tensor([0]), (graph.ids.diff() != 0).nonzero()[:, 0] + 1, torch.tensor([graph.num_nodes])])
    return replace(graph, edge_index=torch.empty(2, 0, dtype=torch.int64), ptr=starts)


def _checked_blocks(graph: Graph, lists: list[Ints], settings: PartitionSettings, kind: str) -> Graph:
    sizes = [len(nodes) for nodes in lists]
    fewest = max(settings.min_nodes, 1)
    if min(sizes) < fewest:
        party = int(np.argmin(sizes))
        raise AtollError(
            f"The {kind} partition leaves party {party} with {sizes[party]} nodes, fewer than {fewest}; "
            "use fewer parties, another seed or other partition settings."
        )
    return blocks(graph, lists)


def _take(graph: Graph, rows: Ints, edges: Ints, starts: Ints) -> Graph:
    """The graph of these rows (a node may come several times) with given edges and party boundaries."""
    index = torch.from_numpy(rows)
    return replace(
        graph,
        x=graph.x[index] if isinstance(graph.x, torch.Tensor) else sp.csr_array(graph.x[rows]),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges)),
        y=graph.y[index],
        train=graph.train[index],
        val=graph.val[index],
        test=graph.test[index],
        ids=graph.ids[index],
        ptr=torch.from_numpy(starts.astype(np.int64)),
    )


def _padded(x: sp.csr_array | torch.Tensor, columns: Ints, width: int) -> sp.csr_array | torch.Tensor:
    if isinstance(x, torch.Tensor):
        return torch.nn.functional.pad(x[:, torch.from_numpy(columns)], (0, width - len(columns)))
    part = sp.csr_array(x[:, columns])
    return sp.csr_array((part.data, part.indices, part.indptr), shape=(x.shape[0], width))


def _by_owner(owner: Ints, parties: int) -> list[Ints]:
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(1, parties)))


def _proportions(text: str, parties: int | None) -> NDArray[np.float64]:
    try:
        shares = np.array([float(share) for share in text.split(",")])
    except ValueError:
        raise AtollError(f"proportions={text!r} is no list of numbers; write for instance 0.3,0.4,0.5.") from None
    if len(shares) == 1 and parties is not None:
        shares = np.repeat(shares, parties)
    if parties is not None and len(shares) != parties:
        raise AtollError(f"There are {len(shares)} proportions for {parties} parties; give one a party, or one for all.")
    if not ((shares > 0) & (shares <= 1)).all():
        raise AtollError(f"proportions={text!r} must be more than 0 and at most 1 each.")
    return shares


def _rng(*words: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_of("partition", *words))
