"""The page: one file, safe from what it quotes, and in a real browser at every width."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from atoll import reports
from atoll.reports import page
from atoll.runs import runner
from atoll.runs.config import Config
from browser import CHROMIUM, Browser
from small import small
from small_graphs import graph_data, small_graphs
from small_links import small_links
from stored import rewrite_result

__all__ = ["graph_data"]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")


def figures_on(text: str) -> dict[str, Any]:
    """The figures of a page, as its script reads them."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    document: dict[str, Any] = json.loads(found[1])
    return document


def test_the_page_is_one_file_without_a_network(runs: Path, tmp_path: Path) -> None:
    """plotly.js is inside once; nothing is fetched; the configuration to run it again is there; no reload once all is over."""
    made = reports.make([runs], embeddings="none")
    reports.write(made, html=tmp_path / "deep" / "report.html")
    text = (tmp_path / "deep" / "report.html").read_text()
    own = text.replace(page.library(), "")
    assert text.count(page.library()) == 1
    assert not re.findall(r"(?:src|href)=['\"]?+(?!#|data:)", own)
    assert "algorithm = &quot;fedavg&quot;" in own
    assert "http-equiv=refresh" not in own
    assert [item.name for item in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_what_must_be_on_the_page(runs: Path) -> None:
    """Title, summary, every figure with its place, settings that differ, the others folded, and what ± means."""
    text = page.render(reports.make([runs], embeddings="none")).replace(page.library(), "")
    drawn = figures_on(text)
    for name in ("accuracy-round", "loss-round", "validation-loss-round", "classes", "calibration", "confusion-0", "confusion-1"):
        assert drawn[name]["data"], name
        assert f"id='f-{name}'" in text
        assert f"id='l-{name}'" in text
    assert drawn["loss-round"]["layout"]["yaxis"]["title"]["text"] == "loss"
    assert [entry["text"] for entry in drawn["loss-round"]["legend"]] == ["fedavg", "local"]
    assert "<h1>fedavg and local on csbm</h1>" in text
    assert "mean ± standard deviation (n − 1) over 2 seeds" in text
    order = [text.index(f"<section id={name}") for name in ("learning", "classes", "parties", "cost", "partition")]
    assert text.index('<section id="comparison">') < order[0]
    assert order == sorted(order)
    assert "Settings that differ" in text
    assert re.search(r"<details><summary>The settings that all runs share <small>\d+</small></summary>", text)
    assert "precision&nbsp;%" in text


def test_a_run_at_sites_is_titled_by_them(runs: Path, tmp_path: Path) -> None:
    """No `given` in the title; names on the axis; one sentence says what is not shown and why."""
    shutil.copytree(runs / "fedavg-0", tmp_path / "result")
    config = (tmp_path / "result" / "config.toml").read_text()
    config = config.replace('dataset = "csbm"', 'dataset = "given"').replace('engine = "inprocess"', 'engine = "nvflare"')
    (tmp_path / "result" / "config.toml").write_text(re.sub(r"\[data\][^\[]*", "", config))
    rewrite_result(tmp_path / "result", dataset="given", names=["bank-a", "bank-b", "bank-c"], detail={})
    made = reports.make([tmp_path / "result"])
    text = page.render(made).replace(page.library(), "")
    assert "<h1>fedavg at bank-a, bank-b and bank-c</h1>" in text
    assert figures_on(text)["party-accuracy"]["data"][0]["x"] == ["bank-a", "bank-b", "bank-c"]
    (note,) = made.notes
    assert note.startswith("Not shown of fedavg: classes and calibration, embeddings and partition; the data is not here")


def test_what_a_page_quotes_cannot_break_out(runs: Path, tmp_path: Path) -> None:
    """Markup in a name is shown, not obeyed."""
    odd = tmp_path / "</script><script>alert(1)</script>".replace("/", "_")
    shutil.copytree(runs / "fedavg-0", odd)
    (odd / "result.json").unlink()
    config = (odd / "config.toml").read_text().replace('dataset = "csbm"', 'dataset = "<b>x</b>"')
    (odd / "config.toml").write_text(config[: config.index("[data]")])
    text = page.render(reports.make([odd])).replace(page.library(), "")
    assert "<script>alert" not in text
    assert "<b>x" not in text
    assert page.script_json("</script>") == '"\\u003c/script>"'


def test_a_run_in_progress_loads_itself_again(going: Path) -> None:
    """Its page tells how far it is, from whole lines only, and nothing in its folder is touched."""
    before = {item.name: item.read_bytes() for item in going.iterdir()}
    made = reports.make([going])
    text = page.render(made)
    assert "<meta http-equiv=refresh content=5>" in text
    assert "going: round 2 of 4" in text
    assert "Runs still going: 1" in text
    assert made.rows[0].runs[0].result.rounds == 2
    assert {item.name: item.read_bytes() for item in going.iterdir()} == before


def test_names_of_parties_and_classes_cannot_break_out(runs: Path, tmp_path: Path) -> None:
    """Wherever they are shown: tables, axes, legends."""
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    rewrite_result(tmp_path / "run", names=["<b>a</b>", "</script><script>alert(1)</script>", "c"])
    text = page.render(reports.make([tmp_path / "run"], embeddings="pca")).replace(page.library(), "")
    assert "<b>a" not in text
    assert "<script>alert" not in text
    assert "&lt;b&gt;a" in text


@needs_browser
def test_the_page_in_a_real_browser(runs: Path, tmp_path: Path) -> None:
    """Figures are drawn, legends switch series off, headings sort the table, the theme changes; the console has no errors."""
    made = reports.make([runs], embeddings="pca")
    reports.write(made, html=tmp_path / "report.html")
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        drawn = "[...document.querySelectorAll('.plot')].filter(e => e.querySelector('.main-svg .trace, .main-svg .hm')).length"
        assert browser.evaluate(drawn) == len(made.figures)
        lines = "document.querySelectorAll('#f-accuracy-round .scatterlayer .js-line').length"
        before = browser.evaluate(lines)
        browser.click("#l-accuracy-round button")
        assert browser.evaluate(lines) < before
        browser.click("#l-accuracy-round button")
        assert browser.evaluate(lines) == before
        shown = "[...document.querySelectorAll('table.results tbody tr')].map(row => row.cells[0].textContent)"
        assert browser.evaluate(shown) == ["fedavg", "local"]
        browser.click("table.results thead th:first-child button")
        assert browser.evaluate(shown) == ["fedavg", "local"]
        browser.click("table.results thead th:first-child button")
        assert browser.evaluate(shown) == ["local", "fedavg"]
        headings = browser.evaluate("[...document.querySelectorAll('table.results thead th')].map(cell => cell.textContent)")
        sent = f"table.results thead th:nth-child({headings.index('MB up') + 1})"
        browser.click(f"{sent} button")
        assert browser.evaluate(f"document.querySelector('{sent}').getAttribute('aria-sort')") == "descending"
        assert browser.evaluate(shown) == ["fedavg", "local"]
        paint = "getComputedStyle(document.body).backgroundColor"
        light = browser.evaluate(paint)
        browser.click("#theme")
        assert browser.evaluate(paint) != light
        assert browser.complaints == []
        browser.click("#theme")
        browser.evaluate("sessionStorage.clear()")
        browser.open(tmp_path / "report.html", width=390, height=844, dark=True)
        assert browser.evaluate(paint) != light
        assert browser.evaluate(drawn) == len(made.figures)
        assert browser.complaints == []
        assert browser.requests == [(tmp_path / "report.html").resolve().as_uri()]


LONG = "Saint Mary University Hospital of the Northern Provinces"


CUT = """[...document.querySelectorAll('.plot')].filter(plot => {
    const frame = plot.getBoundingClientRect();
    return [...plot.querySelectorAll('.xtick text, .ytick text, .xtitle, .ytitle')].some(text => {
        const box = text.getBoundingClientRect();
        return box.width && (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2);
    });
}).map(plot => plot.id)"""
OUTSIDE = """[...document.querySelectorAll('h1, h2, h3, figure, .card, .plot, .legend button')]
    .filter(element => element.getBoundingClientRect().right > innerWidth).map(element => element.outerHTML.slice(0, 80))"""
SCROLLING = "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent)"


@needs_browser
def test_nothing_is_cut_off(runs: Path, tmp_path: Path) -> None:
    """With long names and many metrics: nothing is beyond the window, and on a screen no table has to be scrolled."""
    names = [LONG, "a", f"{LONG} and of the South"]
    for number, name in enumerate(("fedavg-0", "fedavg-1", "local-0")):
        shutil.copytree(runs / name, tmp_path / name)
        metrics = json.loads((tmp_path / name / "result.json").read_text())["metrics"]
        more = ("weighted_f1", "auc", "average_precision", "brier", "calibration_error")
        rewrite_result(tmp_path / name, metrics=metrics | dict.fromkeys(more, 0.5 + number / 100), names=names)
    runner.run(small("fedspray", rounds=2, lr=0.123, patience=7), out=tmp_path / "fedspray-0")
    reports.write(reports.make([tmp_path], embeddings="none"), html=tmp_path / "report.html")
    with Browser() as browser:
        for width in (1350, 1300, 800, 390):
            browser.open(tmp_path / "report.html", width=width)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(OUTSIDE) == []
            assert browser.evaluate(CUT) == []
            assert browser.evaluate(SCROLLING) == [] or width < 1300
            assert browser.complaints == []


@pytest.mark.parametrize(("config", "items"), [(small_graphs("fedavg", rounds=2), "graphs"), (small_links("fedavg"), "pairs")])
def test_what_is_judged_has_its_name(config: Config, items: str, graph_data: Path, tmp_path: Path) -> None:
    """Captions are about graphs or pairs where these are judged, and about nodes else."""
    runner.run(config, out=tmp_path / "run")
    made = reports.make([tmp_path / "run"], embeddings="none")
    text = page.render(made).replace(page.library(), "").lower()
    assert f"test {items}" in text
    assert "test nodes" not in text
    (parties,) = [card for card in made.cards if card.name.startswith("parties-")]
    assert ("training" in getattr(parties, "headings", ())) == (items == "graphs")  # the roles of nodes say nothing of pairs
