"""Sites for tests: in this process behind a carrier that calls them directly, or as processes on loopback."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll import wire
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import supervisor
from atoll.deploy.site import Site
from atoll.engines import remote
from atoll.engines.remote import RemoteEngine
from atoll.federation.cohort import Message, Schema
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.runner import Result

DEADLINE = 240.0  # seconds for processes on a busy machine


class DirectCarrier:
    """A carrier that calls the sites directly; a test may replace a site's answers."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.instead: dict[str, Callable[[bytes], bytes | str]] = {}

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        return {site: self.instead.get(site, self.sites[site].handle)(data) for site, data in requests.items()}


def simulated_sites(folder: Path) -> dict[str, Site]:
    """Three simulated sites."""
    return {f"site-{index}": Site(folder / f"site-{index}") for index in range(3)}


def sites_with_data(tmp_path: Path, config: Config) -> dict[str, Site]:
    """Three sites with folders of their own, saved from a partition of the test's graph."""
    parts = federate(config, None, ("horizontal",)).parts
    for party in range(3):
        files.save(parts.select([party]), tmp_path / "data" / f"bank-{party}")
    return {f"site-{party}": Site(tmp_path / f"site-{party}", tmp_path / "data" / f"bank-{party}") for party in range(3)}


def remote_engine(config: Config, carrier: DirectCarrier, *, exact: bool = False) -> RemoteEngine:
    """The server's engine for three parties at three sites."""
    roster = {f"site-{index}": [index] for index in range(3)}
    return RemoteEngine(carrier, roster, config.to_dict(), Schema(12, 3, 3), timeout=5.0, exact=exact)


def run_over(config: Config, carrier: DirectCarrier, folder: Folder | None = None, checkpoint: Any = None) -> Result:
    """A run over a carrier."""
    data = federate(config, None, ("horizontal",))
    experiment = runner.build_experiment(
        config, remote_engine(config, carrier, exact=config.run.on_missing == "stop"), Schema(12, 3, 3), data, data.scenario
    )
    return runner.rounds(experiment, folder, None, checkpoint)


def fit_message(verb: str = "fit", round: int = 1, parties: Any = (0, 1, 2), **common: Any) -> Message:
    """A message to all three parties."""
    return Message(verb, round, 0, True, parties, common, {})


def first_model(config: Config) -> Any:
    """The initial model of fedavg."""
    return runner.prepare(config).algorithm.start(runner.prepare(config).federation, config.settings)["model"]


def ok_answer(fields: dict[str, Any]) -> bytes:
    """A well-formed answer with these fields."""
    return wire.encode({"atoll": remote.__version__, "status": "ok", "fields": fields})


def run_across(federation: supervisor.LocalFederation, config: Config, folder: Path, watch: Any = None) -> Result:
    """A run over the processes."""
    chosen = dataclasses.replace(config, engine="nvflare")
    parties = federate(config, None, runner.prepare(config).algorithm.SCENARIOS).parts.parties
    Folder.create(folder, chosen)
    return federation.run(chosen, folder, parties, watch=watch)


def kill_after(last_round: int, process: Callable[[], subprocess.Popen[str]]) -> Callable[[dict[str, Any], int], None]:
    """A watch that kills a process once, after this round."""
    killed: list[int] = []

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] >= last_round and not killed:
            killed.append(process().pid)
            os.kill(killed[0], signal.SIGKILL)

    return watch


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> None:
    """Poll, up to the deadline, for something that only other processes can bring about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} seconds for {what}"
        time.sleep(0.05)
