"""The nodes of a row in two dimensions, colored by class and by party."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from atoll.reports.figures.figure import PALETTE, Figure, Series
from atoll.reports.partitions import party_names
from atoll.reports.recompute import Embedding
from atoll.reports.runs import Row
from atoll.tasks import TASKS
from atoll.tasks.levels import items_of

SECTION = "Embeddings"
METHODS = {"tsne": "t-SNE", "pca": "PCA"}
UNLABELED = 6  # gray


def embeddings(row: Row, embedded: Embedding, method: str, class_names: Sequence[str], suffix: str) -> list[Figure]:
    """One map by class and, where there are several parties but not too many, one by party."""
    task, shown = TASKS.find(row.runs[0].config.run.task), len(embedded.points)
    items = items_of(task)
    seed = f", seed {row.runs[0].config.seed}" if row.several else ""
    caption = f"{METHODS[method]} of {embedded.what} at round {embedded.round}{seed}; "
    caption += f"{shown:,} of {embedded.of:,} {items}." if shown < embedded.of else f"{shown:,} {items}."
    figures = []
    for what, values in (("class", embedded.label), ("party", embedded.party)):
        if what == "class" and getattr(task, "target", "class") != "class":  # labels and values are no classes
            continue
        if what == "party" and not 1 < len(np.unique(values)) <= 2 * len(PALETTE):  # nothing to tell apart, or too much
            continue
        order = np.argsort(values, kind="stable")
        series = []
        for value, members in groupby(order.tolist(), key=lambda node: int(values[node])):
            points = embedded.points[list(members)]
            name = _party_name(row, value) if what == "party" else _class_name(class_names, value)
            series.append(Series(name, points[:, 0].tolist(), points[:, 1].tolist(), value if value >= 0 else UNLABELED))
        title = f"{row.label}: {items} by {what}"
        figures.append(Figure(f"embedding-{what}{suffix}", SECTION, title, "map", series=series, caption=caption))
    return figures


def _party_name(row: Row, party: int) -> str:
    names = party_names(row)
    return names[party] if party < len(names) else f"party {party}"


def _class_name(names: Sequence[str], value: int) -> str:
    if value < 0:
        return "no label"
    return names[value] if value < len(names) else str(value)
