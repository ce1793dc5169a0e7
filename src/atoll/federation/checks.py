"""Checks of single values against a declaration: names, types, shapes and ranges. Each says what is wrong, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from atoll.deferred import Deferred
from atoll.errors import short
from atoll.federation.declarations import Free, Leaf, Scalar


def flatten(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its full name; lists stay whole."""
    for name, value in fields.items():
        if not isinstance(value, Tensor) and isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}/")
        else:
            yield prefix + name, value


def misfit(leaves: Mapping[str, Leaf], values: Mapping[str, Any], nodes: int, parties: int | None) -> str:
    """What is wrong with the names, types or shapes of some values; `parties` is None where they have no party axis."""
    if values.keys() != leaves.keys():
        for name in sorted(values.keys() - leaves.keys()):
            return f"field {short(name)!r} is not one of its fields ({short(', '.join(leaves) or 'it has none')})"
        groups = {name.partition("/")[0] for name in values}
        for name, leaf in leaves.items():
            if name not in values and (not leaf.optional or leaf.group in groups):
                return f"field {name!r} is missing"
    sizes: dict[tuple[str, int], int] = {}
    for name, value in values.items():
        leaf = leaves[name]
        if leaf.ragged:
            if not isinstance(value, list) or len(value) != parties:
                return f"field {name!r} is not a list of one tensor per party"
            reasons = (_form(rows, leaf, leaf.shape, nodes, index, sizes) for index, rows in enumerate(value))
            reason = next(filter(None, reasons), "")
        else:
            shape = leaf.shape if parties is None else (parties, *leaf.shape)
            reason = _form(value, leaf, shape, nodes, -1, sizes)
        if reason:
            return f"field {name!r} {reason}"
    return ""


def _form(
    value: Any, leaf: Leaf, shape: tuple[int | Free, ...], nodes: int, index: int, sizes: dict[tuple[str, int], int]
) -> str:
    """What is wrong with the type or shape of one tensor."""
    if not isinstance(value, Tensor | Deferred):
        return f"is {short(type(value).__name__)}, not a tensor"
    if value.dtype != leaf.dtype:
        return f"has the type {type_name(value.dtype)}, not {type_name(leaf.dtype)}"
    actual = tuple(value.shape)
    if actual == shape:
        return ""
    fits = len(actual) == len(shape)
    for size, part in zip(actual, shape, strict=False):
        if isinstance(part, Free):
            fits = fits and size <= nodes and sizes.setdefault((part.name, index), size) == size
        else:
            fits = fits and size == part
    named = tuple(f"{part.name} ≤ {nodes}" if isinstance(part, Free) else part for part in shape)
    return "" if fits else f"has the shape {short(actual)}, not ({', '.join(map(str, named))})"


def rows_outside(value: Tensor | Deferred, leaf: Leaf, weights: Tensor | None) -> list[int]:
    """Rows with a number outside the leaf's range; one pass where there is none."""
    if isinstance(value, Deferred):  # numbers of this process that are not written out
        return [] if leaf.low is None or bool(torch.isfinite(value.probe())) else list(range(len(value)))
    if leaf.low is None or value.numel() == 0 or value.dtype == torch.bool:
        return []
    value = value.detach()
    lowest, highest = value.amin().item(), value.amax().item()  # faster than aminmax
    unit = 1 if weights is None else max(1, int(weights.min()))
    if _ends(leaf.low, max) * unit <= lowest and highest <= _ends(leaf.high, min) * unit:
        return []
    low, high = (
        torch.as_tensor(bound, dtype=torch.float64 if value.is_floating_point() else None) for bound in (leaf.low, leaf.high)
    )
    if weights is not None:
        unit_of = weights.clamp(min=1).double().view(-1, *[1] * (value.ndim - 1))
        low, high = low * unit_of, high * unit_of
    fits = (value >= low) & (value <= high)  # never where it is not a number
    return (~fits.reshape(len(value), -1).all(1)).nonzero()[:, 0].tolist()


def _ends(bound: Any, end: Callable[[Any], Any]) -> Any:
    """A bound, or the narrowest of several, one per column."""
    return end(bound) if isinstance(bound, tuple) else bound


def out_of_range(name: str, value: Tensor, leaf: Leaf, weighted: bool = False, *, tell: bool = True) -> str:
    """Why a value is refused whose range is known to be wrong; without `tell`, without its numbers."""
    if not tell:
        return f"field {name!r} is not finite, or beyond its bounds"
    if value.is_floating_point() and not bool(torch.isfinite(value).all()):
        return f"field {name!r} is not finite"
    value = value.detach().double()
    worst = float(value.flatten()[value.abs().argmax()])
    low, high = (f"{min(bound) if isinstance(bound, tuple) else bound:g}" for bound in (leaf.low, leaf.high))
    unit = f" for each of its {leaf.times}" if weighted else ""
    return f"field {name!r} goes to {worst:g}, beyond {low} to {high}{unit}"


def wrong_scalar(name: str, value: Any, scalar: Scalar) -> str:
    """What is wrong with a scalar argument."""
    if scalar.low is None:
        return "" if isinstance(value, bool) else f"field {name!r} is not true or false"
    if type(value) is not int or not scalar.low <= value <= scalar.high:
        return f"field {name!r} is not a whole number from {scalar.low} to {scalar.high}"
    return ""


def type_name(dtype: torch.dtype) -> str:
    """`float32`, not `torch.float32`."""
    return str(dtype).removeprefix("torch.")
