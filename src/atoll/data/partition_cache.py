"""METIS partitions that were computed before, in a folder: cutting a large graph into thousands of parts takes minutes.

A file is named by a digest of everything the partition depends on, is written whole or not at all, and holds one array of part
numbers with a checksum. Whatever is not exactly that is ignored, and the partition is computed again.

The folder is `partitions` in `ATOLL_CACHE` (`~/.cache/atoll` without it); `ATOLL_PARTITION_CACHE=off` leaves it alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from atoll import storage
from atoll.data.builder import Ints
from atoll.data.catalog import cache_folder
from atoll.data.npz import read_npz
from atoll.errors import AtollError

FORMAT = "atoll partition 1"
MIN_NODES, MIN_PARTS = 50_000, 500  # below both, METIS is about as fast as the cache
MAX_CONVERTED = 1 << 20  # numbers that are converted at once
SWITCH = "ATOLL_PARTITION_CACHE"


def cached_parts(adjacency: sp.csr_array, parts: int, options: tuple[Any, ...], compute: Callable[[], Ints]) -> Ints:
    """(N,) each node's part, from the cache or by `compute`; `options` is whatever else it depends on, besides the edges."""
    nodes = adjacency.shape[0]
    if os.environ.get(SWITCH, "").lower() == "off" or (nodes < MIN_NODES and parts < MIN_PARTS):
        return compute()
    key = _key(adjacency, parts, options)
    path = cache_folder() / "partitions" / f"metis-{key}.npz"
    known = _read(path, key, nodes, parts)
    if known is not None:
        return known
    computed = compute()
    _write(path, key, computed)
    return computed


def _key(adjacency: sp.csr_array, parts: int, options: tuple[Any, ...]) -> str:
    """A digest of all that the partition depends on; the program's version is a part of it."""
    digest = hashlib.blake2b(digest_size=20)
    words = (FORMAT, metadata.version("pymetis"), adjacency.shape[0], parts, *options)
    digest.update(repr(words).encode())
    for array in (adjacency.indptr, adjacency.indices):
        for start in range(0, len(array), MAX_CONVERTED):
            digest.update(np.ascontiguousarray(array[start : start + MAX_CONVERTED], np.int64).view(np.uint8).data)
    return digest.hexdigest()


def _checksum(key: str, part: NDArray[np.int32]) -> NDArray[np.uint8]:
    digest = hashlib.blake2b(key.encode(), digest_size=20)
    digest.update(np.ascontiguousarray(part).view(np.uint8).data)
    return np.frombuffer(digest.digest(), np.uint8)


def _read(path: Path, key: str, nodes: int, parts: int) -> Ints | None:
    """The partition in a file; None where there is no such file, or it is not what was written for this key."""
    try:
        arrays = read_npz(path)
    except ValueError:
        return None
    part, checksum = arrays.get("part"), arrays.get("checksum")
    if part is None or checksum is None or part.dtype != np.int32 or part.shape != (nodes,):
        return None
    if not np.array_equal(checksum, _checksum(key, part)) or (nodes and not 0 <= part.min() <= part.max() < parts):
        return None
    return part.astype(np.int64)


def _write(path: Path, key: str, computed: Ints) -> None:
    """Keep a partition; a folder that cannot be written to does not stop the run."""
    part = computed.astype(np.int32)
    with contextlib.suppress(OSError, AtollError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.replacing(path) as file:
            np.savez(file, allow_pickle=False, part=part, checksum=_checksum(key, part))
