"""What a script gives as objects instead of names: a dataset, one graph or one per party, and a partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from atoll.data.catalog import DataSettings
from atoll.data.graph_objects import ACCEPTED, kind_of, read_object
from atoll.data.graph_tables import are_graphs, target_of_graphs
from atoll.data.party_graphs import PartyGraph
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.tasks import OF_TARGETS


class ScriptData:
    """A dataset and a partition as a script has them; they are read once the run's settings are known.

    Parameters:
        dataset: One graph (see `objects.read_object`); or a list, or a dict by party names, of graphs or paths: one per
            party; None where the dataset has a name.
        partition: Node lists, party numbers, or a function that makes them (see `given_partition`); None where it has a name.
    """

    def __init__(self, dataset: Any = None, partition: Any = None) -> None:
        self.dataset, self.partition = dataset, partition
        self._read: dict[tuple[Any, ...], list[PartyGraph]] = {}
        if dataset is None or kind_of(dataset):
            return
        if not isinstance(dataset, (Sequence, Mapping)):
            raise AtollError(f"dataset is a {type(dataset).__name__}; give {ACCEPTED}, or a list of them, one per party.")
        if len(dataset) == 0:
            raise AtollError("dataset is empty; give one graph, or one per party.")
        for name, each in dataset.items() if isinstance(dataset, Mapping) else enumerate(dataset):
            if not kind_of(each):
                raise AtollError(f"Party {name} is a {type(each).__name__}; give {ACCEPTED}.")

    @cached_property
    def small_graphs(self) -> bool:
        """Whether the dataset is a list of PyG's graphs with a `y` for each."""
        return are_graphs(self.dataset)

    @property
    def per_party(self) -> bool:
        """Whether the dataset is one graph per party."""
        if isinstance(self.dataset, Graph):
            return self.dataset.parties > 1
        return self.dataset is not None and not kind_of(self.dataset) and not self.small_graphs

    @property
    def task(self) -> str:
        """The task that a list of small graphs is for; empty where the dataset is something else."""
        return OF_TARGETS[target_of_graphs(self.dataset)]["graph"] if self.small_graphs else ""

    @property
    def without_partition(self) -> ScriptData | None:
        """The dataset alone; None where it has a name."""
        if self.dataset is None:
            return None
        alone = ScriptData(self.dataset)
        alone._read = self._read
        return alone

    def whole(self, settings: DataSettings, fold: int) -> PartyGraph:
        """The one graph, and its nodes' ids."""
        key = (settings, fold)
        if key not in self._read:
            party = read_object(self.dataset, settings, fold)
            if party.numbered and not isinstance(self.dataset, Graph):  # a whole graph's nodes are numbered by their rows
                party = replace(party, graph=replace(party.graph, ids=torch.arange(party.graph.num_nodes)))
            self._read[key] = [party]
        return self._read[key][0]

    def parties(self, settings: DataSettings, fold: int) -> list[PartyGraph]:
        """The parties' graphs."""
        key = (settings, fold)
        if key not in self._read:
            parties = self._parties(settings, fold)
            if len({party.graph.table is None for party in parties}) > 1:  # plain numbers at some parties only
                parties = self._parties(replace(settings, encode="always"), fold)
            self._read[key] = parties
        return self._read[key]

    def _parties(self, settings: DataSettings, fold: int) -> list[PartyGraph]:
        if isinstance(self.dataset, Graph):
            values: list[Any] = [self.dataset.select([party]) for party in range(self.dataset.parties)]
        else:
            values = list(self.dataset.values() if isinstance(self.dataset, Mapping) else self.dataset)
        names = self._names(values)
        parties = []
        for number, (value, name) in enumerate(zip(values, names, strict=True)):
            where = str(value) if kind_of(value) == "path" else f"Party {name or number}"
            party = read_object(value, settings, fold, name=name, where=where)
            if party.graph.parties != 1:
                raise AtollError(f"{where} already holds {party.graph.parties} parties; give one graph per party.")
            parties.append(party)
        return _renumbered(parties, values)

    def _names(self, values: Sequence[Any]) -> list[str]:
        """The parties' names: those of a dict or of folders; empty where there are none."""
        if isinstance(self.dataset, Mapping):
            return [str(name) for name in self.dataset]
        names = [Path(value).name for value in values if kind_of(value) == "path"]
        return names if len(set(names)) == len(values) else [""] * len(values)


def _renumbered(parties: list[PartyGraph], values: Sequence[Any]) -> list[PartyGraph]:
    """atoll's Graphs number their nodes in the federation unless all of them only count their rows."""
    counting = [torch.equal(party.graph.ids, torch.arange(party.graph.num_nodes)) for party in parties]
    is_graph = [isinstance(value, Graph) for value in values]
    if not all(count for count, graph in zip(counting, is_graph, strict=True) if graph):
        return parties
    return [
        replace(party, numbered=False, node_ids=None) if graph else party for party, graph in zip(parties, is_graph, strict=True)
    ]
