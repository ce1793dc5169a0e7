"""The parties: the score of each, against its size and its homophily, and majority against minority nodes."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.reports.figures.figure import KINDS, Figure, Series
from atoll.reports.figures.partition import MAX_PARTIES
from atoll.reports.partitions import partition_of, party_names
from atoll.reports.runs import Row, items_of_rows
from atoll.runs.config import Config

SECTION = "Parties"
ACCURACY = "party_accuracy"


def parties(rows: Sequence[Row]) -> list[Figure]:
    """Accuracy of each party as bars (mean over the seeds), against its size and against its homophily (all seeds)."""
    bars = []
    for number, row in enumerate(rows):
        pairs = row.party_means(ACCURACY)
        if 1 < len(pairs) <= MAX_PARTIES and any(pair is not None for pair in pairs):
            std = [0.0 if pair is None else pair[1] or 0.0 for pair in pairs] if row.several else None
            means = [None if pair is None else pair[0] for pair in pairs]
            bars.append(Series(row.label, _tick_names(row, len(pairs)), means, number, std))
    figures = []
    if bars:
        caption = f"Test {items_of_rows(rows)} of each party."
        caption += " Whiskers are ± one standard deviation over the seeds." if any(row.several for row in rows) else ""
        title = "Accuracy of each party"
        figures.append(Figure("party-accuracy", SECTION, title, "bars", "party", "accuracy", bars, None, caption, True))
    return figures + _against_facts(rows)


def _tick_names(row: Row, count: int) -> list[str]:
    """Names of the parties beside an axis; numbers where they have none."""
    names = party_names(row)
    return names if len(names) == count else [str(party) for party in range(count)]


def _against_facts(rows: Sequence[Row]) -> list[Figure]:
    """Accuracy against size and homophily, one point per party and seed."""
    sizes, homophily = [], []
    for number, row in enumerate(rows):
        points = [point for run in row.runs for point in _points(row, run.config, run.metrics.get(ACCURACY) or [])]
        if points:
            nodes, shares, accuracy, names = zip(*points, strict=True)
            sizes.append(Series(row.label, nodes, accuracy, number, texts=names))
            homophily.append(Series(row.label, shares, accuracy, number, texts=names))
    caption = "One point per party and seed." if any(row.several for row in rows) else "One point per party."
    more = f"{caption} Homophily is the mean share of a node's neighbors that have its class."
    kind, unit = "points", "accuracy"
    figures = [
        Figure("party-size", SECTION, "Accuracy by party size", kind, "nodes", unit, sizes, None, caption, True),
        Figure("party-homophily", SECTION, "Accuracy by homophily", kind, "homophily", unit, homophily, None, more, True),
    ]
    return [figure for figure in figures if len({x for series in figure.series for x in series.x}) > 1]  # else nothing to see


def _points(row: Row, config: Config, accuracies: Sequence[float | None]) -> list[tuple[float, float, float, str]]:
    """(nodes, homophily, accuracy, name) of the parties that have all of it."""
    divided = partition_of(config)
    if isinstance(divided, str) or len(accuracies) != len(divided.facts.parties) or len(accuracies) < 2:
        return []
    listed = zip(divided.facts.parties, divided.homophily, accuracies, _tick_names(row, len(accuracies)), strict=True)
    return [
        (facts.nodes, same, accuracy, name) for facts, same, accuracy, name in listed if accuracy is not None and same is not None
    ]


def groups(rows: Sequence[Row], majority: Sequence[tuple[float, float | None] | None]) -> list[Figure]:
    """Accuracy on majority and minority nodes."""
    minority = [row.mean("minority_accuracy") for row in rows]
    series = []
    for number, (name, means) in enumerate({"majority nodes": majority, "minority nodes": minority}.items()):
        pairs = [(row.label, pair) for row, pair in zip(rows, means, strict=True) if pair is not None]
        if pairs:
            labels, values = [label for label, _ in pairs], [pair[0] for _, pair in pairs]
            std = [pair[1] or 0.0 for _, pair in pairs]
            series.append(Series(name, labels, values, KINDS + 1 + number, std if any(std) else None))
    caption = "Majority nodes have the most frequent class among their party's training nodes; minority nodes are the others."
    title = "Majority and minority nodes" if len(series) > 1 else "Minority nodes"
    figure = Figure("minority", SECTION, title, "bars", "", "accuracy", series, None, caption, True)
    return [figure] if len(series) > 1 or (series and len(rows) > 1) else []
