"""What an engine over processes brings, and what it is given: the two sides of `engines.hosted`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from atoll.engines.host import Bytes, Open
from atoll.federation.cohort import Cohort, Fields
from atoll.parties import Parties


class Lost(NamedTuple):
    """A site's process ended before it answered, or could not be started."""

    reason: str
    final: bool = False  # starting it again would not help


class Hosts(Protocol):
    """The processes of a run's sites, each with a `Host`: what an engine provides."""

    def start(self, site: int, open: Open) -> None:
        """Start the process of a site with `Host(open)`; one that is there already is ended. It need not be ready yet."""
        ...

    def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterable[tuple[int, Bytes | Lost]]:
        """Have each site's host handle what all are sent and its own part, at the same time; every site with its answer, in the
        order in which they arrive."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


class PortableMaker(Protocol):
    """What makes the cohorts of a run, here or in another process."""

    open: Open  # makes them there, from the document
    device: str  # where the parties compute: a device of the process that they are in

    def __call__(self, parties: Sequence[int], blank: bool, /) -> Cohort:
        """The cohort of some parties, in this process."""
        ...

    def document(self, parties: Sequence[int]) -> Fields:
        """What `open` needs to make these parties: the configuration and their data, or where it is."""
        ...

    def spend(self, parties: Parties, rho: float | None, verb: str, round: int) -> None:
        """Count what these parties released; `rho` is None where it is not bounded."""
        ...
