"""Whatever an .npz holds, it is arrays or one sentence."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from atoll.data.npz import read_npz


def npy(header: str, data: bytes = b"") -> bytes:
    """An .npy with any header."""
    padded = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded + data


def archive(path: Path, content: bytes, name: str = "x.npy", compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip archive with one member."""
    with zipfile.ZipFile(path, "w", compression) as file:
        file.writestr(name, content)
    return path


def test_arrays_come_back(tmp_path: Path) -> None:
    """Of all shapes and types, compressed or not, as numpy reads them."""
    arrays = {"a": np.arange(6).reshape(2, 3), "b": np.zeros((0, 4)), "c": np.array("text"), "d": np.zeros(10**6, np.int8)}
    arrays["e"] = np.asfortranarray(np.random.default_rng(0).normal(size=(3, 5)))
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
        found = read_npz(tmp_path / "a.npz")
        with np.load(tmp_path / "a.npz") as expected:
            assert found.keys() == set(expected.files)
            for name in expected.files:
                assert found[name].dtype == expected[name].dtype
                np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1" + 30 * "0" + ",), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000,), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }"),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\nsystem\n"),
        npy("{'descr': '<f8', 'shape': ("),
        npy("(((((("),
        npy("'" * 9),
        b"\x93NUMPY\x09\x09",
        b"not an array",
        b"",
    ],
)
def test_broken_arrays(content: bytes, tmp_path: Path) -> None:
    """Impossible shapes, broken headers, objects."""
    with pytest.raises(ValueError, match=r"."):
        read_npz(archive(tmp_path / "a.npz", content))


def test_broken_archives(tmp_path: Path) -> None:
    """A member that is not an array, one that is encrypted, an unknown compression, a size that the file cannot have."""
    buffer = io.BytesIO()
    np.save(buffer, np.arange(100))
    whole = archive(tmp_path / "a.npz", buffer.getvalue()).read_bytes()
    central = whole.index(b"PK\x01\x02")
    (tmp_path / "b.npz").write_bytes(whole)
    assert read_npz(tmp_path / "b.npz")["x"].tolist() == list(range(100))

    def changed(*places: tuple[int, bytes]) -> Path:
        damaged = bytearray(whole)
        for place, value in places:
            damaged[place : place + len(value)] = value
        (tmp_path / "c.npz").write_bytes(damaged)
        return tmp_path / "c.npz"

    with pytest.raises(ValueError, match="encrypted"):
        read_npz(changed((6, b"\x01"), (central + 8, b"\x01")))
    with pytest.raises(ValueError, match="compression"):
        read_npz(changed((8, b"\x63"), (central + 10, b"\x63")))
    with pytest.raises(ValueError, match="4294967294 bytes, more than the file can hold"):
        read_npz(changed((central + 24, b"\xfe\xff\xff\xff")))
    with pytest.raises(ValueError, match=r"'x\.txt', which is not an array"):
        read_npz(archive(tmp_path / "d.npz", b"text", "x.txt"))
