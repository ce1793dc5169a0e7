"""From a configuration to the parties' graphs: load, partition, split, check."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll import spilled
from atoll.data.builder import Ints, row_normalize
from atoll.data.catalog import DataSettings
from atoll.data.components import largest_component
from atoll.data.damage import require_divided_nodes
from atoll.data.data_config import DataConfig
from atoll.data.datasets import read_dataset
from atoll.data.encoding_fit import fit_locally
from atoll.data.federated_data import FederatedData, always, check_scenario, public_edges
from atoll.data.graph_parties import federate_graphs, holds_graphs
from atoll.data.linked import linked
from atoll.data.links import predicts_links, require_graphs, with_edge_splits, without_edge_split
from atoll.data.natural_parties import NATURAL, natural_parties
from atoll.data.partition import SCENARIO_OF, from_lists, partition, scenario_of
from atoll.data.party_graphs import PartyGraph, parts_of, pooled, read_folders, scenario_of_parties, unsplit, with_tables
from atoll.data.registry import lookup
from atoll.data.scratch import exceeds, gathered
from atoll.data.script_data import ScriptData
from atoll.data.script_partition import node_lists
from atoll.data.sharded import SHARDS, sharded
from atoll.data.splits import replaces_split, require_party_scope, split, split_before_cut
from atoll.data.target_columns import CLASS
from atoll.data.training_nodes import check_training
from atoll.data.unions import union
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.borders import borders_between
from atoll.graphs.graph import Graph, majority_class

SCENARIOS = ("horizontal", "overlapping", "vertical", "node")


def federate(
    config: DataConfig,
    given: Graph | ScriptData | None,
    scenarios: Sequence[str],
    *,
    unlabeled: bool = False,
    held: Sequence[int] | None = None,
) -> FederatedData:
    """The data of a run; `given` is what a script gave as an object instead of a name.

    With `unlabeled`, parties may be without training nodes, as long as some have some. `held` are the parties that live in this
    process, where that is not all: `parts` is their graph. A process without any (the server's) gets all parties' graphs or,
    of shards, their outline.
    """
    given = given if isinstance(given, ScriptData) else ScriptData(given)
    if given.small_graphs or (given.dataset is None and holds_graphs(config.dataset)):
        _refuse_borders(config, "A party here holds many small graphs")
        data = federate_graphs(config, scenarios, given.dataset)
        return replace(data, parts=data.parts.select(held)) if held else data
    if config.partition == SHARDS and given.dataset is None:
        return sharded(config, scenarios, unlabeled=unlabeled, held=held)
    data = _federate(config, given, scenarios, unlabeled=unlabeled)
    return replace(data, parts=data.parts.select(held)) if held else data


def _federate(config: DataConfig, given: ScriptData, scenarios: Sequence[str], *, unlabeled: bool) -> FederatedData:
    check_scenario(config, scenarios, config.algorithm)
    if config.partition in ("files", NATURAL):
        return _own_parties(config, given, scenarios, unlabeled=unlabeled)
    graph = without_edge_split(_whole_graph(config, given), config)
    graph = replace(graph, edge_index=_on_disk(graph.edge_index, getattr(config.data, "memory_budget", 0.0)))
    if config.partition == "node" and graph.edge_index.nbytes >= spilled.LARGE:  # matrices are made of them once, early
        graph = replace(graph, edge_index=spilled.spilled(graph.edge_index))
    encoding = None
    if config.partition == "vertical" and graph.table is not None:
        encoding = fit_locally(graph.table)
        graph = encoding.encode(graph, normalize=config.data.normalize_features)
    source = graph
    if config.partition_settings.largest_component:
        _check_by_node(config, given)
        graph = largest_component(graph)
    parts, lists = _partitioned_apart(config, given, graph)
    if predicts_links(config):
        scenario = require_graphs(scenario_of(config.partition, parts), config.noise)
        data = replace(linked(config, parts, graph, scenario, scenarios), node_lists=lists)
        if given.partition is None:
            _warn_lost(config, data.whole, source)
        return data
    if config.split.split_scope == "graph":
        parts = split_before_cut(parts, graph, config.split, config.seed)
    else:
        parts = split(parts, config.split, config.seed)
    scenario = scenario_of(config.partition, parts)
    require_divided_nodes(config.noise, scenario)
    parts = check_training(parts, scenario, config.split, unlabeled=unlabeled)
    if scenario == "node":  # the parties' rows are the graph's, whether a node has one or several
        if graph.edge_weight is not None:
            sentence = (
                "Edge weights are not used: where every node is a party, the server knows the edges, but not their weights."
            )
            warnings.warn(sentence, AtollWarning, stacklevel=2)
        whole = replace(parts, edge_index=graph.edge_index, ptr=graph.ptr, majority=majority_class(parts))
    else:
        whole = union(parts, graph, merged=scenario == "overlapping")
    if given.partition is None:  # else it has been said
        _warn_lost(config, whole, source)
    if scenarios == ("whole",):
        scenario, parts = "whole", whole
    else:
        check_scenario(config, scenarios, config.algorithm, scenario)
    public = public_edges(parts, whole) if scenario == "node" else {}
    if config.borders and scenario == "horizontal":
        between = borders_between(parts.ids, parts.party, graph.edge_index, graph.edge_weight, graph.ids)
        parts = replace(parts, borders=between)
    return FederatedData(scenario, parts, always(whole), always(source), public, encoding=encoding, node_lists=lists)


def _check_by_node(config: DataConfig, given: ScriptData) -> None:
    """Refuse to drop nodes where the partition names them by their rows in the whole graph."""
    if given.partition is not None or config.partition not in SCENARIO_OF:
        raise AtollError(
            "largest_component drops nodes before the graph is cut, but this partition lists the nodes of the whole graph; "
            "leave largest_component out."
        )


def _whole_graph(config: DataConfig, given: ScriptData) -> Graph:
    """The dataset as one graph."""
    if given.per_party:
        raise AtollError(
            f"The dataset is one graph per party, which the partition {config.partition!r} cannot divide; leave `partition` out."
        )
    if given.dataset is not None:
        graph = given.whole(config.data, config.split.fold).graph
        _warn_replaced_split(graph, config)
        plain = graph.table is None  # else its columns are normalized once they are encoded
        return row_normalize(graph) if plain and getattr(config.data, "normalize_features", False) else graph
    graph = read_dataset(config.dataset, config.data, seed=config.seed, fold=config.split.fold)
    if lookup(config.dataset) is None:
        _warn_replaced_split(graph, config)
    return graph


def _partitioned_apart(config: DataConfig, given: ScriptData, graph: Graph) -> tuple[Graph, tuple[Ints, ...] | None]:
    """As `_partitioned`; where dense features are beyond `memory_budget`, the parties' are copied to a file in pieces."""
    x, budget = graph.x, getattr(config.data, "memory_budget", 0.0)
    copied = config.partition in SCENARIO_OF and config.partition not in ("vertical", "node", "whole")
    if not (copied and isinstance(x, Tensor) and exceeds(x.nbytes, budget)):
        return _partitioned(config, given, graph)
    rows = torch.arange(graph.num_nodes)
    parts, lists = _partitioned(config, given, replace(graph, x=torch.empty(graph.num_nodes, 0), ids=rows))
    x = torch.from_numpy(gathered(x.numpy(), parts.ids.numpy(), budget))
    return replace(parts, x=x, edge_index=_on_disk(parts.edge_index, budget), ids=graph.ids[parts.ids]), lists


def _on_disk(edges: Tensor, budget: float) -> Tensor:
    """The edges, in a file where they are larger than the budget."""
    return spilled.spilled(edges) if exceeds(edges.nbytes, budget) else edges


def _partitioned(config: DataConfig, given: ScriptData, graph: Graph) -> tuple[Graph, tuple[Ints, ...] | None]:
    """The parties' graphs and, where a script gave the partition, the rows that each party holds."""
    settings = config.partition_settings
    if given.partition is None:
        seed = config.seed if settings.partition_seed < 0 else settings.partition_seed
        return partition(graph, config.partition, config.parties, settings, seed), None
    lists = node_lists(given.partition, graph, lambda: _node_ids(config, given, graph))
    return from_lists(graph, lists, config.parties, settings), tuple(lists)


def _node_ids(config: DataConfig, given: ScriptData, graph: Graph) -> Sequence[str] | None:
    """The nodes' ids by which a partition may name them: those of tables and of NetworkX, and texts."""
    if given.dataset is not None:
        party = given.whole(config.data, config.split.fold)
        return None if party.numbered else party.node_ids
    return None if graph.node_names is None else graph.node_names.tolist()


def _own_parties(config: DataConfig, given: ScriptData, scenarios: Sequence[str], *, unlabeled: bool) -> FederatedData:
    """Data as its owners have it: one graph per party."""
    from atoll.data import vertical_files  # pandas takes a while to import

    require_party_scope(config.split)
    _refuse_borders(config, "The parties' graphs are given one by one")
    parties = with_edge_splits(_party_graphs(config, given), config)
    scenario = scenario_of_parties(parties, config.algorithm, scenarios, config.partition_settings.scenario)
    require_divided_nodes(config.noise, scenario)
    if config.parties not in (None, len(parties)):
        raise AtollError(f"{_named(config)} holds {len(parties)} parties, not {config.parties}; leave --parties out.")
    names = tuple(party.name for party in parties) if parties[0].name else ()
    for party in parties:
        _warn_replaced_split(party.graph, config, party.where)
    normalize = config.partition != NATURAL and config.data.normalize_features  # a dataset scales its own
    extra: dict[str, Any] = {}
    if scenario == "vertical":
        encodings = tuple(None if party.graph.table is None else fit_locally(party.graph.table) for party in parties)
        parties = [
            party if encoding is None else replace(party, graph=encoding.encode(party.graph))
            for party, encoding in zip(parties, encodings, strict=True)
        ]
        extra = {"party_encodings": encodings, "party_columns": tuple(party.graph.feature_names for party in parties)}
        parts = vertical_files.match(parties, _classes(parties) if predicts_links(config) else None)
        parts = row_normalize(parts) if normalize else parts
        if predicts_links(config):
            require_graphs(scenario, config.noise)
            return replace(linked(config, parts, None, scenario, scenarios), names=names, **extra)
        parts = split(parts, config.split, config.seed)
        whole = source = vertical_files.joined(parts)
    else:
        parties = with_tables(
            parties, directed=getattr(config.data, "directed", False), target=getattr(config.data, "target", CLASS)
        )
        if predicts_links(config):
            parts = unsplit(parties, require_graphs(scenario, config.noise), normalize=normalize)
            return replace(linked(config, parts, None, scenario, scenarios), names=names)
        parts = parts_of(parties, scenario, config.split, config.seed, normalize=normalize)
        source = pooled(parts)
        whole = union(parts, source, merged=True)
    parts = check_training(parts, scenario, config.split, names, unlabeled=unlabeled)
    if scenarios == ("whole",):
        return FederatedData("whole", whole, always(whole), always(source), **extra)
    return FederatedData(scenario, parts, always(whole), always(source), names=names, **extra)


def _classes(parties: Sequence[PartyGraph]) -> int:
    """The most classes of a party, where labels are not needed."""
    return max(party.graph.num_classes for party in parties)


def _party_graphs(config: DataConfig, given: ScriptData) -> list[PartyGraph]:
    if config.partition == NATURAL and given.dataset is None:
        return natural_parties(config.dataset, config.data, seed=config.seed, fold=config.split.fold)
    if given.partition is not None:
        raise AtollError("The dataset is one graph per party, so there is nothing to divide; leave `partition` out.")
    if given.per_party:
        return given.parties(config.data, config.split.fold)
    if given.dataset is not None:
        raise AtollError("partition='files' takes one graph per party, but the dataset is one graph; give a list of graphs.")
    if not isinstance(config.data, DataSettings):
        raise AtollError(f"--partition files takes a folder with one folder per party, but the dataset is {config.dataset!r}.")
    settings = config.data
    return read_folders(
        Path(config.dataset),
        directed=settings.directed,
        encode=settings.encode,
        fold=config.split.fold,
        edge_weights=settings.edge_weights,
        target=settings.target,
    )


def _refuse_borders(config: DataConfig, why: str) -> None:
    """Refuse an algorithm that wants the edges between parties where nobody knows them."""
    if config.borders:
        raise AtollError(
            f"{why}, so nobody knows the edges between them, which {config.algorithm} exchanges; give one graph and a partition, "
            "or set hops=0."
        )


def _named(config: DataConfig) -> str:
    return "The dataset" if config.dataset == "given" else config.dataset


def _warn_replaced_split(graph: Graph, config: DataConfig, where: str = "") -> None:
    """Warn when the data's own split is replaced."""
    if replaces_split(graph, config.split):
        name = where or ("The graph" if config.dataset == "given" else config.dataset)
        sentence = f"{name} has a split of its own, which split={config.split.split!r} replaces; to use it, set split=auto."
        warnings.warn(sentence, AtollWarning, stacklevel=3)


def _warn_lost(config: DataConfig, whole: Graph, source: Graph) -> None:
    """Warn where nodes of the graph are at no party."""
    total, held = len(torch.unique(source.ids)), len(torch.unique(whole.ids))
    if held < total:
        component = ", largest_component" if config.partition_settings.largest_component else ""
        sentence = (
            f"{total - held:,} of {total:,} nodes are at no party and left out (partition {config.partition}{component}); "
            "metis and louvain_balanced lose none."
        )
        warnings.warn(sentence, AtollWarning, stacklevel=3)
