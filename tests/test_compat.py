"""Algorithms written for atoll 0.1 run unchanged: their import paths work, and say where things are now."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll import compat
from atoll.errors import AtollWarning

HOME = Path(__file__).parents[1]
OLD_FILE = HOME / "tests" / "support" / "fedmedian_0_1.txt"  # the example of own-algorithm.md in 0.1, as it was


@pytest.fixture(autouse=True)
def unimported() -> Iterator[None]:
    """Every test imports the old modules for the first time, and leaves none behind."""
    for attempt in range(2):
        for name in compat.MODULES:
            sys.modules.pop(name, None)
            vars(atoll).pop(name.rpartition(".")[2], None)
        if not attempt:
            yield


def test_the_example_of_0_1_runs_unchanged(tmp_path: Path) -> None:
    """With the numbers of the same algorithm as the page has it today, and one warning for each thing that moved."""
    path = tmp_path / "fedmedian.py"
    shutil.copy(OLD_FILE, path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old = atoll.run(str(path), dataset="csbm", nodes=200, rounds=2, step_size=0.9)
    text = [str(warning.message) for warning in caught if issubclass(warning.category, AtollWarning)]
    assert [sentence for sentence in text if sentence.startswith("atoll.")][:7] == [
        "atoll.metrics is atoll.federation.metrics now; write self.task.counts in place of metrics.count.",
        "atoll.optim is atoll.models.optim now.",
        "atoll.cohort is atoll.federation.cohort now; Cohort, verb, MODEL and first_model are in atoll itself.",
        "atoll.declarations is atoll.federation.declarations now; COUNTS and WEIGHT are in atoll itself.",
        "atoll.losses is atoll.models.losses now; write self.task.loss in place of cross_entropy.",
        "atoll.models.load is atoll.models.parameters.set_parameters now.",
        "atoll.models.read is atoll.models.parameters.get_parameters now.",
    ]
    assert {warning.filename for warning in caught if str(warning.message).startswith("atoll.optim")} == {str(path)}
    page = (HOME / "docs" / "own-algorithm.md").read_text()
    path = tmp_path / "today" / "fedmedian.py"
    path.parent.mkdir()
    path.write_text(page.split('```python title="fedmedian.py"\n')[1].split("```\n")[0])
    today = atoll.run(str(path), dataset="csbm", nodes=200, rounds=2, step_size=0.9).metrics
    assert today.pop("train_loss") > 0  # its own counts have none
    assert old.metrics == today


@pytest.mark.parametrize("name", compat.MODULES)
def test_an_old_module_has_the_names_it_had(name: str) -> None:
    """One warning when it is imported, none when its names are used; a name that is gone says where to look."""
    moved = compat.MODULES[name]
    with pytest.warns(AtollWarning, match=rf"^{name} is {moved.module} now") as caught:
        module: Any = importlib.import_module(name)
    for old in moved.renamed:
        assert getattr(module, old) is not None
    today = importlib.import_module(moved.module)
    for public in {one for one in dir(today) if one[0] != "_"} - moved.renamed.keys():
        assert getattr(module, public) is getattr(today, public)
    assert len(caught) == 1
    with pytest.raises(AttributeError, match=rf"'{name}', which is {moved.module} now, has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize(("package", "name"), [(package, name) for package, names in compat.NAMES.items() for name in names])
def test_names_of_modules_that_are_packages_now(package: str, name: str) -> None:
    """Each with a warning that names the new place, which exists."""
    place = compat.NAMES[package][name]
    with pytest.warns(AtollWarning, match=rf"^{package}\.{name} is {place.replace(':', '.')} now\.$"):
        found = getattr(importlib.import_module(package), name)
    module, _, attribute = place.partition(":")
    assert found is getattr(importlib.import_module(module), attribute)
    with pytest.raises(AttributeError, match=rf"module '{package}' has no attribute 'nothing'"):
        getattr(importlib.import_module(package), "nothing")  # noqa: B009


def test_other_modules_are_not_found() -> None:
    """Whatever 0.1 did not promise is an ordinary error; the finder is there once."""
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("atoll.nowhere")
    compat.install()
    assert sum(isinstance(finder, compat.OldModules) for finder in sys.meta_path) == 1


def test_nothing_old_is_imported_by_atoll_itself() -> None:
    """Importing atoll imports neither torch nor an old module."""
    code = "import sys, atoll, atoll.compat; print([n for n in ('torch', *atoll.compat.MODULES) if n in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
