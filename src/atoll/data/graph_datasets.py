"""Datasets of many small graphs by name: the TU sets, COLLAB, and groups of them in which every party holds one dataset."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.data.builder import check_fold
from atoll.data.catalog import raw_folder
from atoll.data.npz import read_npz
from atoll.data.tu import GraphDataSettings, degrees, graph_of_graphs, one_hot, read_tu
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.tasks import GRAPH_TASK

SIZES = {  # name → graphs, nodes, edges, columns, classes
    "AIDS": (2000, 31385, 32390, 38, 2),
    "BZR": (405, 14479, 15535, 53, 2),
    "COX2": (467, 19252, 20289, 35, 2),
    "DD": (1178, 334925, 843046, 89, 2),
    "DHFR": (756, 32075, 33676, 53, 2),
    "ENZYMES": (600, 19580, 37282, 3, 6),
    "IMDB-BINARY": (1000, 19773, 96531, 136, 2),
    "IMDB-MULTI": (1500, 19502, 98903, 89, 3),
    "Letter-high": (2250, 10507, 10125, 2, 15),
    "Letter-low": (2250, 10522, 7046, 2, 15),
    "Letter-med": (2250, 10518, 7213, 2, 15),
    "MUTAG": (188, 3371, 3721, 7, 2),
    "NCI1": (4110, 122747, 132753, 37, 2),
    "NCI109": (4127, 122494, 132604, 38, 2),
    "OHSU": (79, 6479, 15773, 190, 2),
    "PROTEINS": (1113, 43471, 81044, 3, 2),
    "PTC_MR": (344, 4915, 5054, 18, 2),
    "Peking_1": (85, 3341, 6575, 190, 2),
    "COLLAB": (5000, 372474, 12286079, 492, 3),
}
CHEM = ("MUTAG", "BZR", "COX2", "DHFR", "PTC_MR", "AIDS", "NCI1")
BIO = ("ENZYMES", "DD", "PROTEINS")
SOCIAL = ("COLLAB", "IMDB-BINARY", "IMDB-MULTI")
GROUPS = {  # of GCFL (molecules, biochem, mix) and FedStar
    "chem": CHEM,
    "biochem": (*CHEM, *BIO),
    "biochemsn": (*CHEM, *BIO, *SOCIAL),
    "biosncv": (*BIO, *SOCIAL, "Letter-high", "Letter-low", "Letter-med"),
}


@dataclass(frozen=True)
class SmallGraphs:
    """A dataset of many small graphs."""

    Settings: ClassVar[type] = GraphDataSettings
    task: ClassVar[str] = GRAPH_TASK

    spelling: str

    @property
    def name(self) -> str:
        """In lower case."""
        return self.spelling.lower()

    @property
    def graphs(self) -> int:
        """The number of graphs."""
        return SIZES[self.spelling][0]

    @property
    def nodes(self) -> int:
        """Of all graphs together."""
        return SIZES[self.spelling][1]

    @property
    def edges(self) -> int:
        """Of all graphs together, undirected."""
        return SIZES[self.spelling][2]

    @property
    def features(self) -> int:
        """Columns with the default `data.features`."""
        return SIZES[self.spelling][3]

    @property
    def classes(self) -> int:
        """Of the graphs."""
        return SIZES[self.spelling][4]

    @property
    def folder(self) -> str:
        """Under ATOLL_DATA or the cache."""
        return "collab" if self.spelling == "COLLAB" else f"tu/{self.spelling}/raw"

    @property
    def files(self) -> tuple[str, ...]:
        """The files that it cannot do without."""
        kinds = ("A", "graph_indicator", "graph_labels")
        return ("COLLAB.npz",) if self.spelling == "COLLAB" else tuple(f"{self.spelling}_{kind}.txt" for kind in kinds)

    @property
    def available(self) -> bool:
        """Whether its files are here."""
        return raw_folder(self.folder, self.files) is not None

    def load(self, settings: GraphDataSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """All graphs as those of one party."""
        check_fold(fold, 1, self.name)
        folder = raw_folder(self.folder, self.files)
        if folder is None:
            raise AtollError(
                f"Dataset {self.name!r} is not here and atoll does not download it; put {', '.join(self.files)} (and the node "
                f"labels or attributes) into the folder {self.folder} under ATOLL_DATA."
            )
        if self.spelling == "COLLAB":
            return _read_collab(folder / self.files[0], settings.features)
        return read_tu(folder, self.spelling, settings.features)


@dataclass(frozen=True)
class GraphGroup:
    """Several datasets, each a party: their columns and classes differ."""

    Settings: ClassVar[type] = GraphDataSettings
    task: ClassVar[str] = GRAPH_TASK

    name: str
    members: tuple[str, ...]
    folder: str = "tu"

    @property
    def graphs(self) -> int:
        """Of all parties."""
        return sum(SIZES[member][0] for member in self.members)

    @property
    def nodes(self) -> int:
        """Of all parties."""
        return sum(SIZES[member][1] for member in self.members)

    @property
    def edges(self) -> int:
        """Of all parties."""
        return sum(SIZES[member][2] for member in self.members)

    @property
    def features(self) -> int:
        """Of the party with most."""
        return max(SIZES[member][3] for member in self.members)

    @property
    def classes(self) -> int:
        """Of the party with most."""
        return max(SIZES[member][4] for member in self.members)

    @property
    def available(self) -> bool:
        """Whether all members are here."""
        return all(SmallGraphs(member).available for member in self.members)

    def load(self, settings: GraphDataSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """There is no whole: the parties' columns mean different things."""
        raise AtollError(f"{self.name} is one dataset per party, whose columns and classes differ; use partition natural.")

    def load_parties(self, settings: GraphDataSettings, *, seed: int = 0, fold: int = 0) -> dict[str, Graph]:
        """Each party's graphs, with the columns of the party that has most of them."""
        graphs = {member: SmallGraphs(member).load(settings, fold=fold) for member in self.members}
        width = max(graph.num_features for graph in graphs.values())
        classes = max(graph.num_classes for graph in graphs.values())
        return {name: widened(graph, width, classes) for name, graph in graphs.items()}


def widened(graph: Graph, width: int, classes: int) -> Graph:
    """The graph with zero columns up to `width`; its own numbers of columns and classes are `widths` and `classes`."""
    missing = width - graph.num_features
    if isinstance(graph.x, Tensor):
        x: Tensor | sp.csr_array = torch.nn.functional.pad(graph.x, (0, missing))
    else:
        x = sp.csr_array((graph.x.data, graph.x.indices, graph.x.indptr), shape=(graph.num_nodes, width))
    sizes = {"widths": (graph.num_features,), "classes": (graph.num_classes,)}
    return replace(graph, x=x, num_classes=classes, class_names=None, **sizes)  # type: ignore[arg-type]


def _read_collab(path: Path, features: str) -> Graph:
    """COLLAB as one file: numbers of nodes and edges of each graph, and the edges in the graph's own numbers."""
    arrays = read_npz(path)
    sizes, counts = (arrays[name].astype(np.int64) for name in ("graph_sizes", "edge_counts"))
    starts = np.repeat(np.cumsum([0, *sizes[:-1]]), counts)
    pairs = arrays["edges"].astype(np.int64)
    edges = (pairs if pairs.shape[0] == 2 else pairs.T) + starts
    if features not in ("auto", "degree", "constant"):
        raise AtollError(f"The nodes of COLLAB have no {features}; choose another data.features, for instance degree.")
    if features == "constant":
        return graph_of_graphs(np.ones((int(sizes.sum()), 1), np.float32), edges, sizes, arrays["graph_labels"], where=str(path))
    counted = degrees(edges, int(sizes.sum()))
    columns = one_hot(counted, 0, int(counted.max()) + 1)
    return graph_of_graphs(columns, edges, sizes, arrays["graph_labels"].astype(np.int64), where=str(path))


def entries() -> dict[str, Callable[[], SmallGraphs | GraphGroup]]:
    """All of them by name, for the registry of datasets."""
    single = {name.lower(): partial(SmallGraphs, name) for name in SIZES}
    return {**single, **{name: partial(GraphGroup, name, members) for name, members in GROUPS.items()}}
