"""Memory of NVFlare's streams, which carry every message, that does not grow with the number of rounds.

What sends a stream and what waits for its end refer to each other. So the message and a buffer of a megabyte stay until Python's
collector comes to its oldest objects, which takes thousands of rounds. Each end also remembers the last 10,000 streams that it
sent, for errors that come late. Here a stream that was sent is released at once, and fewer are remembered.

What arrives needs no such care: streams are not repeated (`reliable=False`), so a whole one is forgotten at once, and NVFlare
keeps no timer thread for it. One that failed has a timer for five seconds.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from nvflare.fuel.f3.streaming import byte_streamer
from nvflare.fuel.f3.streaming.byte_streamer import TxTask
from nvflare.fuel.f3.streaming.stream_types import StreamFuture

from atoll.errors import AtollError

MAX_SENT = 256  # streams that an end remembers after it has sent them


@cache
def bound() -> None:
    """Have NVFlare release what it has sent; once per process."""
    if not (hasattr(byte_streamer, "MAX_STREAM_ERROR_CONTEXTS") and hasattr(StreamFuture(0), "task_handle")):
        raise AtollError("NVFlare keeps its streams otherwise than atoll needs it; install nvflare==2.9.0.")
    byte_streamer.MAX_STREAM_ERROR_CONTEXTS = MAX_SENT
    original = TxTask.stop

    def stop(self: Any, error: Any = None, notify: bool = True) -> None:
        original(self, error, notify)
        if self.stopped and self.stream_future is not None:
            self.stream_future.task_handle = None  # the future is done: there is nothing left to cancel

    TxTask.stop = stop
