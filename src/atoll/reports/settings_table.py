"""The settings of the rows: those in which they differ as a table, those that they share apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atoll.reports.page_table import PageTable
from atoll.reports.runs import Row, flat_settings

SECTION = "Settings"
ABSENT = "–"  # the row's algorithm, model or partition has no such setting


def differing(rows: Sequence[Row]) -> PageTable | None:
    """The settings that differ between the rows, by row; None where there are none."""
    values = [flat_settings(row.runs[0]) for row in rows]
    names = [name for name in _names(values) if not _same(values, name)]
    if not names:
        return None
    cells = [[_text(settings, name) for name in names] for settings in values]
    labels, headings = [row.label for row in rows], [_short(name, names) for name in names]
    title, caption = "Settings that differ", f"{ABSENT} means that the run has no such setting."
    caption = caption if any(ABSENT in line for line in cells) else ""
    if len(rows) > len(names):  # the longer side goes down the page
        lines = [[label, *line] for label, line in zip(labels, cells, strict=True)]
        return PageTable("settings", SECTION, title, ["run", *headings], lines, caption, numbers=False)
    lines = [[heading, *column] for heading, column in zip(headings, zip(*cells, strict=True), strict=True)]
    return PageTable("settings", SECTION, title, ["setting", *labels], lines, caption, numbers=False)


def common(rows: Sequence[Row]) -> PageTable:
    """The settings that all rows share."""
    values = [flat_settings(row.runs[0]) for row in rows]
    names = [name for name in _names(values) if _same(values, name)]
    lines = [[name, _text(values[0], name)] for name in names]
    title = "Settings" if len(rows) == 1 else "The settings that all runs share"
    return PageTable("settings-common", SECTION, title, ["setting", "value"], lines, numbers=False)


def _names(values: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for settings in values for name in settings))


def _same(values: Sequence[dict[str, Any]], name: str) -> bool:
    return len({_text(settings, name) for settings in values}) == 1


def _short(name: str, names: Sequence[str]) -> str:
    """Without its table, where no other setting has the same name."""
    last = name.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in names) == 1 else name


def _text(settings: dict[str, Any], name: str) -> str:
    """A value as in config.toml, text without quotation marks."""
    if name not in settings:
        return ABSENT
    value = settings[name]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]"
    return str(value)
