"""Node classification: one class per node, cross-entropy, and accuracy over all nodes and over minority nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.graph import Graph, majority_class
from atoll.graphs.masks import Mask, cache_key, class_shares, party_shares, random_batch, resolve
from atoll.graphs.softmax import softmax_loss
from atoll.random import Draws
from atoll.tasks.task import CountField, Metric


class NodeClassification:
    """Every node has at most one class; the model's output (N, C) are logits."""

    name = "node-classification"
    score = "accuracy"
    headings = {
        "accuracy": Metric("accuracy", percent=True),
        "minority_accuracy": Metric("minority accuracy", percent=True, heading="minority"),
        "macro_f1": Metric("macro F1", percent=True),
        "loss": Metric("loss", higher_is_better=False),
    }
    fields = {
        "validation": CountField((3,), ("items", "items", "sum")),
        "test": CountField((5,), ("items", "items", "sum", "items", "items")),
        "confusion": CountField(("classes", "classes"), whole=True),
    }

    def outputs(self, classes: int) -> int:
        """One logit per class."""
        return classes

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """The whole graph, once; with a `size`, with `size` training nodes of each party drawn by itself."""
        mask = random_batch(graph, size, draws)
        yield graph.fitting(mask) if isinstance(mask, Tensor) else graph

    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train", *, balance: bool = False) -> Tensor:
        """Σ_p mean_{i ∈ mask_p} −log softmax(out_i)[y_i]; unlabelled nodes are left out, a party without any counts 0.

        With `balance` each party's mean is over its classes, of each class's mean.
        """
        return softmax_loss(out, *_targets(graph, mask, balance))

    def item_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """(n,) −log softmax(out_i)[y_i]; 0 where y_i is −1."""
        return F.cross_entropy(out, y, ignore_index=-1, reduction="none")

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's counts on its labelled validation and test nodes.

        `validation` (P, 3): nodes, correct, summed loss. `test` (P, 5): the same, then minority nodes and correct ones.
        `confusion` (P, C, C): test nodes by class and prediction.
        """
        rows, group, minority = _evaluation_plan(graph)
        parties, classes = graph.parties, graph.num_classes
        logits = out.index_select(0, rows)  # validation nodes, then test nodes
        y = graph.y.index_select(0, rows)
        losses = F.cross_entropy(logits, y, reduction="none")
        predicted = logits.argmax(1)
        correct = predicted == y
        columns = torch.stack([torch.ones_like(losses), correct, losses, minority, minority * correct], 1)
        sums = torch.zeros(2 * parties, 5, dtype=torch.float64).index_add_(0, group, columns.double())
        cells = torch.bincount((group * classes + y) * classes + predicted, minlength=2 * parties * classes**2)
        return {
            "validation": sums[:parties, :3],
            "test": sums[parties:],
            "confusion": cells.view(2, parties, classes, classes)[1],
        }

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Metrics from summed counts; what cannot be said (no such nodes) is left out.

        Noised counts may be impossible (a negative number of nodes): shares lie between 0 and 1 all the same.
        """
        nodes, correct, loss = sums["validation"].tolist()
        metrics: dict[str, float] = {}
        if nodes:
            metrics |= {"val_loss": _mean(loss, nodes), "val_accuracy": _share(correct, nodes)}
        nodes, correct, loss, minority, minority_correct = sums["test"].tolist()
        if nodes:
            metrics |= {"loss": _mean(loss, nodes), "accuracy": _share(correct, nodes), "macro_f1": macro_f1(sums["confusion"])}
        if minority:
            metrics["minority_accuracy"] = _share(minority_correct, minority)
        return metrics

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """Accuracy of each party over all and over minority test nodes; nothing where no party has more than one test node."""
        test = counts["test"]
        if float(test[:, 0].max()) <= 1:
            return {}
        return {
            "party_accuracy": _ratios(test[:, 1], test[:, 0]),
            "party_minority_accuracy": _ratios(test[:, 4], test[:, 3]),
        }


def evaluated_rows(graph: Graph) -> Tensor:
    """The rows that are counted: labelled validation nodes, then labelled test nodes."""
    return _evaluation_plan(graph)[0]


def macro_f1(confusion: Tensor) -> float:
    """The mean over classes of F1 = 2·TP / (2·TP + FP + FN), over the classes that occur or are predicted."""
    confusion = confusion.clamp(min=0)
    occurring = confusion.sum(0) + confusion.sum(1)
    present = occurring > 0
    return float((2 * confusion.diagonal().double()[present] / occurring[present]).mean()) if bool(present.any()) else 0.0


def _targets(graph: Graph, mask: Mask, balance: bool) -> tuple[Tensor, Tensor]:
    """Weighted one-hot targets (N, C) and weights (N,) of the labelled nodes in the mask, 0 elsewhere; kept with the graph."""
    name = cache_key(graph, mask)
    keys = f"targets.{name}.{balance}", f"labelled.{name}.{balance}"
    if name is not None and keys[0] in graph.derived:
        return graph.derived[keys[0]], graph.derived[keys[1]]
    selected = resolve(graph, mask) & (graph.y >= 0)
    weights = class_shares(graph, selected) if balance else party_shares(graph, selected)
    targets = torch.zeros(graph.num_nodes, graph.num_classes).scatter_(1, graph.y.clamp(min=0)[:, None], weights[:, None])
    if name is not None:
        graph.derived[keys[0]], graph.derived[keys[1]] = targets, weights
    return targets, weights


def _evaluation_plan(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Validation rows then test rows; the row of the counts each adds to; 1 where it is a minority node of the test set."""
    if "evaluation.rows" not in graph.derived:
        val, test = (((mask & (graph.y >= 0)).nonzero().squeeze(1)) for mask in (graph.val, graph.test))
        rows = torch.cat([val, test])
        tested = torch.cat([torch.zeros_like(val), torch.ones_like(test)])
        graph.derived["evaluation.rows"] = rows
        graph.derived["evaluation.group"] = graph.party[rows] + tested * graph.parties
        graph.derived["evaluation.minority"] = (tested * (graph.y != majority_class(graph))[rows]).float()
    return tuple(graph.derived[f"evaluation.{name}"] for name in ("rows", "group", "minority"))  # type: ignore[return-value]


def _share(part: float, whole: float) -> float:
    return min(max(part, 0.0), whole) / whole if whole > 0 else 0.0


def _mean(total: float, count: float) -> float:
    return max(total, 0.0) / count if count > 0 else math.inf


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [a / b if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)]


TASK = NodeClassification()
