"""`load(name)`: every dataset that has a name, and the user's own files, behind one function."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from atoll.data import files
from atoll.data.builder import row_normalize
from atoll.data.catalog import DataSettings
from atoll.data.party_graphs import stacked
from atoll.data.registry import DATASETS, lookup
from atoll.data.script_data import ScriptData
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.settings import renamed, warn_renamed


def load(
    name: Any, *, fold: int = 0, seed: int = 0, directed: bool = False, normalize_features: bool = False, **options: Any
) -> Graph:
    """The whole graph (P = 1) of a dataset's name, of a path to the user's own graph, or of an object.

    Parameters:
        name: a name that `atoll datasets` lists, a folder or .npz file, or what `atoll.run` takes as `dataset`: a graph of
            torch_geometric, NetworkX or pandas. A list of graphs or paths gives the parties' graphs, block-diagonal (P ≥ 1).
        fold: which of its public splits, where it has several. Without a public split the masks are empty.
        seed: the run's seed, for datasets that depend on it (`csbm`, `subcora`).
        directed: keep the directions of the edges; otherwise edges go both ways. Loops and repeats are dropped.
        normalize_features: divide each row of the features by its sum.
        options: the dataset's own settings, for instance `nodes` of `csbm`.

    Examples:
        >>> import atoll
        >>> atoll.load("csbm", nodes=200).num_nodes
        200
    """
    given = None if isinstance(name, (str, Path)) else ScriptData(name)
    name = "given" if given is not None else str(name)
    accepted, present = [field.name for field in fields(settings_of(name))], renamed(settings_of(name))
    warn_renamed({option: present[option] for option in options if option in present})
    options = {present.get(option, option): value for option, value in options.items()}
    for option in options:
        if option not in accepted:
            raise AtollError(f"Dataset {name!r} has no option {option!r}{suggest(option, accepted)}")
    if directed and "directed" not in accepted:
        raise AtollError(f"Dataset {name!r} has no directed edges; leave `directed` out.")
    common = {"directed": directed, "normalize_features": normalize_features}
    settings = settings_of(name)(**options, **{key: value for key, value in common.items() if key in accepted})
    graph = read_dataset(name, settings, seed=seed, fold=fold) if given is None else _read_given(given, settings, fold)
    if graph.table is not None:
        return encoded_alone(graph, normalize=normalize_features)
    if given is not None:
        return row_normalize(graph) if normalize_features else graph
    return row_normalize(graph) if normalize_features and "normalize_features" not in accepted else graph


def _read_given(given: ScriptData, settings: DataSettings, fold: int) -> Graph:
    """The graph of an object; of one graph per party, those graphs as they are, without a split drawn."""
    if not given.per_party:
        return given.whole(settings, fold).graph
    return stacked(given.parties(settings, fold))


def encoded_alone(graph: Graph, *, normalize: bool = False) -> Graph:
    """A graph with its table encoded by its own rows alone; as it is where it has no table."""
    from atoll.data.encoding_fit import fit_locally

    return graph if graph.table is None else fit_locally(graph.table).encode(graph, normalize=normalize)


def read_dataset(name: str, settings: Any, *, seed: int, fold: int) -> Graph:
    """The whole graph of a dataset's name or of a path, with the settings of that dataset (see `settings_of`)."""
    dataset = lookup(name)
    if dataset is not None:
        return dataset.load(settings, seed=seed, fold=fold)
    if not (os.sep in name or name.endswith(".npz") or Path(name).exists()):
        raise AtollError(f"There is no dataset, folder or .npz file {name!r}{suggest(name.lower(), DATASETS.names())}")
    graph = files.read(
        Path(name),
        directed=settings.directed,
        encode=settings.encode,
        fold=fold,
        edge_weights=settings.edge_weights,
        target=settings.target,
    )
    return row_normalize(graph) if settings.normalize_features else graph


def settings_of(name: str) -> type:
    """The settings dataclass of a dataset's name or of a path."""
    dataset = lookup(name)
    return DataSettings if dataset is None else dataset.Settings
