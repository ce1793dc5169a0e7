"""Parties that have names are called by them: in results, history, progress, errors and reports. Numbers stay on the wire."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from atoll import reports, wire
from atoll.cli.console import _score
from atoll.cli.partition import partition_table
from atoll.data import files
from atoll.data.federated import federate
from atoll.data.statistics import partition_statistics
from atoll.deploy import launch
from atoll.deploy.server import ServerRun
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.parties import Parties
from atoll.reports.figures.partition import partition
from atoll.reports.partitions import partition_of
from atoll.reports.runs import gather, grouped
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from small import Absent, small

BANKS = ("bank-a", "bank-b", "bank-c")


class Wire:
    """A carrier that calls the sites directly; `silent` ones do not answer from a round on."""

    def __init__(self, sites: Mapping[str, Site], silent: Mapping[str, int]) -> None:
        self.sites, self.silent = sites, silent

    def session(self, site: str) -> str:
        """Everybody is connected."""
        return site

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        return {site: self._ask(site, data) for site, data in requests.items()}

    def _ask(self, site: str, data: bytes) -> bytes | str:
        request = wire.decode(data)
        if request.get("kind") == "ask" and request["round"] >= self.silent.get(site, 99):
            return "timed out after 5 seconds"
        return self.sites[site].handle(data)


def banks(folder: Path, **run: Any) -> tuple[Config, dict[str, Site]]:
    """A configuration for three banks with folders of their own."""
    config = small("fedavg")
    parts = federate(config, None, ("horizontal",)).parts
    for party, bank in enumerate(BANKS):
        files.save(parts.select([party]), folder / "data" / bank)
    deployed = launch.deployment_config({"algorithm": "fedavg", "seed": 3, "run": {"rounds": 3, **run}}, "run.toml", BANKS)
    deployed = dataclasses.replace(deployed, settings=config.settings)
    return deployed, {bank: Site(folder / "sites" / bank, folder / "data" / bank) for bank in BANKS}


def served(folder: Path, silent: Mapping[str, int], **run: Any) -> Path:
    """The server's side of a run over the banks, as inside NVFlare's server process; the run's folder."""
    config, sites = banks(folder, **run)
    out = Folder.create(folder / "out", config).path
    order = {"config": config.to_dict(), "roster": {bank: (place, place + 1) for place, bank in enumerate(BANKS)}}
    ServerRun(Wire(sites, silent), order | {"simulated": False, "patience": 1.0, "out": str(out), "resume": False}).execute()  # type: ignore[arg-type]
    return out


def test_a_deployed_run_names_its_parties(tmp_path: Path) -> None:
    """result.json has the names in party order; who was missing stands in the history by number and by name; so progress."""
    out = served(tmp_path, {"bank-b": 2})
    result = json.loads((out / "result.json").read_text())
    assert result["parties"] == 3
    assert result["names"] == list(BANKS)
    rows = Folder(out).rows()
    assert "missing_names" not in rows[0]
    assert rows[1]["missing"] == {"1": "bank-b timed out after 5 seconds"}
    assert rows[1]["missing_names"] == {"1": "bank-b"}
    assert _score(rows[1]).endswith("bank-b missing")
    assert runner.read(out).names == BANKS


def test_the_report_of_a_deployed_run_names_its_parties(tmp_path: Path) -> None:
    """The bars of each party stand over its name."""
    told = reports.make([served(tmp_path, {})], embeddings="none")
    (drawn,) = [figure for figure in told.figures if figure.name == "party-accuracy"]
    assert list(drawn.series[0].x) == list(BANKS)
    assert "bank-b" in reports.page.render(told)


def test_errors_call_a_party_by_its_name(tmp_path: Path) -> None:
    """One sentence that says which bank, once."""
    config, sites = banks(tmp_path, on_missing="stop")
    roster = {bank: Parties([place]) for place, bank in enumerate(BANKS)}
    engine = RemoteEngine(Wire(sites, {"bank-b": 2}), roster, config.to_dict(), Schema(12, 3, 3), timeout=5.0)
    experiment = runner.build_experiment(config, engine, Schema(12, 3, 3), None, "horizontal", BANKS)
    with pytest.raises(AtollError, match=r"stopped the run \(party bank-b: timed out after 5 seconds\)"):
        runner.rounds(experiment)


def test_simulated_parties_have_numbers(tmp_path: Path) -> None:
    """Nothing is invented: no names in the result or the history, and errors count parties as before."""
    experiment = runner.prepare(small("fedavg"), engine=lambda inner: Absent(inner, {2}, {1}))
    result = runner.rounds(experiment, Folder.create(tmp_path / "run", experiment.config))
    assert result.names == ()
    assert "names" not in json.loads((tmp_path / "run" / "result.json").read_text())
    assert result.rows[1]["missing"] == {"1": "timed out"}
    assert "missing_names" not in result.rows[1]
    assert _score(result.rows[1]).endswith("1 missing")
    with pytest.raises(AtollError, match="party 1: timed out"):
        runner.rounds(runner.prepare(small("fedavg", on_missing="stop"), engine=lambda inner: Absent(inner, {2}, {1})))


def test_folders_name_their_parties(tmp_path: Path) -> None:
    """Own vertical data in one folder per party: the folders' names, in the result, the report and the partition's table."""
    people = [(f"p{number}", number % 2) for number in range(12)]
    edges = "source,target\n" + "".join(f"p{n},p{(n + 2) % 12}\n" for n in range(12))
    for name, text in {
        "shop": "id,spent\n" + "".join(f"{name},{label}\n" for name, label in people),
        "bank": "id,age,label\n" + "".join(f"{name},{n},{'ab'[label]}\n" for n, (name, label) in enumerate(people)),
    }.items():
        (tmp_path / "data" / name).mkdir(parents=True)
        (tmp_path / "data" / name / "nodes.csv").write_text(text)
        (tmp_path / "data" / name / "edges.csv").write_text(edges)
    from atoll.runs import config as configuration

    values = {"rounds": 2, "hidden": 8, "batch_size": 4, "split": "random", "label_holder": 0}
    config = configuration.resolve("glasu", dataset=str(tmp_path / "data"), partition="files", values=values)
    result = runner.run(config, out=tmp_path / "run")
    assert result.names == ("bank", "shop")
    drawn = partition(partition_of(config))  # type: ignore[arg-type]
    assert list(drawn[0].series[0].x) == ["bank", "shop"]
    (row,) = grouped(gather([tmp_path / "run"]))
    assert row.runs[0].result.names == ("bank", "shop")
    data = federate(config, None, ("vertical",))
    shown = partition_table(partition_statistics(data.parts, data.source), names=data.names)
    assert [str(cell) for cell in shown.columns[0].cells] == ["bank", "shop"]
