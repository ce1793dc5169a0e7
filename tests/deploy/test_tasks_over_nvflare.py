"""Every task over NVFlare, with the server and each site in a process of its own: the numbers of one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.deploy import launch
from atoll.runs import config, runner
from small_graphs import write

CSBM: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2}
NODES = {"rounds": 2, "hidden": 8, "nodes": 60}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "links": ("fedavg", CSBM, NODES | {"task": "link-prediction"}),
    "vertical links": ("glasu", CSBM | {"partition": "vertical"}, NODES | {"task": "link-prediction"}),
    "graphs": ("fedavg", {"dataset": "mutag", "parties": 2}, {"rounds": 2, "hidden": 8}),
    "labels": ("fedavg", CSBM, NODES | {"target": "labels"}),
    "values": ("fedavg", CSBM, NODES | {"target": "values"}),
}


@pytest.mark.parametrize("task", [task if task == "links" else pytest.param(task, marks=pytest.mark.full) for task in RUNS])
def test_the_numbers_are_those_of_one_process(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics of every round, and the bytes."""
    write(tmp_path / "data")
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "data"))
    algorithm, data, values = RUNS[task]
    chosen = config.resolve(algorithm, **data, seed=1, values=values | {"patience": 0})
    here = runner.rounds(runner.prepare(chosen))
    there = launch.launch(replace(chosen, engine="nvflare"), out=tmp_path / "run")
    assert there.bytes == here.bytes
    for row, same in zip(there.rows, here.rows, strict=True):
        assert row.keys() == same.keys()
        for name in (name for name in row if "seconds" not in name):
            values_of = [each if isinstance(each, list) else [each] for each in (row[name], same[name])]
            for value, expected in zip(*values_of, strict=True):
                assert value == (None if expected is None else pytest.approx(expected, abs=1e-6)), name
