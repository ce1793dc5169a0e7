"""The façade: everything in it exists, is documented with an example that runs, and importing it is cheap."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys

import pytest

import atoll

DOCUMENTED = [name for name in atoll.__all__ if inspect.isclass(getattr(atoll, name)) or inspect.isfunction(getattr(atoll, name))]
OBVIOUS = ("Training", "BatchedTraining", "AtollError", "AtollWarning")  # each field has a sentence, or nothing is to be given


def test_dir_is_the_facade() -> None:
    """Nothing else shows, whatever else was imported; every name can be imported from it."""
    assert dir(atoll) == sorted([*atoll.__all__, "__version__"])
    assert all(getattr(atoll, name) is not None for name in atoll.__all__)
    with pytest.raises(AttributeError, match="module 'atoll' has no attribute 'runn'"):
        atoll.runn  # noqa: B018


def test_static_and_lazy_names_agree() -> None:
    """What type checkers see is what is imported on first use."""
    assert set(atoll.__all__) == set(atoll._HOME)


def test_importing_atoll_is_light() -> None:
    """Neither torch nor pandas before the first use of something."""
    code = "import sys, atoll; sys.exit(bool({'torch', 'numpy', 'pandas', 'scipy', 'typer'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", DOCUMENTED)
def test_everything_has_parameters_and_an_example_that_runs(name: str) -> None:
    """As the reference shows it."""
    thing = getattr(atoll, name)
    text = inspect.getdoc(thing) or ""
    assert "Examples:" in text
    if name not in OBVIOUS and not getattr(thing, "_is_protocol", False):
        assert "Parameters:" in text or "Attributes:" in text
    if inspect.isfunction(thing):
        given = [each for each in inspect.signature(thing).parameters.values() if each.kind != each.POSITIONAL_ONLY]
        assert [each.name for each in given if f"{each.name}:" not in text and f"{each.name}," not in text] == []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    tests = [test for test in doctest.DocTestFinder(recurse=False).find(thing, name, globs={}) if test.examples]
    assert tests
    for test in tests:
        assert runner.run(test).failed == 0
