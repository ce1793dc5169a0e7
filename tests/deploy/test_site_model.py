"""The model of the best round at the sites: that of the simulation, bit for bit, through restarts; nothing new is sent."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import load_model, wire
from atoll.data.federated import federate
from atoll.deploy import launch
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine, read_answer
from atoll.federation.cohort import Schema
from atoll.privacy.identities import simulated_identities
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.model_files import ModelFiles
from atoll.version import __version__
from sites import DirectCarrier, remote_engine, simulated_sites, sites_with_data
from small import small


def finished(
    config: Config, carrier: DirectCarrier, folder: Folder | None = None, checkpoint: Any = None
) -> tuple[runner.Result, RemoteEngine]:
    """A run over a carrier, to the sites' last message."""
    data = federate(config, None, ("horizontal",))
    engine = remote_engine(config, carrier, exact=config.run.on_missing == "stop")
    identities = simulated_identities(3) if config.run.secure else None
    experiment = runner.build_experiment(config, engine, Schema(12, 3, 3), data, data.scenario, identities=identities)
    result = runner.rounds(experiment, folder, None, checkpoint)
    engine.finish()
    return result, engine


def model_of(folder: Path) -> ModelFiles:
    """The model in the folder of a site that took part in one run."""
    (path,) = folder.glob("*/model")
    return ModelFiles.read(path)


def assert_equal(one: Any, other: Any) -> None:
    """The same tensors by the same names."""
    first, second = dict(wire.leaves(one)), dict(wire.leaves(other))
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def assert_is_the_simulations(sites: Path, config: Config) -> ModelFiles:
    """Every site's model is what the simulation's best round has for it; returns the simulation's."""
    trained = runner.run(config).trained
    assert trained is not None
    for party in range(3):
        model = model_of(sites / f"site-{party}")
        assert model.description["best_round"] == trained.description["best_round"] < config.run.rounds
        assert model.description["party_numbers"] == [party]
        assert model.state == {}
        assert_equal(model.memory, wire.nest({name: value[party : party + 1] for name, value in wire.leaves(trained.memory)}))
        assert_equal(model.arguments, trained.state)
    return trained


def overtrained(algorithm: str, **values: Any) -> Config:
    """A run whose best round is not its last: its later rounds must not be what is kept."""
    return small(algorithm, rounds=8, lr=0.2, **values)


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_every_site_ends_with_the_model_of_the_simulation(algorithm: str, secure: bool, tmp_path: Path) -> None:
    """Shared parameters as they were sent, personal ones as they were remembered, both of the best round."""
    config = overtrained(algorithm, secure=secure)
    finished(config, DirectCarrier(simulated_sites(tmp_path)))
    trained = assert_is_the_simulations(tmp_path, config)
    assert bool(trained.memory) == (algorithm == "fedper")


def test_a_resumed_run_ends_with_the_same_models(tmp_path: Path) -> None:
    """Killed after the best round, all sites and the server: they continue from their saves and write the same bits."""
    config = overtrained("fedper", checkpoint_every=1, on_missing="stop")
    best = runner.run(config).best_round
    for cut in (best, best + 1):

        class Cut(Exception):
            """The end of the process."""

        def stop(row: dict[str, Any], rounds: int, cut: int = cut, end: type[Exception] = Cut) -> None:
            if row["round"] == cut:
                raise end

        sites, data = tmp_path / f"cut-{cut}", federate(config, None, ("horizontal",))
        folder = Folder.create(tmp_path / f"run-{cut}", config)
        engine = remote_engine(config, DirectCarrier(simulated_sites(sites)), exact=True)
        with pytest.raises(Cut):
            runner.rounds(runner.build_experiment(config, engine, Schema(12, 3, 3), data, data.scenario), folder, stop)
        finished(config, DirectCarrier(simulated_sites(sites)), folder, folder.load())
        assert_is_the_simulations(sites, config)


def test_a_finished_run_writes_the_models_again(tmp_path: Path) -> None:
    """The server was killed before its last message: resumed, it has no round left and sends it; the saves stay."""
    config = overtrained("fedavg", checkpoint_every=1)
    folder = Folder.create(tmp_path / "run", config)
    finished(config, DirectCarrier(simulated_sites(tmp_path / "sites")), folder)
    for path in (tmp_path / "sites").glob("*/*/model/*"):
        path.unlink()
    finished(config, DirectCarrier(simulated_sites(tmp_path / "sites")), folder, folder.load())
    assert_is_the_simulations(tmp_path / "sites", config)
    (kept,) = (tmp_path / "sites" / "site-0").glob("*/*.safetensors")
    assert kept.name == "8.safetensors"


def test_a_site_that_lost_the_best_round_says_so(tmp_path: Path) -> None:
    """It restarted without a save: no model is better than that of another round; the others have theirs."""
    config = overtrained("fedper")
    best = runner.run(config).best_round
    carrier, told = DirectCarrier(simulated_sites(tmp_path)), []

    def restart(data: bytes) -> bytes:
        request = wire.decode(data)
        if request["kind"] == "finish" and not told:
            told.append("restarted")
            carrier.sites["site-1"] = Site(tmp_path / "site-1")
        return carrier.sites["site-1"].handle(data)

    carrier.instead["site-1"] = restart
    data = federate(config, None, ("horizontal",))
    engine = remote_engine(config, carrier)
    engine.warn = told.append
    runner.rounds(runner.build_experiment(config, engine, Schema(12, 3, 3), data, data.scenario))
    (save,) = (tmp_path / "site-1").glob("*/8.safetensors")
    save.unlink()
    engine.finish()
    assert f"site-1 refused: it has no model of the best round, {best}" in told[-1]
    assert not list((tmp_path / "site-1").glob("*/model"))
    assert len(list(tmp_path.glob("*/*/model/model.json"))) == 2


def test_keeping_a_round_costs_no_message_and_sends_nothing_new(tmp_path: Path) -> None:
    """The server names the round with the next message; the tensors in `model/` are those of messages sent before."""
    config = overtrained("fedavg")
    carrier, seen = DirectCarrier(simulated_sites(tmp_path)), []

    def listen(data: bytes) -> bytes:
        seen.append(wire.decode(data))
        return carrier.sites["site-0"].handle(data)

    carrier.instead["site-0"] = listen
    result, _ = finished(config, carrier)
    assert [request["kind"] for request in seen] == ["begin", *["ask"] * 16, "save", "finish"]
    assert seen[-1].keys() <= {"atoll", "run", "kind", "best", "round", "keep"}
    named = [request["keep"] for request in seen if "keep" in request]
    assert named == sorted(set(named))
    assert named[-1] == result.best_round
    sent = [each["common"] for each in seen if each.get("verb") == "evaluate" and each["round"] == result.best_round]
    assert_equal(model_of(tmp_path / "site-0").arguments, sent[0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"kind": "save", "round": 8, "keep": -1}, "keep is -1"),
        ({"kind": "save", "round": 8, "keep": "a"}, "keep is 'a'"),
        ({"kind": "save", "round": 8, "keep": 10**15}, "keep is 1000000000000000"),
        ({"kind": "finish", "best": True}, "best is True"),
        ({"kind": "finish", "best": 7, "round": 6}, "round is 6, not a whole number from 7"),
        ({"kind": "finish", "best": 10**9, "round": 10**9}, "it has no model of the best round, 1000000000"),
    ],
)
def test_a_lying_server_names_impossible_rounds(values: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """Each is refused by name, and the model that is there stays as it is."""
    config = overtrained("fedavg")
    carrier = DirectCarrier(simulated_sites(tmp_path))
    _, engine = finished(config, carrier)
    before = {path: path.read_bytes() for path in tmp_path.glob("site-0/*/model/*")}
    answer = read_answer(carrier.sites["site-0"].handle(wire.encode({"atoll": __version__, "run": engine.run, **values})))
    assert str(answer).startswith("refused")
    assert expected in str(answer)
    assert {path: path.read_bytes() for path in before} == before != {}


def test_a_round_that_is_over_is_not_kept(tmp_path: Path) -> None:
    """Named too late, a round's number is not put on what a later one trained."""
    config = overtrained("fedavg")
    carrier = DirectCarrier(simulated_sites(tmp_path))
    result, engine = finished(config, carrier)
    late = {"atoll": __version__, "run": engine.run, "kind": "save", "round": 8, "keep": result.best_round + 1}
    assert read_answer(carrier.sites["site-0"].handle(wire.encode(late))) == {}
    model = carrier.sites["site-0"].model
    assert model is not None
    assert model.round == result.best_round


@pytest.mark.parametrize("target", ["labels", "values"])
def test_a_site_predicts_labels_and_values(target: str, tmp_path: Path) -> None:
    """With data of its own and the run's scale of values, which every site keeps: as the simulation does."""
    config = small("fedavg", rounds=2, target=target)
    sites = sites_with_data(tmp_path, config)
    names = {"algorithm": "fedavg", "seed": 3, "data": {"target": target}, "run": {"rounds": 2}}
    deployed = launch.deployment_config(names, "run.toml", ["a", "b", "c"])
    assert deployed.run.task == config.run.task
    deployed = dataclasses.replace(deployed, settings=config.settings, run=config.run)
    engine = remote_engine(deployed, DirectCarrier(sites))
    experiment = runner.build_experiment(deployed, engine, Schema(12, 3, 3), None, "horizontal")
    whole = runner.run(config, out=tmp_path / "run")
    deployed_metrics = runner.rounds(experiment).metrics
    for name, value in whole.metrics.items():
        assert deployed_metrics[name] == pytest.approx(value), name
    engine.finish()
    simulated = load_model(tmp_path / "run")
    (folder,) = (tmp_path / "site-1").glob("*/model")
    assert ModelFiles.read(folder).description.get("value_scale") == simulated.description.get("value_scale")
    here = load_model(folder).predict(tmp_path / "data" / "bank-1")
    there = simulated.predict(party=1)
    for column in there.columns[3:]:
        one, other = here[column].astype(float).to_numpy(), there[column].astype(float).to_numpy()
        np.testing.assert_allclose(one, other, rtol=1e-5, err_msg=column)
