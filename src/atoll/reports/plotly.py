"""Figures in the terms of plotly.js: traces, layout and the legend, which the page draws above the figure itself."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from atoll.errors import shown
from atoll.reports.figures import PALETTE, Figure, Series

DASHES = ("solid", "dash", "dot", "dashdot")
MAX_TEXTS = 12  # rows or columns of a heat map whose cells have texts
TICK_WIDTH = 18  # letters of a name beside an axis before it is wrapped
HORIZONTAL_FROM = 12  # letters of a name from which on bars may be horizontal
MAX_HORIZONTAL = 16  # names of parties or classes whose bars may be horizontal
ROOM = 60  # letters of all names of parties or classes together that fit below upright bars
MAX_SIZE = 16  # pixels of the largest point of a reliability curve
SKETCH_LETTERS = 32  # of a text that is as long as a sketch is wide
SKETCH = "#888888"  # lines of a sketch, on a light and on a dark page
ALWAYS_NAMED = ("Learning", "Cost")  # sections whose figures have a legend even for a single series


def plot(figure: Figure) -> dict[str, Any]:
    """A figure for plotly.js; the page adds the colors of background, text and grid."""
    titles = {"xaxis": figure.x, "yaxis": figure.y}
    layout: dict[str, Any] = {axis: {"title": {"text": text, "standoff": 6}} for axis, text in titles.items()}
    layout["showlegend"] = False
    if figure.percent:
        layout["yaxis"] |= {"tickformat": ".0%"}
    if figure.log_y:
        layout["yaxis"] |= {"type": "log", "dtick": "D2"}  # ticks at 1, 2 and 5
    if figure.kind in ("bars", "stack"):
        layout["barmode"] = "stack" if figure.kind == "stack" else "group"
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        if horizontal(figure):
            layout["xaxis"], layout["yaxis"] = layout["yaxis"], layout["xaxis"] | {"autorange": "reversed"}
    if figure.kind == "map":
        layout["xaxis"], layout["yaxis"] = {"visible": False}, {"visible": False, "scaleanchor": "x"}
    if figure.kind == "heat":
        layout["xaxis"] |= {"type": "category", "showgrid": False}
        layout["yaxis"] |= {"type": "category", "autorange": "reversed", "showgrid": False}
    if figure.kind == "reliability":
        layout["xaxis"] |= {"tickformat": ".0%", "range": [0, 1.02]}
        layout["yaxis"] |= {"range": [-0.02, 1.02]}
    if figure.kind == "sketch":
        layout["xaxis"], layout["yaxis"] = {"visible": False, "range": sketch_range(figure)}, {"visible": False}
        traces = sketch(figure)
    elif figure.heat is not None:
        traces = heat(figure)
    else:
        traces = [trace for series in figure.series for trace in traces_of(figure, series)]
    if figure.kind == "reliability":
        traces = [diagonal(), *traces]
    return {"data": traces, "layout": layout, "legend": legend(figure)}


def legend(figure: Figure) -> list[dict[str, str]]:
    """Name, color and shape of each series, where they need telling apart."""
    if len(figure.series) < 2 and not (figure.series and figure.section in ALWAYS_NAMED):
        return []
    shapes = {"lines": "line", "reliability": "line", "points": "dot", "map": "dot"}
    return [
        {
            "name": label(series.name),
            "text": shown(series.name),
            "color": _color(series),
            "shape": shapes.get(figure.kind, "box"),
            "dash": _dash(series),
        }
        for series in figure.series
    ]


def sketch(figure: Figure) -> list[dict[str, Any]]:
    """Thin lines, wide lines and texts, each as one trace in the color of the page's text."""
    drawing = figure.sketch
    assert drawing is not None
    traces: list[dict[str, Any]] = []
    for wide in (False, True):
        lines = [line for line in drawing.lines if line.wide == wide]
        x = [value for line in lines for value in (line.x, line.to_x, None)]
        y = [value for line in lines for value in (line.y, line.to_y, None)]
        style = {"mode": "lines", "line": {"color": SKETCH, "width": 4 if wide else 1}}
        traces.append({"type": "scatter", "hoverinfo": "skip", "x": short(x), "y": short(y)} | style)
    for side, position in (("left", "middle right"), ("right", "middle left"), ("center", "top center")):
        texts = [text for text in drawing.texts if text.side == side]
        if texts:
            where = {"x": short([text.x for text in texts]), "y": short([text.y for text in texts])}
            words = {"text": [label(text.text) for text in texts], "textposition": position, "textfont": {"size": 12}}
            traces.append({"type": "scatter", "hoverinfo": "skip", "mode": "text", "cliponaxis": False} | where | words)
    return traces


def sketch_range(figure: Figure) -> list[float]:
    """The ends of a sketch's lines, with room for the texts that begin or end there."""
    drawing = figure.sketch
    assert drawing is not None
    xs = [x for line in drawing.lines for x in (line.x, line.to_x)]
    letter = (max(xs) - min(xs)) / SKETCH_LETTERS
    room = {side: max((len(one.text) for one in drawing.texts if one.side == side), default=0) for side in ("left", "right")}
    return [min(xs) - letter * room["right"], max(xs) + letter * room["left"]]


def traces_of(figure: Figure, series: Series) -> list[dict[str, Any]]:
    """A line with its band and mark, points, or bars with their whiskers."""
    trace: dict[str, Any] = {"name": label(series.name), "legendgroup": label(series.name)}
    trace |= {"x": short(series.x), "y": short(series.y)}
    if figure.kind in ("bars", "stack"):
        return [trace | _bars(figure, series)]
    trace["type"] = "scatter"
    if figure.kind in ("points", "map"):
        size = 5 if figure.kind == "map" else 9
        trace |= {"mode": "markers", "marker": {"color": _color(series), "size": size, "opacity": 0.75}}
        if figure.kind == "map":
            return [trace | {"hoverinfo": "name"}]
        named = {"text": short(series.texts), "hovertemplate": "%{text}: %{x:.3~s}, %{y:.1%}"} if series.texts else {}
        return [trace | {"hovertemplate": "%{x:.3~s}, %{y:.1%}"} | named]
    if figure.kind == "reliability":
        return [trace | _reliability(series)]
    return _lines(figure, series, trace)


def _lines(figure: Figure, series: Series, trace: dict[str, Any]) -> list[dict[str, Any]]:
    color, form = _color(series), ".2%" if figure.percent else ".4~g"
    trace |= {"mode": "lines" if len(series.x) > 1 else "markers", "hovertemplate": f"%{{y:{form}}}"}
    trace |= {"line": {"color": color, "width": 2, "dash": _dash(series)}, "marker": {"color": color, "size": 8}}
    around: list[dict[str, Any]] = []
    quiet = {"type": "scatter", "hoverinfo": "skip", "legendgroup": trace["legendgroup"], "name": trace["name"]}
    if series.std is not None:
        pairs = [(value, std) for value, std in zip(series.y, series.std, strict=True) if value is not None]
        low = [max(value - std, value / 10) if figure.log_y else value - std for value, std in pairs]  # a logarithm needs > 0
        bounds = [short(low), short([value + std for value, std in pairs])]
        x = trace["x"]
        band = {"mode": "lines", "x": [*x, *reversed(x)], "y": [*bounds[1], *reversed(bounds[0])], "fill": "toself"}
        around.append(quiet | band | {"fillcolor": f"{color}2e", "line": {"width": 0}})
    if series.mark is not None:
        x, y = short(series.mark)
        mark = {"mode": "markers", "x": [x], "y": [y], "marker": {"color": color, "size": 9}}
        return [*around, trace, quiet | mark]
    return [*around, trace]


def _bars(figure: Figure, series: Series) -> dict[str, Any]:
    names, values = [ticks(str(name)) for name in series.x], short(series.y)
    lying = horizontal(figure)
    trace: dict[str, Any] = {"type": "bar", "marker": {"color": _color(series)}, "x": names, "y": values}
    if lying:
        trace |= {"orientation": "h", "x": values, "y": names}
    height = "x" if lying else "y"
    if series.std is not None:
        trace[f"error_{height}"] = {
            "type": "data",
            "array": short(series.std),
            "thickness": 1.2,
            "width": 3,
        }
    form = ".2%" if figure.percent else ",.4~g"
    return trace | {"hovertemplate": f"%{{{'y' if lying else 'x'}}}: %{{{height}:{form}}}"}


def _reliability(series: Series) -> dict[str, Any]:
    sizes = [max(4.0, MAX_SIZE * size**0.5) for size in series.size or [0.3] * len(series.x)]
    return {
        "mode": "lines+markers",
        "cliponaxis": False,
        "line": {"color": _color(series), "width": 1.5, "dash": _dash(series)},
        "marker": {"color": _color(series), "size": short(sizes), "opacity": 0.85},
        "text": short(series.texts or [""] * len(series.x)),
        "hovertemplate": "confidence %{x:.1%}, accuracy %{y:.1%}, %{text}",
    }


def diagonal() -> dict[str, Any]:
    """Where confidence equals accuracy."""
    line = {"color": "#999999", "width": 1, "dash": "dash"}
    return {"type": "scatter", "mode": "lines", "x": [0, 1], "y": [0, 1], "line": line, "hoverinfo": "skip", "name": "diagonal"}


def horizontal(figure: Figure) -> bool:
    """Whether bars are horizontal, so that there is room for long names."""
    names = {str(name) for series in figure.series for name in series.x}
    if max(map(len, names), default=0) <= HORIZONTAL_FROM:
        return False
    return not figure.x or (len(names) <= MAX_HORIZONTAL and sum(map(len, names)) > ROOM)


def heat(figure: Figure) -> list[dict[str, Any]]:
    """Shares as colors."""
    table = figure.heat
    assert table is not None
    trace = {
        "type": "heatmap",
        "x": [ticks(name) for name in table.x],
        "y": [ticks(name) for name in table.y],
        "z": [short(line) for line in table.share],
        "text": [short(line) for line in table.texts],
        "zmin": 0,
        "zmax": 1,
        "hovertemplate": f"{figure.y} %{{y}}, {figure.x} %{{x}}: %{{z:.1%}}, %{{text}}<extra></extra>",
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }
    if len(table.x) <= MAX_TEXTS and len(table.y) <= MAX_TEXTS:
        return [trace | {"texttemplate": "%{z:.0%}"}]
    return [trace | {"showscale": True, "colorbar": {"tickformat": ".0%", "thickness": 10, "outlinewidth": 0}}]


def short(values: Sequence[Any]) -> list[Any]:
    """Five significant digits are enough for the eye; names are text."""
    return [
        float(f"{value:.5g}") if isinstance(value, float) else label(value) if isinstance(value, str) else value
        for value in values
    ]


def label(text: str) -> str:
    """A name for plotly, which would take tags in it for markup."""
    return shown(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def ticks(name: str) -> str:
    """A name beside an axis, in lines of a few words."""
    return "<br>".join(map(label, wrap(name, TICK_WIDTH))) or label(name)


def _color(series: Series) -> str:
    return PALETTE[series.color % len(PALETTE)]


def _dash(series: Series) -> str:
    return DASHES[series.color // len(PALETTE) % len(DASHES)]
