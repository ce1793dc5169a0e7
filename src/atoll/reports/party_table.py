"""The table of the parties: how large each is and how good the rows are at it."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from atoll.reports.detail import RowDetail
from atoll.reports.figures.partition import MAX_PARTIES
from atoll.reports.page_table import PageTable
from atoll.reports.partitions import Partition, partition_of, party_names
from atoll.reports.runs import Row, items_of_rows, listed
from atoll.runs.metrics import in_order, mean_std, mean_text, metric_format
from atoll.tasks import TASKS

FACTS = {"nodes": "nodes", "edges": "edges", "train": "training", "val": "validation", "test": "test"}
PREFIX = "party_"
FROM_DETAIL = ("accuracy", "macro_f1", "auc", "average_precision", "calibration_error")  # the others would make it too wide
SCORE = "accuracy"  # the metric by which several rows are compared


def party_table(rows: Sequence[Row], details: Sequence[RowDetail | None]) -> list[PageTable]:
    """One table for all rows that have the same parties; several where they differ."""
    groups: dict[tuple[str, ...], list[int]] = {}
    for number, row in enumerate(rows):
        if 1 < len(names := _names(row)) <= MAX_PARTIES:
            groups.setdefault((row.data_name, str(row.runs[0].config.partition), *names), []).append(number)
    tables = [
        _table([rows[number] for number in members], [details[number] for number in members], len(groups) > 1, members[0])
        for members in groups.values()
    ]
    return [table for table in tables if len(table.headings) > 1]


def _table(rows: Sequence[Row], details: Sequence[RowDetail | None], several: bool, number: int) -> PageTable:
    names = _names(rows[0])
    facts, metrics = _facts(rows[0], len(names)), dict[str, list[str]]()
    for row, detail in zip(rows, details, strict=True):
        for metric, values in _metrics(row, detail, len(names)).items():
            shown = metric_format(metric)
            heading = shown.heading + (" %" if shown.percent else "")
            if len(rows) == 1 or metric == SCORE:
                metrics[heading if len(rows) == 1 else row.label] = [_text(metric, pair) for pair in values]
    title = "Parties" if len(rows) == 1 else "Parties, and the accuracy (%) of each run there"
    title += f": {listed([row.label for row in rows])}" if several else ""
    captions = ["Sizes are nodes and undirected edges."] if facts else []
    captions += [f"Metrics are those of the party's test {items_of_rows(rows)} at the best round."] if metrics else []
    seeds = max(len(row.runs) for row in rows)
    captions += [f"± is the standard deviation over {seeds} seeds."] if seeds > 1 and metrics else []
    columns = facts | metrics
    lines = [[name, *(values[party] for values in columns.values())] for party, name in enumerate(names)]
    return PageTable(f"parties-{number}", "Parties", title, ["party", *columns], lines, " ".join(captions))


def _names(row: Row) -> list[str]:
    """Names of the parties; `party 3` where they have none."""
    return party_names(row) or [f"party {party}" for party in range(row.runs[0].result.parties)]


def _facts(row: Row, count: int) -> dict[str, list[str]]:
    """Sizes of the parties, the mean where the seeds divide the graph differently; nothing where the data is elsewhere."""
    known = [divided for run in row.runs if isinstance(divided := partition_of(run.config), Partition)]
    known = [divided for divided in known if len(divided.facts.parties) == count]
    if not known:
        return {}
    columns = {
        heading: [fmean(getattr(divided.facts.parties[party], name) for divided in known) for party in range(count)]
        for name, heading in FACTS.items()
        if name in ("nodes", "edges") or getattr(TASKS.find(row.runs[0].config.run.task), "level", "") != "link"
    }
    shown = {heading: [f"{value:,.0f}" for value in values] for heading, values in columns.items()}
    same = [[divided.homophily[party] for divided in known] for party in range(count)]
    shown["homophily"] = ["–" if None in values else f"{fmean(v for v in values if v is not None):.2f}" for values in same]
    return shown


def _metrics(row: Row, detail: RowDetail | None, count: int) -> dict[str, list[tuple[float, float | None] | None]]:
    """Metrics of each party by name, as mean and standard deviation."""
    listed: dict[str, Any] = {}
    for name in dict.fromkeys(name for run in row.runs for name in run.metrics if name.startswith(PREFIX)):
        values = row.party_means(name)
        if len(values) == count:
            listed[name.removeprefix(PREFIX)] = values
    judged = detail.parties if detail and len(detail.parties) == count else []
    for metric in dict.fromkeys(name for one in judged for name in one):
        if metric in FROM_DETAIL and metric not in listed:
            listed[metric] = [mean_std(one.get(metric, [])) for one in judged]
    return {name: listed[name] for name in in_order(listed) if any(pair is not None for pair in listed[name])}


def _text(metric: str, pair: tuple[float, float | None] | None) -> str:
    if pair is None:
        return "–"
    factor, digits = (100, 1) if metric_format(metric).percent else (1, 3)
    return mean_text(factor * pair[0], None if pair[1] is None else factor * pair[1], digits)
