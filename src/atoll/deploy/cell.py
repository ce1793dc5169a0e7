"""NVFlare's cell of one end of a federation, from the files of its kit: TLS on both sides, locked, no other part of NVFlare."""

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

HEARTBEAT_SECONDS = 5  # seconds without a word after which a connection is asked whether it is there
MAX_SILENT_SECONDS = 60.0  # seconds without a word after which a connection is given up
MAX_LOG_LINES_PER_MINUTE = 100  # of a part of NVFlare, or about one peer, in the log in a minute
MAX_FRAME_BYTES = 4 << 20  # bytes of the largest frame that the server takes; a chunk of a stream has a quarter of them
# NVFlare would take these from a file of the kit or from the environment; here they are part of the program.
NVFLARE_SETTINGS = {
    VarName.ALLOW_ADHOC_CONNS: False,
    VarName.COMM_DRIVER_PATH: "",
    VarName.STREAMING_MAX_BLOB_SIZE: MAX_MESSAGE_BYTES,
    VarName.STREAMING_RELIABLE: False,  # the connection is: what a stream would repeat is lost with it, and asked again
    VarName.HEARTBEAT_INTERVAL: HEARTBEAT_SECONDS,
}


def open_cell(kit: Kit) -> Cell:
    """The cell of an end, locked and not yet started."""
    _settings()
    streams.install()
    tls.install()
    end, startup = "server" if kit.site is None else "client", kit.path / "startup"
    files = {"ca_cert": startup / "rootCA.pem", f"{end}_cert": startup / f"{end}.crt", f"{end}_key": startup / f"{end}.key"}
    try:
        ssl.create_default_context(cafile=str(files["ca_cert"])).load_cert_chain(files[f"{end}_cert"], files[f"{end}_key"])
    except (OSError, ssl.SSLError) as error:
        raise AtollError(f"{startup} holds no usable key and certificates ({error}); bring the kit again.") from error
    host = kit.host if kit.site is not None or kit.host in LOOPBACK else "0"  # NVFlare's word for all addresses of this machine
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


def _settings() -> None:
    CommConfigurator._configuration = dict(NVFLARE_SETTINGS)
    CommConfigurator._config_loaded = True
    ConfigService._var_values.update(NVFLARE_SETTINGS)  # NVFlare looks here first
    aio_http_driver.MAX_FRAME_SIZE = MAX_FRAME_BYTES
    configured = CommConfigurator()
    if configured.get_streaming_max_blob_size() != MAX_MESSAGE_BYTES or configured.allow_adhoc_connections(True):
        raise AtollError(f"NVFlare does not take its settings from atoll; install nvflare=={firewall.NVFLARE_VERSION}.")


def connection_name(cell: Cell, peer: str) -> str | None:
    """The name of a peer's present connection; None where there is none."""
    endpoint = cell.core_cell.communicator.conn_manager.sfm_endpoints.get(peer)
    if endpoint is None or endpoint.endpoint.state != EndpointState.READY:
        return None
    names = [each.get_name() for each in endpoint.connections]
    return str(names[-1]) if names else None


def close_silent_connections(cell: Cell) -> None:
    """Give up connections that are dead without having been closed: a cable that was pulled, a machine that froze."""
    connections: dict[str, Any] = cell.core_cell.communicator.conn_manager.sfm_conns
    seen: dict[str, float] = {}

    def look() -> None:
        while True:
            time.sleep(HEARTBEAT_SECONDS)
            for each in silent_connections(dict(connections), seen, time.time()):
                logging.getLogger("atoll.cell").warning("%s said nothing for %g seconds; closed", each.conn, MAX_SILENT_SECONDS)
                each.conn.close()

    threading.Thread(target=look, daemon=True).start()


def silent_connections(connections: Mapping[str, Any], seen: dict[str, float], now: float) -> list[Any]:
    """The connections without a word for too long; `seen` keeps when each was looked at first."""
    for name in seen.keys() - connections.keys():
        del seen[name]
    return [
        each
        for name, each in connections.items()
        if now - max(each.last_activity, seen.setdefault(name, now)) > MAX_SILENT_SECONDS
    ]


class LogRateLimit(logging.Filter):
    """Lets what strangers bring about have so many lines a minute: nobody pushes the rest out of the log."""

    def __init__(self) -> None:
        super().__init__()
        self.written: Counter[str] = Counter()
        self.minute = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.name.startswith("atoll.") and not record.name.startswith(firewall.log.name):
            return True
        if (minute := int(record.created // 60)) != self.minute:
            self.minute = minute
            self.written.clear()
        self.written[record.name] += 1
        return self.written[record.name] <= MAX_LOG_LINES_PER_MINUTE


def configure_logging(kit: Kit) -> None:
    """One log file, `log.txt` in the kit."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"sparse": {"()": LogRateLimit}},
            "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
            "handlers": {
                "file": {
                    "class": "logging.handlers.RotatingFileHandler",
                    "formatter": "plain",
                    "filename": str(kit.path / "log.txt"),
                    "maxBytes": 10_000_000,
                    "backupCount": 2,
                    "filters": ["sparse"],
                }
            },
            "root": {"level": "INFO", "handlers": ["file"]},
        }
    )
