"""The page: one HTML file with plotly.js inside, so that it opens anywhere, without a network."""

from __future__ import annotations

import importlib.resources
import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from atoll.errors import AtollError
from atoll.reports import page_table, settings_table, table, titles
from atoll.reports.figures import Figure
from atoll.reports.page_table import PageTable, escape
from atoll.reports.plotly import plot
from atoll.reports.runs import Row
from atoll.runs.documents import finite
from atoll.tasks import TASKS
from atoll.tasks.levels import items_of
from atoll.version import __version__

if TYPE_CHECKING:
    from atoll.reports import Report

JUDGED = re.compile(r"\b((?:test|validation|training|labeled|minority|majority) )nodes\b", re.IGNORECASE)
REFRESH = 5  # seconds between reloads while a run goes on
MAX_GOING = 6  # runs in progress that are listed
FIRST, LAST = "Comparison", "Settings"  # sections that every page has


def render(report: Report) -> str:
    """The whole page."""
    parts = {
        "title": escape(titles.title(report.rows)),
        "subtitle": escape(titles.subtitle(report.rows)),
        "summary": escape(titles.summary(report.rows)),
        "refresh": "" if report.done else f"<meta http-equiv=refresh content={REFRESH}>",
        "going": "" if report.done else f"<p class=going role=status>{escape(progress(report.rows))}</p>",
        "tables": tables(report.tables),
        "contents": contents(report.cards),
        "sections": of_items(sections(report.cards), report.rows),
        "notes": notes(report.notes),
        "settings": settings(report.rows),
        "data": of_items(script_json({figure.name: plot(figure) for figure in report.figures}), report.rows),
        "plotly": library(),
        "version": escape(__version__),
    }
    template = importlib.resources.files("atoll.reports").joinpath("page.html").read_text()
    return re.sub(r"<!--atoll:(\w+)-->", lambda match: parts[match[1]], template)


def of_items(text: str, rows: Sequence[Row]) -> str:
    """The text with the word for what is judged, where it is not nodes in all rows."""
    words = {items_of(TASKS.find(row.runs[0].config.run.task)) for row in rows}
    return JUDGED.sub(lambda match: match[1] + next(iter(words)), text) if len(words) == 1 else text


def tables(several: Sequence[table.ComparisonTable]) -> str:
    """The comparison: a table for each data, with its caption."""
    return "\n".join(
        f"<div class=wide tabindex=0>{table.html(each)}</div><p class=note>{escape(each.caption)}</p>" for each in several
    )


def progress(rows: Sequence[Row]) -> str:
    """How far the runs that still go on are."""
    going = [run for row in rows for run in row.runs if not run.result.finished]
    words = ", ".join(f"{run.path.name}: round {run.result.rounds} of {run.config.run.rounds}" for run in going[:MAX_GOING])
    return f"{words}{' …' if len(going) > MAX_GOING else ''}. This page reloads every {REFRESH} seconds."


def contents(cards: Sequence[Figure | PageTable]) -> str:
    """Links to the sections."""
    names = [FIRST, *dict.fromkeys(card.section for card in cards), LAST]
    return " ".join(f"<a href='#{name.lower()}'>{name}</a>" for name in names)


def sections(cards: Sequence[Figure | PageTable]) -> str:
    """The cards by section; a script draws into those of figures."""
    text = []
    for section, group in groupby(cards, key=lambda card: card.section):
        members = list(group)
        small = sum(isinstance(card, Figure) and card.table is None for card in members)
        columns = "three" if small % 3 == 0 or small > 4 else "two"
        columns = "two" if section == "Embeddings" else columns
        text.append(f"<section id={section.lower()}><h2>{escape(section)}</h2><div class='grid {columns}'>")
        text += [figure_card(card) if isinstance(card, Figure) else table_card(card) for card in members]
        text.append("</div></section>")
    return "\n".join(text)


def figure_card(figure: Figure) -> str:
    """The title, legend and caption of a figure, the element it is drawn into, and its table beside it."""
    description = escape(f"{figure.title}. {figure.caption}", quote=True)
    name = escape(figure.name)
    drawing = (
        f"<div class=legend id='l-{name}'></div>"
        f"<div class='plot {figure.kind}' id='f-{name}' role=img aria-label='{description}'></div>"
    )
    caption = f"<figcaption>{escape(figure.caption)}</figcaption>" if figure.caption else ""
    heading = f"<h3>{escape(figure.title)}</h3>"
    if figure.table is None:
        return f"<figure>{heading}{drawing}{caption}</figure>"
    beside = f"<div class=beside><div class=wide tabindex=0>{page_table.html(figure.table)}</div>{_note(figure.table)}</div>"
    return f"<figure class=full>{heading}<div class=pair><div class=drawing>{drawing}{caption}</div>{beside}</div></figure>"


def table_card(table: PageTable) -> str:
    """A table over the whole width."""
    return (
        f"<div class='card full' id='t-{escape(table.name)}'><h3>{escape(table.title)}</h3>"
        f"<div class=wide tabindex=0>{page_table.html(table)}</div>{_note(table)}</div>"
    )


def _note(table: PageTable) -> str:
    return f"<p class=note>{escape(table.caption)}</p>" if table.caption else ""


def notes(sentences: Sequence[str]) -> str:
    """What was missing in the runs, and what could not be shown."""
    return f"<ul class=notes>{''.join(f'<li>{escape(sentence)}</li>' for sentence in sentences)}</ul>" if sentences else ""


def settings(rows: Sequence[Row]) -> str:
    """The settings in which the rows differ, the others folded, and the configuration of every row."""
    differing, common = settings_table.differing(rows), settings_table.common(rows)
    text = [table_card(differing)] if differing else []
    title = f"{common.title} <small>{len(common.rows)}</small>"
    text.append(f"<details><summary>{title}</summary><div class=wide tabindex=0>{page_table.html(common)}</div></details>")
    return "\n".join([*text, *map(configuration, rows)])


def configuration(row: Row) -> str:
    """The first seed's config.toml, to read, copy or save, and how to run it again."""
    first = row.runs[0]
    seeds = ", ".join(str(run.config.seed) for run in row.runs)
    link = f"data:application/toml;charset=utf-8,{quote(first.text)}"
    return (
        f"<details><summary>config.toml of {escape(row.label)} "
        f"<small>seed{'s' if row.several else ''} {escape(seeds)}</small></summary>"
        f'<p><code>atoll run config.toml</code> · <a download=config.toml href="{link}">save config.toml</a> · '
        f"<button type=button class=copy>copy</button></p><pre>{escape(first.text)}</pre></details>"
    )


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element."""
    return json.dumps(finite(value), separators=(",", ":")).replace("<", "\\u003c")


def library() -> str:
    """The text of plotly.js, from the Python package that carries it."""
    try:
        return importlib.resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise AtollError('The page needs plotly, which is not installed; run `pip install "atoll[report]"`.') from error
