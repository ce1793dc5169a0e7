"""What a site keeps of a run on its own disk: its parties' memory, round by round, and the digest of the data it began with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll import storage
from atoll.engines.remote import MISSING_SAVE
from atoll.errors import AtollError
from atoll.federation.cohort import Fields

MAX_KEPT = 3  # saves: the server's checkpoint may be one behind, and it keeps the one before that too
DATA_FILE = "data.json"


class SiteCheckpoints:
    """The folder of one run at a site. What goes wrong is told in full to `say`, at the site; the server hears that it did."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder = folder
        self.say = say

    def known(self) -> bool:
        """Whether the run has begun here before."""
        return (self.folder / DATA_FILE).exists()

    def check_data(self, digest: int, where: str) -> None:
        """Note the data's digest when the run begins here; later, refuse other data."""
        path = self.folder / DATA_FILE
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["digest"] if path.exists() else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.say(f"{path} is damaged; restore it, or leave this run")
            raise AtollError("its record of the run's data is damaged; its log says more.") from error
        if known is None:
            self._write(path, lambda: storage.write_whole(path, json.dumps({"digest": digest}).encode() + b"\n"))
        elif known != digest:
            self.say(f"{where} is not the data that the run {self.folder.name} began with; join with that data")
            raise AtollError("its data is not what it was when the run began; join again with that data.")

    def write(self, round: int, memory: Fields) -> None:
        """Save the memory after a round; the last few saves are kept."""
        path = self._path(round)
        self._write(path, lambda: storage.write_document(path, {"memory": memory}))
        kept = self.rounds()
        for old in [other for other in kept if other > round] + [other for other in kept if other <= round][:-MAX_KEPT]:
            self._path(old).unlink()

    def read(self, round: int, exact: bool) -> tuple[int, dict[str, Any]] | None:
        """The memory after a round or, unless `exact`, after the last one before it that is whole; None where there is none."""
        for other in reversed([each for each in self.rounds() if each <= round]):
            if other < round and exact:
                break
            try:
                return other, dict(storage.read_document(self._path(other)).get("memory", {}))
            except storage.DamagedError as error:
                self.say(str(error))
                if exact:
                    raise AtollError(f"{MISSING_SAVE} {round} is damaged.") from error
        if exact:
            raise AtollError(f"{MISSING_SAVE} {round} is not here.")
        return None

    def finish(self, models: Fields) -> None:
        """Write the parties' own models, where there are any; of the saves, the last is enough then."""
        if models:
            path = self.folder / "personal.safetensors"
            self._write(path, lambda: storage.write_document(path, models))
            self.say(f"personal models: {path}")
        for old in self.rounds()[:-1]:
            self._path(old).unlink()

    def rounds(self) -> list[int]:
        """The rounds of which there is a save."""
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"

    def _write(self, path: Path, write: Callable[[], None]) -> None:
        try:
            with storage.writing(path):
                self.folder.mkdir(parents=True, exist_ok=True)
            write()
        except AtollError as error:
            self.say(str(error))
            raise AtollError("it could not write to its disk; its log says why.") from error
