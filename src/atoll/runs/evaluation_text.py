"""An evaluation for people: tables that fit a screen, made of `detail` in result.json or of `Evaluation.to_dict`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atoll.runs.metrics import in_order, metric_format

MAX_ROWS = 20  # classes or parties that are listed
MAX_COLUMNS = 8  # classes of a confusion matrix that is shown
MAX_NAME = 24  # characters of a class's or party's name
OF_PARTY = ("accuracy", "macro_f1", "auc", "average_precision", "log_loss")


def table(detail: Mapping[str, Any]) -> str:
    """Overall metrics, then a table by class, by party, and the confusion matrix."""
    parts = [_overall(detail), _classes(detail), _parties(detail), _confusion(detail)]
    return "\n\n".join(part for part in parts if part)


def _overall(detail: Mapping[str, Any]) -> str:
    known = {name: value for name, value in detail["overall"].items() if value is not None}
    words = {metric_format(name).words: _number(name, known[name]) for name in in_order(known)}
    if len(detail["classes"]) == 2 and "average_precision" in known:  # of the second class alone; the AUC of both is the same
        named = f"average precision of {_short(detail['classes'][1])}"
        words = {named if word == "average precision" else word: value for word, value in words.items()}
    width = max(map(len, words), default=0)
    kind = detail.get("kind", "nodes")
    items = f"1 {kind.removesuffix('s')}" if detail["items"] == 1 else f"{detail['items']} {kind}"
    lines = [f"{items}, {decision_text(detail.get('threshold'), kind)}", *together(kind, detail.get("averaged", ""))]
    return "\n".join([*lines, *(f"{word:<{width}}  {value:>8}" for word, value in words.items())])


def together(kind: str, averaged: str) -> list[str]:
    """Where the run's own metrics are averages over the parties: that these are not."""
    return [f"of all {kind} together; what the run reported is {averaged} over the parties"] if averaged else []


def decision_text(threshold: Mapping[str, Any] | None, kind: str = "nodes") -> str:
    """How the class of an item is decided."""
    if threshold is None:
        return "the likeliest class is predicted"
    how = "given" if threshold["by"] == "given" else f"best {threshold['by']} on validation {kind}"
    return f"{threshold['class']} is predicted from probability {threshold['value']:.4g} on ({how})"


def _classes(detail: Mapping[str, Any]) -> str:
    columns = ("precision", "recall", "f1", "auc", "average_precision")
    shown = [name for name in columns if any(row[name] is not None for row in detail["by_class"].values())]
    return rows_text("class", detail.get("kind", "nodes"), detail["by_class"], shown)


def _parties(detail: Mapping[str, Any]) -> str:
    rows = detail["parties"]
    shown = [name for name in OF_PARTY if any(row.get(name) is not None for row in rows.values())]
    return rows_text("party", detail.get("kind", "nodes"), rows, shown) if len(rows) > 1 else ""


def rows_text(what: str, items: str, rows: Mapping[str, Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Some metrics of classes, labels, values or parties, one row each; `items` is what their number is called."""
    heads = [{"f1": "F1"}.get(name, metric_format(name).heading) for name in columns]
    lines = [[what, items, *heads]]
    for name, row in list(rows.items())[:MAX_ROWS]:
        lines.append([_short(name), str(row["items"]), *(_cell(column, row.get(column)) for column in columns)])
    text = aligned(lines)
    return text + (f"\n… and {len(rows) - MAX_ROWS} more" if len(rows) > MAX_ROWS else "")


def _confusion(detail: Mapping[str, Any]) -> str:
    names = [_short(name, 12) for name in detail["classes"]]
    if len(names) > MAX_COLUMNS:
        return ""
    lines = [["true \\ predicted", *names]]
    for name, counts in zip(names, detail["confusion"], strict=True):
        lines.append([name, *(f"{count:g}" for count in counts)])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns side by side: the first to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))])
        for line in lines
    )


def _cell(name: str, value: float | None) -> str:
    return "–" if value is None else _number(name, value)


def _number(name: str, value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{100 * value:.1f} %" if _is_share(name) else f"{value:.4f}"


def _is_share(name: str) -> bool:
    return metric_format(name).percent or name in ("precision", "recall", "f1")


def _short(name: str, most: int = MAX_NAME) -> str:
    name = " ".join(str(name).split())
    return name if len(name) <= most else name[: most - 1].rstrip() + "…"
