"""TLS of a federation: its own authority and nobody else's.

NVFlare's sites would also believe every authority that their operating system knows, and they do not look at host names: whoever
gets a certificate for the server's name from one of those, such as a company's proxy that opens TLS, would be the server.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from atoll.errors import AtollError


def context(params: Mapping[str, Any], ssl_server: bool) -> ssl.SSLContext:
    """What a connection is made with: a certificate of the kit's authority on both sides. The lock compares the names in them."""
    end = "server" if ssl_server else "client"
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if ssl_server else ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.check_hostname = False
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(params[DriverParams.CA_CERT.value])
    made.load_cert_chain(params[DriverParams(f"{end}_cert").value], params[DriverParams(f"{end}_key").value])
    return made


def install() -> None:
    """Have NVFlare's driver make its connections so."""
    used: Any = aio_http_driver.net_utils
    if not hasattr(used, "get_ssl_context"):
        raise AtollError("NVFlare makes its connections otherwise than atoll needs it; install nvflare==2.9.0.")
    used.get_ssl_context = context
