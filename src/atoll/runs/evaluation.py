"""How good predictions are: overall, by class and by party, of items with labels (`judge`) or of their sums (`from_counts`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, resolve
from atoll.runs.evaluation_text import table
from atoll.tasks import confusion as matrices
from atoll.tasks import details
from atoll.tasks.decisions import confusion_at, decide
from atoll.tasks.histograms import BINS, auc_of_bins, average_precision_of_bins, bin_edges, bins_of
from atoll.tasks.levels import ITEMS

MAX_EXACT = 20_000_000  # probabilities that are sorted for AUC and average precision; of more, histograms are made
MAX_LISTED = 100  # parties with metrics of their own
EXACT, HISTOGRAM = "exact", "histogram"
Ranked = tuple[float | None, float | None]  # AUC and average precision of one class against the rest


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Metrics of some items.

    Attributes:
        classes: The classes' names.
        items: How many items were judged.
        overall: Metric → value over all items, None where it cannot be said.
        by_class: Class → `items`, `precision`, `recall`, `f1`, `auc` and `average_precision`, one class against the rest.
        confusion: Items by true class (rows) and decided class (columns).
        parties: Party → its metrics and `confusion`; empty where there are too many, or only sums are known.
        calibration: By 15 bins of the likeliest class's probability: items, correct ones, summed probability.
        threshold: How one of two classes was decided; None for the likeliest.
        ranking: Whether AUC and average precision are `exact` or from a `histogram`; empty where they are not known.
        kind: What the items are: `nodes`, `graphs` or `pairs`.
        averaged: How the metrics of the run are averaged over the parties, where they are not of all items together as here.

    Examples:
        >>> import atoll
        >>> result = atoll.run("fedavg", dataset="csbm", parties=2, rounds=3, nodes=200)
        >>> sorted(result.detail)[:4]
        ['averaged', 'by_class', 'calibration', 'classes']
    """

    classes: tuple[str, ...]
    items: int
    overall: dict[str, float | None]
    by_class: dict[str, dict[str, float | None]]
    confusion: list[list[float]]
    parties: dict[str, dict[str, Any]] = field(default_factory=dict)
    calibration: list[list[float]] | None = None
    threshold: dict[str, Any] | None = None
    ranking: str = ""
    kind: str = "nodes"
    averaged: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `detail` in result.json."""
        return vars(self) | {"classes": list(self.classes)}

    def __str__(self) -> str:
        """Tables that fit a screen."""
        return table(self.to_dict())


def judge(
    graph: Graph,
    logits: Tensor,
    names: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    threshold: Mapping[str, Any] | None = None,
    *,
    mask: Mask | None = None,
) -> Evaluation:
    """Judge a model's outputs (N, C) of a graph's nodes.

    Parameters:
        graph: With labels; its parties are judged together and one by one.
        logits: The outputs of its nodes, in order.
        names: The parties' names; their numbers without.
        class_names: The classes' names; the graph's own, or their numbers, without.
        threshold: As `model.json` holds it: how one of two classes is decided. None decides for the likeliest.
        mask: The nodes to judge, of which only labeled ones count; without, the test nodes or, in a graph that marks none, all.

    Returns:
        Metrics overall, by class and by party; it prints as tables.

    Examples:
        >>> import atoll, torch
        >>> graph = atoll.load("csbm", nodes=100, classes=2)
        >>> sure = torch.nn.functional.one_hot(graph.y, 2).float() * 8
        >>> judged = atoll.judge(graph, sure)
        >>> judged.overall["accuracy"], judged.overall["auc"]
        (1.0, 1.0)
    """
    labeled = graph.y >= 0
    selected = resolve(graph, mask if mask is not None else "test" if bool((graph.test & labeled).any()) else None)
    rows = (selected & labeled).nonzero()[:, 0]
    if not len(rows):
        one = _kind(graph).removesuffix("s")
        raise AtollError(f"There is no labeled {one} to judge the predictions by; give data with labels.")
    labels, kind = class_names or graph.class_names, _kind(graph)
    return of_items(graph.y[rows], logits[rows], graph.owner[rows], graph.parties, names, labels, threshold, kind=kind)


def of_items(
    y: Tensor,
    logits: Tensor,
    party: Tensor,
    parties: int,
    names: Sequence[str] = (),
    class_names: Sequence[str] | None = None,
    threshold: Mapping[str, Any] | None = None,
    *,
    list_parties: bool = True,
    kind: str = "nodes",
) -> Evaluation:
    """Judge the outputs (n, C) of labeled items of parties 0 … `parties` − 1."""
    classes = tuple(map(str, class_names or range(logits.shape[1])))
    shares = logits.double().softmax(1)
    decided = logits.argmax(1) if threshold is None else decide(shares, threshold)
    exact = logits.numel() <= MAX_EXACT
    overall, matrix, table_of_bins, ranked = _measured(y, logits, shares, decided, exact)
    by_party: dict[str, dict[str, Any]] = {}
    if list_parties and parties <= MAX_LISTED and len(y) > parties:  # not where every node is a party
        for index in range(parties):
            rows = (party == index).nonzero()[:, 0]
            if len(rows):
                metrics, counted, _, _ = _measured(y[rows], logits[rows], shares[rows], decided[rows], exact)
                by_party[_name(names, index)] = {"items": len(rows), **metrics, "confusion": counted.tolist()}
    return Evaluation(
        classes=classes,
        items=len(y),
        overall=overall,
        by_class=_by_class(classes, matrix, ranked),
        confusion=matrix.tolist(),
        parties=by_party,
        calibration=table_of_bins.tolist(),
        threshold=None if threshold is None else dict(threshold),
        ranking=EXACT if exact else HISTOGRAM,
        kind=kind,
    )


def from_counts(
    sums: Mapping[str, Any],
    by_party: Mapping[str, Mapping[str, Any]],
    class_names: Sequence[str] | None = None,
    threshold: Mapping[str, Any] | None = None,
    *,
    kind: str = "nodes",
) -> Evaluation | None:
    """The evaluation of test items from the sums of the parties' counts, and party → its own; None without a confusion matrix.

    AUC and average precision are there where histograms were counted. A threshold for which nothing was counted is left out:
    the likeliest class is judged.
    """
    if "confusion" not in sums:
        return None
    classes = tuple(map(str, class_names or range(len(sums["confusion"]))))
    known = threshold if threshold is not None and _decided(sums, threshold) is not None else None
    overall, matrix, ranked = _summed(sums, known)
    parties = {}
    for name, counts in by_party.items():
        metrics, counted, _ = _summed(counts, known)
        if float(counts["test"][0]) > 0:
            parties[name] = {"items": round(float(counts["test"][0])), **metrics, "confusion": counted.tolist()}
    return Evaluation(
        classes=classes,
        items=max(round(float(sums["test"][0])), 0),
        overall=overall,
        by_class=_by_class(classes, matrix, ranked),
        confusion=matrix.tolist(),
        parties=parties,
        threshold=None if known is None else dict(known),
        ranking=HISTOGRAM if ranked else "",
        kind=kind,
    )


def _measured(
    y: Tensor, logits: Tensor, shares: Tensor, decided: Tensor, exact: bool
) -> tuple[dict[str, float | None], Tensor, Tensor, list[Ranked]]:
    """Metrics, confusion matrix, calibration bins, and AUC and average precision of each class."""
    classes, nobody = shares.shape[1], torch.zeros_like(y)
    matrix = torch.bincount(y * classes + decided, minlength=classes**2).view(classes, classes)
    counts: Any = details.count(["brier", "calibration"], logits, y, nobody, nobody, 1)
    counts = {name: value[0] for name, value in counts.items()}
    values = details.metrics_of(counts, float(len(y)), classes)
    ranked = [(_ranked_exactly if exact else _ranked_by_bins)(shares[:, index], y == index) for index in range(classes)]
    overall = {
        **_of_matrix(matrix),
        **_ranked(ranked),
        "log_loss": float(cross_entropy(logits.double(), y)),
        "brier": values["brier"],
        "calibration_error": values["calibration_error"],
    }
    return overall, matrix, counts["calibration"], ranked


def _summed(sums: Mapping[str, Any], threshold: Mapping[str, Any] | None) -> tuple[dict[str, float | None], Tensor, list[Ranked]]:
    """Metrics, confusion matrix, and AUC and average precision of each class, from sums."""
    matrix = (sums["confusion"] if threshold is None else _decided(sums, threshold)).clamp(min=0)
    items, _, loss = map(float, sums["test"][:3])
    counted = sums.get("histogram")
    ranked = [] if counted is None else [(auc_of_bins(*one), average_precision_of_bins(*one)) for one in counted]
    overall = {**_of_matrix(matrix), **_ranked(ranked), "log_loss": max(loss, 0.0) / items if items > 0 else None}
    return overall, matrix, ranked


def _decided(sums: Mapping[str, Any], threshold: Mapping[str, Any]) -> Any:
    """The confusion matrix at a threshold; None where it was not counted."""
    if "decided" in sums:
        return sums["decided"]
    return confusion_at(sums["histogram"], threshold) if "histogram" in sums else None


def _of_matrix(matrix: Tensor) -> dict[str, float | None]:
    items = float(matrix.sum())
    return {
        "accuracy": float(matrix.diagonal().sum()) / items if items > 0 else None,
        "macro_f1": matrices.macro_f1(matrix) if items > 0 else None,
        "weighted_f1": matrices.weighted_f1(matrix),
    }


def _ranked(ranked: Sequence[Ranked]) -> dict[str, float | None]:
    """The mean over classes, one against the rest; of two classes the second alone. A class that cannot be ranked is left out."""
    judged = ranked[1:] if len(ranked) == 2 else ranked
    means: dict[str, float | None] = {}
    for name, column in (("auc", 0), ("average_precision", 1)):
        values = [value for one in judged if (value := one[column]) is not None]
        means[name] = sum(values) / len(values) if values else None
    return means


def _by_class(classes: Sequence[str], matrix: Tensor, ranked: Sequence[Ranked]) -> dict[str, dict[str, float | None]]:
    rows = matrices.by_class(matrix)
    for row, pair in zip(rows, ranked or [(None, None)] * len(rows), strict=True):
        row["items"] = round(row["items"])
        row |= dict(zip(("auc", "average_precision"), pair, strict=True))
    return dict(zip(classes, rows, strict=True))


def _ranked_exactly(scores: Tensor, positive: Tensor) -> Ranked:
    """AUC and average precision of distinct scores, from the highest to the lowest, ties together."""
    order = np.argsort(-scores.numpy(), kind="stable")
    ordered = scores.numpy()[order]
    ends = np.ones(len(order), bool)  # of each distinct score
    np.not_equal(ordered[1:], ordered[:-1], out=ends[:-1])
    last = ends.nonzero()[0]
    hits = positive.numpy()[order].cumsum()[last].astype(np.float64)  # positives at or above it
    misses = last + 1 - hits
    total, pairs = float(hits[-1]), float(hits[-1] * misses[-1])
    if not pairs > 0:
        return None, None
    p, n = hits.copy(), misses.copy()  # positives and negatives of each distinct score
    p[1:] -= hits[:-1]
    n[1:] -= misses[:-1]
    auc = float((n * (hits - p)).sum()) / pairs + float((n * p).sum()) / pairs / 2
    return auc, float(torch.from_numpy(p * hits / (hits + misses)).sum()) / total


def _ranked_by_bins(scores: Tensor, positive: Tensor) -> Ranked:
    """The same of too many scores to sort, from histograms."""
    bins = bins_of(scores.contiguous(), bin_edges())
    negatives, positives = (torch.bincount(bins[positive == kind], minlength=BINS) for kind in (False, True))
    return auc_of_bins(negatives, positives), average_precision_of_bins(negatives, positives)


def _kind(graph: Graph) -> str:
    """What the items of a graph are called."""
    return ITEMS["link" if graph.pairs is not None else "node" if graph.graph_ptr is None else "graph"]


def _name(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) else str(index)
