"""A site's own metrics, written at the site: those on its own nodes, before noise and masking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atoll.federation.cohort import Message
from atoll.federation.fields import row, sum_over_parties
from atoll.privacy.noise_settings import EVALUATE
from atoll.random import Draws
from atoll.runs.documents import finite
from atoll.tasks import Task


class SiteMetrics:
    """A guard that changes nothing and writes each party's evaluation as a line of `metrics.jsonl`.

    After a restart a round may appear twice: the last line counts.
    """

    def __init__(self, path: Path, task: Task) -> None:
        self.path, self.task = path, task
        self.needed = {name for name, field in task.fields.items() if not field.optional}
        self.last: tuple[int, dict[str, Any]] = (0, {})  # the round of the last evaluation, and its metrics over the parties here
        self.counts: dict[str, Any] = {}  # what they were made of

    def __call__(self, message: Message, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """Return the fields unchanged."""
        if message.verb == EVALUATE and self.needed <= fields.keys():
            lines = []
            names = self.task.fields.keys() & fields.keys()
            self.counts = {name: sum_over_parties(fields[name]) for name in names}
            self.last = message.round, self.task.metrics(self.counts)
            for index, party in enumerate(message.parties):
                counts = {name: row(fields[name], index) for name in names}
                lines.append(json.dumps(finite({"round": message.round, "party": party, **self.task.metrics(counts)})) + "\n")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(lines)
        return fields

    def of_round(self, round: int) -> dict[str, Any]:
        """The metrics of a round over the parties here; none if it was not the last to be evaluated."""
        return self.last[1] if self.last[0] == round else {}

    def counts_of_round(self, round: int) -> dict[str, Any]:
        """The counts of a round, summed over the parties here; none if it was not the last to be evaluated."""
        return self.counts if self.last[0] == round else {}
