"""The files of docs/extending.md as an installed package: what it announces by entry points is found by name and runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from test_docs import HOME, blocks, commands, shrunk

PAGE = HOME / "docs" / "extending.md"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's files and the metadata that installing them would write."""
    folder = tmp_path_factory.mktemp("package")
    for block in blocks(PAGE):
        if block.title:
            (folder / block.title).write_text(block.text)
    described = tomllib.loads((folder / "pyproject.toml").read_text())
    project = described["project"]
    modules = {path.stem for path in folder.glob("*.py")}
    assert set(described["tool"]["setuptools"]["py-modules"]) == modules, "setuptools guesses only where there is one"
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    return folder


@pytest.mark.parametrize("words", [words for block in blocks(PAGE) for words in commands(block)], ids=shlex.join)
def test_the_commands_run(words: list[str], package: Path, tmp_path: Path) -> None:
    """Every command of the page works where the package is installed, in a process of its own."""
    arguments = shrunk(words[1:])
    assert arguments is not None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package), str(HOME / "src")])}
    command = [sys.executable, "-c", "from atoll.cli.main import main; main()", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
