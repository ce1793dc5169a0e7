"""What NVFlare starts at a site (see `atoll.kits`): it passes the server's messages to the `Site`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import torch
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply

from atoll.engines.nvflare import TOPIC
from atoll.engines.site import Site
from atoll.engines.terms import Terms
from atoll.journal import Journal
from atoll.processes import leave, orders, report


class SiteComponent(FLComponent):  # type: ignore[misc]
    """What NVFlare starts at a site: it passes the server's messages to the `Site`, and ends when its parent does."""

    def __init__(self) -> None:
        super().__init__()
        given = os.environ
        data = Path(given["ATOLL_SITE_DATA"]) if given.get("ATOLL_SITE_DATA") else None
        terms = Terms.from_json(given.get("ATOLL_SITE_TERMS", "{}"))
        kit = Path(given["ATOLL_SITE_KIT"]) if given.get("ATOLL_SITE_KIT") else None
        journal = Journal(Path(given["ATOLL_SITE_JOURNAL"]), given["ATOLL_SITE_SERVER"])
        self.site = Site(Path(given["ATOLL_SITE_FOLDER"]), data, lambda text: report(say=text), terms, journal, kit)
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
        threading.Thread(target=self._listen, daemon=True).start()

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """NVFlare's events: be ready before the server knows us."""
        if event_type == EventType.SYSTEM_BOOTSTRAP:
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._handle)
        elif event_type == EventType.AFTER_CLIENT_REGISTER:
            report(joined=True)

    def _handle(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        reply = make_reply(ReturnCode.OK)
        data = request.get("data")
        if data == b"leave":  # the federation is over
            threading.Timer(1.0, self._leave).start()  # the answer goes out first
        else:
            reply["data"] = self.site.handle(data if isinstance(data, bytes) else b"")
        return reply

    def _leave(self) -> None:
        report(left=True)
        leave(0)

    def _listen(self) -> None:
        for _ in orders():
            pass
