"""Lies for the tests of the bounds: one field of a message or reply replaced by what cannot be, in every way we know of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Fields of which there cannot be fewer than none; all others may have any sign.
COUNTED = {"n", "nodes", "ids", "links", "validation", "test", "confusion", "train", "votes", "share", "held", "predictions"}
OTHER_TYPE = {torch.float32: torch.float64, torch.int64: torch.float32, torch.int32: torch.int64}


def lies(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """What may stand in a field's place, each with a word for it; `value` has the form that is right."""
    yield "type", 3 if not isinstance(value, int) else "three"
    if isinstance(value, list):
        for word, lie in lies(value[0], name):
            yield f"list {word}", [lie, *value[1:]]
        yield "list length", [*value, value[0]]
        return
    if not isinstance(value, Tensor):
        yield "negative", -5
        yield "huge", 10**18
        yield "float", 0.5
        return
    yield "dtype", value.to(OTHER_TYPE.get(value.dtype, torch.float32))
    yield "deeper", value[..., None]
    if value.ndim > 1:
        yield "shorter", value[..., :-1]
    yield from numbers(value, name)


def numbers(value: Tensor, name: str) -> Iterator[tuple[str, Any]]:
    """Numbers that cannot be, in a tensor of the right form."""
    if value.dtype == torch.bool or value.numel() == 0 or value.dtype == torch.uint8:
        return
    if value.is_floating_point():
        yield "nan", one(value, float("nan"))
        yield "infinite", one(value, float("inf"))
        yield "huge", one(value, 1e35)
    else:
        yield "huge", one(value, torch.iinfo(value.dtype).max)
    if name.split("/")[0] in COUNTED:
        yield "negative", one(value, -5)


def one(value: Tensor, number: float) -> Tensor:
    """The tensor with its last number replaced."""
    lie = value.detach().clone()
    lie.view(-1)[-1] = number
    return lie


def paths(fields: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The full names of all fields; lists are one field."""
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from paths(value, f"{prefix}{name}/")
        else:
            yield prefix + name


def at(fields: dict[str, Any], path: str) -> Any:
    """The field of that name."""
    for name in path.split("/"):
        fields = fields[name]
    return fields


def put(fields: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one field replaced or, without a value, left out."""
    name, _, rest = path.partition("/")
    if rest:
        return {**fields, name: put(fields.get(name, {}), rest, value)}
    left = {key: own for key, own in fields.items() if key != name}
    return left if value is None else {**left, name: value}


def lying(fields: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every field of a message in turn replaced by every lie: a word, the field's name, and the whole."""
    yield "extra", "extra", {**fields, "extra": torch.zeros(1)}
    for path in paths(fields):
        value = at(fields, path)
        yield "missing", path, put(fields, path, None)
        for word, lie in lies(value, path):
            yield word, path, put(fields, path, lie)
        if "/" in path:
            yield "extra", path.rsplit("/", 1)[0] + "/extra", put(fields, path.rsplit("/", 1)[0] + "/extra", torch.zeros(1))
