"""Another package with an entry point, installed for one test: a module and its metadata in a folder of `sys.path`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atoll.registry import Registry


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, package: str, group: str, entries: Mapping[str, str], source: str
) -> None:
    """Install the module `package` with that source, whose metadata have entry points of one group."""
    site = folder / package
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (site / f"{package}.py").write_text(source)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, package, raising=False)


def rescan(registry: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a registry of atoll's see the installed packages until the end of the test."""
    monkeypatch.setattr(registry, "_imported", {})
    monkeypatch.setitem(registry.__dict__, "_plugins", None)
    del registry.__dict__["_plugins"]
    monkeypatch.setitem(registry.__dict__, "_plugins", registry._plugins)
