"""NVFlare's streams: what was sent is released at once, and rounds leave nothing behind."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")

import msgpack
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.blob_streamer import BlobStreamer
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer, TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError

from atoll.deploy import streams


class Wire:
    """Stands for a cell: keeps the bytes of what is sent, or refuses to send."""

    def __init__(self, error: str = "") -> None:
        self.my_info = SimpleNamespace(fqcn="here")
        self.parts: list[bytes] = []
        self.error = error

    def add_error_handler(self, *args: Any) -> None:
        """Nothing comes back here."""

    def register_request_cb(self, **kwargs: Any) -> None:
        """Nothing comes back here."""

    def fire_and_forget(self, channel: str, topic: str, target: str, message: Message, **kwargs: Any) -> dict[str, str]:
        """Keep one part."""
        self.parts.append(bytes(message.payload or b""))
        return {target: self.error}


@pytest.fixture
def streamer() -> BlobStreamer:
    """What sends blobs over a wire, with the bounds in place."""
    streams.install()
    return BlobStreamer(ByteStreamer(Wire()), None)


SENDING: list[weakref.ref[Any]] = []  # all that was ever asked to send a stream


class Noted(TxTask):  # type: ignore[misc]
    """What sends a stream, noted by a weak reference."""

    def start_task_thread(self, task_handler: Any) -> None:
        """Note it, and begin."""
        SENDING.append(weakref.ref(self))
        super().start_task_thread(task_handler)


@pytest.fixture(autouse=True)
def _note_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_streamer, "TxTask", Noted)


def send(streamer: BlobStreamer, data: bytes) -> tuple[Any, weakref.ref[Any]]:
    """Send bytes; what waits for the end, and a weak reference to what sends."""
    future = streamer.send("channel", "topic", "there", Message({}, data), False, False, reliable=False)
    return future, SENDING[-1]


@pytest.mark.parametrize("size", [0, 10, 4096, 70_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3_500_000])
def test_bytes_arrive_whole(streamer: BlobStreamer, size: int) -> None:
    """Of nothing, of a part of a chunk, of a chunk, of several."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    future, _ = send(streamer, data)
    assert future.result(timeout=60) == size
    assert b"".join(streamer.byte_streamer.cell.parts) == data
    assert len(streamer.byte_streamer.cell.parts) == max(1, -(-size // (1 << 20)))


def test_a_small_message_has_a_small_buffer(streamer: BlobStreamer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a large one NVFlare's."""
    sizes: list[int] = []
    begin = TxTask.__init__

    def noted(self: Any, *args: Any) -> None:
        begin(self, *args)
        sizes.append(len(self.buffer))

    monkeypatch.setattr(Noted, "__init__", noted)
    for size in (5, 70_000, 3_500_000):
        send(streamer, bytes(size))[0].result(timeout=60)
    assert sizes == [streams.MIN_CHUNK_BYTES, 70_000, 1 << 20]


def test_what_was_sent_is_released_without_the_collector(streamer: BlobStreamer) -> None:
    """The buffer of a megabyte goes when the stream has been sent, though somebody still holds the future."""
    gc.collect()
    gc.disable()
    try:
        futures = []
        for _ in range(20):
            future, task = send(streamer, b"some bytes")
            future.result(timeout=60)
            futures.append((future, task))
        streamer_threads_are_idle()
        assert [task() for _, task in futures] == [None] * 20
    finally:
        gc.enable()


def streamer_threads_are_idle() -> None:
    """Have each thread of the pool take up something else: a thread holds its last task until then."""
    from nvflare.fuel.f3.streaming.stream_utils import stream_thread_pool

    for _ in range(2 * len(stream_thread_pool._threads)):
        stream_thread_pool.submit(int).result(timeout=60)


def test_what_failed_is_released_too() -> None:
    """A stream that could not be sent tells so, and goes."""
    streams.install()
    broken = BlobStreamer(ByteStreamer(Wire("unreachable")), None)
    future, task = send(broken, b"some bytes")
    with pytest.raises(StreamError):
        future.result(timeout=60)
    streamer_threads_are_idle()
    assert future.task_handle is None
    del future
    gc.collect()
    assert task() is None


def test_the_names_of_headers_are_interned_for_good() -> None:
    """A message that arrives brings no new string but its values."""
    streams.install()
    names = [name for keys in (MessageHeaderKey, StreamHeaderKey) for key, name in vars(keys).items() if not key.startswith("__")]
    for name in names:
        (arrived,) = msgpack.unpackb(msgpack.packb({name: 1}))
        assert any(arrived is known for known in streams.HEADER_NAMES), name


def test_few_streams_are_remembered(streamer: BlobStreamer) -> None:
    """However many were sent."""
    for _ in range(streams.MAX_SENT_STREAMS + 100):
        send(streamer, b"x")[0].result(timeout=60)
    assert len(ByteStreamer.error_context_map) <= streams.MAX_SENT_STREAMS


@pytest.mark.full
def test_rounds_leave_no_threads_and_files_behind(tmp_path: Path) -> None:
    """Three sites in processes of their own: as many threads and open files after 300 rounds as after 100."""
    from benchmarks.soak import SLACK, soak

    for name, samples in soak(300, 100, tmp_path).items():
        assert [sample["round"] for sample in samples] == [100, 200, 300]
        for column in ("threads", "files"):
            assert samples[-1][column] <= samples[0][column] + SLACK[column], f"{name}: {column} of {samples}"
