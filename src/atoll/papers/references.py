"""Numbers in prose: `{{table1 | Cora GLASU-4}}` in a note becomes our result when a page is made, so it is always the record's.

{{table1 | Cora GLASU-4}}                     our mean; another metric than the table's first after one more bar
{{± table1 | Cora GLASU-4}}                   with its standard deviation
{{paper table1 | Cora GLASU-4}}               what the paper prints
{{seeds table1 | Cora GLASU-4}}               the number of runs
{{table1 | Cora GLASU-4 − Cora Simulated}}    the paired difference with its 95 % confidence interval
{{wins table1 | Cora GLASU-4 − Cora Simulated}}   in how many of the seeds the first is higher
"""

from __future__ import annotations

import math
import re

from atoll.errors import AtollError
from atoll.papers.claims import interval
from atoll.papers.results import Results
from atoll.papers.text import pair as written
from atoll.runs.metrics import mean_text

REFERENCE = re.compile(r"\{\{(?P<kind>±|paper|seeds|wins)?\s*(?P<table>\w+) \| (?P<row>[^|}]+?)(?: \| (?P<metric>[\w.]+))?\}\}")
ANY = re.compile(r"\{\{.*?\}\}", re.DOTALL)
MINUS = " − "


def resolve(text: str, results: Results) -> str:
    """The text with every reference replaced by its number."""
    return ANY.sub(lambda match: _number(match[0], results), text)


def _number(reference: str, results: Results) -> str:
    match = REFERENCE.fullmatch(reference)
    if match is None:
        raise AtollError(f"{reference!r} is not a reference to a result of {results.paper}, such as {{{{table1 | Cora FedGL}}}}.")
    kind, table, row = match["kind"], match["table"], match["row"]
    exhibit = results.exhibit(table)
    metric = match["metric"] or exhibit.metrics[0]
    digits = 1 if exhibit.percent else 3
    if MINUS in row:
        first, _, second = row.partition(MINUS)
        difference = results.difference(table, first, second, metric)
        if math.isnan(difference.mean):
            raise _without_result(reference, results)
        if kind == "wins":
            return f"{difference.wins} of {difference.pairs}"
        return interval(difference, digits) + (" (means only)" if difference.pairs < 2 else "")
    line = results.line(table, row)
    if kind == "seeds":
        return str(line.seeds)
    if kind == "paper":
        printed = line.cell.paper.get(metric)
        pair: list[float] = printed if isinstance(printed, list) else [] if printed is None else [printed]
    else:
        pair = list(line.ours.get(metric, ()))
    if not pair:
        raise _without_result(reference, results)
    if kind != "±":
        pair = pair[:1]
    return mean_text(pair[0], pair[1] if len(pair) > 1 else None, 1) if exhibit.percent and metric != "rounds" else written(*pair)


def _without_result(reference: str, results: Results) -> AtollError:
    return AtollError(f"{results.paper} has no recorded result for {reference!r}; remove the reference or record it.")
