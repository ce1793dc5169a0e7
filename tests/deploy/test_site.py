"""A site: it never raises, keeps its data and models to itself, and takes part only in what its policy allows."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import launch
from atoll.deploy.compatibility import CommonForm, check_compatible
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site import Site
from atoll.engines import remote
from atoll.engines.remote import RemoteEngine, read_answer
from atoll.federation.cohort import Schema
from atoll.federation.federation import Failure
from atoll.runs import runner
from atoll.runs.config import resolve
from sites import (
    DirectCarrier,
    first_model,
    fit_message,
    remote_engine,
    simulated_sites,
    sites_with_data,
)
from small import small
from test_promises import assert_same


def test_a_site_never_raises_and_never_tells_why_it_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage, other versions, unknown kinds, verbs and runs, foreign parties: an answer with a reason, and no data in it."""
    config = small("fedavg")
    host = Site(tmp_path)
    assert "could not be read" in str(read_answer(host.handle(b"garbage")))
    assert "this site runs" in str(read_answer(host.handle(wire.encode({"atoll": "9.9", "kind": "ask"}))))
    version = remote.__version__
    assert read_answer(host.handle(wire.encode({"atoll": version, "kind": "ask", "run": "x"}))) == "does not know the run"
    carrier = DirectCarrier({"site-0": host, "site-1": Site(tmp_path / "1"), "site-2": Site(tmp_path / "2")})
    server = remote_engine(config, carrier)
    server.deliver(fit_message(model=first_model(config)))
    about = {"atoll": version, "run": server.run}
    ask = {**about, "kind": "ask", "verb": "fit", "round": 1, "call": 0, "training": True}
    assert "no message 'shell'" in str(read_answer(host.handle(wire.encode({**about, "kind": "shell"}))))
    assert "no verb 'recall'" in str(
        read_answer(host.handle(wire.encode({**ask, "verb": "recall", "parties": torch.tensor([0])})))
    )
    assert "do not live here" in str(read_answer(host.handle(wire.encode({**ask, "parties": torch.tensor([1])}))))
    asked = wire.encode({**ask, "parties": torch.tensor([0]), "common": {"model": first_model(config)}})

    def fail(model: Any) -> None:
        raise TypeError("secret-7")

    monkeypatch.setattr(host.cohort, "train", fail)
    broken = str(read_answer(host.handle(asked)))
    assert "failed (TypeError; its log says more)" in broken
    assert "secret" not in broken


def test_personal_models_stay_at_the_site(tmp_path: Path) -> None:
    """At the end a site writes its own models; of its saves the last is kept."""
    config = small("fedspray", rounds=2)
    carrier = DirectCarrier(simulated_sites(tmp_path))
    data = federate(config, None, ("horizontal",))
    experiment = runner.build_experiment(config, remote_engine(config, carrier), Schema(12, 3, 3), data, data.scenario)
    runner.rounds(experiment)
    experiment.engine.finish()  # type: ignore[attr-defined]
    cohort = carrier.sites["site-1"].cohort
    assert cohort is not None
    (written,) = (tmp_path / "site-1").glob("*/personal.safetensors")
    models = wire.decode(written.read_bytes())
    assert "gnn" in models
    for name, value in models["gnn"].items():
        torch.testing.assert_close(value, dict(cohort.gnn.named_parameters())[name].detach()[0])


def test_a_mixture_is_part_of_the_personal_model(tmp_path: Path) -> None:
    """APFL's personal model is α·v + (1−α)·w: a site keeps α with v."""
    config = small("apfl", rounds=1)
    carrier = DirectCarrier(simulated_sites(tmp_path))
    server = remote_engine(config, carrier)
    server.deliver(fit_message(model=first_model(config)))
    server.finish()
    (written,) = (tmp_path / "site-1").glob("*/personal.safetensors")
    kept = wire.decode(written.read_bytes())
    assert set(kept) == {"personal", "mixture"}
    assert torch.equal(kept["mixture"], carrier.sites["site-1"].cohort.mixture[0])  # type: ignore[union-attr]


def test_own_folders_give_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    """Three sites with their own graph folders and one process with all parties: the same bits."""
    config = small("fedavg")
    sites = sites_with_data(tmp_path, config)
    names = {"algorithm": "fedavg", "seed": 3, "run": {"rounds": 3}}
    deployed = launch.deployment_config(names, "run.toml", ["a", "b", "c"])
    deployed = dataclasses.replace(deployed, settings=config.settings, run=config.run)
    experiment = runner.build_experiment(
        deployed, remote_engine(deployed, DirectCarrier(sites)), Schema(12, 3, 3), None, "horizontal"
    )
    assert_same(runner.run(config), runner.rounds(experiment), 0.0)


@pytest.mark.parametrize(
    ("algorithm", "document", "values"),
    [
        ("fedavg", {}, {}),
        ("fedspray", {"split": {"split": "stratified"}}, {"split": "stratified"}),
        ("fedgl", {}, {}),
        ("fedavg", {"partition": "overlap"}, {"scenario": "overlapping"}),
    ],
)
def test_folders_tried_on_one_machine_give_the_numbers_of_the_deployment(
    tmp_path: Path, algorithm: str, document: dict[str, Any], values: dict[str, Any]
) -> None:
    """`--partition files` and the sites that join with the same folders: the same settings and the same bits."""
    shared = algorithm == "fedgl" or bool(values.get("scenario"))
    parts = federate(small("fedgl" if shared else "fedavg"), None, ("overlapping", "horizontal")).parts
    if not shared:
        nobody = torch.zeros(parts.num_nodes, dtype=torch.bool)
        parts = dataclasses.replace(parts, train=nobody, val=nobody, test=nobody)  # the sites draw their own split
    names = [f"site-{party}" for party in range(3)]
    for party, name in enumerate(names):
        files.save(parts.select([party]), tmp_path / "data" / name, ("npz", "parquet", "npz")[party])
    deployed = launch.deployment_config({"algorithm": algorithm, "seed": 3, "run": {"rounds": 3}} | document, "run.toml", names)
    sites = {name: Site(tmp_path / name, tmp_path / "data" / name) for name in names}
    engine = remote_engine(deployed, DirectCarrier(sites))
    scenario = "overlapping" if shared else "horizontal"
    there = runner.rounds(runner.build_experiment(deployed, engine, Schema(12, 3, 3), None, scenario, names))
    tried = resolve(algorithm, dataset=str(tmp_path / "data"), partition="files", seed=3, values={"rounds": 3, **values})
    assert (tried.settings, tried.split, tried.run, tried.data) == (
        deployed.settings,
        deployed.split,
        deployed.run,
        deployed.data,
    )
    here = runner.run(tried)
    assert (here.scenario, here.names) == (there.scenario, there.names)
    for (name, value), (_, same) in zip(wire.leaves(here.state), wire.leaves(there.state), strict=True):
        assert torch.equal(value, same), name
    for row, other in zip(here.rows, there.rows, strict=True):
        assert {name: row[name] for name in other if name != "seconds"} == {n: v for n, v in other.items() if n != "seconds"}


def test_what_is_wrong_with_a_sites_data_stays_there(tmp_path: Path) -> None:
    """The server is told that the graph cannot be read; the site itself is told why."""
    folder, said = tmp_path / "bank", []
    folder.mkdir()
    (folder / "nodes.csv").write_text("id,age,label\n0,1.5,fraud\n1,secret-7,fine\n")
    (folder / "edges.csv").write_text("source,target\n0,1\n")
    deployed = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a"])
    ask = wire.encode({"atoll": remote.__version__, "run": "", "kind": "describe", "config": [deployed.to_dict()]})
    told = str(read_answer(Site(tmp_path, folder, said.append).handle(ask)))
    assert told == "refused: its graph could not be read; its log says why."
    assert "nodes.csv" in said[0]


def test_a_site_refuses_noise_that_the_server_can_foresee(tmp_path: Path) -> None:
    """The seed is the server's: with data of its own a site takes noise from its system only."""
    sites = sites_with_data(tmp_path, small("fedavg"))
    for source, fine in (("seed", False), ("system", True)):
        about = {"algorithm": "fedavg", "dp": {"verb": "fit", "noise_source": source}}
        deployed = launch.deployment_config(about, "run.toml", ["a", "b", "c"])
        ask = wire.encode({"atoll": remote.__version__, "run": "", "kind": "describe", "config": [deployed.to_dict()]})
        told = read_answer(sites["site-0"].handle(ask))
        assert isinstance(told, dict) if fine else "set dp.noise_source to system" in str(told)


def test_a_site_may_insist(tmp_path: Path) -> None:
    """A site takes part only in what its owner agreed to."""
    config = small("fedavg")
    for host, reason in (
        (Site(tmp_path, policy=SitePolicy(only=("fedspray",))), "takes part in fedspray only, not in fedavg"),
        (Site(tmp_path, policy=SitePolicy(secure=True)), "insists on secure aggregation"),
    ):
        carrier = DirectCarrier(simulated_sites(tmp_path) | {"site-1": host})
        results = remote_engine(config, carrier).deliver(fit_message(model=first_model(config)))
        (failure,) = [result for result in results if isinstance(result, Failure)]
        assert failure.party == 1
        assert reason in failure.reason


def test_vertical_parties_with_folders_of_their_own(tmp_path: Path) -> None:
    """The same nodes, other columns and edges at each site: the numbers of the simulation; without their order it is refused."""
    config = small("standalone")
    parts = federate(config, None, ("vertical",)).parts
    assert parts.widths is not None
    for party, width in enumerate(parts.widths):
        graph = parts.select([party])
        narrow = graph.x[:, :width] if isinstance(graph.x, torch.Tensor) else graph.x.tocsc()[:, :width].tocsr()
        files.save(dataclasses.replace(graph, x=narrow, widths=None), tmp_path / f"data-{party}")
    sites = {f"site-{party}": Site(tmp_path / f"site-{party}", tmp_path / f"data-{party}") for party in range(3)}
    deployed = launch.deployment_config({"algorithm": "standalone", "seed": 3}, "run.toml", ["a", "b", "c"])
    deployed = dataclasses.replace(deployed, settings=config.settings, run=config.run)
    ask = wire.encode({"atoll": remote.__version__, "run": "", "kind": "describe", "config": [deployed.to_dict()]})
    about = {site: read_answer(host.handle(ask)) for site, host in sites.items()}
    form = check_compatible(about, "vertical")
    assert dataclasses.replace(form, order={}) == CommonForm(max(parts.widths), 3, nodes=60)
    schema = Schema(max(parts.widths), 3, 3)
    roster = {f"site-{index}": [index] for index in range(3)}
    there = RemoteEngine(DirectCarrier(sites), roster, deployed.to_dict(), schema, timeout=5.0, order=form.order)
    assert_same(runner.run(config), runner.rounds(runner.build_experiment(deployed, there, schema, None, "vertical")), 1e-5)
    unordered = RemoteEngine(DirectCarrier(sites), roster, deployed.to_dict(), schema, timeout=5.0)
    assert "does not say which nodes all sites hold" in str(unordered._begin(["site-0"])["site-0"])
