"""Make the C library keep freed blocks for reuse."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # parameters of mallopt(3)
PAD_BYTES = 64 << 20  # by which the heap grows at a time


@cache
def keep_freed_blocks() -> None:
    """Have glibc keep freed blocks: the next step allocates the same sizes again.

    By default glibc maps every large block and unmaps it when it is freed, and the system clears its pages each time; with wide
    features that can take a third of a round. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, -1)
        mallopt(TOP_PAD, PAD_BYTES)
