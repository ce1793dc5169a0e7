"""Registries: things of one kind by name, imported on first use and open to other packages through entry points."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from atoll.errors import AtollError, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name.

    Atoll's own are listed as `module:attribute` and imported when first asked for. Another package adds one with an entry point
    in the group `atoll.<kind>s`; a program adds one with `register`.

    >>> colors = Registry[str]("color", {"newline": "os:linesep"})
    >>> colors.register("red", "#f00")
    '#f00'
    >>> colors.names()
    ['newline', 'red']
    """

    def __init__(self, kind: str, builtin: Mapping[str, str]) -> None:
        self.kind = kind
        self.group = f"atoll.{kind}s"
        self._builtin = dict(builtin)
        self._registered: dict[str, T] = {}

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._builtin, *self._plugins, *self._registered})

    def __contains__(self, name: object) -> bool:
        return name in self._registered or name in self._builtin or name in self._plugins

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def check(self, name: str) -> None:
        """Raise an error that says what there is unless the name is known."""
        if name not in self:
            raise AtollError(f"There is no {self.kind} {name!r}{suggest(str(name), self.names())}")

    def register(self, name: str, entry: T) -> T:
        """Add an entry under a name of its own; it lasts as long as the process."""
        if name in self:
            raise AtollError(f"There is already {_article(self.kind)} {name!r}; choose another name.")
        self._registered[name] = entry
        return entry

    def unregister(self, name: str) -> None:
        """Remove an entry that `register` added."""
        self._registered.pop(name, None)

    def find(self, name: str) -> T:
        """The entry of that name; an unknown name is an error that says what there is."""
        if name in self._registered:
            return self._registered[name]
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            found = importlib.import_module(module)
            entry: Any = getattr(found, attribute) if attribute else found
        elif name in self._plugins:
            entry = self._load(self._plugins[name])
        else:
            self.check(name)
            raise AssertionError(name)
        self._registered[name] = entry
        found_entry: T = entry
        return found_entry

    def _load(self, point: EntryPoint) -> Any:
        try:
            return point.load()
        except Exception as error:  # whatever the other package does
            package = point.dist.name if point.dist is not None else point.value
            raise AtollError(
                f"The {self.kind} {point.name!r} of the package {package} cannot be imported ({type(error).__name__}: {error})."
            ) from error


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
