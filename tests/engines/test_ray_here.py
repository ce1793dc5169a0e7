"""A run over two actors on this machine, as anybody would begin with Ray; more is in test_ray.py, which takes minutes."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'atoll[ray]'")

from atoll.engines import ray as module
from atoll.engines.hosted import Lost
from atoll.engines.ray import RayHosts
from atoll.engines.ray_cluster import PREFIX, join
from atoll.errors import AtollError, AtollWarning
from atoll.runs import runner
from hosts import Divided, registered
from small import Recorded, on_shards, small
from test_promises import assert_same, numbers

pytestmark = pytest.mark.early


def test_two_actors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From shards, one of the actors is killed in between: the bits and bytes of two cohorts in one process; nothing is left."""
    made: list[RayHosts] = []

    class Seen(RayHosts):
        """Hosts that the test can find."""

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    def kill(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            pid = made[0].ray.get(made[0].actors[1].__ray_call__.remote(lambda actor: os.getpid()))
            assert pid != os.getpid()
            os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(module, "RayHosts", Seen)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    folders: list[Path] = []
    create = tempfile.mkdtemp

    def noted(*args: Any, **arguments: Any) -> str:
        folders.append(Path(create(*args, **arguments)))
        return str(folders[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    config = on_shards(small("fedspray"), tmp_path / "shards")
    config = replace(config, engine="ray", run=replace(config.run, sites=2, cpus_per_site=0.5, on_missing="stop"))
    recorded: list[Recorded] = []

    def record(engine: Any) -> Recorded:
        recorded.append(Recorded(engine))
        return recorded[0]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with runner.prepare(config, engine=record) as experiment:
            there = runner.rounds(experiment, None, kill)
    told = [str(one.message) for one in caught if issubclass(one.category, AtollWarning)]
    assert [text[:31] for text in told] == ["Site 1 was lost in round 3 and "]
    for round, rows in experiment.federation.ledger.rounds.items():
        for (verb, training), table in rows.items():
            for party, row in enumerate(table):
                assert row[:4].tolist() == recorded[0].bytes[round, verb, training, party]
    with registered("divided", Divided()):
        here = runner.run(replace(config, engine="divided"))
    assert_same(here, there, 0.0)
    assert numbers(here) == numbers(there)
    files_of_ray = [folder for folder in folders if folder.name.startswith(PREFIX)]
    assert files_of_ray
    assert not any(folder.exists() for folder in files_of_ray)


def fake_hosts(killed: list[int], limit: float = 0.0) -> RayHosts:
    """Hosts over two actors, of which the second never answers."""
    fake = SimpleNamespace(
        remote=lambda kind: kind,
        put=bytes,
        get=lambda call: np.frombuffer(call, np.uint8),
        wait=lambda calls, timeout: ([call for call in calls if call == b"0" or timeout is None][:1], []),
        kill=lambda actor, no_restart: killed.append(actor.name),
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    hosts = RayHosts(SimpleNamespace(ray=fake, close=lambda: None), {}, 5.0, limit)  # type: ignore[arg-type]
    hosts.actors = {
        site: SimpleNamespace(name=site, handle=SimpleNamespace(remote=lambda *_, site=site: b"%d" % site)) for site in (0, 1)
    }
    return hosts


def test_waiting_for_room_is_final() -> None:
    """An actor that does not begin in time is ended, and not waited for once more; one that has begun may take its time."""
    killed: list[int] = []
    hosts = fake_hosts(killed)
    hosts.ready = {0}
    replies = dict(hosts.send(b"", {0: b"", 1: b""}))
    assert replies[0] == b"0"
    assert replies[1] == Lost("it did not find room in the cluster and begin within 5 seconds", final=True)
    assert killed == [1]


def test_waiting_for_an_answer_has_a_limit() -> None:
    """With `answer_timeout`, an actor that has begun and hangs is ended, and may be started again; without, it is waited for."""
    killed: list[int] = []
    hosts = fake_hosts(killed, limit=7.0)
    hosts.ready = {0, 1}
    assert dict(hosts.send(b"", {0: b"", 1: b""})) == {0: b"0", 1: Lost("it did not answer within 7 seconds")}
    assert (killed, hosts.ready) == ([1], {0})
    patient = fake_hosts(killed)
    patient.ready = {0, 1}
    assert dict(patient.send(b"", {0: b"", 1: b""})) == {0: b"0", 1: b"1"}
    assert killed == [1]


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "127.0.0.1:-1", ":x"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    """A port that no machine has would be taken for another one by the system."""
    with pytest.raises(AtollError, match=f"address is '{address}' but must be HOST:PORT, or auto"), join(None, address):
        pass
