"""Parties in other processes: the same numbers and bytes for every algorithm, whatever site is lost at whatever request."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import algorithms, wire
from atoll.engines import hosted as module
from atoll.engines.host import CRASHED, OK, Host
from atoll.engines.hosted import HostedEngine, Lost, PortableMaker
from atoll.errors import AtollError, AtollWarning
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.result import Result
from hosts import ROUNDS_AT_ONE_SITE, DirectHosts, Divided, LosesSome, hosted, never, registered
from small import ALGORITHMS, PARTITIONS, Recorded, on_shards, small
from test_promises import Broken, assert_same, numbers, tensors

MANY_MESSAGES = ("cnfgnn", "nfedgnn", "gfl_appnp", "glasu", "simulated", "standalone", "centralized_vertical")


def over(config: Config, sites: int, engine: str = "hosted") -> Config:
    """The configuration over so many sites."""
    return replace(config, engine=engine, run=replace(config.run, sites=sites))


def assert_bits(one: Result, other: Result) -> None:
    """The same bits in history, state and memory, the same bytes."""
    assert numbers(one) == numbers(other)
    assert one.bytes == other.bytes
    assert one.detail == other.detail
    for (name, value), (_, same) in zip(tensors(one).items(), tensors(other).items(), strict=True):
        assert torch.equal(value, same), name
    for (name, value), (same_name, same) in zip(memory(one), memory(other), strict=True):
        assert name == same_name
        assert torch.equal(value, same), name


def memory(result: Result) -> list[tuple[str, torch.Tensor]]:
    """The parties' memory after the run, by name."""
    return [(name, value) for name, value in wire.leaves(result.memory) if isinstance(value, torch.Tensor)]


def lossy(config: Config, seed: int = 0, gap: int = 0) -> tuple[Result, int]:
    """A run whose sites are lost now and then, and how often they were."""
    lose = LosesSome(seed, gap=gap or (400 if config.algorithm in MANY_MESSAGES else 40))
    with warnings.catch_warnings(), hosted(lose):
        warnings.filterwarnings("ignore", "Site . was lost in round . and was started again", AtollWarning)
        result = runner.run(config)
    assert len(result.warnings) <= lose.lost
    return result, lose.lost


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_lost_site_changes_nothing(algorithm: str) -> None:
    """Over two sites that are lost now and then, every algorithm has the bits of two cohorts in one process."""
    config = over(small(algorithm), 2)
    with registered("divided", Divided()):
        here = runner.run(replace(config, engine="divided"))
    there, lost = lossy(config)
    assert lost
    assert_same(here, there, 0.0)
    assert numbers(here) == numbers(there)
    assert here.detail == there.detail


NOISE = {"dp.verb": "fit", "dp.clip": 1, "dp.noise": 1, "dp.noise_source": "seed"}


@pytest.mark.parametrize(
    ("algorithm", "values"), [("fedspray", {}), ("scaffold", {}), ("ditto", {}), ("glasu", {}), ("fedavg", NOISE)]
)
@pytest.mark.parametrize("between_saves", [float("inf"), 0.0])
def test_every_message_is_repeated(
    algorithm: str, values: dict[str, Any], between_saves: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved after every round or never, every message is lost once with its site: all since the last save have to be sent again,
    none before it, and what they release is counted once."""
    monkeypatch.setattr(module, "MIN_SECONDS_BETWEEN_SAVES", between_saves)
    monkeypatch.setattr(module, "MIN_GAP_IN_SAVES", 0.0)
    config = over(small(algorithm, rounds=2, **values), 2)
    seen: set[Any] = set()

    def once(site: int, request: dict[str, Any]) -> str:
        message = (site, request.get("round"), request.get("call"), request.get("verb"))
        if request["kind"] != "ask" or message in seen:
            return ""
        seen.add(message)
        return "after" if len(seen) % 2 else "before"

    with registered("divided", Divided()), runner.prepare(replace(config, engine="divided")) as here:
        usual = runner.rounds(here)
    with hosted(once), runner.prepare(config) as there, pytest.warns(AtollWarning, match="Site . was lost in round . and was"):
        assert_same(usual, runner.rounds(there), 0.0)
    assert len(seen) >= 8
    assert here.releases.costs.tolist() == there.releases.costs.tolist()


@pytest.mark.full
@pytest.mark.parametrize("sites", [1, 2, 4])
@pytest.mark.parametrize(
    ("algorithm", "scenario"), [(name, scenario) for name in ALGORITHMS for scenario in algorithms.find(name).SCENARIOS]
)
def test_every_scenario_over_sites(algorithm: str, scenario: str, sites: int) -> None:
    """One, two and four sites, with and without losses: the bits of as many cohorts in one process, and nearly those of one."""
    many = {"parties": 4} if PARTITIONS[scenario]["parties"] and scenario != "vertical" else {}
    proportions = {"proportions": "0.5,0.6,0.7,0.5"} if scenario == "overlapping" else {}
    config = over(replace(small(algorithm, scenario=scenario, **proportions), **many), sites)
    with registered("divided", Divided()):
        here = runner.run(replace(config, engine="divided"))
    assert_same(runner.run(replace(config, engine="inprocess")), here, 1e-5)
    with hosted():
        there = runner.run(config)
    assert_same(here, there, 1e-6 if sites == 1 and algorithm in ROUNDS_AT_ONE_SITE else 0.0)
    assert_bits(there, lossy(config, seed=sites)[0])


@pytest.mark.parametrize(
    "values",
    [
        {"participation": 0.5},
        {"placement": "apart"},
        {"amnesia": "true"},
        {"secure": "true"},
        {"secure": "true", "participation": 0.7},
        {"dp.verb": "fit", "dp.clip": 1, "dp.noise": 1, "dp.noise_source": "seed"},
        {"class_weight": "balanced"},
        {"batch_size": 4},
        {"noise.label_noise": 0.2},
        {"evaluation": "finetuned"},
    ],
    ids=lambda values: "-".join(values),
)
def test_every_kind_of_run(values: dict[str, Any]) -> None:
    """Secure totals, noise, a share of the parties, parties apart, forgetful, in batches: the bits of one process."""
    config = over(replace(small("fedspray" if "batch_size" in values else "fedavg", **values), parties=5), 2)
    with registered("divided", Divided()):
        here = runner.run(replace(config, engine="divided"))
    there, lost = lossy(config, seed=1, gap=150 if "secure" in values else 20)
    assert lost
    assert_same(here, there, 1e-5 if "placement" in values else 0.0)


def test_the_bill_is_exact() -> None:
    """Bytes are those of the messages encoded party by party, and the releases those of one process, though sites are lost."""
    config = over(small("fedavg", **{"dp.verb": "fit", "dp.clip": 1, "dp.noise": 1, "dp.noise_source": "seed"}), 2)
    recorded: list[Recorded] = []

    def record(engine: Any) -> Recorded:
        recorded.append(Recorded(engine))
        return recorded[0]

    with (
        hosted(LosesSome(3, gap=1000)) as kind,
        pytest.warns(AtollWarning, match="was started again"),
        runner.prepare(config, engine=record) as experiment,
    ):
        runner.rounds(experiment)
    assert kind.made[0].closed == 1
    for round, rows in experiment.federation.ledger.rounds.items():
        for (verb, training), table in rows.items():
            for party, row in enumerate(table):
                assert row[:4].tolist() == recorded[0].bytes[round, verb, training, party]
    with runner.prepare(replace(config, engine="inprocess")) as here:
        runner.rounds(here)
    assert experiment.releases.costs.tolist() == here.releases.costs.tolist()


def test_hosts_read_their_own_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shards, each site reads those of its parties, and the server's process none; also when a site is started again."""
    from atoll.data.shards import Shards

    read: list[Any] = []
    graph = Shards.graph

    def spy(shards: Shards, parties: Any = None) -> Any:
        read.append(None if parties is None else list(parties))
        return graph(shards, parties)

    config = over(on_shards(small("fedspray"), tmp_path / "shards"), 2)
    usual = runner.run(replace(config, engine="inprocess"))
    monkeypatch.setattr(Shards, "graph", spy)
    there, lost = lossy(config, seed=2)
    assert lost
    assert {tuple(parties) for parties in read} == {(0, 1), (2,)}
    assert_same(usual, there, 1e-5)


OWN_MODEL = """
import torch
from torch_geometric.nn import SAGEConv

class Own(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels):
        super().__init__()
        self.first = SAGEConv(in_channels, hidden_channels)
        self.last = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu())
"""


def test_files_of_ones_own_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm and a model that are files: a site gets what was imported, even if the file has changed or is not there."""
    source = Path(algorithms.find("fedprox").__file__)  # type: ignore[attr-defined]
    (tmp_path / "own.py").write_text(source.read_text())
    (tmp_path / "model.py").write_text(OWN_MODEL)
    monkeypatch.chdir(tmp_path)
    config = over(small("own.py", model="model.py"), 2)
    with registered("divided", Divided()):
        here = runner.run(replace(config, engine="divided"))
    assert_same(here, lossy(config)[0], 0.0)


def test_a_model_that_is_an_object_is_refused() -> None:
    """A class has no file that a site could be sent."""

    class Own(torch.nn.Linear):
        """Never used."""

        def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
            super().__init__(in_channels, out_channels)

    with hosted(), pytest.raises(AtollError, match="The engine hosted cannot take a model as an object; write it to a file"):
        runner.run(over(small("fedavg", model=Own), 2))


@pytest.mark.parametrize(("sites", "tolerance"), [(2, 0.0), (3, 1e-5)])
def test_resume_is_exact(sites: int, tolerance: float, tmp_path: Path) -> None:
    """Broken off and resumed, the same bits; over another number of sites nearly, and a warning."""
    config = over(small("fedspray", rounds=4, checkpoint_every=2), 2)

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise Broken

    with hosted() as kind:
        whole = runner.run(config, out=tmp_path / "whole")
        with pytest.raises(Broken):
            runner.run(config, out=tmp_path / "broken", watch=watch)
        assert [hosts.closed for hosts in kind.made] == [1, 1]
        text = (tmp_path / "broken" / "config.toml").read_text()
        (tmp_path / "broken" / "config.toml").write_text(text.replace("sites = 2", f"sites = {sites}"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", AtollWarning)
            resumed = runner.resume(tmp_path / "broken")
    assert_same(whole, resumed, tolerance)
    if sites == 2:
        assert_bits(whole, resumed)
    said = [str(one.message) for one in caught if "sites where there were" in str(one.message)]
    assert said == (["The run goes on with 3 sites where there were 2: its numbers are equal up to rounding."] * (sites == 3))


@pytest.mark.parametrize("on_missing", ["continue", "stop"])
def test_a_site_that_cannot_be_started_again(on_missing: str) -> None:
    """Its parties are missing from then on, or the run stops and says why."""

    def lose(site: int, request: dict[str, Any]) -> str:
        return "before" if site == 1 and (request.get("round") == 2 or lost) and not lost.append(1) else ""  # type: ignore[func-returns-value]

    lost: list[int] = []
    config = over(small("fedspray", on_missing=on_missing), 2)
    with hosted(lose) as kind, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", AtollWarning)
        if on_missing == "stop":
            with pytest.raises(AtollError, match=r"Round 2: .* stopped the run \(party 2: its site 1 was lost"):
                runner.run(config)
        else:
            result = runner.run(config)
            assert [list(row.get("missing", {})) for row in result.rows] == [[], ["2"], ["2"]]
            assert result.best_round == 1
    assert [str(one.message) for one in caught if "Site" in str(one.message)] == [
        "Site 1 was lost in round 2 and could not be started again (its process ended)."
    ]
    assert kind.made[0].starts == [0, 1, *[1] * module.MAX_STARTS]


class Full(DirectHosts):
    """Hosts on a cluster that has no room for site 1 (any more, once it was lost)."""

    full = True

    def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
        """Site 1 waits for room until the engine's patience ends."""
        if self.full and 1 in own:
            self.starts.append(-1)  # the wait
            yield from super().send(shared, {site: data for site, data in own.items() if site != 1})
            yield 1, Lost("no room", final=True)
            return
        for site, reply in super().send(shared, own):
            self.full = self.full or (site == 1 and isinstance(reply, Lost))
            yield site, reply


@pytest.mark.parametrize("begins", [False, True])
def test_a_site_without_room_is_given_up_at_once(begins: bool) -> None:
    """Whatever waits for it waits once, not again and again: the run does not begin, or its parties are missing."""
    lost: list[int] = []

    def lose(site: int, request: dict[str, Any]) -> str:
        return "before" if site == 1 and request.get("round") == 2 and not lost.append(1) else ""  # type: ignore[func-returns-value]

    with hosted(lose) as kind:
        kind.hosts = Full
        Full.full = not begins
        config = over(small("fedspray"), 2)
        if begins:
            with pytest.warns(AtollWarning, match=r"Site 1 was lost in round 2 and could not be started again \(no room\)"):
                result = runner.run(config)
            assert [list(row.get("missing", {})) for row in result.rows] == [[], ["2"], ["2"]]
        else:
            sentence = r"The run cannot begin: its site 1 was lost \(no room"
            with pytest.warns(AtollWarning, match="Site 1 was lost"), pytest.raises(AtollError, match=sentence):
                runner.run(config)
    assert kind.made[0].starts == ([0, 1, 1, -1] if begins else [0, 1, -1])


def test_what_happens_at_a_site_is_told() -> None:
    """A refusal is an error for the user, as in one process; a mistake in an algorithm shows where it is."""
    config = over(small("fedavg"), 2)
    with hosted(), runner.prepare(config) as experiment:
        with pytest.raises(AtollError, match="fedavg has no verb 'fits'; its verbs are"):
            experiment.federation.exchange("fits", [0, 1, 2], {}, {})
        with pytest.raises(RuntimeError, match=r"(?s)site 0 \(party 0 and on\) failed:.*TypeError: .*'wrong'"):
            experiment.federation.exchange("fit", [0, 1, 2], {}, {"wrong": 1})
        assert isinstance(experiment.engine, HostedEngine)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with another atoll might compute other numbers."""
    monkeypatch.setattr(module, "__version__", "0.0.9")
    with hosted(), pytest.raises(AtollError, match=r"A node of the cluster has atoll .*, but the run has atoll 0\.0\.9; install"):
        runner.run(over(small("fedavg"), 2))


def test_memory_is_saved_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a site was sent is repeated from the last save on, which is never long ago."""
    config = over(small("fedspray", rounds=4), 2)
    with hosted() as kind:
        runner.run(config)
    assert [kind for site, kind in kind.made[0].asked if site == 0].count("state") == 2  # at the beginning and the end
    monkeypatch.setattr(module, "MAX_LOG_BYTES", 0)
    with hosted() as kind:
        runner.run(config)
    assert [kind for site, kind in kind.made[0].asked if site == 0].count("state") == 5
    monkeypatch.undo()
    monkeypatch.setattr(module, "MIN_SECONDS_BETWEEN_SAVES", 0.0)
    monkeypatch.setattr(module, "MIN_GAP_IN_SAVES", 0.0)
    with hosted() as kind:
        runner.run(config)
    assert [kind for site, kind in kind.made[0].asked if site == 0].count("state") == 5


@pytest.mark.parametrize("values", [{"robust": "krum", "byzantine": 5}, {"evaluated": "nonsense"}])
def test_processes_end_with_a_run_that_cannot_begin(values: dict[str, Any]) -> None:
    """Whatever is wrong after the engine has connected, it is closed."""
    with hosted() as kind, pytest.raises(AtollError):
        runner.run(over(small("fedavg", **values), 2))
    assert [hosts.closed for hosts in kind.made] == [1]
    assert kind.made[0].starts == []


def test_a_run_begins_with_a_trained_model(tmp_path: Path) -> None:
    """The parties' memory of an earlier run arrives at the sites: the bits of one process."""
    runner.run(small("fedspray"), out=tmp_path / "first")
    config = over(replace(small("fedspray", seed=3), start_from=str(tmp_path / "first")), 2)
    with registered("divided", Divided()):
        here = runner.run(replace(config, engine="divided"))
    there, lost = lossy(config)
    assert lost
    assert_same(here, there, 0.0)
    assert there.start == here.start


def test_a_site_knows_nothing_of_the_address() -> None:
    """It makes its parties as in one process, wherever the cluster is."""
    with hosted():
        assert_bits(runner.run(over(small("fedavg", address="auto"), 2)), runner.run(over(small("fedavg"), 2)))


def test_the_model_is_there_to_be_used(tmp_path: Path) -> None:
    """What the sites have trained, memory included, predicts what was reported."""
    with hosted():
        result = runner.run(over(small("fedspray"), 2), out=tmp_path / "run")
    description = result.model().description
    assert description["memory_at_sites"] is False
    predicted = result.model().evaluate()
    assert predicted.overall["accuracy"] == result.metrics["accuracy"]


def test_a_model_that_is_sent_again_is_stored_once() -> None:
    """The evaluation of a round and the training of the next send the same bytes: the same object, for an engine to keep."""
    sent: list[bytes] = []

    class Seen(DirectHosts):
        """Hosts that note what all of them are sent."""

        def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
            """As always."""
            sent.append(shared)
            return super().send(shared, own)

    with hosted() as kind:
        kind.hosts = Seen
        runner.run(over(small("fedavg", rounds=3), 2))
    models = [shared for shared in sent if "common" in wire.decode(shared)]
    fits, evaluations = models[::2], models[1::2]
    assert len(fits) == len(evaluations) == 3
    assert all(fit is evaluation for fit, evaluation in zip(fits[1:], evaluations[:-1], strict=True))
    assert len({id(fit) for fit in fits}) == 3


@pytest.mark.parametrize(("spare", "meanwhile"), [(0, 3), (1, 1), (8, 3)])
def test_the_server_leaves_the_cores_to_the_sites(spare: int, meanwhile: int) -> None:
    """Where they fill this machine, it has fewer threads while the run goes on, and its own again afterwards."""

    class Sparing:
        """An engine whose sites leave so many cores."""

        HOSTED = True

        def connect(self, make: PortableMaker, parties: int, settings: Any) -> HostedEngine:
            """The engine of a run."""
            return HostedEngine(make, [range(parties)], Answering(), settings, threads=3, spare=spare)

    seen: list[int] = []

    class Answering(DirectHosts):
        """A host in this process."""

        def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
            """The threads of the server, which are those of the host here."""
            seen.append(torch.get_num_threads())
            replies = list(super().send(shared, own))
            torch.set_num_threads(seen[-1])
            return iter(replies)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with registered("sparing", Sparing()):
            runner.run(replace(small("fedavg", rounds=1), engine="sparing"))
        assert set(seen) == {meanwhile}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_an_address_needs_a_cluster(tmp_path: Path) -> None:
    """An engine that would not go there refuses it, at the beginning and on resuming."""
    with pytest.raises(AtollError, match=r"address=auto is a cluster's, but the engine is inprocess; add --engine ray, or leave"):
        runner.run(small("fedavg", rounds=1, address="auto"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    runner.run(small("fedavg", rounds=1), out=tmp_path / "run")
    with pytest.raises(AtollError, match="address=auto is a cluster's, but the engine is inprocess"):
        runner.resume(tmp_path / "run", address="auto")


def test_a_host_never_raises() -> None:
    """Not even for bytes that are no request."""
    hosts = DirectHosts(never)
    hosts.start(0, lambda document: (_ for _ in ()).throw(ValueError("a mistake")))
    answer = wire.decode(hosts.hosts[0].handle(b"garbage"))
    assert answer["status"] != OK
    answer = wire.decode(Host(None).handle(wire.encode({"kind": "ask"})))  # type: ignore[arg-type]
    assert answer["status"] == CRASHED
