"""Class weights in the loss against naive sums and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.utils.class_weight import compute_class_weight

from atoll.errors import AtollError
from atoll.tasks import TaskOptions, class_weights
from atoll.tasks.node_classification import TASK
from labeled import blocks, labeled_graph, random_logits

WEIGHTS = (0.5, 3.0, 1.25)


@pytest.mark.parametrize("counts", [[5, 5], [90, 10], [1, 2, 97], [4, 0, 6]])
def test_balanced_is_scikit_learns_formula(counts: list[int]) -> None:
    """n / (C·n_c) over the classes that occur; the others weigh nothing."""
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)).numpy()
    present = np.unique(y)
    expected = dict(zip(present.tolist(), compute_class_weight("balanced", classes=present, y=y), strict=True))
    found = class_weights.balanced(torch.tensor(counts)).tolist()
    assert found == pytest.approx([expected.get(index, 0.0) for index in range(len(counts))], abs=1e-15)


def test_the_loss_multiplies_every_node_by_the_weight_of_its_class() -> None:
    """Σ_p Σ_i w[y_i]·ℓ_i / n_p, node by node; its gradient, and that of `item_losses`, likewise."""
    graph, logits = labeled_graph(), random_logits()
    task = TASK.configured(TaskOptions(classes=3, class_weight=",".join(map(str, WEIGHTS))))
    total = torch.zeros(())
    for out, y, train in zip(*(blocks(each) for each in (logits, graph.y, graph.train)), strict=True):
        rows = (train & (y >= 0)).nonzero()[:, 0].tolist()
        for row in rows:
            total = total - WEIGHTS[int(y[row])] * out[row].log_softmax(0)[int(y[row])] / len(rows)
    loss = task.loss(logits, graph)
    torch.testing.assert_close(loss, total)
    torch.testing.assert_close(*(torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (loss, total)))
    known = graph.y >= 0
    expected = F.cross_entropy(logits[known], graph.y[known], reduction="none") * torch.tensor(WEIGHTS)[graph.y[known]]
    torch.testing.assert_close(task.item_losses(logits, graph.y)[known], expected)


def test_weighted_parties_add_up_to_the_pooled_loss() -> None:
    """Averaged by training nodes, as FedAvg does, it is the weighted mean over all nodes: no party is renormalized."""
    graph, logits = labeled_graph(), random_logits().detach()
    task = TASK.weighted(WEIGHTS)
    rows = (graph.train & (graph.y >= 0)).nonzero()[:, 0]
    pooled = float(task.item_losses(logits[rows], graph.y[rows]).mean())
    counts = torch.bincount(graph.party[rows], minlength=3)
    own = [float(task.loss(logits, graph, graph.train & (graph.party == party))) for party in range(3)]
    assert sum(n * loss for n, loss in zip(counts.tolist(), own, strict=True)) / len(rows) == pytest.approx(pooled, rel=1e-6)


def test_none_is_the_task_as_it_was_and_ones_change_no_bit() -> None:
    """Evaluation never is weighted."""
    graph, logits = labeled_graph(), random_logits().detach()
    plain, ones, heavy = (TASK.configured(TaskOptions(classes=3, class_weight=text)) for text in ("none", "1,1,1", "1:9"))
    assert plain.loss(logits, graph) == TASK.loss(logits, graph) == ones.loss(logits, graph)
    assert heavy.loss(logits, graph) != plain.loss(logits, graph)
    assert all(torch.equal(value, heavy.counts(logits, graph)[name]) for name, value in plain.counts(logits, graph).items())


def test_weights_by_name_number_and_position() -> None:
    """A class that is not named weighs 1."""
    names = ("well", "sick: very")
    assert class_weights.given("sick: very:5", names, 2) == (1.0, 5.0)
    assert class_weights.given("1:5, well:2", names, 2) == (2.0, 5.0)
    assert class_weights.given("0.2, 0.8", names, 2) == (0.2, 0.8)
    assert class_weights.given("balanced", names, 2) == class_weights.given("none", names, 2) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("balansed", "did you mean 'balanced'"),
        ("1,2,3", "3 numbers for 2 classes; give one per class"),
        ("sic:2", "names the class 'sic', which the data does not have; did you mean 'sick'"),
        ("sick:2,3", "names some classes and not others"),
        ("sick:2,sick:3", "names a class twice"),
        ("1,-1", "a finite number of at least 0"),
        ("1,inf", "a finite number of at least 0"),
        ("0,0", "leaves nothing to learn"),
        ("", "is not a weight"),
    ],
)
def test_what_is_not_a_weight_is_one_sentence(text: str, sentence: str) -> None:
    """It says what, and what to do."""
    with pytest.raises(AtollError, match=sentence):
        class_weights.given(text, ("well", "sick"), 2)
