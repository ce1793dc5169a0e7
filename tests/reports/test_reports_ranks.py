"""Reports over several data: one table for each, and the critical-difference picture of the methods that all have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import reports
from atoll.reports import matplotlib, table
from atoll.reports.figures.ranks import ranks_of, sketch
from atoll.reports.plotly import plot
from atoll.reports.runs import by_data, gather, grouped
from atoll.runs.ranks import rank

SMALL: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 1, "seeds": 2}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[atoll.Comparison]]:
    """Two comparisons that differ in the graph, one with other learning rates; and local alone on another split."""
    home = tmp_path_factory.mktemp("several")
    compared = [
        atoll.compare("local,fedavg,fedprox", graph_seed=seed, lr=lr, out=home / f"graph-{seed}", **SMALL)
        for seed, lr in ((0, 0.01), (1, 0.1))
    ]
    return home, compared


def test_one_table_for_each_data(several: tuple[Path, list[atoll.Comparison]], tmp_path: Path) -> None:
    """Rows with different graphs, splits or partitions never share one, so that each has its own best."""
    home, _ = several
    atoll.compare("local", split="per_class", out=tmp_path / "split", **SMALL)
    rows = grouped(gather([home, tmp_path]))
    made = table.tables(rows, lambda _: None)
    assert [len(each.labels) for each in made] == [3, 3, 1]
    assert sorted(label for each in made for label in each.labels) == sorted(row.label for row in rows)
    assert sorted(color for each in made for color in each.colors) == list(range(7))
    for each, group in zip(made, by_data(rows), strict=True):
        assert len({row.runs[0].config.split.split for row in group}) == 1
        assert each.caption.startswith("csbm, random (")
    report = reports.make([home, tmp_path], embeddings="none")
    reports.write(report, html=tmp_path / "r.html", markdown=tmp_path / "r.md", latex=tmp_path / "r.tex")
    assert (tmp_path / "r.html").read_text().count("<table class=results>") == 3
    assert (tmp_path / "r.md").read_text().count("|---") >= 3
    assert (tmp_path / "r.tex").read_text().count("\\begin{table}") == 3


def test_graphs_given_as_objects_are_told_apart(tmp_path: Path) -> None:
    """They have no name; a row that pools all nodes joins the only one that there is."""
    arguments = {"partition": "random", "parties": 2, "rounds": 1, "seeds": 1}
    for seed in (0, 1):
        graph = atoll.load("csbm", nodes=60, graph_seed=seed)
        atoll.compare("local,fedavg,centralized", dataset=graph, out=tmp_path / str(seed), **arguments)
    assert [len(each) for each in by_data(grouped(gather([tmp_path / "0"])))] == [3]
    for group in by_data(grouped(gather([tmp_path / "0" / "local-0", tmp_path / "1" / "fedavg-0"]))):
        assert len(group) == 1


def test_ranks_are_those_of_the_comparisons(several: tuple[Path, list[atoll.Comparison]]) -> None:
    """Read back from folders: the same numbers; methods keep their name where their settings differ between data."""
    home, compared = several
    found = ranks_of(grouped(gather([home])))
    wanted = atoll.mean_ranks(compared, ["csbm, random (1)", "csbm, random (2)"])
    assert found is not None
    assert dict(zip(found.rows, found.mean, strict=True)) == dict(zip(wanted.rows, wanted.mean, strict=True))
    assert found.critical_difference == wanted.critical_difference
    assert ranks_of(grouped(gather([home / "graph-0"]))) is None
    assert ranks_of(grouped(gather([home / "graph-0", home / "graph-1" / "local-0"]))) is None


def test_the_picture(several: tuple[Path, list[atoll.Comparison]], tmp_path: Path) -> None:
    """Names at their mean ranks, a bar for each group, and the critical difference to scale; on the page and for a paper."""
    values = {"a": [9.0] * 12, "b": [8.0] * 12, "c": [1.0, 2.0] * 6, "d": [2.0, 1.0] * 6}
    drawn = sketch(ranks := rank(values, [str(number) for number in range(12)], "accuracy", higher_is_better=True))
    assert ranks.groups == (("a", "b"), ("c", "d"))
    wide = [(line.x, line.to_x) for line in drawn.lines if line.wide]
    assert wide[:2] == [pytest.approx((0.97, 2.03)), pytest.approx((3.47, 3.53))]
    assert wide[2] == pytest.approx((1.0, 1.0 + ranks.critical_difference))
    assert {text.text for text in drawn.texts} >= {"a (1.00)", "b (2.00)", "c (3.50)", "d (3.50)"}
    home, _ = several
    report = reports.make([home], embeddings="none")
    figure = next(each for each in report.figures if each.name == "ranks")
    assert "Friedman's test: χ² =" in figure.caption
    assert matplotlib.draw(figure, "svg").startswith(b"<?xml")
    traces = plot(figure)["data"]
    assert sum(trace["mode"] == "text" for trace in traces) == 3
    low, high = plot(figure)["layout"]["xaxis"]["range"]
    assert low < 1 < 3 < high
    reports.write(report, html=tmp_path / "r.html")
    assert "Mean ranks and critical difference" in (tmp_path / "r.html").read_text()


def test_trials_of_tuning_are_not_runs(tmp_path: Path) -> None:
    """A comparison that is still being tuned has folders of trials."""
    atoll.compare("local", out=tmp_path, **SMALL)
    (tmp_path / "tuning" / "local" / "running" / "0-1000").mkdir(parents=True)
    (tmp_path / "tuning" / "local" / "running" / "0-1000" / "config.toml").write_text("")
    assert len(gather([tmp_path])) == 2
