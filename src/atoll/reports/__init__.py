"""Reports of runs: one self-contained page, figures and tables for a paper. `atoll report runs/* --html report.html`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError
from atoll.reports import matplotlib, page, recompute, table
from atoll.reports.detail import RowDetail, row_detail
from atoll.reports.figures import Figure
from atoll.reports.figures.classes import MAX_MATRICES, classes
from atoll.reports.figures.cost import cost
from atoll.reports.figures.curves import learning
from atoll.reports.figures.embeddings import embeddings as embedding_figures
from atoll.reports.figures.parties import groups, parties
from atoll.reports.figures.partition import partition
from atoll.reports.figures.ranks import ranks, why_unranked
from atoll.reports.gaps import Gaps
from atoll.reports.page_table import PageTable
from atoll.reports.partitions import Partition, majority, partition_of
from atoll.reports.party_table import party_table
from atoll.reports.runs import Row, gather, grouped
from atoll.reports.table import ComparisonTable

Progress = Callable[[str], None]
METHODS = ("tsne", "pca", "none")
MAX_NODES = 600  # of an embedding
MAX_EMBEDDINGS = 6  # rows whose embeddings are drawn
MAX_PARTITIONS = 4
SECONDS_BETWEEN_UPDATES = 5.0


@dataclass(frozen=True)
class Report:
    """Everything a report says, not yet in any format."""

    rows: list[Row]
    tables: list[ComparisonTable]  # one for each data
    cards: list[Figure | PageTable]  # figures and further tables, section by section
    notes: list[str]  # which parties were missing in a run; what could not be shown, and why

    @property
    def figures(self) -> list[Figure]:
        """The cards that are drawn."""
        return [card for card in self.cards if isinstance(card, Figure)]

    @property
    def done(self) -> bool:
        """Whether all runs are over."""
        return all(row.done for row in self.rows)


def make(paths: Iterable[str | Path], *, embeddings: str = "tsne", progress: Progress | None = None) -> Report:
    """Read the runs and draw up their report; what needs their models waits until all runs are over.

    `progress` is called with what is being done.
    """
    if embeddings not in METHODS:
        raise AtollError(f"--embeddings is {embeddings!r} but must be one of {', '.join(METHODS)}.")
    rows = grouped(gather(Path(path) for path in paths))
    gaps = Gaps()
    notes = [run.absence for row in rows for run in row.runs if run.absence]
    notes += [f"{row.label}, seed {run.config.seed}: {text}" for row in rows for run in row.runs for text in run.result.warnings]
    notes += [sentence for row in rows if (sentence := _repeated_seeds(row))]
    notes += [sentence] if (sentence := why_unranked(rows)) else []
    details: list[RowDetail | None] = [None] * len(rows)
    maps: list[Figure] = []
    if all(row.done for row in rows):
        details, maps = _from_models(rows, embeddings, gaps, progress or (lambda _: None))
    cards: list[Figure | PageTable] = [
        *ranks(rows),
        *learning(rows),
        *classes(rows, details),
        *party_table(rows, details),
        *parties(rows),
        *groups(rows, [majority(row) for row in rows]),
        *cost(rows),
        *_partitions(rows, gaps),
        *maps,
    ]
    return Report(rows, table.tables(rows, majority), cards, notes + gaps.sentences())


def _repeated_seeds(row: Row) -> str:
    """A sentence where a seed occurs more than once, which makes a standard deviation too small."""
    seeds = [run.config.seed for run in row.runs]
    repeated = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    return f"{row.label}: seed {', '.join(map(str, repeated))} occurs more than once." if repeated else ""


def _from_models(rows: Sequence[Row], method: str, gaps: Gaps, progress: Progress) -> tuple[list[RowDetail | None], list[Figure]]:
    """The details of the rows' predictions and their embeddings, row by row, as a model may have to be loaded for both."""
    details: list[RowDetail | None] = []
    maps: list[Figure] = []
    for number, row in enumerate(rows):
        progress(f"Predictions and embeddings of {row.label} ({number + 1} of {len(rows)})")
        detail = row_detail(row) if number < MAX_MATRICES else None
        if isinstance(detail, str):
            gaps.add(row.label, "classes and calibration", detail)
        details.append(detail if isinstance(detail, RowDetail) else None)
        if method != "none" and number < MAX_EMBEDDINGS:
            maps += _embedding(row, method, gaps, f"-{number}" if len(rows) > 1 else "")
    recompute.predictions.cache_clear()
    if len(rows) > MAX_MATRICES:
        gaps.others.append(f"Classes and calibration are shown for the first {MAX_MATRICES} of {len(rows)} rows.")
    if method != "none" and len(rows) > MAX_EMBEDDINGS:
        gaps.others.append(f"Embeddings are shown for the first {MAX_EMBEDDINGS} of {len(rows)} rows.")
    return details, maps


def _embedding(row: Row, method: str, gaps: Gaps, suffix: str) -> list[Figure]:
    embedded = recompute.embedding(row.runs[0], method, MAX_NODES)
    if isinstance(embedded, str):
        gaps.add(row.label, "embeddings", embedded)
        return []
    divided = partition_of(row.runs[0].config)
    return embedding_figures(row, embedded, method, [] if isinstance(divided, str) else divided.class_names, suffix)


def _partitions(rows: Sequence[Row], gaps: Gaps) -> list[Figure]:
    """The distinct partitions of the rows, each drawn once, for the first seed."""
    distinct: dict[str, tuple[Partition, str, int]] = {}
    for row in rows:
        config = row.runs[0].config
        divided = partition_of(config)
        if isinstance(divided, str):
            gaps.add(row.label, "partition", divided)
        else:
            title = f"{row.data_name}, {config.partition}, {len(divided.facts.parties)} parties"
            distinct.setdefault(f"{title} {divided.facts} {divided.names}", (divided, title, config.seed))
    if len(distinct) > MAX_PARTITIONS:
        gaps.others.append(f"The first {MAX_PARTITIONS} of {len(distinct)} partitions are shown.")
    titles = [title for _, title, _ in distinct.values()]
    drawn = []
    for number, (divided, title, seed) in enumerate(list(distinct.values())[:MAX_PARTITIONS]):
        title += f", seed {seed}" if titles.count(title) > 1 else ""
        several = len(distinct) > 1
        drawn.append(partition(divided, f": {title}" if several else "", f"-{number}" if several else ""))
    return list(chain.from_iterable(drawn))


def write(
    report: Report,
    *,
    html: Path | None = None,
    png: Path | None = None,
    svg: Path | None = None,
    latex: Path | None = None,
    markdown: Path | None = None,
) -> list[Path]:
    """Write the report in the formats asked for; everything is rendered before the first file is written, and each is atomic."""
    files: dict[Path, bytes] = {}
    if html is not None:
        files[html] = page.render(report).encode()
    for folder, form in ((png, "png"), (svg, "svg")):
        if folder is not None:
            files |= {folder / f"{figure.name}.{form}": matplotlib.draw(figure, form) for figure in report.figures}
    if latex is not None:
        files[latex] = "\n".join(map(table.latex, report.tables)).encode()
    if markdown is not None:
        files[markdown] = "\n".join(map(table.markdown, report.tables)).encode()
    _save(files)
    return list(files)


def _save(files: Mapping[Path, bytes]) -> None:
    for path, data in files.items():
        if not path.name:
            raise AtollError(f"{str(path)!r} is not the name of a file; choose another path for the report.")
        with storage.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_whole(path, data)


def follow(
    paths: Sequence[str | Path], html: Path, *, embeddings: str = "tsne", seconds: float = SECONDS_BETWEEN_UPDATES
) -> Report:
    """Write the page every few seconds until all runs are over."""
    while True:
        report = make(paths, embeddings=embeddings)
        write(report, html=html)
        if report.done:
            return report
        time.sleep(seconds)
