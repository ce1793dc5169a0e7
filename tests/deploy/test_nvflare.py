"""The engine across processes: the same numbers, whoever is killed; strangers and nonsense are refused.

The first part needs no processes: the two ends talk through a carrier made for the test. The second starts real ones on loopback.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from small import ALGORITHMS, small

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from nvflare.fuel.f3.endpoint import EndpointState

from atoll import wire
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import audit, launch, site, supervisor
from atoll.deploy import kit as kits
from atoll.deploy.carrier import NVFlareCarrier
from atoll.deploy.compatibility import CommonForm, check_compatible
from atoll.deploy.policy import SitePolicy
from atoll.deploy.server import ServerRun
from atoll.deploy.site import Site
from atoll.engines import remote
from atoll.engines.remote import RemoteEngine, invalid_fields, read_answer
from atoll.errors import AtollError
from atoll.federation.cohort import Message, Schema
from atoll.federation.federation import Answer, Failure
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.runner import Result
from test_promises import assert_same, numbers

PATIENCE = 240.0  # seconds for processes on a busy machine
shared = pytest.mark.xdist_group("nvflare")  # tests of one running federation
ACROSS = [name for name in ("fedavg", "fedspray", "fedgl", "glasu", "gfl_appnp", "nfedgnn") if name in ALGORITHMS]


# The two ends, without processes


class Wire:
    """A carrier that calls the hosts directly; a test may put other answers in the place of a site's."""

    def __init__(self, hosts: Mapping[str, Site]) -> None:
        self.hosts = dict(hosts)
        self.instead: dict[str, Callable[[bytes], bytes | str]] = {}

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every host in turn."""
        return {site: self.instead.get(site, self.hosts[site].handle)(data) for site, data in requests.items()}


def hosts(folder: Path) -> dict[str, Site]:
    """Three simulated sites."""
    return {f"site-{place}": Site(folder / f"site-{place}") for place in range(3)}


def engine(config: Config, carrier: Wire, *, exact: bool = False) -> RemoteEngine:
    """The server's end for three parties at three sites."""
    roster = {f"site-{place}": [place] for place in range(3)}
    return RemoteEngine(carrier, roster, config.to_dict(), Schema(12, 3, 3), timeout=5.0, exact=exact)


def over(config: Config, carrier: Wire, folder: Folder | None = None, checkpoint: Any = None) -> Result:
    """A run over a carrier."""
    data = federate(config, None, ("horizontal",))
    experiment = runner.build_experiment(
        config, engine(config, carrier, exact=config.run.missing == "stop"), Schema(12, 3, 3), data, data.scenario
    )
    return runner.rounds(experiment, folder, None, checkpoint)


def question(verb: str = "fit", round: int = 1, parties: Any = (0, 1, 2), **common: Any) -> Message:
    """A message to all three parties."""
    return Message(verb, round, 0, True, parties, common, {})


def model(config: Config) -> Any:
    """A first model for fedavg."""
    return runner.prepare(config).algorithm.start(runner.prepare(config).federation, config.settings)["model"]


def test_the_two_ends_agree_with_one_process(tmp_path: Path) -> None:
    """Messages through bytes and back: the same bits as in one process, with memory at the sites."""
    config = small("fedspray")
    assert_same(runner.run(config), over(config, Wire(hosts(tmp_path))), 0.0)


BAD: dict[str, tuple[Callable[[bytes], bytes | str], str]] = {
    "garbage": (lambda data: b"\x00garbage", "could not be read"),
    "empty": (lambda data: b"", "could not be read"),
    "version": (lambda data: wire.encode({"atoll": "9.9", "status": "ok"}), "runs atoll 9.9"),
    "silence": (lambda data: "timed out after 5 seconds", "timed out"),
    "scalar": (lambda data: answer({"model": 3}), "'model'"),
    "rows": (lambda data: answer({"model": torch.zeros(2, 4)}), "a row for each of its 1 parties"),
    "ragged": (lambda data: answer({"model": [torch.zeros(4), torch.zeros(4)]}), "a tensor for each of its 1 parties"),
    "clash": (lambda data: wire.encode({"a": torch.zeros(1), "a/b": torch.zeros(1)}), "could not be read"),
    "long reason": (lambda data: wire.encode({"atoll": remote.__version__, "status": "x", "reason": "no\n" * 999}), "no no"),
}


def answer(fields: dict[str, Any]) -> bytes:
    """A well-formed answer with these fields."""
    return wire.encode({"atoll": remote.__version__, "status": "ok", "fields": fields})


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_a_failure_of_its_party(kind: str, tmp_path: Path) -> None:
    """Whatever one site sends, it fails alone, by name, and the others are heard."""
    config = small("fedavg")
    carrier = Wire(hosts(tmp_path))
    server = engine(config, carrier)
    first = model(config)
    server.deliver(question(model=first))
    bad, reason = BAD[kind]
    carrier.instead["site-1"] = bad
    results = server.deliver(question(model=first))
    assert sorted(party for result in results if isinstance(result, Answer) for party in result.parties) == [0, 2]
    (failure,) = [result for result in results if isinstance(result, Failure)]
    assert failure.party == 1
    assert failure.reason.startswith("site-1 ")
    assert reason in failure.reason
    assert len(failure.reason) < 400
    assert "\n" not in failure.reason


def test_an_oversize_message_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A message beyond the limit is not even opened, at either end."""
    monkeypatch.setattr(remote, "MAX_MESSAGE_BYTES", 10)
    assert "more than the 10 that are taken" in str(read_answer(answer({})))
    monkeypatch.undo()
    monkeypatch.setattr(site, "MAX_MESSAGE_BYTES", 10)
    assert "refused: the message has 11 bytes, more than the 10" in str(read_answer(Site(tmp_path).handle(b"x" * 11)))


def test_an_answer_that_breaks_nvflare_is_a_failure_of_its_site(caplog: pytest.LogCaptureFixture) -> None:
    """NVFlare raising while it takes one site's answer apart does not end the others' round."""

    def send_request(**anything: Any) -> Any:
        raise ValueError("bad blob")

    ready = SimpleNamespace(
        endpoint=SimpleNamespace(state=EndpointState.READY), connections=[SimpleNamespace(get_name=lambda: "CN1")]
    )
    manager = SimpleNamespace(sfm_endpoints={"site-0": ready})
    cell = SimpleNamespace(
        send_request=send_request,
        requests_dict={},
        core_cell=SimpleNamespace(communicator=SimpleNamespace(conn_manager=manager)),
    )
    assert NVFlareCarrier(cell).send({"site-0": b"", "site-1": b""}, 1.0) == {
        "site-0": "could not be reached (ValueError)",
        "site-1": "is not connected",
    }
    assert "site-0 could not be asked" in caplog.text


def test_answers_come_in_the_order_of_asking() -> None:
    """The first site's columns are everybody's order: who answers first must not decide who is first."""
    last = threading.Event()

    def send_request(target: str, **anything: Any) -> Any:
        last.wait(10) if target == "site-0" else last.set()
        return SimpleNamespace(get_header=lambda name: None, payload=target.encode())

    ready = SimpleNamespace(
        endpoint=SimpleNamespace(state=EndpointState.READY), connections=[SimpleNamespace(get_name=lambda: "CN1")]
    )
    manager = SimpleNamespace(sfm_endpoints={"site-0": ready, "site-2": ready})
    cell = SimpleNamespace(
        send_request=send_request,
        requests_dict={},
        core_cell=SimpleNamespace(communicator=SimpleNamespace(conn_manager=manager)),
    )
    replies = NVFlareCarrier(cell).send({"site-0": b"", "site-1": b"", "site-2": b""}, 1.0)
    assert list(replies.items()) == [("site-0", b"site-0"), ("site-1", "is not connected"), ("site-2", b"site-2")]


def run_of(config: Config, folder: Path, carrier: Any = None, *, simulated: bool = True, resume: bool = False) -> ServerRun:
    """The server's side of a run of three sites."""
    order = {"config": config.to_dict(), "roster": {f"site-{place}": (place, place + 1) for place in range(3)}}
    return ServerRun(carrier, order | {"simulated": simulated, "patience": 1.0, "out": str(folder), "resume": resume})


def test_the_log_tells_who_was_left_out_and_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What a site sent and the server would not take stands in its log, once; the round is passed on."""
    bad = {"1": "field 'model/w' is not finite", "2": "site-2 timed out after 5 seconds"}
    run_of(small("fedavg"), tmp_path)._report_round({"round": 4, "missing": bad}, 9)
    assert [record.getMessage() for record in caplog.records] == ["round 4: left out site-1: field 'model/w' is not finite"]


def test_a_run_that_is_taken_up_goes_on_without_a_site_that_hangs(tmp_path: Path) -> None:
    """With missing=continue a site that is connected but silent is not needed to know the form of the data; at first it is."""

    class Silent(Wire):
        """All are connected; one does not answer."""

        def session(self, site: str) -> str:
            """A connection."""
            return site

    config = small("fedavg")
    carrier = Silent(own(tmp_path, config))
    carrier.instead["site-2"] = lambda data: "timed out after 5 seconds"
    deployed = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a", "b", "c"])
    assert run_of(deployed, tmp_path, carrier, simulated=False, resume=True)._schema(None) == Schema(12, 3, 3)
    with pytest.raises(AtollError, match="The site site-2 cannot take part: it timed out"):
        run_of(deployed, tmp_path, carrier, simulated=False)._schema(None)


def test_a_field_of_the_right_form_fits() -> None:
    """Nested fields, rows and ragged lists of one tensor a party are fine."""
    assert invalid_fields({"a": {"b": torch.zeros(2, 3)}, "c": [torch.zeros(1), torch.zeros(2)]}, 2) == ""
    assert invalid_fields({"a": torch.tensor(3.0)}, 1)


def test_not_a_number_is_refused_by_name(tmp_path: Path) -> None:
    """NaN from a site: the federation names party and field, the round goes on without it."""
    config = small("fedavg", rounds=2)
    carrier = Wire(hosts(tmp_path))

    def poison(data: bytes) -> bytes:
        request = wire.decode(data)
        reply = wire.decode(carrier.hosts["site-1"].handle(data))
        if request["kind"] == "ask" and request["round"] == 2 and request["training"]:
            next(iter(reply["fields"]["model"].values()))[:] = float("nan")
        return wire.encode(reply)

    carrier.instead["site-1"] = poison
    result = over(config, carrier)
    assert "missing" not in result.rows[0]
    assert "is not finite" in result.rows[1]["missing"]["1"]


def test_a_site_never_raises_and_never_tells_why_it_broke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage, other versions, unknown kinds, verbs and runs, foreign parties: an answer with a reason, and no data in it."""
    config = small("fedavg")
    host = Site(tmp_path)
    assert "could not be read" in str(read_answer(host.handle(b"garbage")))
    assert "this site runs" in str(read_answer(host.handle(wire.encode({"atoll": "9.9", "kind": "ask"}))))
    version = remote.__version__
    assert read_answer(host.handle(wire.encode({"atoll": version, "kind": "ask", "run": "x"}))) == "does not know the run"
    carrier = Wire({"site-0": host, "site-1": Site(tmp_path / "1"), "site-2": Site(tmp_path / "2")})
    server = engine(config, carrier)
    server.deliver(question(model=model(config)))
    about = {"atoll": version, "run": server.run}
    ask = {**about, "kind": "ask", "verb": "fit", "round": 1, "call": 0, "training": True}
    assert "no message 'shell'" in str(read_answer(host.handle(wire.encode({**about, "kind": "shell"}))))
    assert "no verb 'recall'" in str(
        read_answer(host.handle(wire.encode({**ask, "verb": "recall", "parties": torch.tensor([0])})))
    )
    assert "do not live here" in str(read_answer(host.handle(wire.encode({**ask, "parties": torch.tensor([1])}))))
    asked = wire.encode({**ask, "parties": torch.tensor([0]), "common": {"model": model(config)}})

    def fail(model: Any) -> None:
        raise TypeError("secret-7")

    monkeypatch.setattr(host.cohort, "train", fail)
    broken = str(read_answer(host.handle(asked)))
    assert "failed (TypeError; its log says more)" in broken
    assert "secret" not in broken


def test_a_restarted_site_goes_on_from_its_own_save(tmp_path: Path) -> None:
    """A site that forgot the run is told of it again, loads its save of the last checkpoint, and answers."""
    config = small("fedspray", rounds=6, checkpoint_every=2)
    whole = over(config, Wire(hosts(tmp_path / "whole")))
    carrier = Wire(hosts(tmp_path / "sites"))
    handle = carrier.hosts["site-1"].handle
    said: list[str] = []

    def restart(data: bytes) -> bytes:
        request = wire.decode(data)
        if request["kind"] == "ask" and request["round"] == 3 and not said:  # after the save of round 2, before anything of 3
            carrier.hosts["site-1"] = Site(tmp_path / "sites" / "site-1", None, said.append)
        return carrier.hosts["site-1"].handle(data)

    carrier.instead["site-1"] = restart
    result = over(config, carrier, Folder.create(tmp_path / "run", config))
    assert handle is not carrier.hosts["site-1"].handle
    assert any("going on from round 2" in text for text in said)
    assert_same(whole, result, 0.0)


def test_a_lost_site_and_exact_resume(tmp_path: Path) -> None:
    """With missing=stop a lost site stops the run; resumed from the checkpoint with everybody back, the bits are the same."""
    config = small("fedspray", rounds=5, checkpoint_every=1, missing="stop")
    whole = over(config, Wire(hosts(tmp_path / "whole")))
    carrier = Wire(hosts(tmp_path / "sites"))

    def vanish(data: bytes) -> bytes | str:
        request = wire.decode(data)
        return "lost the connection" if request.get("round") == 4 else carrier.hosts["site-2"].handle(data)

    carrier.instead["site-2"] = vanish
    folder = Folder.create(tmp_path / "run", config)
    with pytest.raises(AtollError, match="party 2: site-2 lost the connection"):
        over(config, carrier, folder)
    again = Wire(hosts(tmp_path / "sites"))
    resumed = over(config, again, folder, folder.load())
    assert_same(whole, resumed, 0.0)
    assert numbers(whole) == numbers(resumed)
    kept = sorted(path.name for path in (tmp_path / "sites" / "site-0").glob("*/*.safetensors"))
    assert kept == ["3.safetensors", "4.safetensors", "5.safetensors"]


def test_a_site_without_its_save(tmp_path: Path) -> None:
    """Where a site's saves are gone, an exact resume is refused by name; otherwise the site begins anew and says so."""
    config = small("fedspray", rounds=2, checkpoint_every=1)
    folder = Folder.create(tmp_path / "run", config)
    over(config, Wire(hosts(tmp_path / "sites")), folder)
    checkpoint = folder.load()
    assert checkpoint is not None
    said: list[str] = []
    fresh = hosts(tmp_path / "sites") | {"site-1": Site(tmp_path / "elsewhere", None, said.append)}
    with pytest.raises(AtollError, match="site-1 refused: the save of round 2 is not here"):
        engine(config, Wire(fresh), exact=True).restore(checkpoint["memory"])
    engine(config, Wire(fresh)).restore(checkpoint["memory"])
    assert any("the beginning" in text for text in said)


def test_personal_models_stay_at_the_site(tmp_path: Path) -> None:
    """At the end a site writes its own models; of its saves the last is kept."""
    config = small("fedspray", rounds=2)
    carrier = Wire(hosts(tmp_path))
    data = federate(config, None, ("horizontal",))
    experiment = runner.build_experiment(config, engine(config, carrier), Schema(12, 3, 3), data, data.scenario)
    runner.rounds(experiment)
    experiment.engine.finish()  # type: ignore[attr-defined]
    cohort = carrier.hosts["site-1"].cohort
    assert cohort is not None
    (written,) = (tmp_path / "site-1").glob("*/personal.safetensors")
    models = wire.decode(written.read_bytes())
    assert "gnn" in models
    for name, value in models["gnn"].items():
        torch.testing.assert_close(value, dict(cohort.gnn.named_parameters())[name].detach()[0])


def test_a_mixture_is_part_of_the_personal_model(tmp_path: Path) -> None:
    """APFL's personal model is α·v + (1−α)·w: a site keeps α with v."""
    config = small("apfl", rounds=1)
    carrier = Wire(hosts(tmp_path))
    server = engine(config, carrier)
    server.deliver(question(model=model(config)))
    server.finish()
    (written,) = (tmp_path / "site-1").glob("*/personal.safetensors")
    kept = wire.decode(written.read_bytes())
    assert set(kept) == {"personal", "mixture"}
    assert torch.equal(kept["mixture"], carrier.hosts["site-1"].cohort.mixture[0])  # type: ignore[union-attr]


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

        def part(self, sites: Any) -> None:
            """Note who is told."""
            told.append(tuple(sites))

        def stop(self) -> None:
            """Nothing to end."""

    monkeypatch.setattr(launch, "ServerProcess", Standing)
    assert launch.serve(kit, config, tmp_path / "out") == "result"  # type: ignore[comparison-overlap]
    assert told == [True, ("bank-a",)]


def own(tmp_path: Path, config: Config) -> dict[str, Site]:
    """Three sites with folders of their own, saved from a partition of the test's graph."""
    parts = federate(config, None, ("horizontal",)).parts
    for party in range(3):
        files.save(parts.select([party]), tmp_path / "data" / f"bank-{party}")
    return {f"site-{party}": Site(tmp_path / f"site-{party}", tmp_path / "data" / f"bank-{party}") for party in range(3)}


def test_own_folders_give_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    """Three sites with their own graph folders and one process with all parties: the same bits."""
    config = small("fedavg")
    sites = own(tmp_path, config)
    names = {"algorithm": "fedavg", "seed": 3, "run": {"rounds": 3}}
    deployed = launch.deployment_config(names, "run.toml", ["a", "b", "c"])
    deployed = dataclasses.replace(deployed, settings=config.settings, run=config.run)
    experiment = runner.build_experiment(deployed, engine(deployed, Wire(sites)), Schema(12, 3, 3), None, "horizontal")
    assert_same(runner.run(config), runner.rounds(experiment), 0.0)


def test_sites_must_agree_on_the_form_of_the_data(tmp_path: Path) -> None:
    """What sites say of their graphs, and the sentence that says who differs in what."""
    sites = own(tmp_path, small("fedavg"))
    deployed = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a", "b", "c"])
    ask = wire.encode({"atoll": remote.__version__, "run": "", "kind": "describe", "config": [deployed.to_dict()]})
    about = {site: read_answer(host.handle(ask)) for site, host in sites.items()}
    assert check_compatible(about, "horizontal") == CommonForm(12, 3)
    wider = about | {"site-1": {**about["site-1"], "features": 13}}  # type: ignore[dict-item]
    with pytest.raises(AtollError, match="site-0 has 12 features and site-1 has 13"):
        check_compatible(wider, "horizontal")
    with pytest.raises(AtollError, match="site-2 names its classes and site-0 does not"):
        check_compatible(about | {"site-2": {**about["site-2"], "names": torch.tensor([7, 8, 9])}}, "horizontal")  # type: ignore[dict-item]
    with pytest.raises(AtollError, match="site site-1 cannot take part: it timed out"):
        check_compatible(about | {"site-1": "timed out"}, "horizontal")
    assert "no data of its own" in str(read_answer(Site(tmp_path).handle(ask)))


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
    sites = own(tmp_path, small("fedavg"))
    for source, fine in (("seed", False), ("system", True)):
        about = {"algorithm": "fedavg", "dp": {"verb": "fit", "source": source}}
        deployed = launch.deployment_config(about, "run.toml", ["a", "b", "c"])
        ask = wire.encode({"atoll": remote.__version__, "run": "", "kind": "describe", "config": [deployed.to_dict()]})
        told = read_answer(sites["site-0"].handle(ask))
        assert isinstance(told, dict) if fine else "set dp.source to system" in str(told)


def test_a_site_may_insist(tmp_path: Path) -> None:
    """A site takes part only in what its owner agreed to."""
    config = small("fedavg")
    for host, reason in (
        (Site(tmp_path, policy=SitePolicy(only=("fedspray",))), "takes part in fedspray only, not in fedavg"),
        (Site(tmp_path, policy=SitePolicy(secure=True)), "insists on secure aggregation"),
    ):
        carrier = Wire(hosts(tmp_path) | {"site-1": host})
        results = engine(config, carrier).deliver(question(model=model(config)))
        (failure,) = [result for result in results if isinstance(result, Failure)]
        assert failure.party == 1
        assert reason in failure.reason


def test_vertical_parties_with_folders_of_their_own(tmp_path: Path) -> None:
    """The same nodes, other columns and edges at each site: the same bits as the simulation; other nodes are refused."""
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
    assert check_compatible(about, "vertical") == CommonForm(max(parts.widths), 3, nodes=60)
    with pytest.raises(AtollError, match="site-0 has 60 nodes and site-1 has 61"):
        check_compatible(about | {"site-1": {**about["site-1"], "nodes": 61}}, "vertical")  # type: ignore[dict-item]
    schema = Schema(max(parts.widths), 3, 3)
    roster = {f"site-{place}": [place] for place in range(3)}
    there = RemoteEngine(Wire(sites), roster, deployed.to_dict(), schema, timeout=5.0)
    assert_same(runner.run(config), runner.rounds(runner.build_experiment(deployed, there, schema, None, "vertical")), 1e-5)


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


def test_kits(tmp_path: Path) -> None:
    """A kit for every end, with keys only its owner may read; the authority's own key is nowhere; the wrong end is refused."""
    made = kits.provision(["bank-a", "bank-b"], "server.example", tmp_path, port=9000)
    assert [path.name for path in made] == ["server", "bank-a", "bank-b"]
    kit = kits.Kit.open(tmp_path / "bank-b", server=False)
    assert (kit.site, kit.sites, kit.host, kit.port) == ("bank-b", ("bank-a", "bank-b"), "server.example", 9000)
    keys = sorted(tmp_path.rglob("*.key"))
    assert [path.parent.parent.name for path in keys] == ["bank-a", "bank-a", "bank-b", "bank-b", "server"]  # TLS and signing
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
    assert len([path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]) == len(keys)
    with pytest.raises(AtollError, match="is the server's kit"):
        kits.Kit.open(tmp_path / "server", server=False)
    with pytest.raises(AtollError, match="is the kit of the site 'bank-a'"):
        kits.Kit.open(tmp_path / "bank-a", server=True)
    with pytest.raises(AtollError, match="is no kit"):
        kits.Kit.open(tmp_path, server=True)
    (tmp_path / "bank-a" / "startup" / "client.key").unlink()
    with pytest.raises(AtollError, match=r"bank-a is no whole kit: startup/client\.key is missing"):
        kits.Kit.open(tmp_path / "bank-a", server=False)
    (tmp_path / "server" / "atoll.toml").write_text("sites = 'bank-a'\nhost = 'localhost'\nport = 1\n")
    with pytest.raises(AtollError, match="server is no kit"):
        kits.Kit.open(tmp_path / "server", server=True)
    with pytest.raises(AtollError, match="already exists"):
        kits.provision(["bank-a"], "server.example", tmp_path)


@pytest.mark.parametrize(
    ("names", "host", "port", "sentence"),
    [
        (["Bank A"], "localhost", 9000, "cannot be the name of a party"),
        (["server"], "localhost", 9000, "cannot be the name of a party"),
        (["a", "a"], "localhost", 9000, "every party once"),
        ([], "localhost", 9000, "every party once"),
        (["a"], "not a host", 9000, "no host name"),
        (["a"], "a..b", 9000, "no host name"),
        (["a"], "h" * 300, 9000, "no host name"),
        (["a"], "localhost", 70000, "between 1 and 65535"),
    ],
)
def test_kits_that_cannot_be_made(names: list[str], host: str, port: int, sentence: str, tmp_path: Path) -> None:
    """One sentence, and nothing is written."""
    with pytest.raises(AtollError, match=sentence):
        kits.provision(names, host, tmp_path / "kits", port=port)
    assert not (tmp_path / "kits").exists()


# Real processes on loopback


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[supervisor.LocalFederation]:
    """A server and three sites, shared by the tests below: starting them takes seconds."""
    folder = tmp_path_factory.mktemp("federation")
    with supervisor.local_federation(3, folder, folder / "sites", print) as standing:
        yield standing
    assert all(child.poll() is not None for child in [standing.server.child.process, *(g.child.process for g in standing.sites)])


def across(federation: supervisor.LocalFederation, config: Config, folder: Path, watch: Any = None) -> Result:
    """A run over the processes."""
    chosen = dataclasses.replace(config, engine="nvflare")
    parties = federate(config, None, runner.prepare(config).algorithm.SCENARIOS).parts.parties
    Folder.create(folder, chosen)
    return federation.run(chosen, folder, parties, watch=watch)


@shared
@pytest.mark.parametrize("algorithm", ACROSS)
def test_processes_give_the_same_numbers(algorithm: str, federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """Every site in a process of its own: the same states, metrics and bytes; at node level each site has twenty nodes."""
    config = small(algorithm, rounds=2)
    assert_same(runner.run(config), across(federation, config, tmp_path / "run"), 1e-5)


@shared
def test_secure_totals_and_noise_across_processes(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """What is done at the parties is done at the sites: masks that cancel, and noise drawn by the seed."""
    config = small("fedavg", rounds=2, secure="true", **{"dp.verb": "fit", "dp.clip": 1, "dp.noise": 0.1})
    assert_same(runner.run(config), across(federation, config, tmp_path / "run"), 1e-5)


def killing(at: int, process: Callable[[], subprocess.Popen[str]]) -> Callable[[dict[str, Any], int], None]:
    """A watch that kills a process, once, after a round."""
    killed: list[int] = []

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] >= at and not killed:
            killed.append(process().pid)
            os.kill(killed[0], signal.SIGKILL)

    return watch


@shared
@pytest.mark.parametrize("end", ["site", "server"])
def test_killed_and_taken_up_again(end: str, federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """SIGKILL to a site or to the server in the middle: the run goes on from the last checkpoint and ends with the same bits."""
    config = small("fedspray", rounds=60, checkpoint_every=3, missing="stop")
    whole = runner.run(config)
    child = federation.sites[1] if end == "site" else federation.server
    before = child.child.process.pid
    result = across(federation, config, tmp_path / "run", killing(4, lambda: child.child.process))
    assert child.child.process.pid != before
    assert_same(whole, result, 0.0)
    assert numbers(whole) == numbers(result)


@shared
def test_every_site_keeps_its_journal_in_its_kit(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """After a run whose site is killed in the middle: every chain is whole, and what the server counted is in the journals."""
    config = small("fedavg", rounds=30, checkpoint_every=3, missing="stop")
    result = across(federation, config, tmp_path / "run", killing(4, lambda: federation.sites[1].child.process))
    run = result.memory["run"]
    for guest in federation.sites:
        path = guest.kit.path / "journal.jsonl"
        assert audit.verify(path).broken == ()
        lines = [line.entry for line in audit.read(path) if line.entry and line.entry["run"] == run]
        rounds = [entry["round"] for entry in lines if entry.get("verb") == "fit" and entry["status"] == "ok"]
        assert sorted(set(rounds)) == list(range(1, 31))
        assert {entry["to"] for entry in lines} == {f"atoll-server at localhost:{guest.kit.port}"}


@shared
def test_the_others_go_on_and_the_lost_site_comes_back(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """With missing=continue a killed site is named and the rounds go on without it; in the next run it is there again."""
    config = small("fedavg", rounds=40)
    result = across(federation, config, tmp_path / "run", killing(3, lambda: federation.sites[2].child.process))
    missing = [row["missing"] for row in result.rows if "missing" in row]
    assert missing
    assert all(who.keys() == {"2"} and who["2"].startswith("site-2 ") for who in missing)
    assert result.rounds == 40
    again = across(federation, config, tmp_path / "again")
    assert not any("missing" in row for row in again.rows)


@shared
def test_a_site_that_does_not_answer_is_named(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """A site that hangs times out; the round goes on without it, and it is heard again as soon as it answers."""
    config = small("fedavg", rounds=40, timeout=10)
    stopped: list[int] = []

    def watch(row: dict[str, Any], rounds: int) -> None:
        if not stopped:
            stopped.append(federation.sites[0].child.process.pid)
            os.kill(stopped[0], signal.SIGSTOP)
        elif "missing" in row:
            os.kill(stopped[0], signal.SIGCONT)

    try:
        result = across(federation, config, tmp_path / "run", watch)
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    missing = [row["missing"] for row in result.rows if "missing" in row]
    assert {"0": "site-0 timed out after 10 seconds"} in missing
    assert "missing" not in result.rows[-1]


@shared
def test_strangers_are_refused(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """A known certificate under another name, another authority's, none at all: refused, and the federation goes on."""
    place, known = federation.server.kit, federation.sites[0].kit
    shutil.copytree(known.path, tmp_path / "renamed")
    renamed = dataclasses.replace(known, path=tmp_path / "renamed", site="site-9")
    policy = {"ATOLL_SITE_POLICY": SitePolicy(simulated=True).to_json()}
    stranger = supervisor.SiteProcess(renamed, tmp_path / "saves", None, print, print, policy)
    try:
        config = small("fedavg", rounds=2)
        assert_same(runner.run(config), across(federation, config, tmp_path / "run"), 1e-5)
        kits.provision(["site-0"], "localhost", tmp_path / "foreign", port=place.port)
        assert heard_with(place.port, tmp_path / "foreign" / "site-0" / "startup") == b""
        assert heard_with(place.port, None) == b""
        assert heard_with(place.port, known.path / "startup") == b"H"
        told = (place.path / "log.txt").read_text()
        assert "refused a connection from 127.0.0.1: CERTIFICATE_VERIFY_FAILED" in told
        assert "refused a connection from 127.0.0.1: PEER_DID_NOT_RETURN_A_CERTIFICATE" in told
        sentence = "authenticated as 'site-0' but claimed endpoint 'site-9'"
        wait_for(lambda: sentence in (place.path / "log.txt").read_text(), "the renamed site to be refused")
        stranger.poll()
        assert not stranger.joined
    finally:
        stranger.stop()
    assert_same(runner.run(config), across(federation, config, tmp_path / "again"), 1e-5)


def heard_with(port: int, certificate: Path | None) -> bytes:
    """The first byte that somebody with this certificate, or none, gets out of the server; nothing where it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        contextlib.suppress(ssl.SSLError, ConnectionError),
        context.wrap_socket(plain) as secured,
    ):
        secured.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return secured.recv(1)
    return b""


def wait_for(true: Callable[[], bool], what: str) -> None:
    """Until something is true of other processes."""
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends, f"waited in vain for {what}"
        time.sleep(0.1)


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
    banks = [command(tmp_path, "join", f"kits/{bank}", "--data", bank) for bank in ("bank-a", "bank-b")]
    first = command(tmp_path, *serve)
    try:
        history = tmp_path / "result" / "history.jsonl"
        wait_for(lambda: history.exists() and len(history.read_text().splitlines()) > 5, "the first rounds")
        first.kill()
        first.wait()
        second = command(tmp_path, *serve)
        assert second.wait(PATIENCE) == 0
        assert [bank.wait(PATIENCE) for bank in banks] == [0, 0]
    finally:
        for process in (first, *banks):
            process.kill()
            process.wait()
    chosen = launch.deployment_config(
        {"algorithm": "fedspray", "seed": 3, "run": {"rounds": 60}}, "run.toml", ["bank-a", "bank-b"]
    )
    here = RemoteEngine(
        Wire({f"bank-{x}": Site(tmp_path / "here" / x, tmp_path / f"bank-{x}") for x in "ab"}),
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


def command(folder: Path, *words: str) -> subprocess.Popen[bytes]:
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
        wait_for(lambda: len(psutil.Process(run.pid).children()) == 3, "a server and two sites")
        children = psutil.Process(run.pid).children()
        run.send_signal(number)
        assert run.wait(PATIENCE) == 128 + number
    finally:
        run.kill()
        run.wait()
    assert psutil.wait_procs(children, PATIENCE)[1] == []
    assert list(tmp_path.iterdir()) == []
