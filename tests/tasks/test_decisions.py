"""Thresholds from histograms against trying every candidate on the items themselves."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import confusion_matrix

from atoll.errors import AtollError
from atoll.tasks import decisions
from atoll.tasks.histograms import BINS, bin_edges, bins_of
from deciding import SCORES


def items(seed: int, rare: float = 0.15) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels and probabilities of the two classes."""
    draws = torch.Generator().manual_seed(seed)
    y = (torch.rand(300, generator=draws) < rare).long()
    logits = torch.randn(300, generator=draws, dtype=torch.float64) + 1.5 * y - 2
    return y, torch.stack([torch.sigmoid(-logits), torch.sigmoid(logits)], 1)


def histograms(y: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """(2, 2, BINS) as parties count them."""
    bins = bins_of(shares, bin_edges())
    return torch.stack(
        [torch.stack([torch.bincount(bins[(y == c) == kind, c], minlength=BINS) for kind in (False, True)]) for c in (0, 1)]
    )


@pytest.mark.parametrize("by", decisions.CRITERIA)
@pytest.mark.parametrize("seed", range(4))
def test_the_chosen_threshold_is_the_best_of_all_candidates(by: str, seed: int) -> None:
    """By scikit-learn's scores of the decisions; of equal ones the nearest to ½ in bins."""
    y, shares = items(seed)
    found = decisions.choose(histograms(y, shares)[1], by)
    tried = {float(edge): SCORES[by](y, decisions.decide(shares, float(edge))) for edge in bin_edges()}
    best = max(tried.values())
    equal = [edge for edge, score in tried.items() if score >= best - 1e-12]
    edges = bin_edges().tolist()
    assert found == min(equal, key=lambda edge: abs(edges.index(edge) - edges.index(0.5)))


@pytest.mark.parametrize("index", [0, 1])
def test_the_decisions_at_a_threshold_follow_from_the_histograms(index: int) -> None:
    """For either class, also for a probability on the edge; inside a bin they are not known."""
    y, shares = items(3)
    shares[0, 1], shares[0, 0] = 0.5, 0.5
    for edge in (float(bin_edges()[20]), 0.5, float(bin_edges()[-1])):
        threshold = {"index": index, "value": edge}
        expected = confusion_matrix(y, decisions.decide(shares, threshold), labels=[0, 1]).tolist()
        found = decisions.confusion_at(histograms(y, shares), threshold)
        assert found is not None
        assert found.tolist() == expected
    assert decisions.confusion_at(histograms(y, shares), {"index": index, "value": 0.3}) is None


def test_deciding() -> None:
    """At the threshold itself the class is decided for; without one, the likeliest."""
    shares = torch.tensor([[0.7, 0.3], [0.71, 0.29], [0.2, 0.8]])
    assert decisions.decide(shares, 0.3).tolist() == [1, 0, 1]
    assert decisions.decide(shares, {"index": 0, "value": 0.7}).tolist() == [0, 0, 1]
    assert decisions.decide(shares).tolist() == [0, 0, 1]
    assert decisions.decide(shares, {"index": 1, "value": 0.5}).tolist() == decisions.decide(shares).tolist()
    with pytest.raises(AtollError, match="between two classes, and there are 3"):
        decisions.decide(torch.ones(1, 3), 0.5)


@pytest.mark.parametrize("rare", [0, 1])
def test_the_rarer_class_is_the_one_to_find(rare: int) -> None:
    """Whatever its name, unless one is named; of equally frequent ones the second."""
    y, shares = items(1)
    y, shares = (y, shares) if rare else (1 - y, shares.flip(1))
    counts = histograms(y, shares)
    assert decisions.chosen(decisions.Rule("f1"), counts) == (rare, decisions.choose(counts[rare], "f1"))
    assert decisions.chosen(decisions.Rule("f1", 1 - rare), counts)[0] == 1 - rare
    assert decisions.chosen(decisions.Rule("f1"), torch.ones(2, 2, BINS))[0] == 1


@pytest.mark.parametrize("missing", [0, 1])
def test_no_threshold_without_both_classes(missing: int) -> None:
    """Not even with noised counts below 0."""
    counts = torch.ones(2, BINS)
    counts[missing] = -0.5
    assert decisions.choose(counts, "f1") is None


@pytest.mark.parametrize(
    ("text", "classes", "sentence"),
    [
        ("f2", 2, "did you mean 'f1'"),
        ("1.5", 2, "must be strictly between 0 and 1"),
        ("nan", 2, "must be strictly between 0 and 1"),
        ("f1[sic]", 2, "did you mean 'sick'"),
        ("youden", 3, "decides between two classes and there are 3; leave it out"),
    ],
)
def test_what_is_not_a_threshold_is_one_sentence(text: str, classes: int, sentence: str) -> None:
    """It says what, and what to do."""
    with pytest.raises(AtollError, match=sentence):
        decisions.rule_of(text, ("well", "sick"), classes)
    assert decisions.rule_of("f1[well]", ("well", "sick"), 2) == decisions.Rule("f1", 0)
    assert decisions.rule_of("0.3[well]", ("well", "sick"), 2) == decisions.Rule("given", 0, 0.3)
    assert decisions.rule_of("0.3", ("well", "sick"), 2) == decisions.Rule("given", 1, 0.3)
    assert decisions.rule_of("none", (), 9) is None
