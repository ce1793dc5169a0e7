"""A site while the encoding of its table is fitted: it answers what an honest fit asks, and no more.

Answers are exact counts, so a server could ask for ever narrower ranges until one patient is alone in a cell. Therefore a run may
ask each verb only as often as the fit does (`MAX_CALLS`; the same call again gets the same answer and does not count), and a
range must hold about half of the site's own values of the column: that of a fit holds nearly all values of all sites.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from atoll import storage
from atoll.data.encoding_counts import numeric
from atoll.data.encoding_fit import MAX_CALLS
from atoll.errors import AtollError
from atoll.federation.cohort import Fields, Message
from atoll.graphs.table import Table
from atoll.privacy.masking import SECURE_STEPS, arguments_digest
from atoll.runs.preparation import TableCohort

RECORD_FILE = "preparation.json"  # in a run's folder: the requests that were answered, and the digest of the table
ENCODING_FILE = "encoding.json"  # in a run's folder: the encoding that the run began with
MIN_SHARE = 0.5  # of the values that an honest range holds on average, at this site


class TablePreparation:
    """The parties of one site in this stage, and the record of what they were asked."""

    def __init__(self, cohort: TableCohort, folder: Path, notify: Callable[[str], None], *, own_data: bool) -> None:
        """`folder` is that of the run; `own_data`: whether the table is the site's own, not a simulation's."""
        self.cohort = cohort
        self.path = folder / RECORD_FILE
        self.notify = notify
        self.own_data = own_data
        table = cohort.graph.table
        assert table is not None
        self.table = table
        self.answered = self._load()

    def answer(self, message: Message) -> Fields:
        """The reply to a request that an honest fit may make."""
        if message.verb not in SECURE_STEPS:
            self._admit(message)
        return self.cohort.answer(message)

    def _admit(self, message: Message) -> None:
        if message.each:
            raise AtollError(f"{message.verb!r} is sent to each site alike before the first round.")
        if self.own_data and "low" in message.common:
            self._check_ranges(message)
        digest = f"{message.round}/{message.call}/{arguments_digest(message.common, message.training).hex()}"
        before = self.answered.setdefault(message.verb, [])
        if digest in before:
            return
        if len(before) >= MAX_CALLS.get(message.verb, 0):
            self.notify(f"refused another {message.verb!r}: encoding the columns takes {len(before)} in a run")
            raise AtollError(
                f"{message.verb!r} was asked {len(before)} times in this run, as often as encoding the columns takes."
            )
        before.append(digest)
        self._save()  # before anything leaves

    def _check_ranges(self, message: Message) -> None:
        """Refuse a range that holds few of the site's own values: that of a fit is about nearly all values of all sites."""
        low, high = (_numbers(message.common.get(name)) for name in ("low", "high"))
        for number, place in enumerate(numeric(self.table.columns)):
            column, values = self.table.columns[place], self.table.values[:, place]
            values = values[~np.isnan(values)]
            if not low[number] < high[number]:
                raise AtollError(f"{message.verb!r} has an empty range.")
            if (low[number], high[number]) == (column.low, column.high):
                continue
            first, last = column.clip or (0.0, 1.0)
            inside = int(((values >= low[number]) & (values <= high[number])).sum())
            if inside < MIN_SHARE * (last - first) * len(values):
                self.notify(f"refused to count column {column.name!r} in a range that holds {inside} of its {len(values)} values")
                raise AtollError(
                    f"{message.verb!r} has a range for number {number + 1} that holds few of this site's values; "
                    "if they are right, give low and high in the features.toml of all sites."
                )

    def _load(self) -> dict[str, list[str]]:
        if not self.path.exists():
            self.answered = {}
            self._save()
            return self.answered
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            answered: dict[str, list[str]] = document["answered"]
            known = document["table"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.notify(f"{self.path} is damaged; restore it, or do not take part in this run")
            raise AtollError("its record of the run's preparation is damaged; its log says more.") from error
        if known != table_digest(self.table):
            raise AtollError("its data has changed since the run began; join again with the original data.")
        return answered

    def _save(self) -> None:
        document = {"table": table_digest(self.table), "answered": self.answered}
        write_json(self.path, document, self.notify)


def keep_encoding(folder: Path, document: Fields, notify: Callable[[str], None]) -> None:
    """Record the encoding that a run begins with; later, refuse another one."""
    path = folder / ENCODING_FILE
    if not path.exists():
        write_json(path, document, notify)
        return
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        notify(f"{path} is damaged; restore it, or do not take part in this run")
        raise AtollError("its record of the run's encoding is damaged; its log says more.") from error
    if known != document:
        raise AtollError("the encoding is not the one that the run began with.")


def write_json(path: Path, document: Any, notify: Callable[[str], None]) -> None:
    """Write a document of a run's folder, which may not exist yet."""
    try:
        with storage.writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        storage.write_whole(path, json.dumps(document).encode() + b"\n")
    except AtollError as error:
        notify(str(error))
        raise AtollError("it could not write to its disk; its log says why.") from error


def table_digest(table: Table) -> str:
    """A text that changes with the table."""
    names = json.dumps([[column.name for column in table.columns], table.names]).encode()
    return hashlib.blake2b(np.ascontiguousarray(table.values).tobytes() + names, digest_size=16).hexdigest()


def _numbers(value: Any) -> list[float]:
    return [float(one) for one in value.tolist()] if isinstance(value, Tensor) else []
