"""A table of the page beside the comparison: its cells are text."""

from __future__ import annotations

import html as markup
from collections.abc import Sequence
from dataclasses import dataclass

from atoll.errors import shown


@dataclass(frozen=True)
class PageTable:
    """Headings and rows of text; the first cell of a row names it."""

    name: str
    section: str
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    numbers: bool = True  # whether all cells but the first are numbers


def escape(text: str, *, quote: bool = True) -> str:
    """Somebody else's text as text in HTML: no tags, and no signs that reverse the reading direction."""
    return markup.escape(shown(text, lines=True), quote=quote)


def unbroken(text: str) -> str:
    """Text in HTML in which a unit stays with its word and a deviation with its sign."""
    return escape(text).replace(" %", "&nbsp;%").replace("± ", "±&nbsp;")


def html(table: PageTable) -> str:
    """The table in HTML."""
    kind = " class=n" if table.numbers else ""
    heads = [f"<th scope=col{kind if number else ''}>{unbroken(heading)}</th>" for number, heading in enumerate(table.headings)]
    lines = [
        f"<tr><th scope=row>{escape(first)}</th>{''.join(f'<td{kind}>{unbroken(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in table.rows
    ]
    head, body = "".join(heads), "\n".join(lines)
    return f"<table class=plain><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
