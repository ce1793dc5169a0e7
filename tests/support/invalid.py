"""Invalid messages for the tests of the bounds: one field of a message or reply replaced by an invalid value of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Fields that cannot be negative; all others may have any sign.
COUNTS = {"n", "nodes", "ids", "links", "validation", "test", "confusion", "training", "votes", "share", "held", "predictions"}
OTHER_TYPE = {torch.float32: torch.float64, torch.int64: torch.float32, torch.int32: torch.int64}


def invalid_values(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Invalid values of a field, each with a word for it; `value` is a valid one."""
    yield "type", 3 if not isinstance(value, int) else "three"
    if isinstance(value, list):
        for word, wrong in invalid_values(value[0], name):
            yield f"list {word}", [wrong, *value[1:]]
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
    """Invalid numbers in a tensor of the right shape and type."""
    if value.dtype == torch.bool or value.numel() == 0 or value.dtype == torch.uint8:
        return
    if value.is_floating_point():
        yield "nan", replaced(value, float("nan"))
        yield "infinite", replaced(value, float("inf"))
        yield "huge", replaced(value, 1e35)
    else:
        yield "huge", replaced(value, torch.iinfo(value.dtype).max)
    if name.split("/")[0] in COUNTS:
        yield "negative", replaced(value, -5)


def replaced(value: Tensor, number: float) -> Tensor:
    """The tensor with its last number replaced."""
    changed = value.detach().clone()
    changed.view(-1)[-1] = number
    return changed


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
    others = {key: other for key, other in fields.items() if key != name}
    return others if value is None else {**others, name: value}


def invalid_messages(fields: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every field of a message replaced in turn by every invalid value: a word, the field's name, and the message."""
    yield "extra", "extra", {**fields, "extra": torch.zeros(1)}
    for path in paths(fields):
        value = at(fields, path)
        yield "missing", path, put(fields, path, None)
        for word, wrong in invalid_values(value, path):
            yield word, path, put(fields, path, wrong)
        if "/" in path:
            yield "extra", path.rsplit("/", 1)[0] + "/extra", put(fields, path.rsplit("/", 1)[0] + "/extra", torch.zeros(1))
