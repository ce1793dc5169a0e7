"""What a server or site accepts from the network, decided in one place: everything that is not listed is refused.

atoll uses NVFlare's cells (authenticated connections, streams of bytes) and nothing above them: no jobs, admin commands,
registration, network agents or log streams are ever started, so none can be requested. What remains is guarded twice:

- When a connection is made: `PeerNames` compares the name a peer gives itself with the one in its TLS certificate;
  `ConnectionLimit` bounds the connections per certificate, `FrameLimit` the unprocessed frames per connection.
- When a message arrives, before anything else reads it: `MessageFilter` requires that the claimed origin matches the certificate
  of the connection, that the message is for this cell (nothing is forwarded), and that it is part of a stream that atoll uses.
  All other headers are dropped, so no setting of the other end has an effect here.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import nvflare
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message, MessageReceiver
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamDataType,
    StreamHeaderKey,
)

from atoll.deploy.connections import PEER_CN, ConnectionLimit, FrameLimit, PeerNames
from atoll.engines.remote import MAX_MESSAGE_BYTES, TOPIC
from atoll.errors import AtollError

NVFLARE_VERSION = "2.9.0"  # the NVFlare version whose internals are used here
SERVER = "server"  # the name of the server's cell
CHANNEL = CellChannel.AUX_COMMUNICATION
REPLIES = (CellChannel.RETURN_ONLY, f"{CHANNEL}:{TOPIC}")  # the stream that carries an answer
MAX_LOGGED_REFUSALS = 20  # refusals per peer that are logged one by one; after that, each time their number has doubled
MAX_SEQUENCE = 1 << 32

# The only NVFlare requests for which a cell keeps a callback, and why atoll needs them; all others are removed.
ALLOWED_TOPICS = {
    f"{STREAM_CHANNEL}:{STREAM_DATA_TOPIC}": "carries the chunks of a message",
    f"{STREAM_CHANNEL}:{STREAM_ACK_TOPIC}": "lets the sender of a large message go on",
    f"{STREAM_CHANNEL}:{STREAM_ERROR_TOPIC}": "tells the sender that its message could not be received",
}

log = logging.getLogger("atoll.firewall")


class MessageFilter(MessageReceiver):  # type: ignore[misc]
    """Replaces a cell as the receiver of its connections' messages: passes on what is allowed, with known headers only."""

    def __init__(self, cell: Cell, peers: Mapping[str, str], receiver: Any) -> None:
        self.name = cell.core_cell.my_info.fqcn
        self.cells = {common_name: name for name, common_name in peers.items()}
        self.awaited: dict[str, Any] = cell.requests_dict
        self.receiver = receiver
        self.refused: Counter[str] = Counter()
        self.lock = threading.Lock()

    def process_message(self, endpoint: Any, connection: Any, app_id: int, message: Message) -> None:
        """Called by NVFlare with each message that arrives on a connection."""
        peer = None
        try:
            peer = connection.get_conn_properties().get(PEER_CN)
            headers = message.headers
            reason = self._wrong_sender(peer, endpoint, headers) or self._wrong_topic(headers, self.cells[peer])
            if not reason:
                message.headers = _allowed_headers(headers)
        except Exception as error:  # whatever unexpected headers cause
            reason = f"its headers cannot be read ({type(error).__name__})"
        if reason:
            self._refuse(str(peer), reason)
        else:
            self.receiver.process_message(endpoint, connection, app_id, message)

    def _wrong_sender(self, peer: Any, endpoint: Any, headers: Mapping[str, Any]) -> str:
        """Why the sender or receiver of a message is wrong; empty if they are right."""
        name = self.cells.get(peer)
        if name is None:
            return "its sender does not belong to this federation"
        for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL):
            if headers.get(key) != name:
                return f"it claims to come from {_short(headers.get(key))}"
        if endpoint.name != name:
            return f"its connection belongs to {_short(endpoint.name)}"
        for key in (MessageHeaderKey.DESTINATION, MessageHeaderKey.TO_CELL):
            if headers.get(key) != self.name:
                return f"it is for {_short(headers.get(key))}, and nothing is forwarded"
        return ""

    def _wrong_topic(self, headers: Mapping[str, Any], name: str) -> str:
        """Why a message is not one that atoll uses; empty if it is."""
        channel, topic = headers.get(MessageHeaderKey.CHANNEL), headers.get(MessageHeaderKey.TOPIC)
        if headers.get(MessageHeaderKey.MSG_TYPE) != MessageType.REQ or headers.get(MessageHeaderKey.REPLY_EXPECTED):
            return f"nothing is answered on {_short(channel)}, {_short(topic)}"
        if f"{channel}:{topic}" not in ALLOWED_TOPICS:
            return f"there is nothing on {_short(channel)}, {_short(topic)}"
        stream = headers.get(StreamHeaderKey.STREAM_ID)
        if not _is_integer(stream):
            return "its stream has no number"
        if topic == STREAM_DATA_TOPIC:
            return self._wrong_stream(headers, name, stream)
        task = ByteStreamer.tx_task_map.get(stream)
        if task is not None and task.target != name:
            return f"it refers to a stream to {_short(task.target)}"
        return ""

    def _wrong_stream(self, headers: Mapping[str, Any], name: str, stream: Any) -> str:
        """Why a part of a stream is refused; empty if it is of a request (at a site) or of the reply to one (at the server)."""
        inner = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
        if inner != ((CHANNEL, TOPIC) if name == SERVER else REPLIES):
            return f"there is nothing on {_short(inner[0])}, {_short(inner[1])}"
        if headers.get(StreamHeaderKey.PAYLOAD_ENCODING) != Encoding.BYTES:
            return "it is not plain bytes"
        if not _is_integer(headers.get(StreamHeaderKey.SIZE), MAX_MESSAGE_BYTES):
            return (
                f"it claims to have {_short(headers.get(StreamHeaderKey.SIZE))} bytes; at most {MAX_MESSAGE_BYTES} are accepted"
            )
        if not _is_integer(headers.get(StreamHeaderKey.SEQUENCE)):
            return "its parts are not numbered"
        request = headers.get(StreamHeaderKey.STREAM_REQ_ID)
        task = RxTask.rx_task_map.get((name, stream))
        if task is not None:  # NVFlare uses the request id in part 0, which need not arrive first
            return "" if task.headers.get(StreamHeaderKey.STREAM_REQ_ID) == request else "its stream belongs to another request"
        if name == SERVER:
            return "" if isinstance(request, str) else "it does not belong to a request"
        waiter = self.awaited.get(request) if isinstance(request, str) else None
        if waiter is None or waiter.target != name:
            return "nothing was requested"
        if vars(waiter).setdefault("stream", stream) != stream:  # one reply per request
            return "the request is being answered by another stream"
        return ""

    def _refuse(self, peer: str, reason: str) -> None:
        """Log who sent what was refused; a flood of messages does not fill the disk."""
        with self.lock:
            self.refused[peer] += 1
            number = self.refused[peer]
        if number <= MAX_LOGGED_REFUSALS or not number & (number - 1):
            log.warning(
                "refused a message of %s: %s%s", peer, reason, f" ({number} in all)" if number > MAX_LOGGED_REFUSALS else ""
            )


KEPT_HEADERS = (
    MessageHeaderKey.ORIGIN,
    MessageHeaderKey.FROM_CELL,
    MessageHeaderKey.DESTINATION,
    MessageHeaderKey.TO_CELL,
    MessageHeaderKey.MSG_TYPE,
    MessageHeaderKey.CHANNEL,
    MessageHeaderKey.TOPIC,
    StreamHeaderKey.STREAM_ID,
    StreamHeaderKey.STREAM_REQ_ID,
    StreamHeaderKey.CHANNEL,
    StreamHeaderKey.TOPIC,
    StreamHeaderKey.PAYLOAD_ENCODING,
)
HEADER_CHECKS: dict[str, Callable[[Any], bool]] = {
    StreamHeaderKey.SIZE: lambda value: _is_integer(value, MAX_MESSAGE_BYTES),
    StreamHeaderKey.SEQUENCE: lambda value: value == -1 or _is_integer(value, MAX_SEQUENCE),
    StreamHeaderKey.OFFSET: lambda value: _is_integer(value, 2 * MAX_MESSAGE_BYTES),
    StreamHeaderKey.DATA_TYPE: lambda value: _is_integer(value, StreamDataType.ERROR),
    StreamHeaderKey.ERROR_TYPE: lambda value: isinstance(value, str) and len(value) <= 100,
}


def _allowed_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """The headers that atoll uses, each with a checked value; all others are dropped, whatever they would have enabled."""
    kept = {key: headers[key] for key in KEPT_HEADERS if key in headers}
    for key, check in HEADER_CHECKS.items():
        if key in headers:
            if not check(headers[key]):
                raise ValueError(key)
            kept[key] = headers[key]
    if StreamHeaderKey.ERROR_MSG in headers:
        kept[StreamHeaderKey.ERROR_MSG] = _short(headers[StreamHeaderKey.ERROR_MSG])
    return kept


def _is_integer(value: Any, high: int = 1 << 62) -> bool:
    return type(value) is int and 0 <= value <= high


def _short(value: Any) -> str:
    """A stranger's text, safe for the log: one short line without control characters."""
    text = str(value)[:200]
    return "".join(letter if letter.isprintable() else " " for letter in text)[:100] or "nobody"


def install(cell: Cell, peers: Mapping[str, str]) -> MessageFilter:
    """Protect a cell before it is started, and test the protection."""
    _require(nvflare.__version__ == NVFLARE_VERSION, f"the version is {nvflare.__version__}, not {NVFLARE_VERSION}")
    core = cell.core_cell
    manager: Any = getattr(core.communicator, "conn_manager", None)
    _require(getattr(manager, "receivers", {}).get(CoreCell.APP_ID) is core, "a cell's messages arrive in another way")
    _require(hasattr(manager, "identity_resolver"), "connections are identified in another way")
    _require(isinstance(getattr(manager, "sfm_conns", None), dict), "connections are kept in another way")
    _require(callable(getattr(manager, "handle_new_connection", None)), "connections are accepted in another way")
    _require(callable(getattr(manager, "process_frame_task", None)), "frames are processed in another way")
    _require(isinstance(vars(cell).get("requests_dict"), dict), "replies are awaited in another way")
    _require(not core.running and core.int_listener is None, "the cell is already listening")
    _require(not core.connector_manager.adhoc_allowed, "cells may connect to each other directly")
    for key in set(core.req_reg.reg) - ALLOWED_TOPICS.keys():
        del core.req_reg.reg[key]
    _require(core.req_reg.reg.keys() == ALLOWED_TOPICS.keys(), "streams are received in another way")
    for key in set(cell.byte_receiver.registry.reg) - {f"{CellChannel.RETURN_ONLY}:*"}:
        del cell.byte_receiver.registry.reg[key]
    manager.identity_resolver = PeerNames(peers)
    frames = FrameLimit(manager.process_frame, manager.process_frame_task)
    manager.process_frame, manager.process_frame_task = frames.enqueue, frames.process
    manager.handle_new_connection = ConnectionLimit(manager.sfm_conns, manager.handle_new_connection)
    filter_ = manager.receivers[CoreCell.APP_ID] = MessageFilter(cell, peers, core)
    for sentence in self_test(cell, peers):
        _require(False, sentence)
    return filter_


def self_test(cell: Cell, peers: Mapping[str, str]) -> list[str]:
    """Pass test messages through a filter like the cell's own: what it wrongly accepts or refuses."""
    passed: list[Message] = []
    receiver = SimpleNamespace(process_message=lambda endpoint, connection, app_id, message: passed.append(message))
    filter_ = MessageFilter(cell, peers, receiver)
    log.disabled, failed = True, []
    try:
        for what, peer, headers in test_messages(filter_.name, peers):
            passed.clear()
            connection = SimpleNamespace(get_conn_properties=lambda peer=peer: {PEER_CN: peer} if peer else {})
            name = filter_.cells.get(peer, "stranger") if peer else filter_.name
            filter_.process_message(SimpleNamespace(name=name), connection, CoreCell.APP_ID, Message(dict(headers), b""))
            if bool(passed) != (what == ""):
                failed.append(f"{what} was accepted" if what else "an acknowledgement was refused")
    finally:
        log.disabled = False
    return failed


def test_messages(own_name: str, peers: Mapping[str, str]) -> list[tuple[str, str | None, dict[str, Any]]]:
    """Messages as (description, common name of the connection, headers): all must be refused but the first."""
    name, common_name = next(iter(peers.items()))
    good = {
        MessageHeaderKey.ORIGIN: name,
        MessageHeaderKey.FROM_CELL: name,
        MessageHeaderKey.DESTINATION: own_name,
        MessageHeaderKey.TO_CELL: own_name,
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.CHANNEL: STREAM_CHANNEL,
        MessageHeaderKey.TOPIC: STREAM_ACK_TOPIC,
        StreamHeaderKey.STREAM_ID: 1,
    }
    data = good | {
        MessageHeaderKey.TOPIC: STREAM_DATA_TOPIC,
        StreamHeaderKey.CHANNEL: CHANNEL if name == SERVER else REPLIES[0],
        StreamHeaderKey.TOPIC: TOPIC if name == SERVER else REPLIES[1],
        StreamHeaderKey.STREAM_REQ_ID: "a request",
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS,
        StreamHeaderKey.SIZE: 1,
        StreamHeaderKey.SEQUENCE: 0,
    }
    return [
        ("", common_name, good),
        ("a message of a stranger", "stranger", good),
        ("a message without a certificate", None, good),
        ("a message under a false name", common_name, good | {MessageHeaderKey.ORIGIN: "somebody"}),
        ("a message in the cell's own name", common_name, good | {MessageHeaderKey.ORIGIN: own_name}),
        ("a message for somebody else", common_name, good | {MessageHeaderKey.DESTINATION: "somebody"}),
        ("an admin command", common_name, good | {MessageHeaderKey.CHANNEL: CellChannel.CLIENT_MAIN}),
        ("another auxiliary request", common_name, data | {StreamHeaderKey.TOPIC: "another"}),
        ("a message that is not plain bytes", common_name, data),
    ]


def _require(holds: bool, sentence: str) -> None:
    if not holds:
        raise AtollError(f"NVFlare does not work as atoll's firewall needs: {sentence}; install nvflare=={NVFLARE_VERSION}.")
