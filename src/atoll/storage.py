"""Files that survive a crash: whole-file writes, durable lines, documents with a checksum, and locks.

Whatever atoll writes whole goes through `write_whole` or `replacing`. A write that fails is one sentence (`AtollError`) and
leaves the earlier file as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import secrets
import socket
import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from atoll import spilled, wire
from atoll.errors import AtollError, AtollWarning

Bytes = bytes | memoryview

LOCK = ".lock"
_OPENING = b'{"__metadata__":{'  # how the header of every document begins, after its length
_PLAIN = _OPENING + b'"scalars":'  # the header of one without a checksum
_CHECKED = _OPENING + b'"checksum": "'  # that of one with a checksum: 64 hexadecimal digits follow
_CLOSING = b'", '  # the entry is 80 bytes in all, so that the tensors stay aligned
_DIGITS = 64
_UNLOCKABLE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of file systems without locks


class DamagedError(AtollError):
    """A file whose content is not what atoll wrote."""


def write_whole(path: Path, *parts: Bytes, previous: Path | None = None, mode: int = 0o666) -> None:
    """Replace a file by these bytes; see `replacing`."""
    with replacing(path, previous, mode=mode) as file:
        for part in parts:
            _write(file.fileno(), part)


@contextlib.contextmanager
def replacing(path: Path, previous: Path | None = None, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Replace a file so that it is there whole or not at all, whenever the process or the machine stops.

    Symbolic links are not followed: one at `path` is replaced, and the partial file has an unguessable name. The earlier file
    is kept as `previous`; a process that stops in between leaves that one only. `mode` is 0o600 for secrets.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    with writing(path):
        handle = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            with os.fdopen(handle, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if previous is not None and path.is_file():
                path.replace(previous)
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append_line(path: Path, text: str, *, durable: bool = True) -> None:
    """Add one line to a file, wholly or not at all and, if `durable`, on the disk before this returns.

    A last line without a line break was cut off by a crash and never acknowledged; it is dropped first.
    """
    if "\n" in text:
        raise ValueError("the text has a line break")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            length = _whole_lines(handle)
            try:
                _write(handle, text.encode() + b"\n")
                if durable:
                    os.fsync(handle)
            except BaseException:
                os.ftruncate(handle, length)
                raise
        finally:
            os.close(handle)
        if durable and length == 0:
            sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def sync(path: Path) -> None:
    """Force a file that was appended to, and its name in the folder, to the disk."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(path.parent)
    except OSError as error:
        raise unwritable(path, error) from error


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EROFS):  # file systems that cannot do it
            raise
    finally:
        os.close(handle)


def sweep(folder: Path) -> None:
    """Remove partial files that a killed process left behind; the caller holds the folder's lock."""
    for left in folder.glob(".*.partial"):
        with contextlib.suppress(OSError):
            left.unlink()


def write_document(path: Path, payload: wire.Payload, *, compact: bool = False, previous: Path | None = None) -> None:
    """Write a payload as one safetensors file whose header holds a SHA-256 of everything else in the file."""
    header, *tensors = wire.pieces(payload, compact=compact)
    (length,) = struct.unpack("<Q", header[:8])
    start = 8 + len(_OPENING)
    if bytes(header[8 : 8 + len(_PLAIN)]) != _PLAIN:
        raise ValueError("the header of a document does not begin as expected")
    entry = len(_CHECKED) - len(_OPENING) + _DIGITS + len(_CLOSING)
    before, after = struct.pack("<Q", length + entry) + _CHECKED, [header[start:], *tensors]
    write_whole(path, before, _digest(before, *after), _CLOSING, *after, previous=previous)


def read_document(path: Path) -> dict[str, Any]:
    """The payload that `write_document` wrote; a file with any bit changed is a `DamagedError`.

    A file without a checksum, from an earlier version, is read with a warning.
    """
    large = False
    try:
        with path.open("rb") as file:
            large = os.fstat(file.fileno()).st_size >= spilled.LARGE
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if large else file.read()
    except OSError as error:
        raise DamagedError(f"{path} cannot be read ({error.strerror}).") from error
    start = 8 + len(_CHECKED)
    end = start + _DIGITS
    if data[8:start] == _CHECKED and data[end : end + len(_CLOSING)] == _CLOSING:
        view = memoryview(data)
        if _digest(view[:start], view[end + len(_CLOSING) :]) != data[start:end]:
            raise DamagedError(f"{path} is damaged: its checksum does not match its content.")
    elif data[8 : 8 + len(_PLAIN)] == _PLAIN:
        warnings.warn(
            f"{path} has no checksum: an earlier version wrote it, so damage to it goes unnoticed.", AtollWarning, stacklevel=2
        )
    else:
        raise DamagedError(f"{path} is damaged: it is not a document that atoll wrote.")
    try:
        return wire.open_document(path) if large else wire.decode(data)  # type: ignore[arg-type]
    except AtollError as error:
        raise DamagedError(f"{path} is damaged: {error}") from error


class Lock:
    """A folder that one process uses at a time; the system releases it when the process ends, however it ends."""

    def __init__(self, folder: Path, what: str) -> None:
        """`what` begins the error for a second process: "The run runs/a"."""
        self.path = folder / LOCK
        self.what = what
        self.handle: int | None = None

    def acquire(self) -> None:
        """Take the lock; where another process has it, raise an error that names it."""
        try:
            while self.handle is None:
                self.handle = self._taken()
            os.ftruncate(self.handle, 0)
            os.pwrite(self.handle, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        except OSError as error:
            self.release()
            raise unwritable(self.path, error) from error

    def _taken(self) -> int | None:
        """The locked file, or None where it was replaced in the meantime."""
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(handle, 300, 0).decode(errors="replace").split()
            os.close(handle)
            by = f"process {holder[0]} on {holder[1]}" if len(holder) == 2 else "another process"
            raise AtollError(f"{self.what} is in use by {by}; wait until that ends, or end it.") from error
        except OSError as error:
            if error.errno not in _UNLOCKABLE:
                os.close(handle)
                raise
            warnings.warn(
                f"{self.path.parent} is on a file system without locks; make sure that no other process uses it.",
                AtollWarning,
                stacklevel=4,
            )
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), self.path.lstat()):
                return handle
        os.close(handle)  # its last holder has just removed the file
        return None

    def release(self) -> None:
        """Release it; the file is removed first, so that no process locks a file that is about to go."""
        if self.handle is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self.handle)
            self.handle = None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def unwritable(path: Path, error: OSError) -> AtollError:
    """One sentence on why a file could not be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    advice = "make room there; what was written before is as it was" if full else "check the path and the rights to it"
    return AtollError(f"{path} cannot be written ({error.strerror}); {advice}.")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError in the block into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def _write(handle: int, data: Bytes) -> None:
    view = memoryview(data).cast("B") if len(data) else memoryview(b"")
    while len(view):
        view = view[os.write(handle, view[: 1 << 30]) :]


def _whole_lines(handle: int) -> int:
    """The length of the file up to the end of its last whole line; what comes after is cut off."""
    length = os.fstat(handle).st_size
    if length and os.pread(handle, 1, length - 1) != b"\n":
        length = os.pread(handle, length, 0).rfind(b"\n") + 1
        os.ftruncate(handle, length)
    return length


def _digest(*parts: Bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest().encode()


__all__ = [
    "DamagedError",
    "Lock",
    "append_line",
    "read_document",
    "replacing",
    "sweep",
    "sync",
    "sync_folder",
    "unwritable",
    "write_document",
    "write_whole",
    "writing",
]
