"""Other people's text is shown as text, wherever it can appear: terminal, page, tables, logs."""

import io
import json
import logging
import re
import shutil
import sys
import unicodedata
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from atoll import reports as library
from atoll import stages, wire
from atoll.cli import console, main
from atoll.cli.partition import partition_table
from atoll.data import load
from atoll.data.statistics import partition_statistics
from atoll.deploy import launch
from atoll.deploy.site import Site
from atoll.engines.remote import read_answer
from atoll.errors import AtollError, AtollWarning, shown
from atoll.reports import figures, matplotlib, page, plotly, table
from atoll.runs import runner
from atoll.runs.folder import Folder
from atoll.runs.paired import Difference
from atoll.runs.result import Result
from atoll.version import __version__
from small import small

NASTY = (
    "a\x1b[31mred\x1b]0;title\x07 [bold]b[/bold] [/] :smile: \x9b2J\r\x08over \u202eevil\u2066 \u200bz \x85 <b>c</b> $x^{$ &amp;"
)
DANGEROUS = {chr(code) for code in (*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def assert_text(told: str, *, markup: bool = True) -> None:
    """Nothing of it is left that a terminal would obey, and the rest stands there as it was written."""
    assert not DANGEROUS & set(told) - {"\n"}, sorted(map(hex, map(ord, DANGEROUS & set(told) - {"\n"})))
    assert r"\x1b[31mred" in told
    if markup:
        assert "[bold]b[/bold] [/] :smile:" in " ".join(told.split())


@given(st.text())
def test_nothing_dangerous_is_left(text: str) -> None:
    """Of any text; beside it the naive rule by Unicode's categories."""
    told = shown(text)
    assert told == "".join(
        sign if sign == " " or unicodedata.category(sign)[0] not in "CZ" else sign.encode("unicode_escape").decode()
        for sign in text
    )
    assert not DANGEROUS & set(told)
    told.encode()  # no lone surrogates either: they would end the printing


def printed(what: Any, width: int = 400) -> str:
    """What the terminal's console prints."""
    stream = io.StringIO()
    console.Terminal(file=stream, width=width).print(what)
    return stream.getvalue()


def test_the_console_prints_text() -> None:
    """Alone, in a cell, a heading or a title."""
    assert_text(printed(NASTY))
    for built, cell in ((Table(" " * 300, title=NASTY), "y"), (Table(NASTY), "y"), (Table("x"), NASTY)):
        built.add_row(cell)
        assert_text(printed(built))


def test_results_and_comparisons_print_text() -> None:
    """Names of algorithms, warnings, rows."""
    traffic, seconds = {"up": 1, "down": 1, "messages": 1}, {"total": 1.0, "per_round": 1.0}
    result = Result(small("local"), "horizontal", 1, 1, 1, {}, {}, traffic, seconds, [], {}, {}, warnings=[NASTY])
    assert_text(printed(console.result_table(result)))
    assert_text(str(result))
    assert_text(repr(replace(result, config=replace(result.config, dataset=NASTY))))
    row = {"row": NASTY, "mb_up": 1.0, "mb_down": 1.0, "seconds": 1.0}
    assert_text(printed(console.comparison_table([row], NASTY)))


LONG_ROW = "fedavg model=gat lr=0.0001 hidden=1024 dropout=0.25"


def test_numbers_are_never_cut_for_a_long_name() -> None:
    """In a terminal of 80 columns the name of a row is broken, not a mean, its spread or an interval."""
    row = {"row": LONG_ROW, "accuracy": 0.797312, "accuracy_std": 0.178888, "mb_up": 1.0, "mb_down": 1.0, "seconds": 1.0}
    difference = Difference(LONG_ROW, "local", 5, 0.1892, -1.0272, 1.3297, 5, 0.25)
    for built, values in (
        (console.comparison_table([row], "title"), ["79.73 ± 17.89"]),
        (console.difference_table([difference]), ["+18.92", "-102.72 … +132.97", "5/5", "0.250"]),
    ):
        stream = io.StringIO()
        console.Terminal(file=stream, width=80).print(built)
        assert all(value in stream.getvalue() for value in values)
        assert "…" not in stream.getvalue().replace(" … ", "")
        assert all(part in stream.getvalue() for part in LONG_ROW.split())


def test_elsewhere_a_table_is_as_wide_as_it_wants_to_be(capsys: Any) -> None:
    """Written to a file, a row of a comparison is one line."""
    console.show(console.comparison_table([{"row": LONG_ROW, "mb_up": 1.0, "mb_down": 1.0, "seconds": 1.0}], "title"))
    assert LONG_ROW in capsys.readouterr().out


def test_progress_is_text(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without a terminal."""
    monkeypatch.setattr(console, "PLAIN_EVERY", -1.0)
    with console.ProgressLine(NASTY) as progress:
        progress({"round": 1, "bytes_up_total": 1, "bytes_down_total": 1}, 2)
    assert_text(capsys.readouterr().err)
    with console.ProgressLine(NASTY):
        stages.report(NASTY, 1, 2)
    told = capsys.readouterr().err
    assert_text(told)
    assert "50 %" in told
    live = console.ProgressLine(NASTY)
    live.live = True
    live.prepare(NASTY, 1, 2)
    assert_text(printed(live.bar.get_renderable()))
    live.prepare(NASTY, 2, 2)
    live({"round": 1, "bytes_up_total": 1, "bytes_down_total": 1}, 2)
    assert_text(printed(live.bar.get_renderable()))


def test_errors_and_warnings_are_text(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    """A sentence that quotes a stranger's name, path or reason is one line of text."""
    monkeypatch.setattr(sys, "argv", ["atoll", "resume", str(tmp_path / NASTY.replace("/", ""))])
    with pytest.raises(SystemExit):
        main.main()
    told = capsys.readouterr().err
    assert_text(told, markup=False)
    assert told.count("\n") == 1

    def fail() -> None:
        warnings.warn(NASTY, AtollWarning, stacklevel=1)
        raise AtollError(NASTY)

    monkeypatch.setattr(main, "app", fail)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit):
            main.main()
    first, second = capsys.readouterr().err.splitlines()
    assert_text(first)
    assert_text(second)


def test_what_a_site_hears_and_says_is_text(capsys: Any) -> None:
    """`atoll join` and `atoll serve` print by one function."""
    launch._warn(NASTY)
    told = capsys.readouterr().err
    assert_text(told)
    assert told.count("\n") == 1


def test_reasons_and_logs_are_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A site's reason at the server; a server's words in the site's log."""
    reply = read_answer(wire.encode({"atoll": __version__, "status": "failed", "reason": NASTY}))
    assert isinstance(reply, str)
    assert not DANGEROUS & set(reply)
    with caplog.at_level(logging.WARNING):
        Site(tmp_path).handle(wire.encode({"atoll": __version__, "kind": NASTY, "run": ""}))
        Site(tmp_path).handle(wire.encode({"atoll": NASTY, "kind": "echo", "run": ""}))
    assert caplog.messages
    for message in caplog.messages:
        assert not DANGEROUS & set(message)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose dataset has a name, and whose result has a warning, that somebody made up."""
    folder = tmp_path_factory.mktemp("nasty")
    runner.run(small("fedavg", rounds=2), out=folder / "run")
    result = json.loads((folder / "run" / "result.json").read_text())
    Folder(folder / "run").finish(result | {"warnings": [NASTY]})
    source = folder / "run" / "config.toml"
    source.write_text(source.read_text().replace('algorithm = "fedavg"', f"algorithm = {json.dumps(NASTY + '.py')}"))
    shutil.copytree(folder / "run", folder / "other")
    other = folder / "other" / "config.toml"
    other.write_text(other.read_text().replace("31mred", "31mblue"))
    return folder


def test_the_page_is_text(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels, notes, configuration and what plotly is given; nothing of the text is a tag."""
    monkeypatch.setattr(page, "library", lambda: "")
    text = page.render(library.make([report], embeddings="none"))
    body = re.sub(r'href="data:[^"]*"', "", text)
    assert "\x1b" not in body
    assert not DANGEROUS & set(body) - {"\n", "\t"}
    assert "<b>c</b>" not in body
    assert r"\x1b[31mred" in body


def test_tables_for_papers_are_text(report: Path) -> None:
    """Markdown without tags, LaTeX without commands."""
    made = library.make([report], embeddings="none")
    for form in (table.markdown(made.tables[0]), table.latex(made.tables[0])):
        assert not DANGEROUS & set(form) - {"\n"}
    assert "<b>" not in table.markdown(made.tables[0])
    assert "$x^" not in table.latex(made.tables[0])


def test_plotly_and_matplotlib_get_text() -> None:
    """Class names with tags or formulas are names: in a bar's label, a legend, and in a figure for a paper."""
    series = [
        figures.Series(NASTY, ["$x^{$", NASTY], [0.5, 0.25], 0),
        figures.Series("b", ["$x^{$", NASTY], [0.1, 0.2], 1),
    ]
    figure = figures.Figure("f", "Learning", NASTY, "bars", "", "share", series, caption=NASTY)
    plot = plotly.plot(figure)
    assert not DANGEROUS & set(json.dumps(plot, ensure_ascii=False))
    legend = plot.pop("legend")
    assert "<b>" not in json.dumps(plot, ensure_ascii=False)
    assert "<b>" in legend[0]["text"]  # the page adds it as text, not as markup
    assert "<b>" not in page.script_json(legend)
    brief = [figures.Series(name, ["$x^{$", "\x1b[1m"], [0.5, 0.25], number) for number, name in enumerate(("$a_$", "\u202eb"))]
    drawn = matplotlib.draw(replace(figure, title="t", series=brief), "svg").decode()
    assert "$x^{$" in drawn
    assert not DANGEROUS & set(drawn) - {"\n"}


def test_classes_and_names_of_strangers_are_text() -> None:
    """A graph whose classes somebody made up is shown by `atoll partition`."""
    graph = load("csbm", nodes=40, features=4, classes=3)
    told = replace(graph, class_names=(NASTY, "b", "c"))
    assert not DANGEROUS & set(printed(partition_table(partition_statistics(told, told), names=(NASTY,)))) - {"\n"}
