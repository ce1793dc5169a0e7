"""The page: one HTML file with plotly.js inside, so that it opens anywhere, without a network."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from atoll.errors import AtollError, shown
from atoll.reports import table
from atoll.reports.figures import PALETTE, Figure, Series
from atoll.reports.runs import Row
from atoll.runs.folder import finite
from atoll.version import __version__

if TYPE_CHECKING:
    from atoll.reports import Report

escape = table.escape
REFRESH = 5  # seconds between reloads while a run goes on
DASHES = ("solid", "dash", "dot", "dashdot")


def render(report: Report) -> str:
    """The whole page."""
    datasets = list(dict.fromkeys(row.runs[0].config.dataset for row in report.rows))
    title = ", ".join(row.label for row in report.rows[:4]) + (" …" if len(report.rows) > 4 else "")
    title += f" on {datasets[0]}" if len(datasets) == 1 else ""  # else the labels say it
    parts = {
        "title": escape(title),
        "refresh": "" if report.done else f"<meta http-equiv=refresh content={REFRESH}>",
        "going": "" if report.done else f"<p class=going role=status>{escape(progress(report.rows))}</p>",
        "table": table.html(report.table),
        "caption": escape(report.table.caption),
        "contents": contents(report.figures),
        "figures": sections(report.figures),
        "notes": "".join(f"<p class=note>{escape(note)}</p>" for note in report.notes),
        "configurations": "\n".join(configuration(row) for row in report.rows),
        "data": script_json({figure.name: plot(figure) for figure in report.figures}),
        "plotly": library(),
        "version": escape(__version__),
    }
    template = importlib.resources.files("atoll.reports").joinpath("page.html").read_text()
    return re.sub(r"<!--atoll:(\w+)-->", lambda place: parts[place[1]], template)


def progress(rows: Sequence[Row]) -> str:
    """How far the runs that still go on are."""
    going = [run for row in rows for run in row.runs if not run.result.finished]
    told = ", ".join(f"{run.path.name}: round {run.result.rounds} of {run.config.run.rounds}" for run in going[:6])
    return f"{told}{' …' if len(going) > 6 else ''}. This page loads itself again every {REFRESH} seconds."


def contents(figures: Sequence[Figure]) -> str:
    """Links to the sections."""
    names = ["Comparison", *dict.fromkeys(figure.section for figure in figures), "Configuration"]
    return " ".join(f"<a href='#{name.lower()}'>{name}</a>" for name in names)


def sections(figures: Sequence[Figure]) -> str:
    """The figures' places, by section; a script draws into them."""
    text = []
    for section, members in groupby(figures, key=lambda figure: figure.section):
        text.append(f"<section id={section.lower()}><h2>{escape(section)}</h2><div class=grid>")
        for figure in members:
            label = escape(f"{figure.title}. {figure.caption}", quote=True)
            text.append(
                f"<figure><h3>{escape(figure.title)}</h3><div class='plot {figure.kind}' id='f-{escape(figure.name)}' "
                f"role=img aria-label='{label}'></div><figcaption>{escape(figure.caption)}</figcaption></figure>"
            )
        text.append("</div></section>")
    return "\n".join(text)


def configuration(row: Row) -> str:
    """The first seed's config.toml, to read, copy or save, and how to run it again."""
    first = row.runs[0]
    seeds = ", ".join(str(run.config.seed) for run in row.runs)
    link = f"data:application/toml;charset=utf-8,{quote(first.text)}"
    return (
        f"<details><summary>{escape(row.label)} <small>seed{'s' if len(row.runs) > 1 else ''} {escape(seeds)}</small></summary>"
        f'<p><code>atoll run config.toml</code> · <a download=config.toml href="{link}">save config.toml</a> · '
        f"<button type=button class=copy>copy</button></p><pre>{escape(first.text)}</pre></details>"
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(finite(value), separators=(",", ":")).replace("<", "\\u003c")


def library() -> str:
    """The text of plotly.js, from the Python package that carries it."""
    try:
        return importlib.resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise AtollError('The page needs plotly, which is not installed; run `pip install "atoll[report]"`.') from error


def plot(figure: Figure) -> dict[str, Any]:
    """A figure in plotly's words; colors of paper, ink and grid are the page's."""
    layout: dict[str, Any] = {"xaxis": {"title": {"text": figure.x, "standoff": 6}}, "yaxis": {"title": {"text": figure.y}}}
    layout["showlegend"] = len(figure.series) > 1 or bool(figure.series and figure.section in ("Learning", "Traffic"))
    if figure.percent:
        layout["yaxis"]["tickformat"] = ".0%"
    if figure.kind in ("bars", "stack"):
        layout["barmode"] = "stack" if figure.kind == "stack" else "group"
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        if lying(figure):
            layout["xaxis"], layout["yaxis"] = layout["yaxis"], layout["xaxis"] | {"autorange": "reversed"}
    if figure.kind == "map":
        for axis in ("xaxis", "yaxis"):
            layout[axis] = {"visible": False}
        layout["yaxis"]["scaleanchor"] = "x"
    if figure.kind == "heat":
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        layout["yaxis"] |= {"type": "category", "autorange": "reversed", "showgrid": False}
    traces = (
        heat(figure) if figure.heat is not None else [trace for series in figure.series for trace in traces_of(figure, series)]
    )
    return {"data": traces, "layout": layout}


def traces_of(figure: Figure, series: Series) -> list[dict[str, Any]]:
    """A line with its band, points, or bars with their whiskers."""
    color, dash = PALETTE[series.color % len(PALETTE)], DASHES[series.color // len(PALETTE) % len(DASHES)]
    x, y = short(series.x), short(series.y)
    trace: dict[str, Any] = {"name": label(series.name), "x": x, "y": y, "legendgroup": label(series.name), "showlegend": True}
    if figure.kind in ("bars", "stack"):
        trace |= {"type": "bar", "marker": {"color": color}}
        height = "y"
        if lying(figure):
            trace |= {"orientation": "h", "x": y, "y": ["<br>".join(map(label, wrap(str(name), 20))) for name in series.x]}
            height = "x"
        if series.spread is not None:
            trace[f"error_{height}"] = {"type": "data", "array": short(series.spread), "thickness": 1.2}
        if figure.percent:
            trace["hovertemplate"] = f"%{{{height}:.2%}}"
        return [trace]
    trace["type"] = "scatter"
    if figure.kind in ("points", "map"):
        trace |= {"mode": "markers", "marker": {"color": color, "size": 5 if figure.kind == "map" else 8, "opacity": 0.75}}
        trace["hovertemplate" if figure.kind == "points" else "hoverinfo"] = (
            "%{x:.3~s}, %{y:.2%}" if figure.kind == "points" else "name"
        )
        return [trace]
    trace |= {"mode": "lines" if len(x) > 1 else "markers", "line": {"color": color, "width": 2, "dash": dash}}
    trace["hovertemplate"] = "%{y:.2%}" if figure.percent else "%{y}"
    if series.spread is None:
        return [trace]
    low, high = (
        short([value + sign * std for value, std in zip(series.y, series.spread, strict=True) if value is not None])
        for sign in (-1, 1)
    )
    band = {
        "type": "scatter",
        "mode": "lines",
        "x": [*x, *reversed(x)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": f"{color}2e",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "legendgroup": label(series.name),
        "showlegend": False,
    }
    return [band, trace]


def lying(figure: Figure) -> bool:
    """Whether bars lie, so that there is room for long names."""
    names = [str(name) for series in figure.series for name in series.x]
    return not figure.x and max(map(len, names), default=0) > 12


def heat(figure: Figure) -> list[dict[str, Any]]:
    """Shares as colors."""
    table = figure.heat
    assert table is not None
    trace = {
        "type": "heatmap",
        "x": short(table.x),
        "y": short(table.y),
        "z": [short(line) for line in table.share],
        "text": [short(line) for line in table.told],
        "zmin": 0,
        "hovertemplate": f"{figure.y} %{{y}}, {figure.x} %{{x}}: %{{z:.1%}}, %{{text}}<extra></extra>",
        "colorbar": {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0},
        "xgap": 1,
        "ygap": 1,
    }
    if len(table.x) <= 12 and len(table.y) <= 12:
        trace["texttemplate"] = "%{z:.0%}"
    return [trace]


def short(values: Sequence[Any]) -> list[Any]:
    """Five significant digits are enough for the eye; names are text."""
    return [
        float(f"{value:.5g}") if isinstance(value, float) else label(value) if isinstance(value, str) else value
        for value in values
    ]


def label(text: str) -> str:
    """A name for plotly, which would take tags in it for markup."""
    return shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
