"""Reports of runs: one page without a network, figures and tables for a paper. `atoll report runs/* --html report.html`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError
from atoll.reports import figures, matplotlib, page, recompute, table
from atoll.reports.figures import Figure
from atoll.reports.runs import Row, gather, grouped
from atoll.reports.table import ComparisonTable

METHODS = ("tsne", "pca", "none")
MOST_NODES = 600  # of an embedding
MOST_EMBEDDINGS = 6  # rows of which embeddings are drawn
MOST_PARTITIONS = 4
SECONDS_BETWEEN_LOOKS = 5.0


@dataclass(frozen=True)
class Report:
    """Everything a report says, not yet in any form."""

    rows: list[Row]
    table: ComparisonTable
    figures: list[Figure]
    notes: list[str]  # who was missing in a run; what could not be shown, and why

    @property
    def done(self) -> bool:
        """Whether all runs are over."""
        return all(row.done for row in self.rows)


def make(paths: Iterable[str | Path], *, embeddings: str = "tsne") -> Report:
    """Read the runs and draw up their report; embeddings wait until all runs are over."""
    if embeddings not in METHODS:
        raise AtollError(f"--embeddings is {embeddings!r} but must be one of {', '.join(METHODS)}.")
    rows = grouped(gather(Path(path) for path in paths))
    notes = [run.absence for row in rows for run in row.runs if run.absence]
    notes += [f"{row.label}, seed {run.config.seed}: {text}" for row in rows for run in row.runs for text in run.result.warnings]
    drawn = [
        *figures.learning(rows),
        *figures.parties(rows),
        *figures.groups(rows, [recompute.majority(row) for row in rows]),
        *figures.traffic(rows),
        *_partitions(rows, notes),
    ]
    if embeddings != "none" and all(row.done for row in rows):
        drawn += _embeddings(rows, embeddings, notes)
    return Report(rows, table.table(rows, recompute.majority), drawn, notes)


def _partitions(rows: Sequence[Row], notes: list[str]) -> list[Figure]:
    """The distinct ways the rows' graphs were spread, each drawn once, for the first seed."""
    found: dict[int, tuple[recompute.Partition, str]] = {}
    for row in rows:
        config = row.runs[0].config
        told = recompute.partition_of(config)
        if isinstance(told, str):
            notes.append(f"The partition of {row.label} is not drawn: {told}.")
        else:
            found.setdefault(id(told), (told, f"{config.dataset}, {config.partition}, {len(told.facts.parties)} parties"))
    several = len(found) > 1
    if len(found) > MOST_PARTITIONS:
        notes.append(f"The first {MOST_PARTITIONS} of {len(found)} partitions are drawn.")
    shown = list(found.values())[:MOST_PARTITIONS]
    drawn = [
        figures.partition(told, f": {title}" if several else "", f"-{place}" if several else "")
        for place, (told, title) in enumerate(shown)
    ]
    return list(chain.from_iterable(drawn))


def _embeddings(rows: Sequence[Row], method: str, notes: list[str]) -> list[Figure]:
    drawn: list[Figure] = []
    for place, row in enumerate(rows[:MOST_EMBEDDINGS]):
        found = recompute.embedding(row.runs[0], method, MOST_NODES)
        if isinstance(found, str):
            notes.append(f"The embeddings of {row.label} are not drawn: {found}.")
            continue
        told = recompute.partition_of(row.runs[0].config)
        names = [] if isinstance(told, str) else told.class_names
        drawn += figures.embeddings(row, found, method, names, f"-{place}" if len(rows) > 1 else "")
    if len(rows) > MOST_EMBEDDINGS:
        notes.append(f"Embeddings are drawn for the first {MOST_EMBEDDINGS} of {len(rows)} rows.")
    return drawn


def write(
    report: Report,
    *,
    html: Path | None = None,
    png: Path | None = None,
    svg: Path | None = None,
    latex: Path | None = None,
    markdown: Path | None = None,
) -> list[Path]:
    """Write the report in the forms asked for; everything is made before the first file is written, and each appears whole."""
    files: dict[Path, bytes] = {}
    if html is not None:
        files[html] = page.render(report).encode()
    for folder, form in ((png, "png"), (svg, "svg")):
        if folder is not None:
            files |= {folder / f"{figure.name}.{form}": matplotlib.draw(figure, form) for figure in report.figures}
    if latex is not None:
        files[latex] = table.latex(report.table).encode()
    if markdown is not None:
        files[markdown] = table.markdown(report.table).encode()
    _save(files)
    return list(files)


def _save(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        if not path.name:
            raise AtollError(f"{str(path)!r} is no name for a file; choose another place for the report.")
        with storage.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_whole(path, data)


def follow(
    paths: Sequence[str | Path], html: Path, *, embeddings: str = "tsne", seconds: float = SECONDS_BETWEEN_LOOKS
) -> Report:
    """Write the page again and again until all runs are over."""
    while True:
        report = make(paths, embeddings=embeddings)
        write(report, html=html)
        if report.done:
            return report
        time.sleep(seconds)
