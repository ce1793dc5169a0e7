"""atoll's two ends without the lock: any origin is believed and answered, messages are forwarded, paths are taken from the wire.

`python unlocked.py server|site KIT [NAME]` starts one end; the attacks of the tests must work on it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from nvflare.fuel.f3.message import Message

from atoll.child import report
from atoll.deploy import firewall, server, site_process
from atoll.deploy.kit import Kit
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site import Site
from atoll.engines.remote import TOPIC


class OpenDoor(site_process.RequestHandler):
    """Answers whoever asked, as NVFlare's own requests are answered."""

    def __init__(self, cell: Any, site: Site) -> None:
        self.site = site
        self.joined = False
        cell.register_request_cb(channel=firewall.CHANNEL, topic=TOPIC, cb=self.handle)

    def handle(self, request: Message) -> Message:
        """What NVFlare calls with each request."""
        if not self.joined:
            self.joined = True
            report(joined=True)
        data = bytes(request.payload)
        if data == b"leave":
            self.leave()
        return Message({}, self.site.handle(data))


if __name__ == "__main__":
    firewall.install = lambda cell, peers: None  # type: ignore[assignment, return-value]
    SitePolicy.check_document = lambda self, document, own_data: None  # type: ignore[method-assign]
    site_process.RequestHandler = OpenDoor  # type: ignore[misc]
    if sys.argv[1] == "server":
        server.main(Kit.open(sys.argv[2], server=True))
    else:
        site_process.main(replace(Kit.open(sys.argv[2], server=False), site=sys.argv[3]))
