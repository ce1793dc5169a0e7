"""The state of a module: where its parameters are, and whether a call changed anything besides their values and the buffers'."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import is_
from typing import Any

from torch import Tensor, nn

ModuleState = dict[tuple[str, str], list[Any]]  # by part and attribute: the value, and what it contains

FILLED = {"_parameters", "_buffers", "_modules"}  # their names count; their values are replaced while a module is called
LIBRARIES = ("torch.", "torch_geometric.")  # their layers keep nothing of a call that a later one reads, unless `cached`
TORCH = frozenset(nn.Module().__dict__) - FILLED  # attributes that every module has


def module_state(module: nn.Module) -> ModuleState:
    """The attributes of a module and its parts, other than layers of torch and PyG, to be compared by `difference`."""
    return {
        (part, name): _contents(name, value)
        for part, owner in module.named_modules()
        if not type(owner).__module__.startswith(LIBRARIES)
        for name, value in owner.__dict__.items()
        if name not in TORCH
    }


def difference(before: ModuleState, after: ModuleState) -> str | None:
    """The first attribute that is new, gone or different; None without one.

    >>> module = type("Counter", (nn.Module,), {})()
    >>> module.calls, module.names = 0, ["a"]
    >>> before = module_state(module)
    >>> module.calls += 0
    >>> difference(before, module_state(module))
    >>> module.names.append("b")
    >>> difference(before, module_state(module))
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


def _flat(values: ModuleState) -> chain[Any]:
    return chain.from_iterable(values.values())


def _size(values: ModuleState) -> int:
    return sum(map(len, values.values()))


def _same(one: Any, other: Any) -> bool:
    """The same object, or equal numbers or strings."""
    return one is other or (type(one) is type(other) and isinstance(one, (int, float, str)) and one == other)


def replace_parameters(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Put other values in the place of a module's parameters; those that it uses in several places stay the same there."""
    new: dict[int, nn.Parameter] = {}
    for name, old in list(module.named_parameters(remove_duplicate=False)):
        if id(old) not in new:
            new[id(old)] = nn.Parameter(values[name])
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._parameters[last] = new[id(old)]


def places_of(module: nn.Module) -> dict[str, list[str]]:
    """Every place of each parameter and buffer, once: one in two parts has two, one in a part with two names has one.

    `functional_call` would put the values into a part with two names twice, and leave them there.
    """
    names: dict[int, str] = {}
    names_of: dict[str, list[str]] = {}
    for path, part in module.named_modules():  # each part by its first name
        for last, value in (*part._parameters.items(), *part._buffers.items()):
            if value is not None:
                name = f"{path}.{last}" if path else last
                names_of.setdefault(names.setdefault(id(value), name), []).append(name)
    return names_of
