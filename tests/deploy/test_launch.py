"""provision, serve and join as users call them; a local run leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import kit as kits
from atoll.deploy import launch, supervisor
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.runs import runner
from atoll.runs.folder import Folder
from sites import (
    DEADLINE,
    DirectCarrier,
    wait_until,
)
from small import small

pytestmark = pytest.mark.early


def test_configurations_for_deployment() -> None:
    """The sites bring data and are the parties; what a site's own graph cannot be is refused."""
    chosen = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a", "b"])
    assert (chosen.dataset, chosen.partition, chosen.parties, chosen.engine) == ("given", "horizontal", 2, "nvflare")
    with pytest.raises(AtollError, match="dataset = 'cora', but the sites bring their own data"):
        launch.deployment_config({"algorithm": "fedavg", "dataset": "cora"}, "run.toml", ["a", "b"])
    with pytest.raises(AtollError, match="the kit's 2 sites are the parties"):
        launch.deployment_config({"algorithm": "fedavg", "parties": 3}, "run.toml", ["a", "b"])
    with pytest.raises(AtollError, match="fedavg is for horizontal or overlapping parties"):
        launch.deployment_config({"algorithm": "fedavg", "partition": "vertical"}, "run.toml", ["a", "b"])
    with pytest.raises(AtollError, match="cannot be run across sites"):
        launch.deployment_config({"algorithm": "centralized"}, "run.toml", ["a", "b"])
    for name, value in {"select_by": "auc[sick]", "threshold": "f1[sick]", "class_weight": "1:2,sick:5"}.items():
        with pytest.raises(AtollError, match=f"{name} names the class 'sick', but the classes' names stay at the sites"):
            launch.deployment_config({"algorithm": "fedavg", "run": {name: value}}, "run.toml", ["a", "b"])
    numbered = {"select_by": "auc[1]", "threshold": "f1[0]", "class_weight": "0:2,1:5"}
    assert launch.deployment_config({"algorithm": "fedavg", "run": numbered}, "run.toml", ["a"]).run.select_by == "auc[1]"


def test_a_run_without_its_model_is_not_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` killed between the result and the models is started again: it takes the run up, so that the sites write theirs."""
    kits.provision(["bank-a"], "localhost", tmp_path / "kits", port=supervisor.free_port())
    kit = kits.Kit.open(tmp_path / "kits" / "server", server=True)
    config = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", kit.sites)
    (Folder.create(tmp_path / "out", config).path / "result.json").write_text("{}")
    told: list[Any] = []

    class Standing:
        """In the place of the server's process."""

        def __init__(self, *anything: Any) -> None:
            pass

        def run(self, *anything: Any, **order: Any) -> str:
            """Note what is asked for."""
            told.append(order["resume"])
            return "result"

        def dismiss(self, sites: Any) -> None:
            """Note who is told."""
            told.append(tuple(sites))

        def stop(self) -> None:
            """Nothing to end."""

    monkeypatch.setattr(launch, "ServerProcess", Standing)
    assert launch.serve(kit, config, tmp_path / "out") == "result"  # type: ignore[comparison-overlap]
    assert told == [True, ("bank-a",)]


def test_the_tutorial_and_a_server_that_is_killed(tmp_path: Path) -> None:
    """provision, join and serve as commands; `serve` killed with SIGKILL and started again ends as a run in one process does."""
    config = small("fedspray", rounds=60)
    parts = federate(config, None, ("horizontal",)).parts.select([0, 1])
    for place, bank in enumerate(("bank-a", "bank-b")):
        files.save(parts.select([place]), tmp_path / bank)
    kits.provision(["bank-a", "bank-b"], "localhost", tmp_path / "kits", port=supervisor.free_port())
    (tmp_path / "run.toml").write_text(
        'algorithm = "fedspray"\nseed = 3\n[run]\nrounds = 60\ncheckpoint_every = 3\nmissing = "stop"\n'
    )
    serve = ["serve", "kits/server", "--config", "run.toml", "--out", "result"]
    banks = [start_command(tmp_path, "join", f"kits/{bank}", "--data", bank) for bank in ("bank-a", "bank-b")]
    first = start_command(tmp_path, *serve)
    try:
        history = tmp_path / "result" / "history.jsonl"
        wait_until(lambda: history.exists() and len(history.read_text().splitlines()) > 5, "the first rounds")
        first.kill()
        first.wait()
        second = start_command(tmp_path, *serve)
        assert second.wait(DEADLINE) == 0
        assert [bank.wait(DEADLINE) for bank in banks] == [0, 0]
    finally:
        for process in (first, *banks):
            process.kill()
            process.wait()
    chosen = launch.deployment_config(
        {"algorithm": "fedspray", "seed": 3, "run": {"rounds": 60}}, "run.toml", ["bank-a", "bank-b"]
    )
    here = RemoteEngine(
        DirectCarrier({f"bank-{x}": Site(tmp_path / "here" / x, tmp_path / f"bank-{x}") for x in "ab"}),
        {"bank-a": [0], "bank-b": [1]},
        chosen.to_dict(),
        Schema(12, 3, 2),
        timeout=5.0,
    )
    whole = runner.rounds(runner.build_experiment(chosen, here, Schema(12, 3, 2), None, "horizontal"))
    model = wire.decode((tmp_path / "result" / "model.safetensors").read_bytes())
    for (name, value), (_, same) in zip(wire.leaves(whole.state), wire.leaves(model), strict=True):
        assert torch.equal(value, same), name
    assert len(Folder(tmp_path / "result").rows()) == 60
    assert [len(list((tmp_path / "kits" / bank).glob("runs/*/personal.safetensors"))) for bank in ("bank-a", "bank-b")] == [1, 1]
    assert not list(tmp_path.glob("kits/server/**/personal*"))


def start_command(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """A command of atoll in a folder."""
    log = (folder / f"{words[0]}-{words[1].replace('/', '-')}.log").open("a")
    with log:
        return subprocess.Popen([sys.executable, "-m", "atoll.cli.main", *words], cwd=folder, stdout=log, stderr=log)


def test_the_tutorial_is_what_the_demo_runs() -> None:
    """Every command and every line of the configuration in examples/deploy.sh stands in docs/deployment.md."""
    here = Path(__file__).parents[2]
    page = (here / "docs" / "deployment.md").read_text()
    script = (here / "examples" / "deploy.sh").read_text().splitlines()
    commands = [line.removesuffix(" &") for line in script if line.startswith(("atoll ", "algorithm", "rounds"))]
    assert len(commands) == 8
    assert [line for line in commands if line not in page] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_behind(number: int, tmp_path: Path) -> None:
    """Ctrl-C, or SIGTERM, in `atoll run --engine nvflare`: every process ends, and the temporary folder is gone."""
    psutil = pytest.importorskip("psutil")
    words = ["run", "fedavg", "--dataset", "csbm", "--partition", "random", "--parties", "2", "--engine", "nvflare"]
    run = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal; signal.signal(2, signal.default_int_handler); from atoll.cli.main import main; main()",
            *words,
        ],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(psutil.Process(run.pid).children()) == 3, "a server and two sites")
        children = psutil.Process(run.pid).children()
        run.send_signal(number)
        assert run.wait(DEADLINE) == 128 + number
    finally:
        run.kill()
        run.wait()
    assert psutil.wait_procs(children, DEADLINE)[1] == []
    assert list(tmp_path.iterdir()) == []
