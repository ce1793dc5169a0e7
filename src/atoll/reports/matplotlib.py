"""The figures for a paper, as PNG or SVG, by matplotlib: text stays text, widths are a column's, and no browser is needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from textwrap import wrap
from typing import Any

import numpy as np

from atoll.errors import AtollError, shown
from atoll.reports.figures import PALETTE, Figure

STYLE: dict[Any, Any] = {
    "font.size": 8,
    "font.sans-serif": ["DejaVu Sans", "Arial", "Helvetica"],
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
LEGEND_LETTERS = 75  # in a line of a legend, one column wide
LINE_HEIGHT = 0.15  # inches of a line of a legend
FREE_LINES = 4  # of a legend, for which there is room without a higher picture
ROTATED_LETTERS = 20  # of a name below a bar: longer ones are upright
LETTER_WIDTH = 0.06  # inches
MAX_TICK = 24  # letters of a name beside an axis before it is wrapped
WIDTH, HEIGHT = 3.4, 2.4  # inches: one column of two
WIDE = 20  # ratio of the largest to the smallest x from which on the axis is logarithmic


def draw(figure: Figure, form: str) -> bytes:
    """One figure as the bytes of a `png` or `svg` file."""
    return panels([figure], form)


def _as_text(figure: Figure) -> Figure:
    """The figure with dollar signs escaped: matplotlib would typeset what is between two as a formula."""

    def name(value: Any) -> Any:
        return shown(value).replace("$", r"\$") if isinstance(value, str) else value

    def tick(value: Any) -> Any:
        return "\n".join(wrap(name(value), MAX_TICK)) or value if isinstance(value, str) else value

    series = [replace(each, name=name(each.name), x=[tick(value) for value in each.x]) for each in figure.series]
    heat = figure.heat and replace(
        figure.heat, x=[tick(value) for value in figure.heat.x], y=[tick(value) for value in figure.heat.y]
    )
    return replace(figure, title=name(figure.title), series=series, heat=heat)


def panels(
    figures: Sequence[Figure], form: str, columns: int = 1, description: str = "", *, dpi: int = 300, legend: bool = True
) -> bytes:
    """Several figures of one kind side by side, each under its title, with one legend; `description` goes with the file."""
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ModuleNotFoundError as error:
        raise AtollError('Pictures need matplotlib, which is not installed; run `pip install "atoll[report]"`.') from error
    figures = [_as_text(figure) for figure in figures]
    first, rows = figures[0], -(-len(figures) // columns)
    with matplotlib.rc_context(STYLE):
        size = columns * WIDTH, rows * (WIDTH if first.kind == "map" else HEIGHT)
        canvas = Canvas(figsize=size, layout="constrained")
        for number, figure in enumerate(figures, 1):
            axes = canvas.add_subplot(rows, columns, number)
            _panel(figure, axes)
            if len(figures) > 1:
                axes.set_title(figure.title, fontsize=8)
        named = {name: handle for axes in canvas.axes for handle, name in zip(*axes.get_legend_handles_labels(), strict=True)}
        if legend and (len(named) > 1 or (named and first.section in ("Learning", "Cost"))):
            columns = max(1, min(3 * columns, len(named), columns * LEGEND_LETTERS // (max(map(len, named)) + 5)))
            bigger = 3 if first.kind == "map" else 1
            layout = {"loc": "outside lower center", "ncols": columns, "handlelength": 1.2, "columnspacing": 1}
            canvas.legend(named.values(), named.keys(), markerscale=bigger, **layout)
            lines_below = -(-len(named) // columns)
            canvas.set_figheight(canvas.get_figheight() + LINE_HEIGHT * max(0, lines_below - FREE_LINES))
        file = BytesIO()
        metadata = ({"Description": description} if description else {}) | ({"Date": None} if form == "svg" else {})
        canvas.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return file.getvalue()


def _panel(figure: Figure, axes: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    kinds = {"bars": bars, "stack": bars, "heat": heat, "lines": lines, "dots": dots, "boxes": boxes, "reliability": reliability}
    kinds |= {"intervals": intervals, "sketch": sketch}
    kinds.get(figure.kind, points)(figure, axes)
    axes.set(xlabel=figure.x, ylabel=figure.y)
    if figure.percent and figure.kind != "heat":
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    if figure.kind == "map":
        axes.set_axis_off()
        axes.set_aspect("equal", adjustable="datalim")


def lines(figure: Figure, axes: Any) -> None:
    """Lines with bands."""
    for series in figure.series:
        color = _color(series.color)
        axes.plot(series.x, series.y, color=color, label=series.name, linewidth=1.2, marker="o" if len(series.x) == 1 else None)
        if series.std is not None:
            middle, std = np.array(series.y, dtype=float), np.array(series.std)
            axes.fill_between(series.x, middle - std, middle + std, color=color, alpha=0.18, linewidth=0)
        if series.mark is not None:
            axes.plot(*series.mark, color=color, marker="o", markersize=4)
    if figure.log:
        axes.set_xscale("log")
        axes.minorticks_off()
    if figure.log_y:
        axes.set_yscale("log")


def dots(figure: Figure, axes: Any) -> None:
    """Connected points with whiskers; a series of one point is a horizontal line. Wide ranges of x are logarithmic."""
    positions = sorted({float(x) for series in figure.series for x in series.x})
    for series in figure.series:
        color = _color(series.color)
        if len(series.x) == 1 and len(positions) > 1:
            axes.axhline(series.y[0], color=color, label=series.name, linewidth=1, linestyle="--")
            continue
        style = {"color": color, "label": series.name, "linewidth": 1.2, "marker": "o", "markersize": 3, "capsize": 2}
        axes.errorbar(series.x, series.y, yerr=series.std, elinewidth=0.8, **style)
    positive = [x for x in positions if x > 0]
    if len(positive) > 1 and positions[0] >= 0 and positive[-1] / positive[0] > WIDE:
        if positions[0] > 0:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=positive[0])
        axes.set_xticks(positions, [f"{x:.2g}" if x < 1 else f"{x:g}" for x in positions])
        axes.minorticks_off()


def boxes(figure: Figure, axes: Any) -> None:
    """One box per series: median, quartiles, whiskers within one and a half box lengths, and the values beyond."""
    drawn = axes.boxplot([list(series.y) for series in figure.series], patch_artist=True, widths=0.6)
    for series, box, middle, beyond in zip(figure.series, drawn["boxes"], drawn["medians"], drawn["fliers"], strict=True):
        box.set(facecolor=_color(series.color), alpha=0.6, linewidth=0.8)
        middle.set(color="black")
        beyond.set(markersize=3)
    names = [series.name for series in figure.series]
    axes.set_xticks(range(1, len(names) + 1), names, rotation=30, ha="right")
    axes.grid(axis="x", visible=False)


def intervals(figure: Figure, axes: Any) -> None:
    """Values across with their intervals, one per line, first ones on top; zero is marked."""
    names: list[str] = []
    for series in figure.series:
        at = [-len(names) - index for index in range(len(series.x))]
        style = {
            "color": _color(series.color),
            "label": series.name,
            "linestyle": "",
            "marker": "o",
            "markersize": 3,
            "capsize": 2,
        }
        axes.errorbar(series.y, at, xerr=series.std, elinewidth=0.8, **style)
        names += [str(name).replace("\n", " ") for name in series.x]  # there is room for a line
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.set_yticks([-index for index in range(len(names))], names, fontsize=6)
    axes.grid(axis="y", visible=False)
    axes.figure.set_size_inches(2 * WIDTH, max(HEIGHT, 0.6 + LINE_HEIGHT * len(names)))


def reliability(figure: Figure, axes: Any) -> None:
    """Accuracy by confidence, with the diagonal on which they are equal."""
    from matplotlib.ticker import PercentFormatter

    axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, linestyle="--")
    for series in figure.series:
        axes.plot(series.x, series.y, color=_color(series.color), label=series.name, linewidth=1)
        sizes = [30 * size for size in series.size or [0.3] * len(series.x)]
        axes.scatter(series.x, series.y, s=sizes, color=_color(series.color), linewidths=0)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def points(figure: Figure, axes: Any) -> None:
    """Clouds of points."""
    for series in figure.series:
        small = figure.kind == "map"
        axes.scatter(
            series.x, series.y, s=3 if small else 12, color=_color(series.color), label=series.name, alpha=0.75, linewidths=0
        )


def bars(figure: Figure, axes: Any) -> None:
    """Bars side by side, or stacked."""
    names = list(dict.fromkeys(str(x) for series in figure.series for x in series.x))
    position = {name: number for number, name in enumerate(names)}
    stacked = figure.kind == "stack"
    width = 0.8 if stacked else 0.8 / max(len(figure.series), 1)
    floor = np.zeros(len(names))
    for number, series in enumerate(figure.series):
        at = np.array([position[str(x)] for x in series.x])
        heights = np.array([np.nan if y is None else y for y in series.y], dtype=float)
        shift = 0.0 if stacked else (number - (len(figure.series) - 1) / 2) * width
        whiskers = {"yerr": series.std, "error_kw": {"linewidth": 0.8}} if series.std is not None else {}
        bottom = floor[at] if stacked else 0.0
        axes.bar(at + shift, heights, width, bottom=bottom, color=_color(series.color), label=series.name, **whiskers)
        if stacked:
            floor[at] += np.nan_to_num(heights)
    step = -(-len(names) // 20)
    longest = max((len(line) for name in names for line in name.splitlines()), default=0)
    rotation = 0 if sum(map(len, names)) <= 40 or longest <= 3 else 30 if longest <= ROTATED_LETTERS else 90
    axes.set_xticks(range(0, len(names), step), names[::step], rotation=rotation)
    if rotation == 90:
        axes.figure.set_figheight(axes.figure.get_figheight() + longest * LETTER_WIDTH)
    axes.grid(axis="x", visible=False)


def heat(figure: Figure, axes: Any) -> None:
    """Shares as colors, with their percentages where there is room."""
    table = figure.heat
    assert table is not None
    share = np.array(table.share)
    image = axes.imshow(share, aspect="auto", cmap="Blues", vmin=0)
    for ticks, names in ((axes.set_xticks, table.x), (axes.set_yticks, table.y)):
        step = -(-len(names) // 20)
        long = ticks == axes.set_xticks and sum(map(len, names)) > 40 and max(map(len, names)) > 3
        ticks(range(0, len(names), step), names[::step], **({"rotation": 30, "ha": "right"} if long else {}))
    axes.grid(visible=False)
    if max(share.shape) <= 8:
        for (line, column), value in np.ndenumerate(share):
            ink = "white" if value > 0.6 * share.max() else "black"
            axes.text(column, line, f"{100 * value:.0f}", ha="center", va="center", fontsize=6, color=ink)
    axes.figure.colorbar(image, ax=axes, format=lambda value, _: f"{100 * value:.0f}%")


def sketch(figure: Figure, axes: Any) -> None:
    """Lines and texts as they are; the picture is as wide as the lines and the names beside them need."""
    drawing = figure.sketch
    assert drawing is not None
    for line in drawing.lines:
        width = 2.5 if line.wide else 0.8
        axes.plot([line.x, line.to_x], [line.y, line.to_y], color="black", linewidth=width, solid_capstyle="butt")
    for text in drawing.texts:
        written = axes.text(text.x, text.y, shown(text.text).replace("$", r"\$"), ha=text.side, va="center", fontsize=7)
        written.set_in_layout(False)  # the limits make room for it
    xs = [x for line in drawing.lines for x in (line.x, line.to_x)]
    room = {side: max((len(one.text) for one in drawing.texts if one.side == side), default=0) for side in ("left", "right")}
    unit = (max(xs) - min(xs)) / (0.7 * WIDTH)  # per inch
    axes.set_xlim(min(xs) - unit * LETTER_WIDTH * room["right"], max(xs) + unit * LETTER_WIDTH * room["left"])
    axes.figure.set_figwidth(0.7 * WIDTH + LETTER_WIDTH * (room["left"] + room["right"]))
    axes.set_ylim(min(line.to_y for line in drawing.lines) - 0.3, max(text.y for text in drawing.texts) + 0.2)
    axes.set_axis_off()


def _color(index: int) -> str:
    return PALETTE[index % len(PALETTE)]
