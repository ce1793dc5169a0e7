"""Payloads survive the wire, and nothing else passes."""

from __future__ import annotations

import json
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll import wire
from atoll.errors import AtollError

DTYPES = [torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.bfloat16]
names = st.text(st.characters(codec="ascii", exclude_characters="/[]", categories=["L", "N"]), min_size=1, max_size=6)
shapes = st.lists(st.integers(0, 4), max_size=3)
tensors = st.builds(lambda shape, dtype: (torch.rand(shape) * 9).to(dtype), shapes, st.sampled_from(DTYPES))
scalars = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.text(max_size=5), st.booleans(), st.none())
payloads = st.recursive(
    st.dictionaries(names, tensors | scalars | st.lists(tensors, min_size=1, max_size=3), min_size=1, max_size=4),
    lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3),
    max_leaves=6,
)


def assert_equal(one: object, other: object) -> None:
    """The same structure, types and values."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()  # type: ignore[attr-defined]
        for name in one:
            assert_equal(one[name], other[name])  # type: ignore[index]
    elif isinstance(one, list):
        for a, b in zip(one, other, strict=True):  # type: ignore[call-overload]
            assert_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype  # type: ignore[attr-defined]
        assert torch.equal(one, other)  # type: ignore[arg-type]
    else:
        assert one == other


@given(payloads)
def test_what_goes_in_comes_out(payload: dict[str, object]) -> None:
    """Every payload is read back as it was written."""
    assert_equal(wire.decode(wire.encode(payload)), payload)
    tensors = [name for name, value in wire.leaves(payload) if isinstance(value, torch.Tensor)]
    assert tensors == [name for name, value in wire.leaves(wire.decode(wire.encode(payload))) if isinstance(value, torch.Tensor)]


@given(payloads)
def test_the_size_is_known_without_making_the_bytes(payload: dict[str, object]) -> None:
    """`wire_size` is the length of `encode`, and `payload_size` that of the tensors' data."""
    flat = dict(wire.leaves(payload))
    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in flat.items() if isinstance(value, torch.Tensor)}
    plain = {name: value for name, value in flat.items() if not isinstance(value, torch.Tensor)}
    assert wire.wire_size(shapes, plain) == len(wire.encode(payload))
    assert wire.payload_size(payload) == sum(v.numel() * v.element_size() for v in flat.values() if isinstance(v, torch.Tensor))


def test_any_safetensors_reader_can_read_it() -> None:
    """The bytes are an ordinary safetensors document."""
    read = safetensors.torch.load(wire.encode({"model": {"w": torch.arange(6.0).view(2, 3)}, "n": 3}))
    assert read.keys() == {"model/w"}
    assert torch.equal(read["model/w"], torch.arange(6.0).view(2, 3))


def test_views_are_written_as_they_look() -> None:
    """A transposed or strided tensor arrives as it looks, not as it lies in memory."""
    tensor = torch.arange(12.0).view(3, 4).T[::2]
    assert torch.equal(wire.decode(wire.encode({"t": tensor}))["t"], tensor)


def _with_header(header: dict[str, object], data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"12345678",
        b"\x80\x04\x95pickle?",
        wire.encode({"a": torch.ones(4)})[:-1],
        wire.encode({"a": torch.ones(4)}) + b"x",
        _with_header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        _with_header({"__metadata__": {"scalars": "{"}, "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        _with_header({"__metadata__": {"scalars": "{}"}, "a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 4]}}, b"1234"),
        struct.pack("<Q", 2**62) + b"{}",
    ],
)
def test_damaged_bytes_are_refused(damaged: bytes) -> None:
    """Whatever is not exactly such a document is one clear error, never a crash."""
    with pytest.raises(AtollError, match="could not be read"):
        wire.decode(damaged)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    """Random bytes never pass."""
    with pytest.raises(AtollError):
        wire.decode(noise)


def test_compact_documents_keep_rows_that_are_one_once() -> None:
    """A checkpoint writes what all parties share once and gives it back as one piece; a message writes it out."""
    payload = {"all": torch.arange(6.0).view(1, 2, 3).expand(1000, 2, 3), "own": torch.arange(4), "one": torch.ones(1, 2)}
    small, large = wire.encode(payload, compact=True), wire.encode(payload)
    assert len(small) < 1000 < 24000 < len(large)
    for data in (small, large):
        back = wire.decode(data)
        assert all(torch.equal(back[name], value) for name, value in payload.items())
    assert wire.alike(wire.decode(small)["all"])
    assert len(large) == wire.wire_size({name: (value.dtype, tuple(value.shape)) for name, value in payload.items()}, {})
