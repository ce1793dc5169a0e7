"""The command `atoll journal`: what left a site, for its owner and for an auditor."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.errors import AtollError, shown

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from atoll.deploy.audit import RunSummary

MAX_SHOWN = 6  # fields of a message in the summary


def journal(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="A site's kit, or a copy of its journal.jsonl.")],
    lines: Annotated[bool, typer.Option("--lines", help="Every message, not a summary of each run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Every line as it is, one JSON object each.")] = False,
    run: Annotated[str | None, typer.Option(help="This run only.")] = None,
    since: Annotated[str | None, typer.Option(help="From this time on, in UTC: 2026-01-31 or 2026-01-31T14:00.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check that no line was changed, removed or put in.")] = False,
    head: Annotated[str, typer.Option(help="With --verify: a head noted earlier, which must still be in the journal.")] = "",
) -> None:
    """What left my site? Every message to the server: when, in which run, what it held, how it was protected."""
    from atoll.cli.console import out as console
    from atoll.cli.console import show
    from atoll.deploy import audit

    path = _path(kit)
    start = _moment(since) if since else ""
    if head and not verify:
        raise AtollError("--head is for --verify; give both.")
    if not path.exists():
        console.print("Nothing has left this site yet: it has no journal.")
        return
    if verify:
        _verify(path, head)
        return
    damaged: list[str] = []
    entries = _chosen(path, run, start, damaged)
    if as_json:
        for entry in entries:
            print(json.dumps(entry, separators=(",", ":")))
    elif lines:
        show(_every(entries))
    else:
        summaries = audit.summaries(entries)
        for summary in summaries:
            show(_table(summary))
            console.print(_footer(summary), soft_wrap=True, markup=False)
        if not summaries and not damaged:
            console.print("Nothing has left this site in that time." if start else "Nothing has left this site yet.")
    for problem in damaged:
        print(shown(f"atoll: {path}: {problem}."), file=sys.stderr)


def _path(kit: Path) -> Path:
    """The journal of a site's kit, or the file itself."""
    from atoll.deploy.journal import JOURNAL_FILE

    if kit.is_file():
        return kit
    if not (kit / "atoll.toml").is_file():
        raise AtollError(f"{kit} is not a kit: it holds no atoll.toml; give a site's kit or a copy of its {JOURNAL_FILE}.")
    from atoll.deploy.kit import Kit

    opened = Kit.open(kit, server=not _is_site(kit))
    if opened.site is None:
        raise AtollError(f"{kit} is the server's kit, and only sites keep a journal; give a site's kit.")
    return opened.path / JOURNAL_FILE


def _is_site(kit: Path) -> bool:
    import tomllib

    try:
        return "site" in tomllib.loads((kit / "atoll.toml").read_text())
    except (OSError, ValueError):
        return True  # Kit.open says what is wrong


def _moment(text: str) -> str:
    """A time as the journal writes it, to compare with."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise AtollError(f"--since is {text!r} but must be a date or a time, for instance 2026-01-31T14:00.") from error
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _chosen(path: Path, run: str | None, start: str, damaged: list[str]) -> Iterator[dict[str, Any]]:
    """The lines asked for; the problems of those that cannot be read go to `damaged`."""
    from atoll.deploy import audit

    runs: dict[str, None] = {}
    matched = False
    for line in audit.read(path):
        if line.entry is None:
            damaged.append(f"line {line.number} {line.problem}")
            continue
        runs[line.entry["run"]] = None
        if run in (None, line.entry["run"]) and line.entry["time"] >= start:
            matched = True
            yield line.entry
    if run is not None and not matched and run not in runs:
        known = ", ".join(shown(name) for name in runs if name) or "none"
        raise AtollError(f"{path} tells of no run {run!r}; there is {known}.")


def _verify(path: Path, head: str) -> None:
    from atoll.cli.console import out as console
    from atoll.deploy import audit

    chain = audit.verify(path, head.lower())
    if chain.broken:
        more = f", and {len(chain.broken) - 1} more breaks" if len(chain.broken) > 1 else ""
        raise AtollError(f"The chain of {path} is broken: {chain.broken[0]}{more}.")
    count = f"{chain.lines} line{'' if chain.lines == 1 else 's'}"
    console.print(f"The chain is whole: {count}, head {chain.head or 'none'}", soft_wrap=True)
    for problem in chain.damaged:
        console.print(f"{problem}, as the chain knows it: its answer did not leave", soft_wrap=True, markup=False)
    console.print("Note the head somewhere else: with --head it shows later whether the journal was cut or rewritten.")


def _table(summary: RunSummary) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from atoll.deploy.audit import protection

    title = f"Run {shown(summary.run)}" if summary.run else "Before a run"
    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("message", "purpose", "rounds", "times", "fields", "bytes", "protection"):
        table.add_column(name, justify="right" if name in ("times", "bytes") else "left")
    for kind in summary.kinds.values():
        rounds = "" if kind.rounds is None else "–".join(dict.fromkeys(map(str, kind.rounds)))
        listed = [
            *kind.fields[:MAX_SHOWN],
            *([f"and {len(kind.fields) - MAX_SHOWN} more"] if len(kind.fields) > MAX_SHOWN else []),
        ]
        held = listed if kind.outcome == "ok" else [f"no answer: {kind.outcome}"]
        kept = protection(kind.masked, kind.noised) if kind.fields else ""
        cells = [kind.what, kind.purpose, rounds, f"{kind.times:,}", held, f"{kind.bytes:,}", kept]
        table.add_row(*(_cell(value) for value in cells))
    return table


def _footer(summary: RunSummary) -> str:
    times = sum(kind.times for kind in summary.kinds.values())
    spent = f"; ε so far {shown(summary.epsilon)}" if summary.epsilon else ""
    to = ", ".join(sorted(shown(name) for name in summary.to))
    count = f"{times:,} message{'' if times == 1 else 's'}"
    return f"{count}, {summary.bytes:,} bytes to {to}, {shown(summary.first)} to {shown(summary.last)}{spent}\n"


def _every(entries: Iterator[Mapping[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    from atoll.deploy.audit import epsilon_of, protection, shapes

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("line", "time", "run", "round", "call", "message", "purpose", "fields", "bytes", "protection", "ε", "sha256"):
        table.add_column(name, justify="right" if name in ("line", "round", "call", "bytes", "ε") else "left")
    for entry in entries:
        ok = entry["status"] == "ok"
        held = shapes(entry) if ok else [f"no answer: {entry.get('reason', entry['status'])}"]
        cells = [entry["line"], entry["time"], entry["run"], entry.get("round", ""), entry.get("call", "")]
        cells += [entry.get("verb") or entry["kind"], entry.get("purpose", ""), held, f"{entry['bytes']:,}"]
        cells += [protection(entry["masked"], [str(name) for name in entry["noised"]]) if entry["fields"] else ""]
        cells += [epsilon_of(entry), entry["sha256"][:16]]
        table.add_row(*(_cell(value) for value in cells))
    return table


def _cell(value: Any) -> Text:
    """A value or a list of them, one below the other, as text that a terminal does not obey."""
    from rich.text import Text

    return Text("\n".join(shown(each) for each in value) if isinstance(value, (list, tuple)) else shown(value))
