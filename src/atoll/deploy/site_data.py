"""A site's own data: read from its folder, with the federation's columns and classes, and as the one party that it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor, nn

from atoll import algorithms
from atoll.data.builder import row_normalize
from atoll.data.damage import require_no_damage
from atoll.data.encoding import Encoding
from atoll.data.encoding_fit import FittedEncoding, fit_locally
from atoll.data.federated import federate
from atoll.data.graph_parties import split_graphs
from atoll.data.graph_tables import read_graph_tables
from atoll.data.links import label_holder, predicts_links, require_graphs, split_links
from atoll.data.party_graphs import read_party
from atoll.data.splits import replaces_split, require_party_scope, split
from atoll.deploy import description, requests
from atoll.deploy.node_matching import with_common_nodes
from atoll.deploy.table_forms import common_table, local_encoding
from atoll.errors import AtollError
from atoll.federation.cohort import Fields, Schema
from atoll.graphs.graph import Graph, majority_class
from atoll.graphs.table import Column
from atoll.parties import Parties
from atoll.runs.config import Config
from atoll.runs.data_task import level_of

Notify = Callable[[str], None]


def read_graph(folder: Path | None, config: Config, notify: Notify, *, encode: str = "") -> tuple[Graph, Encoding | None]:
    """The site's graph; if vertical, its table is encoded by its own rows alone, else the graph has the table.

    Vertical sites' nodes are named by what they are matched by: their ids, or nothing where they have none.

    `encode`: which columns of a table are to be encoded, where it is not for the configuration to say.
    """
    if folder is None:
        raise AtollError("this site has no data of its own.")
    try:
        how, fold = config.data, config.split.fold
        encode = encode or how.encode
        if level_of(config.run.task) == "graph":
            return read_graph_tables(folder, how), None
        party = read_party(
            folder, directed=how.directed, encode=encode, fold=fold, edge_weights=how.edge_weights, target=how.target
        )
        graph = party.graph
        if config.partition == "vertical":
            graph = replace(graph, node_names=None if party.node_ids is None else np.array(party.node_ids, dtype=object))
        encoding = fit_locally(graph.table) if graph.table is not None and config.partition == "vertical" else None
    except AtollError as error:  # its text may hold data of the site
        notify(str(error))
        raise AtollError("its graph could not be read; its log says why.") from error
    return (graph if encoding is None else encoding.encode(graph)), encoding


def load_run(
    folder: Path | None,
    config: Config,
    schema: Schema,
    parties: Parties,
    order: Fields,
    fitted: FittedEncoding | None,
    key: bytes,
    notify: Notify,
) -> tuple[Graph, str, Encoding | None]:
    """The parties' graph for the rounds of a run, the scenario, and the encoding of the site's table with the site's names.

    Columns, classes and vertical sites' nodes are in the order that the federation agreed on; `fitted` is the encoding that the
    server sent.
    """
    if folder is None:
        graph, scenario, encoding = *_simulated(config, parties), None
    else:
        (graph, encoding), scenario = read_graph(folder, config, notify, encode="always" if fitted else ""), config.partition
    if order:
        graph = description.reorder(graph, order, key, notify)
    if folder is not None and config.partition == "vertical":
        graph = with_common_nodes(graph, order.get("nodes"), key, notify)
    if graph.table is not None and fitted is None:
        raise AtollError("its columns need an encoding, and the server sent none.")
    if fitted is not None:
        graph = with_columns(graph, [each.column for each in fitted.encoding.columns], key)
        assert graph.table is not None
        encoding = local_encoding(fitted, graph.table, key)
        graph = encoding.encode(graph)
    if (folder is not None or encoding is not None) and config.data.normalize_features:
        graph = row_normalize(graph)
    if folder is not None and predicts_links(config):
        graph = as_link_party(graph, config, schema, parties)
        requests.check_schema(schema, graph, config, parties)
        return graph, scenario, encoding
    requests.check_schema(schema, graph, config, parties)
    return (graph if folder is None else as_party(graph, config, schema, parties, notify)), scenario, encoding


def load_tables(
    folder: Path | None,
    config: Config,
    schema: Schema,
    parties: Parties,
    columns: Sequence[Column],
    key: bytes,
    notify: Notify,
) -> Graph:
    """The parties' graph before their tables are encoded, with the columns that the federation agreed on."""
    if folder is None:
        graph = _simulated(config, parties)[0]
    else:
        graph, _ = read_graph(folder, config, notify, encode="always")
        require_one_party(parties)
    requests.check_schema(schema, graph, config, parties)
    return with_columns(graph, columns, key)


def _simulated(config: Config, parties: Parties) -> tuple[Graph, str]:
    """The part of the configured dataset that belongs to some parties."""
    scenarios, unlabeled = algorithms.find(config.algorithm).SCENARIOS, algorithms.takes_unlabeled(config.algorithm)
    data = federate(config, None, scenarios, unlabeled=unlabeled, held=parties)
    return data.parts, data.scenario


def with_columns(graph: Graph, columns: Sequence[Column], key: bytes) -> Graph:
    """The graph with its table's columns as the federation agreed."""
    if graph.table is None:
        raise AtollError("its graph has no table whose columns could be encoded.")
    return replace(graph, table=common_table(graph.table, columns, key))


def require_one_party(parties: Parties) -> None:
    """Refuse a run in which a site with its own data is not one party."""
    if len(parties) != 1:
        raise AtollError("a site with its own data is exactly one party.")


def as_link_party(graph: Graph, config: Config, schema: Schema, parties: Parties) -> Graph:
    """The site's graph as its one party of link prediction: its edges split as in a simulation."""
    require_one_party(parties)
    vertical = config.partition == "vertical"
    require_graphs("vertical" if vertical else "horizontal", config.noise)
    if (vertical or config.partition == "overlapping") and graph.edge_split is None and graph.edge_index.shape[1]:
        raise AtollError("parties that share nodes must agree on their edges' roles: give edges a column `split`.")
    if vertical:
        graph = replace(graph, x=_pad_features(graph.x, schema.features), widths=(graph.num_features,))
    holder = label_holder(config, schema.parties, config.partition)
    return split_links(graph, config.split, config.seed, parties, holder=holder)


def as_party(graph: Graph, config: Config, schema: Schema, parties: Parties, notify: Notify) -> Graph:
    """The site's graph as its one party: split, and padded to the federation's columns."""
    require_one_party(parties)
    if config.partition == "vertical":
        graph = replace(graph, x=_pad_features(graph.x, schema.features), widths=(graph.num_features,))
    elif config.partition == "overlapping" and not bool((graph.train | graph.val | graph.test).any()):
        raise AtollError("parties that share nodes must agree on their roles: mark the split (train, val, test) in the data.")
    elif config.partition == "overlapping" and replaces_split(graph, config.split):
        raise AtollError(
            f"parties that share nodes must agree on their roles, so the data's own split is used: "
            f"leave split={config.split.split!r} out of the configuration."
        )
    if replaces_split(graph, config.split):
        notify(f"the data's own split is replaced: the server's configuration says split={config.split.split!r}")
    require_party_scope(config.split)
    require_no_damage(config.noise)
    graph = (
        split_graphs(graph, config.split, config.seed)
        if graph.graph_ptr is not None
        else split(graph, config.split, config.seed, parties)
    )
    if config.partition != "vertical" and int(graph.train.sum()) == 0:
        if algorithms.takes_unlabeled(config.algorithm):
            return replace(graph, majority=graph.y)  # it has no most frequent training class, so no minority nodes
        what = "nodes" if graph.graph_ptr is None else "graphs"
        raise AtollError(f"it has no training {what}; label some, or choose another split.")
    if graph.graph_ptr is not None:
        return replace(graph, majority=majority_class(graph))
    return graph


def _pad_features(x: Any, columns: int) -> Any:
    """The features with zero columns appended, as many as the widest party of a vertical federation has."""
    if isinstance(x, Tensor):
        return nn.functional.pad(x, (0, columns - x.shape[1]))
    return sp.csr_array((x.data, x.indices, x.indptr), shape=(x.shape[0], columns))
