"""Whose connections an end takes: each peer's under the name in its TLS certificate, and a few of them."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

PEER_CN = DriverParams.PEER_CN.value
MAX_CONNECTIONS = 4  # of one peer: the one it uses, and dead ones that were not yet noticed
MAX_QUEUED_BYTES = (
    256 << 20
)  # bytes of one connection that wait to be looked at; what NVFlare sends unconfirmed has a quarter of it
FRAME_OVERHEAD = 2000  # bytes that a frame costs beside its own
MIN_PING_SECONDS = 1.0  # seconds between a connection's questions whether we are there; all others stay unanswered

log = logging.getLogger("atoll.lock")  # with a child for each certificate: who makes many lines has only its own left out


class PeerNames:
    """In the place of NVFlare's identity resolver: who may connect, as cell name → common name of the certificate."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def resolve(self, cell: str) -> str | None:
        """The common name that belongs to a cell."""
        return self.names.get(cell)

    def require_match(self, cell: str, common_name: str, described: str) -> None:
        """Refuse a connection whose certificate does not belong to the name it gives itself; NVFlare then closes it."""
        if not common_name or self.names.get(cell) != common_name:
            log.getChild(str(common_name)).warning(
                "refused %s: authenticated as %r but claimed endpoint %r", described, common_name, cell[:100]
            )
            raise ValueError(f"{described} authenticated as {common_name!r} but claimed endpoint {cell[:100]!r}")


class ConnectionLimit:
    """In the place of what takes new connections: of one certificate a few are kept, with a name or without."""

    def __init__(self, connections: Mapping[str, Any], take: Callable[[Any], None]) -> None:
        self.connections = connections
        self.take = take

    def __call__(self, connection: Any) -> None:
        """Take a connection, and close the oldest ones of the same peer beyond the few."""
        peer = connection.get_conn_properties().get(PEER_CN)
        own = [each.conn for each in list(self.connections.values()) if each.conn.get_conn_properties().get(PEER_CN) == peer]
        for each in own[: max(0, len(own) + 1 - MAX_CONNECTIONS)]:
            log.getChild(str(peer)).warning("closed a connection of %s: it has more than %d", peer, MAX_CONNECTIONS)
            each.close()
        self.take(connection)


class FrameLimit:
    """In the place of what takes frames: a connection that brings more than can be looked at is closed; few pings are answered.

    Otherwise frames wait in memory, and so do answers that a peer does not fetch: pings cost it next to nothing.
    """

    def __init__(self, take: Callable[[Any, Any], None], look: Callable[[Any, Any], None]) -> None:
        self.take = take
        self.look = look
        self.waiting: Counter[str] = Counter()
        self.pinged: dict[str, float] = {}
        self.lock = threading.Lock()

    def enter(self, connection: Any, frame: Any) -> None:
        """Have a frame looked at, in a thread of NVFlare's, unless there are too many."""
        name, cost = connection.get_name(), len(frame) + FRAME_OVERHEAD
        with self.lock:
            full = self.waiting[name] + cost > MAX_QUEUED_BYTES
            if not full:
                self.waiting[name] += cost
        if full:
            peer = connection.conn.get_conn_properties().get(PEER_CN)
            log.getChild(str(peer)).warning("closed a connection of %s: it sends more than can be looked at", peer)
            connection.conn.close()
        else:
            self.take(connection, frame)

    def leave(self, connection: Any, frame: Any) -> None:
        """Look at a frame."""
        name = connection.get_name()
        try:
            if not self._too_soon(name, frame):
                self.look(connection, frame)
        finally:
            with self.lock:
                self.waiting[name] -= len(frame) + FRAME_OVERHEAD
                if self.waiting[name] <= 0:
                    del self.waiting[name]

    def _too_soon(self, name: str, frame: Any) -> bool:
        if len(frame) < PREFIX_LEN or Prefix.from_bytes(frame).type != Types.PING:
            return False
        now = time.monotonic()
        with self.lock:
            last = self.pinged.pop(name, -MIN_PING_SECONDS)
            soon = now - last < MIN_PING_SECONDS
            self.pinged[name] = last if soon else now
            while len(self.pinged) > 10_000:  # of connections that are gone
                del self.pinged[next(iter(self.pinged))]
        return soon
