"""Partitions that were computed before: found by all that they depend on; damaged and foreign files are ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from atoll.data import node_lists, partition_cache
from atoll.data.csbm import CsbmSettings, generate
from atoll.data.node_lists import metis

RING = sp.csr_array((np.ones(6), (np.arange(6), (np.arange(6) + 1) % 6)), shape=(6, 6))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that keeps partitions of any size."""
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    monkeypatch.delenv("ATOLL_PARTITION_CACHE", raising=False)
    monkeypatch.setattr(partition_cache, "MIN_PARTS", 1)
    return tmp_path / "partitions"


class Counted:
    """A partition, and how often it was computed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Any:
        """Nodes 0 to 5 in parts 0, 0, 1, 1, 2, 2."""
        self.times += 1
        return np.arange(6) // 2


def cached(
    compute: Counted, matrix: sp.csr_array = RING, parts: int = 3, options: tuple[Any, ...] = (7, "auto", None)
) -> list[int]:
    """A partition by the cache."""
    return partition_cache.cached_parts(matrix, parts, options, compute).tolist()


def test_what_was_computed_is_not_computed_again(folder: Path) -> None:
    """One file, the same numbers."""
    compute = Counted()
    assert [cached(compute) for _ in range(3)] == [[0, 0, 1, 1, 2, 2]] * 3
    assert compute.times == 1
    assert len(list(folder.iterdir())) == 1


def test_every_input_has_a_partition_of_its_own(folder: Path) -> None:
    """Other edges, another number of parts, another option: none is taken for another."""
    compute = Counted()
    other = sp.csr_array(RING + RING.T)
    cached(compute)
    cached(compute, other)
    cached(compute, parts=4)
    cached(compute, options=(8, "auto"))
    cached(compute, options=(7, "auto", [0.5, 0.25, 0.25]))
    assert compute.times == 5
    assert len(list(folder.iterdir())) == 5


def forged(path: Path, **arrays: Any) -> None:
    """An archive in place of a partition."""
    with path.open("wb") as file:
        np.savez(file, **arrays)


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "text", "no checksum", "other numbers", "beyond", "too short", "other key", "pickle"]
)
def test_damaged_and_foreign_files_are_ignored_and_replaced(folder: Path, damage: str) -> None:
    """Half a file, another program's, other numbers, another graph's: the partition is computed again, and kept."""
    compute = Counted()
    cached(compute)
    (path,) = folder.iterdir()
    whole, part, key = path.read_bytes(), np.arange(6, dtype=np.int32) // 2, path.stem.removeprefix("metis-")
    sums = partition_cache._checksum
    if damage in ("cut", "empty", "text"):
        path.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"not an archive"}[damage])
    elif damage == "no checksum":
        forged(path, part=part)
    elif damage == "pickle":
        forged(path, part=np.array([{}], dtype=object), checksum=sums(key, part))
    else:
        wrong = {"beyond": part + 1, "too short": part[:5], "other numbers": part[::-1].copy()}.get(damage, part)
        summed = part if damage == "other numbers" else wrong
        forged(path, part=wrong, checksum=sums("other" if damage == "other key" else key, summed))
    assert cached(compute) == [0, 0, 1, 1, 2, 2]
    assert compute.times == 2
    assert cached(compute) == [0, 0, 1, 1, 2, 2]
    assert compute.times == 2


def test_it_can_be_turned_off_and_a_folder_that_cannot_be_written_is_no_reason_to_stop(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ATOLL_PARTITION_CACHE=off`, and a file where the folder should be."""
    compute = Counted()
    monkeypatch.setenv("ATOLL_PARTITION_CACHE", "off")
    cached(compute)
    assert compute.times == 1
    assert not folder.exists()
    monkeypatch.delenv("ATOLL_PARTITION_CACHE")
    folder.write_text("a file")
    assert cached(compute) == [0, 0, 1, 1, 2, 2]


def test_small_partitions_are_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed as fast as they would be read."""
    monkeypatch.setattr(partition_cache, "MIN_PARTS", 500)
    cached(Counted())
    assert not folder.exists()


def test_metis_from_the_cache_is_metis(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Computed, computed and kept, and read: the same parties."""
    graph = generate(CsbmSettings(nodes=300))
    kept, read = (metis(graph, 12, 5) for _ in range(2))
    assert len(list(folder.iterdir())) == 1
    monkeypatch.setenv("ATOLL_PARTITION_CACHE", "off")
    plain = metis(graph, 12, 5)
    for one, other, third in zip(kept, read, plain, strict=True):
        assert np.array_equal(one, other)
        assert np.array_equal(one, third)
    assert [part.tolist() for part in node_lists.by_owner(np.array([1, 0, 1]), 2)] == [[1], [0, 2]]
