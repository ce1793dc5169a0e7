"""A site's checkpoints of a run: its parties' memory after some rounds, and the digest of the data it began with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll import storage
from atoll.engines.remote import MISSING_SAVE
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.runs.model_card import card
from atoll.runs.model_files import FOLDER, ModelFiles

MAX_KEPT = 3  # checkpoints: the server's may be one behind, and it also keeps the one before that
DATA_FILE = "data.json"


class SiteCheckpoints:
    """The folder of one run at a site. Failures are reported in full at the site (`notify`), to the server only by kind."""

    def __init__(self, folder: Path, notify: Callable[[str], None]) -> None:
        self.folder = folder
        self.notify = notify

    def known(self) -> bool:
        """Whether the run has begun here before."""
        return (self.folder / DATA_FILE).exists()

    def check_data(self, digest: int, where: str) -> None:
        """Record the data's digest when the run begins here; later, refuse other data."""
        path = self.folder / DATA_FILE
        try:
            known = json.loads(path.read_text(encoding="utf-8"))["digest"] if path.exists() else None
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.notify(f"{path} is damaged; restore it, or do not take part in this run")
            raise AtollError("its record of the run's data is damaged; its log says more.") from error
        if known is None:
            self._write(path, lambda: storage.write_whole(path, json.dumps({"digest": digest}).encode() + b"\n"))
        elif known != digest:
            self.notify(f"{where} is not the data that the run {self.folder.name} began with; join with the original data")
            raise AtollError("its data has changed since the run began; join again with the original data.")

    def write(self, round: int, memory: Fields, best: Fields | None = None) -> None:
        """Save the memory after a round, and what is kept of the best round; the last `MAX_KEPT` checkpoints are kept."""
        path = self._path(round)
        self._write(path, lambda: storage.write_document(path, {"memory": memory, **({"best": best} if best else {})}))
        rounds = self.rounds()
        for old in [other for other in rounds if other > round] + [other for other in rounds if other <= round][:-MAX_KEPT]:
            self._path(old).unlink()

    def read(self, round: int, exact: bool) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        """A save: its round, the memory and what is kept of the best round. It is that of this round or, unless `exact`, the
        latest undamaged one before it; None if there is none."""
        for other in reversed([each for each in self.rounds() if each <= round]):
            if other < round and exact:
                break
            try:
                document = storage.read_document(self._path(other))
                return other, dict(document.get("memory", {})), dict(document.get("best", {}))
            except storage.DamagedError as error:
                self.notify(str(error))
                if exact:
                    raise AtollError(f"{MISSING_SAVE} {round} is damaged.") from error
        if exact:
            raise AtollError(f"{MISSING_SAVE} {round} is not here.")
        return None

    def finish(self, models: Fields) -> None:
        """Write the parties' personal models, if there are any; only the last checkpoint is kept."""
        if models:
            path = self.folder / "personal.safetensors"
            self._write(path, lambda: storage.write_document(path, models))
            self.notify(f"personal models: {path}")
        for old in self.rounds()[:-1]:
            self._path(old).unlink()

    def write_model(self, files: ModelFiles) -> None:
        """Write the model of the best round."""
        path = self.folder / FOLDER
        self._write(path, lambda: files.write(self.folder, card(files.description)))
        self.notify(f"model of round {files.description['best_round']}: {path}")

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint."""
        return sorted(int(path.stem) for path in self.folder.glob("*.safetensors") if path.stem.isdigit())

    def _path(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"

    def _write(self, path: Path, write: Callable[[], None]) -> None:
        try:
            with storage.writing(path):
                self.folder.mkdir(parents=True, exist_ok=True)
            write()
        except AtollError as error:
            self.notify(str(error))
            raise AtollError("it could not write to its disk; its log says why.") from error
