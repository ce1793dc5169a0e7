"""A run's folder: config.toml, history.jsonl (a line a round), checkpoint.safetensors and, at the end, result.json."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from atoll import config, wire
from atoll.config import Config
from atoll.errors import AtollError

MODEL = "model.safetensors"  # of a federation: the shared model, written last, when the sites have written theirs


class Folder:
    """Where a run writes. Whole files appear at once or not at all; only the history grows, a line a round."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.history = self.path / "history.jsonl"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.result = self.path / "result.json"
        self.made: list[Path] = []  # folders that were not there before

    @classmethod
    def create(cls, path: str | Path, configuration: Config) -> Folder:
        """A folder for a new run."""
        folder = cls(path)
        try:
            if (folder.path / "config.toml").exists():
                raise AtollError(f"{path} already holds a run; resume it with `atoll resume {path}` or choose another --out.")
            for left in (folder.history, folder.checkpoint, folder.result):
                if left.exists():  # its rounds would count as ours
                    raise AtollError(f"{left} is of a run that is not here any more; delete it or choose another --out.")
            folder.made = [place for place in (folder.path, *folder.path.parents) if not place.exists()]
            folder.path.mkdir(parents=True, exist_ok=True)
            folder._write("config.toml", tomli_w.dumps(configuration.to_dict()).encode())
        except OSError as error:
            raise AtollError(f"{path} cannot be written to ({error.strerror}); choose another --out.") from error
        return folder

    def withdraw(self) -> None:
        """Take the folder back where not even one round is done: what was asked for could not be."""
        if self.history.exists():
            return
        (self.path / "config.toml").unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody put something there
            for place in self.made:
                place.rmdir()

    @classmethod
    def open(cls, path: str | Path) -> tuple[Folder, Config]:
        """The folder of an earlier run, and its configuration."""
        folder = cls(path)
        source = folder.path / "config.toml"
        if not source.is_file():
            raise AtollError(f"{path} is not a run: it holds no config.toml; give the folder that --out named.")
        try:
            document = tomllib.loads(source.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise AtollError(f"{source} is not valid TOML ({error}); restore it or start the run anew.") from error
        return folder, config.from_dict(document, str(source))

    def append(self, row: dict[str, Any]) -> None:
        """Add a round to the history, at once."""
        with self.history.open("a") as file:
            file.write(json.dumps(finite(row)) + "\n")

    def save(self, document: dict[str, Any]) -> None:
        """Replace the checkpoint; it remembers how long the history was."""
        written = self.history.stat().st_size if self.history.exists() else 0
        self._write(self.checkpoint.name, wire.encode(document | {"history": written}, compact=True))

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint, the history cut back to it; None where there is none yet."""
        if not self.checkpoint.exists():
            self.history.unlink(missing_ok=True)
            return None
        try:
            document = wire.decode(self.checkpoint.read_bytes())
        except (AtollError, OSError) as error:
            raise AtollError(f"{self.checkpoint} is damaged; delete it to start the run from its first round.") from error
        if not isinstance(document.get("book"), dict) or not isinstance(document.get("ledger"), dict):
            raise AtollError(f"{self.checkpoint} is no checkpoint of a run; delete it to start the run from its first round.")
        self._cut(document.get("history"))
        return document

    def _cut(self, length: Any) -> None:
        """Cut the history back to the checkpoint; one that does not reach as far has lost rounds."""
        there = self.history.stat().st_size if self.history.exists() else 0
        if not isinstance(length, int) or not 0 <= length <= there:
            raise AtollError(
                f"{self.history} is shorter than when {self.checkpoint.name} was written; "
                f"restore it, or delete {self.checkpoint.name} to start the run from its first round."
            )
        if self.history.exists():
            os.truncate(self.history, length)

    def rows(self) -> list[dict[str, Any]]:
        """The history so far."""
        if not self.history.exists():
            return []
        try:
            rows = [json.loads(line) for line in self.history.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise AtollError(f"{self.history} is damaged ({error}); restore it or start the run anew.") from error
        if not all(isinstance(row, dict) for row in rows):
            raise AtollError(f"{self.history} is damaged (a line is no round); restore it or start the run anew.")
        return rows

    def finished(self) -> bool:
        """Whether result.json is there, whole."""
        try:
            return "metrics" in json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError, TypeError):
            return False

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json."""
        self._write(self.result.name, (json.dumps(finite(result), indent=1) + "\n").encode())

    def keep(self, name: str, payload: dict[str, Any]) -> None:
        """Write a payload as one safetensors file."""
        self._write(name, wire.encode(payload))

    def _write(self, name: str, data: bytes) -> None:
        """Write a file so that it is there whole or not at all, whenever the process or the machine stops."""
        partial = self.path / f".{name}.partial"
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self.path / name)


def finite(value: Any) -> Any:
    """The value with every number JSON cannot say (NaN, infinity) as null."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
