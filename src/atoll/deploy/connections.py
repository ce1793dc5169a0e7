"""Which connections are accepted: each peer's under the name in its TLS certificate, and only a few per peer."""

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
MAX_CONNECTIONS = 4  # per peer: the one it uses, and dead ones not noticed yet
MAX_QUEUED_BYTES = 256 << 20  # unprocessed bytes per connection; NVFlare sends at most a quarter of it unacknowledged
FRAME_OVERHEAD = 2000  # bytes that a frame costs in addition to its data
MIN_PING_SECONDS = 1.0  # between answered pings of a connection; others stay unanswered

log = logging.getLogger("atoll.firewall")  # with a child per certificate: a peer that causes many lines has only its own dropped


class PeerNames:
    """Replaces NVFlare's identity resolver: who may connect, as cell name → common name of the certificate."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = dict(names)

    def resolve(self, cell: str) -> str | None:
        """The common name of a cell's certificate."""
        return self.names.get(cell)

    def require_match(self, cell: str, common_name: str, described: str) -> None:
        """Refuse a connection whose certificate does not belong to the name it claims; NVFlare then closes it."""
        if not common_name or self.names.get(cell) != common_name:
            log.getChild(str(common_name)).warning(
                "refused %s: authenticated as %r but claimed endpoint %r", described, common_name, cell[:100]
            )
            raise ValueError(f"{described} authenticated as {common_name!r} but claimed endpoint {cell[:100]!r}")


class ConnectionLimit:
    """Replaces NVFlare's handler of new connections: keeps a few per certificate, whether they have given a name or not."""

    def __init__(self, connections: Mapping[str, Any], accept: Callable[[Any], None]) -> None:
        self.connections = connections
        self.accept = accept

    def __call__(self, connection: Any) -> None:
        """Accept a connection, and close the peer's oldest ones beyond `MAX_CONNECTIONS`."""
        peer = connection.get_conn_properties().get(PEER_CN)
        same_peer = [
            each.conn for each in list(self.connections.values()) if each.conn.get_conn_properties().get(PEER_CN) == peer
        ]
        for each in same_peer[: max(0, len(same_peer) + 1 - MAX_CONNECTIONS)]:
            log.getChild(str(peer)).warning("closed a connection of %s: it has more than %d", peer, MAX_CONNECTIONS)
            each.close()
        self.accept(connection)


class FrameLimit:
    """Replaces NVFlare's handler of frames: closes a connection with too many unprocessed bytes, and answers few pings.

    Otherwise frames would pile up in memory, and so would answers that a peer does not read: pings cost it next to nothing.
    """

    def __init__(self, schedule: Callable[[Any, Any], None], handle: Callable[[Any, Any], None]) -> None:
        self.schedule = schedule
        self.handle = handle
        self.queued: Counter[str] = Counter()  # bytes by connection
        self.pinged: dict[str, float] = {}
        self.lock = threading.Lock()

    def enqueue(self, connection: Any, frame: Any) -> None:
        """Have NVFlare process a frame in one of its threads, unless too many are waiting."""
        name, cost = connection.get_name(), len(frame) + FRAME_OVERHEAD
        with self.lock:
            full = self.queued[name] + cost > MAX_QUEUED_BYTES
            if not full:
                self.queued[name] += cost
        if full:
            peer = connection.conn.get_conn_properties().get(PEER_CN)
            log.getChild(str(peer)).warning("closed a connection of %s: it sends more than can be processed", peer)
            connection.conn.close()
        else:
            self.schedule(connection, frame)

    def process(self, connection: Any, frame: Any) -> None:
        """Process a frame, in NVFlare's thread."""
        name = connection.get_name()
        try:
            if not self._pinged_too_soon(name, frame):
                self.handle(connection, frame)
        finally:
            with self.lock:
                self.queued[name] -= len(frame) + FRAME_OVERHEAD
                if self.queued[name] <= 0:
                    del self.queued[name]

    def _pinged_too_soon(self, name: str, frame: Any) -> bool:
        if len(frame) < PREFIX_LEN or Prefix.from_bytes(frame).type != Types.PING:
            return False
        now = time.monotonic()
        with self.lock:
            last = self.pinged.pop(name, -MIN_PING_SECONDS)
            too_soon = now - last < MIN_PING_SECONDS
            self.pinged[name] = last if too_soon else now
            while len(self.pinged) > 10_000:  # entries of closed connections
                del self.pinged[next(iter(self.pinged))]
        return too_soon
