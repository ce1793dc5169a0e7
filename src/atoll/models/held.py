"""Whether a call of a module changed what the module holds besides the values of its parameters and buffers."""

from __future__ import annotations

from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn

Held = dict[tuple[str, str], list[Any]]  # by part and attribute: the value, and what it holds in turn

FILLED = {"_parameters", "_buffers", "_modules"}  # their names count; their values are replaced while a module is called
LIBRARIES = ("torch.", "torch_geometric.")  # their layers keep nothing of a call that a later one reads, unless `cached`
TORCH = frozenset(nn.Module().__dict__) - FILLED  # attributes that every module has


def held(module: nn.Module) -> Held:
    """The attributes of a module and its parts, other than layers of torch and PyG, to be compared by `difference`."""
    return {
        (part, name): _contents(name, value)
        for part, owner in module.named_modules()
        if not type(owner).__module__.startswith(LIBRARIES)
        for name, value in owner.__dict__.items()
        if name not in TORCH
    }


def difference(before: Held, after: Held) -> str | None:
    """The first attribute that is new, gone or different; None without one.

    >>> module = type("Counter", (nn.Module,), {})()
    >>> module.calls, module.names = 0, ["a"]
    >>> before = held(module)
    >>> module.calls += 0
    >>> difference(before, held(module))
    >>> module.names.append("b")
    >>> difference(before, held(module))
    'names'
    """
    if before.keys() == after.keys() and all(map(is_, _flat(before), _flat(after))) and _size(before) == _size(after):
        return None
    for key in before | after:
        one, other = before.get(key, []), after.get(key, [])
        if len(one) != len(other) or not all(map(_same, one, other)):
            return ".".join(filter(None, key))
    return None


def _contents(name: str, value: Any) -> list[Any]:
    """The value itself, the elements of a container, the number of changes in place of a tensor."""
    if name in FILLED:
        return list(value)
    if isinstance(value, dict):
        return [value, *value, *value.values()]
    if isinstance(value, (list, set)):
        return [value, *value]
    return [value, value._version] if isinstance(value, Tensor) else [value]


def _flat(values: Held) -> chain[Any]:
    return chain.from_iterable(values.values())


def _size(values: Held) -> int:
    return sum(map(len, values.values()))


def _same(one: Any, other: Any) -> bool:
    """The same object, or equal numbers or strings."""
    return one is other or (type(one) is type(other) and isinstance(one, (int, float, str)) and one == other)
