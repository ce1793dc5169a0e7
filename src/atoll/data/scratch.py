"""Arrays on disk: for what is larger than the memory that it may take."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll import storage
from atoll.data.catalog import cache_folder

GIGABYTE = 10**9


def exceeds(size: int, budget: float) -> bool:
    """Whether that many bytes are more than a budget in gigabytes; 0 is no limit."""
    return budget > 0 and size > budget * GIGABYTE


def scratch_array(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """An array of zeros in a file under the cache that nobody else sees; the system frees it with the array.

    Its pages are written to disk instead of filling the memory.
    """
    folder = cache_folder() / "scratch"
    with storage.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, max(int(np.prod(shape)) * np.dtype(dtype).itemsize, 1))
            return np.memmap(file, dtype, "r+", shape=shape)


def gathered(x: NDArray[Any], rows: NDArray[np.int64], budget: float) -> NDArray[Any]:
    """x[rows], in a file where it is larger than the budget."""
    if not exceeds(len(rows) * x.shape[1] * x.itemsize, budget):
        return x[rows]
    result = scratch_array((len(rows), x.shape[1]), x.dtype)
    step = max(1, int(GIGABYTE * min(budget, 0.25)) // max(x.shape[1] * x.itemsize, 1))
    for start in range(0, len(rows), step):
        result[start : start + step] = x[rows[start : start + step]]
    return result
