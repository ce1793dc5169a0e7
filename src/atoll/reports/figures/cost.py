"""What the score costs: curves against megabytes and seconds, and bytes by verb and direction."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.reports.figures.curves import band_words, curve, scores
from atoll.reports.figures.figure import KINDS, Figure, Series
from atoll.reports.runs import Row, items_of_rows
from atoll.runs.metrics import metric_format

SECTION = "Cost"
AXES = {  # axis → what it is called in a title and beside the axis
    "megabytes": ("megabytes sent", "megabytes up and down"),
    "seconds": ("seconds", "seconds"),
    "simulated_seconds": ("simulated network seconds", "simulated seconds"),
}


def cost(rows: Sequence[Row]) -> list[Figure]:
    """The first score against each axis that the histories have, then the traffic."""
    figures = []
    for metric in scores(rows):
        shown = metric_format(metric)
        for axis, (words, title) in AXES.items():
            curves = [one for number, row in enumerate(rows) if (one := curve(row, metric, axis, row.label, number))]
            if not curves:
                continue
            caption = f"Test {items_of_rows(rows)}. {band_words(any(row.several for row in rows))}".strip()
            if axis == "megabytes":
                caption += " Payload of training, all parties together."
            name, heading = f"{metric}-{axis}".replace("_", "-"), f"{shown.words} by {words}"
            heading = heading[0].upper() + heading[1:]
            figures.append(Figure(name, SECTION, heading, "lines", title, shown.words, curves, None, caption, shown.percent))
    return figures + traffic(rows)


def traffic(rows: Sequence[Row]) -> list[Figure]:
    """Megabytes by verb and direction."""
    verbs = list(dict.fromkeys(verb for row in rows for run in row.runs for verb in run.by_verb))
    sending = [row for row in rows if any(run.megabytes(way) for run in row.runs for way in ("up", "down"))]
    silent = [row.label for row in rows if row not in sending]
    bars = [(row, way, f"{row.label} {arrow}") for row in sending for way, arrow in (("up", "↑"), ("down", "↓"))]
    series = []
    for number, verb in enumerate(verbs):
        sums = [sum(run.by_verb.get(verb, {}).get(way, 0) for run in row.runs) / len(row.runs) / 1e6 for row, way, _ in bars]
        if any(sums):
            series.append(Series(verb, [label for _, _, label in bars], sums, KINDS + number))
    caption = "↑ from the parties, ↓ to the parties; payload of training, all rounds"
    caption += ", mean over the seeds." if any(row.several for row in rows) else "."
    if silent:
        caption += f" {', '.join(silent)} {'sends' if len(silent) == 1 else 'send'} nothing."
    title = "Megabytes by verb and direction"
    return [Figure("bytes", SECTION, title, "stack", "", "megabytes", series, None, caption)] if series else []
