"""One graph per party, as its owner has it: folders of one folder (`--partition files`), or a script's list of graphs.

    north/         each as `files.read` takes it: tables `nodes` and `edges`, or `graph.npz`
    south/         the parties are numbered in the order of their folders' names

A deployed federation with these folders (`atoll serve`, `atoll join`) reads, orders and splits them in the same way, so its
numbers are the same. What the parties' nodes have to do with each other is the scenario: nothing (`horizontal`), some are the
same (`overlapping`), or all are the same and the columns differ (`vertical`, see `vertical_files`).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.data import files
from atoll.data.alignment import align
from atoll.data.builder import Ints, row_normalize
from atoll.data.splits import SplitSettings, replaces_split, split
from atoll.data.target_columns import CLASS
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.edges import distinct_edges
from atoll.graphs.graph import Graph, stack
from atoll.graphs.table import common_columns

SCENARIOS = ("horizontal", "overlapping", "vertical")  # in which a party's own graph can be one party
OWN_ROLES = "parties that share nodes must agree on their roles"


@dataclass(frozen=True)
class PartyGraph:
    """A party's own graph."""

    name: str  # of the party; empty where it only has a number
    where: str  # what error messages call the graph
    graph: Graph
    numbered: bool = False  # whether `graph.ids` are the nodes' numbers in the federation
    node_ids: tuple[str, ...] | None = None  # the nodes' ids, where they have any besides their rows
    deployable: bool = False  # whether a site can bring it: it is a folder

    @property
    def counted(self) -> bool:
        """Whether the ids are only 0, 1, 2, … or 1, 2, 3, …, which every party has of its own."""
        rows = self.graph.num_nodes
        return self.node_ids in (tuple(map(str, range(rows))), tuple(map(str, range(1, rows + 1))))


def read_folders(
    folder: Path,
    *,
    directed: bool = False,
    encode: str = "auto",
    fold: int = 0,
    edge_weights: bool = True,
    target: str = CLASS,
) -> list[PartyGraph]:
    """The graphs of the folders in a folder; `encode`: which columns of tables are encoded (see `files.read`)."""
    how: dict[str, Any] = {"directed": directed, "encode": encode, "fold": fold, "edge_weights": edge_weights}
    how["target"] = target
    return [read_party(path, path.name, **how) for path in party_folders(folder)]


def read_party(
    path: Path,
    name: str = "",
    *,
    directed: bool = False,
    encode: str = "auto",
    fold: int = 0,
    edge_weights: bool = True,
    target: str = CLASS,
) -> PartyGraph:
    """The graph in a folder or .npz, and how its nodes are named."""
    graph = files.read(path, directed=directed, encode=encode, fold=fold, edge_weights=edge_weights, target=target)
    archive = files.archive_of(path)
    if archive is not None:
        numbered = files.has_ids(archive)
        ids = tuple(map(str, graph.ids.tolist())) if numbered else None
        if ids is not None and len(set(ids)) < len(ids):
            raise AtollError(f"`ids` in {archive} names a node twice; make ids unique.")
        return PartyGraph(name, str(path), graph, numbered, ids, deployable=True)
    from atoll.data.columns import read_features  # pandas takes a while to import
    from atoll.data.tables import read_nodes

    nodes = read_nodes(path, None if encode == "never" else read_features(path))
    numbered = "index" in nodes.frame.columns
    if numbered and len(torch.unique(graph.ids)) < graph.num_nodes:
        raise AtollError(f"The column `index` of `nodes` in {path} has a number twice; number each node once.")
    return PartyGraph(name, str(path), graph, numbered, tuple(nodes.texts("id")), deployable=True)


def party_folders(folder: Path) -> list[Path]:
    """The folders in it, sorted by name; digits in a name sort as numbers."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise AtollError(f"There is no folder {folder}; --partition files takes a folder with one folder per party.")
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise AtollError(f"{folder} holds no folders; --partition files takes a folder with one folder per party.")
    return sorted(
        folders, key=lambda path: [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _parts(path)]
    )


def _parts(path: Path) -> list[str]:
    return [part for part in re.split(r"(\d+)", path.name) if part]


def scenario_of_parties(parties: Sequence[PartyGraph], algorithm: str, scenarios: Sequence[str], wanted: str = "auto") -> str:
    """How the parties' nodes are related: as `wanted`, or as the algorithm and the nodes' ids say; if they do not, an error."""
    possible = SCENARIOS if scenarios == ("whole",) else tuple(each for each in scenarios if each in SCENARIOS)
    if not possible:
        raise AtollError(
            f"{algorithm} has one node per party, for which folders make no sense; give one graph and --partition node."
        )
    if wanted != "auto":
        if wanted not in possible:
            raise AtollError(f"{algorithm} is for {' or '.join(possible)} parties, but the scenario is set to {wanted}.")
        return wanted
    if len(possible) == 1:
        return possible[0]
    same = _shared_node(parties)
    if same is None:
        return possible[0]
    other_columns = _columns_differ(parties)
    if "vertical" not in possible:
        if other_columns:
            raise AtollError(
                f"{algorithm} is for {' or '.join(possible)} parties, but {parties[same[1]].where} and {parties[same[2]].where} "
                f"both have a node {same[0]!r} and their columns differ, which is vertical; choose an algorithm such as glasu."
            )
        if possible[0] == "horizontal":
            raise AtollError(_ambiguous(parties, same, "overlapping"))
        return possible[0]
    if other_columns:
        return "vertical"
    if parties[0].graph.feature_names is None and len({party.graph.num_nodes for party in parties}) == 1:
        raise AtollError(_ambiguous(parties, same, "overlapping or vertical"))
    if not all(party.numbered for party in parties):
        raise AtollError(_ambiguous(parties, same, "overlapping"))
    return "overlapping"


def _columns_differ(parties: Sequence[PartyGraph]) -> bool:
    names = {frozenset(_column_names(party.graph)) for party in parties}
    return len(names - {frozenset()}) > 1 or len({party.graph.num_features for party in parties}) > 1


def _column_names(graph: Graph) -> Sequence[str]:
    return graph.table.column_names if graph.table is not None else graph.feature_names or ()


def _ambiguous(parties: Sequence[PartyGraph], same: tuple[str, int, int], shared: str) -> str:
    node, one, other = same
    return (
        f"{parties[one].where} and {parties[other].where} both have a node {node!r}: if it is the same node, set the scenario to "
        f"{shared} (--set scenario={shared.split()[0]}), and to horizontal if each party counts its own."
    )


def _shared_node(parties: Sequence[PartyGraph]) -> tuple[str, int, int] | None:
    """A node that two parties hold, by number or else by id, and these parties."""
    if all(party.numbered for party in parties):
        names = [party.graph.ids.numpy() for party in parties]
    elif all(party.node_ids is not None for party in parties) and not all(party.counted for party in parties):
        names = [np.array(party.node_ids, dtype=object) for party in parties]
    else:
        return None
    owner = np.repeat(np.arange(len(parties)), [len(each) for each in names])
    values = np.concatenate(names)
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    again = np.flatnonzero(owner != owner[first[inverse]])
    if not len(again):
        return None
    row = int(again[0])
    return str(values[row]), int(owner[first[inverse[row]]]), int(owner[row])


def parts_of(
    parties: Sequence[PartyGraph], scenario: str, settings: SplitSettings, seed: int, *, normalize: bool = False
) -> Graph:
    """The parties' graphs, block-diagonal, each prepared as a site prepares its own; horizontal or overlapping."""
    graphs = _prepared(parties, scenario, normalize=normalize)
    if scenario == "overlapping":
        return _with_common_roles(parties, stack(graphs), settings, seed)
    return stack([split(graph, settings, seed, [number]) for number, graph in enumerate(graphs)])


def unsplit(parties: Sequence[PartyGraph], scenario: str, *, normalize: bool = False) -> Graph:
    """The same without a split."""
    return stack(_prepared(parties, scenario, normalize=normalize))


def _prepared(parties: Sequence[PartyGraph], scenario: str, *, normalize: bool) -> list[Graph]:
    require_common_table(parties)
    graphs = aligned(parties, scenario)
    if normalize and graphs[0].table is None:  # else columns are normalized once they are encoded
        graphs = [row_normalize(graph) for graph in graphs]
    return graphs


def with_tables(parties: Sequence[PartyGraph], *, directed: bool = False, target: str = CLASS) -> list[PartyGraph]:
    """The parties with a table each if one of them has one: plain numbers of a folder are then columns like the others."""
    if not any(party.graph.table is not None for party in parties):
        return list(parties)
    return [
        read_party(Path(party.where), party.name, directed=directed, encode="always", target=target)
        if party.deployable and party.graph.table is None
        else party
        for party in parties
    ]


def require_common_table(parties: Sequence[PartyGraph]) -> None:
    """Refuse tables with different columns, and a table beside a graph that has none."""
    tables = [party.graph.table for party in parties]
    having = [table for table in tables if table is not None]
    if having and len(having) < len(tables):
        encoded, plain = (parties[[(table is None) == none for table in tables].index(True)].where for none in (False, True))
        raise AtollError(
            f"{encoded} has columns that are encoded together with the other parties' columns, but {plain} has only numbers "
            "without a table (an .npz); give tables at all parties."
        )
    if having:
        common_columns([table.columns for table in having], [p.where for p in parties], [table.ignored for table in having])


def aligned(parties: Sequence[PartyGraph], scenario: str) -> list[Graph]:
    """The parties' graphs with the same columns and classes, and with the nodes' numbers in the federation."""
    where, extend = [party.where for party in parties], not all(party.deployable for party in parties)
    graphs = align([party.graph for party in parties], where, extend_classes=extend)
    numbers = _numbers(parties, scenario)
    return [replace(graph, ids=torch.from_numpy(ids)) for graph, ids in zip(graphs, numbers, strict=True)]


def stacked(parties: Sequence[PartyGraph]) -> Graph:
    """The parties' graphs, block-diagonal, with the splits that they have; nodes are the same where they are numbered alike."""
    shared = all(party.numbered for party in parties) and _shared_node(parties) is not None
    return stack(aligned(parties, "overlapping" if shared else "horizontal"))


def _numbers(parties: Sequence[PartyGraph], scenario: str) -> list[Ints]:
    """The nodes' numbers in the federation."""
    if scenario == "overlapping":
        unnumbered = [party for party in parties if not party.numbered]
        if not unnumbered:
            return [party.graph.ids.numpy() for party in parties]
        if len(unnumbered) < len(parties) or any(party.node_ids is None for party in parties):
            raise AtollError(
                f"{unnumbered[0].where} does not number its nodes as all parties do; parties that share nodes give their numbers "
                "in the federation (a column `index`, `ids` of an .npz, `n_id` of a Data)."
            )
        sentence = (
            "The parties' nodes are matched by id; a deployed federation needs their numbers, the same at every party, "
            "in a column `index`."
        )
        warnings.warn(sentence, AtollWarning, stacklevel=2)
        known: dict[str, int] = {}
        return [np.array([known.setdefault(node, len(known)) for node in party.node_ids or ()]) for party in parties]
    if all(party.numbered for party in parties) and _shared_node(parties) is None:
        return [party.graph.ids.numpy() for party in parties]
    ends = np.cumsum([party.graph.num_nodes for party in parties])
    return [np.arange(end - party.graph.num_nodes, end) for party, end in zip(parties, ends, strict=True)]


def _with_common_roles(parties: Sequence[PartyGraph], parts: Graph, settings: SplitSettings, seed: int) -> Graph:
    """Overlapping parties with a split on which they agree; sites cannot draw one, so folders must have one."""
    roles = torch.where(parts.train, 0, torch.where(parts.val, 1, torch.where(parts.test, 2, -1)))
    for party, given in zip(parties, torch.split(roles, parts.sizes), strict=True):
        if party.deployable and not bool((given >= 0).any()):
            raise AtollError(f"{party.where} has no split, but {OWN_ROLES}: mark it (train, val, test) in the data.")
    if parties[0].deployable and replaces_split(parts, settings):
        raise AtollError(f"{OWN_ROLES}, so the data's own split is used: leave split={settings.split!r} out.")
    for what, values in (("roles (train, val or test)", roles), ("labels", parts.y)):
        if (row := _contradiction(parts.ids, values)) is not None:
            owner, index = parties[int(parts.party[row])], row - int(parts.ptr[parts.party[row]])
            names = owner.node_ids
            node = parts.ids[row].item() if names is None else names[index]
            raise AtollError(f"Node {node!r} of {owner.where} has other {what} at another party; make them agree.")
    return split(parts, settings, seed)


def _contradiction(ids: Tensor, values: Tensor) -> int | None:
    """The first row whose node has a higher value elsewhere; −1 is no value."""
    known, index = torch.unique(ids, return_inverse=True)
    highest = torch.full((len(known),), -1).scatter_reduce_(0, index, values, "amax")
    wrong = ((values >= 0) & (values != highest[index])).nonzero()
    return int(wrong[0]) if len(wrong) else None


def pooled(parts: Graph) -> Graph:
    """All parties' nodes, each once, with the features of the first party that holds it and every edge that some party holds."""
    ids, row = torch.unique(parts.ids, return_inverse=True)
    first = torch.full((len(ids),), parts.num_nodes).scatter_reduce_(0, row, torch.arange(parts.num_nodes), "amin")
    y = torch.full((len(ids),), -1).scatter_reduce_(0, row, parts.y, "amax")
    edges, weights = distinct_edges(row[parts.edge_index], parts.edge_weight)
    return replace(parts.rows(first), edge_index=edges, edge_weight=weights, y=y)
