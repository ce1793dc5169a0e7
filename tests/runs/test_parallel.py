"""Comparisons in several processes: the same numbers, the same folders, and one sentence where a run fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.errors import AtollError

SMALL: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 2, "seeds": 2}


def test_processes_give_the_same_numbers(tmp_path: Path) -> None:
    """Two processes with one thread each: metrics, rows and seeds of a comparison in this process with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        alone = atoll.compare("local,fedavg", **SMALL)
    finally:
        torch.set_num_threads(threads)
    together = atoll.compare("local,fedavg", jobs=2, out=tmp_path, **SMALL)
    for row, results in alone.results.items():
        assert [result.metrics for result in together.results[row]] == [result.metrics for result in results]
        assert [result.config.seed for result in together.results[row]] == [0, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"local-0", "local-1", "fedavg-0", "fedavg-1"}
    again = {path: path.read_bytes() for path in tmp_path.glob("*/result.json")}
    atoll.compare("local,fedavg", jobs=2, out=tmp_path, **SMALL)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/result.json")} == again


def test_a_failing_run_is_one_sentence() -> None:
    """The error of the process that failed, with the row and seed it belongs to."""
    with pytest.raises(AtollError, match=r"fedavg seed 0: .*not-there"):
        atoll.compare("fedavg", jobs=2, dataset="/not-there", partition="random", parties=2, seeds=1)


@pytest.mark.parametrize(("jobs", "sentence"), [(0, "--jobs is 0 but must be at least 1"), (300, "at most 256")])
def test_a_senseless_number_of_processes(jobs: int, sentence: str) -> None:
    """Refused before anything runs."""
    with pytest.raises(AtollError, match=sentence):
        atoll.compare("local", jobs=jobs, **SMALL)


def test_objects_do_not_go_to_other_processes() -> None:
    """A graph given as an object cannot be read by another process."""
    with pytest.raises(AtollError, match="jobs runs in other processes: give datasets"):
        atoll.compare("local", jobs=2, **(SMALL | {"dataset": atoll.load("csbm", nodes=60), "nodes": 60}))
