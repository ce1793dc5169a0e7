"""Plain arrays (.npz, a folder of .npy) from anywhere: nothing is unpickled; no more is allocated than a file can hold."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]
MAPPED = 1 << 26  # bytes of a file from which on its pages are read as they are needed
MAX_INFLATION = 1100  # bytes per compressed byte; DEFLATE reaches 1032

FAILURES = (  # what zipfile, zlib and numpy raise for broken, encrypted or unknown content
    OSError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    SyntaxError,
    TokenError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


def read_npz(path: Path) -> Arrays:
    """The plain arrays of an .npz; anything wrong with the file is a ValueError."""
    try:
        with path.open("rb") as file:
            if file.read(2) != b"PK":  # numpy would suggest to unpickle it
                raise ValueError("it is not a zip archive")
            size = path.stat().st_size
            with zipfile.ZipFile(file) as archive:
                return {entry.filename.removesuffix(".npy"): _array(archive, entry, size) for entry in archive.infolist()}
    except MemoryError as error:
        raise ValueError("its arrays do not fit in memory") from error
    except FAILURES as error:
        raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def read_folder(folder: Path) -> Arrays:
    """The plain arrays of a folder with one .npy for each, large ones mapped; anything wrong with one is a ValueError."""
    try:
        return {path.stem: _loaded(path) for path in sorted(folder.glob("*.npy"))}
    except MemoryError as error:
        raise ValueError("its arrays do not fit in memory") from error
    except FAILURES as error:
        raise ValueError(str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def _loaded(path: Path) -> np.ndarray[Any, Any]:
    """One array; a change of a mapped one in memory does not reach the file."""
    mapped = path.stat().st_size >= MAPPED
    array: np.ndarray[Any, Any] = np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
    return array


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, size: int) -> np.ndarray[Any, Any]:
    """One array, whose declared sizes are checked before it is read."""
    name = repr(entry.filename[:60])
    if not entry.filename.endswith(".npy"):
        raise ValueError(f"it holds {name}, which is not an array")
    if entry.file_size > MAX_INFLATION * min(entry.compress_size, size):
        raise ValueError(f"{name} says that it has {entry.file_size} bytes, more than the file can hold")
    with archive.open(entry) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        start = member.tell()
    negative = any(length < 0 for length in shape)
    if negative or (not dtype.hasobject and start + math.prod(shape) * dtype.itemsize > entry.file_size):
        raise ValueError(f"{name} has the shape {str(shape)[:60]}, but not as many bytes")
    with archive.open(entry) as member:
        array: np.ndarray[Any, Any] = np.lib.format.read_array(member, allow_pickle=False)
    return array
