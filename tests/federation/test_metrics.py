"""Counts and metrics against the definitions, node by node."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score

from atoll.federation import metrics
from atoll.graphs.graph import Graph
from atoll.runs import runner
from small import small


@pytest.fixture
def graph() -> Graph:
    """Three parties."""
    return runner.prepare(small("local")).spread.parts


def naive_minority(graph: Graph) -> list[bool]:
    """Node by node: of the test set, and not of its party's most frequent training class."""
    minority = []
    for node in range(graph.num_nodes):
        mates = [i for i in range(graph.num_nodes) if graph.party[i] == graph.party[node] and graph.train[i]]
        labels = [int(graph.y[i]) for i in mates]
        commonest = max(range(graph.num_classes), key=lambda label: (labels.count(label), -label))
        minority.append(bool(graph.test[node]) and int(graph.y[node]) != commonest)
    return minority


def test_counts_add_up_to_the_definitions(graph: Graph) -> None:
    """Accuracy, loss, macro F1 and minority accuracy from the counts are those of the pooled nodes."""
    logits = torch.randn(graph.num_nodes, graph.num_classes, generator=torch.Generator().manual_seed(1))
    counts = metrics.local_counts(logits, graph)
    pooled = metrics.metrics_from_counts({name: value.sum(0) for name, value in counts.items()})
    guesses, minority = logits.argmax(1), torch.tensor(naive_minority(graph))
    assert minority.any()
    y, guess = graph.y[graph.test], guesses[graph.test]
    assert pooled["accuracy"] == pytest.approx(accuracy_score(y, guess))
    assert pooled["macro_f1"] == pytest.approx(f1_score(y, guess, average="macro"))
    assert pooled["loss"] == pytest.approx(float(F.cross_entropy(logits[graph.test], y)), rel=1e-6)
    assert pooled["minority_accuracy"] == pytest.approx(accuracy_score(graph.y[minority], guesses[minority]))
    assert pooled["val_loss"] == pytest.approx(float(F.cross_entropy(logits[graph.val], graph.y[graph.val])), rel=1e-6)
    assert pooled["val_accuracy"] == pytest.approx(accuracy_score(graph.y[graph.val], guesses[graph.val]))
    parties = metrics.by_party((0, 1, 2), counts, 3)
    for party in range(3):
        mine = graph.test & (graph.party == party)
        assert parties["party_accuracy"][party] == pytest.approx(accuracy_score(graph.y[mine], guesses[mine]))


def test_the_union_keeps_every_nodes_own_minority() -> None:
    """On the union of the parties a node is a minority node where it was one in its party: comparisons stay fair."""
    spread = runner.prepare(small("local")).spread
    parts, whole = spread.parts, spread.whole
    own = dict(zip(parts.ids.tolist(), (parts.y != metrics.majority_class(parts)).tolist(), strict=True))
    assert [own[i] for i in whole.ids.tolist()] == (whole.y != metrics.majority_class(whole)).tolist()
    for name in ("train", "val", "test"):
        mask = dict(zip(parts.ids.tolist(), getattr(parts, name).tolist(), strict=True))
        assert [mask[i] for i in whole.ids.tolist()] == getattr(whole, name).tolist()


def test_what_cannot_be_said_is_left_out() -> None:
    """Without validation, test or minority nodes there is no number for them, rather than a wrong one."""
    empty = {"validation": torch.zeros(3), "test": torch.zeros(5), "confusion": torch.zeros(2, 2, dtype=torch.int64)}
    assert metrics.metrics_from_counts(empty) == {}
    counts = torch.tensor([[0.0, 0, 0, 0, 0], [4.0, 3, 0, 0, 0]])
    assert metrics.by_party((0, 1), {"test": counts}, 2)["party_accuracy"] == [None, 0.75]


def test_who_listens_hears_what_is_counted(graph: Graph) -> None:
    """The logits and their graph, while it lasts and no longer."""
    logits = torch.zeros(graph.num_nodes, graph.num_classes)
    heard: list[tuple[torch.Tensor, Graph]] = []
    with metrics.listening(lambda *what: heard.append(what)):
        metrics.local_counts(logits, graph)
    metrics.local_counts(logits, graph)
    assert heard == [(logits, graph)]
    assert graph.y[metrics.evaluated_rows(graph)].tolist() == torch.cat([graph.y[graph.val], graph.y[graph.test]]).tolist()
