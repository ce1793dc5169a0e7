"""The data tests' cache is their own; tests of real graphs need ATOLL_DATA."""

import os
from pathlib import Path

import hypothesis
import pytest

from atoll.graphs.graph import Graph
from graphs import make_graph

hypothesis.settings.register_profile("shared", deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("shared")


@pytest.fixture(scope="session")
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the whole session, so that each real graph is read from its raw files once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(session_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(session_cache))


@pytest.fixture
def real() -> Path:
    """The folder of the real graphs."""
    if not os.environ.get("ATOLL_DATA"):
        pytest.skip("needs ATOLL_DATA, the folder of the public datasets' raw files")
    return Path(os.environ["ATOLL_DATA"])


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No raw files anywhere and an empty cache."""
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def graph() -> Graph:
    """A small whole graph with unlabeled nodes, an isolated node and a split."""
    return make_graph(60, 150, seed=1)
