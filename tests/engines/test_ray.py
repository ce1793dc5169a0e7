"""Actors on a Ray cluster of two nodes on this machine: the same numbers, also when an actor is killed or a node goes away."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'atoll[ray]'")

from atoll import algorithms
from atoll.engines import hosted, ray_cluster
from atoll.engines import ray as module
from atoll.engines.host import Open
from atoll.engines.hosted import HostedEngine, PortableMaker
from atoll.engines.ray import RayHosts
from atoll.engines.ray_cluster import PREFIX, RayCluster, load
from atoll.errors import AtollError, AtollWarning
from atoll.parties import divide_evenly
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from hosts import ROUNDS_AT_ONE_SITE, Divided, registered
from small import ALGORITHMS, Recorded, on_shards, small
from small_graphs import graph_data, small_graphs
from small_links import small_links
from test_promises import assert_same, numbers

__all__ = ["graph_data"]

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ray")]  # a cluster starts in seconds, its nodes are lost in tens
HERE = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
QUICKLY = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
ENDING_SECONDS = 100.0  # for processes that have been told to end: Ray's agent gives its last connections a minute
SELECTED = ("fedspray", "scaffold", "gcfl", "glasu", "nfedgnn", "gfl_appnp", "centralized")  # every kind of verb and scenario


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with room for two sites each; this process is connected to it."""
    ray = load()
    from ray.cluster_utils import Cluster

    left = Path("/tmp/ray").exists()  # where Ray notes the address of a cluster
    Path("/tmp/ray").mkdir(exist_ok=True)
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in HERE.items():
            patch.setenv(name, value)
        node = {"num_cpus": 2, "object_store_memory": 80 << 20}
        head = {**node, "include_dashboard": False, "temp_dir": folder, "_system_config": QUICKLY}
        nodes = Cluster(initialize_head=True, head_node_args=head)
        nodes.second = nodes.add_node(**node)
        joined = RayCluster(nodes.address)
        try:
            yield nodes
        finally:
            joined.close()
            nodes.shutdown()
            assert not ray.is_initialized()
    ray_cluster.remove(Path(folder))
    if not left:
        shutil.rmtree("/tmp/ray", ignore_errors=True)


class KeptHosts(RayHosts):
    """Actors that go from one run to the next, which spares the time that their processes take to start."""

    def start(self, site: int, open: Open) -> None:
        """An actor that is there is used again: a host forgets everything when a run begins."""
        if site not in self.actors:
            super().start(site, open)

    def close(self) -> None:
        """They stay."""


class KeptEngine:
    """The engine ray over actors that stay."""

    HOSTED = True

    def __init__(self, cluster: RayCluster) -> None:
        self.hosts = KeptHosts(cluster, {"num_cpus": 0.5, "num_gpus": 0}, 60.0)

    def connect(self, make: PortableMaker, parties: int, settings: Any) -> HostedEngine:
        """The engine of a run."""
        return HostedEngine(make, divide_evenly(parties, min(settings.sites, parties)), self.hosts, settings)


@pytest.fixture(scope="module")
def kept(cluster: Any) -> Iterator[None]:
    """An engine `kept` on the cluster, beside the engine `divided`."""
    engine = KeptEngine(RayCluster(cluster.address))
    with registered("kept", engine), registered("divided", Divided()):
        yield
    RayHosts.close(engine.hosts)


def levels(algorithm: str) -> Sequence[str]:
    """What an algorithm predicts: nodes, graphs, links."""
    found: Sequence[str] = getattr(algorithms.find(algorithm), "LEVELS", ("node",))
    return found


def config_for(algorithm: str, sites: int, **values: Any) -> Config:
    """A small run over so many sites, of four parties where their number is free."""
    config = small(algorithm, **values)
    many = {"parties": 4} if config.partition == "random" else {}
    return replace(config, **many, run=replace(config.run, sites=sites, cpus_per_site=0.5))


@pytest.mark.parametrize("sites", [1, 2, 4])
@pytest.mark.parametrize("algorithm", [pytest.param(a, marks=[] if a in SELECTED else pytest.mark.full) for a in ALGORITHMS])
def test_actors_give_the_same_numbers(kept: None, algorithm: str, sites: int) -> None:
    """The bits and bytes of as many cohorts in one process, and up to rounding those of one."""
    config = config_for(algorithm, sites)
    assert_equal(config, 1e-6 if sites == 1 and algorithm in ROUNDS_AT_ONE_SITE else 0.0)


def assert_equal(config: Config, tolerance: float = 0.0) -> None:
    """A run over actors has the bits of as many cohorts in one process, its bytes, and up to rounding the numbers of one."""
    there = runner.run(replace(config, engine="kept"))
    here = runner.run(replace(config, engine="divided"))
    assert_same(here, there, tolerance)
    assert there.detail == here.detail or tolerance
    assert numbers(here) == numbers(there) or tolerance
    assert_same(runner.run(config), there, 1e-5)


@pytest.mark.parametrize("sites", [1, 2, 4])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if "graph" in levels(name)])
@pytest.mark.usefixtures("graph_data")
def test_graph_classification(kept: None, algorithm: str, sites: int) -> None:
    """Parties with many small graphs each."""
    config = small_graphs(algorithm, {"fedproto": "nci1", "centralized": "nci1"}.get(algorithm, "chem"))
    assert_equal(replace(config, run=replace(config.run, sites=sites)))


@pytest.mark.parametrize("sites", [1, 2, 4])
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if "link" in levels(name)])
def test_link_prediction(kept: None, algorithm: str, sites: int) -> None:
    """Parties that predict links."""
    config = small_links(algorithm, algorithms.find(algorithm).SCENARIOS[0])
    many = {"parties": 4} if config.partition != "overlap" else {}
    assert_equal(replace(config, **many, run=replace(config.run, sites=sites)))


@pytest.mark.parametrize(
    "values",
    [{"secure": "true", "participation": 0.75}, {"dp.verb": "fit", "dp.clip": 1, "dp.noise": 1, "dp.noise_source": "seed"}],
)
def test_secure_totals_and_noise(kept: None, values: dict[str, Any]) -> None:
    """Masks cancel, noise is counted."""
    config = replace(config_for("fedavg", 3, **values), parties=5)
    here, there = (runner.run(replace(config, engine=engine)) for engine in ("divided", "kept"))
    assert_same(here, there, 0.0)
    assert numbers(here) == numbers(there)


def test_the_bill_is_exact(kept: None) -> None:
    """Every byte is billed, party by party."""
    recorded: list[Recorded] = []

    def record(engine: Any) -> Recorded:
        recorded.append(Recorded(engine))
        return recorded[0]

    with runner.prepare(replace(config_for("fedspray", 3), engine="kept"), engine=record) as experiment:
        runner.rounds(experiment)
    for round, rows in experiment.federation.ledger.rounds.items():
        for (verb, training), table in rows.items():
            for party, row in enumerate(table):
                if row.any():
                    assert row[:4].tolist() == recorded[0].bytes[round, verb, training, party]


def own_memory(pid: int) -> float:
    """MB of a process that no other shares."""
    psutil = pytest.importorskip("psutil")
    return float(psutil.Process(pid).memory_full_info().uss) / 1e6


def test_many_rounds_do_not_grow(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 rounds with 600 MB of messages through object stores of 80 MB: neither processes nor stores fill.

    What the server keeps of the messages since the last save has a limit of its own, which is low here.
    """
    monkeypatch.setattr(module, "RayHosts", Watched)
    monkeypatch.setattr(hosted, "MAX_LOG_BYTES", 1 << 22)
    config = replace(config_for("fedavg", 2, rounds=300, evaluate_every=50, **{"data.features": 2000}), engine="ray")
    samples: dict[int, dict[str, float]] = {}

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] in (100, 300):
            pids = {"server": os.getpid(), **{f"site {site}": Watched.made[-1].pid(site) for site in (0, 1)}}
            assert len(set(pids.values())) == 3
            samples[row["round"]] = {name: own_memory(pid) for name, pid in pids.items()}

    result = runner.run(config, watch=watch)
    assert result.bytes["up"] + result.bytes["down"] > 6e8
    grown = {name: samples[300][name] - before for name, before in samples[100].items()}
    assert max(grown.values()) < 12, grown
    folder = Path(cluster.head_node.get_session_dir_path())
    assert not [path for path in folder.rglob("*spill*/*") if path.is_file()]


class Watched(RayHosts):
    """Hosts that a test can find; the second site begins on the node with the resource `third`."""

    made: list[Watched] = []

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.made.append(self)
        self.starts = 0

    def start(self, site: int, open: Open) -> None:
        """As always, but for where the second one is."""
        usual, self.starts = self.options, self.starts + 1
        if self.starts == 2 and self.ray.cluster_resources().get("third"):
            self.options = {**usual, "resources": {"third": 1}}
        super().start(site, open)
        self.options = usual

    def pid(self, site: int) -> int:
        """The process of a site."""
        return int(self.ray.get(self.actors[site].__ray_call__.remote(lambda actor: os.getpid())))

    def kill(self, site: int) -> None:
        """End the process of a site by a signal."""
        os.kill(self.pid(site), signal.SIGKILL)


def test_an_actor_is_killed_and_a_node_removed(cluster: Any, kept: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mid-run, from shards, with `on_missing=stop`: both sites are started again, and nothing else changes."""
    monkeypatch.setattr(module, "RayHosts", Watched)
    third = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, resources={"third": 1})
    config = config_for("fedspray", 2, rounds=5, checkpoint_every=2, on_missing="stop")
    config = replace(on_shards(config, tmp_path / "shards"), engine="ray")

    def disturb(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            Watched.made[-1].kill(0)
        if row["round"] == 4:
            cluster.remove_node(third, allow_graceful=False)

    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AtollWarning)
            result = runner.run(config, out=tmp_path / "run", watch=disturb)
    finally:
        if third in cluster.worker_nodes:
            cluster.remove_node(third)
    here = runner.run(replace(config, engine="divided"))
    assert_same(here, result, 0.0)
    assert numbers(here) == numbers(result)
    said = [str(one.message) for one in caught if "was started again" in str(one.message)]
    assert [text[:29] for text in said] == ["Site 0 was lost in round 4 an", "Site 1 was lost in round 5 an"]
    assert result.warnings == said


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"sites": 5}, "sites is 5, but there are 4 parties; lower it"),
        ({"sites": 4, "cpus_per_site": 2}, r"has 2 nodes with 4 CPUs and 0 GPUs, room for 2 of the 4 sites with cpus_per_site=2"),
        ({"gpus_per_site": 1}, r"room for 0 of the 1 sites with cpus_per_site=1 and gpus_per_site=1; lower sites"),
        ({"cpus_per_site": 1.5}, r"cpus_per_site is 1\.5 but must be a whole number above 1"),
        ({"address": "10.0.0.1:1234"}, r"connected to the Ray cluster at .* already; leave address=10\.0\.0\.1:1234 out"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_is_refused(cluster: Any, values: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """In a sentence, before anything is started or written."""
    config = replace(small("fedavg"), parties=4, engine="ray")
    with pytest.raises(AtollError, match=sentence):
        runner.run(replace(config, run=replace(config.run, **values)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_gpu_is_reserved(cluster: Any, tmp_path: Path) -> None:
    """A device that Ray would not show to an actor is refused before anything is written."""
    with pytest.raises(AtollError, match="device is cuda:0, but Ray shows actors the GPUs that they reserve; set gpus_per"):
        runner.run(replace(small("fedavg"), engine="ray", device="cuda:0"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def command(*words: str) -> list[str]:
    """A command line of atoll in a process of its own."""
    return [sys.executable, "-c", "from atoll.cli.main import main; main()", *words]


def free_port() -> int:
    """A port that nothing listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("address", [f"127.0.0.1:{free_port()}", "nowhere", "ray://127.0.0.1:10001"])
def test_an_address_without_a_cluster_is_refused(address: str) -> None:
    """At once, and with what to do."""
    sentence = r"There is no Ray cluster at|must be HOST:PORT, or auto|is that of a Ray client"
    with pytest.raises(AtollError, match=sentence), ray_cluster.join(load(), address):
        pass


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says what to install."""
    monkeypatch.setattr(ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(AtollError, match=r"needs the package ray; install atoll\[ray\]"):
        runner.run(replace(small("fedavg"), engine="ray"))


class Marked:
    """Processes that descend from one with a marker in its environment."""

    def __init__(self) -> None:
        self.marker = f"ATOLL_TEST_RAY={os.getpid()}-{time.monotonic_ns()}"

    @property
    def environment(self) -> Mapping[str, str]:
        """For the first process."""
        return os.environ | HERE | dict([self.marker.split("=")])

    def alive(self) -> list[int]:
        """Those that have not ended."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if self.marker.encode() in (path / "environ").read_bytes() and " Z " not in (path / "stat").read_text():
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def ended(self) -> bool:
        """Whether all of them end in time."""
        deadline = time.monotonic() + ENDING_SECONDS
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.1)
        return not self.alive()


RUN = ["run", "fedspray", "--dataset", "csbm", "--parties", "3", "--set", "nodes=80", "--rounds", "100000", "--quiet"]
ENGINE = ["--engine", "ray", "--set", "sites=1", "--set", "checkpoint_every=2"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_cluster_of_our_own(kept: None, number: int, tmp_path: Path) -> None:
    """After Ctrl-C neither processes nor folders; a killed run's folder is removed by the next, and it resumes exactly, on
    another cluster."""
    marked, out = Marked(), tmp_path / "run"
    before = set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*"))
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            command(*RUN, *ENGINE, "--out", str(out)), cwd=tmp_path, env=marked.environment, stdout=log, stderr=log
        )
        deadline = time.monotonic() + 120
        while not (out / "checkpoint.safetensors").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None, (tmp_path / "log").read_text()
        process.send_signal(number)
        process.wait(60)
    assert marked.ended()
    left = set(Path(tempfile.gettempdir()).glob(f"{PREFIX}*")) - before
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert not left
        assert (tmp_path / "log").read_text() == ""  # nothing of Ray's
        return
    for folder in left:
        ray_cluster.remove_unused(folder)
    assert not any(folder.exists() for folder in left)
    rounds = len(Folder(out).rows()) + 3
    config = Folder.open(out)[1]
    resumed = runner.resume(out, ending={"rounds": rounds})
    whole = runner.run(replace(config, engine="divided", run=replace(config.run, rounds=rounds)))
    assert_same(whole, resumed, 0.0)
    assert numbers(whole) == numbers(resumed)
