"""Which totals were opened, and over whom: a record that no resume rolls back.

Replies are deterministic, so after a crash and a resume the sum of the same call over other parties would give away, by
difference, the replies of those who were in one sum only. A party therefore helps to open each call over one set of parties.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError
from atoll.privacy.masking import Call

FORMAT = 1


class OpenedTotals:
    """For every call the parties that were in its sum, as each party hosted here was shown; in a file where `path` is given.

    The file is there from the beginning of a run, and every line holds a checksum of itself and all before it.
    """

    def __init__(self, path: Path | None = None, *, known: bool = False) -> None:
        """`known`: the run began here before, so that there is a file, or it was lost."""
        self.path = path
        self.check = ""  # the checksum of the file's last line
        self.entries: dict[Call, list[tuple[frozenset[int], tuple[int, ...]]]] = {}  # who revealed, for whom
        self.hosted: frozenset[int] = frozenset()
        if path is not None and (known or _begun(path)):
            self._load(path)
        elif path is not None:
            self._write({"format": FORMAT})

    def find(self, party: int, call: Call) -> tuple[int, ...] | None:
        """Over whom this party helped to open a call; None where it never did."""
        return next((answered for parties, answered in self.entries.get(call, ()) if party in parties), None)

    def add(self, parties: Sequence[int], call: Call, answered: tuple[int, ...]) -> None:
        """Note it, on the disk before anything is revealed."""
        new = frozenset(party for party in parties if self.find(party, call) is None)
        if not new:
            return
        self._write({**call._asdict(), "parties": sorted(new), "answered": list(answered)})
        self._keep(call, new, answered)

    def _keep(self, call: Call, parties: frozenset[int], answered: tuple[int, ...]) -> None:
        self.hosted = self.hosted if self.hosted == parties else parties  # mostly the same: kept once
        self.entries.setdefault(call, []).append((self.hosted, answered))

    def _write(self, entry: dict[str, object]) -> None:
        if self.path is None:
            return
        with storage.writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        check = _chained(self.check, entry)
        storage.append_line(self.path, json.dumps(entry | {"check": check}, separators=(",", ":")))
        self.check = check

    def _load(self, path: Path) -> None:
        """Read the record; a last line without an end was never acted on."""
        try:
            data = path.read_bytes()
            first, *lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
            self._follow(first)
            for entry in lines:
                self._follow(entry)
                call = Call(int(entry["round"]), int(entry["call"]), str(entry["verb"]))
                self._keep(call, frozenset(map(int, entry["parties"])), tuple(map(int, entry["answered"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AtollError(
                f"its record of totals, {path.name}, cannot be read: without it, totals of this run could be opened twice; "
                "restore the file, or begin a new run."
            ) from error

    def _follow(self, entry: dict[str, object]) -> None:
        """Whether a line is what was written, after those before it."""
        check = entry.pop("check", "")
        self.check = _chained(self.check, entry)
        if check != self.check:
            raise ValueError("a checksum does not match")


def _begun(path: Path) -> bool:
    """Whether there is a record; one that was cut off in its first line is none yet."""
    try:
        return path.exists() and b"\n" in path.read_bytes()
    except OSError:
        return True


def _chained(before: str, entry: dict[str, object]) -> str:
    return hashlib.sha256(f"{before}{json.dumps(entry)}".encode()).hexdigest()[:32]
