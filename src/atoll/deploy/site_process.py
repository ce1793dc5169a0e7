"""A site's process: it passes the server's messages from NVFlare's cell to the `Site`."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from nvflare.fuel.f3.cellnet.defs import Encoding
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

from atoll.child import commands, exit_now, report
from atoll.deploy.cell import close_silent_connections, configure_logging, open_cell
from atoll.deploy.firewall import CHANNEL, REPLIES, SERVER
from atoll.deploy.journal import Journal
from atoll.deploy.kit import Kit
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site import Site
from atoll.engines.remote import TOPIC
from atoll.errors import AtollError

log = logging.getLogger("atoll.site")


class RequestHandler:
    """Answers the server's requests; reports to the parent process when the first request of a connection arrives."""

    def __init__(self, cell: Any, site: Site) -> None:
        self.cell = cell
        self.site = site
        self.joined = False
        cell.register_blob_cb(CHANNEL, TOPIC, self.answer)
        cell.core_cell.set_cell_disconnected_cb(self.disconnected)

    def answer(self, request: Any) -> None:
        """Answer a request that has begun to arrive; the firewall has checked that it is the server's."""
        data = bytes(request.result())
        if not self.joined:
            self.joined = True
            report(joined=True)
        leaving = data == b"leave"
        reply = b"" if leaving else self.site.handle(data)
        headers = {
            StreamHeaderKey.STREAM_REQ_ID: request.headers[StreamHeaderKey.STREAM_REQ_ID],
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
        }
        self.cell.send_blob(*REPLIES, SERVER, Message(headers, reply), optional=True, reliable=False)
        if leaving:  # after the answer has gone out
            threading.Timer(1.0, self.leave).start()

    def disconnected(self, agent: Any) -> None:
        """The connection is lost; NVFlare keeps trying to connect."""
        log.warning("lost the connection to the server; trying again")
        self.joined = False

    def leave(self) -> None:
        """End the process: the federation is over."""
        report(left=True)
        exit_now(0)


def main(kit: Kit) -> None:
    """Run a site's process until the server ends the federation or the parent process closes standard input."""
    configure_logging(kit)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
    try:
        cell = open_cell(kit)
        RequestHandler(cell, site_from_environment(os.environ))
    except AtollError as error:
        report(stop=str(error))
        exit_now(2)
    cell.core_cell.start()
    close_silent_connections(cell)
    for _ in commands():
        pass


def site_from_environment(environment: Mapping[str, str]) -> Site:
    """The site that the parent process describes in environment variables."""
    data = Path(environment["ATOLL_SITE_DATA"]) if environment.get("ATOLL_SITE_DATA") else None
    policy = SitePolicy.from_json(environment.get("ATOLL_SITE_POLICY", "{}"))
    if data is None and not policy.simulated:
        raise AtollError("A site needs data of its own; start it with `atoll join KIT --data FOLDER`.")
    journal = Journal(Path(environment["ATOLL_SITE_JOURNAL"]), environment["ATOLL_SITE_SERVER"])
    kit = Path(environment["ATOLL_SITE_KIT"]) if environment.get("ATOLL_SITE_KIT") else None
    device = environment.get("ATOLL_SITE_DEVICE", "cpu")
    folder = Path(environment["ATOLL_SITE_FOLDER"])
    return Site(folder, data, lambda text: report(say=text), policy, journal, kit, device=device)


if __name__ == "__main__":
    main(replace(Kit.open(sys.argv[1], server=False), site=sys.argv[2]))
