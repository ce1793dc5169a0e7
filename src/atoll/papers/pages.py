"""Pages of results in Markdown: first what a paper claims and whether it holds, then every table, ours next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from atoll import papers
from atoll.papers import Exhibit, Line
from atoll.papers.claims import HOLDS, Claim, Verdict, claims, interval, judge
from atoll.papers.matrices import matrices
from atoll.papers.references import resolve
from atoll.papers.results import Results
from atoll.papers.text import folded, header, row, table
from atoll.runs.paired import TEST, Difference

NOT_PRINTED = "Not in the paper"  # how the titles of our own tables begin
MANY = 4  # pairs of a claim that a summary lists one by one
HEAD = """\
Made by `atoll reproduce {paper} --no-run --page docs/results/{paper}.md` from recorded runs (`src/atoll/papers/measured/`), as is
every number below; ± is the standard deviation over the seeds, and metrics are those of the round that validation selects. A
difference is between runs with the same seeds, with its 95 % confidence interval. A claim holds where the difference is
significant ({test}), and is undecided where it is not. `‼` marks values that differ from the paper's by more
than seeds explain ([how ranges are fixed](../reports.md#the-papers-tables-and-figures))."""


def markdown(
    results: Results,
    pictures: Mapping[str, str] | None = None,
    claimed: Sequence[Claim] = (),
    tuned: Sequence[Mapping[str, Any]] = (),
) -> str:
    """A page: the claims, how settings were chosen, then every exhibit with its note, picture and table."""
    pictures = pictures or {}
    text = [f"# Results: {results.shown[0][0].paper}", "", HEAD.format(paper=results.paper, test=TEST), ""]
    text += summary(results, [judge(claim, results) for claim in claimed], pictures)
    text += _tuning(tuned)
    for exhibit, lines in results.shown:
        text += section(exhibit, lines, results, pictures.get(exhibit.name))
    return "\n".join(text).rstrip() + "\n"


def summary(results: Results, verdicts: Sequence[Verdict], pictures: Mapping[str, str]) -> list[str]:
    """One screen: each claim, whether it holds, by how much, on how many runs, and the command; what is missing; a figure."""
    text = ["## Summary", ""]
    if verdicts:
        rows = [[str(number), *_claim_row(results.paper, verdict)] for number, verdict in enumerate(verdicts, 1)]
        text += [*table(["", "the paper's claim", "comes out", "by how much", "runs", "again"], rows, numbers=False), ""]
    text += [*agreement(results), ""]
    if missing := _missing(results):
        text += [missing, ""]
    if "claims" in pictures:
        text += [f"![Differences that the claims are about]({pictures['claims']})", ""]
    pairs = [
        _pair_row(number, finding.label, finding.verdict, finding.difference)
        for number, verdict in enumerate(verdicts, 1)
        for finding in verdict.findings
        if finding.difference
    ]
    if pairs:
        head = ["claim", "difference", "mean and 95 % interval", "seeds", "as claimed in", "p", "comes out"]
        text += folded(f"Every difference ({len(pairs)})", table(head, pairs))
    return text


def _claim_row(paper: str, verdict: Verdict) -> list[str]:
    claim, findings = verdict.claim, [finding for finding in verdict.findings if finding.difference]
    if len(findings) > MANY:
        means = [finding.difference.mean for finding in findings if finding.difference]
        amount = f"{min(means):+.1f} to {max(means):+.1f}".replace("-", "−")
    elif findings:
        rest = {finding.label.partition(": ")[2] for finding in findings}  # the same two methods in every column are not repeated
        labels = [finding.label.partition(": ")[0] if len(rest) == 1 and rest != {""} else finding.label for finding in findings]
        pairs = zip(labels, findings, strict=True)
        amount = "; ".join(f"{label} {interval(finding.difference)}" for label, finding in pairs if finding.difference)
    elif len(verdict.findings) <= MANY:
        amount = "; ".join(f"{finding.label} {finding.value}" for finding in verdict.findings if finding.value)
    else:
        amount = f"{sum(finding.verdict == HOLDS for finding in verdict.findings)} of {len(verdict.findings)} values"
    note = f" ({claim.note})" if claim.note else ""
    return [f"{claim.text}{note}", f"**{verdict.words}**", amount, str(verdict.runs), f"`atoll reproduce {paper}/{claim.table}`"]


def _pair_row(claim: int, label: str, verdict: str, difference: Difference) -> list[str]:
    p = "–" if difference.p is None else "< 0.001" if difference.p < 0.001 else f"{difference.p:.3f}"
    wins = f"{difference.wins} of {difference.pairs}" if difference.pairs else "–"
    return [str(claim), label, interval(difference, 2), str(difference.pairs or "means"), wins, p, verdict]


def agreement(results: Results) -> list[str]:
    """How many of the printed values come out within their ranges, in the paper's own tables."""
    parts, inside, total = [], 0, 0
    for exhibit, lines in results.shown:
        measured = [(line, metric) for line in lines for metric in line.ranges if metric in line.ours]
        if measured and not exhibit.title.startswith(NOT_PRINTED):
            good = sum(metric not in line.outside() for line, metric in measured)
            inside, total = inside + good, total + len(measured)
            parts.append(f"{exhibit.title.partition(':')[0]} {good} of {len(measured)}")
    return [f"Printed values that come out, as far as seeds explain: {inside} of {total} ({'; '.join(parts)})."] if parts else []


def _missing(results: Results) -> str:
    """Datasets without a result, in one line."""
    by_reason: dict[str, dict[str, None]] = {}
    for exhibit, lines in results.shown:
        for line in lines:
            if line.cell.missing and not line.ours:
                name = next((column for column in exhibit.columns if line.cell.within(column)), line.cell.row).split()[0]
                by_reason.setdefault(line.cell.missing.rstrip("."), {})[name] = None
    parts = [f"{', '.join(names)} ({why})" for why, names in by_reason.items()]
    return f"Not run: {'; '.join(parts)}." if parts else ""


def _tuning(tuned: Sequence[Mapping[str, Any]]) -> list[str]:
    if not tuned:
        return []
    head = ["method", "data", "setting", "grid", "chosen", "by", "seeds"]
    rows = [[str(entry.get(name, "–")) for name in head] for entry in tuned]
    return ["## How settings were chosen", "", *table(head, rows, numbers=False), ""]


def section(exhibit: Exhibit, lines: Sequence[Line], results: Results, picture: str | None) -> list[str]:
    """An exhibit: its note, its picture, and its lines, as a matrix where it has columns, folded below a picture."""
    text = [f"## {exhibit.title}", ""]
    if exhibit.note:
        text += [resolve(exhibit.note.strip(), results), ""]
    if exhibit.missing:
        return [*text, f"Not run: {exhibit.missing}", ""]
    if exhibit.runnable and not any(line.ours for line in lines):
        count = len(exhibit.runnable)
        return [*text, f"Not run yet: {count} line{'s' if count > 1 else ''}.", ""]
    if picture:
        text += [f"![{exhibit.title}]({picture})", ""]
    shown = [line for line in lines if line.ours or (line.cell.paper and not line.cell.missing)]
    body = matrices(exhibit, shown) if exhibit.columns else table(header(exhibit), [row(exhibit, line) for line in shown])
    if exhibit.columns:
        counts = sorted({line.seeds for line in shown if line.ours})
        seeds = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        text += [f"Ours (the paper's), {seeds} seed{'' if seeds == '1' else 's'}.", ""]
    notes = [f"- **{line.cell.row}**: {resolve(line.cell.note, results)}" for line in shown if line.cell.note]
    if hidden := sum(not line.ours and not line.cell.missing and not line.cell.paper for line in lines):
        notes.append(f"- Not run yet: {hidden} more line{'s' if hidden > 1 else ''}.")
    count_text = f"{len(shown)} line{'' if len(shown) == 1 else 's'}"
    text += folded(f"The numbers ({count_text})", body) if picture else [*body, ""]
    return [*text, *notes, ""] if notes else text


def index(results: Sequence[Results]) -> str:
    """The summary of the summaries: every claim of every paper with its verdict."""
    text = ["# Results", "", INDEX, ""]
    for each in results:
        title = each.shown[0][0].paper
        verdicts = [judge(claim, each) for claim in claims(each.paper)]
        rows = [[*_claim_row(each.paper, verdict)[:4]] for verdict in verdicts]
        text += [f"## [{title}]({each.paper}.md)", ""]
        if rows:
            text += [*table(["the paper's claim", "comes out", "by how much", "runs"], rows, numbers=False), ""]
        text += [*agreement(each), ""]
    return "\n".join(text).rstrip() + "\n"


INDEX = f"""\
What papers claim, and what came out here. A claim holds where the difference between runs with the same seeds is significant
({TEST}), and is undecided where it is not, or where only means are recorded. `atoll reproduce --list` shows every table and
figure, `atoll reproduce PAPER/TABLE` runs it again; [how to add seeds](../reports.md#add-seeds-to-a-record)."""


def everything() -> list[Results]:
    """The recorded results of all papers."""
    return [Results.recorded(paper) for paper in papers.papers()]
