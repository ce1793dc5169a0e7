"""At a site: the model in its kit predicts there alone, as in a simulation, without the server and without NVFlare."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

import atoll
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy.kit import KIT_FILE, NAMES_KEY
from atoll.deploy.site import Site
from atoll.deploy.site_predictions import is_kit, open_site_model
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.runs import config, runner
from atoll.runs.folder import Folder
from sites import DirectCarrier, remote_engine, simulated_sites
from small import small

BANKS = ("bank-a", "bank-b", "bank-c")


def make_kit(path: Path, site: str) -> Path:
    """What a prediction reads of a kit; keys are only looked for."""
    (path / "startup").mkdir(parents=True)
    (path / KIT_FILE).write_text(tomli_w.dumps({"host": "localhost", "port": 8102, "sites": list(BANKS), "site": site}))
    (path / NAMES_KEY).write_text("ab" * 32)
    for name in ("client.key", "client.crt", "rootCA.pem"):
        (path / "startup" / name).touch()
    return path


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three banks with folders and kits, after a run of each algorithm."""
    root = tmp_path_factory.mktemp("banks")
    for seed, name in enumerate(BANKS):
        graph = atoll.load("csbm", nodes=40, features=6, degree=4, classes=3, graph_seed=seed)
        names = np.array([f"{name}-{row}" for row in range(40)], object)
        graph = replace(graph, node_names=names, feature_names=tuple("abcdef"), class_names=("low", "mid", "high"))
        files.save(graph, root / "data" / name, "csv")
        nodes = pd.read_csv(root / "data" / name / "nodes.csv").drop(columns=["index", "split"])
        nodes.to_csv(root / "data" / name / "nodes.csv", index=False)
        make_kit(root / name, name)
    for algorithm in ("fedavg", "fedper", "fedstar"):
        deploy(root, algorithm)
    return root


def deploy(root: Path, algorithm: str) -> None:
    """A run across the banks' sites, which are in this process."""
    values = {"rounds": 3, "patience": 0}
    chosen = config.resolve(algorithm, dataset="given", partition="random", parties=3, seed=3, values=values)
    chosen = replace(chosen, partition="horizontal")
    carrier = DirectCarrier({name: Site(root / name / "runs", root / "data" / name, kit=root / name) for name in BANKS})
    schema = Schema(6, 3, 3)
    engine = RemoteEngine(carrier, {name: [party] for party, name in enumerate(BANKS)}, chosen.to_dict(), schema, timeout=5.0)
    runner.rounds(runner.build_experiment(chosen, engine, schema, None, "horizontal", names=BANKS))
    engine.finish()


def run_of(root: Path, algorithm: str) -> str:
    """The name of the run of an algorithm."""
    return next(path.name for path in (root / "bank-a/runs").iterdir() if path.name.startswith(f"{algorithm}-"))


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "fedstar"])
def test_the_numbers_are_those_of_the_simulation(algorithm: str, deployed: Path) -> None:
    """On the site's own data: every probability, split and label, bit for bit; the metrics are those of model.json."""
    simulated = atoll.run(algorithm, dataset=str(deployed / "data"), partition="files", seed=3, rounds=3, patience=0).model()
    for name in BANKS:
        model = open_site_model(deployed / name, run_of(deployed, algorithm))
        table = model.predict(deployed / "data" / name)
        assert table.equals(simulated.predict(party=name).reset_index(drop=True))
        found = model.outputs(deployed / "data" / name).metrics(model.task)
        reported: dict[str, Any] = model.description["metrics"]
        assert {each: reported[each] for each in found} == found


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "fedstar"])
def test_next_week_at_a_site(algorithm: str, deployed: Path, tmp_path: Path) -> None:
    """New nodes are predicted by the site's own model: here, another bank's."""
    model = open_site_model(deployed / "bank-a", run_of(deployed, algorithm))
    table = model.predict(deployed / "data" / "bank-b")
    assert table["id"].tolist() == [f"bank-b-{row}" for row in range(40)]
    assert set(table["party"]) == {"bank-a"}
    assert table["split"].isna().all()
    simulated = atoll.run(algorithm, dataset=str(deployed / "data"), partition="files", seed=3, rounds=3, patience=0).model()
    expected = simulated.predict(deployed / "data" / "bank-b", party="bank-a")
    assert table.filter(like="p[").to_numpy() == pytest.approx(expected.filter(like="p[").to_numpy(), abs=1e-6)


def test_which_run(deployed: Path) -> None:
    """The newest finished one, or the one that is named."""
    for age, algorithm in enumerate(("fedper", "fedstar", "fedavg")):
        path = deployed / "bank-a/runs" / run_of(deployed, algorithm) / "model/model.json"
        os.utime(path, (1_000_000 + age, 1_000_000 + age))
    assert open_site_model(deployed / "bank-a").config.algorithm == "fedavg"
    assert open_site_model(deployed / "bank-a", run_of(deployed, "fedper")).config.algorithm == "fedper"
    with pytest.raises(AtollError, match="holds no finished run 'nothing'"):
        open_site_model(deployed / "bank-a", "nothing")
    folder = deployed / "bank-a/runs" / run_of(deployed, "fedper")
    assert len(atoll.load_model(folder).predict(deployed / "data/bank-a")) == 40


@pytest.mark.parametrize("algorithm", ["fedper", "fedstar"])
def test_sites_on_this_machine_bring_their_memory(algorithm: str, tmp_path: Path) -> None:
    """After a run of the engine nvflare the personal models are beside the run; without one of them, one sentence."""
    chosen = small(algorithm)
    folder = Folder.create(tmp_path / "run", chosen)
    data = federate(chosen, None, ("horizontal",))
    engine = remote_engine(chosen, DirectCarrier(simulated_sites(tmp_path / "run/sites")))
    result = runner.rounds(runner.build_experiment(chosen, engine, Schema(12, 3, 3), data, data.scenario), folder)
    engine.finish()
    model = atoll.load_model(tmp_path / "run")
    found = model.outputs().metrics(model.task)
    assert found == pytest.approx({name: result.metrics[name] for name in found}, abs=1e-6)
    shutil.rmtree(tmp_path / "run/sites/site-1")
    with pytest.raises(AtollError, match="not in this folder but at its site"):
        atoll.load_model(tmp_path / "run").predict()


def test_what_a_site_cannot_do(deployed: Path, tmp_path: Path) -> None:
    """Predict for another party, without data, before a run has finished, or from the server's kit."""
    model = open_site_model(deployed / "bank-a", run_of(deployed, "fedper"))
    with pytest.raises(AtollError, match="the model of the party bank-a, not of bank-b; predict at its own site"):
        model.predict(deployed / "data/bank-a", party="bank-b")
    with pytest.raises(AtollError, match="A site keeps no copy of its data; give it: --data FOLDER"):
        model.predict()
    with pytest.raises(AtollError, match="holds no trained model yet: no run has finished here"):
        open_site_model(make_kit(tmp_path / "bank-c", "bank-c"))
    server = make_kit(tmp_path / "server", "")
    (server / KIT_FILE).write_text(tomli_w.dumps({"host": "localhost", "port": 8102, "sites": list(BANKS)}))
    with pytest.raises(AtollError, match="is the server's kit, which holds no model; give the server's run folder, or a site's"):
        open_site_model(server)
    assert not is_kit(tmp_path)


def test_the_card_of_a_site_says_how_it_is_used(deployed: Path) -> None:
    """With the kit, and what data the model is of."""
    folder = deployed / "bank-a/runs" / run_of(deployed, "fedavg") / "model"
    text = (folder / "README.md").read_text()
    assert "atoll predict KIT --data FOLDER --out predictions.csv" in text
    assert "- 40 nodes" in text
    assert json.loads((folder / "model.json").read_text())["data"]["nodes"] == 40


def test_nvflare_is_not_needed(deployed: Path, tmp_path: Path) -> None:
    """The command line predicts at a site where NVFlare cannot be imported."""
    code = (
        "import sys; sys.modules['nvflare'] = None; from atoll.cli.main import main; "
        f"sys.argv = ['atoll', 'predict', {str(deployed / 'bank-a')!r}, '--data', {str(deployed / 'data/bank-a')!r}, "
        f"'--run', {run_of(deployed, 'fedper')!r}, '--out', {str(tmp_path / 'p.csv')!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "fedper, round" in done.stdout
    written = pd.read_csv(tmp_path / "p.csv")
    assert written["id"].tolist() == [f"bank-a-{row}" for row in range(40)]
