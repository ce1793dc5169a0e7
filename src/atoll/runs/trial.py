"""One run of a comparison or of tuning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from atoll.data.script_data import ScriptData
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.loop import Watch
from atoll.runs.own_partition import unlocated
from atoll.runs.result import Result


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    row: str  # the row of the table it belongs to
    config: Config

    @property
    def label(self) -> str:
        """The row and the seed."""
        return f"{self.row} seed {self.config.seed}"

    def run(self, folder: Path | None, given: ScriptData | None, watch: Watch | None) -> Result:
        """Run it, or continue it where the folder holds it already."""
        if folder is not None and (folder / "config.toml").exists():
            there = replace(unlocated(Folder.open(folder)[1], folder), device=self.config.device)
            if there.to_dict() != self.config.to_dict():
                raise AtollError(f"{folder} holds a run with other settings; choose another --out or delete that folder.")
            if given is not None and callable(given.partition):  # it may be random: the folder has what it gave
                given = given.without_partition
            return runner.resume(folder, given, algorithm=self.config.algorithm, watch=watch, device=self.config.device)
        return runner.run(self.config, given, out=folder, watch=watch)
