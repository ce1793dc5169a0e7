"""Hosts in the process of the test, which can be lost at any request: an engine `hosted` without the time that processes take."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from atoll import wire
from atoll.engines import ENGINES
from atoll.engines.host import Host, Open
from atoll.engines.hosted import HostedEngine, Lost, PortableMaker
from atoll.engines.inprocess import InProcessEngine, MakeCohort
from atoll.parties import divide_evenly

ROUNDS_AT_ONE_SITE = {"gfl_appnp"}  # one cohort in one process keeps gradients as descriptions, and multiplies in another order
Lose = Callable[[int, dict[str, Any]], str]  # (site, what it is asked) → "", or "before" or "after" acting on it it is lost


def never(site: int, request: dict[str, Any]) -> str:
    """Nothing is lost."""
    return ""


@dataclass
class DirectHosts:
    """One host per site, and what happened to them."""

    lose: Lose = never
    hosts: dict[int, Host] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    asked: list[tuple[int, str]] = field(default_factory=list)  # (site, kind of request)
    closed: int = 0

    def start(self, site: int, open: Open) -> None:
        """A host that knows nothing."""
        self.starts.append(site)
        self.hosts[site] = Host(open)

    def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
        """Each host's answer, unless it is lost before or after it has acted."""
        for site, data in own.items():
            request = wire.decode(shared) | (wire.decode(data) if data else {})
            self.asked.append((site, request["kind"]))
            when = self.lose(site, request) if site in self.hosts else "before"
            if when == "after":
                self.hosts[site].handle(shared, data)
            if when:
                self.hosts.pop(site, None)
                yield site, Lost("its process ended")
            else:
                yield site, self.hosts[site].handle(shared, data)

    def close(self) -> None:
        """Forget all hosts."""
        self.closed += 1
        self.hosts.clear()


@dataclass
class HostedKind:
    """What is registered as an engine: `settings.sites` sites, by default 2."""

    lose: Lose = never
    made: list[DirectHosts] = field(default_factory=list)
    hosts: type[DirectHosts] = DirectHosts
    HOSTED: bool = True

    def connect(self, make: PortableMaker, parties: int, settings: Any) -> HostedEngine:
        """The engine of a run."""
        self.made.append(self.hosts(self.lose))
        return HostedEngine(make, divide_evenly(parties, min(settings.sites or 2, parties)), self.made[-1], settings)


class Divided:
    """The in-process engine, with the parties divided over as many cohorts as there are sites."""

    def connect(self, make: MakeCohort, parties: int, settings: Any) -> InProcessEngine:
        """The engine of a run."""
        return InProcessEngine(make, divide_evenly(parties, min(settings.sites or 2, parties)))


class LosesSome:
    """Loses a site now and then: after so many requests, then after `gap` more, and so on."""

    def __init__(self, seed: int, first: int = 8, gap: int = 40) -> None:
        self.draws, self.gap = random.Random(seed), gap
        self.left, self.lost = self.draws.randrange(2, first), 0

    def __call__(self, site: int, request: dict[str, Any]) -> str:
        """Whether the site is lost now."""
        self.left -= 1
        if self.left > 0:
            return ""
        self.left, self.lost = self.gap, self.lost + 1
        return self.draws.choice(["before", "after"])


@contextmanager
def registered(name: str, engine: Any) -> Iterator[Any]:
    """Inside, there is an engine of that name."""
    ENGINES.register(name, engine)
    try:
        yield engine
    finally:
        ENGINES.unregister(name)


@contextmanager
def hosted(lose: Lose = never) -> Iterator[HostedKind]:
    """Inside, there is an engine `hosted`."""
    with registered("hosted", HostedKind(lose)) as kind:
        yield kind
