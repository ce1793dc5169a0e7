"""Parties that hold many small graphs: how a dataset's graphs are dealt to parties, and how each party splits its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.data.alignment import align
from atoll.data.builder import Ints
from atoll.data.data_config import DataConfig
from atoll.data.datasets import read_dataset
from atoll.data.federated_data import FederatedData, always, check_scenario
from atoll.data.graph_tables import graphs_of_pyg, has_graphs, read_graph_tables
from atoll.data.natural_parties import NATURAL, natural_parties
from atoll.data.node_lists import dirichlet
from atoll.data.partition_settings import PartitionSettings
from atoll.data.party_graphs import PartyGraph, party_folders
from atoll.data.registry import lookup
from atoll.data.skewed import label_skew, power_law_sizes
from atoll.data.splits import SplitSettings, split
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph, majority_class, stack
from atoll.random import seed_of
from atoll.tasks import GRAPH_TASK

PARTITIONS = ("chunks", "random", "dirichlet", "label_skew", "whole", NATURAL)
CHUNK = 50  # graphs in file order that GCFL deals to each party before the others
SPLITS = ("auto", "halves", "random", "by_class")


def holds_graphs(dataset: str) -> bool:
    """Whether a dataset's items are graphs."""
    known = lookup(dataset)
    return has_graphs(Path(dataset).expanduser()) if known is None else getattr(known, "task", "") == GRAPH_TASK


def federate_graphs(config: DataConfig, scenarios: Sequence[str], given: Any = None) -> FederatedData:
    """The parties' graphs of a dataset of small graphs; `given`: as a list of PyG's graphs."""
    check_scenario(config, scenarios, config.algorithm, "horizontal")
    names: tuple[str, ...] = ()
    if config.partition == NATURAL:
        parties = natural_parties(config.dataset, config.data, seed=config.seed, fold=config.split.fold)
        names = tuple(party.name for party in parties)
        if config.parties not in (None, len(parties)):
            raise AtollError(f"{config.dataset} has {len(parties)} parties, not {config.parties}; leave --parties out.")
        parts = stack([party.graph for party in parties])
        parts = replace(parts, ids=torch.arange(parts.num_nodes))
    elif config.partition == "files":
        parties = _own_folders(config)
        names = tuple(party.name for party in parties)
        parts = stack(align([party.graph for party in parties], [party.where for party in parties]))
        parts = replace(parts, ids=torch.arange(parts.num_nodes))
    else:
        if given is not None:
            graph = graphs_of_pyg(given, config.data.target)
        elif lookup(config.dataset) is None:
            graph = read_graph_tables(Path(config.dataset).expanduser(), config.data)
        else:
            graph = read_dataset(config.dataset, config.data, seed=config.seed, fold=config.split.fold)
        settings = config.partition_settings
        seed = config.seed if settings.partition_seed < 0 else settings.partition_seed
        parts = dealt(graph, deal(graph, config.partition, config.parties, settings, seed))
    parts = split_graphs(parts, config.split, config.seed)
    _require_training(parts, names)
    parts = replace(parts, majority=majority_class(parts))
    if scenarios == ("whole",):
        if parts.classes is not None:
            raise AtollError(f"{config.algorithm} trains on all graphs together, but the parties' columns and classes differ.")
        parts = parts.merged
        return FederatedData("whole", parts, always(parts), always(parts))
    return FederatedData("horizontal", parts, always(parts), always(parts), names=names)


def _own_folders(config: DataConfig) -> list[PartyGraph]:
    """The graphs of each folder in a folder."""
    if lookup(config.dataset) is not None:
        raise AtollError(f"--partition files takes a folder with one folder per party, but the dataset is {config.dataset!r}.")
    folders = party_folders(Path(config.dataset))
    if config.parties not in (None, len(folders)):
        raise AtollError(f"{config.dataset} holds {len(folders)} parties, not {config.parties}; leave --parties out.")
    return [PartyGraph(path.name, str(path), read_graph_tables(path, config.data), deployable=True) for path in folders]


def deal(graph: Graph, kind: str, parties: int | None, settings: PartitionSettings, seed: int) -> list[Ints]:
    """The graphs of each party, ascending.

    `chunks` is the rule of GCFL's code: min(50, ⌊G/P⌋) graphs in file order to each party, every other one to a party drawn
    uniformly (by NumPy's old generator, so that seed 123 gives the published deal). `dirichlet` and `label_skew` go by class.
    """
    labels = graph.y.numpy()
    count = len(labels)
    if kind not in PARTITIONS:
        raise AtollError(f"A dataset of many graphs cannot be dealt by {kind!r}{suggest(kind, PARTITIONS)}")
    if kind == NATURAL:
        raise AtollError(f"This dataset has no parties of its own; choose {', '.join(PARTITIONS[:-1])}.")
    if kind == "whole":
        return [np.arange(count)]
    if parties is None:
        raise AtollError(f"The {kind} partition needs a number of parties; add --parties N.")
    if not 1 <= parties <= count:
        raise AtollError(f"{parties} parties cannot share {count} graphs; use 1 to {count} parties.")
    if kind == "chunks":
        each = min(CHUNK, count // parties)
        drawn = np.random.RandomState(seed % 2**32).randint(0, parties, count - each * parties)
        owner = np.concatenate([np.repeat(np.arange(parties), each), drawn])
        lists = [np.flatnonzero(owner == party) for party in range(parties)]
    elif kind != "random" and graph.y_columns is not None:
        raise AtollError(f"The {kind} partition goes by class, and these graphs have labels or values; use chunks or random.")
    else:
        rng = np.random.default_rng(seed_of("partition", seed, kind))
        if kind == "random":
            exponent = settings.size_exponent
            cuts = power_law_sizes(count, parties, exponent).cumsum()[:-1] if exponent else parties
            lists = [np.sort(part) for part in np.array_split(rng.permutation(count), cuts)]
        else:
            by_label = label_skew if kind == "label_skew" else dirichlet
            lists = by_label(labels, parties, settings.concentration, settings.min_nodes, rng)
    if empty := [party for party, members in enumerate(lists) if not len(members)]:
        raise AtollError(f"The {kind} partition leaves party {empty[0]} without graphs; use fewer parties or another seed.")
    return lists


def dealt(graph: Graph, lists: Sequence[Ints]) -> Graph:
    """The graph of the parties that hold these small graphs."""
    order = torch.from_numpy(np.concatenate(lists))
    parts = graph.take(order)
    ends = np.cumsum([0, *(len(members) for members in lists)])
    assert parts.graph_ptr is not None
    return parts.complete(ptr=parts.graph_ptr[torch.from_numpy(ends)])


def split_graphs(graph: Graph, settings: SplitSettings, seed: int) -> Graph:
    """The graph with its masks set: within each party. `auto` is `halves`, the rule of GCFL and FedStar."""
    if settings.split not in SPLITS:
        raise AtollError(f"Graphs are split by {', '.join(SPLITS)}, not by {settings.split!r}; set split=auto.")
    if settings.split not in ("auto", "halves"):
        return split(graph, settings, seed)
    if settings.split == "auto" and bool((graph.train | graph.val | graph.test).any()):
        return graph  # its own
    seed = seed if settings.split_seed < 0 else settings.split_seed
    roles = [_halves_of_known(labels, settings.train, seed) for labels in torch.split(graph.y, graph.items.sizes)]
    role = torch.cat(roles)
    return replace(graph, train=role == 0, val=role == 1, test=role == 2)


def _halves_of_known(labels: Tensor, train: float, seed: int) -> Tensor:
    """The same of those that have a label; the others have no role."""
    known = labels >= 0
    if bool(known.all()):
        return halves(labels, train, seed)
    roles = torch.full_like(labels, -1)
    roles[known] = halves(labels[known], train, seed)
    return roles


def halves(labels: Tensor, train: float, seed: int) -> Tensor:
    """(I,) the share `train` of a party's graphs trains (role 0), stratified by class; the others validate and test, half each.

    scikit-learn's `train_test_split` with seed 123 gives the published splits. Deviation: where a class is too rare for
    stratification, which is an error in the authors' code, the graphs are split without.
    """
    roles = torch.zeros(len(labels), dtype=torch.int64)
    if len(labels) < 3:
        return roles
    rest = _second(np.arange(len(labels)), labels.numpy(), 1 - train, seed)
    if len(rest) < 2:
        roles[torch.from_numpy(rest)] = 2
        return roles
    test = _second(rest, labels.numpy()[rest], 0.5, seed)
    roles[torch.from_numpy(rest)] = 1
    roles[torch.from_numpy(test)] = 2
    return roles


def _second(index: Ints, labels: Ints, share: float, seed: int) -> Ints:
    """The second part of scikit-learn's split, stratified where that is possible."""
    from sklearn.model_selection import train_test_split  # slow to import

    seed %= 2**32
    try:
        parts = train_test_split(index, test_size=share, shuffle=True, random_state=seed, stratify=labels)
    except ValueError:
        parts = train_test_split(index, test_size=share, shuffle=True, random_state=seed)
    second: Ints = parts[1]
    return second


def _require_training(parts: Graph, names: Sequence[str]) -> None:
    if not bool((parts.y >= 0).any()):
        raise AtollError(f"None of the {len(parts.y)} graphs has a known label or value; give some of them one.")
    if int(parts.num_train.min()) == 0:
        party = int(parts.num_train.argmin())
        known = "training graphs" if bool((parts.y[parts.owner == party] >= 0).any()) else "known label or value of one"
        advice = "label some there" if names else "use fewer parties, another partition"
        raise AtollError(
            f"Party {names[party] if names else party} has {parts.items.sizes[party]} graphs but no {known}; {advice} "
            "or another split."
        )
