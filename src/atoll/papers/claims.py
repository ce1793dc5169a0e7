"""What a paper claims, as data of its file, and whether it holds: by differences between runs with the same seeds."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll import papers
from atoll.papers import search
from atoll.papers.results import Results
from atoll.papers.text import pair, printed
from atoll.runs.paired import Difference, holm

HOLDS, FAILS, OPEN, MEANS, NOT_RUN = "holds", "does not hold", "undecided", "means only", "not run"
WORDS = {FAILS: "contradicted"}  # where only some of several do not hold


@dataclass(frozen=True)
class Claim:
    """A claim of the paper about lines of one table: `[[claims]]` in its file.

    With `pairs`, the first line of each exceeds the second by more than `margin` (below zero: falls short of it by less); in the
    file, `method` and `against` of each of `columns` stand for pairs. With `rows`, their values are the paper's, within ranges.
    """

    text: str
    table: str
    metric: str
    pairs: Sequence[Sequence[str]] = ()
    margin: float = 0.0
    rows: Sequence[str] = ()
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """What came out for one pair of lines, or for one line's value."""

    label: str
    verdict: str
    difference: Difference | None = None  # of a pair
    runs: int = 0
    value: str = ""  # of a line: ours and the paper's


@dataclass(frozen=True)
class Verdict:
    """What came out for a claim."""

    claim: Claim
    findings: Sequence[Finding]

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        counts = {
            word: sum(finding.verdict == word for finding in self.findings) for word in (HOLDS, FAILS, OPEN, MEANS, NOT_RUN)
        }
        total = len(self.findings)
        for word, count in counts.items():
            if count == total:
                return word if word != MEANS else f"{OPEN}: {MEANS}"
        rest = [f"{WORDS.get(word, word)} in {count}" for word, count in counts.items() if count and word != HOLDS]
        return ", ".join([f"{HOLDS} in {counts[HOLDS]} of {total}", *rest])

    @property
    def runs(self) -> int:
        """Number of runs behind it."""
        return sum(finding.runs for finding in self.findings)


def claims(paper: str) -> list[Claim]:
    """The claims of a paper."""
    written = []
    for entry in _document(paper).get("claims", []):
        exhibit = papers.find(f"{paper}/{entry['table']}")[0]
        columns, method, against = (entry.pop(name, ()) for name in ("columns", "method", "against"))
        pairs = [[f"{column} {method}", f"{column} {other}"] for column in columns for other in against]
        labels = {cell.row for cell in exhibit.cells}
        pairs = [each for each in pairs if each[1] in labels]  # a method may not be in every column
        written.append(Claim(**{"metric": exhibit.metrics[0], **entry, "pairs": [*entry.get("pairs", ()), *pairs]}))
    return written


def tuning(paper: str) -> list[dict[str, Any]]:
    """How settings were chosen: `[[tuning]]` of its file, one entry per method, and the searches that are recorded."""
    return [*_document(paper).get("tuning", []), *search.rows(paper)]


def _document(paper: str) -> Mapping[str, Any]:
    return tomllib.loads((papers.HOME / f"{paper}.toml").read_text())


def judge(claim: Claim, results: Results) -> Verdict:
    """Whether a claim holds. Differences are tested by paired t-tests with Holm's correction for the pairs of the claim."""
    if not claim.pairs:
        return Verdict(claim, [_value(claim, row, results) for row in claim.rows])
    labels = [_label(*rows) for rows in claim.pairs]
    differences = [
        replace(results.difference(claim.table, row, against, claim.metric, claim.margin), row=label)
        for label, (row, against) in zip(labels, claim.pairs, strict=True)
    ]
    seeds = [sum(results.line(claim.table, row).seeds for row in rows) for rows in claim.pairs]
    return Verdict(claim, [_pair(each, claim.margin, count) for each, count in zip(holm(differences), seeds, strict=True)])


def _pair(difference: Difference, margin: float, seeds: int) -> Finding:
    shifted = replace(
        difference, mean=difference.mean + margin, low=difference.low + margin, high=difference.high + margin
    )  # the difference itself
    if math.isnan(difference.mean):
        return Finding(difference.row, NOT_RUN)
    if difference.pairs < 2:
        verdict = MEANS
    elif difference.significant:
        verdict = HOLDS if difference.mean > 0 else FAILS
    else:
        verdict = OPEN
    return Finding(difference.row, verdict, shifted, 2 * difference.pairs if verdict != MEANS else seeds)


def _value(claim: Claim, row: str, results: Results) -> Finding:
    line = results.line(claim.table, row)
    if claim.metric not in line.ours or claim.metric not in line.ranges:
        return Finding(row, OPEN if line.ours else NOT_RUN)
    ours, theirs = line.ours[claim.metric], printed(line.cell, claim.metric)
    inside = line.ranges[claim.metric].holds(ours[0])
    return Finding(row, HOLDS if inside else FAILS, runs=line.seeds, value=f"{pair(*ours)} ({pair(*theirs)})")


def _label(row: str, against: str) -> str:
    """`Cora GLASU-4` and `Cora Centralized` → `Cora: GLASU-4 − Centralized`."""
    first, second = row.split(), against.split()
    shared = 0
    while shared < min(len(first), len(second)) - 1 and first[shared] == second[shared]:
        shared += 1
    while shared and "=" in first[shared - 1 : shared + 1]:
        shared -= 1
    left, right = " ".join(first[shared:]), " ".join(second[shared:])
    return f"{' '.join(first[:shared])}: {left} − {right}" if shared else f"{left} − {right}"


def interval(difference: Difference, digits: int = 1) -> str:
    """`+1.2 [0.4, 2.0]`: a mean and the 95 % confidence interval, where there is one."""
    text = f"{difference.mean:+.{digits}f}"
    if difference.has_interval:
        text += f" [{difference.low:.{digits}f}, {difference.high:.{digits}f}]"
    return text.replace("-", "−")
