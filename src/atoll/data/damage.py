"""Injected noise and sparsity, as in OpenFGL: each party trains on a damaged copy of its graph and is judged on the clean one.

A party's damage is drawn once, as a function of (seed, party), so it does not depend on where the party runs. In this order:
features are dropped, features are noised, edges are dropped, edges are replaced, training nodes are dropped, labels are changed.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.builder import Ints
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.random import seed_of
from atoll.settings import setting

MAX_DENSE = 1 << 31  # numbers of a matrix that feature noise makes dense


@dataclass(frozen=True)
class DamageSettings:
    """What is wrong with the graphs that the parties train on (`noise.…`); 0 is nothing."""

    feature_sparsity: float = setting(0.0, "Share of each node's non-zero features that are 0 in training.", low=0, high=1)
    feature_noise: float = setting(0.0, "Standard deviation of normal noise on every feature in training.", low=0)
    edge_sparsity: float = setting(0.0, "Share of each party's undirected edges that are missing in training.", low=0, high=1)
    edge_noise: float = setting(
        0.0, "Share of each party's undirected edges in whose place training has random ones.", low=0, high=1
    )
    label_sparsity: float = setting(0.0, "Share of each party's training nodes that do not train.", low=0, high=1)
    label_noise: float = setting(0.0, "Share of each party's training nodes that train with another class.", low=0, high=1)

    @property
    def active(self) -> bool:
        """Whether anything is damaged."""
        return any(astuple(self))

    @property
    def words(self) -> str:
        """What is damaged, and how much, in one line; empty where nothing is."""
        return ", ".join(f"{name}={value:g}" for name, value in asdict(self).items() if value)


def damaged(graph: Graph, settings: DamageSettings, seed: int, parties: Parties) -> Graph:
    """The graph that these parties train on; the same one where nothing is damaged."""
    if settings.feature_sparsity:
        graph = replace(graph, x=_with_zeros(graph, settings.feature_sparsity, _sources("feature_sparsity", seed, parties)))
    if settings.feature_noise:
        graph = replace(graph, x=_noised(graph, settings.feature_noise, _sources("feature_noise", seed, parties)))
    if settings.edge_sparsity:
        graph = _rewired(graph, settings.edge_sparsity, _sources("edge_sparsity", seed, parties), added=False)
    if settings.edge_noise:
        graph = _rewired(graph, settings.edge_noise, _sources("edge_noise", seed, parties), added=True)
    if settings.label_sparsity:
        graph = _with_fewer_labels(graph, settings.label_sparsity, _sources("label_sparsity", seed, parties), parties)
    if settings.label_noise:
        graph = _with_other_labels(graph, settings.label_noise, _sources("label_noise", seed, parties))
    return graph


def require_divided_nodes(settings: DamageSettings, scenario: str) -> None:
    """Refuse to damage graphs in scenarios where a party does not have nodes, features and edges of its own."""
    if settings.active and scenario in ("node", "vertical"):
        raise AtollError(
            f"Injected noise (noise.…) is for parties that hold subgraphs, not for {scenario} parties; leave it out, or choose a "
            "horizontal partition."
        )


def require_no_damage(settings: DamageSettings) -> None:
    """Refuse to damage the data of a real site: injected noise is for simulations."""
    if settings.active:
        raise AtollError("Injected noise (noise.…) is for simulations, not for sites with their own data; leave it out.")


def _sources(word: str, seed: int, parties: Parties) -> list[np.random.Generator]:
    return [np.random.default_rng(seed_of("damage", word, seed, party)) for party in parties]


def _with_zeros(graph: Graph, share: float, sources: list[np.random.Generator]) -> sp.csr_array | Tensor:
    """Of each node's c non-zero features, ⌊share·c⌋ random ones are 0."""
    x = graph.nonzero_features
    counts = np.diff(x.indptr)
    row = np.repeat(np.arange(graph.num_nodes), counts)
    bounds = x.indptr[graph.ptr.numpy()]
    keys = np.concatenate([rng.random(int(count)) for rng, count in zip(sources, np.diff(bounds), strict=True)])
    order = np.lexsort((keys, row))
    rank = np.empty(len(row), np.int64)
    rank[order] = np.arange(len(row)) - np.repeat(x.indptr[:-1], counts)
    kept = rank >= np.floor(share * counts + 1e-6)[row]
    ends = np.concatenate([[0], np.cumsum(kept)])[x.indptr]
    sparse = sp.csr_array((x.data[kept], x.indices[kept], ends), shape=x.shape)
    return torch.from_numpy(sparse.toarray()) if isinstance(graph.x, Tensor) else sparse


def _noised(graph: Graph, deviation: float, sources: list[np.random.Generator]) -> Tensor:
    """Every feature plus N(0, deviation²); the matrix is dense."""
    if graph.num_nodes * graph.num_features > MAX_DENSE:
        raise AtollError(
            f"noise.feature_noise makes the features dense, and {graph.num_nodes:,} nodes with {graph.num_features:,} of them "
            "are too many; use noise.feature_sparsity, or a smaller graph."
        )
    x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    drawn = [rng.standard_normal((size, graph.num_features), np.float32) for rng, size in zip(sources, graph.sizes, strict=True)]
    return x + deviation * torch.from_numpy(np.concatenate(drawn))


def _rewired(graph: Graph, share: float, sources: list[np.random.Generator], *, added: bool) -> Graph:
    """Each party keeps round((1 − share)·m) of its m undirected edges; with `added`, as many new ones as are missing join it."""
    edges = graph.edge_index.numpy()
    owner = graph.party.numpy()[edges[0]]
    order = np.argsort(owner, kind="stable")
    weights = None if graph.edge_weight is None else graph.edge_weight.numpy()
    pieces, piece_weights = [], []
    of_party = np.split(order, np.bincount(owner, minlength=graph.parties).cumsum()[:-1])
    for start, size, rng, index in zip(graph.ptr.tolist(), graph.sizes, sources, of_party, strict=False):
        mine = edges[:, index] - start
        codes, pair = np.unique(mine.min(0) * size + mine.max(0), return_inverse=True)
        kept = np.zeros(len(codes), bool)
        kept[rng.permutation(len(codes))[: round((1 - share) * len(codes))]] = True
        pieces.append(mine[:, kept[pair]] + start)
        piece_weights.append(index[kept[pair]])
        if added:
            new = _new_pairs(codes, size, int((~kept).sum()), rng)
            undirected = len(index) == 2 * len(codes)
            pieces.append((np.concatenate([new, new[::-1]], 1) if undirected else new) + start)
            drawn = rng.choice(index, new.shape[1]) if len(index) else np.empty(0, np.int64)  # whose weights they have
            piece_weights.append(np.tile(drawn, 2) if undirected else drawn)
    together, taken = np.concatenate(pieces, axis=1), np.concatenate(piece_weights)
    tidy = np.lexsort((together[1], together[0]))
    return replace(
        graph,
        edge_index=torch.from_numpy(np.ascontiguousarray(together[:, tidy])),
        edge_weight=None if weights is None else torch.from_numpy(weights[taken[tidy]]),
    )


def _new_pairs(codes: Ints, nodes: int, count: int, rng: np.random.Generator) -> Ints:
    """(2, ·) random pairs of different nodes that are not among the codes, in random direction; fewer where there are fewer."""
    possible = nodes * (nodes - 1) // 2
    count = min(count, possible - len(codes))
    if possible <= 4 * (len(codes) + count):  # dense: list what is left
        low, high = np.triu_indices(nodes, 1)
        left = np.setdiff1d(low * nodes + high, codes)
        chosen = rng.permutation(left)[:count]
    else:
        chosen = np.empty(0, np.int64)
        while len(chosen) < count:
            ends = rng.integers(0, nodes, (2, 2 * (count - len(chosen)) + 8))
            drawn = ends.min(0) * nodes + ends.max(0)
            drawn = drawn[(ends[0] != ends[1]) & ~np.isin(drawn, codes)]
            merged = np.concatenate([chosen, drawn])
            chosen = merged[np.sort(np.unique(merged, return_index=True)[1])][:count]
    pairs = np.stack([chosen // max(nodes, 1), chosen % max(nodes, 1)])
    turned = rng.random(count) < 0.5
    pairs[:, turned] = pairs[::-1, turned]
    return pairs


def _with_fewer_labels(graph: Graph, share: float, sources: list[np.random.Generator], parties: Parties) -> Graph:
    """Of each party's n training nodes, round(share·n) random ones do not train."""
    train = graph.train.clone()
    for party, rows, rng in zip(parties, _train_rows(graph), sources, strict=True):
        dropped = rng.permutation(rows)[: round(share * len(rows))]
        if len(rows) and len(dropped) == len(rows):
            raise AtollError(
                f"noise.label_sparsity={share:g} leaves party {party} none of its {len(rows)} training nodes; "
                "choose a smaller share."
            )
        train[torch.from_numpy(dropped)] = False
    return replace(graph, train=train)


def _with_other_labels(graph: Graph, share: float, sources: list[np.random.Generator]) -> Graph:
    """Of each party's n training nodes, round(share·n) random ones have another class, each equally likely."""
    if graph.y_columns is not None:
        raise AtollError("noise.label_noise changes classes, and this data has labels or values; leave it out.")
    if graph.num_classes < 2:
        raise AtollError("noise.label_noise needs at least 2 classes; leave it out.")
    y = graph.y.clone()
    for rows, rng in zip(_train_rows(graph), sources, strict=True):
        changed = torch.from_numpy(rng.permutation(rows)[: round(share * len(rows))])
        shift = torch.from_numpy(rng.integers(1, graph.num_classes, len(changed)))
        y[changed] = (y[changed] + shift) % graph.num_classes
    return replace(graph, y=y)


def _train_rows(graph: Graph) -> list[NDArray[np.int64]]:
    """The labeled training rows of each party."""
    rows = (graph.train & (graph.y >= 0)).nonzero()[:, 0].numpy()
    return np.split(rows, np.searchsorted(rows, graph.ptr.numpy()[1:-1]))
