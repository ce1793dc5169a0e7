"""NVFlare's cell of a server or site, from the files of its kit: mutual TLS, firewalled, without any other part of NVFlare."""

from __future__ import annotations

import logging.config
import ssl
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.comm_config import CommConfigurator, VarName
from nvflare.fuel.f3.drivers import aio_http_driver
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import EndpointState
from nvflare.fuel.utils.config_service import ConfigService

from atoll.deploy import firewall, streams, tls
from atoll.deploy.firewall import SERVER
from atoll.deploy.kit import LOOPBACK, SERVER_IDENTITY, Kit
from atoll.engines.remote import MAX_MESSAGE_BYTES
from atoll.errors import AtollError

HEARTBEAT_SECONDS = 5  # of silence after which a connection is pinged
MAX_SILENT_SECONDS = 60.0  # after which a connection is closed
MAX_LOG_LINES_PER_MINUTE = 100  # of one NVFlare logger, or about one peer
MAX_FRAME_BYTES = 4 << 20  # that are accepted; a chunk of a stream has a quarter of it
# NVFlare would read these from a file in the kit or from the environment; here they are fixed in code.
NVFLARE_SETTINGS = {
    VarName.ALLOW_ADHOC_CONNS: False,
    VarName.COMM_DRIVER_PATH: "",
    VarName.STREAMING_MAX_BLOB_SIZE: MAX_MESSAGE_BYTES,
    VarName.STREAMING_RELIABLE: False,  # the connection is reliable: what is lost with it is requested again
    VarName.HEARTBEAT_INTERVAL: HEARTBEAT_SECONDS,
}


def open_cell(kit: Kit) -> Cell:
    """The cell of a server or site, firewalled and not yet started."""
    _apply_settings()
    streams.install()
    tls.install()
    role, startup = "server" if kit.site is None else "client", kit.path / "startup"
    files = {"ca_cert": startup / "rootCA.pem", f"{role}_cert": startup / f"{role}.crt", f"{role}_key": startup / f"{role}.key"}
    try:
        ssl.create_default_context(cafile=str(files["ca_cert"])).load_cert_chain(files[f"{role}_cert"], files[f"{role}_key"])
    except (OSError, ssl.SSLError) as error:
        raise AtollError(f"{startup} holds no usable key and certificates ({error}); copy the kit again.") from error
    host = (
        kit.host if kit.site is not None or kit.host in LOOPBACK else "0"
    )  # "0" is NVFlare's word for all addresses of this machine
    peers = {site: site for site in kit.sites} if kit.site is None else {SERVER: SERVER_IDENTITY}
    cell = Cell(
        fqcn=kit.site or SERVER,
        root_url=f"https://{host}:{kit.port}",
        secure=True,
        credentials={DriverParams(name).value: str(path) for name, path in files.items()},
        create_internal_listener=False,
        auth_identity=SERVER_IDENTITY if kit.site is None else kit.site,
        auth_identity_map={SERVER: SERVER_IDENTITY},
    )
    firewall.install(cell, peers)
    return cell


def _apply_settings() -> None:
    CommConfigurator._configuration = dict(NVFLARE_SETTINGS)
    CommConfigurator._config_loaded = True
    ConfigService._var_values.update(NVFLARE_SETTINGS)  # NVFlare looks here first
    aio_http_driver.MAX_FRAME_SIZE = MAX_FRAME_BYTES
    configured = CommConfigurator()
    if configured.get_streaming_max_blob_size() != MAX_MESSAGE_BYTES or configured.allow_adhoc_connections(True):
        raise AtollError(f"NVFlare does not take its settings from atoll; install nvflare=={firewall.NVFLARE_VERSION}.")


def connection_name(cell: Cell, peer: str) -> str | None:
    """The name of a peer's current connection; None if it has none."""
    endpoint = cell.core_cell.communicator.conn_manager.sfm_endpoints.get(peer)
    if endpoint is None or endpoint.endpoint.state != EndpointState.READY:
        return None
    names = [each.get_name() for each in endpoint.connections]
    return str(names[-1]) if names else None


def close_silent_connections(cell: Cell) -> None:
    """Close connections that died without being closed, for instance when a cable was pulled or a machine froze."""
    connections: dict[str, Any] = cell.core_cell.communicator.conn_manager.sfm_conns
    seen: dict[str, float] = {}

    def check() -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            for each in silent_connections(dict(connections), seen, time.time()):
                logging.getLogger("atoll.cell").warning("%s was silent for %g seconds; closed", each.conn, MAX_SILENT_SECONDS)
                each.conn.close()

    threading.Thread(target=check, daemon=True).start()


def silent_connections(connections: Mapping[str, Any], seen: dict[str, float], now: float) -> list[Any]:
    """The connections that were silent for too long; `seen` maps each to the time of its first check."""
    for name in seen.keys() - connections.keys():
        del seen[name]
    return [
        each
        for name, each in connections.items()
        if now - max(each.last_activity, seen.setdefault(name, now)) > MAX_SILENT_SECONDS
    ]


class LogRateLimit(logging.Filter):
    """Limits the log lines that outsiders can cause, so that they cannot push everything else out of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[str] = Counter()
        self.minute = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a line."""
        if record.name.startswith("atoll.") and not record.name.startswith(firewall.log.name):
            return True
        if (minute := int(record.created // 60)) != self.minute:
            self.minute = minute
            self.written.clear()
        self.written[record.name] += 1
        return self.written[record.name] <= MAX_LOG_LINES_PER_MINUTE


def configure_logging(kit: Kit) -> None:
    """Write one log file, `log.txt` in the kit."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"rate_limit": {"()": LogRateLimit}},
            "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
            "handlers": {
                "file": {
                    "class": "logging.handlers.RotatingFileHandler",
                    "formatter": "plain",
                    "filename": str(kit.path / "log.txt"),
                    "maxBytes": 10_000_000,
                    "backupCount": 2,
                    "filters": ["rate_limit"],
                }
            },
            "root": {"level": "INFO", "handlers": ["file"]},
        }
    )
