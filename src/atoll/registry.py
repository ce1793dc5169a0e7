"""Registries: things of one kind by name, imported on first use and open to other packages through entry points."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, TypeVar

from atoll.errors import AtollError, AtollWarning, suggest

T = TypeVar("T")


class Registry(Generic[T]):
    """Things of one kind by name.

    Atoll's own are listed as `module:attribute` (or `module`) and imported when first asked for, or as a function that gives the
    entry. Another package adds one with an entry point in the group `atoll.<kind>s`; a program adds one with `register`. `check`
    raises an AtollError for an entry of the wrong kind; it is called with every entry that is not atoll's own, and with words
    for the error that say where it came from.

    >>> colors = Registry[str]("color", {"newline": "os:linesep"})
    >>> colors.register("red", "#f00")
    '#f00'
    >>> colors.names()
    ['newline', 'red']
    """

    def __init__(
        self, kind: str, builtin: Mapping[str, str | Callable[[], T]], check: Callable[[Any, str], None] | None = None
    ) -> None:
        self.kind = kind
        self.group = f"atoll.{kind}s"
        self._builtin = dict(builtin)
        self._check_entry = check
        self._registered: dict[str, T] = {}
        self._imported: dict[str, T] = {}

    @cached_property
    def _plugins(self) -> dict[str, list[EntryPoint]]:
        """The entry points of other packages; a name of atoll's own stays atoll's own."""
        plugins: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group):
            if point.name in self._builtin:
                warnings.warn(
                    f"The {self.kind} {point.name!r} of the package {_package(point)} is ignored: atoll has one of that name.",
                    AtollWarning,
                    stacklevel=4,
                )
            else:
                plugins.setdefault(point.name, []).append(point)
        return plugins

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted({*self._builtin, *self._plugins, *self._registered})

    def __contains__(self, name: object) -> bool:
        return name in self._registered or name in self._builtin or name in self._plugins

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def check(self, name: str) -> None:
        """Raise an error that lists the names, unless the name is known."""
        if name not in self:
            raise AtollError(f"There is no {self.kind} {name!r}{suggest(str(name), self.names())}")

    def register(self, name: str, entry: T) -> T:
        """Add an entry under a new name; it lasts as long as the process."""
        if name in self:
            raise AtollError(f"There is already {_article(self.kind)} {name!r}; choose another name.")
        if self._check_entry is not None:
            self._check_entry(entry, f"The {self.kind} {name!r}")
        self._registered[name] = entry
        return entry

    def unregister(self, name: str) -> None:
        """Remove an entry that `register` added."""
        self._registered.pop(name, None)

    def find(self, name: str) -> T:
        """The entry of that name; an unknown name is an error that lists the names."""
        if name in self._registered:
            return self._registered[name]
        if name not in self._imported:
            self.check(name)
            self._imported[name] = self._import(name)
        return self._imported[name]

    def _import(self, name: str) -> Any:
        if name not in self._builtin:
            return self._load(self._plugins[name])
        source = self._builtin[name]
        if not isinstance(source, str):
            return source()
        module, _, attribute = source.partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, attribute) if attribute else imported

    def _load(self, points: list[EntryPoint]) -> Any:
        """The entry of another package."""
        point = points[0]
        if len(points) > 1:
            packages = " and ".join(sorted(_package(point) for point in points))
            raise AtollError(f"The {self.kind} {point.name!r} is in the packages {packages}; uninstall all but one of them.")
        where = f"The {self.kind} {point.name!r} of the package {_package(point)}"
        try:
            entry = point.load()
        except Exception as error:  # another package may raise anything
            raise AtollError(f"{where} cannot be imported ({type(error).__name__}: {error}).") from error
        if self._check_entry is not None:
            self._check_entry(entry, where)
        return entry


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def _article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
