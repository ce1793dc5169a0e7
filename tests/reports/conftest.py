"""Runs for the tests of reports."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from atoll.runs import runner
from small import small


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with local and fedavg, two seeds each."""
    home = tmp_path_factory.mktemp("runs")
    for algorithm in ("local", "fedavg"):
        for seed in (0, 1):
            runner.run(small(algorithm, seed=seed, rounds=4), out=home / f"{algorithm}-{seed}")
    (home / "comparison.json").write_text("[]")
    return home


@pytest.fixture
def going(runs: Path, tmp_path: Path) -> Path:
    """A run in progress: a configuration and a history whose last line is half written."""
    folder = tmp_path / "going"
    folder.mkdir()
    shutil.copy(runs / "fedavg-0" / "config.toml", folder)
    lines = (runs / "fedavg-0" / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    return folder
