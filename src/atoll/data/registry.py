"""The datasets by name: atoll's own, those of other packages (entry points in the group `atoll.datasets`) and registered ones."""

from __future__ import annotations

import dataclasses
import warnings
from functools import partial
from typing import Any, Protocol

from atoll.data import graph_datasets
from atoll.data.catalog import catalog
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph
from atoll.registry import Registry


class Dataset(Protocol):
    """A graph that has a name: an object with these attributes.

    A file that adds one::

        @dataclass(frozen=True)
        class RingSettings:
            nodes: int = setting(100, "Nodes of the ring.", low=3)

        class Ring:
            name, nodes, edges, features, classes = "ring", 100, 100, 4, 2
            folder, available, Settings = "", True, RingSettings

            def load(self, settings, *, seed, fold):
                return build_graph(x, edge_index, y, where="ring")

        DATASETS.register("ring", Ring())

    A dataset whose nodes have owners may also have `load_parties(settings, *, seed, fold)`, which gives the graph of each party
    by name: they are its default partition, `natural`, and `load` gives all of them as one graph (`natural.as_one_graph`).
    """

    @property
    def name(self) -> str:
        """The name, in lower case."""
        ...

    @property
    def nodes(self) -> int:
        """The number of nodes; 0 where it is not known, here and below."""
        ...

    @property
    def edges(self) -> int:
        """The number of undirected edges."""
        ...

    @property
    def features(self) -> int:
        """The number of features."""
        ...

    @property
    def classes(self) -> int:
        """The number of classes."""
        ...

    @property
    def folder(self) -> str:
        """Where its raw files belong, under ATOLL_DATA or the cache; empty where it has none."""
        ...

    @property
    def available(self) -> bool:
        """Whether it can be loaded without a download."""
        ...

    @property
    def Settings(self) -> type:
        """The dataclass of its settings (`data.…` of a run), built by `atoll.settings.setting`."""
        ...

    def load(self, settings: Any, *, seed: int, fold: int) -> Graph:
        """The whole graph (P = 1), with a split where it has one; `seed` is the run's, `fold` selects one of several splits."""
        ...


PARTS = ("name", "nodes", "edges", "features", "classes", "folder", "available", "Settings", "load")


def _check(entry: Any, where: str) -> None:
    """Refuse an entry that is not a dataset."""
    missing = [part for part in PARTS if not hasattr(entry, part)]
    if missing:
        raise AtollError(f"{where} is not a dataset: it has no {', '.join(missing)}; a dataset has {', '.join(PARTS)}.")
    if not (isinstance(entry.Settings, type) and dataclasses.is_dataclass(entry.Settings)):
        raise AtollError(f"{where} is not a dataset: Settings must be a dataclass.")


DATASETS: Registry[Dataset] = Registry(
    "dataset",
    {
        "csbm": "atoll.data.csbm:CSBM",
        "majorities": "atoll.data.majorities:MAJORITIES",
        "subcora": "atoll.data.subcora:SUBCORA",
        "twitch": "atoll.data.twitch:TWITCH",
        **{name: partial(catalog().__getitem__, name) for name in catalog()},
        **graph_datasets.entries(),
    },
    check=_check,
)


def lookup(name: str) -> Dataset | None:
    """The dataset of that name, in any case; None where there is none."""
    return next((DATASETS.find(key) for key in (name, name.lower()) if key in DATASETS), None)


def known() -> list[Dataset]:
    """Every dataset by name; one of another package that cannot be imported is left out with a warning."""
    datasets = []
    for name in DATASETS:
        try:
            datasets.append(DATASETS.find(name))
        except AtollError as error:
            warnings.warn(str(error), AtollWarning, stacklevel=2)
    return datasets
