"""`Registry`: atoll's own entries, registered ones, those of other packages, and what is said of names that are wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.errors import AtollError, AtollWarning
from atoll.registry import Registry
from plugins import install


def colors(check: Callable[[Any, str], None] | None = None) -> Registry[str]:
    """A registry of one attribute, one module and one function."""
    return Registry("color", {"separator": "os:sep", "module": "colorsys", "blue": lambda: "#00f"}, check)


def only_text(entry: object, where: str) -> None:
    """A check for the tests."""
    if not isinstance(entry, str):
        raise AtollError(f"{where} is not text.")


def test_own_entries_are_imported_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attribute, a module, or what a function returns, each made once."""
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    registry = colors()
    assert registry.names() == ["blue", "module", "separator"] == list(registry)
    assert "colorsys" not in sys.modules
    assert registry.find("separator") == "/"
    assert registry.find("module") is sys.modules["colorsys"]
    assert registry.find("blue") is registry.find("blue")


def test_registered_entries_come_and_go() -> None:
    """`register` adds a name, `unregister` removes it; atoll's own stay."""
    registry = colors()
    assert registry.register("red", "#f00") == "#f00"
    assert "red" in registry
    assert registry.find("red") == "#f00"
    registry.unregister("red")
    registry.unregister("blue")
    assert registry.names() == ["blue", "module", "separator"]
    assert registry.find("blue") == "#00f"


@pytest.mark.parametrize("name", ["red", "blue"])
def test_a_name_is_given_once(name: str) -> None:
    """Neither a registered nor a built-in entry is replaced."""
    registry = colors()
    registry.register("red", "#f00")
    with pytest.raises(AtollError, match=f"There is already a color '{name}'; choose another name"):
        registry.register(name, "#fff")
    assert registry.find(name) != "#fff"


def test_an_unknown_name_gets_a_suggestion() -> None:
    """The nearest name, or all of them."""
    registry = colors()
    with pytest.raises(AtollError, match=r"There is no color 'seperator'; did you mean 'separator'\?"):
        registry.find("seperator")
    with pytest.raises(AtollError, match="There is no color 'x'; there is blue, module, separator"):
        registry.check("x")


def test_an_entry_point_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed without being imported, and imported when asked for."""
    install(tmp_path, monkeypatch, "paint", "atoll.colors", {"red": "paint:RED"}, "RED = '#f00'\n")
    registry = colors()
    assert registry.names() == ["blue", "module", "red", "separator"]
    assert "paint" not in sys.modules
    assert registry.find("red") == "#f00"
    with pytest.raises(AtollError, match="There is already a color 'red'"):
        registry.register("red", "#fff")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module_of_ours\n", "ModuleNotFoundError: No module named 'no_such_module_of_ours'"),
        ("GREEN = '#0f0'\n", "AttributeError: .*'RED'"),
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_broken_package_is_named(source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only asking for its entry fails; the others are as they were."""
    install(tmp_path, monkeypatch, "paint", "atoll.colors", {"red": "paint:RED"}, source)
    registry = colors()
    with pytest.raises(AtollError, match=rf"The color 'red' of the package paint cannot be imported \({reason}\)"):
        registry.find("red")
    assert registry.find("blue") == "#00f"


def test_two_packages_with_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is taken; a name of atoll's own stays atoll's own, with a warning."""
    install(tmp_path, monkeypatch, "paint", "atoll.colors", {"red": "paint:RED"}, "RED = '#f00'\n")
    install(tmp_path, monkeypatch, "varnish", "atoll.colors", {"red": "varnish:RED", "blue": "varnish:RED"}, "RED = '#e00'\n")
    registry = colors()
    with pytest.warns(AtollWarning, match="The color 'blue' of the package varnish is ignored: atoll has one of that name"):
        names = registry.names()
    assert names == ["blue", "module", "red", "separator"]
    assert registry.find("blue") == "#00f"
    with pytest.raises(AtollError, match="The color 'red' is in the packages paint and varnish; uninstall all but one of them"):
        registry.find("red")


def test_entries_of_the_wrong_kind_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered, or of another package."""
    install(tmp_path, monkeypatch, "paint", "atoll.colors", {"red": "paint:RED"}, "RED = 0xf00\n")
    registry: Registry[Any] = colors(only_text)
    with pytest.raises(AtollError, match="The color 'green' is not text"):
        registry.register("green", 0x0F0)
    assert "green" not in registry
    with pytest.raises(AtollError, match="The color 'red' of the package paint is not text"):
        registry.find("red")
