"""Figures and tables of a report as data: what must be there, for which rows, in which colors."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

import atoll
from atoll.reports import titles
from atoll.reports.detail import RowDetail, row_detail
from atoll.reports.figures import KINDS, Figure, thin
from atoll.reports.figures.classes import classes
from atoll.reports.figures.cost import cost
from atoll.reports.figures.curves import learning
from atoll.reports.figures.figure import MAX_POINTS
from atoll.reports.figures.parties import groups, parties
from atoll.reports.party_table import party_table
from atoll.reports.runs import Row, StoredRun, gather, grouped, read_run
from atoll.reports.settings_table import common, differing
from atoll.runs import runner
from clinics import CLINICS, write
from small import small
from stored import DETAIL, rewrite_result, stored


def history(accuracy: float, *, rounds: int = 4, train: bool = True) -> list[dict[str, Any]]:
    """A history with losses that fall until the third round."""
    return [
        {
            "round": number,
            **({"train_loss": 1.0 / number} if train else {}),
            "val_loss": 1.0 + abs(number - 3),
            "val_accuracy": accuracy,
            "loss": 2.0 + abs(number - 3),
            "accuracy": accuracy + number / 100,
            "up": 1e6,
            "down": 2e6,
            "seconds": float(number),
        }
        for number in range(1, rounds + 1)
    ]


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    """Figures by name, which is unique."""
    assert len({figure.name for figure in figures}) == len(figures)
    return {figure.name: figure for figure in figures}


def test_one_row_has_all_splits_in_one_figure_beside_the_score() -> None:
    """Training, validation and test loss, each in the color of its split, with a dot at the best round."""
    row = Row("fedavg", [stored("a", small("fedavg"), history(0.5))])
    figures = by_name(learning([row]))
    assert list(figures) == ["accuracy-round", "loss-round"]
    loss = figures["loss-round"]
    assert [(series.name, series.color) for series in loss.series] == [
        ("training", KINDS),
        ("validation", KINDS + 1),
        ("test", KINDS + 2),
    ]
    assert [series.mark for series in loss.series] == [(3, 1 / 3), (3, 1.0), (3, 2.0)]
    assert not loss.percent
    assert figures["accuracy-round"].percent
    assert [series.name for series in figures["accuracy-round"].series] == ["validation", "test"]


def test_histories_without_a_training_loss_have_the_others() -> None:
    """Earlier runs do not have it."""
    row = Row("fedavg", [stored("a", small("fedavg"), history(0.5, train=False))])
    assert [series.name for series in by_name(learning([row]))["loss-round"].series] == ["validation", "test"]


def test_several_rows_have_a_figure_per_split_and_keep_their_colors() -> None:
    """Also where a row is not in a figure: the next keeps its own color."""
    config = small("fedavg")
    rows = [
        Row("a", [stored("a", config, history(0.5, train=False))]),
        Row("b", [stored("b", config, history(0.6)), stored("c", config, history(0.8))]),
    ]
    figures = by_name(learning(rows))
    assert list(figures) == ["accuracy-round", "loss-round", "validation-loss-round", "training-loss-round"]
    assert [(series.name, series.color) for series in figures["loss-round"].series] == [("a", 0), ("b", 1)]
    assert [(series.name, series.color) for series in figures["training-loss-round"].series] == [("b", 1)]
    b = figures["accuracy-round"].series[1]
    assert b.y[0] == pytest.approx(0.71)
    assert b.std is not None
    assert b.std[0] == pytest.approx(stdev([0.61, 0.81]))
    assert b.mark is None
    assert "standard deviation over the seeds" in figures["accuracy-round"].caption


def test_losses_far_apart_are_drawn_on_a_log_scale() -> None:
    """Else one diverging row would flatten all others."""
    config, apart = small("fedavg"), history(0.5)
    apart[0]["loss"] = 300.0
    figures = by_name(learning([Row("a", [stored("a", config, apart)])]))
    assert figures["loss-round"].log_y
    assert not by_name(learning([Row("a", [stored("a", config, history(0.5))])]))["loss-round"].log_y


def test_cost_is_the_score_against_what_it_takes() -> None:
    """Megabytes of both directions and seconds; nothing where nothing is sent."""
    row = Row("a", [stored("a", small("fedavg"), history(0.5))])
    figures = by_name(cost([row]))
    assert list(figures["accuracy-megabytes"].series[0].x) == [3, 6, 9, 12]
    assert list(figures["accuracy-seconds"].series[0].x) == [1, 2, 3, 4]
    silent = [line | {"up": 0, "down": 0} for line in history(0.5)]
    assert "accuracy-megabytes" not in by_name(cost([Row("a", [stored("a", small("fedavg"), silent)])]))


def test_long_curves_are_thinned() -> None:
    """With the first and the last point."""
    points = thin([(float(x), 0.0, 0.0) for x in range(5000)])
    assert len(points) <= MAX_POINTS
    assert (points[0][0], points[-1][0]) == (0.0, 4999.0)


@pytest.fixture
def detailed(runs: Path, tmp_path: Path) -> Path:
    """Two rows whose results have a detail: fedavg with two seeds, local with one."""
    for name in ("fedavg-0", "fedavg-1", "local-0"):
        shutil.copytree(runs / name, tmp_path / name)
        rewrite_result(tmp_path / name, detail=DETAIL, names=["north", "south", "west"])
    return tmp_path


def details_of(rows: list[Row]) -> list[RowDetail | None]:
    """The rows' details."""
    found = [row_detail(row) for row in rows]
    return [detail if isinstance(detail, RowDetail) else None for detail in found]


def test_classes_of_rows(detailed: Path) -> None:
    """F1 side by side, one calibration, and a matrix with a table for each row; counts of all seeds together."""
    rows = grouped(gather([detailed]))
    figures = by_name(classes(rows, details_of(rows)))
    assert list(figures) == ["classes", "calibration", "confusion-0", "confusion-1"]
    assert [(series.name, series.color) for series in figures["classes"].series] == [("fedavg", 0), ("local", 1)]
    assert list(figures["classes"].series[0].x) == ["healthy", "sick"]
    assert figures["classes"].series[0].y == [pytest.approx(16 / 19), pytest.approx(8 / 11)]
    matrix = figures["confusion-0"].heat
    assert matrix is not None
    assert matrix.share == [[pytest.approx(0.8), pytest.approx(0.2)], [pytest.approx(0.2), pytest.approx(0.8)]]
    assert matrix.texts == [["16 nodes", "4 nodes"], ["2 nodes", "8 nodes"]]
    table = figures["confusion-0"].table
    assert table is not None
    assert table.headings == ["class", "test nodes", "precision %", "recall %", "F1 %", "AUC %", "AP %"]
    assert table.rows[1] == ["sick", "5", "66.7 ± 0.0", "80.0 ± 0.0", "72.7 ± 0.0", "90.0 ± 0.0", "–"]
    assert "over 2 seeds" in table.caption
    single = figures["confusion-1"].table
    assert single is not None
    assert single.rows[1][2] == "66.7"


def test_one_row_shows_precision_recall_and_f1(detailed: Path) -> None:
    """In colors that are not those of rows."""
    rows = grouped(gather([detailed / "local-0"]))
    figures = by_name(classes(rows, details_of(rows)))
    assert [series.name for series in figures["classes"].series] == ["precision", "recall", "F1"]
    assert all(series.color >= KINDS for series in figures["classes"].series)
    assert "confusion" in figures


def test_calibration_is_accuracy_by_confidence(detailed: Path) -> None:
    """A point per bin that has nodes, sized by how many; the error in the caption."""
    rows = grouped(gather([detailed / "local-0"]))
    figure = by_name(classes(rows, details_of(rows)))["calibration"]
    (series,) = figure.series
    assert list(series.x) == [pytest.approx(0.7), pytest.approx(0.9)]
    assert list(series.y) == [pytest.approx(0.6), pytest.approx(0.9)]
    assert series.size == [0.5, 1.0]
    assert "local 3.3 %" in figure.caption  # |3 − 3.5| + |9 − 9| of 15


def test_a_threshold_is_named(detailed: Path) -> None:
    """Decisions by a threshold give another matrix than those by the likeliest class."""
    threshold = {"class": "sick", "index": 1, "value": 0.3125, "by": "f1"}
    rewrite_result(detailed / "local-0", detail=DETAIL | {"threshold": threshold})
    rows = grouped(gather([detailed / "local-0"]))
    caption = by_name(classes(rows, details_of(rows)))["confusion"].caption
    assert "sick is predicted from a probability of 0.312 on (best f1 on validation nodes)." in caption


def test_no_detail_no_figure(runs: Path) -> None:
    """No empty figures."""
    rows = grouped(gather([runs]))
    assert classes(rows, [None, None]) == []


def test_rows_with_other_classes_are_not_in_one_figure(detailed: Path) -> None:
    """Classes of different data do not belong side by side."""
    other = DETAIL | {"classes": ["a", "b"], "by_class": {"a": {"f1": 0.5}, "b": {"f1": 0.6}}}
    rewrite_result(detailed / "local-0", detail=other)
    rows = grouped(gather([detailed]))
    figures = by_name(classes(rows, details_of(rows)))
    assert [list(figures[name].series[0].x) for name in ("classes-0", "classes-1")] == [["healthy", "sick"], ["a", "b"]]


def test_parties_have_their_names_everywhere(detailed: Path) -> None:
    """On the axis of the bars, at the points and in the table."""
    rows = grouped(gather([detailed / "fedavg-0", detailed / "fedavg-1"]))
    figures = by_name(parties(rows))
    assert list(figures["party-accuracy"].series[0].x) == ["north", "south", "west"]
    assert set(figures["party-homophily"].series[0].texts or ()) == {"north", "south", "west"}
    assert "party-size" not in figures  # all have 20 nodes: there is nothing to see
    (table,) = party_table(rows, [None])
    assert [row[0] for row in table.rows] == ["north", "south", "west"]
    assert table.headings[:4] == ["party", "nodes", "edges", "training"]
    assert "accuracy %" in table.headings
    assert "over 2 seeds" in table.caption


def test_the_party_table_of_several_rows_compares_their_accuracy(runs: Path) -> None:
    """A column per row; parties without a name are numbered."""
    rows = grouped(gather([runs]))
    (table,) = party_table(rows, [None, None])
    assert list(table.headings[-2:]) == ["fedavg", "local"]
    assert [row[0] for row in table.rows] == ["party 0", "party 1", "party 2"]
    nodes = [int(row[1]) for row in table.rows]
    assert sum(nodes) == 60
    expected = [run.metrics["party_accuracy"][0] for run in rows[0].runs]
    assert table.rows[0][-2].startswith(f"{100 * sum(expected) / 2:.1f} ± ")


def test_metrics_of_parties_in_the_detail_are_in_the_table(runs: Path, tmp_path: Path) -> None:
    """Macro F1 and AUC, which the history does not have by party."""
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    listed = {name: {"accuracy": 0.5, "macro_f1": 0.25, "auc": 0.75} for name in "abc"}
    rewrite_result(tmp_path / "run", detail=DETAIL | {"parties": listed})
    rows = grouped([read_run(tmp_path / "run")])
    (table,) = party_table(rows, details_of(rows))
    assert {"macro F1 %", "AUC %"} <= set(table.headings)
    assert table.rows[0][list(table.headings).index("AUC %")] == "75.0"


@pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")
def test_the_one_party_of_a_centralized_run_is_not_a_folder(tmp_path: Path) -> None:
    """Folders have names, but all their nodes at one party have none: its row is not in the table of the folders' parties."""
    write(tmp_path / "data")
    for algorithm in ("fedavg", "centralized"):
        atoll.run(algorithm, dataset=tmp_path / "data", partition="files", rounds=1, out=tmp_path / "runs" / algorithm)
    rows = grouped(gather([tmp_path / "runs"]))
    (table,) = party_table(rows, details_of(rows))
    assert [row[0] for row in table.rows] == list(CLINICS)
    assert "accuracy %" in table.headings
    assert set(by_name(parties(rows))["party-accuracy"].series[0].x) >= set(CLINICS)


def test_a_lone_bar_is_not_a_figure(runs: Path) -> None:
    """Minority accuracy of one row, where the majority's is not known, is in the table already."""
    rows = grouped(gather([runs / "fedavg-0"]))
    assert groups(rows, [None]) == []
    assert len(groups(rows, [(0.5, None)])) == 1


def test_only_settings_that_differ_are_in_the_table(tmp_path: Path) -> None:
    """Settings by run, whichever way round is shorter; what is common is listed apart; nothing is in both."""
    for name, values in {"a": {"lr": 0.1}, "b": {"lr": 0.2, "model": "mlp"}}.items():
        runner.run(small("local", rounds=1, **values), out=tmp_path / name)
    rows = grouped(gather([tmp_path]))
    table = differing(rows)
    assert table is not None
    assert table.headings == ["setting", "local gcn lr=0.1", "local mlp lr=0.2"]
    assert [list(row) for row in table.rows] == [["model", "gcn", "mlp"], ["lr", "0.1", "0.2"]]
    shared = {row[0]: row[1] for row in common(rows).rows}
    assert shared["run.rounds"] == "1"
    assert shared["settings.bias"] in ("true", "false")
    assert not {"settings.lr", "settings.model", "seed"} & shared.keys()
    runner.run(small("local", rounds=1, lr=0.3), out=tmp_path / "c")
    wide = differing(grouped(gather([tmp_path])))
    assert wide is not None
    assert wide.headings == ["run", "model", "lr"]
    assert differing(rows[:1]) is None


def test_settings_that_a_run_does_not_have(runs: Path) -> None:
    """Another algorithm's are a dash."""
    table = differing(grouped(gather([runs])))
    assert table is not None
    cells = {row[0]: list(row[1:]) for row in table.rows}
    assert cells["algorithm"] == ["fedavg", "local"]
    assert ["train", "–"] in cells.values()
    assert "–" in table.caption


def test_titles_say_what_and_where(runs: Path) -> None:
    """Algorithms and data; parties, scenario, rounds and seeds; the best row with its deviation."""
    rows = grouped(gather([runs]))
    assert titles.title(rows) == "fedavg and local on csbm"
    first, _, words = titles.subtitle(rows).rpartition(" · ")
    assert first == "3 parties · random partition · horizontal · node classification · 4 rounds · 2 seeds"
    assert words.endswith(", average pooled, best round by validation loss")
    best = max(rows, key=lambda row: row.mean("accuracy") or (0.0, None))
    mean, std = best.mean("accuracy") or (0.0, None)
    assert std is not None
    assert titles.summary(rows) == f"{best.label} has the highest mean test accuracy: {100 * mean:.2f} ± {100 * std:.2f} %."
    alone = [Row("fedavg", [rows[0].runs[0]])]
    accuracy, result = 100 * rows[0].runs[0].metrics["accuracy"], rows[0].runs[0].result
    assert titles.summary(alone) == (
        f"Test accuracy: {accuracy:.2f} % at round {result.best_round} of {result.rounds}, the best by validation."
    )
    other = StoredRun(Path("x"), "", replace(rows[1].runs[0].result, config=replace(rows[1].runs[0].config, dataset="other")))
    assert titles.summary([rows[0], Row("local other", [other])]) == ""
    many = [Row(f"fedavg lr={number}", rows[0].runs) for number in range(3)]
    assert titles.title(many) == "fedavg on csbm: 3 configurations"
