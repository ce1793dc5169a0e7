"""`print` of results and comparisons: what people want to know, on a screen of 80 columns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.runs import runner
from atoll.runs.comparison import Comparison
from atoll.tasks import TASKS
from small import ALGORITHMS, small

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 80, "partition": "random", "parties": 2, "rounds": 2}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_result_fits_a_screen(algorithm: str, tmp_path: Path) -> None:
    """At most 20 lines of 80 columns, with what was run, how well, in which round, at what cost and where it is."""
    out = tmp_path / "run"
    result = runner.run(small(algorithm, rounds=1), out=out)
    lines = str(replace(result, folder=Path("runs/a"))).splitlines()
    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"{algorithm} on csbm: ")
    parts = [("test accuracy", f"{100 * result.metrics['accuracy']:.2f} %"), ("best round", "1 of 1"), ("written to", "runs/a")]
    parts += [("bytes", f"{result.bytes['up'] / 1e6:.2f} MB up"), ("seconds", ""), ("training loss", "")]
    for label, value in parts:
        assert any(line.startswith(label) and value in line for line in lines), label
    assert str(atoll.read(out)) == str(result)
    assert len(repr(result)) <= 120
    assert repr(result).startswith(f"Result({algorithm} on csbm, ")


def test_what_went_otherwise_is_said() -> None:
    """Stopped early, nothing evaluated, noise, missing parties, many warnings, still going."""
    early = atoll.run("local", **TINY | {"rounds": 9}, evaluate_every=9, on_round=lambda row: False)
    assert "0 of 1, stopped early" in str(early)
    assert "no round was evaluated" in str(early)
    assert repr(early) == "Result(local on csbm, 2 parties, best round 0 of 1)"
    noised = atoll.run("fedavg", **TINY, **{"dp.verb": "fit", "dp.noise": 4.0})
    assert f"ε = {noised.last['epsilon']:.4g}" in str(noised)
    told = replace(noised, missing={"1": 2}, warnings=["a" * 70, "b " * 100, "c", "d"], finished=False, rounds=1)
    text = str(told)
    assert "party 1 in 2 of 1 round" in text
    assert "of 1 so far" in text
    assert "2 more warnings" in text
    assert max(map(len, text.splitlines())) <= 80 + 16  # a word that is too long is not broken


def test_a_comparison_is_a_table() -> None:
    """A row per algorithm, columns in line; before it is run, one line."""
    compared = atoll.compare("local,fedavg", **TINY, seeds=2)
    title, words, empty, head, *rows = str(compared).splitlines()
    assert title == "csbm, random, mean ± standard deviation (n − 1) over 2 seeds (%)"
    assert words == "evaluation personal (local) and global (fedavg), average pooled, best round by validation loss"
    assert not empty
    assert head.split() == ["accuracy", "minority", "MB", "up", "MB", "down", "seconds"]
    assert [row.split()[0] for row in rows] == ["local", "fedavg"]
    assert {len(row) for row in rows} == {len(head)}
    assert f"{100 * compared.summary()[1]['accuracy']:.2f} ±" in rows[1]
    assert repr(compared) == "Comparison(local, fedavg on csbm; 2 seeds)"
    damaged = atoll.compare("local", **TINY, seeds=1, **{"noise.label_noise": 0.25, "noise.edge_noise": 0.5})
    assert str(damaged).splitlines()[1].endswith("by validation loss; training graphs damaged: edge_noise=0.5, label_noise=0.25")
    assert str(Comparison(["local"])) == repr(Comparison(["local"])) == "Comparison(local; 5 seeds, not run)"


def test_labels_of_metrics_are_whole_and_the_selecting_one_is_among_them() -> None:
    """Of every task: no name is cut, and what selects the best round is shown, by the words of its row."""
    for task, score, by in (
        ("node-multilabel", "loss", "loss"),
        ("link-prediction", "auc", "AUC"),
        ("node-regression", "r2", "R²"),
    ):
        result = atoll.run("fedavg", **TINY | {"rounds": 1}, task=task, select_by=score)
        lines = str(result).splitlines()
        assert max(map(len, lines)) <= 80
        assert any(line.startswith(f"validation {by} ") for line in lines), task
        assert any(line.endswith(f"by validation {by}") for line in lines), task
        whole = {form.words for form in TASKS.find(task).headings.values()} | {"AP", "MRR"}
        shown = [line.split("  ")[0] for line in lines if line.startswith(("test ", "validation "))]
        assert {name.split(" ", 1)[1] for name in shown} <= whole


def test_a_run_without_validation_items_says_so() -> None:
    """The last round is the best one then, whatever metric would select."""
    result = atoll.run("fedavg", **TINY, split="random", train=0.6, val=0.0, test=0.4)
    assert "last: nothing validates" in str(result)
