"""TLS of a federation: only its own certificate authority is trusted.

NVFlare's sites would also trust every authority that their operating system does, and they do not check host names: anyone with a
certificate for the server's name from one of those, such as a company's intercepting proxy, could pose as the server.
"""

from __future__ import annotations

import asyncio.sslproto
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from atoll.errors import AtollError

handshakes = logging.getLogger("atoll.firewall.handshakes")


def make_context(params: Mapping[str, Any], ssl_server: bool) -> ssl.SSLContext:
    """Mutual TLS with certificates of the kit's authority; the firewall compares the names in them."""
    role = "server" if ssl_server else "client"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if ssl_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(params[DriverParams.CA_CERT.value])
    context.load_cert_chain(params[DriverParams(f"{role}_cert").value], params[DriverParams(f"{role}_key").value])
    return context


def install() -> None:
    """Patch NVFlare's driver to use this context."""
    net_utils: Any = aio_http_driver.net_utils
    if not hasattr(net_utils, "get_ssl_context"):
        raise AtollError("NVFlare does not make its connections as atoll needs; install nvflare==2.9.0.")
    net_utils.get_ssl_context = make_context


def log_refused_handshakes() -> None:
    """Log connections that are refused for their certificate: asyncio closes them silently."""
    complete = getattr(asyncio.sslproto.SSLProtocol, "_on_handshake_complete", None)
    if complete is None:
        return

    def log_and_complete(self: Any, error: BaseException | None) -> Any:
        if isinstance(error, ssl.SSLError):
            peer = self._transport.get_extra_info("peername") if self._transport else None
            handshakes.warning(
                "refused a connection from %s: %s", peer[0] if peer else "an unknown address", error.reason or error
            )
        return complete(self, error)

    asyncio.sslproto.SSLProtocol._on_handshake_complete = log_and_complete  # type: ignore[method-assign, assignment]
