"""What a folder's table of nodes holds, column by column, before anything is run: for `atoll data inspect`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from atoll import storage
from atoll.data.column_values import present
from atoll.data.columns import ENCODED, FEATURES_FILE, ROLES, ColumnChoice, read_features
from atoll.data.files import archive_of
from atoll.data.party_graphs import party_folders
from atoll.data.table_files import RESERVED, TableFile
from atoll.data.tables import parse_tables
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.table import ColumnMismatch, Table, common_columns

MAX_EXAMPLES, MAX_EXAMPLE_CHARS = 3, 20


@dataclass(frozen=True)
class ColumnSummary:
    """One column of `nodes`."""

    name: str
    kind: str  # as in features.toml, or "empty"
    missing: float  # share of the rows
    values: str  # for people: the range, the categories or some examples
    note: str = ""  # for people: why it is not encoded, or that features.toml says what it is
    choice: ColumnChoice | None = None

    @property
    def encoded(self) -> bool:
        """Whether it becomes features."""
        return self.kind in (*ENCODED, "empty")


@dataclass(frozen=True)
class FolderSummary:
    """One party's folder."""

    name: str
    path: Path
    rows: int
    edges: int
    columns: tuple[ColumnSummary, ...]
    table: Table
    warnings: tuple[str, ...]
    roles: tuple[tuple[str, str], ...] = ()  # columns that features.toml calls id, label or split, and which of these


def inspect(folder: Path) -> list[FolderSummary]:
    """The folder, or each of the party folders in it."""
    folder = folder.expanduser()
    single = any((folder / f"nodes.{suffix}").is_file() for suffix in ("csv", "parquet")) or archive_of(folder) is not None
    return [_summary(path) for path in ([folder] if single or not folder.is_dir() else party_folders(folder))]


def disagreement(summaries: Sequence[FolderSummary]) -> str:
    """Why the folders cannot be encoded together; empty where they can."""
    try:
        common_columns(
            [one.table.columns for one in summaries], [one.name for one in summaries], [one.table.ignored for one in summaries]
        )
    except ColumnMismatch as error:
        return str(error)
    return ""


def write_features(summaries: Sequence[FolderSummary], *, force: bool = False) -> list[Path]:
    """Write what was found as a features.toml into each folder, for review; nothing is written if one of them has one."""
    if sentence := disagreement(summaries):
        raise AtollError(f"{sentence.rstrip('.')} (nothing was written).")
    paths = [one.path / FEATURES_FILE for one in summaries]
    for path in paths:
        if path.exists() and not force:
            raise AtollError(f"{path} is there already; --force replaces it.")
    for one, path in zip(summaries, paths, strict=True):
        storage.write_whole(path, features_text(one, summaries).encode())
    return paths


def features_text(one: FolderSummary, summaries: Sequence[FolderSummary] = ()) -> str:
    """The content of features.toml: a table per column, with what was seen as a comment."""
    kinds = {column.name: column for other in summaries for column in other.columns if column.kind != "empty"}
    parts = [f"# What each column of {one.path.name}/nodes is, as inferred from its values: check it, then keep it.\n"]
    parts += [tomli_w.dumps({name: {"kind": kind}}) for name, kind in one.roles]
    for column in one.columns:
        if column.name in RESERVED:
            continue
        known = kinds.get(column.name, column)
        about = f"# {column.values}; {_percent(column.missing)} missing" if column.kind != "empty" else "# it has no values here"
        about += f"; {known.note}" if known.note and not known.encoded else ""
        if known.kind == "empty":
            parts.append(f"{about}: [{column.name}] is not set, and it is what it is at other parties\n")
            continue
        options: dict[str, Any] = {"kind": known.kind, **(known.choice.options if known.choice is not None else {})}
        parts.append(f"{about}\n{tomli_w.dumps({column.name: options})}")
    return "\n".join(parts)


def _summary(folder: Path) -> FolderSummary:
    if folder.suffix == ".npz" or (folder.is_dir() and archive_of(folder) is not None):
        raise AtollError(
            f"{folder} holds an .npz, whose columns are plain numbers; only tables `nodes` and `edges` are inspected."
        )
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        graph, nodes, choices = parse_tables(folder, False, "always")
    sentences = tuple(str(one.message) for one in raised if issubclass(one.category, AtollWarning))
    assert graph.table is not None
    columns = tuple(_column(nodes, each, graph.table) for each in choices or ())
    roles = tuple((name, each.kind) for name, each in (read_features(folder) or {}).items() if each.kind in ROLES)
    edges = graph.edge_index.shape[1]
    return FolderSummary(folder.name, folder, len(nodes.frame), edges, columns, graph.table, sentences, roles)


def _column(nodes: TableFile, each: ColumnChoice, table: Table) -> ColumnSummary:
    texts = nodes.texts(each.name)
    if each.column is not None:
        col = table.column_names.index(each.name)
        values, kind = table.values[:, col], table.columns[col].kind
        missing = float(np.isnan(values).mean())
        said = "" if each.inferred else f"as {FEATURES_FILE} says"
        return ColumnSummary(each.name, kind, missing, _described(kind, values[~np.isnan(values)], table.names[col]), said, each)
    known = texts[present(texts, "number" if each.name not in RESERVED else "category")]
    kind = each.kind if each.kind != "ignore" or each.name not in RESERVED else each.name
    distinct, counts = np.unique(known.astype(str), return_counts=True)
    counted = _counted(distinct, counts) if kind in ("label", "split") else f"{len(distinct):,} distinct, {_examples(distinct)}"
    missing = 1 - len(known) / max(len(texts), 1)
    return ColumnSummary(each.name, kind, missing, counted, "" if each.kind in ROLES else each.why or "not a feature", each)


def _described(kind: str, values: Any, names: Sequence[str]) -> str:
    if kind == "empty" or not len(values):
        return "no values"
    if kind == "category":
        return _counted(np.array(names), np.bincount(values.astype(np.int64), minlength=len(names)))
    if kind == "boolean":
        return f"{_percent(float(values.mean()))} true"
    if kind == "date":
        first, last = (pd.Timestamp(0) + pd.to_timedelta(day, unit="D") for day in (values.min(), values.max()))
        return f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
    return f"{values.min():.4g} to {values.max():.4g}"


def _counted(names: Any, counts: Any) -> str:
    order = np.argsort(-counts, kind="stable")
    listed = ", ".join(f"{str(names[index])[:MAX_EXAMPLE_CHARS]} {counts[index]:,}" for index in order[:MAX_EXAMPLES])
    return f"{len(names)}: {listed}{', …' if len(names) > MAX_EXAMPLES else ''}"


def _examples(texts: Any) -> str:
    listed = ", ".join(str(text)[:MAX_EXAMPLE_CHARS] for text in texts[:MAX_EXAMPLES])
    return f"such as {listed}" if listed else "none"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if 0 < share < 1 else f"{100 * share:.0f} %"
