"""Starting a federation: `serve` and `join` across machines, `launch` with server and sites on this one."""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll import algorithms, storage
from atoll import device as devices
from atoll.data import files
from atoll.data.catalog import DataSettings
from atoll.data.damage import require_no_damage
from atoll.data.federated import federate
from atoll.data.graph_tables import has_graphs, read_graph_tables
from atoll.data.partition import SCENARIO_OF
from atoll.data.script_data import ScriptData
from atoll.data.splits import require_party_scope
from atoll.data.target_columns import target_of_folder
from atoll.deploy.kit import Kit, require_nvflare
from atoll.deploy.policy import SitePolicy
from atoll.deploy.signing import Signing
from atoll.deploy.supervisor import ServerProcess, SiteProcess, local_federation, with_prefix
from atoll.errors import AtollError, shown
from atoll.graphs.graph import Graph
from atoll.models import user
from atoll.runs import config as configuration
from atoll.runs import resumed_config
from atoll.runs.config import GIVEN, Config
from atoll.runs.folder import MODEL, Folder
from atoll.runs.loop import Watch
from atoll.runs.preparation import TableSettings, check_fit
from atoll.runs.reader import read
from atoll.runs.result import Result
from atoll.tasks.options import split_class_metric

JOIN_HINT_SECONDS = 20.0  # after which a site that has not joined tells its user
PORT_RELEASE_SECONDS = 5.0  # for the server of a killed `serve` to release its port
DEPLOYABLE = ("horizontal", "overlapping", "vertical")  # scenarios in which a site's own graph is one party


def launch(
    config: Config,
    given: Graph | ScriptData | None = None,
    *,
    out: str | Path | None = None,
    watch: Watch | None = None,
    resume: bool = False,
) -> Result:
    """Run with the server and each site in its own process on this machine; the numbers are the same as in one process."""
    require_nvflare()
    if isinstance(given, ScriptData) and given.dataset is None and given.partition is not None:
        raise AtollError(
            "The engine nvflare cannot take a partition as an object; save its node lists with numpy.savez (party_0, party_1, …) "
            "and name the file."
        )
    if given is not None:
        raise AtollError(
            "The engine nvflare cannot take a graph as an object; save it with atoll.data.files.save and name the folder."
        )
    model = getattr(config.settings, "model", "")
    if user.is_user_model(model) and user.file_of(model) is None:
        raise AtollError("The engine nvflare cannot take a model as an object; write it to a file and name that.")
    scenarios, unlabeled = algorithms.find(config.algorithm).SCENARIOS, algorithms.takes_unlabeled(config.algorithm)
    data = federate(config, None, scenarios, unlabeled=unlabeled, held=())  # bad data is refused before anything starts
    if data.parts.table is not None:
        check_fit(config, TableSettings.of(data.parts.table.columns), data.parts.parties)
    parties = data.parts.parties
    with tempfile.TemporaryDirectory(prefix="atoll-") as scratch:
        target = Path(scratch) / "run" if out is None else Path(out)
        sites = config.run.sites or min(parties, 8)
        files = [config.algorithm] if config.algorithm.endswith(".py") else []
        files += [model] if user.is_user_model(model) else []
        with (
            _using(target, config, resume),
            terminable(),
            local_federation(sites, Path(scratch), target / "sites", _warn, files) as federation,
        ):
            result = federation.run(config, target, parties, resume=resume, watch=watch)
            result.folder = None if out is None else target
            return result


def serve(kit: Kit, config: Config, target: Path, *, watch: Watch | None = None) -> Result:
    """Serve one run of a federation; a run that the folder already holds is resumed."""
    require_nvflare()
    resume = (target / "config.toml").exists()
    if resume and (differences := resumed_config.differing(Folder.open(target)[1].to_dict(), config.to_dict())):
        raise AtollError(
            f"{target} holds a run with another configuration ({resumed_config.describe(differences)}); "
            "give the --config that it began with, or choose another --out."
        )
    if resume and (target / MODEL).exists():
        with Folder(target).in_use():
            return read(target, config)
    with _in_use(kit):
        if not port_is_free(kit.port, PORT_RELEASE_SECONDS):
            raise AtollError(
                f"Port {kit.port} of this machine is in use; stop the process that listens there (perhaps another `atoll serve`)."
            )
        roster = {site: (party, party + 1) for party, site in enumerate(kit.sites)}
        with _using(target, config, resume):
            server = ServerProcess(kit, _warn, _warn)
            try:
                result = server.run(config, target, roster, simulated=False, resume=resume, patience=math.inf, watch=watch)
                server.dismiss(kit.sites)
            finally:
                server.stop()
        return result


def _in_use(kit: Kit) -> storage.Lock:
    return storage.Lock(kit.path, f"The kit {kit.path}")


@contextlib.contextmanager
def _using(target: Path, config: Config, resume: bool) -> Iterator[None]:
    """Lock the run's folder; a new one is removed again if not even one round was finished."""
    with Folder(target).in_use() if resume else Folder.begin(target, config):
        yield


def deployment_config(document: Mapping[str, Any], where: str, sites: Sequence[str]) -> Config:
    """The configuration of a run at sites that bring their own data."""
    reasons = {"dataset": "the sites bring their own data", "parties": f"the kit's {len(sites)} sites are the parties"}
    reasons |= {"start_from": "only a simulation can begin with a trained model"}
    for name in reasons.keys() & document.keys():
        raise AtollError(f"{where} says {name} = {document[name]!r}, but {reasons[name]}; remove the line.")
    config = configuration.from_dict({**document, "dataset": GIVEN}, where)
    if "split" not in document.get("split", {}):
        config = replace(config, split=replace(config.split, split="auto"))  # the data's own, not the paper's
    require_party_scope(config.split)
    require_no_damage(config.noise)
    if user.is_user_model(model := getattr(config.settings, "model", "")):
        raise AtollError(
            f"{where} names the model {model}, but sites run no code that the server names; install it as a package with an "
            "entry point in the group atoll.models at the server and at every site, and use its name."
        )
    _refuse_class_names(config, where)
    scenarios = algorithms.find(config.algorithm).SCENARIOS
    possible = [scenario for scenario in scenarios if scenario in DEPLOYABLE]
    if not possible:
        raise AtollError(
            f"{where}: {config.algorithm} cannot be run across sites with graphs of their own; choose another algorithm."
        )
    scenario = SCENARIO_OF.get(config.partition, config.partition) if "partition" in document else possible[0]
    if scenario not in possible:
        options = " or ".join(kind for kind in SCENARIO_OF if SCENARIO_OF[kind] in possible)
        raise AtollError(
            f"{where}: {config.algorithm} is for {' or '.join(possible)} parties; set partition to {options}, or leave it out."
        )
    return replace(config, partition=scenario, parties=len(sites), engine="nvflare")


def _refuse_class_names(config: Config, where: str) -> None:
    """The classes' names stay at the sites, so the server could not tell which class is meant: say it before anybody waits."""
    named = {name: split_class_metric(str(getattr(config.run, name)))[1] for name in ("select_by", "threshold")}
    weighed = [item.rpartition(":")[0].strip() for item in config.run.class_weight.split(",") if ":" in item]
    named["class_weight"] = next((label for label in weighed if not label.isdecimal()), "")
    for name, label in named.items():
        if label and not label.strip().isdecimal():
            raise AtollError(
                f"{where}: {name} names the class {label!r}, but the classes' names stay at the sites; give its number, counted "
                "from 0 in the order of the names (or of classes.txt)."
            )


def join(kit_path: str | Path, data: Path, policy: SitePolicy | None = None, *, device: str = "cpu") -> None:
    """Take part in a federation as a site until the server ends it; `policy` is what the site insists on.

    `device`: where the site computes, which is its own business.
    """
    require_nvflare()
    devices.find(device)
    policy = policy or SitePolicy()
    for name in policy.only:
        algorithms.find(name)
    kit = Kit.open(kit_path, server=False)
    if policy.secure:  # refuse now what would be refused later
        Signing.open(kit.path)
        policy.min_total_parties(len(kit.sites))
    with _in_use(kit):
        _join(kit, data, policy, device)


def own_graph(data: Path) -> Graph:
    """The data of a site, as far as it can be read before the federation's configuration is known."""
    if not has_graphs(data):
        return files.read(data, target=target_of_folder(str(data)))
    return read_graph_tables(data, DataSettings(target=target_of_folder(str(data))))


def _join(kit: Kit, data: Path, policy: SitePolicy, device: str) -> None:
    inform = with_prefix(str(kit.site), _warn)
    graph = own_graph(data)  # report problems with the data before joining
    address = f"{kit.host}:{kit.port}"
    columns = f"{graph.num_features} features" if graph.table is None else f"{len(graph.table.columns)} columns to encode"
    inform(f"{graph.num_nodes} nodes, {columns}, {graph.num_classes} classes; joining {address}")
    env = {"ATOLL_SITE_POLICY": policy.to_json(), "ATOLL_SITE_DEVICE": device}
    site, began, hinted = SiteProcess(kit, kit.path / "runs", data, inform, inform, env), time.monotonic(), False
    try:
        while not site.left:
            site.poll(0.5)
            if not site.joined and not hinted and time.monotonic() - began > JOIN_HINT_SECONDS:
                inform(f"not joined yet: is `atoll serve` running at {address}? {kit.path / 'log.txt'} says more; still trying")
                hinted = True
    finally:
        site.stop()
    inform("the federation is over")


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Inside, SIGTERM raises an exception as Ctrl-C does, so that everything is cleaned up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def port_is_free(port: int, patience: float = 0.0) -> bool:
    """Whether a server can listen there, now or within `patience` seconds: one that was killed may be about to exit."""
    deadline = time.monotonic() + patience
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)


def _warn(text: str) -> None:
    print(f"atoll: {shown(text)}", file=sys.stderr, flush=True)
