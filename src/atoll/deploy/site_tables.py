"""A site while the encoding of its table is fitted: it answers what one honest fit asks, and no more.

Answers are exact counts, so a server could ask for ever narrower ranges until one patient is alone in a cell. Therefore:

- A run may ask each verb only as often as the fit does (`MAX_CALLS`; the same call again gets the same answer).
- The same holds for all runs on the same table together: another run gets the answers of the first one to the same arguments
  (`FitRecord`), and nothing new once a fit has asked for its sums, until the site's owner deletes the record.
- A range must hold about half of the site's own values of the column: that of a fit holds nearly all values of all sites. The
  first one that does not ends the fit for good, with the text of every other refusal.

What is asked is on disk before anything is decided from the data.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
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
FITS_FOLDER = "tables.fits"  # beside the runs' folders, whose names have no dot: per table, what was asked in any run
LAST = "sum_columns"  # of a fit
REFUSED = "this is not part of the one fit of this site's table; its log says why, and how its owner can allow another."
MIN_SHARE = 0.5  # of the values that an honest range holds on average, at this site


class FitRecord:
    """What was ever asked of one table at this site, in whatever run; on disk."""

    def __init__(self, folder: Path, table: Table, notify: Callable[[str], None]) -> None:
        """`folder` is that of all runs."""
        self.path = folder / FITS_FOLDER / f"{own_digest(table)}.json"
        self.notify = notify
        self.asked: dict[str, list[str]] = {}
        self.refused = False  # for good, whatever is asked
        if self.path.exists():
            document = read_json(self.path, notify)
            try:
                self.asked, self.refused = dict(document["asked"]), bool(document["refused"])
            except (KeyError, TypeError, ValueError) as error:
                raise damaged(self.path, notify) from error

    def admit(self, message: Message) -> None:
        """Record a request; refuse it where one fit does not make it."""
        before = self.asked.setdefault(message.verb, [])
        digest = arguments_digest(message.common).hex()
        known = digest in before
        spent = bool(self.asked.get(LAST)) or len(before) >= MAX_CALLS.get(message.verb, 0)
        if self.refused or (spent and not known):
            self.notify(
                f"refused {message.verb!r}: it is not part of the one fit of this table; delete {self.path} to allow another"
            )
            raise AtollError(REFUSED)
        if not known:
            before.append(digest)
            self.save()

    def save(self) -> None:
        """Write the record."""
        write_json(self.path, {"asked": self.asked, "refused": self.refused}, self.notify)

    def close(self) -> None:
        """Refuse everything from now on."""
        self.refused = True
        self.save()


class TablePreparation:
    """The parties of one site in this stage, and the record of what they were asked."""

    def __init__(self, cohort: TableCohort, folder: Path, notify: Callable[[str], None], *, own_data: bool) -> None:
        """`folder` is that of the run; `own_data`: whether the table is the site's own, not a simulation's."""
        self.cohort = cohort
        self.path = folder / RECORD_FILE
        self.notify = notify
        table = cohort.graph.table
        assert table is not None
        self.table = table
        if own_data and (folder / ENCODING_FILE).exists():
            notify(f"refused to prepare {folder.name} again: its rounds have begun")
            raise AtollError(REFUSED)
        self.fit = FitRecord(folder.parent, table, notify) if own_data else None
        self.answered = self._load()

    def answer(self, message: Message) -> Fields:
        """The reply to a request that an honest fit may make."""
        if message.verb not in SECURE_STEPS:
            self._admit(message)
        elif self.fit is not None and self.fit.refused:
            raise AtollError(REFUSED)
        return self.cohort.answer(message)

    def _admit(self, message: Message) -> None:
        """Record a request, then refuse it, or not: the record must not depend on what the data says."""
        if message.each:
            raise AtollError(f"{message.verb!r} is sent to each site alike before the first round.")
        digest = f"{message.round}/{message.call}/{arguments_digest(message.common, message.training).hex()}"
        before = self.answered.setdefault(message.verb, [])
        if digest not in before:
            if len(before) >= MAX_CALLS.get(message.verb, 0):
                self.notify(f"refused another {message.verb!r}: encoding the columns takes {len(before)} in a run")
                raise AtollError(REFUSED)
            before.append(digest)
            self._save()
        if self.fit is not None:
            self.fit.admit(message)
            if "low" in message.common and not self._ranges_are_wide(message):
                self.fit.close()
                raise AtollError(REFUSED)

    def _ranges_are_wide(self, message: Message) -> bool:
        """Whether each range holds enough of the site's own values: that of a fit is about nearly all values of all sites."""
        low, high = (_numbers(message.common.get(name)) for name in ("low", "high"))
        for number, index in enumerate(numeric(self.table.columns)):
            column, values = self.table.columns[index], self.table.values[:, index]
            values = values[~np.isnan(values)]
            if (low[number], high[number]) == (column.low, column.high) and low[number] < high[number]:
                continue
            first, last = column.clip or (0.0, 1.0)
            inside = int(((values >= low[number]) & (values <= high[number])).sum())
            if not low[number] < high[number] or inside < MIN_SHARE * (last - first) * len(values):
                self.notify(
                    f"refused to count column {column.name!r} in a range that holds {inside} of its {len(values)} values, and "
                    f"everything else from now on; if the range is right, give low and high in the features.toml of all sites"
                )
                return False
        return True

    def _load(self) -> dict[str, list[str]]:
        if not self.path.exists():
            self.answered = {}
            self._save()
            return self.answered
        document = read_json(self.path, self.notify)
        try:
            answered: dict[str, list[str]] = document["answered"]
            known = document["table"]
        except (KeyError, TypeError) as error:
            raise damaged(self.path, self.notify) from error
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
    known = read_json(path, notify)
    if known != document:
        raise AtollError("the encoding is not the one that the run began with.")


def read_json(path: Path, notify: Callable[[str], None]) -> Any:
    """A document that `write_json` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise damaged(path, notify) from error


def damaged(path: Path, notify: Callable[[str], None]) -> AtollError:
    """What the server is told of a file that cannot be read, after the site's owner was told which."""
    notify(f"{path} is damaged; restore it, or do not take part in this run")
    return AtollError("its record of the run's preparation is damaged; its log says more.")


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


def own_digest(table: Table) -> str:
    """A text that changes with what the site's owner gave: not with the order of the columns, which is the server's to choose,
    nor with the kind of a column without values, which may be that of other sites."""
    parts = []
    for index, column in enumerate(table.columns):
        values = np.ascontiguousarray(table.values[:, index])
        options = [column.name] if np.isnan(values).all() else [asdict(column), table.names[index]]
        parts.append(json.dumps(options, sort_keys=True).encode() + values.tobytes())
    pieces = sorted(hashlib.blake2b(part, digest_size=32).digest() for part in parts)
    return hashlib.blake2b(b"".join(pieces), digest_size=16).hexdigest()


def _numbers(value: Any) -> list[float]:
    return [float(one) for one in value.tolist()] if isinstance(value, Tensor) else []
