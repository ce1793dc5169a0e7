"""How well each class is predicted: confusion, precision, recall and F1, and the calibration of the probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atoll.reports.detail import RowDetail, mean_of
from atoll.reports.figures.figure import KINDS, Figure, Heat, Series
from atoll.reports.page_table import PageTable
from atoll.reports.runs import Row, items_of_rows
from atoll.runs.metrics import mean_text

SECTION = "Classes"
MAX_BARS = 30  # classes whose bars are drawn
MAX_MATRICES = 6  # rows whose confusion matrices are drawn
MAX_CLASSES = 100  # of a matrix
MIN_NODES = 5  # of a bin of the calibration that is drawn
BARS = ("precision", "recall", "f1")
HEADINGS = {"precision": "precision", "recall": "recall", "f1": "F1", "auc": "AUC", "average_precision": "AP"}


def classes(rows: Sequence[Row], details: Sequence[RowDetail | None]) -> list[Figure]:
    """Bars by class, the calibration, and for each row the confusion matrix beside its table of classes."""
    known = [(number, row, one) for number, (row, one) in enumerate(zip(rows, details, strict=True)) if one is not None]
    if not known:
        return []
    drawn = _bars(known) + _reliability(known)
    return drawn + [_confusion(number, row, one, len(rows) > 1) for number, row, one in known[:MAX_MATRICES]]


Known = Sequence[tuple[int, Row, RowDetail]]


def _bars(known: Known) -> list[Figure]:
    """Precision, recall and F1 of one row's classes, or the F1 of several rows that have the same classes."""
    groups: dict[tuple[str, ...], list[tuple[int, Row, RowDetail]]] = {}
    for entry in known:
        groups.setdefault(tuple(entry[2].classes), []).append(entry)
    figures = []
    for index, (names, members) in enumerate(groups.items()):
        if len(names) > MAX_BARS:
            continue
        if len(members) == 1:
            detail = members[0][2]
            series = [_bar(HEADINGS[metric], names, detail, metric, KINDS + 1 + n) for n, metric in enumerate(BARS)]
        else:
            series = [_bar(row.label, names, detail, "f1", number) for number, row, detail in members]
        several = max(len(detail.seeds) for _, _, detail in members) > 1
        title = "Precision, recall and F1 by class" if len(members) == 1 else "F1 by class"
        title += f": {members[0][1].label}" if len(groups) > 1 and len(members) == 1 else ""
        caption = f"Test {items_of_rows([row for _, row, _ in members])} at the best round."
        caption += " Whiskers are ± one standard deviation over the seeds." if several else _seed_words(members)
        suffix = f"-{index}" if len(groups) > 1 else ""
        unit = "share" if len(members) == 1 else "F1"
        figures.append(Figure(f"classes{suffix}", SECTION, title, "bars", "class", unit, series, None, caption, True))
    return figures


def _seed_words(known: Known) -> str:
    """That only one of several seeds is shown, where that is so."""
    single = [detail.seeds[0] for _, row, detail in known if row.several and len(detail.seeds) == 1]
    return f" Seed {single[0]} only." if single else ""


def _bar(name: str, names: Sequence[str], detail: RowDetail, metric: str, color: int) -> Series:
    pairs = [mean_of(values, metric) for values in detail.by_class]
    heights = [None if pair is None else pair[0] for pair in pairs]
    std = [0.0 if pair is None else pair[1] or 0.0 for pair in pairs] if len(detail.seeds) > 1 else None
    return Series(name, list(names), heights, color, std)


def _reliability(known: Known) -> list[Figure]:
    """Accuracy by confidence: on the diagonal, probabilities say how often predictions are right."""
    series, errors = [], []
    for number, row, detail in known:
        table = detail.calibration
        if table is None or not table[:, 0].sum() > 0:
            continue
        frequent = table[:, 0] >= MIN_NODES
        nodes, correct, confidence = table[frequent if frequent.any() else table[:, 0] > 0].T
        texts = [f"{int(count):,} {row.items}" for count in nodes]
        size = (nodes / nodes.max()).tolist()
        series.append(
            Series(row.label, (confidence / nodes).tolist(), (correct / nodes).tolist(), number, size=size, texts=texts)
        )
        if detail.calibration_error is not None:
            errors.append(f"{row.label} {100 * detail.calibration_error:.1f} %")
    if not series:
        return []
    caption = "Share of correct predictions by the probability of the predicted class, in bins; larger dots are more test "
    caption += f"items, and bins with fewer than {MIN_NODES} are left out. Expected calibration error: {', '.join(errors)}."
    caption += _seed_words(known)
    title = "Calibration"
    return [Figure("calibration", SECTION, title, "reliability", "confidence", "accuracy", series, None, caption, True)]


def _confusion(number: int, row: Row, detail: RowDetail, several: bool) -> Figure:
    """Where the nodes of each class end up, beside the table of its metrics."""
    sums = detail.confusion.sum(1, keepdims=True)
    share = (detail.confusion / np.maximum(sums, 1)).tolist()
    texts = [[f"{int(count):,} nodes" for count in line] for line in detail.confusion]
    suffix = f"-{number}" if several else ""
    shown = slice(0, MAX_CLASSES)
    heat = Heat(detail.classes[shown], detail.classes[shown], [line[shown] for line in share[shown]], texts[shown])
    caption = f"Test {row.items} at {detail.where}. Rows are true classes and add up to 100 %; columns are predicted ones."
    if detail.recomputed:
        caption += " Computed again from the saved model."
    caption += "".join(dict.fromkeys(filter(None, map(_threshold_words, detail.thresholds))))
    if len(detail.classes) > MAX_CLASSES:
        caption += f" The first {MAX_CLASSES} of {len(detail.classes)} classes are drawn."
    title = f"Confusion: {row.label}" if several else "Confusion"
    table = _table(f"by-class{suffix}", detail, row.items)
    return Figure(
        f"confusion{suffix}", SECTION, title, "heat", "predicted class", "true class", heat=heat, caption=caption, table=table
    )


def _threshold_words(threshold: Any) -> str:
    """How decisions are made, where it is not by the largest probability."""
    if not isinstance(threshold, Mapping) or not isinstance(threshold.get("value"), (int, float)):
        return ""
    how = "given" if threshold.get("by") == "given" else f"best {threshold.get('by')} on validation nodes"
    return f" {threshold.get('class')} is predicted from a probability of {threshold['value']:.3g} on ({how})."


def _table(name: str, detail: RowDetail, items: str) -> PageTable:
    metrics = [metric for metric in HEADINGS if any(values.get(metric) for values in detail.by_class)]
    lines = []
    for label, count, values in zip(detail.classes, detail.items, detail.by_class, strict=True):
        lines.append([label, f"{count:,.0f}", *(_percent(mean_of(values, metric)) for metric in metrics)])
    headings = ["class", f"test {items}", *(f"{HEADINGS[metric]} %" for metric in metrics)]
    caption = f"± is the standard deviation over {len(detail.seeds)} seeds." if len(detail.seeds) > 1 else ""
    return PageTable(name, SECTION, "", headings, lines, caption)


def _percent(pair: tuple[float, float | None] | None) -> str:
    if pair is None:
        return "–"
    return mean_text(100 * pair[0], None if pair[1] is None else 100 * pair[1], 1)
