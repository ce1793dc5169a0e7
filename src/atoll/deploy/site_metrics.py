"""A site's own metrics, written at the site: those on its own nodes, before noise and masking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atoll.federation.cohort import Message
from atoll.privacy.noise import EVALUATE
from atoll.random import Draws
from atoll.runs.folder import finite
from atoll.tasks import Task


class SiteMetrics:
    """A guard that changes nothing and writes each party's evaluation as a line of `metrics.jsonl`.

    After a restart a round may appear twice: the last line counts.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self.path, self.task = path, task

    def __call__(self, message: Message, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the fields unchanged."""
        if message.verb == EVALUATE and self.task.fields.keys() <= fields.keys():
            lines = []
            for index, party in enumerate(message.parties):
                counts = {name: fields[name][index] for name in self.task.fields}
                lines.append(json.dumps(finite({"round": message.round, "party": party, **self.task.metrics(counts)})) + "\n")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        return fields
