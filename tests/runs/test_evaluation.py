"""`judge` against scikit-learn and naive loops: overall, by class, by party."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from sklearn import metrics as sk

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import evaluation
from atoll.runs.evaluation import from_counts, judge
from atoll.tasks import TaskOptions
from atoll.tasks.decisions import decide
from atoll.tasks.node_classification import TASK

EXACT = 1e-12


def example(classes: int, seed: int = 0, nodes: int = 240) -> tuple[Graph, torch.Tensor]:
    """Three parties, some ties, a rare last class that the last party does not have, some nodes without a label."""
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(0, max(classes - 1, 1), (nodes,), generator=draws)
    y[torch.rand(nodes, generator=draws) < 0.1] = classes - 1
    logits = (2 * torch.randn(nodes, classes, generator=draws) + 2 * torch.nn.functional.one_hot(y, classes)).round(decimals=1)
    y[2 * nodes // 3 :][y[2 * nodes // 3 :] == classes - 1] = 0
    y[::17] = -1
    role = torch.arange(nodes) % 3
    ptr = torch.tensor([0, nodes // 3, 2 * nodes // 3, nodes])
    edges = torch.zeros(2, 0, dtype=torch.int64)
    graph = Graph(torch.zeros(nodes, 1), edges, y, role == 0, role == 1, role == 2, classes, torch.arange(nodes), ptr)
    return graph, logits


def expected_error(shares: torch.Tensor, y: torch.Tensor) -> float:
    """Item by item, into 15 equal bins of the confidence."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, label in zip(shares, y, strict=True):
        confidence = float(row.max())
        bins.setdefault(min(max(math.ceil(confidence * 15) - 1, 0), 14), []).append((confidence, int(row.argmax()) == int(label)))
    return sum(abs(sum(right for _, right in one) - sum(c for c, _ in one)) for one in bins.values()) / len(y)


def check(found: dict[str, float | None], y: torch.Tensor, shares: torch.Tensor, decided: torch.Tensor) -> None:
    """Every metric is scikit-learn's."""
    classes = shares.shape[1]
    one_hot = torch.nn.functional.one_hot(y, classes)
    ranked = [1] if classes == 2 else range(classes)
    defined = [c for c in ranked if 0 < int(one_hot[:, c].sum()) < len(y)]
    brier = float((shares - one_hot).square().sum(1).mean())
    aucs = [sk.roc_auc_score(one_hot[:, c], shares[:, c]) for c in defined]
    precisions = [sk.average_precision_score(one_hot[:, c], shares[:, c]) for c in defined]
    expected = {
        "accuracy": sk.accuracy_score(y, decided),
        "macro_f1": sk.f1_score(y, decided, average="macro"),
        "weighted_f1": sk.f1_score(y, decided, average="weighted"),
        "auc": sum(aucs) / len(aucs) if aucs else None,
        "average_precision": sum(precisions) / len(precisions) if precisions else None,
        "log_loss": sk.log_loss(y, shares, labels=range(classes)),
        "brier": brier / 2 if classes == 2 else brier,
        "calibration_error": expected_error(shares, y),
    }
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        assert found[name] == (None if value is None else pytest.approx(value, abs=EXACT)), name


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("threshold", [None, {"class": "b", "index": 1, "value": 0.3, "by": "given"}])
def test_every_metric_is_scikit_learns(classes: int, threshold: dict[str, object] | None) -> None:
    """Over all test nodes, for each class and for each party by name, with ties and a class that a party lacks."""
    if threshold and classes > 2:
        pytest.skip("thresholds are for two classes")
    graph, logits = example(classes)
    names, labels = ["north", "south", "east"], list("abcd")[:classes]
    found = judge(graph, logits, names, labels, threshold)
    rows = (graph.test & (graph.y >= 0)).nonzero()[:, 0]
    y, shares = graph.y[rows], logits[rows].double().softmax(1)
    decided = decide(shares, threshold)
    assert (found.items, found.ranking, found.classes) == (len(rows), "exact", tuple(labels))
    check(found.overall, y, shares, decided)
    assert found.confusion == sk.confusion_matrix(y, decided, labels=range(classes)).tolist()
    table = sk.precision_recall_fscore_support(y, decided, labels=range(classes), zero_division=math.nan)
    for index, label in enumerate(labels):
        one = found.by_class[label]
        for name, column in zip(("precision", "recall", "f1", "items"), table, strict=True):
            if one[name] is not None:
                assert one[name] == pytest.approx(column[index], abs=EXACT)
        assert one["auc"] == pytest.approx(sk.roc_auc_score(y == index, shares[:, index]), abs=EXACT)
        assert one["average_precision"] == pytest.approx(sk.average_precision_score(y == index, shares[:, index]), abs=EXACT)
    assert list(found.parties) == names
    for index, name in enumerate(names):
        own = graph.party[rows] == index
        check(found.parties[name], y[own], shares[own], decided[own])
        assert found.parties[name]["confusion"] == sk.confusion_matrix(y[own], decided[own], labels=range(classes)).tolist()
    assert sum(items for items, _, _ in found.calibration or []) == len(rows)
    assert json.loads(json.dumps(found.to_dict()))["by_class"].keys() == set(labels)


def test_histograms_in_place_of_sorting_are_within_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """For more probabilities than are sorted, and said so."""
    graph, logits = example(2)
    exact = judge(graph, logits)
    monkeypatch.setattr(evaluation, "MAX_EXACT", 10)
    rough = judge(graph, logits)
    assert (exact.ranking, rough.ranking) == ("exact", "histogram")
    assert rough.overall["auc"] == pytest.approx(exact.overall["auc"], abs=0.02)
    assert {name: value for name, value in rough.overall.items() if name not in ("auc", "average_precision")} == {
        name: value for name, value in exact.overall.items() if name not in ("auc", "average_precision")
    }


@pytest.mark.parametrize("text", ["none", "f1", "0.3"])
def test_sums_of_counts_tell_the_same(text: str) -> None:
    """What a server makes of the parties' counts is what the outputs give, at a threshold too; AUC within the bins."""
    graph, logits = example(2)
    task = TASK.configured(TaskOptions(classes=2, parties=3, threshold=text))
    counts = task.counts(logits, graph)
    sums = {name: value.sum(0) for name, value in counts.items()}
    value = task.metrics(sums).get("val_threshold", 0.3)
    threshold = None if text == "none" else {"class": "1", "index": 1, "value": value, "by": text}
    by_party = {str(party): {name: each[party] for name, each in counts.items()} for party in range(3)}
    found, exact = from_counts(sums, by_party, None, threshold), judge(graph, logits, threshold=threshold)
    assert found is not None
    assert (found.confusion, found.items, found.threshold) == (exact.confusion, exact.items, exact.threshold)
    for one, same in ((found.overall, exact.overall), *((found.parties[name], exact.parties[name]) for name in exact.parties)):
        for name in ("accuracy", "macro_f1", "weighted_f1"):
            assert one[name] == same[name]
        assert one["log_loss"] == pytest.approx(same["log_loss"], rel=1e-6)
        if text == "f1" and same["auc"] is not None:
            assert one["auc"] == pytest.approx(same["auc"], abs=0.05)
    assert from_counts({}, {}) is None


def test_which_nodes_are_judged() -> None:
    """Test nodes; all labeled ones where none is marked; or those of a mask. Without any, one sentence."""
    graph, logits = example(3)
    labeled = int((graph.y >= 0).sum())
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    assert judge(graph, logits).items == int((graph.test & (graph.y >= 0)).sum())
    assert judge(replace(graph, test=none), logits).items == labeled
    assert judge(graph, logits, mask="val").items == int((graph.val & (graph.y >= 0)).sum())
    with pytest.raises(AtollError, match="no labeled node"):
        judge(replace(graph, y=torch.full_like(graph.y, -1)), logits)


def test_one_node_and_one_class_are_judged() -> None:
    """What cannot be said is None, not 0 or an error."""
    graph, logits = example(2)
    found = judge(graph, logits, mask=(torch.arange(graph.num_nodes) == 1))
    assert (found.items, found.overall["auc"]) == (1, None)
    assert str(found).startswith("1 node,")


def test_it_prints_as_tables_that_fit_a_screen() -> None:
    """Many classes and parties with long names."""
    graph, logits = example(30, nodes=3000)
    names = [f"hospital number {party} with a very long name indeed" for party in range(3)]
    text = str(judge(graph, logits, names, [f"diagnosis {index}" for index in range(30)]))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 45
    assert "… and 10 more" in text
    assert "hospital number 0 with…" in text
