"""Freed memory stays with the process once `keep` was called."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

GIVEN_BACK = """
import psutil, torch
from atoll import allocator
{call}
resident = psutil.Process().memory_info
block = torch.ones(1 << 24)
before = resident().rss
del block
print(before - resident().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_what_is_freed_is_kept() -> None:
    """Of 64 MB nearly nothing goes back to the system; without `keep` nearly all does."""
    with_it, without = (_given_back(call) for call in ("allocator.keep_freed_blocks()", ""))
    assert with_it < 8 << 20
    assert without > 48 << 20


def _given_back(call: str) -> int:
    code = GIVEN_BACK.format(call=call)
    return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
