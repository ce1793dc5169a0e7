"""Keeps the memory of NVFlare's streams, which carry every message, from growing with the number of rounds.

*Sent streams.* NVFlare's sender of a stream and the future of its end refer to each other, so the message and a buffer of a
megabyte stay until Python's collector reaches its oldest generation, which takes thousands of rounds. Each process also remembers
the last 10,000 streams that it sent, in case errors arrive late. Here a sent stream is released at once, fewer are remembered,
and a message smaller than the buffer gets a smaller one.

*Header names.* msgpack interns the names of headers with every message, and whenever Python's table of interned strings (4 MB) is
full it is copied, which fragments the heap. Here the names are interned permanently.

*Received streams.* A complete stream is released at once: streams are not repeated (`reliable=False`), so NVFlare starts no timer
thread. A failed one has a timer for five seconds. One that was begun and never ended would keep its parts and, for minutes, one
of the threads that read all replies: it is dropped with the request that it answers.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Container
from functools import cache
from typing import Any

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError, StreamFuture

from atoll.errors import AtollError

MIN_CHUNK_BYTES = 4096
STREAM_ARGUMENT = 4  # index of the stream among the arguments after chunk_size
MAX_SENT_STREAMS = 256  # remembered after they were sent


HEADER_NAMES: list[str] = []  # interned permanently


@cache
def install() -> None:
    """Patch NVFlare to release what it has sent; once per process."""
    parameters = list(inspect.signature(TxTask.__init__).parameters)[:9]
    if not (
        parameters == ["self", "cell", "chunk_size", "channel", "topic", "target", "headers", "stream", "reliable"]
        and hasattr(byte_streamer, "MAX_STREAM_ERROR_CONTEXTS")
        and hasattr(StreamFuture(0), "task_handle")
    ):
        raise AtollError("NVFlare does not manage its streams as atoll needs; install nvflare==2.9.0.")
    byte_streamer.MAX_STREAM_ERROR_CONTEXTS = MAX_SENT_STREAMS
    texts = [name for keys in (MessageHeaderKey, StreamHeaderKey) for name in vars(keys).values() if isinstance(name, str)]
    HEADER_NAMES.extend(sys.intern(name) for name in texts)  # all later strings become these, which are kept here
    original_init, original_stop = TxTask.__init__, TxTask.stop

    def init(self: Any, cell: Any, chunk_size: int, *rest: Any) -> None:
        stream = rest[STREAM_ARGUMENT]
        original_init(self, cell, min(chunk_size, max(MIN_CHUNK_BYTES, stream.get_size())), *rest)

    def stop(self: Any, error: Any = None, notify: bool = True) -> None:
        original_stop(self, error, notify)
        if self.stopped and self.stream_future is not None:
            self.stream_future.task_handle = None  # the future is done: there is nothing left to cancel

    TxTask.__init__, TxTask.stop = init, stop


def received_bytes(site: str) -> int:
    """Bytes received so far of the streams that a site is sending."""
    return sum(int(task.received_offset) for task in _arriving(site))


def drop_unawaited(site: str, awaited: Container[str]) -> None:
    """Drop the streams that a site began in answer to requests that are no longer awaited."""
    for task in _arriving(site):
        if (task.headers or {}).get(StreamHeaderKey.STREAM_REQ_ID) not in awaited:
            task.stop(StreamError(f"{task} is not awaited any longer"), notify=False)
            with task.lock:
                task.chunks.clear()
                task.out_seq_chunks.clear()
            task._remove_task()


def _arriving(site: str) -> list[Any]:
    with RxTask.map_lock:
        return [task for (origin, _), task in RxTask.rx_task_map.items() if origin == site]
