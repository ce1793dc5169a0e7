"""The engine of one organization's cluster: each site is an actor of Ray, on whichever node has room.

What Ray carries are plain byte arrays in the wire format, through its object store; what all sites are sent is stored once per
message. The rest is in `engines.hosted` and `engines.host`.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from atoll.engines import inprocess
from atoll.engines.host import Bytes, Host, Open
from atoll.engines.hosted import HostedEngine
from atoll.engines.processes import Lost, PortableMaker
from atoll.engines.ray_cluster import RayCluster
from atoll.errors import AtollError
from atoll.parties import divide_evenly

HOSTED = True
MIN_STORED_BYTES = 100_000  # shorter answers travel with their call; Ray stores longer ones, and then copies all but arrays


class RaySettings(inprocess.PlacementSettings, Protocol):
    """The settings of a run that this engine reads."""

    sites: int
    address: str
    cpus_per_site: float
    gpus_per_site: float
    timeout: float
    answer_timeout: float


def connect(make: PortableMaker, parties: int, settings: RaySettings) -> HostedEngine:
    """The engine of a run; refused where the cluster is not there or has not enough room."""
    cpus, gpus = settings.cpus_per_site, settings.gpus_per_site
    for name, number in {"cpus_per_site": cpus, "gpus_per_site": gpus}.items():
        if number > 1 and number != int(number):
            raise AtollError(f"{name} is {number:g} but must be a whole number above 1, or a share of one; choose {int(number)}.")
    if make.device.startswith("cuda") and not gpus:
        raise AtollError(f"device is {make.device}, but Ray shows actors the GPUs that they reserve; set gpus_per_site, too.")
    if settings.sites > parties:
        raise AtollError(f"sites is {settings.sites}, but there are {parties} parties; lower it, or leave it out.")
    cluster = RayCluster(settings.address)
    try:
        room, each = cluster.room(cpus, gpus), f"cpus_per_site={cpus:g}" + (f" and gpus_per_site={gpus:g}" if gpus else "")
        sites = settings.sites or min(parties, max(room, 1))
        if sites > room:
            raise AtollError(
                f"The Ray cluster has {cluster.described()}, room for {room} of the {sites} sites with {each}; "
                "lower sites or what each reserves, or add nodes."
            )
        hosts = RayHosts(cluster, {"num_cpus": cpus, "num_gpus": gpus}, settings.timeout, settings.answer_timeout)
        spare = max(1, int(cluster.cpus - sites * cpus)) if cluster.here_alone else 0
        return HostedEngine(make, divide_evenly(parties, sites), hosts, settings, threads=max(1, int(cpus)), spare=spare)
    except BaseException:
        cluster.close()
        raise


class RayHosts:
    """One actor per site.

    Parameters:
        cluster: Where they live.
        resources: What each reserves: `num_cpus` and `num_gpus`.
        patience: Seconds that an actor may take to find room and begin.
        limit: Seconds that it may take to answer after that; 0: any.
    """

    def __init__(self, cluster: RayCluster, resources: Mapping[str, float], patience: float, limit: float = 0.0) -> None:
        self.cluster, self.ray, self.patience, self.limit = cluster, cluster.ray, patience, limit
        # an actor that dies is not started again by Ray, which knows nothing of its memory
        self.options: dict[str, Any] = {**resources, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
        self.kind = self.ray.remote(SiteActor)
        self.actors: dict[int, Any] = {}
        self.shared, self.stored = b"", self.ray.put(b"")  # what all sites were sent last: often they are sent it again
        self.ready: set[int] = set()  # sites that have answered since they were started
        self.end = weakref.finalize(self, cluster.close)  # also where nobody calls `close`

    def start(self, site: int, open: Open) -> None:
        """A new actor for a site."""
        self._kill(site)
        self.actors[site] = self.kind.options(**self.options).remote(open)

    def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[int, Bytes | Lost]]:
        """One call of each actor, all at the same time; the answers as they arrive."""
        if shared is not self.shared:
            self.shared, self.stored = shared, self.ray.put(_array(shared))
        start = time.monotonic()
        calls = {self.actors[site].handle.remote(self.stored, data): site for site, data in own.items()}
        seconds = {site: self.limit if site in self.ready else self.patience for site in own}
        ends = {site: start + limit if limit else math.inf for site, limit in seconds.items()}
        while calls:
            end = min(ends[site] for site in calls.values())
            timeout = max(end - time.monotonic(), 0.0) if end < math.inf else None
            arrived, _ = self.ray.wait(list(calls), timeout=timeout)
            for call in arrived:
                site = calls.pop(call)
                yield site, self._answer(site, call)
            for call in [] if arrived else [call for call, site in calls.items() if ends[site] == end]:
                yield calls[call], self._late(calls.pop(call))

    def _answer(self, site: int, call: Any) -> Bytes | Lost:
        try:
            answer = self.ray.get(call)
        except self.ray.exceptions.RayError as error:
            return Lost(_reason(error))
        self.ready.add(site)
        return answer if isinstance(answer, bytes) else answer.data

    def _late(self, site: int) -> Lost:
        """End an actor that has not answered in time."""
        begun = site in self.ready
        self._kill(site)
        if begun:
            return Lost(f"it did not answer within {self.limit:g} seconds")
        return Lost(f"it did not find room in the cluster and begin within {self.patience:g} seconds", final=True)

    def close(self) -> None:
        """End all actors, and leave the cluster."""
        if self.end.alive:
            for site in list(self.actors):
                self._kill(site)
            self.end()

    def _kill(self, site: int) -> None:
        self.ready.discard(site)
        if (actor := self.actors.pop(site, None)) is not None:
            self.ray.kill(actor, no_restart=True)


class SiteActor:
    """A host in a process of Ray's."""

    def __init__(self, open: Open) -> None:
        self.host = Host(open)

    def handle(self, shared: Any, own: bytes) -> Any:
        """What the host answers: bytes or, where it is long, an array of bytes."""
        answer = self.host.handle(shared.data, own)
        return answer if len(answer) < MIN_STORED_BYTES else _array(answer)


def _array(data: bytes) -> Any:
    """Bytes as an array, which Ray stores without copying it once more."""
    return np.frombuffer(data, np.uint8)


def _reason(error: Exception) -> str:
    """What Ray says of an actor that it lost, in a line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    described = [line for line in lines if not line.split(":")[0].replace("_", "").isidentifier() or " " in line.split(":")[0]]
    return " ".join(described) or type(error).__name__
