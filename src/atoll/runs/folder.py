"""A run's folder: config.toml, history.jsonl (one line per round), two checkpoints and, at the end, model/ and result.json."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w

from atoll import storage
from atoll.errors import AtollError, AtollWarning
from atoll.runs.config import Config
from atoll.runs.described_config import described
from atoll.runs.documents import RESULT_KEYS, ROUND_KEYS, checksum, finite, is_whole, parse, read_bytes, read_checkpoint
from atoll.runs.own_partition import PARTITION, NodeLists, located, store

MODEL = "model.safetensors"  # the shared model of a deployed run, written last, after the sites have written theirs


class Folder:
    """Where a run is written. Files appear whole or not at all; only the history grows, by one line per round.

    The last two checkpoints are kept. Each has a checksum, and the length and digest of the history it belongs to.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.history = self.path / "history.jsonl"
        self.checkpoint = self.path / "checkpoint.safetensors"
        self.previous = self.path / "checkpoint.previous.safetensors"
        self.result = self.path / "result.json"
        self.made: list[Path] = []  # folders that did not exist before
        self.warnings: list[str] = []  # what went wrong with the files and was repaired
        self._read = (0, hashlib.sha256())  # bytes of the history that the digest covers

    @classmethod
    def create(cls, path: str | Path, configuration: Config) -> Folder:
        """A folder for a new run."""
        folder = cls(path)
        folder._make()
        try:
            folder._claim(configuration)
        except AtollError:
            folder._unmake()
            raise
        return folder

    @classmethod
    @contextlib.contextmanager
    def begin(cls, path: str | Path, configuration: Config, node_lists: NodeLists = None) -> Iterator[Folder]:
        """A folder for a new run, locked inside the block; removed again if not even one round was done."""
        folder, claimed = cls(path), False
        folder._make()
        try:
            with folder.in_use():
                folder._claim(configuration, node_lists)
                claimed = True
                yield folder
        except Exception:
            if claimed:
                folder.withdraw()
            else:
                folder._unmake()
            raise

    def _make(self) -> None:
        if self.path.is_file():
            raise AtollError(f"{self.path} is a file, and a run needs a folder; choose another --out.")
        try:
            self._check_new()
            self.made = [path for path in (self.path, *self.path.parents) if not path.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AtollError(f"{self.path} cannot be written to ({error.strerror}); choose another --out.") from error

    def _claim(self, configuration: Config, node_lists: NodeLists = None) -> None:
        self._check_new()
        store(self.path, node_lists)  # before the configuration that names them
        storage.write_whole(self.path / "config.toml", tomli_w.dumps(configuration.to_dict()).encode())

    def _check_new(self) -> None:
        if (self.path / "config.toml").exists():
            raise AtollError(
                f"{self.path} already holds a run; resume it with `atoll resume {self.path}` or choose another --out."
            )
        for left in (self.history, self.checkpoint, self.previous, self.result, self.path / "model"):
            if left.exists():  # its rounds would count as this run's
                raise AtollError(f"{left} is left from a run whose config.toml is gone; delete it or choose another --out.")

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, no other process writes to this folder."""
        with storage.Lock(self.path, f"The run {self.path}"):
            storage.sweep(self.path)
            yield

    def withdraw(self) -> None:
        """Remove the folder again unless a round was done: the run could not start."""
        if self.history.exists() and self.history.stat().st_size:
            return
        self.history.unlink(missing_ok=True)
        for name in ("config.toml", "releases.jsonl", PARTITION):
            (self.path / name).unlink(missing_ok=True)
        self._unmake()

    def _unmake(self) -> None:
        with contextlib.suppress(OSError):  # something else was put there
            for path in self.made:
                path.rmdir()

    @classmethod
    def open(cls, path: str | Path) -> tuple[Folder, Config]:
        """The folder of an earlier run, and its configuration; an algorithm that is a file is named there, but not imported."""
        folder = cls(path)
        source = folder.path / "config.toml"
        if not source.is_file():
            raise AtollError(f"{path} is not a run: it holds no config.toml; give the folder that --out named.")
        try:
            document = tomllib.loads(source.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise AtollError(f"{source} is not valid TOML ({error}); restore it or start the run again.") from error
        return folder, located(described(document, str(source)), folder.path)

    def append(self, row: dict[str, Any]) -> None:
        """Add a round to the history, at once."""
        storage.append_line(self.history, json.dumps(finite(row)), durable=False)

    def save(self, document: dict[str, Any]) -> None:
        """Add a checkpoint, which replaces the last but one; the history it belongs to is on the disk before it."""
        if self.history.exists():
            storage.sync(self.history)
        length = self.history.stat().st_size if self.history.exists() else 0
        about = {"history": length, "history_digest": self._digest(length)}
        storage.write_document(self.checkpoint, document | about, compact=True, previous=self.previous)

    def load(self) -> dict[str, Any] | None:
        """The last undamaged checkpoint, with the history cut back to it; None where there is none yet."""
        there = [path for path in (self.checkpoint, self.previous) if path.exists()]
        if not there:
            self.history.unlink(missing_ok=True)
            return None
        self._read = (0, hashlib.sha256())  # read the history again, whatever was written here before
        document, path, failures = self._whole(there)
        if failures:
            self.warnings.append(
                f"{failures[0]}; continuing from the checkpoint before it, of round {document['progress'].get('round')}."
            )
            warnings.warn(self.warnings[-1], AtollWarning, stacklevel=2)
        if path != self.checkpoint:  # the next save must not replace this one by a damaged one
            path.replace(self.checkpoint)
            storage.sync_folder(self.path)
        if self.history.exists():
            os.truncate(self.history, document["history"])
        return document

    def look(self) -> dict[str, Any] | None:
        """The last undamaged checkpoint, for reading only: nothing is changed, and any failure gives None."""
        for path in (self.checkpoint, self.previous):
            with contextlib.suppress(AtollError, OSError):
                return read_checkpoint(path)
        return None

    def step_back(self) -> bool:
        """Drop the last checkpoint for the one before it; False where there is none."""
        if not self.previous.exists():
            return False
        self.previous.replace(self.checkpoint)
        storage.sync_folder(self.path)
        return True

    def _whole(self, paths: list[Path]) -> tuple[dict[str, Any], Path, list[str]]:
        """The first undamaged one of these checkpoints, its path, and what is wrong with those before it."""
        failures: list[str] = []
        for path in paths:
            try:
                document = read_checkpoint(path)
                self._check_history(document, path)
                return document, path, failures
            except storage.DamagedError as error:
                failures.append(str(error).rstrip("."))
        if len(failures) == 1:
            raise AtollError(f"{failures[0]}; restore it, or delete {paths[0].name} to start the run from its first round.")
        if all(failure.startswith(str(self.history)) for failure in failures):
            raise AtollError(
                f"{failures[-1]}, and no checkpoint fits it; restore it, or delete both checkpoints to start the run from its "
                "first round."
            )
        raise AtollError(
            f"Both checkpoints of {self.path} are damaged ({'; '.join(failures)}); "
            "restore them, or delete both to start the run from its first round."
        )

    def _check_history(self, document: dict[str, Any], path: Path) -> None:
        """The history must be at least as long as when the checkpoint was written, and begin with the same bytes."""
        length, there = document.get("history"), self.history.stat().st_size if self.history.exists() else 0
        if not isinstance(length, int) or not 0 <= length <= there:
            raise storage.DamagedError(f"{self.history} is shorter than when {path.name} was written")
        if document.get("history_digest", self._digest(length)) != self._digest(length):
            raise storage.DamagedError(f"{self.history} is damaged: it has other bytes than when {path.name} was written")

    def _digest(self, length: int) -> str:
        """SHA-256 of the first `length` bytes of the history; bytes of an earlier digest are not read again."""
        done, digest = self._read if self._read[0] <= length else (0, hashlib.sha256())
        if length > done:
            with self.history.open("rb") as file:
                file.seek(done)
                digest.update(file.read(length - done))
        self._read = (length, digest)
        return digest.hexdigest()

    def rows(self, digest: str | None = None) -> list[dict[str, Any]]:
        """The history so far; a last line that is cut off, or still being written, is left out.

        `digest` is the history's SHA-256 in result.json: a changed number is valid JSON.
        """
        data = read_bytes(self.history) if self.history.exists() else b""
        lines = data[: data.rfind(b"\n") + 1].splitlines()
        rows = [parse(self.history, line, ROUND_KEYS, "restore it or start the run again") for line in lines]
        if digest is not None and digest != hashlib.sha256(data).hexdigest():
            raise AtollError(f"{self.history} is damaged (its checksum does not match); restore it or leave this run out.")
        return rows

    def read_result(self) -> dict[str, Any] | None:
        """What result.json says; None while the run is still going."""
        if not self.result.exists():
            return None
        advice = f"delete it and finish the run with `atoll resume {self.path}`, or leave this run out"
        result = parse(self.result, read_bytes(self.result), RESULT_KEYS, advice)
        if not is_whole(result):
            raise AtollError(f"{self.result} is damaged (its checksum does not match); {advice}.")
        return result

    def finished(self) -> bool:
        """Whether result.json is there and undamaged."""
        try:
            return self.read_result() is not None
        except AtollError:
            return False

    def finish(self, result: dict[str, Any]) -> None:
        """Write result.json, with checksums of itself and of the history it belongs to."""
        length = self.history.stat().st_size if self.history.exists() else 0
        document = json.loads(json.dumps(finite(result))) | {"history_sha256": self._digest(length)}
        document["sha256"] = checksum(document)
        storage.write_whole(self.result, (json.dumps(document, indent=1) + "\n").encode())

    def keep(self, name: str, payload: dict[str, Any]) -> None:
        """Write a payload as one safetensors file."""
        storage.write_document(self.path / name, payload)
