"""Reading a site's journal: its lines, whether its chain is intact, and what left the site in each run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.errors import AtollError

REQUIRED_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "line": int,
    "time": str,
    "to": str,
    "run": str,
    "kind": str,
    "status": str,
    "fields": list,
    "bytes": int,
    "sha256": str,
    "masked": bool,
    "noised": list,
    "previous": str,
}  # of every line, with their types


@dataclass(frozen=True)
class JournalLine:
    """One line of a journal: its entry or, if that cannot be read, what is wrong with it."""

    number: int
    digest: str
    entry: dict[str, Any] | None
    problem: str = ""


def read(path: Path) -> Iterator[JournalLine]:
    """The lines of a journal, even while its site writes to it; an unfinished last line is skipped."""
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                if raw.endswith(b"\n"):
                    yield _line(number, raw[:-1])
    except OSError as error:
        raise AtollError(f"{path} cannot be read ({error.strerror}); check the path and the rights to it.") from error


def _line(number: int, raw: bytes) -> JournalLine:
    digest = hashlib.sha256(raw).hexdigest()
    try:
        entry = json.loads(raw)
    except (ValueError, RecursionError):
        return JournalLine(number, digest, None, "is not JSON: cut off by a crash, or overwritten")
    if not isinstance(entry, dict):
        return JournalLine(number, digest, None, "is not a JSON object")
    wrong = [
        name
        for name, kind in REQUIRED_FIELDS.items()
        if not isinstance(entry.get(name), kind) or isinstance(entry[name], bool) != (kind is bool)
    ]
    if wrong:
        return JournalLine(number, digest, None, f"has no readable {', '.join(wrong)}")
    if not all(isinstance(field, dict) and isinstance(field.get("name"), str) for field in entry["fields"]):
        return JournalLine(number, digest, None, "lists fields that cannot be read")
    return JournalLine(number, digest, entry)


@dataclass(frozen=True)
class ChainCheck:
    """The result of `verify`: the number of lines, the SHA-256 of the last one, breaks of the chain and damaged lines."""

    lines: int
    head: str
    broken: tuple[str, ...]
    damaged: tuple[str, ...]  # in an intact chain these were cut off by a crash, before their answer could leave


def verify(path: Path, head: str = "") -> ChainCheck:
    """Verify the chain; `head`, if given, is that of an earlier verification and must still be part of it."""
    before, lines, known = "", 0, not head
    broken: list[str] = []
    damaged: list[str] = []
    last_is_readable = True
    for line in read(path):
        lines = line.number
        if line.entry is None:
            damaged.append(f"line {line.number} {line.problem}")
        else:
            numbered = line.entry["line"]
            if lines == 1 and (numbered, line.entry["previous"]) != (1, ""):
                broken.append(f"the journal begins with line {numbered}: the lines before it are missing")
            elif lines > 1 and line.entry["previous"] != before:
                broken.append(f"line {lines} does not follow line {lines - 1}: one of them, or one between them, was changed")
        before = line.digest
        last_is_readable = line.entry is not None
        known = known or before == head
    if not last_is_readable and _is_terminated(path):  # a crash leaves half a line, which the next line terminates
        broken.append(f"{damaged.pop()}, and no line after it confirms it")
    if not known:
        broken.append(f"no line has the head {head}: the journal was truncated or rewritten since")
    return ChainCheck(lines, before, tuple(broken), tuple(damaged))


def _is_terminated(path: Path) -> bool:
    """Whether the last line is terminated."""
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


@dataclass
class AnswerGroup:
    """Answers of one run with the same message, purpose, outcome and fields."""

    what: str  # the verb, or the kind of message
    purpose: str  # training, evaluation or, for other messages, empty
    outcome: str  # ok, or why it was refused
    fields: tuple[str, ...]  # each with its type and shape
    masked: bool
    noised: tuple[str, ...]
    rounds: tuple[int, int] | None = None  # first and last
    times: int = 0
    bytes: int = 0

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add an answer."""
        self.times, self.bytes = self.times + 1, self.bytes + entry["bytes"]
        if isinstance(number := entry.get("round"), int):
            first, last = self.rounds or (number, number)
            self.rounds = min(first, number), max(last, number)


@dataclass
class RunSummary:
    """What left the site in one run."""

    run: str
    first: str
    last: str
    to: set[str] = field(default_factory=set)
    epsilon: str = ""  # so far; empty without noise
    kinds: dict[tuple[Any, ...], AnswerGroup] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The bytes of all answers of the run."""
        return sum(kind.bytes for kind in self.kinds.values())


def summaries(entries: Iterable[Mapping[str, Any]]) -> list[RunSummary]:
    """One summary per run, in the order in which they began."""
    by_run: dict[str, RunSummary] = {}
    for entry in entries:
        summary = by_run.setdefault(entry["run"], RunSummary(entry["run"], entry["time"], entry["time"]))
        summary.last = entry["time"]
        summary.to.add(entry["to"])
        summary.epsilon = epsilon_of(entry) or summary.epsilon
        what, purpose = str(entry.get("verb") or entry["kind"]), str(entry.get("purpose") or "")
        outcome = "ok" if entry["status"] == "ok" else str(entry.get("reason", entry["status"]))
        key = (what, purpose, outcome, shapes(entry), entry["masked"], tuple(map(str, entry["noised"])))
        summary.kinds.setdefault(key, AnswerGroup(*key)).add(entry)
    return list(by_run.values())


def shapes(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a line as text: `model/layers.0.weight float32 1×1433×64`."""
    words = []
    for each in entry["fields"]:
        shape = each.get("shape")
        size = "×".join(map(str, shape)) if isinstance(shape, list) else f"{each.get('tensors', '')} tensors of several shapes"
        words.append(" ".join(part for part in (each["name"], str(each.get("dtype", "")), size) if part))
    if isinstance(more := entry.get("left_out"), dict):
        words.append(f"and {more.get('fields')} more with {more.get('bytes')} bytes")
    return tuple(words)


def epsilon_of(entry: Mapping[str, Any]) -> str:
    """The ε so far, as text; empty if the line has none."""
    epsilon = entry.get("epsilon")
    return f"{epsilon:.4g}" if isinstance(epsilon, (int, float)) else str(epsilon) if epsilon is not None else ""


def protection(masked: bool, noised: Sequence[str]) -> str:
    """How the fields were protected, as text."""
    return ", ".join([*(["masked"] if masked else []), *([f"noised: {', '.join(noised)}"] if noised else [])]) or "–"
