"""Whose connections an end takes: each peer's under the name in its TLS certificate, and a few of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from nvflare.fuel.f3.drivers.driver_params import DriverParams

PEER_CN = DriverParams.PEER_CN.value
MAX_CONNECTIONS = 4  # of one peer: the one it uses, and dead ones that were not yet noticed

log = logging.getLogger("atoll.lock")  # with a child for each certificate: who makes many lines has only its own left out


class Peers:
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


class Crowd:
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
