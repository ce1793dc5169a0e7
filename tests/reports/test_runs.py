"""The runs of a report: rows over seeds, their labels and curves, and the names of data and parties."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import atoll
from atoll.reports import table, titles
from atoll.reports.runs import Row, gather, grouped, listed
from atoll.runs import runner
from atoll.runs.config import GIVEN
from small import small
from stored import stored


def test_runs_that_differ_only_in_seed_are_one_row(runs: Path) -> None:
    """Their metrics are mean and standard deviation; files beside the runs are passed over; a folder of runs is its runs."""
    rows = grouped(gather(sorted(runs.iterdir())))
    assert [(row.label, len(row.runs)) for row in rows] == [("fedavg", 2), ("local", 2)]
    values = [json.loads((runs / f"fedavg-{seed}" / "result.json").read_text())["metrics"]["accuracy"] for seed in (0, 1)]
    assert rows[0].mean("accuracy") == (pytest.approx(fmean(values)), pytest.approx(stdev(values)))
    assert [run.path for run in gather([runs])] == [run.path for row in rows for run in row.runs]


def test_rows_are_labeled_by_how_they_differ(tmp_path: Path) -> None:
    """The algorithm alone where that is enough; else the model and the settings that differ."""
    for name, values in {"a": {"lr": 0.1}, "b": {"lr": 0.2}, "c": {"lr": 0.1, "model": "mlp"}}.items():
        runner.run(small("local", rounds=1, **values), out=tmp_path / name)
    labels = [row.label for row in grouped(gather([tmp_path]))]
    assert labels == ["local gcn lr=0.1", "local gcn lr=0.2", "local mlp lr=0.1"]


def test_labels_name_the_noise_that_is_set(tmp_path: Path) -> None:
    """Not what noise is at its default because another row has none."""
    small: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 1}
    atoll.run("local", out=tmp_path / "a", **small)
    atoll.run("local", out=tmp_path / "b", **small, **{"noise.label_noise": 0.3})
    atoll.run("local", out=tmp_path / "c", **small, **{"dp.verb": "evaluate", "dp.noise": 2.0})
    labels = [row.label for row in grouped(gather([tmp_path]))]
    assert labels == ["local", "local label_noise=0.3", "local verb=evaluate noise=2.0"]


def test_labels_of_different_data_do_not_list_its_settings(tmp_path: Path) -> None:
    """The dataset's name says it; only rows on the same data are told apart by settings."""
    config = small("fedavg")
    other = replace(small("fedavg", degree=3), dataset="other")
    slow = small("fedavg", lr=0.5)
    rows = grouped([stored(str(number), one, HISTORY) for number, one in enumerate((config, other, slow))])
    lr = config.settings.lr  # type: ignore[attr-defined]
    assert [row.label for row in rows] == [f"fedavg csbm lr={lr}", "fedavg other", "fedavg csbm lr=0.5"]


def test_curves_are_means_as_far_as_all_seeds_went() -> None:
    """Against megabytes both directions add up; rounds without evaluation have no point; the shortest run ends the curve."""
    one = [{"round": 1, "up": 1e6, "down": 1e6, "accuracy": 0.2}, {"round": 2, "up": 1e6, "down": 0, "accuracy": 0.6}]
    other = [
        {"round": 1, "up": 3e6, "down": 1e6, "accuracy": 0.4},
        {"round": 2, "up": 1e6, "down": 0, "accuracy": None},
        {"round": 3, "up": 1e6, "down": 0, "accuracy": 0.9},
    ]
    config = small("fedavg")
    row = Row("both", [stored("a", config, one), stored("b", config, other)])
    assert row.curve("accuracy", "round") == [(1, pytest.approx(0.3), pytest.approx(stdev([0.2, 0.4])))]
    assert row.curve("accuracy", "megabytes")[0][0] == 3
    assert row.curve("accuracy", "simulated_seconds") == []
    assert "simulated s" not in [column.heading for column in table.table([row], lambda _: None).columns]
    slow = [{"round": 1, "up": 0, "down": 0, "simulated_seconds": 2.0, "accuracy": 0.1}] * 2
    linked = Row("linked", [stored("a", config, slow)])
    assert [x for x, _, _ in linked.curve("accuracy", "simulated_seconds")] == [2.0, 4.0]
    assert table.table([linked], lambda _: None).columns[-1].cells[0].value == 4.0


def test_metrics_of_parties_are_means_over_the_seeds_that_have_them() -> None:
    """None where a party has no test node in any seed; nothing where the seeds have different parties."""
    config = small("fedavg")
    first = [{"round": 1, "up": 0, "down": 0, "val_loss": 1.0, "party_accuracy": [0.5, None, None]}]
    second = [{"round": 1, "up": 0, "down": 0, "val_loss": 1.0, "party_accuracy": [0.7, 0.2, None]}]
    row = Row("two", [stored("a", config, first), stored("b", config, second)])
    assert row.party_means("party_accuracy") == [(pytest.approx(0.6), pytest.approx(stdev([0.5, 0.7]))), (0.2, None), None]
    shorter = [{"round": 1, "up": 0, "down": 0, "val_loss": 1.0, "party_accuracy": [0.7]}]
    assert Row("odd", [*row.runs, stored("c", config, shorter)]).party_means("party_accuracy") == []


HISTORY = [{"round": 1, "up": 0, "down": 0, "val_loss": 1.0, "accuracy": 0.5}]


def test_data_at_the_sites_is_called_by_their_names() -> None:
    """Never `given`: the sites' names, the folder's where there are none, and the last part of a path."""
    config = replace(small("fedavg"), dataset=GIVEN, engine="nvflare")
    banks = stored("runs/a", config, HISTORY, names=("bank-a", "bank-b"))
    assert banks.data_name == "bank-a and bank-b"
    assert titles.title([Row("fedavg", [banks])]) == "fedavg at bank-a and bank-b"
    many = stored("runs/a", config, HISTORY, names=tuple(f"s{number}" for number in range(9)))
    assert many.data_name == "s0, s1, s2, s3 and 5 more"
    assert stored("runs/objects", replace(config, engine="inprocess"), HISTORY).data_name == "objects"
    assert stored("runs/a", replace(config, dataset="/data/my graph"), HISTORY).data_name == "my graph"


def test_two_federations_are_not_two_seeds() -> None:
    """The same settings at other sites are another row, and the labels name the sites."""
    config = replace(small("fedavg"), dataset=GIVEN, engine="nvflare")
    rows = grouped([stored("a", config, HISTORY, names=("x", "y")), stored("b", config, HISTORY, names=("u", "v"))])
    assert [row.label for row in rows] == ["fedavg x and y", "fedavg u and v"]


def test_folders_with_the_same_name_are_told_apart() -> None:
    """The short name of a path is only used where it is unique."""
    config = small("fedavg")
    paths = [replace(config, dataset=path) for path in ("/a/graph", "/b/graph")]
    assert [row.label for row in grouped([stored("r", one, HISTORY) for one in paths])] == ["fedavg /a/graph", "fedavg /b/graph"]
    paths = [replace(config, dataset=path) for path in ("/a/one", "/b/two")]
    assert [row.label for row in grouped([stored("r", one, HISTORY) for one in paths])] == ["fedavg one", "fedavg two"]


def test_lists_of_words() -> None:
    """Commas and a last `and`."""
    assert [listed(words) for words in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
