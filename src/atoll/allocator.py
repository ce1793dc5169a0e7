"""Memory that was used once is used again."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # of mallopt(3)


@cache
def keep_freed_blocks() -> None:
    """Have the C library keep what is freed, for the next step: it asks for the same again.

    By default glibc maps every large block anew and gives it back at once, and the system clears its pages each time, which on
    wide features can take a third of a round. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, -1)
        mallopt(TOP_PAD, 64 << 20)
