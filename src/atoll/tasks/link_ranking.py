"""AUC, average precision, Hits@K and mean reciprocal rank of scored pairs: exact at a party, then means over the parties.

None of them is a sum over pairs, so a party sends each as a pair (value, 1), or (0, 0) where it cannot be said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atoll.device import holdable
from atoll.graphs.graph import Graph
from atoll.graphs.pairs import EDGE, NO_EDGE, RIVAL
from atoll.tasks.counting import share
from atoll.tasks.ranking import auc, average_precision, hits_at, reciprocal_rank
from atoll.tasks.task import CountField, Metric

HITS = (10, 20, 50)
HEADINGS = {
    "auc": Metric("AUC", percent=True),
    "average_precision": Metric("average precision", percent=True, heading="AP"),
    "mrr": Metric("mean reciprocal rank", percent=True, heading="MRR"),
    **{f"hits_at_{k}": Metric(f"Hits@{k}", percent=True) for k in HITS},
}
VALIDATION = ("auc", "average_precision")  # what is counted of validation pairs
TEST = tuple(HEADINGS)
FIELDS = {
    "val_ranking": CountField((len(VALIDATION), 2), ("items", "items")),
    "ranking": CountField((len(TEST), 2), ("items", "items")),
}


def counts(scores: Tensor, graph: Graph) -> dict[str, Tensor]:
    """(P, k, 2) each party's metrics, in the order of `VALIDATION` and `TEST`.

    Each is summed over the parties judged in it, beside their number: a party's own metric and 1, but in a graph of all parties'
    nodes (`pair_party`).
    """
    sizes = {"val_ranking": len(VALIDATION), "ranking": len(TEST)}
    made = {name: torch.zeros(graph.parties, size, 2, dtype=torch.float64) for name, size in sizes.items()}
    scores, y, val, test = scores.cpu(), graph.y.cpu(), graph.val.cpu(), graph.test.cpu()
    groups = None if graph.pair_party is None else graph.pair_party.cpu()
    for party, (start, end) in enumerate(graph.items.ranges):
        for rows in _groups(start, end, groups):
            judged = {"val_ranking": _validation(scores[rows], y[rows], val[rows])}
            judged["ranking"] = _test(scores[rows], y[rows], test[rows])
            for name, values in judged.items():
                for index, value in enumerate(values):
                    if value is not None:
                        made[name][party, index] += torch.tensor([value, 1.0], dtype=torch.float64)
    return {name: holdable(values, graph.device).to(graph.device) for name, values in made.items()}


def metrics(sums: Mapping[str, Any]) -> dict[str, float]:
    """Σ value / Σ 1, where there are any."""
    means = {}
    for field, names, prefix in (("val_ranking", VALIDATION, "val_"), ("ranking", TEST, "")):
        for name, (value, count) in zip(names, sums[field].tolist(), strict=True):
            if count > 0:
                means[prefix + name] = share(value, count)
    return means


def by_party(counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
    """AUC and average precision of each party; None where it has none."""
    shown = {}
    for name in VALIDATION:
        values, there = counts["ranking"][:, TEST.index(name)].unbind(1)
        shown[f"party_{name}"] = [
            value / one if one else None for value, one in zip(values.tolist(), there.tolist(), strict=True)
        ]
    return shown


def _validation(scores: Tensor, y: Tensor, val: Tensor) -> list[float | None]:
    judged, positive = scores[val], y[val] == EDGE
    return [auc(judged, positive), average_precision(judged, positive)]


def _test(scores: Tensor, y: Tensor, test: Tensor) -> list[float | None]:
    judged, positive = scores[test & (y >= NO_EDGE)], y[test & (y >= NO_EDGE)] == EDGE
    edges, rivals = judged[positive], scores[(y == RIVAL) & ~test]
    rank = reciprocal_rank(edges, rivals.view(len(edges), -1)) if len(edges) else None
    return [auc(judged, positive), average_precision(judged, positive), rank, *(hits_at(k, judged, positive) for k in HITS)]


def _groups(start: int, end: int, groups: Tensor | None) -> list[Any]:
    """The rows that are judged together: a party's or, of a graph of all parties' nodes, each party's."""
    if groups is None:
        return [slice(start, end)]
    return [start + (groups[start:end] == group).nonzero()[:, 0] for group in groups[start:end].unique().tolist()]  # type: ignore[no-untyped-call]
