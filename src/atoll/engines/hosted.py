"""The engine of a cluster, at the server: the parties live in processes with a `Host` each, which may die and be started again.

`Hosts` are these processes and what carries bytes to them: Ray's actors, a pool of processes, or anything that your own engine
provides. The rest is here, and is the same for all: messages as bytes in the wire format, answers in party order, the
memory of every site as of the last save, and what it was sent since. A site that is lost is started again, given that memory and
sent those messages once more; a party's answer is a function of its memory and the message, so nothing else changes.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from atoll import allocator, wire
from atoll.engines.host import CRASHED, REFUSED, as_tensor
from atoll.engines.inprocess import PlacementSettings
from atoll.engines.joint import Joint, Reply
from atoll.engines.processes import Hosts, Lost, PortableMaker
from atoll.errors import AtollError, AtollWarning, short
from atoll.federation.cohort import Fields, Message
from atoll.federation.federation import Answer, Failure
from atoll.federation.fields import concatenate
from atoll.federation.memory import divided
from atoll.parties import Parties
from atoll.version import __version__

__all__ = ["HostedEngine", "Hosts", "Lost", "PortableMaker"]
MAX_STARTS = 3  # of a site in a row that ends before it has answered
MAX_LOG_BYTES = 1 << 28  # of messages since the last save
MIN_SECONDS_BETWEEN_SAVES = 5.0
MIN_GAP_IN_SAVES = 20.0  # minimum gap between saves, in multiples of the last one's duration
MAX_REASON_CHARS = 200
SITES = "sites"  # in a checkpoint: how many there were


@dataclass
class HostedSite:
    """One site, as the server knows it."""

    parties: Parties
    saved: bytes = b""  # its memory at the last save, as its host sent it
    log: list[tuple[int, bytes, bytes]] = field(default_factory=list)  # since: number, what all sites were sent, its own part
    given_up: str = ""  # why it is not started any more


class HostedEngine:
    """The parties in other processes.

    Parameters:
        make: What makes them.
        sites: The parties of each site, in party order.
        hosts: The processes.
        settings: Those of the run.
        threads: Threads of torch in each process.
        spare: Threads of torch in this process until it ends the others, where these leave it fewer than it has; 0 where they do
            not. Threads that wait for each other take the cores from the sites.
    """

    def __init__(
        self,
        make: PortableMaker,
        sites: Sequence[Sequence[int]],
        hosts: Hosts,
        settings: PlacementSettings,
        *,
        threads: int = 1,
        spare: int = 0,
    ) -> None:
        self.make, self.hosts, self.settings, self.threads, self.spare = make, hosts, settings, threads, spare
        self.threads_before = torch.get_num_threads()
        allocator.keep_freed_blocks()
        self.held = [HostedSite(Parties(site)) for site in sites]
        self.began = False
        self.round = self.requests = 0
        self.next_save = 0.0
        self.common = b""  # what all sites were sent of the last message
        self.axes: dict[str, str] = {}  # of the parties' memory
        self.rows: list[dict[str, int]] = [{} for _ in sites]  # how many each site has along them
        self.predicting = True  # whether any of it makes predictions
        self.warnings: list[str] = []  # for the result: which sites were lost

    @property
    def sites(self) -> list[Parties]:
        """The parties of each site."""
        return [site.parties for site in self.held]

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Have each site answer for its parties among those addressed; a site that is lost meanwhile is started again."""
        self._begin()
        if message.round != self.round:
            self.round = message.round
            self._save_if_due()
        addressed = np.zeros(1 + int(self.held[-1].parties.numbers.max()), dtype=bool)
        addressed[message.parties.numbers] = True
        local = {index: site.parties.numbers[addressed[site.parties.numbers]] for index, site in enumerate(self.held)}
        asked = {index: message.select(Parties(numbers)) for index, numbers in local.items() if len(numbers)}
        call = {"kind": "ask", **{name: getattr(message, name) for name in ("verb", "round", "call", "training")}}
        own = {index: encoded({**call, "parties": as_tensor(part.parties), "each": part.each}) for index, part in asked.items()}
        joint = Joint({index: len(part.parties) for index, part in asked.items()})
        replies = self._exchange(self._common(message), own, log=True, joint=joint)
        if not joint.complete:
            replies = {index: reply.apart() if isinstance(reply, Reply) else reply for index, reply in replies.items()}
        results: list[Answer | Failure] = []
        for index, part in asked.items():
            results += self._results(part, replies[index])
        return results

    def _common(self, message: Message) -> bytes:
        """What all sites are sent of a message; the same object where it is what they were sent last, which is kept once."""
        secure = {} if message.secure is None else {"secure": message.secure}
        common = encoded({"common": message.common, **secure})
        if common != self.common:
            self.common = common
        return self.common

    def _results(self, message: Message, reply: Reply | Lost) -> list[Answer | Failure]:
        if isinstance(reply, Lost):
            return [Failure(party, reply.reason) for party in message.parties]
        for spent in reply.fields.get("spent", {}).values():
            self.make.spend(Parties(spent["parties"].numpy()), *spent["about"])
        given = reply.fields.get("answers", {}).values()
        answers = [Answer(Parties(one["parties"].numpy()), one.get("fields", {})) for one in given]
        return [*answers, *(Failure(party, reason) for party, reason in reply.fields["failures"])]

    def state(self) -> Fields:
        """The memory of all parties, in party order, as that of one cohort; and how many sites they were at."""
        self._begin()
        self._save()
        memories = [wire.unpack(site.saved).get("memory", {}) for site in self.held]
        return {"0": concatenate(memories), SITES: len(self.held)}

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Give all parties their memory back; they need not be at as many sites as before."""
        self._begin()
        whole = concatenate([memory[key] for key in sorted((key for key in memory if key.isdecimal()), key=int)])
        parts = divided(whole, self.axes, self.rows)
        self._exchange(RESTORE, {index: encoded({"memory": part}) for index, part in enumerate(parts)})
        if (before := memory.get(SITES, len(self.held))) != len(self.held):
            sentence = (
                f"The run goes on with {len(self.held)} sites where there were {before}: its numbers are equal up to rounding."
            )
            self._warn(sentence)
        self._save()

    def snapshot(self, into: Fields | None = None) -> Fields:
        """What the parties' predictions need of their memory, in party order."""
        if not self.predicting:
            return {}
        replies = self._exchange(TRAINED, dict.fromkeys(range(len(self.held)), b""))
        memories = [{} if isinstance(reply, Lost) else reply.fields.get("memory", {}) for reply in replies.values()]
        if len({tuple(memory) for memory in memories}) > 1:
            raise AtollError(f"The best round cannot be kept: {next(site.given_up for site in self.held if site.given_up)}.")
        return concatenate(memories)

    def close(self) -> None:
        """End all processes."""
        self.hosts.close()
        if self.began and self.spare:
            torch.set_num_threads(self.threads_before)

    def _begin(self) -> None:
        """Start all sites, if they are not: not before there is something to do, so that bad settings are refused first."""
        if self.began:
            return
        self.began = True
        if self.spare:
            torch.set_num_threads(min(self.spare, self.threads_before))
        for index in range(len(self.held)):
            self.hosts.start(index, self.make.open)
        for index, reply in self._exchange(BEGIN, {index: self._document(index) for index in range(len(self.held))}).items():
            if isinstance(reply, Lost):
                raise AtollError(f"The run cannot begin: {reply.reason}.")
            [self.axes], [self.rows[index]] = reply.fields["axes"], reply.fields["rows"]
            self.predicting = reply.fields["predicting"]
        self._save()

    def _document(self, index: int) -> bytes:
        """What a site needs to make its parties; they are blank where their memory is about to be restored."""
        site, settings = self.held[index], self.settings
        how = {"placement": settings.placement, "amnesia": settings.amnesia, "threads": self.threads, "blank": bool(site.saved)}
        return encoded({"atoll": __version__, **how, "parties": as_tensor(site.parties), "run": self.make.document(site.parties)})

    def _exchange(
        self, shared: bytes, own: Mapping[int, bytes], *, log: bool = False, joint: Joint | None = None
    ) -> dict[int, Reply | Lost]:
        """The sites' answers to a request; one that is lost before it answers is started again, and asked again."""
        replies: dict[int, Reply | Lost] = {}
        starts = dict.fromkeys(own, 0)
        waiting = dict(own)
        while waiting := {index: data for index, data in waiting.items() if not self.held[index].given_up}:
            now = self._send(shared, waiting, joint)
            lost = {index: reply for index, reply in now.items() if isinstance(reply, Lost)}
            replies |= now
            self._revive(lost, starts)
            waiting = {index: own[index] for index in lost}
        self.requests += 1
        for index, data in own.items():
            site = self.held[index]
            if site.given_up:
                replies[index] = Lost(site.given_up)
            elif log:
                site.log.append((self.requests, shared, data))
        return {index: replies[index] for index in own}

    def _send(self, shared: bytes, own: Mapping[int, bytes], joint: Joint | None = None) -> dict[int, Reply | Lost]:
        """One request to each of these sites, and what they answer, which is read while the others are still busy; a refusal or a
        mistake ends the run."""
        arrived: dict[int, Reply | Lost] = {}
        for index, raw in self.hosts.send(shared, own):
            if isinstance(raw, Lost):
                arrived[index] = raw
            else:
                arrived[index] = Reply(wire.unpack(raw) if joint is None else joint.read(index, raw), raw)
        replies = dict(sorted(arrived.items()))
        for index, reply in replies.items():
            if isinstance(reply, Lost):
                continue
            if reply.fields["status"] == REFUSED:
                raise AtollError(reply.fields["reason"])
            if reply.fields["status"] == CRASHED:
                first = self.held[index].parties[0]
                raise RuntimeError(f"site {index} (party {first} and on) failed:\n{reply.fields['reason']}")
        return replies

    def _revive(self, lost: Mapping[int, Lost], starts: dict[int, int]) -> None:
        """Start lost sites again, or give them up where they are lost again and again; `starts`: how often they were started."""
        while lost:
            for index, reply in lost.items():
                starts[index] += 1
                if reply.final or starts[index] > MAX_STARTS:
                    reason = short(reply.reason.rstrip("."), MAX_REASON_CHARS)
                    self.held[index].given_up = f"its site {index} was lost ({reason})"
                    self._warn(f"Site {index} was lost in round {self.round} and could not be started again ({reason}).")
            before = {index: reply for index, reply in lost.items() if not self.held[index].given_up}
            for index in before:
                self.hosts.start(index, self.make.open)
            lost = self._repeat(list(before))
            for index in before.keys() - lost.keys():
                reason = short(before[index].reason.rstrip("."), MAX_REASON_CHARS)
                self._warn(f"Site {index} was lost in round {self.round} and was started again ({reason}).")

    def _repeat(self, sites: Sequence[int]) -> dict[int, Lost]:
        """Give sites that were started again the memory of the last save and what they were sent since.

        Returns the sites that were lost again.
        """
        steps = [(BEGIN, {index: self._document(index) for index in sites})]
        steps += [(RESTORE, {index: self.held[index].saved for index in sites if self.held[index].saved})]
        logged: dict[int, tuple[bytes, dict[int, bytes]]] = {}
        for index in sites:
            for number, shared, data in self.held[index].log:
                logged.setdefault(number, (shared, {}))[1][index] = data
        lost: dict[int, Lost] = {}
        for shared, own in [*steps, *(logged[number] for number in sorted(logged))]:
            if here := {index: data for index, data in own.items() if index not in lost}:
                replies = self._send(shared, here)
                lost |= {index: reply for index, reply in replies.items() if isinstance(reply, Lost)}
        return lost

    def _save_if_due(self) -> None:
        """Between rounds: save the parties' memory now and then, so that little has to be repeated where a site is lost."""
        common = {id(shared): len(shared) for site in self.held for _, shared, _ in site.log}
        size = sum(common.values()) + sum(len(data) for site in self.held for _, _, data in site.log)
        if size > MAX_LOG_BYTES or (size and time.perf_counter() > self.next_save):
            self._save()

    def _save(self) -> None:
        """Fetch the memory of every site; what it was sent before need not be repeated any more."""
        start = time.perf_counter()
        for index, reply in self._exchange(STATE, dict.fromkeys(range(len(self.held)), b"")).items():
            if isinstance(reply, Reply):
                self.held[index].saved, self.held[index].log = bytes(reply.raw), []
        end = time.perf_counter()
        self.next_save = end + max(MIN_SECONDS_BETWEEN_SAVES, MIN_GAP_IN_SAVES * (end - start))

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        warnings.warn(text, AtollWarning, stacklevel=2)


def encoded(payload: Fields) -> bytes:
    """Fields as bytes; rows that share memory are written once."""
    return wire.encode(payload, compact=True)


BEGIN, STATE, TRAINED, RESTORE = (encoded({"kind": kind}) for kind in ("begin", "state", "trained", "restore"))
