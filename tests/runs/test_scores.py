"""What select_by names is what comparisons and summaries show, of test nodes, beside that of validation nodes."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.cli import console
from atoll.runs import config
from atoll.runs.comparison_text import comparison_cells
from atoll.runs.metrics import metric_format
from atoll.runs.scores import score_of, selected_metric
from atoll.runs.summary import facts

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 120, "classes": 2, "partition": "random", "parties": 2, "rounds": 3}


@pytest.mark.parametrize(
    ("select_by", "expected"),
    [("loss", ""), ("log_loss", ""), ("score", ""), ("accuracy", ""), ("auc", "auc"), ("recall[1]", "recall[1]")],
)
def test_the_selecting_metric(select_by: str, expected: str) -> None:
    """The loss and the task's own score are what was always shown."""
    assert selected_metric(config.resolve("fedavg", values={"select_by": select_by})) == expected


def test_scores_are_those_of_the_detail() -> None:
    """A round's own metrics first, then the detail's, overall or of one class by name or number; None for what is unknown."""
    result = atoll.run("fedavg", **TINY, select_by="auc")
    assert score_of(result, "accuracy") == result.metrics["accuracy"]
    assert score_of(result, "auc") == result.detail["overall"]["auc"] == score_of(result, "auc[1]")
    result.detail["classes"] = ["healthy", "sick"]
    result.detail["by_class"] = {"healthy": {"recall": 0.9}, "sick": {"recall": 0.25}}
    assert score_of(result, "recall[sick]") == score_of(result, "recall[1]") == 0.25
    assert score_of(result, "recall[sikc]") is score_of(result, "precision[sick]") is score_of(result, "nothing") is None


def test_a_comparison_shows_what_it_selects_by() -> None:
    """Test and validation, with the differences in the same metric; the accuracy where the loss selects."""
    compared = atoll.compare("local,fedavg", **TINY, seeds=2, select_by="auc[1]")
    head, first, _ = comparison_cells(compared.summary())
    assert head[1:3] == ["test AUC of 1", "validation AUC of 1"]
    own = [score_of(result, "auc[1]") for result in compared.results["local"]]
    assert first[1].startswith(f"{50 * sum(value for value in own if value is not None):.2f} ± ")
    validation = [result.metrics["val_auc[1]"] for result in compared.results["local"]]
    assert first[2].startswith(f"{50 * sum(validation):.2f} ± ")
    assert compared.metric == "auc[1]"
    (difference,) = compared.differences()
    other = [score_of(result, "auc[1]") for result in compared.results["fedavg"]]
    expected = sum(b - a for a, b in zip(own, other, strict=True) if a is not None and b is not None) / 2
    assert difference.mean == pytest.approx(expected)
    assert str(console.difference_table([difference], compared.metric).title).startswith("AUC of 1 minus that of local")
    plain = atoll.compare("local", **TINY, seeds=1)
    assert plain.metric == "accuracy"
    assert comparison_cells(plain.summary())[0][1:3] == ["accuracy", "minority"]


def test_a_summary_says_what_the_threshold_decides() -> None:
    """The selecting metric comes first; accuracy, recall and precision at the threshold are those of the detail."""
    result = atoll.run("fedavg", **TINY, select_by="auc", threshold="f1")
    lines = facts(result)
    assert lines[0] == (
        "test AUC",
        f"{100 * result.detail['overall']['auc']:.2f} %",
        f"validation {100 * result.metrics['val_auc']:.2f} %",
    )
    index = [label for label, _, _ in lines].index("threshold")
    decided = result.detail["by_class"]["1"]
    assert [line[1] for line in lines[index + 1 : index + 4]] == [
        f"{100 * value:.2f} %" for value in (result.detail["overall"]["accuracy"], decided["recall"], decided["precision"])
    ]
    assert "validation threshold" not in [label for label, _, _ in lines]
    assert all(len(label) <= 24 for label, _, _ in lines)


def test_metrics_of_one_class_have_words() -> None:
    """As those of all classes have."""
    form = metric_format("val_recall[infected]")
    assert (form.words, form.percent) == ("validation recall of infected", True)
    assert metric_format("own[thing]").words == "own[thing]"
