"""Memory of NVFlare's streams, which carry every message, that does not grow with the number of rounds.

What sends a stream and what waits for its end refer to each other. So the message and a buffer of a megabyte stay until Python's
collector comes to its oldest objects, which takes thousands of rounds. Each end also remembers the last 10,000 streams that it
sent, for errors that come late. Here a stream that was sent is released at once, fewer are remembered, and a message smaller than
the buffer gets a smaller one.

msgpack interns the names of headers with every message, and Python's table of interned strings, 4 MB, is copied whenever that has
used its places up; the old one leaves a hole that small things soon share. Here the names are interned for good.

Of what arrives, a whole stream is forgotten at once: streams are not repeated (`reliable=False`), so NVFlare has no timer thread
for it. One that failed has a timer for five seconds. One that was begun and never ended would keep its parts, and for minutes a
thread of those that read everybody's replies: it is given up with the request that it answers.
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

MIN_CHUNK = 4096  # bytes
STREAM_ARGUMENT = 4  # place of the stream among what follows the size of a chunk
MAX_SENT_STREAMS = 256  # streams that an end remembers after it has sent them


HEADER_NAMES: list[str] = []  # interned for good


@cache
def install() -> None:
    """Have NVFlare release what it has sent; once per process."""
    takes = list(inspect.signature(TxTask.__init__).parameters)[:9]
    if not (
        takes == ["self", "cell", "chunk_size", "channel", "topic", "target", "headers", "stream", "reliable"]
        and hasattr(byte_streamer, "MAX_STREAM_ERROR_CONTEXTS")
        and hasattr(StreamFuture(0), "task_handle")
    ):
        raise AtollError("NVFlare keeps its streams otherwise than atoll needs it; install nvflare==2.9.0.")
    byte_streamer.MAX_STREAM_ERROR_CONTEXTS = MAX_SENT_STREAMS
    texts = [name for keys in (MessageHeaderKey, StreamHeaderKey) for name in vars(keys).values() if isinstance(name, str)]
    HEADER_NAMES.extend(sys.intern(name) for name in texts)  # the strings that all later ones become, kept here
    begin, end = TxTask.__init__, TxTask.stop

    def start(self: Any, cell: Any, chunk_size: int, *rest: Any) -> None:
        stream = rest[STREAM_ARGUMENT]
        begin(self, cell, min(chunk_size, max(MIN_CHUNK, stream.get_size())), *rest)

    def stop(self: Any, error: Any = None, notify: bool = True) -> None:
        end(self, error, notify)
        if self.stopped and self.stream_future is not None:
            self.stream_future.task_handle = None  # the future is done: there is nothing left to cancel

    TxTask.__init__, TxTask.stop = start, stop


def received_bytes(site: str) -> int:
    """Bytes that have arrived of what a site is sending."""
    return sum(int(task.received_offset) for task in _arriving(site))


def drop_unawaited(site: str, awaited: Container[str]) -> None:
    """Let go of all that a site began to send in answer to requests that are no longer among the awaited."""
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
