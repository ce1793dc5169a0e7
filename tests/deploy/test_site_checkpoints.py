"""What sites keep on their disks: damage, full disks, other data, and what the user hears of it."""

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from atoll import storage, wire
from atoll.child import Child
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import kit, launch
from atoll.deploy.site import Site
from atoll.deploy.site_checkpoints import SiteCheckpoints
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.runner import Result
from atoll.version import __version__
from small import small

SITES = ("site-0", "site-1", "site-2")


class Wire:
    """A carrier that calls the sites directly."""

    def __init__(self, folder: Path) -> None:
        self.said: list[str] = []
        self.sites = {name: Site(folder / name, None, self.said.append) for name in SITES}

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        return {site: self.sites[site].handle(data) for site, data in requests.items()}


def over(config: Config, carrier: Wire, folder: Folder | None = None, checkpoint: Any = None) -> Result:
    """A run over a carrier."""
    data = federate(config, None, ("horizontal",))
    exact = config.run.on_missing == "stop"
    roster = {name: [place] for place, name in enumerate(SITES)}
    engine = RemoteEngine(carrier, roster, config.to_dict(), Schema(12, 3, 3), timeout=5.0, exact=exact)
    return runner.rounds(runner.build_experiment(config, engine, Schema(12, 3, 3), data, data.scenario), folder, None, checkpoint)


def halted(config: Config, tmp_path: Path) -> Folder:
    """A run whose last checkpoint is of round 4 of 6: cut off in round 5."""

    def cut(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 4:
            raise InterruptedError

    data, carrier = federate(config, None, ("horizontal",)), Wire(tmp_path / "sites")
    roster = {name: [place] for place, name in enumerate(SITES)}
    engine = RemoteEngine(carrier, roster, config.to_dict(), Schema(12, 3, 3), timeout=5.0)
    folder = Folder.create(tmp_path / "run", config)
    with pytest.raises(InterruptedError):
        runner.rounds(runner.build_experiment(config, engine, Schema(12, 3, 3), data, data.scenario), folder, cut)
    return folder


def flip(path: Path, place: int = 500) -> None:
    """One bit of a file."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def saved(tmp_path: Path, site: str, round: int) -> Path:
    """A site's save."""
    (path,) = (tmp_path / "sites" / site).glob(f"*/{round}.safetensors")
    return path


def states(result: Result) -> list[bytes]:
    """All tensors of the server, as bytes."""
    return [value.numpy().tobytes() for _, value in wire.leaves(result.state) if hasattr(value, "numpy")]


@pytest.mark.parametrize("damage", ["bit", "header", "cut", "gone"])
def test_a_damaged_save_is_not_used_and_the_user_hears_of_it(tmp_path: Path, damage: str) -> None:
    """The one before is; the warning is in the result, and the site says it too."""
    folder = halted(small("fedspray", rounds=6, checkpoint_every=1), tmp_path)
    path = saved(tmp_path, "site-1", 4)
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        flip(path, 500 if damage == "bit" else 12)
    carrier = Wire(tmp_path / "sites")
    result = over(small("fedspray", rounds=6, checkpoint_every=1), carrier, folder, folder.load())
    told = "site-1 could not restore what it saved at round 4: it continued from its save of round 3."
    assert result.warnings == [told]
    assert json.loads(folder.result.read_text())["warnings"] == [told]
    assert any("continuing from round 3" in text for text in carrier.said)


def test_a_site_without_any_save_begins_again_and_the_user_is_told(tmp_path: Path) -> None:
    """As above, with nothing left."""
    config = small("fedspray", rounds=6, checkpoint_every=1)
    folder = halted(config, tmp_path)
    shutil.rmtree(tmp_path / "sites" / "site-2")
    result = over(config, Wire(tmp_path / "sites"), folder, folder.load())
    assert result.warnings == ["site-2 could not restore what it saved at round 4: it continued without a memory of the run."]


def test_exactly_with_a_damaged_save_is_from_the_checkpoint_before(tmp_path: Path) -> None:
    """With on_missing=stop: refused by name; from the checkpoint before, the result is bit for bit that of an undisturbed run."""
    config = small("fedspray", rounds=6, checkpoint_every=1, on_missing="stop")
    whole = over(config, Wire(tmp_path / "whole"))
    folder = halted(config, tmp_path)
    flip(saved(tmp_path, "site-1", 4))
    with pytest.raises(AtollError, match="site-1 refused: the save of round 4 is damaged"):
        over(config, Wire(tmp_path / "sites"), folder, folder.load())
    assert folder.step_back()
    again = folder.load()
    assert again is not None
    assert again["progress"]["round"] == 3
    result = over(config, Wire(tmp_path / "sites"), folder, again)
    assert states(result) == states(whole)
    assert result.metrics == whole.metrics


def test_the_server_steps_back_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server's process does with such a refusal, and what the user hears."""
    server = pytest.importorskip("atoll.deploy.server")
    config = small("fedspray", rounds=6, checkpoint_every=1, on_missing="stop")
    whole = over(config, Wire(tmp_path / "whole"))
    folder = halted(config, tmp_path)
    flip(saved(tmp_path, "site-1", 4))
    order = {"config": config.to_dict(), "out": str(folder.path), "simulated": True, "patience": 1, "resume": True}
    order["roster"] = {name: (place, place + 1) for place, name in enumerate(SITES)}
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(server, "report", lambda **fields: reports.append(fields))
    monkeypatch.setattr(server.ServerRun, "_missing", lambda self: [])
    server.ServerRun(Wire(tmp_path / "sites"), order).execute()
    told = "Gone back to the checkpoint before the last: site-1 refused: the save of round 4 is damaged."
    assert {"warn": told} in reports
    written = json.loads(folder.result.read_text())
    assert (written["warnings"], written["metrics"]) == ([told], whole.metrics)


def test_the_server_says_that_its_own_checkpoint_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process it is in has no terminal: it reports to its parent; the sites have saves of the checkpoint before."""
    server = pytest.importorskip("atoll.deploy.server")
    config = small("fedspray", rounds=6, checkpoint_every=1)
    whole = over(config, Wire(tmp_path / "whole"))
    folder = halted(config, tmp_path)
    flip(folder.checkpoint)
    order = {"config": config.to_dict(), "out": str(folder.path), "simulated": True, "patience": 1, "resume": True}
    order["roster"] = {name: (place, place + 1) for place, name in enumerate(SITES)}
    reports: list[dict[str, Any]] = []
    monkeypatch.setattr(server, "report", lambda **fields: reports.append(fields))
    monkeypatch.setattr(server.ServerRun, "_missing", lambda self: [])
    with pytest.warns(match="is damaged"):
        server.ServerRun(Wire(tmp_path / "sites"), order).execute()
    (told,) = [each["warn"] for each in reports if "warn" in each]
    assert "continuing from the checkpoint before it, of round 3" in told
    assert json.loads(folder.result.read_text())["metrics"] == whole.metrics


def test_a_site_without_room_stops_nobody_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its disk is full when it saves: the run goes on and the user hears of it; an exact one ends with one sentence."""
    write = storage.write_document

    def full(path: Path, *arguments: Any, **options: Any) -> None:
        if "site-1" in str(path):
            raise storage.unwritable(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        write(path, *arguments, **options)

    monkeypatch.setattr(storage, "write_document", full)
    carrier = Wire(tmp_path / "sites")
    config = small("fedspray", rounds=6, checkpoint_every=2)
    result = over(config, carrier, Folder.create(tmp_path / "run", config))
    (told,) = result.warnings  # once, not at every checkpoint
    assert told == "From the checkpoint of round 2 on, site-1 refused: it could not write to its disk; its log says why."
    assert any("No space left on device" in text for text in carrier.said)
    exact = small("fedspray", rounds=2, checkpoint_every=2, on_missing="stop")
    with pytest.raises(AtollError, match=r"no exact checkpoint is possible .site-1 refused: it could not write to its disk"):
        over(exact, Wire(tmp_path / "again"), Folder.create(tmp_path / "exact", exact))


def test_saves_are_bounded_and_old_ones_go(tmp_path: Path) -> None:
    """Three, none of a later round, and no partial files."""
    saves = SiteCheckpoints(tmp_path / "run", lambda text: None)
    for round in (1, 2, 3, 4, 9, 5):
        saves.write(round, {"n": round})
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["3.safetensors", "4.safetensors", "5.safetensors"]
    assert saves.read(7, False) == (5, {"n": 5}, {})
    assert saves.read(4, True) == (4, {"n": 4}, {})


def begin(site: Site, config: Config, token: int) -> dict[str, Any]:
    """Tell a site of a run."""
    request = {"atoll": __version__, "kind": "begin", "run": "a-run", "config": [config.to_dict()], "token": token}
    request |= {"schema": Schema(12, 3, 3).numbers, "exact": False, "parties": wire.torch.tensor([0])}
    return wire.decode(site.handle(wire.encode(request)))


@pytest.fixture
def graphs(tmp_path: Path) -> Callable[[str], Path]:
    """Folders with a graph each; of the same seed, the same."""

    def make(name: str, seed: int = 0) -> Path:
        parts = federate(small("fedavg", seed=seed), None, ("horizontal",)).parts
        files.save(parts.select([0]), tmp_path / name)
        return tmp_path / name

    return make


def test_a_site_does_not_come_back_with_other_data(tmp_path: Path, graphs: Callable[..., Path]) -> None:
    """The same data goes on, from wherever; other data is refused, to the server by a word and at the site by its path."""
    config = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", SITES)
    first, copy, other = graphs("first"), graphs("copy"), graphs("other", 7)
    said: list[str] = []

    def site(data: Path) -> Site:
        return Site(tmp_path / "runs", data, said.append)

    assert begin(site(first), config, -1)["status"] == "ok"
    assert begin(site(copy), config, -1)["status"] == "ok"
    answer = begin(site(other), config, -1)
    assert answer["reason"] == "refused: its data has changed since the run began; join again with the original data."
    assert any(str(other) in text for text in said)
    record = next((tmp_path / "runs").glob("*/data.json"))
    record.write_text("{")
    assert "its record of the run's data is damaged" in begin(site(first), config, -1)["reason"]


def test_a_kit_in_use_is_refused(tmp_path: Path, graphs: Callable[..., Path]) -> None:
    """`join` and `serve` with a kit that another process uses: one sentence that names it, before anything is started."""
    pytest.importorskip("nvflare")
    kit.provision(["bank-a"], "localhost", tmp_path / "kits", port=8102)
    bank, server = tmp_path / "kits" / "bank-a", kit.Kit.open(tmp_path / "kits" / "server", server=True)
    config = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", server.sites)
    before = sorted(tmp_path.rglob("*"))
    with storage.Lock(bank, "It"), pytest.raises(AtollError, match=rf"The kit \S+bank-a is in use by process {os.getpid()} on"):
        launch.join(bank, graphs("data"))
    with storage.Lock(server.path, "It"), pytest.raises(AtollError, match=r"The kit \S+server is in use by process"):
        launch.serve(server, config, tmp_path / "out")
    assert [path for path in sorted(tmp_path.rglob("*")) if "data" not in str(path)] == before


def test_a_full_disk_does_not_silence_a_child(tmp_path: Path) -> None:
    """Where its log cannot be written, its reports and its end are heard all the same."""
    heard: list[dict[str, Any]] = []
    (tmp_path / "log").symlink_to("/dev/full")
    script = "print('a line for the log\\n' * 2000); print('\\x1eatoll {\"word\": 1}')"
    child = Child([sys.executable, "-c", script], tmp_path / "log", heard.append)
    child.pipes.reader.join()
    assert heard == [{"word": 1}, {"exit": 0}]
