"""What a model is worth: counts at the parties, metrics from their sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.federation.cohort import Fields, backbone
from atoll.federation.federation import Federation
from atoll.graphs.graph import Graph, majority_class
from atoll.models.parameters import set_parameters
from atoll.settings import Training

_listeners: list[Callable[[Tensor, Graph], None]] = []


@contextmanager
def listening(hear: Callable[[Tensor, Graph], None]) -> Iterator[None]:
    """While it lasts, `hear` is told the logits that are counted and their graph: whatever predicts, every algorithm counts."""
    _listeners.append(hear)
    try:
        yield
    finally:
        _listeners.remove(hear)


def evaluated_rows(graph: Graph) -> Tensor:
    """The rows that are counted: labelled validation nodes, then labelled test nodes."""
    return _plan(graph)[0]


def local_counts(logits: Tensor, graph: Graph) -> Fields:
    """Each party's counts on its validation and test nodes; everything a metric needs is a sum of these.

    `validation` (P, 3): nodes, correct, summed loss. `test` (P, 5): the same, then minority nodes and correct ones.
    `confusion` (P, C, C): test nodes by class and prediction.
    """
    for hear in _listeners:
        hear(logits, graph)
    rows, group, minority = _plan(graph)
    parties, classes = graph.parties, graph.num_classes
    logits = logits.index_select(0, rows)  # validation nodes, then test nodes
    y = graph.y.index_select(0, rows)
    losses = F.cross_entropy(logits, y, reduction="none")
    guesses = logits.argmax(1)
    right = guesses == y
    columns = torch.stack([torch.ones_like(losses), right, losses, minority, minority * right], 1)
    sums = torch.zeros(2 * parties, 5, dtype=torch.float64).index_add_(0, group, columns.double())
    cells = torch.bincount((group * classes + y) * classes + guesses, minlength=2 * parties * classes**2)
    return {
        "validation": sums[:parties, :3],
        "test": sums[parties:],
        "confusion": cells.view(2, parties, classes, classes)[1],
    }


def _plan(graph: Graph) -> tuple[Tensor, Tensor, Tensor]:
    """Validation rows then test rows; the row of the counts each adds to; 1 where it is a minority node of the test set."""
    if "evaluation.rows" not in graph.derived:
        val, test = (((mask & (graph.y >= 0)).nonzero().squeeze(1)) for mask in (graph.val, graph.test))
        rows = torch.cat([val, test])
        tested = torch.cat([torch.zeros_like(val), torch.ones_like(test)])
        graph.derived["evaluation.rows"] = rows
        graph.derived["evaluation.group"] = graph.party[rows] + tested * graph.parties
        graph.derived["evaluation.minority"] = (tested * (graph.y != majority_class(graph))[rows]).float()
    return tuple(graph.derived[f"evaluation.{name}"] for name in ("rows", "group", "minority"))  # type: ignore[return-value]


def evaluate(
    federation: Federation, verb: str = "evaluate", *, each: Mapping[str, Any] | None = None, **common: Any
) -> dict[str, Any]:
    """Metrics over all parties' nodes pooled and, unless the server gets sums only, of each party.

    Where parties overlap, what they measure on their own graphs is the local goal: `local_accuracy` and so on.
    """
    if federation.secure or not federation.evaluate_at_server:
        return _goal(federation, metrics_from_counts(federation.total(verb, each=each, **common)))
    replies = federation.ask(verb, each=each, **common)
    counts = {name: replies.stack(name) for name in ("validation", "test", "confusion")}
    metrics = metrics_from_counts({name: value.sum(0) for name, value in counts.items()})
    return _goal(federation, metrics) | by_party(replies.parties, counts, federation.schema.parties)


def evaluate_shared(federation: Federation, settings: Training, model: Fields) -> dict[str, Any]:
    """Metrics of one model for all, at the parties and, where they overlap, on the union of their graphs: the global goal.

    The validation scores are the parties' in any case: a federation that is not a simulation has no union graph.
    """
    metrics = evaluate(federation, model=model)
    if federation.scenario != "overlapping" or federation.whole is None:
        return metrics
    network = backbone(settings, federation.schema, 1, None)
    set_parameters(network, model)
    with torch.no_grad():
        found = metrics_from_counts(
            {name: value[0] for name, value in local_counts(network(federation.whole), federation.whole).items()}
        )
    return {name: value for name, value in found.items() if not name.startswith("val_")} | metrics


def _goal(federation: Federation, metrics: dict[str, float]) -> dict[str, float]:
    if federation.scenario != "overlapping":
        return metrics
    return {name if name.startswith("val_") else f"local_{name}": value for name, value in metrics.items()}


def metrics_from_counts(counts: Fields) -> dict[str, float]:
    """Metrics from summed counts; what cannot be said (no such nodes) is left out.

    Noised counts may be impossible ones (fewer nodes than none): shares are from 0 to 1 all the same.
    """
    nodes, correct, loss = counts["validation"].tolist()
    metrics: dict[str, float] = {}
    if nodes:
        metrics |= {"val_loss": _mean(loss, nodes), "val_accuracy": _share(correct, nodes)}
    nodes, correct, loss, minority, minority_correct = counts["test"].tolist()
    if nodes:
        metrics |= {"loss": _mean(loss, nodes), "accuracy": _share(correct, nodes), "macro_f1": macro_f1(counts["confusion"])}
    if minority:
        metrics["minority_accuracy"] = _share(minority_correct, minority)
    return metrics


def _share(part: float, whole: float) -> float:
    return min(max(part, 0.0), whole) / whole if whole > 0 else 0.0


def _mean(total: float, count: float) -> float:
    return max(total, 0.0) / count if count > 0 else math.inf


def macro_f1(confusion: Tensor) -> float:
    """The mean over classes of F1 = 2·TP / (2·TP + FP + FN), over the classes that occur or are predicted."""
    confusion = confusion.clamp(min=0)
    occurring = confusion.sum(0) + confusion.sum(1)
    known = occurring > 0
    return float((2 * confusion.diagonal().double()[known] / occurring[known]).mean()) if bool(known.any()) else 0.0


def by_party(parties: Sequence[int], counts: Fields, total: int) -> dict[str, Any]:
    """Accuracy of each of all parties, where they are few enough to list and have more than a node.

    `counts` are those of `parties`. None stands for a party that has no such node, was missing or was not asked.
    """
    if total > 100 or float(counts["test"][:, 0].max()) <= 1:
        return {}
    test = counts["test"]
    if len(parties) < total:
        test = torch.zeros(total, test.shape[1], dtype=torch.float64)
        test[torch.tensor(list(parties))] = counts["test"].double()
    return {
        "party_accuracy": _ratios(test[:, 1], test[:, 0]),
        "party_minority_accuracy": _ratios(test[:, 4], test[:, 3]),
    }


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [a / b if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)]
