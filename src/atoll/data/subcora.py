"""SubCora: GFL-APPNP's 300-node pieces of Cora (A.2.1), by its authors' (seed, rank) pairs.

A connected component of 800 random nodes is the training set; as many of the other nodes within two hops of it validate, and
the next of them test, 300 nodes in all. The authors take them in the order of a Python set, which is nearly that of their
numbers; here it is exactly that, and components of equal size are ordered by their lowest node.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch

from atoll.data.builder import Ints, check_fold
from atoll.data.catalog import DataSettings, catalog
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.settings import setting

CORA = catalog()["cora"]
SAMPLED_NODES, NODES, HOPS = 800, 300, 2
PAIRS = (  # the authors' seeds, and the rank by size of the component of that sample
    *((101993, 1), (124709, 0), (196252, 2), (95930, 3), (68222, 2), (101539, 1), (22989, 2), (45367, 1), (166831, 2)),
    *((189085, 2), (12237, 0), (242044, 1), (40182, 1), (84405, 2), (234468, 0), (233451, 1), (154898, 2), (81745, 1)),
    *((70716, 2), (39777, 1)),
)


@dataclass(frozen=True)
class SubcoraSettings:
    """Which piece of Cora."""

    repetition: int = setting(-1, "Index of the subgraph, 0 to 19; negative uses the run's seed.", high=len(PAIRS) - 1)


def subcora(cora: Graph, repetition: int) -> Graph:
    """A piece of Cora as a whole graph (P = 1) with its own split."""
    if not 0 <= repetition < len(PAIRS):
        raise AtollError(f"SubCora has {len(PAIRS)} pieces, numbered from 0; there is no repetition {repetition}.")
    seed, rank = PAIRS[repetition]
    sample = torch.randperm(cora.num_nodes, generator=torch.Generator().manual_seed(seed))[:SAMPLED_NODES].numpy()
    train = component(cora.adjacency, np.sort(sample), rank)
    near = within(cora.adjacency, train, HOPS)
    if len(train) + len(near) < NODES:
        raise AtollError(f"Repetition {repetition} of SubCora has only {len(train) + len(near)} nodes within {HOPS} hops.")
    val, test = near[: len(train)], near[len(train) : NODES - len(train)]
    nodes = np.sort(np.concatenate([train, val, test]))
    in_train, in_val, in_test = (torch.from_numpy(np.isin(nodes, part)) for part in (train, val, test))
    piece = cora.rows(torch.from_numpy(nodes))
    return replace(piece, ids=torch.arange(len(nodes)), train=in_train, val=in_val, test=in_test)


def component(adjacency: sp.csr_array, nodes: Ints, rank: int) -> Ints:
    """The nodes of an induced subgraph's component with that rank by size (ties: the lowest node first)."""
    _, label = sp.csgraph.connected_components(adjacency[nodes][:, nodes], directed=False)
    sizes = np.bincount(label)
    lowest = np.unique(label, return_index=True)[1]
    selected = np.lexsort((lowest, -sizes))[rank]
    members: Ints = nodes[label == selected]
    return members


def within(adjacency: sp.csr_array, nodes: Ints, hops: int) -> Ints:
    """The other nodes at most `hops` away, sorted."""
    reached = np.zeros(adjacency.shape[0], bool)
    reached[nodes] = True
    for _ in range(hops):
        reached[adjacency[np.flatnonzero(reached)].indices] = True
    reached[nodes] = False
    return np.flatnonzero(reached)


@dataclass(frozen=True)
class SubcoraDataset:
    """The dataset `subcora`: cut out of Cora, so available where Cora is."""

    Settings: ClassVar[type] = SubcoraSettings

    name: str = "subcora"
    nodes: int = NODES
    edges: int = 259  # of the first piece
    features: int = CORA.features
    classes: int = CORA.classes
    folder: str = CORA.folder

    @property
    def available(self) -> bool:
        """Whether Cora's files are here."""
        return CORA.available

    def load(self, settings: SubcoraSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """The piece that the settings name; otherwise the run's `seed` selects it."""
        repetition = seed % len(PAIRS) if settings.repetition < 0 else settings.repetition
        graph = subcora(CORA.load(DataSettings()), repetition)
        check_fold(fold, 1, self.name)
        return graph


SUBCORA = SubcoraDataset()
