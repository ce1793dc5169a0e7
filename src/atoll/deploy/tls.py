"""TLS of a federation: only its own certificate authority is trusted.

NVFlare's sites would also trust every authority that their operating system does, and they do not check host names: anyone with a
certificate for the server's name from one of those, such as a company's intercepting proxy, could pose as the server.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams

from atoll.errors import AtollError


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
