"""Our versions of the papers' figures, from the exhibit's lines or, for curves over the rounds, from its runs' histories."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit, Line, recorded
from atoll.papers.claims import Verdict
from atoll.papers.execute import finished, results
from atoll.reports import matplotlib
from atoll.reports.embedding import tsne
from atoll.reports.figures import Figure, Series, thin
from atoll.reports.runs import Row, read_run
from atoll.runs.config import Config
from atoll.runs.metrics import metric_format
from atoll.runs.reader import read

Jobs = Mapping[tuple[str, str], Sequence[Config]]
MAX_POINTS = 1200  # all curves of a picture together, to keep the file small
MAX_CURVE_POINTS = 120


@dataclass(frozen=True)
class Picture:
    """A picture file and the number of runs it shows."""

    data: bytes
    form: str
    runs: int


def save(shown: Sequence[tuple[Exhibit, Sequence[Line]]], jobs: Jobs, root: Path, folder: Path) -> dict[str, Path]:
    """Draw what can be drawn and return each exhibit's file. A picture that shows more runs than are here now is kept."""
    files = {}
    for exhibit, lines in shown:
        stem = exhibit.name.replace("/", "-")
        existing = [path for form in ("svg", "png") if (path := folder / f"{stem}.{form}").exists()]
        picture = draw(exhibit, lines, jobs, root)
        if picture is not None and picture.runs >= max(map(_runs_shown, existing), default=0):
            folder.mkdir(parents=True, exist_ok=True)
            existing = [folder / f"{stem}.{picture.form}"]
            storage.write_whole(existing[0], picture.data)
        if existing:
            files[exhibit.name] = existing[0]
    return files


def claims(verdicts: Sequence[Verdict], file: Path) -> bool:
    """Draw every paired difference that the claims are about, with its interval, one color per claim; False without any."""
    series = []
    for number, verdict in enumerate(verdicts, 1):
        differences = [
            finding.difference for finding in verdict.findings if finding.difference and finding.difference.has_interval
        ]
        if differences:
            halves = [difference.high - difference.mean for difference in differences]
            names = [difference.row for difference in differences]
            series.append(Series(f"claim {number}", names, [difference.mean for difference in differences], number - 1, halves))
    if series:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure = Figure("", "", "", "intervals", "difference in points, 95 % interval", "", series)
        storage.write_whole(file, _file([figure], "svg", sum(verdict.runs for verdict in verdicts)))
    return bool(series)


def draw(exhibit: Exhibit, lines: Sequence[Line], jobs: Jobs, root: Path) -> Picture | None:
    """The picture of a figure, if there is anything to show."""
    if exhibit.kind == "embeddings":
        figures = maps(exhibit, jobs, root)
        return Picture(_file(figures, "png", len(figures)), "png", len(figures)) if figures else None
    if exhibit.kind == "boxes":
        figures, runs = boxes(exhibit, jobs, root)
    elif exhibit.kind == "figure" or (exhibit.kind == "facts" and exhibit.panels):
        figures, runs = curves(exhibit, jobs, root) if exhibit.curves else means(exhibit, lines)
    else:
        return None
    return Picture(_file(figures, "svg", runs), "svg", runs) if figures else None


def means(exhibit: Exhibit, lines: Sequence[Line]) -> tuple[list[Figure], int]:
    """Mean and standard deviation over the seeds: connected points if x is a number; bars if x is a name or a metric."""
    colors = _colors(exhibit)
    figures, runs = [], 0
    for panel in exhibit.panels or ("",):
        inside = [line for line in lines if line.ours and line.cell.within(panel)]
        if 2 * len(inside) < sum(cell.within(panel) for cell in exhibit.runnable):
            continue  # too few points for a curve
        runs += sum(line.seeds for line in inside)
        kind = "dots" if all(isinstance(line.cell.x, (int, float)) for line in inside) else "bars"
        if kind == "bars" and len({line.cell.x for line in inside}) < 2:
            figures += _over_metrics(exhibit, inside, panel, colors)
            continue
        for metric in exhibit.metrics:
            having = [line for line in inside if metric in line.ours]
            series = []
            for name in dict.fromkeys(_name(line.cell, panel) for line in having):
                same_name = [line for line in having if _name(line.cell, panel) == name]
                pairs = [line.ours[metric] for line in same_name]
                x = [line.cell.x for line in same_name if line.cell.x is not None]
                series.append(Series(name, x, [pair[0] for pair in pairs], colors[name], _stds(pairs)))
            if series:
                figures.append(Figure("", "", _title(exhibit, panel, metric), kind, exhibit.axis, _unit(exhibit, metric), series))
    return figures, runs


def _over_metrics(exhibit: Exhibit, lines: Sequence[Line], panel: str, colors: Mapping[str, int]) -> list[Figure]:
    """One set of bars per line, over the metrics."""
    series = []
    for line in lines:
        names = [_short(metric) for metric in line.ours]
        pairs = list(line.ours.values())
        name = _name(line.cell, panel)
        series.append(Series(name, names, [pair[0] for pair in pairs], colors[name], _stds(pairs)))
    return [Figure("", "", panel, "bars", exhibit.axis, _unit(exhibit, exhibit.metrics[0]), series)] if series else []


def curves(exhibit: Exhibit, jobs: Jobs, root: Path) -> tuple[list[Figure], int]:
    """The histories' metrics by round: one curve per row, the mean over the seeds in a band of one standard deviation."""
    rows = []
    for cell in exhibit.runnable:
        folders = finished(jobs.get((exhibit.name, cell.row), ()), root)
        if folders:
            rows.append((cell, Row(cell.row, [read_run(folder) for folder in folders])))
    most = min(MAX_CURVE_POINTS, max(20, MAX_POINTS // max(1, len(rows) * len(exhibit.curves))))
    lengths = [run.result.rounds for _, row in rows for run in row.runs]
    log = bool(lengths) and max(lengths) > matplotlib.WIDE * min(lengths)
    colors = _colors(exhibit)
    figures = []
    for panel in exhibit.panels or ("",):
        for metric in exhibit.curves:
            series = []
            for cell, row in rows:
                points = thin(row.curve(metric, "round"), most, log) if cell.within(panel) else []
                if points:
                    x, y, std = zip(*points, strict=True)
                    name = _name(cell, panel, whole=True)
                    series.append(Series(name, x, y, colors[name], std if len(row.runs) > 1 else None))
            if series:
                title = _title(exhibit, panel, metric, len(exhibit.curves))
                share = metric_format(metric).percent
                figures.append(
                    Figure("", "", title, "lines", "round", metric_format(metric).heading, series, percent=share, log=log)
                )
    return figures, sum(len(row.runs) for _, row in rows)


def boxes(exhibit: Exhibit, jobs: Jobs, root: Path) -> tuple[list[Figure], int]:
    """One box per row, over its seeds."""
    figures, runs = [], 0
    known = recorded(exhibit.name.partition("/")[0])
    by_row = {cell.row: results(jobs.get((exhibit.name, cell.row), ()), root, known) for cell in exhibit.runnable}
    for metric in exhibit.metrics:
        series = []
        for index, (row, each) in enumerate(by_row.items()):
            values = [value for value in (exhibit.value(metric, result) for result in each) if value is not None]
            if values:
                series.append(Series(row, [row] * len(values), values, index))
                runs += len(values)
        if series:
            figures.append(Figure("", "", _title(exhibit, "", metric), "boxes", exhibit.axis, _unit(exhibit, metric), series))
    return figures, runs


def maps(exhibit: Exhibit, jobs: Jobs, root: Path) -> list[Figure]:
    """The test nodes in the plane, one map per row, colored by class."""
    figures = []
    for cell in exhibit.runnable:
        for folder in finished(jobs.get((exhibit.name, cell.row), ()), root)[:1]:
            try:
                drawn = tsne(read(folder))
            except (AtollError, OSError):  # its graph is not available
                continue
            series = []
            for label in sorted(set(drawn.classes.tolist())):
                cloud = drawn.points[drawn.classes == label].astype(float)
                series.append(Series(str(label), cloud[:, 0].tolist(), cloud[:, 1].tolist(), label))
            figures.append(Figure("", "", cell.row, "map", series=series))
    return figures


def _file(figures: Sequence[Figure], form: str, runs: int) -> bytes:
    columns = min(3, len(figures)) if form == "png" or len(figures) not in (4, 8) else 2
    data = matplotlib.panels(figures, form, columns, f"atoll: {runs} runs", dpi=75, legend=form == "svg")
    return re.sub(rb"(\d\.\d\d)\d+", rb"\1", data) if form == "svg" else data  # two decimals of a point are enough


def _runs_shown(file: Path) -> int:
    """The number of runs that a picture shows."""
    match = re.search(rb"atoll: (\d+) runs", file.read_bytes())
    return int(match[1]) if match else 0


def _name(cell: Cell, panel: str, whole: bool = False) -> str:
    """The name of a series in its panel: the row's (`whole`) or the series', without the words of the panel's title."""
    name = cell.row if whole else cell.series or cell.row
    return name.removeprefix(panel).strip() or name


def _colors(exhibit: Exhibit) -> dict[str, int]:
    """The same name has the same color in every panel."""
    names = []
    for cell in exhibit.cells:
        names += [_name(cell, exhibit.panel(cell), whole=bool(exhibit.curves))]
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def _title(exhibit: Exhibit, panel: str, metric: str, metrics: int = 0) -> str:
    return ", ".join(
        [*([panel] if panel else []), *([metric_format(metric).heading] if (metrics or len(exhibit.metrics)) > 1 else [])]
    )


def _unit(exhibit: Exhibit, metric: str) -> str:
    words = "accuracy" if "accuracy" in metric else metric_format(metric).heading
    return f"{words} (%)" if exhibit.percent and metric not in exhibit.scale else words


def _short(metric: str) -> str:
    """A metric as a tick label: `party_accuracy.3` becomes party 3."""
    first, _, index = metric.partition(".")
    return (
        f"{first.partition('_')[0]} {index}"
        if index
        else {"accuracy": "all", "local_accuracy": "all"}.get(metric, metric_format(metric).heading)
    )


def _stds(pairs: Sequence[tuple[float, float]]) -> list[float] | None:
    stds = [0.0 if math.isnan(pair[1]) else pair[1] for pair in pairs]
    return stds if any(stds) else None
