"""Which secure totals were opened, and over which parties: a record that a resume does not roll back.

Replies are deterministic, so after a crash and a resume the sum of the same call over other parties would reveal, by difference,
the replies of those in only one of the sums. A party therefore helps to open each call over one set of parties only.
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
    """For every call the parties in its sum, as confirmed by each party hosted here; in a file if `path` is given.

    The file exists from the beginning of a run, and each line holds a checksum of itself and all lines before it.
    """

    def __init__(self, path: Path | None = None, *, known: bool = False) -> None:
        """`known`: the run has begun here before, so a missing file was lost."""
        self.path = path
        self.check = ""  # the checksum of the file's last line
        self.entries: dict[Call, list[tuple[frozenset[int], tuple[int, ...]]]] = {}  # (who revealed, over whom)
        self.hosted: frozenset[int] = frozenset()
        if path is not None and (known or _begun(path)):
            self._load(path)
        elif path is not None:
            self._write({"format": FORMAT})

    def find(self, party: int, call: Call) -> tuple[int, ...] | None:
        """The parties over which this party helped to open a call; None if it never did."""
        return next((answered for parties, answered in self.entries.get(call, ()) if party in parties), None)

    def add(self, parties: Sequence[int], call: Call, answered: tuple[int, ...]) -> None:
        """Record an opened call, on disk before anything is revealed."""
        new = frozenset(party for party in parties if self.find(party, call) is None)
        if not new:
            return
        self._write({**call._asdict(), "parties": sorted(new), "answered": list(answered)})
        self._store(call, new, answered)

    def _store(self, call: Call, parties: frozenset[int], answered: tuple[int, ...]) -> None:
        self.hosted = self.hosted if self.hosted == parties else parties  # mostly the same set: stored once
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
        """Read the record; an unfinished last line was never acted on."""
        try:
            data = path.read_bytes()
            first, *lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
            self._verify(first)
            for entry in lines:
                self._verify(entry)
                call = Call(int(entry["round"]), int(entry["call"]), str(entry["verb"]))
                self._store(call, frozenset(map(int, entry["parties"])), tuple(map(int, entry["answered"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise AtollError(
                f"its record of totals, {path.name}, cannot be read, and without it totals of this run could be opened twice; "
                "restore the file, or begin a new run."
            ) from error

    def _verify(self, entry: dict[str, object]) -> None:
        """Verify the checksum of the next line."""
        check = entry.pop("check", "")
        self.check = _chained(self.check, entry)
        if check != self.check:
            raise ValueError("a checksum does not match")


def _begun(path: Path) -> bool:
    """Whether there is a record; one cut off in its first line does not count."""
    try:
        return path.exists() and b"\n" in path.read_bytes()
    except OSError:
        return True


def _chained(before: str, entry: dict[str, object]) -> str:
    return hashlib.sha256(f"{before}{json.dumps(entry)}".encode()).hexdigest()[:32]
