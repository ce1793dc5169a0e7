"""The in-process engine: all parties in this process, together in one cohort or each at its own site."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from atoll import wire
from atoll.errors import PartyFailure
from atoll.federation.cohort import Cohort, Fields, Message
from atoll.federation.federation import Answer, Failure
from atoll.federation.fields import concatenate, copied
from atoll.parties import Parties

MakeCohort = Callable[[Sequence[int], bool], Cohort]  # (parties, blank) → their cohort


class InProcessEngine:
    """Sites in this process. A single site with all parties is the fast path: nothing is copied.

    `amnesia` rebuilds every cohort from its declared memory before each message, and passes all messages as bytes:
    whatever a party keeps elsewhere, or cannot be serialized, is lost.
    """

    def __init__(self, make: MakeCohort, sites: Sequence[Sequence[int]], *, amnesia: bool = False) -> None:
        self.make = make
        self.sites = [Parties(site) for site in sites]
        self.cohorts = [make(site, False) for site in self.sites]
        self.amnesia = amnesia

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Have each site answer for its parties among those addressed."""
        if len(self.sites) == 1 and message.parties == self.sites[0]:
            return self._answer(0, message)
        addressed = np.zeros(1 + max(int(site.numbers.max()) for site in self.sites), dtype=bool)
        addressed[message.parties.numbers] = True
        results: list[Answer | Failure] = []
        for index, site in enumerate(self.sites):
            local = site.numbers[addressed[site.numbers]]
            if len(local):
                results += self._answer(index, message.select(Parties(local)))
        return results

    def _answer(self, index: int, message: Message) -> list[Answer | Failure]:
        if self.amnesia:
            message = _through_bytes(message)
            self._rebuild(index)
        try:
            fields = self.cohorts[index].answer(message)
        except PartyFailure as failure:
            return [Failure(party, failure.reason) for party in message.parties]
        return [Answer(message.parties, wire.decode(wire.encode(fields)) if self.amnesia else fields)]

    def _rebuild(self, index: int) -> None:
        memory = wire.decode(wire.encode(self.cohorts[index].state(), compact=True))
        self.cohorts[index] = self.make(self.sites[index], True)
        self.cohorts[index].restore(memory)

    def state(self) -> Fields:
        """The memory of every site."""
        return {str(index): cohort.state() for index, cohort in enumerate(self.cohorts)}

    def restore(self, memory: dict[str, Any]) -> None:
        """Restore the memory of every site."""
        for index, cohort in enumerate(self.cohorts):
            cohort.restore(memory.get(str(index), {}))

    def snapshot(self, into: Fields | None = None) -> Fields:
        """A copy of what the parties' predictions need of their memory, in party order."""
        return copied(self.trained(), into)  # type: ignore[no-any-return]

    def trained(self) -> Fields:
        """The same without a copy, where there is one site: the next round changes it."""
        return concatenate([cohort.trained() for cohort in self.cohorts])


class PlacementSettings(Protocol):
    """The settings of a run that this engine reads."""

    @property
    def placement(self) -> str:
        """`together` (one cohort) or `apart` (one cohort per party)."""
        ...

    @property
    def amnesia(self) -> bool:
        """Whether parties are rebuilt from their declared memory before every message."""
        ...


def connect(make: MakeCohort, parties: int, settings: PlacementSettings) -> InProcessEngine:
    """The engine of a run, with all its parties in this process."""
    sites = together(parties) if settings.placement == "together" else apart(parties)
    return InProcessEngine(make, sites, amnesia=settings.amnesia)


def together(parties: int) -> list[range]:
    """One site with all parties."""
    return [range(parties)]


def apart(parties: int) -> list[list[int]]:
    """One site per party."""
    return [[party] for party in range(parties)]


def _through_bytes(message: Message) -> Message:
    decoded = wire.decode(wire.encode({"common": message.common, "each": message.each, "secure": message.secure or {}}))
    return replace(message, common=decoded.get("common", {}), each=decoded.get("each", {}), secure=decoded.get("secure"))
