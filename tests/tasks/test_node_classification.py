"""The task's loss against loops over parties; counts and metrics against the definitions, node by node."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, f1_score
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph, majority_class
from atoll.runs import runner
from atoll.tasks import confusion, counting, tallies
from atoll.tasks.counting import evaluated_rows, training_counts
from atoll.tasks.node_classification import TASK
from labeled import blocks, labeled_graph, random_logits
from small import small


@pytest.fixture
def graph() -> Graph:
    """Three parties; the last has no validation nodes; some nodes have no label."""
    return labeled_graph()


@pytest.fixture
def logits() -> Tensor:
    """Logits with a gradient."""
    return random_logits()


@pytest.fixture
def parts() -> Graph:
    """Three parties of a run."""
    return runner.prepare(small("local")).party_data.parts


def naive_cross_entropy(logits: Tensor, graph: Graph, mask: Tensor, balance: bool = False) -> Tensor:
    """A loop over the parties, and over the classes of each to balance them, with torch's own loss."""
    terms = []
    for own, y, chosen in zip(blocks(logits), blocks(graph.y), blocks(mask), strict=True):
        counted = chosen & (y >= 0)
        if counted.any():
            groups = [counted & (y == place) for place in y[counted].unique()] if balance else [counted]
            terms.append(torch.stack([F.cross_entropy(own[group], y[group]) for group in groups]).mean())
    return torch.stack(terms).sum()


@pytest.mark.parametrize("mask", ["train", "val", "test"])
@pytest.mark.parametrize("form", ["name", "own", "other"])
@pytest.mark.parametrize("balance", [False, True])
def test_cross_entropy_is_a_sum_of_means(graph: Graph, logits: Tensor, mask: str, form: str, balance: bool) -> None:
    """Each party's mean over its labeled masked nodes, or over its classes, summed; a mask by name, the graph's own or another.

    One form of the loss does not remember for the other.
    """
    TASK.loss(logits, graph, mask, balance=not balance)
    chosen: Tensor = getattr(graph, mask)
    given = {"name": mask, "own": chosen, "other": chosen.clone()}[form]
    expected = naive_cross_entropy(logits, graph, chosen, balance)
    for _ in range(2):  # computed, then remembered
        loss = TASK.loss(logits, graph, given, balance=balance)
        torch.testing.assert_close(loss, expected)
        ours, wanted = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (3 * loss, 3 * expected))
        torch.testing.assert_close(ours, wanted)


def test_other_masks_are_not_remembered(graph: Graph, logits: Tensor) -> None:
    """A mask that changes in place gives a new loss: only the graph's own masks are kept."""
    mask = graph.train.clone()
    first = TASK.loss(logits, graph, mask)
    mask[:6] = True
    assert not torch.equal(first, TASK.loss(logits, graph, mask))


def test_cross_entropy_of_large_logits(graph: Graph, logits: Tensor) -> None:
    """Logits of a thousand overflow nothing."""
    large = logits.detach() * 1000
    torch.testing.assert_close(TASK.loss(large, graph, "train"), naive_cross_entropy(large, graph, graph.train))


def test_weights_survive_a_change_of_masks(graph: Graph, logits: Tensor) -> None:
    """A graph with other masks does not inherit the weights remembered for the first."""
    TASK.loss(logits, graph, "train")
    other = replace(graph, train=graph.test)
    torch.testing.assert_close(TASK.loss(logits, other, "train"), naive_cross_entropy(logits, graph, graph.test))


def test_unknown_mask_is_an_error(graph: Graph, logits: Tensor) -> None:
    """A mask that is none of the three is named in the error."""
    with pytest.raises(AtollError, match="'training'"):
        TASK.loss(logits, graph, "training")


def test_parties_without_nodes_count_nothing(graph: Graph, logits: Tensor) -> None:
    """An empty mask gives loss 0 and gradient 0, not NaN."""
    empty = torch.zeros_like(graph.train)
    loss = TASK.loss(logits, graph, empty) + TASK.loss(logits, graph, empty, balance=True)
    assert loss.item() == 0
    assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.zeros_like(logits))


def naive_minority(parts: Graph) -> list[bool]:
    """Node by node: of the test set, and not of its party's most frequent training class."""
    minority = []
    for node in range(parts.num_nodes):
        mates = [i for i in range(parts.num_nodes) if parts.party[i] == parts.party[node] and parts.train[i]]
        labels = [int(parts.y[i]) for i in mates]
        commonest = max(range(parts.num_classes), key=lambda label: (labels.count(label), -label))
        minority.append(bool(parts.test[node]) and int(parts.y[node]) != commonest)
    return minority


def test_counts_add_up_to_the_definitions(parts: Graph) -> None:
    """Accuracy, loss, macro F1 and minority accuracy from the counts are those of the pooled nodes."""
    logits = torch.randn(parts.num_nodes, parts.num_classes, generator=torch.Generator().manual_seed(1))
    counts = TASK.counts(logits, parts)
    pooled = TASK.metrics({name: value.sum(0) for name, value in counts.items()})
    guesses, minority = logits.argmax(1), torch.tensor(naive_minority(parts))
    assert minority.any()
    y, guess = parts.y[parts.test], guesses[parts.test]
    assert pooled["accuracy"] == pytest.approx(accuracy_score(y, guess))
    assert pooled["macro_f1"] == pytest.approx(f1_score(y, guess, average="macro"))
    assert pooled["loss"] == pytest.approx(float(F.cross_entropy(logits[parts.test], y)), rel=1e-6)
    assert pooled["minority_accuracy"] == pytest.approx(accuracy_score(parts.y[minority], guesses[minority]))
    assert pooled["val_loss"] == pytest.approx(float(F.cross_entropy(logits[parts.val], parts.y[parts.val])), rel=1e-6)
    assert pooled["val_accuracy"] == pytest.approx(accuracy_score(parts.y[parts.val], guesses[parts.val]))
    parties = TASK.by_party(counts)
    for party in range(3):
        mine = parts.test & (parts.party == party)
        assert parties["party_accuracy"][party] == pytest.approx(accuracy_score(parts.y[mine], guesses[mine]))


def test_sums_of_many_parties_are_not_written_out(parts: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """They add up to the same, are the same where they are written out after all, and for some of the parties."""
    logits, task = torch.randn(parts.num_nodes, parts.num_classes, generator=torch.Generator().manual_seed(1)), TASK
    task = replace(task, training=True)
    written = task.counts(logits, parts)
    monkeypatch.setattr(counting, "MAX_SUMS", 1)
    monkeypatch.setattr(tallies, "MAX_ITEMS_AT_ONCE", 3)
    for name, value in task.counts(logits, parts).items():
        if name == "confusion":
            continue
        assert isinstance(value, tallies.Sums)
        assert (value.shape, value.dtype) == (tuple(written[name].shape), written[name].dtype)
        assert torch.equal(value.dense(), written[name])
        torch.testing.assert_close(value.total(), written[name].sum(0))
        some = value.take(torch.tensor([2, 0]))
        assert torch.equal(some.dense(), written[name][[2, 0]])
        torch.testing.assert_close(some.take(torch.tensor([1])).total(), written[name][0])
        assert bool(torch.isfinite(value.probe()))


def test_the_union_keeps_every_nodes_own_minority() -> None:
    """On the union of the parties a node is a minority node where it was one in its party: comparisons stay fair."""
    data = runner.prepare(small("local")).party_data
    parts, whole = data.parts, data.whole
    own = dict(zip(parts.ids.tolist(), (parts.y != majority_class(parts)).tolist(), strict=True))
    assert [own[i] for i in whole.ids.tolist()] == (whole.y != majority_class(whole)).tolist()
    for name in ("train", "val", "test"):
        mask = dict(zip(parts.ids.tolist(), getattr(parts, name).tolist(), strict=True))
        assert [mask[i] for i in whole.ids.tolist()] == getattr(whole, name).tolist()


def test_what_cannot_be_said_is_left_out() -> None:
    """Without validation, test or minority nodes there is no number for them, rather than a wrong one."""
    empty = {"validation": torch.zeros(3), "test": torch.zeros(5), "confusion": torch.zeros(2, 2, dtype=torch.int64)}
    assert TASK.metrics(empty) == {}
    counts = torch.tensor([[0.0, 0, 0, 0, 0], [4.0, 3, 0, 0, 0]])
    assert TASK.by_party({"test": counts})["party_accuracy"] == [None, 0.75]
    assert TASK.by_party({"test": counts.clamp(max=1)}) == {}


def test_training_nodes_are_counted_party_by_party(graph: Graph, logits: Tensor) -> None:
    """Labeled training nodes and their losses; a task that counts them leaves every other count as it is."""
    expected = []
    for own, y, train in zip(blocks(logits.detach()), blocks(graph.y), blocks(graph.train), strict=True):
        losses = [float(-own[node].log_softmax(0)[y[node]]) for node in range(len(y)) if train[node] and y[node] >= 0]
        expected.append([len(losses), sum(losses)])
    torch.testing.assert_close(training_counts(logits.detach(), graph), torch.tensor(expected, dtype=torch.float64))
    counting = replace(TASK, training=True)
    counts, usual = counting.counts(logits.detach(), graph), TASK.counts(logits.detach(), graph)
    assert counts.keys() - usual.keys() == counting.fields.keys() - TASK.fields.keys() == {"training"}
    assert all(torch.equal(value, counts[name]) for name, value in usual.items())
    sums = {name: value.sum(0) for name, value in counts.items()}
    nodes, loss = map(sum, zip(*expected, strict=True))
    assert counting.metrics(sums) == TASK.metrics(sums | {"training": torch.zeros(2)}) | {
        "train_loss": pytest.approx(loss / nodes)
    }


def test_validation_nodes_come_before_test_nodes(parts: Graph) -> None:
    """The rows that are counted, in order."""
    assert parts.y[evaluated_rows(parts)].tolist() == torch.cat([parts.y[parts.val], parts.y[parts.test]]).tolist()


@pytest.mark.parametrize("classes", [1, 2, 7, confusion.MAX_LISTED_CLASSES])
def test_macro_f1_of_few_classes_has_the_bits_of_the_operations_on_tensors(classes: int) -> None:
    """Lists replace tensors of few classes for speed only; noised counts may be negative, and classes may be absent."""
    source = torch.Generator().manual_seed(classes)
    for low in (-3, 0):
        for high in (1, 2, 50, 10**9):
            counts = torch.randint(low, high, (classes, classes), generator=source)
            assert confusion.macro_f1(counts) == confusion.macro_f1(counts.double())  # the general way
