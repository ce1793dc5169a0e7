"""The figures for a paper, as PNG or SVG, by matplotlib: text stays text, widths are a column's, and no browser is needed."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from atoll.errors import AtollError
from atoll.report.figures import PALETTE, Figure

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "svg.fonttype": "none",
    "svg.hashsalt": "atoll",
}
WIDTH, HEIGHT = 3.4, 2.4  # inches: one column of two


def draw(figure: Figure, form: str) -> bytes:
    """One figure as the bytes of a `png` or `svg` file."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
        from matplotlib.ticker import PercentFormatter
    except ModuleNotFoundError as error:
        raise AtollError('--png and --svg need matplotlib, which is not installed; run `pip install "atoll[report]"`.') from error
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(figsize=(WIDTH, WIDTH if figure.kind == "map" else HEIGHT), layout="constrained")
        axes = canvas.add_subplot()
        {"bars": bars, "stack": bars, "heat": heat, "lines": lines, "points": points, "map": points}[figure.kind](figure, axes)
        axes.set(xlabel=figure.x, ylabel=figure.y)
        if figure.percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        if figure.kind == "map":
            axes.set_axis_off()
            axes.set_aspect("equal", adjustable="datalim")
        if len(figure.series) > 1 or (figure.series and figure.section in ("Learning", "Traffic")):
            columns = min(3, len(figure.series))
            bigger = 3 if figure.kind == "map" else 1
            canvas.legend(loc="outside lower center", ncols=columns, handlelength=1.2, columnspacing=1, markerscale=bigger)
        file = BytesIO()
        canvas.savefig(file, format=form, dpi=300, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def lines(figure: Figure, axes: Any) -> None:
    """Lines with bands."""
    for series in figure.series:
        colour = _colour(series.colour)
        axes.plot(series.x, series.y, color=colour, label=series.name, linewidth=1.2, marker="o" if len(series.x) == 1 else None)
        if series.spread is not None:
            middle, spread = np.array(series.y, dtype=float), np.array(series.spread)
            axes.fill_between(series.x, middle - spread, middle + spread, color=colour, alpha=0.18, linewidth=0)


def points(figure: Figure, axes: Any) -> None:
    """Clouds of points."""
    for series in figure.series:
        small = figure.kind == "map"
        axes.scatter(
            series.x, series.y, s=3 if small else 12, color=_colour(series.colour), label=series.name, alpha=0.75, linewidths=0
        )


def bars(figure: Figure, axes: Any) -> None:
    """Bars side by side, or one on the other."""
    names = list(dict.fromkeys(str(x) for series in figure.series for x in series.x))
    place = {name: number for number, name in enumerate(names)}
    stacked = figure.kind == "stack"
    width = 0.8 if stacked else 0.8 / max(len(figure.series), 1)
    floor = np.zeros(len(names))
    for number, series in enumerate(figure.series):
        at = np.array([place[str(x)] for x in series.x])
        heights = np.array([np.nan if y is None else y for y in series.y], dtype=float)
        shift = 0.0 if stacked else (number - (len(figure.series) - 1) / 2) * width
        whiskers = {"yerr": series.spread, "error_kw": {"linewidth": 0.8}} if series.spread is not None else {}
        bottom = floor[at] if stacked else 0.0
        axes.bar(at + shift, heights, width, bottom=bottom, color=_colour(series.colour), label=series.name, **whiskers)
        if stacked:
            floor[at] += np.nan_to_num(heights)
    step = -(-len(names) // 20)
    axes.set_xticks(
        range(0, len(names), step), names[::step], rotation=30 if sum(map(len, names)) > 40 and max(map(len, names)) > 3 else 0
    )
    axes.grid(axis="x", visible=False)


def heat(figure: Figure, axes: Any) -> None:
    """Shares as colours, with their per cent where there is room."""
    table = figure.heat
    assert table is not None
    share = np.array(table.share)
    image = axes.imshow(share, aspect="auto", cmap="Blues", vmin=0)
    for ticks, names in ((axes.set_xticks, table.x), (axes.set_yticks, table.y)):
        step = -(-len(names) // 20)
        ticks(range(0, len(names), step), names[::step])
    axes.grid(visible=False)
    if max(share.shape) <= 8:
        for (line, column), value in np.ndenumerate(share):
            ink = "white" if value > 0.6 * share.max() else "black"
            axes.text(column, line, f"{100 * value:.0f}", ha="center", va="center", fontsize=6, color=ink)
    axes.figure.colorbar(image, ax=axes, format=lambda value, _: f"{100 * value:.0f}%")


def _colour(place: int) -> str:
    return PALETTE[place % len(PALETTE)]
