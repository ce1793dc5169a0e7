"""Some parties of a run in a process of their own: requests in, answers out, both as bytes.

It is the other end of `engines.hosted`. The engine decides how bytes are carried; a process with a host runs until it is
ended, and keeps nothing but its parties and their memory.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from atoll import wire
from atoll.engines.inprocess import InProcessEngine, MakeCohort, apart
from atoll.errors import AtollError
from atoll.federation.cohort import Cohort, Fields, Message
from atoll.federation.federation import Answer
from atoll.federation.fields import concatenate
from atoll.federation.memory import axes_of, divided, rows_along
from atoll.parties import Parties
from atoll.version import __version__

OK, REFUSED, CRASHED = "ok", "refused", "crashed"
Bytes = bytes | memoryview


@dataclass
class Opened:
    """What a host makes its parties with."""

    make: MakeCohort
    spent: list[tuple[Parties, float | None, str, int]] = field(
        default_factory=list
    )  # released since the last answer: see `Releases`


Open = Callable[[Mapping[str, Any]], Opened]  # from what `PortableMaker.document` gave; a function of a module


class Host:
    """The parties of one site. It answers every request and never raises.

    Parameters:
        open: Makes the parties from the run's document, which the first request (`begin`) holds.
    """

    def __init__(self, open: Open) -> None:
        self.open = open
        self.opened: Opened | None = None
        self.engine: InProcessEngine | None = None

    def handle(self, shared: Bytes, own: Bytes = b"") -> bytes:
        """The answer to a request, which comes in two parts: what all sites are sent, and what is for this one."""
        try:
            request = wire.unpack(shared) | (wire.unpack(own) if len(own) else {})
            answer: Fields = {"status": OK, **self._answer(request)}
        except AtollError as error:
            answer = {"status": REFUSED, "reason": str(error)}
        except Exception:  # a mistake in an algorithm, for its author to see
            answer = {"status": CRASHED, "reason": traceback.format_exc()}
        return wire.encode(answer, compact=True)

    def _answer(self, request: Fields) -> Fields:
        kind = request["kind"]
        if kind == "begin":
            return self._begin(request)
        if kind == "ask":
            return self._ask(request)
        if kind == "state":
            return {"memory": concatenate([cohort.state() for cohort in self.cohorts])}
        if kind == "trained":
            return {"memory": concatenate([cohort.trained() for cohort in self.cohorts])}
        assert kind == "restore"
        return self._restore(request.get("memory", {}))

    @property
    def cohorts(self) -> Sequence[Cohort]:
        """The parties, in party order: one cohort or, with `placement=apart`, one per party."""
        assert self.engine is not None
        return self.engine.cohorts

    @property
    def axes(self) -> dict[str, str]:
        """The axis of each piece of the parties' memory."""
        return axes_of(self.cohorts[0].memory, self.cohorts[0].round_memory)

    def _begin(self, request: Fields) -> Fields:
        """Make the parties; the answer says how many rows they have in memory, by its axis."""
        if request["atoll"] != __version__:
            there = f"A node of the cluster has atoll {__version__}"
            raise AtollError(f"{there}, but the run has atoll {request['atoll']}; install the same version everywhere.")
        torch.set_num_threads(request["threads"])
        opened = self.opened = self.open(request["run"])
        parties = request["parties"].tolist()
        sites = [parties] if request["placement"] == "together" else [[parties[row]] for [row] in apart(len(parties))]
        blank = request["blank"]
        self.engine = InProcessEngine(
            lambda some, rebuilt: opened.make(some, blank or rebuilt), sites, amnesia=request["amnesia"]
        )
        axes = self.axes
        rows = {axis: sum(counts[axis] for counts in self._rows(set(axes.values()))) for axis in set(axes.values())}
        return {"axes": [axes], "rows": [rows], "predicting": any(cohort.predicting for cohort in self.cohorts)}

    def _rows(self, axes: set[str]) -> list[dict[str, int]]:
        return [rows_along(axes, cohort.graph) for cohort in self.cohorts]

    def _restore(self, memory: Fields) -> Fields:
        axes = self.axes
        for cohort, part in zip(self.cohorts, divided(memory, axes, self._rows(set(axes.values()))), strict=True):
            cohort.restore(part)
        return {}

    def _ask(self, request: Fields) -> Fields:
        assert self.engine is not None
        assert self.opened is not None
        message = Message(
            request["verb"],
            request["round"],
            request["call"],
            request["training"],
            Parties(request["parties"].numpy()),
            request.get("common", {}),
            request.get("each", {}),
            request.get("secure"),
        )
        self.opened.spent.clear()
        results = self.engine.deliver(message)
        answers = [result for result in results if isinstance(result, Answer)]
        spent = self.opened.spent
        return {
            "answers": {str(index): _fields(answer) for index, answer in enumerate(answers)},
            "failures": [[result.party, result.reason] for result in results if not isinstance(result, Answer)],
            "spent": {str(index): {"parties": as_tensor(who), "about": list(about)} for index, (who, *about) in enumerate(spent)},
        }


def _fields(answer: Answer) -> Fields:
    return {"parties": as_tensor(answer.parties), "fields": answer.fields}


def as_tensor(parties: Parties) -> torch.Tensor:
    """Party numbers as a tensor."""
    return torch.from_numpy(np.array(parties.numbers))
