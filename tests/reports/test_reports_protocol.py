"""Reports say what their numbers mean: whose model, how averaged, of which round; and compare only what means the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import reports
from atoll.reports import partitions, table, titles
from atoll.reports.figures.cost import cost
from atoll.reports.figures.curves import learning
from atoll.reports.figures.ranks import ranks_of, why_unranked
from atoll.reports.runs import Row, by_data, gather, grouped, items_of_rows

SMALL: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 3, "nodes": 60, "seeds": 2}


@pytest.fixture(scope="module")
def worded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data in five comparisons: other averages, noise in the labels, the last round."""
    home = tmp_path_factory.mktemp("worded")
    ways: dict[str, dict[str, Any]] = {
        "pooled": {},
        "mean": {"average": "mean"},
        "worst": {"average": "worst"},
        "noisy": {"noise.label_noise": 0.3},
        "last": {"select_by": "last"},
    }
    for name, settings in ways.items():
        atoll.compare("local,fedavg", rounds=2, out=home / name, **SMALL, **settings)
    return home


def rows_of(home: Path, *names: str) -> list[Row]:
    """The rows of some of the comparisons."""
    return grouped(gather([home / name for name in names]))


def test_majority_accuracy_needs_pooled_counts(worded: Path) -> None:
    """It is a difference of pooled counts: from means over parties it could be above 100 %, so there is no such column."""
    for name in ("mean", "worst", "noisy"):
        rows = rows_of(worded, name)
        assert [partitions.majority(row) for row in rows] == [None, None]
        assert "majority %" not in [column.heading for column in table.table(rows, partitions.majority).columns]
    for row in rows_of(worded, "pooled"):
        found = partitions.majority(row)
        assert found is not None
        assert 0 <= found[0] <= 1


def test_tables_say_what_their_numbers_mean(worded: Path) -> None:
    """Markdown and LaTeX have no page around them: the caption holds the words, and names the round that was taken."""
    best = table.table(rows_of(worded, "mean"), partitions.majority)
    last = table.table(rows_of(worded, "last"), partitions.majority)
    for text in (table.markdown(best), table.latex(best)):
        assert "Test metrics at the round with the best validation score" in text
        assert "Evaluation global (fedavg) and personal (local), average mean, best round by validation loss." in text
    for text in (table.markdown(last), table.latex(last)):
        assert "Test metrics at the last round:" in text
        assert "average pooled, last round." in text
        assert "validation" not in text


def test_the_headline_names_a_winner_of_one_table_only(worded: Path) -> None:
    """The pooled accuracy of one row is not higher than the worst party's of another."""
    assert "has the highest mean test accuracy" in titles.summary(rows_of(worded, "pooled"))
    assert titles.summary(rows_of(worded, "pooled", "worst")) == ""
    assert titles.summary(rows_of(worded, "pooled", "noisy")) == ""
    assert titles.summary(grouped(gather([worded / "last" / "fedavg-0"]))).endswith("at round 2 of 2, the last.")


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (("mean", "worst"), "average is mean and worst"),
        (("pooled", "last"), "select_by is last and loss"),
        (("pooled", "noisy"), "the same data and differ in noise alone"),
    ],
)
def test_one_data_in_several_tables_is_not_several_datasets(worded: Path, names: tuple[str, ...], reason: str) -> None:
    """Ranks over them would look like evidence from more datasets than there are; a note says why there are none."""
    rows = rows_of(worded, *names)
    assert len(by_data(rows)) == 2
    assert ranks_of(rows) is None
    assert reason in why_unranked(rows)
    assert any(reason in note for note in reports.make([worded / name for name in names], embeddings="none").notes)
    assert why_unranked(rows_of(worded, names[0])) == ""


def test_other_graphs_with_the_same_noise_are_ranked(tmp_path: Path) -> None:
    """Noise that all datasets have is no obstacle."""
    for seed in (0, 1):
        settings = SMALL | {"noise.label_noise": 0.3, "graph_seed": seed}
        atoll.compare("local,fedavg", rounds=1, out=tmp_path / str(seed), **settings)
    rows = grouped(gather([tmp_path]))
    assert ranks_of(rows) is not None
    assert why_unranked(rows) == ""


def test_columns_of_another_average_say_so(worded: Path) -> None:
    """AUC, Brier score and the like are known of all nodes together only; accuracy and F1 have the average of the table."""
    plain = [column.heading for column in table.table(rows_of(worded, "pooled"), partitions.majority).columns]
    mean = [column.heading for column in table.table(rows_of(worded, "mean"), partitions.majority).columns]
    assert {"AUC %", "Brier", "ECE %", "weighted F1 %"} <= set(plain)
    assert {"AUC (pooled) %", "Brier (pooled)", "ECE (pooled) %", "weighted F1 (pooled) %"} <= set(mean)
    assert {"accuracy %", "minority %", "macro F1 %"} <= set(plain) & set(mean)
    assert not any("pooled" in heading for heading in plain)
    accuracy = table.table(rows_of(worded, "mean"), partitions.majority).columns[1].cells[0].value
    of_parties = [run.result.averages["mean"]["accuracy"] for run in rows_of(worded, "mean")[0].runs]
    assert accuracy == pytest.approx(100 * sum(of_parties) / 2)


def test_unequal_budgets_and_seeds_are_named(worded: Path, tmp_path: Path) -> None:
    """Rows of one data stand in one table; where one could train longer or has other seeds, the caption says so."""
    budget = {"rounds": 3, "patience": 1, "participation": 0.5, "target_accuracy": 0.75}
    atoll.compare("fedprox", out=tmp_path / "more", **(SMALL | budget | {"seeds": [5, 6, 7]}))
    rows = grouped(gather([worded / "pooled", tmp_path / "more"]))
    (made,) = table.tables(rows, partitions.majority)
    patience = rows[0].runs[0].config.run.patience
    assert patience != 1
    for sentence in (
        "Budgets differ: rounds is 2 (fedavg, local) and 3 (fedprox).",
        f"Budgets differ: patience is {patience} (fedavg, local) and 1 (fedprox).",
        "Budgets differ: participation is 1 (fedavg, local) and 0.5 (fedprox).",
        "Budgets differ: target_accuracy is 0 (fedavg, local) and 0.75 (fedprox).",
        "Seeds differ: 0, 1 (fedavg, local) and 5 to 7 (fedprox).",
    ):
        assert sentence in table.markdown(made)
    (equal,) = table.tables(rows_of(worded, "pooled"), partitions.majority)
    assert "differ" not in equal.caption


def test_items_are_called_what_they_are(tmp_path: Path) -> None:
    """Pairs of nodes are not nodes, and a metric's name keeps its capitals; with rows of both kinds, they are items."""
    for name, task in (("pairs", "link-prediction"), ("nodes", "node-classification")):
        atoll.run("fedavg", dataset="csbm", nodes=80, partition="random", parties=2, rounds=2, task=task, out=tmp_path / name)
    both = rows_of(tmp_path, "pairs", "nodes")
    drawn = learning(both)
    assert any(one.title == "Test accuracy by round" and one.caption.startswith("Test items.") for one in drawn)
    assert "AUC by round" in [one.title for one in learning(both[:1])]
    assert [items_of_rows(rows) for rows in (both[:1], both[1:], both)] == ["pairs", "nodes", "items"]
    assert all(one.caption.startswith("Test pairs.") for one in cost(both[:1]) if one.kind == "lines")
