"""Several labels per item, each of them there or not: binary cross-entropy, F1 and ranking metrics, of nodes and of graphs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.tasks import ranking
from atoll.tasks.counting import share
from atoll.tasks.levels import GraphItems, NodeItems
from atoll.tasks.targets import (
    LABELS,
    SPLITS,
    Targets,
    item_counts,
    judged_entries,
    mean_of_known,
    per_target,
    targets_of,
    without_unknown,
)
from atoll.tasks.task import CountField, Metric

RANKING = {"auc": ranking.auc, "average_precision": ranking.average_precision}
KNOWN, RIGHT_YES, WRONG_YES, WRONG_NO, LOSS = range(5)  # columns: known entries, TP, FP, FN, summed loss


@dataclass(frozen=True)
class Labels(Targets):
    """Every item has or lacks each of T labels; the model's output (I, T) are logits. A label is predicted from 0 on."""

    target: ClassVar[str] = LABELS
    score: ClassVar[str] = "auc"
    headings: ClassVar[Mapping[str, Metric]] = {
        "auc": Metric("AUC", percent=True),
        "micro_f1": Metric("micro F1", percent=True),
        "macro_f1": Metric("macro F1", percent=True),
        "average_precision": Metric("average precision", percent=True, heading="AP"),
        "label_accuracy": Metric("label accuracy", percent=True),
        "loss": Metric("loss", higher_is_better=False),
    }
    fields: ClassVar[Mapping[str, CountField]] = {
        "validation": CountField((1,), ("items",)),
        "test": CountField((1,), ("items",)),
        **{f"{prefix}labels": CountField(("classes", 5), ("items",) * 4 + ("sum",)) for prefix in SPLITS.values()},
        **{f"{prefix}ranking": CountField((len(RANKING), 2), ("items", "items")) for prefix in SPLITS.values()},
    }

    def errors(self, out: Tensor, targets: Tensor) -> Tensor:
        """−t·log σ(s) − (1 − t)·log(1 − σ(s))."""
        return F.binary_cross_entropy_with_logits(out, targets, reduction="none")

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's counts on its validation and test items.

        `validation` and `test` (P, 1): items with a known label. `labels` (P, T, 5): known entries, true and false positives,
        false negatives, summed loss. `ranking` (P, 2, 2): the party's AUC and average precision, means over its labels that
        have both kinds of items, each beside a 1; or (0, 0).
        """
        targets = targets_of(graph)
        yes, decided = targets > 0.5, out >= 0
        losses = self.errors(out, targets.nan_to_num())
        counted = {"validation": item_counts(graph, "val"), "test": item_counts(graph, "test")}
        for split, prefix in SPLITS.items():
            known = judged_entries(graph, split)
            columns = [(yes & decided).double(), (~yes & decided).double(), (yes & ~decided).double(), losses]
            counted[f"{prefix}labels"] = per_target(columns, known, graph)
            counted[f"{prefix}ranking"] = ranked(out, yes, known, graph)
        return counted

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Of the entries of all parties; ranking metrics are means over the parties that have them."""
        metrics: dict[str, float] = {}
        for prefix in SPLITS.values():
            values = without_unknown(label_metrics(sums[f"{prefix}labels"]), prefix)
            for name, (value, count) in zip(RANKING, sums[f"{prefix}ranking"].tolist(), strict=True):
                if count > 0:
                    values[prefix + name] = share(value, count)
            metrics |= values
        return metrics

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """AUC and micro F1 of each party; None where it has none."""
        pairs = counts["ranking"][:, 0].tolist()
        rows = [label_metrics(row) for row in counts["labels"]]
        return {
            "party_auc": [value / one if one else None for value, one in pairs],
            "party_micro_f1": [row.get("micro_f1") for row in rows],
        }

    def by_target(self, sums: Mapping[str, Any]) -> list[dict[str, float | None]]:
        """Items, F1, precision and recall of each label, on test items."""
        rows: list[dict[str, float | None]] = []
        for known, right, wrong, missed, _ in sums["labels"].double().clamp(min=0).tolist():
            rows.append(
                {
                    "items": known,
                    "positive": right + missed,
                    "precision": _ratio(right, right + wrong),
                    "recall": _ratio(right, right + missed),
                    "f1": _ratio(2 * right, 2 * right + wrong + missed),
                }
            )
        return rows


def label_metrics(sums: Tensor) -> dict[str, float | None]:
    """What the counts (T, 5) of labels tell; noised counts below 0 count as 0."""
    sums = sums.double().clamp(min=0)
    right, wrong = sums[:, RIGHT_YES], sums[:, WRONG_YES] + sums[:, WRONG_NO]
    known = float(sums[:, KNOWN].sum())
    if not known > 0:
        return {}
    f1 = [_ratio(2 * float(a), 2 * float(a) + float(b)) for a, b in zip(right, wrong, strict=True)]
    return {
        "micro_f1": _ratio(2 * float(right.sum()), 2 * float(right.sum()) + float(wrong.sum())),
        "macro_f1": mean_of_known(f1),
        "label_accuracy": 1 - min(float(wrong.sum()), known) / known,
        "loss": float(sums[:, LOSS].sum()) / known,
    }


def ranked(out: Tensor, yes: Tensor, known: Tensor, graph: Graph) -> Tensor:
    """(P, 2, 2) each party's mean AUC and average precision over its labels, and 1 where it has them."""
    scores, positive, judged = out.detach().double().cpu(), yes.cpu(), known.cpu()
    pairs = torch.zeros(graph.parties, len(RANKING), 2, dtype=torch.float64)
    for party, (start, end) in enumerate(graph.items.ranges):
        for index, measure in enumerate(RANKING.values()):
            values = []
            for label in range(scores.shape[1]):
                rows = judged[start:end, label]
                values.append(measure(scores[start:end, label][rows], positive[start:end, label][rows]))
            if (mean := mean_of_known(values)) is not None:
                pairs[party, index] = torch.tensor([mean, 1.0], dtype=torch.float64)
    return pairs.to(out.device)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


@dataclass(frozen=True)
class NodeMultilabel(NodeItems, Labels):
    """Labels of nodes."""

    name: ClassVar[str] = "node-multilabel"


@dataclass(frozen=True)
class GraphMultilabel(GraphItems, Labels):
    """Labels of small graphs."""

    name: ClassVar[str] = "graph-multilabel"


NODES, GRAPHS = NodeMultilabel(), GraphMultilabel()
