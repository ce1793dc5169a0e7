"""Comparisons in several processes: the same numbers, the same folders, and one sentence where a run fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.child import REPORT_PREFIX, Child
from atoll.errors import AtollError
from atoll.runs import parallel, worker
from atoll.runs.config import resolve
from atoll.runs.trial import Trial

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


def test_every_kind_of_run_gives_the_same_bits(tmp_path: Path) -> None:
    """Models and histories too, not only metrics, whichever process ran what before."""
    arguments = SMALL | {"seeds": 1, "dropout": 0.5}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        atoll.compare("fedavg,fedspray,gcfl,local", out=tmp_path / "here", **arguments)
    finally:
        torch.set_num_threads(threads)
    atoll.compare("fedavg,fedspray,gcfl,local", out=tmp_path / "there", jobs=2, **arguments)
    for one in sorted((tmp_path / "here").iterdir()):
        here, there = atoll.read(one), atoll.read(tmp_path / "there" / one.name)
        assert [_timeless(row) for row in here.rows] == [_timeless(row) for row in there.rows]
        files = [next((folder / "model").glob("*.safetensors")).read_bytes() for folder in (one, tmp_path / "there" / one.name)]
        assert files[0] == files[1]


def _timeless(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_rounds_are_reported_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last for certain, however fast they are."""
    told: list[int] = []
    monkeypatch.setattr(worker, "report", lambda row, rounds: told.append(row["round"]))
    monkeypatch.setattr(worker, "SECONDS_BETWEEN_REPORTS", 1e9)
    rounds = worker.Rounds()
    for number in range(1, 6):
        rounds({"round": number}, 5)
    rounds.finish()
    rounds.finish()
    assert told == [1, 5]


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


def test_workers_are_forked_from_a_process_with_one_thread() -> None:
    """Fork keeps only the calling thread: a lock that another one holds would never be released."""
    script = "from atoll.runs import worker; worker.preload(); print(worker.can_fork())"
    environment = os.environ | parallel.ENVIRONMENT
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(sys.platform == "linux")
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(worker.can_fork).result() is False


def test_a_process_with_threads_starts_its_workers_afresh(tmp_path: Path) -> None:
    """They answer as forked ones do, and their end is reported."""
    ours, theirs = socket.socketpair()
    script = f"""
import threading
from atoll.runs import worker
worker.preload = lambda: None
threading.Thread(target=threading.Event().wait, daemon=True).start()
worker.main([{theirs.fileno()}])
"""
    ended: list[dict[str, Any]] = []
    child = Child([sys.executable, "-c", script], tmp_path / "log", ended.append, parallel.ENVIRONMENT, [theirs.fileno()])
    theirs.close()
    with ours, ours.makefile("rw") as lines:
        lines.write(json.dumps({"row": "r", "config": {"algorithm": "nothing"}, "folder": str(tmp_path / "run")}) + "\n")
        lines.flush()
        assert "nothing" in json.loads(lines.readline().removeprefix(REPORT_PREFIX))["error"]
        ours.shutdown(socket.SHUT_WR)
        child.pipes.reader.join()
    assert ended == [{"worker": 0, "exit": 0}, {"exit": 0}], (tmp_path / "log").read_text()


def test_a_worker_that_dies_is_named_and_all_end(tmp_path: Path) -> None:
    """With its trial and the signal; neither the other worker nor the process they come from stays."""
    file = tmp_path / "deadly.py"
    file.write_text("import os\nfrom atoll.algorithms.local import *\ndef start(*_):\n    os.kill(os.getpid(), 9)\n")
    chosen = resolve(str(file), dataset="csbm", partition="random", parties=2, values={"nodes": 60, "rounds": 1})
    with pytest.raises(RuntimeError, match=r"deadly seed 0: its process ended \(-9\)"), parallel.Pool(2) as pool:
        list(pool.run([(Trial("deadly", chosen), tmp_path / "run")]))
    assert pool.parent.process.poll() is not None
    assert not any(each.reader.is_alive() for each in pool.workers)  # its socket has an end, so the process has, too
