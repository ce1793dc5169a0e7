"""What the pages for contributors say of the code is true: rooms, layers, modules and paths are those of the source tree."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import atoll

HOME = Path(__file__).parents[1]
PAGE = (HOME / "docs" / "architecture.md").read_text()
PYPROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())
SOURCE = HOME / "src" / "atoll"


def layers() -> list[list[str]]:
    """The rooms of each layer of the import contract, from the top."""
    contract = next(each for each in PYPROJECT["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    return [re.split(r"\s*[|:]\s*", layer) for layer in contract["layers"]]


def test_the_rooms_of_the_page_are_those_of_the_contract() -> None:
    """The table has one row per layer, in the contract's order, with the same rooms."""
    table = PAGE.split("| room | rule |\n|---|---|\n")[1].split("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()]
    assert rows == layers()


def test_the_rooms_of_the_contract_are_those_on_disk() -> None:
    """Every package and module of atoll stands in one layer."""
    on_disk = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    named = [room for layer in layers() for room in layer]
    assert sorted(named) == sorted(on_disk - {"__init__", "__main__"})


def test_the_picture_shows_every_room() -> None:
    """rooms.svg is drawn by hand; it must not fall behind."""
    picture = (HOME / "docs" / "img" / "rooms.svg").read_text()
    shown = set(re.findall(r"[a-z]+", " ".join(re.findall(r">([^<>]+)<", picture))))
    assert {room for layer in layers() for room in layer} <= shown


def resolve(name: str) -> Any:
    """The module or attribute behind a dotted name within atoll."""
    found: Any = atoll
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                raise
            found = importlib.import_module(f"{found.__name__}.{part}")
    return found


def test_every_name_on_the_page_exists() -> None:
    """`room.module.Name` in the text can be imported."""
    pytest.importorskip("nvflare", reason='nvflare is not installed: pip install "atoll[deploy]"')
    rooms = {room for layer in layers() for room in layer}
    dotted = [name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", PAGE) if name.split(".")[0] in rooms]
    assert len(dotted) > 20
    for name in dotted:
        resolve(name)


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", "docs/extending.md", "docs/policy.md"])
def test_every_path_on_the_page_exists(page: str) -> None:
    """Files and folders of the repository that a page names, and its relative links, are there."""
    text = (HOME / page).read_text()
    paths = re.findall(r"`((?:src|tests|docs|benchmarks|examples|\.ci|\.github)/[\w./-]*)`", text)
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link and link[0] != "#"]
    for path in paths:
        assert (HOME / path).exists(), path
    generated = ("reference/index.md", "algorithms/index.md", "results/index.md")  # made by docs/hooks.py
    for link in links:
        assert link in generated or ((HOME / page).parent / link).exists(), link


def test_the_version_is_the_same_everywhere() -> None:
    """The citation names the version of the package."""
    assert f"\nversion: {atoll.__version__}\n" in (HOME / "CITATION.cff").read_text()


def test_hooks_and_lint_are_the_same_checks() -> None:
    """What `make lint` runs, the hooks before a commit run too, with the tools of the virtual environment."""
    recipe = re.search(r"^lint:.*\n((?:\t.+\n)+)", (HOME / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    tools = set(re.findall(r"\$\(BIN\)/(\S+)", recipe[1]))
    assert tools == set(re.findall(r"entry: \.venv/bin/(\S+)", (HOME / ".pre-commit-config.yaml").read_text()))


def test_class_names_are_unique() -> None:
    """But for what every algorithm has."""
    where: dict[str, list[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: paths for name, paths in where.items() if len(paths) > 1 and name not in ("Cohort", "Settings")} == {}


WHOLE = {  # tests of more than one module, and what of
    "algorithms/test_on_graphs.py": "all methods on small graphs",
    "cli/test_shown.py": "other people's text in terminal, pages, tables and logs",
    "deploy/test_hostile_peer.py": "a whole deployment, attacked",
    "deploy/test_names.py": "the parties' names, from kits to reports",
    "deploy/test_tasks_over_nvflare.py": "every task, deployed",
    "privacy/test_leaks.py": "what the threat model says can be read",
    "runs/test_earlier_versions.py": "folders of earlier versions",
    "runs/test_injected_noise.py": "training on damaged graphs, for every algorithm",
    "runs/test_item_exports.py": "exports of models of graphs and links, in all formats",
    "runs/test_user_models.py": "runs with a user's own modules",
    "tasks/test_traps.py": "the traps of all tasks, over all algorithms",
    "test_architecture.py": "the source tree",
    "test_batched_promises.py": "the promises with mini-batches",
    "test_docs.py": "README and docs",
    "test_extending.py": "docs/extending.md",
    "test_facade.py": "atoll itself",
    "test_peers.py": "benchmarks/peers.py",
    "test_promises.py": "docs/promises.md",
    "test_threat_model.py": "docs/threat-model.md",
    "test_tutorial.py": "docs/tutorial.md",
}


def test_long_modules_are_listed_with_their_reason() -> None:
    """A module of more than 300 lines stands in the page's table, and nothing else does."""
    table = PAGE.split("| module | why it is longer |\n|---|---|\n")[1].split("\n\n")[0]
    listed = {line.split("`")[1] for line in table.splitlines()}
    long = [path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if len(path.read_text().splitlines()) > 300]
    assert {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in long} == listed


def test_tests_mirror_the_source() -> None:
    """`tests/ROOM/test_MODULE.py` or `test_MODULE_ASPECT.py` is about a module of that room, `test_ROOM.py` about all of it."""
    tests, strays = HOME / "tests", []
    for path in sorted(tests.rglob("test_*.py")):
        folder = path.relative_to(tests).parent
        words = path.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        room = SOURCE / folder
        modules = {room.name, *(each.stem for each in room.iterdir() if each.is_dir() or each.suffix == ".py")}
        if not modules.intersection(names):
            strays.append(path.relative_to(tests).as_posix())
    assert strays == sorted(WHOLE)
