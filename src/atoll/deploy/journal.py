"""A site's journal: one line per answer that leaves it, written before the bytes are handed to the transport.

`journal.jsonl` in the kit grows by one JSON object per answer and is never truncated or rewritten. Each line holds the SHA-256 of
the previous line (`previous`), so editing, removing or inserting a line breaks the chain; `deploy.audit` reads and verifies it.
Rewriting the whole file makes a new chain: keep the `head` of a verification elsewhere to notice that, or a truncated end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from atoll import wire
from atoll.federation.cohort import Fields, Guard, Message
from atoll.random import Draws
from atoll.storage import sync_folder

JOURNAL_FILE = "journal.jsonl"
MAX_TEXT = 200  # characters of a text that the server chose
MAX_FIELDS = 1000  # listed one by one; of the others only the number and bytes
READ_BYTES = 1 << 20  # at once


class Journal:
    """Appends to a journal. Processes that write to the same journal take turns; the chain continues from what is there."""

    def __init__(self, path: Path, to: str = "server") -> None:
        """`to` names the recipient of the answers."""
        self.path = path
        self.to = to
        self.lock = threading.Lock()
        self.file = -1
        self.end = 0  # bytes read or written so far
        self.lines = 0  # lines in them
        self.digest = ""  # SHA-256 of the last of them
        self.rest = b""  # the data after the last newline: a line cut off by a crash

    def record(
        self,
        request: Mapping[str, Any],
        answer: Mapping[str, Any],
        data: bytes,
        *,
        noised: Sequence[str] = (),
        epsilon: float | None = None,
    ) -> None:
        """Write the line about an answer whose bytes are `data`; raises if that is not possible.

        When this returns, the line survives a crash and, if the answer holds anything of the site, a power failure:
        the file is synchronized. An echo, or the confirmation of a begin or save, is synchronized with the next line.
        """
        fields, left_out = describe_fields(answer.get("fields", {}))
        asked = request.get("kind") == "ask"
        training = request.get("training")
        entry = {
            "to": self.to,
            "run": _text(request.get("run", "")),
            "kind": _text(request.get("kind", "unreadable")),
            "verb": _text(request.get("verb")) if asked else None,
            "round": _integer(request.get("round")),
            "call": _integer(request.get("call")),
            "purpose": ("training" if training else "evaluation") if isinstance(training, bool) else None,
            "status": _text(answer.get("status")),
            "reason": _text(answer["reason"]) if "reason" in answer else None,
            "fields": fields,
            "left_out": left_out,
            "masked": answer.get("status") == "ok" and asked and _is_secure(request),
            "noised": list(noised),
            "epsilon": "infinite" if epsilon == math.inf else epsilon,
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        sync = answer.get("status") != "ok" or (bool(fields) and request.get("kind") != "echo")
        self._append({name: value for name, value in entry.items() if value is not None}, sync=sync)

    def _append(self, entry: Mapping[str, Any], *, sync: bool) -> None:
        with self.lock, self._locked() as file:
            self._catch_up(file)
            torn = [self.rest] if self.rest else []
            previous = hashlib.sha256(self.rest).hexdigest() if torn else self.digest
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            document = {"line": self.lines + len(torn) + 1, "time": now, **entry, "previous": previous}
            line = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
            data = (b"\n" if torn else b"") + line + b"\n"
            try:
                if os.write(file, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                if sync:
                    os.fdatasync(file)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, self.end)  # the answer does not leave, so its line must go
                raise
            self.end += len(data)
            self.lines, self.digest, self.rest = document["line"], hashlib.sha256(line).hexdigest(), b""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The open file, locked for this process; opened again if it was moved or deleted."""
        if self.file < 0 or not self._is_same_file():
            self._open()
        fcntl.flock(self.file, fcntl.LOCK_EX)
        try:
            yield self.file
        finally:
            fcntl.flock(self.file, fcntl.LOCK_UN)

    def _is_same_file(self) -> bool:
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.file))
        except FileNotFoundError:
            return False

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.close()
        self.file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self.end, self.rest = 0, b""
        sync_folder(self.path.parent)  # the file's name survives a power failure, too

    def _catch_up(self, file: int) -> None:
        """Follow the chain through the part not read yet: everything at first, later what another process wrote."""
        size = os.fstat(file).st_size
        if size == self.end:
            return
        if size < self.end:  # it was truncated: continue, and let the chain show it
            self.end, self.rest = size, b""
            if size and os.pread(file, 1, size - 1) != b"\n":
                self.rest = b"?"  # it ends in the middle of a line
            return
        if self.end == 0:
            self.lines, self.digest, self.rest = 0, "", b""
        pieces = [self.rest]
        while data := os.pread(file, READ_BYTES, self.end):
            self.end += len(data)
            *whole, last = data.split(b"\n")
            for part in whole:
                self.lines, self.digest = self.lines + 1, hashlib.sha256(b"".join([*pieces, part])).hexdigest()
                pieces = []
            pieces.append(last)
        self.rest = b"".join(pieces)

    def close(self) -> None:
        """Close the file."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()


class RecordingGuard:
    """Wraps a guard and records which fields it changed in its last call: those that are noised."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.changed: tuple[str, ...] = ()

    def __call__(self, message: Message, fields: Fields, draws: Draws) -> Fields:
        """The fields as the guard returns them."""
        before = dict(wire.leaves(fields))
        guarded = self.guard(message, fields, draws)
        self.changed = tuple(dict.fromkeys(_stem(n) for n, value in wire.leaves(guarded) if before.get(n) is not value))
        return guarded


def describe_fields(fields: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """Name, type, shape and bytes of every field of a payload, and the number and bytes of those not listed."""
    listed: dict[str, dict[str, Any]] = {}
    left_out = {"fields": 0, "bytes": 0}
    for path, value in wire.leaves(fields):
        name = _text(_stem(path))
        if isinstance(value, Tensor):
            size = value.numel() * value.element_size()
            field: dict[str, Any] = {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "bytes": size}
        else:
            field = {"dtype": "json", "shape": [], "bytes": len(json.dumps(value, separators=(",", ":")))}
        if name in listed and name != path:  # one tensor per party, of different shapes
            listed[name]["shape"] = "ragged"
            listed[name]["tensors"] = listed[name].get("tensors", 1) + 1
            listed[name]["bytes"] += field["bytes"]
        elif len(listed) < MAX_FIELDS:
            listed[name] = {"name": name, **field}
        else:
            left_out = {"fields": left_out["fields"] + 1, "bytes": left_out["bytes"] + field["bytes"]}
    return list(listed.values()), left_out if left_out["fields"] else None


def _stem(path: str) -> str:
    """The name of a field without its index in a list of one tensor per party."""
    return path.rsplit("/[", 1)[0] if path.endswith("]") else path


def _is_secure(request: Mapping[str, Any]) -> bool:
    """Whether the reply to an `ask` is masked: its message then holds a secure session."""
    return "secure" in request


def _text(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else None
