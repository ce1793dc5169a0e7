"""Link prediction's data: which edges of a party train, validate and test, and the pairs that are judged beside them.

Validation and test edges are not in the parties' graphs: not in `edge_index`, and so in no degree, normalization or message.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from atoll.data.damage import DamageSettings
from atoll.data.data_config import DataConfig
from atoll.data.party_graphs import PartyGraph
from atoll.data.splits import SplitSettings, shuffled_roles
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph
from atoll.graphs.negatives import NonEdges, contained, corrupted, pair_codes, pairs_of
from atoll.graphs.pairs import CLASS_NAMES, EDGE, NO_EDGE, RIVAL, without_pairs
from atoll.random import Word, generator
from atoll.tasks import LINK_TASK

SPLITS = ("auto", "random", "public")
TRAIN, VAL, TEST, APART = 0, 1, 2, 3  # roles of edges; APART: in the graph, but not fitted, where some only supervise


class Judged(NamedTuple):
    """The pairs of one party, of its own rows from 0."""

    pairs: Tensor  # (2, M)
    y: Tensor  # (M,)
    role: Tensor  # (M,) TRAIN, VAL, TEST or −1


def predicts_links(config: object) -> bool:
    """Whether a run's items are pairs of nodes."""
    return getattr(getattr(config, "run", None), "task", "") == LINK_TASK


def without_edge_split(graph: Graph, config: object) -> Graph:
    """The graph, for other tasks without the data's own split of its edges."""
    if graph.edge_split is None or predicts_links(config):
        return graph
    warnings.warn("The edges' column `split` is for link prediction; it is not used.", AtollWarning, stacklevel=3)
    return replace(graph, edge_split=None)


def with_edge_splits(parties: Sequence[PartyGraph], config: object) -> list[PartyGraph]:
    """The parties, each with a split of its edges (−1: none) where one of them has one; for other tasks without."""
    parties = [replace(party, graph=without_edge_split(party.graph, config)) for party in parties]
    if all(party.graph.edge_split is None for party in parties):
        return parties
    return [
        replace(
            party, graph=replace(party.graph, edge_split=torch.full((party.graph.edge_index.shape[1],), -1, dtype=torch.int8))
        )
        if party.graph.edge_split is None
        else party
        for party in parties
    ]


def label_holder(config: DataConfig, parties: int, scenario: str) -> int | None:
    """The party of a vertical federation whose edges are predicted; None in other federations, where all parties' are."""
    if scenario != "vertical":
        return None
    holder = getattr(getattr(config, "settings", None), "label_holder", -1)
    if not 0 <= holder < parties:
        raise AtollError(
            "Link prediction between nodes that all parties hold is about the edges of one of them; set label_holder to a party, "
            f"0 to {parties - 1}."
        )
    if config.split.disjoint:
        raise AtollError(
            "Where all parties hold the same nodes, an edge that only supervises would pass messages; set disjoint=0."
        )
    return int(holder)


def split_links(
    parts: Graph, settings: SplitSettings, seed: int, parties: Sequence[int] | None = None, holder: int | None = None
) -> Graph:
    """The parties' graphs without validation and test edges, and the pairs that are judged.

    Each party draws by (seed, party). Where parties share nodes, the union of their edges is split once, so that an edge has the
    same role at every party that holds both ends. `parties` are the blocks' numbers in the federation; pairs are the `holder`'s
    alone where there is one.
    """
    check_split(settings)
    seed = seed if settings.split_seed < 0 else settings.split_seed
    numbers = range(parts.parties) if parties is None else parties
    shared = _shared_roles(parts, settings, seed) if _overlap(parts) else None
    owner = torch.searchsorted(parts.ptr[1:], parts.edge_index[0].contiguous(), right=True)
    kept, judged = torch.ones(parts.edge_index.shape[1], dtype=torch.bool), []
    for block, (number, nodes) in enumerate(zip(numbers, parts.sizes, strict=True)):
        mine = (owner == block).nonzero()[:, 0]
        codes = pair_codes(parts.edge_index[:, mine] - parts.ptr[block], nodes)
        edges, of_edge = codes.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        given = None
        if shared is not None:
            given = _first(shared[mine], of_edge, len(edges))
        elif parts.edge_split is not None and settings.split != "random" and bool((parts.edge_split[mine] >= 0).any()):
            given = _first(parts.edge_split[mine].long(), of_edge, len(edges))
        roles = _roles(edges, given, settings, seed, number)
        kept[mine] = ((roles == APART) | ((roles == TRAIN) & (not settings.disjoint)))[of_edge]
        if holder not in (None, number):
            edges, roles = edges[:0], roles[:0]
        judged.append(judged_pairs(nodes, edges, roles, settings.ranking, (seed, number)))
    return _judging(parts, kept, judged)


def require_graphs(scenario: str, noise: DamageSettings) -> str:
    """The scenario, if its parties hold graphs whose edges can be split; damage is refused, too."""
    if scenario not in ("horizontal", "overlapping", "vertical"):
        raise AtollError(
            "Link prediction is for parties that hold graphs, horizontal, overlapping or vertical; here every node is a party: "
            "choose another --partition."
        )
    if noise.active:
        raise AtollError("Link prediction trains on the edges as they are; leave noise.… out.")
    return scenario


def require_edges(parts: Graph, holder: int | None = None) -> Graph:
    """The parties' graphs, if some party has a training edge; the `holder`, where there is one."""
    if holder is not None:
        if not bool(parts.train.any()):
            raise AtollError(f"The label holder, party {holder}, has no training edge; choose another label_holder or split.")
        return parts
    if not bool(parts.train.any()):
        raise AtollError("No party has a training edge; use fewer parties, or another partition or split.")
    if bool((parts.num_train == 0).any()):
        none = int((parts.num_train == 0).sum())
        sentence = f"{none} of {parts.parties} parties have no training edges; they learn from the others alone."
        warnings.warn(sentence, AtollWarning, stacklevel=3)
    return parts


def check_split(settings: SplitSettings) -> None:
    """Refuse splits that are about nodes."""
    if settings.split not in SPLITS:
        raise AtollError(f"Edges are split by {', '.join(SPLITS)}, not by {settings.split!r}; set split=auto.")
    if settings.split_scope != "party":
        raise AtollError("Edges are split within each party, so that none between parties is judged; set split_scope=party.")
    if settings.train <= 0 or min(settings.val, settings.test) < 0 or settings.train + settings.val + settings.test > 1 + 1e-9:
        raise AtollError(
            f"The shares train={settings.train}, val={settings.val}, test={settings.test} must not be negative, train must be "
            "above 0, and together they must be at most 1."
        )


def judged_pairs(nodes: int, edges: Tensor, roles: Tensor, ranking: int, key: tuple[Word, ...]) -> Judged:
    """The pairs of one party: training edges, as many others beside them, the judged ones, and the rivals of test edges.

    Evaluation's negatives are distinct and no edges of the party; those beside training edges are drawn as in training, which
    knows training edges only.
    """
    trained, val, test = (edges[roles == role] for role in (TRAIN, VAL, TEST))
    known = edges[(roles == TRAIN) | (roles == APART)]
    beside = NonEdges(nodes, known).draw(len(trained), generator(*key, "links", "beside"))
    wanted = len(val) + len(test)
    others = NonEdges(nodes, edges).draw_distinct(wanted, generator(*key, "links", "negatives"))
    first = len(val) if len(others) == wanted else len(others) * len(val) // max(wanted, 1)
    rivals = corrupted(pairs_of(test, nodes), nodes, edges, ranking, generator(*key, "links", "ranking"))
    listed = [
        (pairs_of(trained, nodes), EDGE, TRAIN),
        (pairs_of(beside, nodes), NO_EDGE, -1),
        (pairs_of(val, nodes), EDGE, VAL),
        (pairs_of(others[:first], nodes), NO_EDGE, VAL),
        (pairs_of(test, nodes), EDGE, TEST),
        (pairs_of(others[first:], nodes), NO_EDGE, TEST),
        (rivals, RIVAL, -1),
    ]
    sizes = torch.tensor([pairs.shape[1] for pairs, _, _ in listed])
    labels, masks = (torch.tensor([one[column] for one in listed]).repeat_interleave(sizes) for column in (1, 2))
    return Judged(torch.cat([pairs for pairs, _, _ in listed], 1), labels, masks)


def whole_links(parts: Graph, whole: Graph, seed: int, *, disjoint: bool) -> Graph:
    """The graph of all parties' nodes with the edges between parties, which train or, with `disjoint`, only pass messages.

    It is judged on the parties' own validation and test pairs, each party's by themselves (`pair_party`).
    """
    assert parts.pairs is not None
    order = whole.ids.argsort(stable=True)
    row = order[torch.searchsorted(whole.ids[order], parts.ids)]  # of each node of the parties
    nodes, pairs = whole.num_nodes, row[parts.pairs]
    codes = pair_codes(whole.edge_index, nodes)
    apart = (parts.train | parts.val | parts.test) if disjoint else (parts.val | parts.test)
    held = pair_codes(pairs[:, apart & (parts.y == EDGE)], nodes).unique()  # type: ignore[no-untyped-call]
    kept = ~contained(codes, held)
    if whole.edge_split is not None:  # of edges between parties, too
        kept &= whole.edge_split < VAL
    known = codes[kept].unique()  # type: ignore[no-untyped-call]
    trained = pair_codes(pairs[:, parts.train], nodes).unique() if disjoint else known  # type: ignore[no-untyped-call]
    if disjoint:
        known = torch.cat([known, trained]).unique()  # type: ignore[no-untyped-call]
    beside = NonEdges(nodes, known).draw(len(trained), generator(seed, "whole", "links", "beside"))
    rest = (parts.val | parts.test | (parts.y == RIVAL)).nonzero()[:, 0]
    role = torch.where(parts.val, VAL, torch.where(parts.test, TEST, -1))[rest]
    y = torch.cat([torch.full_like(trained, EDGE), torch.full_like(beside, NO_EDGE), parts.y[rest]])
    roles = torch.cat([torch.full_like(trained, TRAIN), torch.full_like(beside, -1), role])
    every = torch.cat([pairs_of(trained, nodes), pairs_of(beside, nodes), pairs[:, rest]], 1)
    group = torch.cat([torch.zeros(len(trained) + len(beside), dtype=torch.int64), parts.owner[rest]])
    return replace(_judging(whole, kept, [Judged(every, y, roles)]), pair_party=group)


def _judging(graph: Graph, kept: Tensor, judged: Sequence[Judged]) -> Graph:
    """The graph with these edges alone and each block's pairs."""
    starts = graph.ptr[:-1].tolist()
    role = torch.cat([one.role for one in judged])
    return replace(
        without_pairs(graph),
        edge_index=graph.edge_index[:, kept],
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[kept],
        edge_split=None,
        pairs=torch.cat([one.pairs + start for one, start in zip(judged, starts, strict=True)], 1),
        y=torch.cat([one.y for one in judged]),
        train=role == TRAIN,
        val=role == VAL,
        test=role == TEST,
        num_classes=len(CLASS_NAMES),
        class_names=CLASS_NAMES,
    )


def _roles(edges: Tensor, given: Tensor | None, settings: SplitSettings, seed: int, number: int) -> Tensor:
    """The role of each undirected edge of a party: given, where parties share nodes or the data says so, or drawn."""
    if given is None:
        if settings.split == "public":
            raise AtollError(
                "split='public', but the edges come without a split; give edges a column `split`, or use split=auto."
            )
        given = shuffled_roles(torch.zeros_like(edges), settings, generator(seed, number, "links", "split"))
    roles = given.clone()
    if settings.disjoint:
        training = (roles == TRAIN).nonzero()[:, 0]
        order = torch.randperm(len(training), generator=generator(seed, number, "links", "disjoint"))
        roles[training[order[int(settings.disjoint * len(training) + 1e-6) :]]] = APART
    return roles


def _overlap(parts: Graph) -> bool:
    return parts.parties > 1 and len(torch.unique(parts.ids)) < parts.num_nodes


def _shared_roles(parts: Graph, settings: SplitSettings, seed: int) -> Tensor:
    """(E,) the role of each edge, drawn over the distinct edges of all parties; of several own ones the last."""
    ids, row = torch.unique(parts.ids, return_inverse=True)
    codes = pair_codes(row[parts.edge_index], len(ids))
    distinct, of_edge = codes.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    if parts.edge_split is not None and settings.split != "random":
        return torch.full((len(distinct),), TRAIN).scatter_reduce_(0, of_edge, parts.edge_split.long(), "amax")[of_edge]
    return shuffled_roles(torch.zeros_like(distinct), settings, generator(seed, "links", "split"))[of_edge]


def _first(values: Tensor, index: Tensor, count: int) -> Tensor:
    """(count,) the value of each group; both directions of an edge have the same."""
    return torch.full((count,), -1).scatter_reduce_(0, index, values, "amax")
