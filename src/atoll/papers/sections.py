"""Sections of other pages that are made from a record: `[[sections]]` of a paper's file, for the results on an algorithm's page.

A section has the `page` that it stands on (`fedpub`: algorithms/fedpub.md), its `text`, in which numbers are references, and the
`tables` below it: of each the name, perhaps only some `rows`, and a `title`. It stands between two marks, at the page's end at
first, and is written with the pages of results.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll import papers
from atoll.papers.references import resolve
from atoll.papers.results import Results
from atoll.papers.text import pair, printed, table
from atoll.runs.metrics import metric_format

BEGIN = "<!-- Made by `atoll reproduce --page docs/results` from the record. -->"
END = "<!-- The end of what is made. -->"
MADE = re.compile(rf"{re.escape(BEGIN)}.*?{re.escape(END)}\n", re.DOTALL)


@dataclass(frozen=True)
class Section:
    """The results that an algorithm's page shows."""

    page: str
    text: str
    tables: Sequence[Mapping[str, Any]] = ()


def sections(paper: str) -> list[Section]:
    """The sections of a paper's file."""
    document = tomllib.loads((papers.HOME / f"{paper}.toml").read_text())
    return [Section(**entry) for entry in document.get("sections", [])]


def markdown(section: Section, results: Results) -> str:
    """The section between its marks."""
    text = [BEGIN, "## Results", "", resolve(section.text.strip(), results), ""]
    for wanted in section.tables:
        text += _table(wanted, results)
    link = f"[All numbers](../results/{results.paper}.md)."
    text += [f"± is the standard deviation over the seeds; `‼`: farther from the printed value than seeds explain. {link}", END]
    return "\n".join(text) + "\n"


def inserted(page: str, made: str) -> str:
    """The page with the section in its place, or at its end where it has none yet."""
    return MADE.sub(lambda _: made, page) if MADE.search(page) else f"{page.rstrip()}\n\n{made}"


def write(folder: Path, every: Sequence[Results]) -> None:
    """Renew the sections of the pages in a folder; pages that are not there are left out."""
    from atoll import storage

    for results in every:
        for section in sections(results.paper):
            page = folder / f"{section.page}.md"
            if page.exists():
                storage.write_whole(page, inserted(page.read_text(), markdown(section, results)).encode())


def _table(wanted: Mapping[str, Any], results: Results) -> list[str]:
    """A table's lines that have results: ours, what is printed, the seeds."""
    exhibit = results.exhibit(wanted["table"])
    lines = results.tables[wanted["table"]][1]
    chosen = [results.line(wanted["table"], row) for row in wanted["rows"]] if "rows" in wanted else lines
    metric = exhibit.metrics[0]
    theirs = any(printed(line.cell, metric) for line in chosen)
    rows = []
    for line in chosen:
        if metric in line.ours:
            mark = " ‼" if metric in line.outside() else ""
            known = printed(line.cell, metric)
            rows.append(
                [
                    line.cell.row,
                    pair(*line.ours[metric]) + mark,
                    *([pair(*known) if known else "–"] if theirs else []),
                    str(line.seeds),
                ]
            )
    head = [wanted.get("title", exhibit.title), metric_format(metric).heading, *(["printed"] if theirs else []), "seeds"]
    return [*table(head, rows), ""] if rows else []
