"""Payloads as bytes: tensors in the safetensors layout, scalars as JSON in its header. Never pickle.

A payload is a dict whose values are tensors, scalars (JSON values), lists of tensors, or dicts of the same. In the document,
nested names are joined by `/`, and an index in a list is written `[i]`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from atoll.deferred import Deferred
from atoll.errors import AtollError, short

Payload = Mapping[str, Any]
Place = Callable[[str, torch.dtype, list[int]], Tensor | None]  # (name, type, shape) → where a tensor is to be read to

# Limits of a message; atoll's own files have none.
MAX_HEADER_BYTES = 1 << 25
MAX_FIELDS = 100_000
MAX_NAME = 200  # characters of a field's full name
MAX_DEPTH = 16  # of nested fields, and of lists and tables within a scalar
MAX_TEXT = 10_000  # characters of one text
MAX_DIGITS = 20  # of an integer
MAX_AXES = 16  # of a tensor
MAX_SIZE = 1 << 40  # of one dimension

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_OF_NAMES = {name: dtype for dtype, name in _DTYPES.items()}


def leaves(payload: Payload, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every (name, value) of a payload, depth first, nested names joined by `/`."""
    for name, value in payload.items():
        if isinstance(value, Tensor):  # first, because it is the usual case and the check for a mapping is slow
            yield prefix + name, value
        elif isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{name}/")
        elif isinstance(value, list) and value and isinstance(value[0], Tensor):
            yield from ((f"{prefix}{name}/[{index}]", item) for index, item in enumerate(value))
        else:
            yield prefix + name, value


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `leaves`."""
    payload: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        table = payload
        for parent in parents:
            table = table.setdefault(parent, {})
        table[name] = value
    return {name: _lists(value) for name, value in payload.items()}


def _lists(value: Any) -> Any:
    """Turn {"[0]": a, "[1]": b} back into [a, b]."""
    if not isinstance(value, dict):
        return value
    if value and all(name.startswith("[") for name in value):
        return [value[f"[{index}]"] for index in range(len(value))]
    return {name: _lists(item) for name, item in value.items()}


def encode(payload: Payload, *, compact: bool = False) -> bytes:
    """The payload as one safetensors document; `compact` writes rows that share memory once, as checkpoints do."""
    return b"".join(pieces(payload, compact=compact))


def pieces(payload: Payload, *, compact: bool = False) -> list[bytes | memoryview]:
    """The same in pieces: the header, then each tensor's own memory, where it is contiguous."""
    tensors, scalars = _split(payload)
    repeated = {name: len(tensor) for name, tensor in tensors.items() if compact and rows_are_shared(tensor)}
    tensors |= {name: tensors[name][:1] for name in repeated}
    entries = _entries({name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()})
    order = sorted(entries, key=lambda name: entries[name]["data_offsets"])
    parts = [tensors[name].detach().contiguous().view(-1).view(torch.uint8).numpy().data for name in order]
    return [_header(entries, scalars, repeated), *parts]


def rows_are_shared(value: Any) -> bool:
    """Whether all rows of a tensor are the same memory (`expand`): what all parties share is stored once."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return False
    return value.ndim > 0 and len(value) > 1 and not value.stride(0)


def decode(data: bytes) -> dict[str, Any]:
    """The payload in the bytes; anything that is not exactly such a document is an error."""
    try:
        tensors = safetensors.torch.load(data)
        (length,) = struct.unpack("<Q", data[:8])
        return _payload(json.loads(data[8 : 8 + length]), tensors.__getitem__)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, struct.error) as error:
        raise AtollError(
            f"A message could not be read: {short(error, 200)}; it is damaged or was not written by atoll."
        ) from error


def unpack(data: bytes | memoryview, place: Place | None = None) -> dict[str, Any]:
    """As `decode`, of bytes that a process of the same run has written: each tensor is copied once, into memory of its own.

    It lies where torch itself would put it, since kernels round differently at other addresses. `place` may have another tensor
    for it, contiguous and of that type and shape; it is not asked for rows that are one row, repeated.
    """
    (length,) = struct.unpack("<Q", data[:8])
    header, start = json.loads(bytes(data[8 : 8 + length])), 8 + length
    repeated = json.loads(header["__metadata__"].get("repeated", "{}"))

    def tensor_of(name: str) -> Tensor:
        dtype, shape = _OF_NAMES[header[name]["dtype"]], header[name]["shape"]
        first, last = header[name]["data_offsets"]
        tensor = None if place is None or name in repeated else place(name, dtype, shape)
        if tensor is None:
            tensor = torch.empty(shape, dtype=dtype)
        tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8, last - first, start + first)
        return tensor

    return _payload(dict(header), tensor_of)


def open_document(path: Path) -> dict[str, Any]:
    """As `decode` of a whole file that nobody changes, but its tensors are read when they are used, and may then be changed."""
    try:
        with path.open("rb") as file, safetensors.safe_open(path, "pt") as document:
            (length,) = struct.unpack("<Q", file.read(8))
            return _payload(json.loads(file.read(length)), document.get_tensor)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, struct.error) as error:
        raise AtollError(f"{path} could not be read: {short(error, 200)}; it is damaged or was not written by atoll.") from error


def _payload(header: dict[str, Any], tensor_of: Callable[[str], Tensor]) -> dict[str, Any]:
    """What a document's header, with its tensors, describes."""
    metadata = header.pop("__metadata__")
    tensors = {name: tensor_of(name) for name in header}
    for name, count in json.loads(metadata.get("repeated", "{}")).items():
        tensors[name] = tensors[name].expand(count, *tensors[name].shape[1:])
    return nest(tensors | json.loads(metadata["scalars"]))


def decode_message(data: bytes) -> dict[str, Any]:
    """The payload in untrusted bytes: as `decode`, but with limits, and without what only atoll's own files may hold."""
    try:
        header = _checked_header(data)
        scalars = _loads(header.pop("__metadata__")["scalars"])
        for name in (*header, *scalars):
            if not 0 < len(name) <= MAX_NAME or not name.isprintable() or name.count("/") > MAX_DEPTH:
                raise ValueError("a field's name is too long or not printable")
        if header.keys() & scalars.keys():
            raise ValueError("a field appears twice")
        _check_scalar(scalars)
        tensors = safetensors.torch.load(data)
        return nest({name: tensors[name] for name in header} | scalars)
    except AtollError:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, MemoryError, struct.error) as error:
        what = short(error, 200)
        raise AtollError(f"A message could not be read: {what}; it is damaged or was not written by atoll.") from error


def _checked_header(data: bytes) -> dict[str, Any]:
    (length,) = struct.unpack("<Q", data[:8])
    if length > min(len(data) - 8, MAX_HEADER_BYTES):
        raise ValueError(f"its header has {length} bytes, of at most {MAX_HEADER_BYTES}")
    header = _loads(data[8 : 8 + length])
    if len(header) > MAX_FIELDS:
        raise ValueError(f"it has {len(header)} fields, of at most {MAX_FIELDS}")
    if header["__metadata__"].keys() != {"scalars"}:
        raise ValueError("its header holds entries that messages do not have")
    for name, entry in header.items():
        shape = [] if name == "__metadata__" else entry["shape"]
        if len(shape) > MAX_AXES or not all(type(size) is int and 0 <= size <= MAX_SIZE for size in shape):
            raise ValueError("a tensor's shape is out of bounds")
    return header


def _loads(text: str | bytes) -> dict[str, Any]:
    """A JSON object, refusing duplicate names, non-finite numbers and overlong integers."""
    document = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite, parse_int=_small)
    if not isinstance(document, dict):
        raise TypeError("it is not an object")
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        raise ValueError("a name appears twice")
    return document


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _small(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("an integer is too long")
    return int(text)


def _check_scalar(value: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str) and len(value) > MAX_TEXT:
        raise ValueError(f"a text has {len(value)} characters, of at most {MAX_TEXT}")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_scalar(name, depth)
            _check_scalar(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _check_scalar(inner, depth + 1)


def wire_size(shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], scalars: Mapping[str, Any]) -> int:
    """The length of `encode` for tensors of these shapes, without making the bytes."""
    described, data = _extent(tuple(shapes.items()))
    header = _scalars_extent(tuple((name, *_width(value)) for name, value in scalars.items())) + described
    return header + (-header % 8) + data


def _width(value: Any) -> tuple[type | None, Any]:
    """What a scalar's length in a header depends on: an integer's number of digits, a text or truth value, else its JSON."""
    if type(value) is int and value >= 0:
        return int, len(str(value))
    return (type(value), value) if type(value) in (str, bool) else (None, json.dumps(value))


@lru_cache(maxsize=1 << 12)
def _scalars_extent(scalars: tuple[tuple[str, type | None, Any], ...]) -> int:
    """Bytes of a header without tensors, from the scalars' widths; cached, since messages repeat every round."""
    values: dict[str, Any] = {}
    for name, kind, width in scalars:
        values[name] = 10 ** (width - 1) if kind is int else json.loads(width) if kind is None else width
    return len(_header({}, values).rstrip(b" "))


@cache
def _extent(shapes: tuple[tuple[str, tuple[torch.dtype, tuple[int, ...]]], ...]) -> tuple[int, int]:
    """Bytes of the header's entries and of the data for tensors of these shapes; cached, since messages repeat every round."""
    entries = _entries(dict(shapes))
    described = len(json.dumps(entries, separators=(",", ":"))) - 1 if entries else 0
    return described, max((entry["data_offsets"][1] for entry in entries.values()), default=0)


def _split(payload: Payload) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    scalars: dict[str, Any] = {}
    for name, value in leaves(payload):
        if isinstance(value, Tensor):
            tensors[name] = value
        elif isinstance(value, Deferred):
            tensors[name] = value.dense()
        else:
            scalars[name] = value
    return tensors, scalars


def _entries(shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> dict[str, dict[str, Any]]:
    """The header's entries in the payload's order; the data comes widest element first, so that all of it is aligned."""
    offsets = {}
    start = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda item: (-item[1][0].itemsize, item[0])):
        offsets[name] = [start, start + dtype.itemsize * math.prod(shape)]
        start = offsets[name][1]
    return {
        name: {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": offsets[name]} for name, (dtype, shape) in shapes.items()
    }


def _header(
    entries: Mapping[str, dict[str, Any]], scalars: Mapping[str, Any], repeated: Mapping[str, int] | None = None
) -> bytes:
    metadata = {"scalars": json.dumps(scalars, separators=(",", ":"))}
    if repeated:
        metadata["repeated"] = json.dumps(repeated, separators=(",", ":"))
    document = {"__metadata__": metadata, **entries}
    text = json.dumps(document, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text
