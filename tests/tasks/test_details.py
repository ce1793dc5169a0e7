"""Metrics from sums of counts against scikit-learn on the items themselves, and the best round by any of them."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score, brier_score_loss, f1_score, recall_score, roc_auc_score

import atoll
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.tasks import TaskOptions
from atoll.tasks.counting import evaluated_rows
from atoll.tasks.histograms import auc_of_bins, average_precision_of_bins, bin_edges, bins_of
from atoll.tasks.node_classification import TASK
from labeled import labeled_graph, random_logits
from small import ALGORITHMS, small

SMALL = {"dataset": "csbm", "parties": 3, "rounds": 3, "nodes": 300}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("rare", [0.5, 0.02])
@pytest.mark.parametrize("digits", [1, 12])
def test_ranking_from_histograms_is_within_its_bound(seed: int, rare: float, digits: int) -> None:
    """With ties and without, also where positives are rare."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.rand(2000, generator=draws) < rare
    scores = torch.sigmoid(3 * torch.randn(2000, generator=draws, dtype=torch.float64) + 2.0 * y - 3).round(decimals=digits)
    bins = bins_of(scores, bin_edges())
    negatives, positives = (torch.bincount(bins[y == kind], minlength=256) for kind in (False, True))
    area, precision = auc_of_bins(negatives, positives), average_precision_of_bins(negatives, positives)
    assert area is not None
    assert precision is not None
    in_one_bin = float((positives * negatives).sum()) / (float(positives.sum()) * float(negatives.sum()))
    assert abs(area - roc_auc_score(y, scores)) <= in_one_bin / 2 + 1e-12
    apart = torch.arange(len(y)) / (2 * len(y))  # ties broken, the positives of a bin after its negatives or before them
    lowest, highest = (average_precision_score(y, bins + apart / 2 + first * 0.5 * y) for first in (-1, 1))
    assert lowest - 1e-12 <= precision <= highest + 1e-12
    assert lowest - 1e-12 <= average_precision_score(y, scores) <= highest + 1e-12
    assert auc_of_bins(negatives, torch.zeros(256)) is None
    assert average_precision_of_bins(negatives, torch.zeros(256)) is None


@pytest.mark.parametrize("name", ["macro_f1", "weighted_f1", "recall[1]", "brier", "auc"])
def test_validation_metrics_are_those_of_the_items(name: str) -> None:
    """Summed over parties, one of which has no validation nodes."""
    graph, logits = labeled_graph(), random_logits().detach()
    task = TASK.configured(TaskOptions(select_by=name, classes=3, parties=3))
    counts = task.counts(logits, graph)
    assert {key: tuple(value.shape[1:]) for key, value in counts.items()}.keys() == task.fields.keys()
    found = task.metrics({key: value.sum(0) for key, value in counts.items()})[f"val_{name}"]
    rows = evaluated_rows(graph)
    rows = rows[graph.val[rows]]
    y, shares = graph.y[rows], logits[rows].double().softmax(1)
    predicted = shares.argmax(1)
    one_hot = torch.nn.functional.one_hot(y, 3)
    defined = [c for c in range(3) if 0 < int(one_hot[:, c].sum()) < len(y)]
    exact = {
        "macro_f1": f1_score(y, predicted, average="macro"),
        "weighted_f1": f1_score(y, predicted, average="weighted"),
        "recall[1]": recall_score(y, predicted, labels=[1], average=None)[0],
        "brier": float((shares - one_hot).square().sum(1).mean()),
        "auc": sum(roc_auc_score(one_hot[:, c], shares[:, c]) for c in defined) / len(defined),
    }
    assert found == pytest.approx(exact[name], abs=0.05 if name == "auc" else 1e-12)
    assert brier_score_loss([0, 1], [0.2, 0.7]) == pytest.approx(((0.2**2) + 0.3**2) / 2)


@pytest.mark.parametrize(("name", "best"), [("auc", max), ("weighted_f1", max), ("brier", min), ("calibration_error", min)])
@pytest.mark.parametrize("secure", [False, True])
def test_any_metric_selects_the_best_round(name: str, best: object, secure: bool) -> None:
    """In the metric's own direction; with secure totals too."""
    result = atoll.run("fedavg", **SMALL, select_by=name, secure=secure)
    values = [row[f"val_{name}"] for row in result.rows]
    assert values[result.best_round - 1] == best(values)  # type: ignore[operator]


def test_tracked_metrics_are_those_of_the_items_and_widen_nothing_else() -> None:
    """Accuracy over validation nodes outside their party's commonest training class, and what a name of a class asks for."""
    graph, logits = labeled_graph(), random_logits().detach()
    plain, task = (
        TASK.configured(TaskOptions(classes=3, parties=3, track=track)) for track in ((), ("minority_accuracy", "f1[1]"))
    )
    assert task.fields.keys() - plain.fields.keys() == {"val_minority", "val_confusion"}
    counts, usual = task.counts(logits, graph), plain.counts(logits, graph)
    assert all(torch.equal(counts[name], value) for name, value in usual.items())
    found = task.metrics({key: value.sum(0) for key, value in counts.items()})
    right, nodes, predicted = 0, 0, logits.argmax(1)
    for party in range(3):
        own = graph.owner == party
        trained = graph.y[own & graph.train & (graph.y >= 0)]
        commonest = max(range(3), key=lambda c: (int((trained == c).sum()), -c))
        judged = own & graph.val & (graph.y >= 0) & (graph.y != commonest)
        right, nodes = right + int((predicted == graph.y)[judged].sum()), nodes + int(judged.sum())
    assert 0 < right < nodes
    assert found["val_minority_accuracy"] == pytest.approx(right / nodes)
    rows = evaluated_rows(graph)
    rows = rows[graph.val[rows]]
    assert found["val_f1[1]"] == pytest.approx(f1_score(graph.y[rows], predicted[rows], labels=[1], average=None)[0])


def test_what_is_tracked_changes_nothing_else() -> None:
    """The same rounds, bytes of training and best round; one more metric of each round."""
    plain, tracked = (atoll.run("fedavg", **SMALL, track=track) for track in ((), ("minority_accuracy",)))
    assert {"val_minority_accuracy"} == tracked.metrics.keys() - plain.metrics.keys()
    assert all(tracked.metrics[name] == value for name, value in plain.metrics.items())
    assert (tracked.best_round, tracked.bytes["up"]) == (plain.best_round, plain.bytes["up"])
    with pytest.raises(AtollError, match=r"track is 'auk', .*did you mean 'auc'"):
        atoll.run("fedavg", **SMALL, track=("auk",))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_is_selected_by_every_kind_of_count(algorithm: str) -> None:
    """Confusion matrices, histograms, sums and bins, over all classes and of one; the best round is the best by it."""
    for name in ("auc", "average_precision[1]", "f1[0]", "minority_accuracy", "brier"):
        result = runner.run(small(algorithm, rounds=2, select_by=name, evaluate_every=1))
        values = [row[f"val_{name}"] for row in result.rows]
        assert values[result.best_round - 1] == (min if name == "brier" else max)(values), name


def test_a_metric_that_is_not_one_is_refused() -> None:
    """With the nearest name, and an unknown class likewise."""
    with pytest.raises(AtollError, match="did you mean 'accuracy'"):
        atoll.run("fedavg", **SMALL, select_by="acuracy")
    with pytest.raises(AtollError, match="names the class '99'"):
        atoll.run("fedavg", **SMALL, select_by="recall[99]")
