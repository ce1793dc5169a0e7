"""Pictures of the papers' figures: ours, from the lines of the exhibit or, over the rounds, from the histories of its runs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit, Line, recorded
from atoll.papers.execute import finished, results
from atoll.reports import matplotlib
from atoll.reports.embedding import tsne
from atoll.reports.figures import Figure, Series, thin
from atoll.reports.runs import Row, read_run
from atoll.runs.config import Config
from atoll.runs.metrics import metric_format
from atoll.runs.reader import read

Jobs = Mapping[tuple[str, str], Sequence[Config]]
MOST_POINTS = 1200  # of all curves of a picture together: a small file
MOST_OF_ONE = 120


@dataclass(frozen=True)
class Picture:
    """A file, and how many runs it shows."""

    data: bytes
    form: str
    runs: int


def save(told: Sequence[tuple[Exhibit, Sequence[Line]]], jobs: Jobs, root: Path, folder: Path) -> dict[str, Path]:
    """Draw what can be drawn; the file of every exhibit that has one. A picture that shows more runs than there are now stays."""
    files = {}
    for exhibit, lines in told:
        stem = exhibit.name.replace("/", "-")
        there = [path for form in ("svg", "png") if (path := folder / f"{stem}.{form}").exists()]
        picture = draw(exhibit, lines, jobs, root)
        if picture is not None and picture.runs >= max(map(_shown, there), default=0):
            folder.mkdir(parents=True, exist_ok=True)
            there = [folder / f"{stem}.{picture.form}"]
            storage.write_whole(there[0], picture.data)
        if there:
            files[exhibit.name] = there[0]
    return files


def draw(exhibit: Exhibit, lines: Sequence[Line], jobs: Jobs, root: Path) -> Picture | None:
    """The picture of a figure, if there is anything to show."""
    if exhibit.kind == "embeddings":
        figures = maps(exhibit, jobs, root)
        return Picture(_file(figures, "png", len(figures)), "png", len(figures)) if figures else None
    if exhibit.kind == "boxes":
        figures, runs = boxes(exhibit, jobs, root)
    elif exhibit.kind == "figure":
        figures, runs = curves(exhibit, jobs, root) if exhibit.curves else means(exhibit, lines)
    else:
        return None
    return Picture(_file(figures, "svg", runs), "svg", runs) if figures else None


def means(exhibit: Exhibit, lines: Sequence[Line]) -> tuple[list[Figure], int]:
    """Mean and standard deviation over the seeds: over a number, joined; over words or over the metrics, bars."""
    colours = _colours(exhibit)
    figures, runs = [], 0
    for panel in exhibit.panels or ("",):
        inside = [line for line in lines if line.ours and line.cell.within(panel)]
        if 2 * len(inside) < sum(cell.within(panel) for cell in exhibit.runnable):
            continue  # a few points are no curve
        runs += sum(line.seeds for line in inside)
        kind = "dots" if all(isinstance(line.cell.x, (int, float)) for line in inside) else "bars"
        if kind == "bars" and len({line.cell.x for line in inside}) < 2:
            figures += _over_metrics(exhibit, inside, panel, colours)
            continue
        for metric in exhibit.metrics:
            having = [line for line in inside if metric in line.ours]
            series = []
            for name in dict.fromkeys(_name(line.cell, panel) for line in having):
                own = [line for line in having if _name(line.cell, panel) == name]
                pairs = [line.ours[metric] for line in own]
                x = [line.cell.x for line in own if line.cell.x is not None]
                series.append(Series(name, x, [pair[0] for pair in pairs], colours[name], _spread(pairs)))
            if series:
                figures.append(Figure("", "", _title(exhibit, panel, metric), kind, exhibit.axis, _unit(exhibit, metric), series))
    return figures, runs


def _over_metrics(exhibit: Exhibit, lines: Sequence[Line], panel: str, colours: Mapping[str, int]) -> list[Figure]:
    """One set of bars a line, over the metrics."""
    series = []
    for line in lines:
        names = [_short(metric) for metric in line.ours]
        pairs = list(line.ours.values())
        name = _name(line.cell, panel)
        series.append(Series(name, names, [pair[0] for pair in pairs], colours[name], _spread(pairs)))
    return [Figure("", "", panel, "bars", exhibit.axis, _unit(exhibit, exhibit.metrics[0]), series)] if series else []


def curves(exhibit: Exhibit, jobs: Jobs, root: Path) -> tuple[list[Figure], int]:
    """What the histories say, over the rounds: a curve a row, its mean over the seeds in a band of one standard deviation."""
    rows = []
    for cell in exhibit.runnable:
        folders = finished(jobs.get((exhibit.name, cell.row), ()), root)
        if folders:
            rows.append((cell, Row(cell.row, [read_run(folder) for folder in folders])))
    most = min(MOST_OF_ONE, max(20, MOST_POINTS // max(1, len(rows) * len(exhibit.curves))))
    lengths = [run.result.rounds for _, row in rows for run in row.runs]
    log = bool(lengths) and max(lengths) > matplotlib.WIDE * min(lengths)
    colours = _colours(exhibit)
    figures = []
    for panel in exhibit.panels or ("",):
        for metric in exhibit.curves:
            series = []
            for cell, row in rows:
                points = thin(row.curve(metric, "round"), most, log) if cell.within(panel) else []
                if points:
                    x, y, spread = zip(*points, strict=True)
                    name = _name(cell, panel, whole=True)
                    series.append(Series(name, x, y, colours[name], spread if len(row.runs) > 1 else None))
            if series:
                title = _title(exhibit, panel, metric, len(exhibit.curves))
                share = metric_format(metric).percent
                figures.append(
                    Figure("", "", title, "lines", "round", metric_format(metric).heading, series, percent=share, log=log)
                )
    return figures, sum(len(row.runs) for _, row in rows)


def boxes(exhibit: Exhibit, jobs: Jobs, root: Path) -> tuple[list[Figure], int]:
    """A box a row, over its seeds."""
    figures, runs = [], 0
    known = recorded(exhibit.name.partition("/")[0])
    found = {cell.row: results(jobs.get((exhibit.name, cell.row), ()), root, known) for cell in exhibit.runnable}
    for metric in exhibit.metrics:
        series = []
        for place, (row, each) in enumerate(found.items()):
            values = [value for value in (exhibit.value(metric, result) for result in each) if value is not None]
            if values:
                series.append(Series(row, [row] * len(values), values, place))
                runs += len(values)
        if series:
            figures.append(Figure("", "", _title(exhibit, "", metric), "boxes", exhibit.axis, _unit(exhibit, metric), series))
    return figures, runs


def maps(exhibit: Exhibit, jobs: Jobs, root: Path) -> list[Figure]:
    """The test nodes in the plane, a map a row, coloured by class."""
    figures = []
    for cell in exhibit.runnable:
        for folder in finished(jobs.get((exhibit.name, cell.row), ()), root)[:1]:
            try:
                drawn = tsne(read(folder))
            except (AtollError, OSError):  # its graph is not here
                continue
            series = []
            for place in sorted(set(drawn.classes.tolist())):
                cloud = drawn.points[drawn.classes == place].astype(float)
                series.append(Series(str(place), cloud[:, 0].tolist(), cloud[:, 1].tolist(), place))
            figures.append(Figure("", "", cell.row, "map", series=series))
    return figures


def _file(figures: Sequence[Figure], form: str, runs: int) -> bytes:
    columns = min(3, len(figures)) if form == "png" or len(figures) not in (4, 8) else 2
    data = matplotlib.panels(figures, form, columns, f"atoll: {runs} runs", dpi=75, legend=form == "svg")
    return re.sub(rb"(\d\.\d\d)\d+", rb"\1", data) if form == "svg" else data  # a hundredth of a point is enough for the eye


def _shown(file: Path) -> int:
    """How many runs a picture shows."""
    found = re.search(rb"atoll: (\d+) runs", file.read_bytes())
    return int(found[1]) if found else 0


def _name(cell: Cell, panel: str, whole: bool = False) -> str:
    """A series' name in its panel: the row's (`whole`) or the series', without the words that the panel's title says."""
    name = cell.row if whole else cell.series or cell.row
    return name.removeprefix(panel).strip() or name


def _colours(exhibit: Exhibit) -> dict[str, int]:
    """The same name has the same colour in every panel."""
    names = []
    for cell in exhibit.cells:
        names += [_name(cell, exhibit.panel(cell), whole=bool(exhibit.curves))]
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def _title(exhibit: Exhibit, panel: str, metric: str, metrics: int = 0) -> str:
    return ", ".join(
        [*([panel] if panel else []), *([metric_format(metric).heading] if (metrics or len(exhibit.metrics)) > 1 else [])]
    )


def _unit(exhibit: Exhibit, metric: str) -> str:
    words = "accuracy" if "accuracy" in metric else metric_format(metric).heading
    return f"{words} (%)" if exhibit.percent and metric not in exhibit.scale else words


def _short(metric: str) -> str:
    """A metric as a tick: `party_accuracy.3` is party 3."""
    first, _, place = metric.partition(".")
    return (
        f"{first.partition('_')[0]} {place}"
        if place
        else {"accuracy": "all", "local_accuracy": "all"}.get(metric, metric_format(metric).heading)
    )


def _spread(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    spread = [0.0 if math.isnan(pair[1]) else pair[1] for pair in pairs]
    return spread if any(spread) else None
