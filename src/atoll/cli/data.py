"""The commands `atoll data …`: look at tables before anything is run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.errors import shown

if TYPE_CHECKING:
    from rich.table import Table

    from atoll.data.inspection import ColumnSummary, FolderSummary

data = typer.Typer(no_args_is_help=True, help="Look at your own tables before anything is run.")


@data.callback()
def _about() -> None:
    """Look at your own tables before anything is run."""


@data.command("inspect")
def inspect_folder(
    folder: Annotated[Path, typer.Argument(help="A folder with tables `nodes` and `edges`, or with one such folder per party.")],
    write: Annotated[bool, typer.Option("--write", help="Write features.toml into each folder, for review.")] = False,
    force: Annotated[bool, typer.Option("--force", help="With --write: replace a features.toml that is there.")] = False,
) -> None:
    """Show what each column is taken for, what is missing, and what looks wrong; with several folders, whether they agree."""
    from atoll.cli.console import out
    from atoll.data.inspection import disagreement, inspect, write_features

    summaries = inspect(folder)
    if len(summaries) == 1:
        out.print(column_table(summaries[0]))
    else:
        out.print(party_table(summaries))
    for one in summaries:
        for sentence in one.warnings:
            out.print(f"- {shown(sentence)}", markup=False, highlight=False, soft_wrap=True)
    if len(summaries) > 1:
        sentence = disagreement(summaries)
        text = f"The folders do not agree: {sentence}" if sentence else f"The {len(summaries)} folders agree on their columns."
        out.print(shown(text), markup=False, highlight=False, soft_wrap=True)
    if write:
        for path in write_features(summaries, force=force):
            out.print(f"Written to {shown(str(path))}", markup=False, highlight=False, soft_wrap=True)


def column_table(one: FolderSummary) -> Table:
    """A line per column of one folder."""
    table = _table(f"{shown(one.name)}: {one.rows:,} nodes, {one.edges:,} edges in both directions", "column", "kind", "missing")
    table.add_column("values", overflow="fold")
    table.add_column("", overflow="fold")
    for column in one.columns:
        table.add_row(*map(_cell, (column.name, column.kind, _missing(column), column.values, column.note)))
    return table


def party_table(summaries: Sequence[FolderSummary]) -> Table:
    """A line per column, the folders side by side."""
    table = _table("", "column")
    for one in summaries:
        table.add_column(_cell(f"{one.name} ({one.rows:,} nodes)"), overflow="fold")
    names = dict.fromkeys(column.name for one in summaries for column in one.columns)
    for name in names:
        cells = []
        for one in summaries:
            column = next((column for column in one.columns if column.name == name), None)
            cells.append("–" if column is None else f"{_kind(column)}\n{column.values}")
        table.add_row(*map(_cell, (name, *cells)))
    return table


def _table(caption: str, *headings: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=caption or None, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in headings:
        table.add_column(heading)
    return table


def _missing(column: ColumnSummary) -> str:
    return f"{100 * column.missing:.1f} %"


def _kind(column: ColumnSummary) -> str:
    return f"{column.kind}, {_missing(column)} missing" if column.missing and column.kind != "empty" else column.kind


def _cell(text: str) -> str:
    from rich.markup import escape

    return escape(shown(text, lines=True))
