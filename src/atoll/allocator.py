"""Make the C library keep freed blocks for reuse."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4  # parameters of mallopt(3)
PAD_BYTES = 64 << 20  # by which the heap grows at a time
KEPT_SHARE = 40  # blocks up to 1/40 of the machine's memory are kept
MAX_KEPT = 1 << 30  # mallopt takes an int


@cache
def keep_freed_blocks() -> None:
    """Have glibc keep freed blocks: the next step allocates the same sizes again.

    By default glibc maps every large block and unmaps it when it is freed, and the system clears its pages each time; with wide
    features that can take a third of a round. Blocks that are large beside the machine's memory still go back: holes of their
    size would keep a run of millions of users from fitting. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        if not mallopt(MMAP_THRESHOLD, largest_kept()):  # an older glibc refuses more than 32 MB
            mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, -1)
        mallopt(TOP_PAD, PAD_BYTES)


def largest_kept() -> int:
    """The bytes of the largest block that is kept."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // KEPT_SHARE, MAX_KEPT)
