"""Payloads survive the wire, and nothing else passes."""

from __future__ import annotations

import json
import struct
import tracemalloc
from random import Random

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


def nested(*, infinity: bool) -> st.SearchStrategy[dict[str, object]]:
    """Payloads of every form; our own files may hold infinite numbers, messages may not."""
    floats = st.floats(allow_nan=False, allow_infinity=infinity)
    scalars = st.one_of(st.integers(-(2**60), 2**60), floats, st.text(max_size=5), st.booleans(), st.none())
    return st.recursive(
        st.dictionaries(names, tensors | scalars | st.lists(tensors, min_size=1, max_size=3), min_size=1, max_size=4),
        lambda inner: st.dictionaries(names, inner, min_size=1, max_size=3),
        max_leaves=6,
    )


payloads, messages = nested(infinity=True), nested(infinity=False)


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
    """`wire_size` is the length of `encode`."""
    flat = dict(wire.leaves(payload))
    shapes = {name: (value.dtype, tuple(value.shape)) for name, value in flat.items() if isinstance(value, torch.Tensor)}
    plain = {name: value for name, value in flat.items() if not isinstance(value, torch.Tensor)}
    assert wire.wire_size(shapes, plain) == len(wire.encode(payload))


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
    assert wire.rows_are_shared(wire.decode(small)["all"])
    assert len(large) == wire.wire_size({name: (value.dtype, tuple(value.shape)) for name, value in payload.items()}, {})


# Messages: what strangers send.


def message(scalars: str = "{}", entries: dict[str, object] | None = None, data: bytes = b"", **metadata: str) -> bytes:
    """A document with this header."""
    return _with_header({"__metadata__": {"scalars": scalars, **metadata}, **(entries or {})}, data)


ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "repeated": (
        message(entries={"a": ENTRY}, data=b"1234", repeated='{"a": 2000000000}'),
        "holds entries that messages do not have",
    ),
    "other metadata": (message(other="x"), "holds entries that messages do not have"),
    "no metadata": (_with_header({"a": ENTRY}, b"1234"), "__metadata__"),
    "long name": (message(entries={"a" * 201: ENTRY}, data=b"1234"), "name is too long or not printable"),
    "no name": (message(entries={"": ENTRY}, data=b"1234"), "name is too long or not printable"),
    "control characters": (message('{"a\\u001b[31m": 1}'), "name is too long or not printable"),
    "deep name": (message(json.dumps({"/".join("a" * 20): 1})), "name is too long or not printable"),
    "deep list": (message('{"a": ' + "[" * 40 + "]" * 40 + "}"), "nested too deeply"),
    "bottomless list": (message('{"a": ' + "[" * 90_000 + "]" * 90_000 + "}"), "recursion"),
    "bottomless header": (struct.pack("<Q", 100_000) + b"[" * 100_000, "recursion"),
    "long text": (message(json.dumps({"a": "x" * 10_001})), "characters"),
    "long text in a table": (message(json.dumps({"a": [{"b": "x" * 10_001}]})), "characters"),
    "not a number": (message('{"a": NaN}'), "NaN is not a number"),
    "infinite": (message('{"a": -Infinity}'), "-Infinity is not a number"),
    "too large": (message('{"a": 1e999}'), "a number is too large"),
    "long whole number": (message('{"a": ' + "9" * 5000 + "}"), "integer is too long"),
    "twice": (message('{"a": 1, "a": 2}'), "appears twice"),
    "twice in both": (message('{"a": 1}', {"a": ENTRY}, b"1234"), "appears twice"),
    "list of scalars": (message("[1, 2]"), "not an object"),
    "huge empty shape": (message(entries={"a": {"dtype": "F32", "shape": [0, 2**50], "data_offsets": [0, 0]}}), "out of bounds"),
    "shape without end": (
        message(entries={"a": {"dtype": "F32", "shape": [1] * 20, "data_offsets": [0, 4]}}, data=b"1234"),
        "out of bounds",
    ),
    "shape of text": (message(entries={"a": {**ENTRY, "shape": ["1"]}}, data=b"1234"), "out of bounds"),
    "more than there is": (message(entries={"a": {**ENTRY, "shape": [10**9]}}, data=b"1234"), ""),
    "overlapping": (message(entries={"a": ENTRY, "b": ENTRY}, data=b"1234"), ""),
    "long header": (struct.pack("<Q", 1 << 26) + b" " * (1 << 26), "header has"),
    "clash": (message('{"a/b": 1}', {"a": ENTRY}, b"1234"), ""),
    "holes in a list": (message('{"a/[0]": 1, "a/[7]": 2}'), ""),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_hostile_messages_are_refused(attack: str) -> None:
    """Each is one sentence of bounded length; the first has 300 bytes and asks for two billion rows."""
    data, why = HOSTILE[attack]
    with pytest.raises(AtollError, match="could not be read") as refused:
        wire.decode_message(data)
    assert why in str(refused.value)
    assert len(str(refused.value)) < 350


def test_the_number_of_fields_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header of many small entries is not taken apart."""
    data = wire.encode({f"a{i}": torch.zeros(0) for i in range(10)})
    wire.decode_message(data)
    monkeypatch.setattr(wire, "MAX_FIELDS", 10)
    with pytest.raises(AtollError, match="it has 11 fields, of at most 10"):
        wire.decode_message(data)


@given(messages)
def test_every_payload_passes_as_a_message(payload: dict[str, object]) -> None:
    """What atoll sends is within the limits."""
    assert_equal(wire.decode_message(wire.encode(payload)), payload)


def test_checkpoints_keep_what_messages_may_not() -> None:
    """Rows that are one, and numbers that are not finite, are for our own files."""
    compact = wire.encode({"all": torch.ones(1, 2).expand(9, 2), "best": float("inf")}, compact=True)
    assert wire.decode(compact)["all"].shape == (9, 2)
    with pytest.raises(AtollError):
        wire.decode_message(compact)


SAMPLE = {
    "kind": "ask",
    "round": 3,
    "training": True,
    "config": [{"algorithm": "fedavg", "settings": {"hidden": 4}}],
    "common": {"model": {"layers.0.weight": torch.rand(3, 4), "layers.0.bias": torch.rand(4)}, "level": 1},
    "each": {"nodes": [torch.arange(3), torch.arange(5)]},
}


def mutated(random: Random, data: bytes) -> bytes:
    """Some bytes changed, moved, doubled or cut off; mostly in the header, where the structure is."""
    work = bytearray(data)
    for _ in range(random.randint(1, 6)):
        place = random.randrange(len(work)) if random.random() < 0.3 else random.randrange(min(len(work), 700))
        kind = random.randrange(6)
        if kind == 0:
            work[place] = random.randrange(256)
        elif kind == 1:
            work[place] = random.choice(b'0123456789[]{}",:/.e-')
        elif kind == 2:
            del work[place : place + random.randint(1, 8)]
        elif kind == 3:
            work[place:place] = work[place : place + random.randint(1, 40)]
        elif kind == 4:
            work[place:place] = random.choice([b"[" * 50, b"9" * 30, b"NaN", b'"a":{', b"Infinity", b"1e999", b"\xff" * 4])
        else:
            del work[random.randrange(len(work)) :]
        if not work:
            return b""
    if random.random() < 0.5 and len(work) > 8:  # a header whose length is right gets further
        end = bytes(work).rfind(b"}") + 1
        work[:8] = struct.pack("<Q", max(end - 8, 0))
    return bytes(work)


def fuzz(seed: int, times: int) -> int:
    """How many mutations were read at all; anything but AtollError, or much memory, is a failure."""
    random, data, read = Random(seed), wire.encode(SAMPLE), 0
    tracemalloc.start()
    try:
        for _ in range(times):
            work = mutated(random, data)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                wire.decode_message(work)
                read += 1
            except AtollError:
                pass
            assert tracemalloc.get_traced_memory()[1] - before < 200 * len(work) + 200_000
    finally:
        tracemalloc.stop()
    return read


def test_mutated_messages_never_raise_anything_else() -> None:
    """Thousands of damaged messages: read, or refused in one sentence, with memory in proportion to their length."""
    assert 0 < fuzz(1, 3000) < 3000


@pytest.mark.full
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_more_mutated_messages(seed: int) -> None:
    """The long run of the same."""
    fuzz(seed, 30_000)


@pytest.mark.parametrize("number", [0, 9, 10, 99, 100, -1, -10, 10**19])
def test_the_cached_size_follows_the_digits_of_a_number(number: int) -> None:
    """A round's number grows from message to message: sizes are cached by its digits."""
    payload = {"round": number, "training": number > 9, "verb": "fit", "more": {"share": number / 3, "list": [number, None]}}
    flat = dict(wire.leaves(payload))
    assert wire.wire_size({}, flat) == len(wire.encode(payload))


def test_truth_values_and_numbers_are_not_confused_in_sizes() -> None:
    """True equals 1 in Python, but is longer in a message."""
    for value in (True, 1, False, 0, "1", 1.0):
        assert wire.wire_size({}, {"value": value}) == len(wire.encode({"value": value}))
