"""From a configuration to the parties' graphs: load, partition, split, check."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from atoll.data.datasets import CATALOGUE, DataSettings, load, row_normalise
from atoll.data.partition import SETTING, partition, setting_of
from atoll.data.splits import SplitSettings, replaces_split, split
from atoll.errors import AtollError, AtollWarning
from atoll.federation.metrics import majority
from atoll.graphs.graph import Graph

if TYPE_CHECKING:
    from atoll.runs.config import Config


SETTINGS = ("horizontal", "overlapping", "vertical", "node")


@dataclass(frozen=True)
class Spread:
    """A graph spread over parties."""

    setting: str  # horizontal, overlapping, vertical or node
    parts: Graph  # the parties' graphs, block-diagonal
    whole: Graph  # the union of their nodes, with the edges between parties (overlapping: only those that some party holds)
    source: Graph  # the graph that was spread, with nodes that no party got
    public: Mapping[str, Any] = field(default_factory=dict)  # what the setting lets the server know
    names: tuple[str, ...] = ()  # what the parties are called, where the data says so


def spread(config: Config, graph: Graph | None, spreads: Sequence[str]) -> Spread:
    """The data of a run; `graph` stands for the dataset where it was given as an object."""
    if spreads != ("whole",):
        _check_setting(config, SETTING.get(config.partition), spreads)
    if config.partition == "files":
        if graph is not None or not isinstance(config.data, DataSettings):
            raise AtollError(
                f"--partition files takes a folder with one folder a party, but the dataset is {config.dataset!r}; name a folder."
            )
        return _own_parties(config, spreads)
    if graph is None:
        graph = load(config.dataset, fold=config.split.fold, seed=config.seed, **asdict(config.data))
        if config.dataset.lower() not in CATALOGUE and isinstance(config.data, DataSettings):
            _mind_own_split(graph, config)
    else:
        _mind_own_split(graph, config)
        if getattr(config.data, "normalize_features", False):
            graph = row_normalise(graph)
    chosen = config.partition_settings.partition_seed
    parts = partition(graph, config.partition, config.parties, config.partition_settings, config.seed if chosen < 0 else chosen)
    parts = split(parts, config.split, config.seed)
    setting = setting_of(config.partition, parts)
    _check_training(parts, setting, config.split)
    if setting == "node":  # the parties' rows are the graph's, whether a node has one or several
        whole = replace(parts, edge_index=graph.edge_index, ptr=graph.ptr, majority=majority(parts))
    else:
        whole = union(parts, graph, merged=setting == "overlapping")
    if spreads == ("whole",):
        setting, parts = "whole", whole
    else:
        _check_setting(config, setting, spreads)
    public = {}
    if setting == "node":
        labels = torch.where(whole.train, whole.y, -1)[parts.ptr[:-1]]
        public = {"edge_index": parts.party[whole.edge_index], "y_train": labels}
    return Spread(setting, parts, whole, graph, public)


def _own_parties(config: Config, spreads: Sequence[str]) -> Spread:
    """Vertical data as its owners have it: one folder a party."""
    from atoll.data.vertical_files import joined, party_folders, read_parties  # pandas takes a while to import

    parts = read_parties(Path(config.dataset), directed=config.data.directed)
    if spreads != ("whole",):
        _check_setting(config, "vertical", spreads)
    _mind_own_split(parts, config)
    if config.parties not in (None, parts.parties):
        raise AtollError(f"{config.dataset} holds {parts.parties} parties, not {config.parties}; leave --parties out.")
    parts = split(row_normalise(parts) if config.data.normalize_features else parts, config.split, config.seed)
    _check_training(parts, "vertical", config.split)
    whole = joined(parts)
    if spreads == ("whole",):
        return Spread("whole", whole, whole, whole)
    return Spread("vertical", parts, whole, whole, names=tuple(place.name for place in party_folders(Path(config.dataset))))


def _mind_own_split(graph: Graph, config: Config) -> None:
    """Warn when the split that a person wrote into their data is not the one that is used."""
    if replaces_split(graph, config.split):
        name = "The graph" if config.dataset == "given" else config.dataset
        said = f"{name} brings a split of its own, which split={config.split.split!r} replaces; to use it, set split=auto."
        warnings.warn(said, AtollWarning, stacklevel=3)


def union(parts: Graph, graph: Graph, *, merged: bool = False) -> Graph:
    """All nodes that some party holds and the edges among them, with the parties' splits and each node's majority class there.

    `merged` keeps only the edges that some party holds: overlapping parties' graphs put together.
    """
    ids, place = torch.unique(parts.ids, return_inverse=True)
    whole = graph if len(ids) == graph.num_nodes else graph.rows(ids)
    if merged:
        whole = replace(whole, edge_index=torch.unique(place[parts.edge_index], dim=1))
    masks: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        mask = torch.zeros(len(ids), dtype=torch.bool)
        mask[place[getattr(parts, name)]] = True
        masks[name] = mask
    common = torch.zeros(len(ids), dtype=torch.int64)
    common[place.flip(0)] = majority(parts).flip(0)  # of several parties that hold a node, the first
    return replace(whole, **masks, majority=common)


def _check_setting(config: Config, setting: str | None, spreads: Sequence[str]) -> None:
    """Refuse a partition the algorithm is not made for; a file's setting (None) is known only once it is read."""
    if setting is not None and setting not in spreads:
        raise AtollError(
            f"{config.algorithm} is for {' or '.join(spreads)} parties, but the partition {config.partition!r} is {setting}; "
            "choose another --partition or another algorithm."
        )


def _check_training(parts: Graph, setting: str, how: SplitSettings) -> None:
    """Refuse what cannot be trained: no training nodes at all, or a party without any where parties train alone."""
    if not bool(parts.train.any()):
        labelled = int((parts.y >= 0).sum())
        raise AtollError(
            f"The graph has no training nodes: split={how.split!r} took none of the parties' {labelled} labelled nodes; "
            "label more nodes, or choose another split, for instance --set split=per_class."
        )
    if setting in ("horizontal", "overlapping") and int(parts.num_train.min()) == 0:
        party = int(parts.num_train.argmin())
        raise AtollError(
            f"Party {party} has {parts.sizes[party]} nodes but none of them trains; "
            "use fewer parties, another partition or another split."
        )
