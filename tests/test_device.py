"""On a device that is not the CPU (a pretended one: `pretend`) every algorithm computes there, gives the CPU's numbers and does
not wait for the device in its steps. A new algorithm is tested here without a line of its own."""

from __future__ import annotations

import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

import hosts
from atoll import algorithms, wire
from atoll import device as devices
from atoll.algorithms import fedprox
from atoll.cli import main
from atoll.deferred import Deferred
from atoll.deploy import launch
from atoll.engines.host import Host
from atoll.errors import AtollError
from atoll.federation.cohort import Message, Schema
from atoll.federation.federation import Answer, Failure
from atoll.graphs import compressed
from atoll.models import party_tensors
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.result import Result
from atoll.settings import known
from hosts import hosted
from pretend import FUSED, NAME, Accelerator, Traffic
from sites import DirectCarrier, remote_engine, sites_with_data
from small import ALGORITHMS, Recorded, Wrapper, small
from small_graphs import small_graphs, write
from small_links import small_links
from small_targets import small_targets
from test_batched_promises import BATCHED, SAMPLERS, batched
from test_promises import Broken

TOLERANCE = 1e-4
FOR_TARGETS = [name for name in ALGORITHMS if "labels" in getattr(algorithms.find(name), "TARGETS", ())]


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device of that name is here."""
    monkeypatch.setitem(devices.KINDS, NAME, lambda: 1)


def on_device(config: Config, **options: Any) -> tuple[Result, Traffic]:
    """A run on the pretended device, and what crossed to and from it."""
    with Accelerator(**options) as traffic:
        result = runner.rounds(runner.prepare(replace(config, device=NAME)))
    assert traffic.up, "nothing was computed there"
    return result, traffic


def assert_agree(one: Result, other: Result) -> None:
    """States of the server, metrics and bytes are the same up to rounding."""
    left, right = (dict(wire.leaves(result.state)) for result in (one, other))
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert right[name].device.type == "cpu", f"{name} of the state is not a tensor of the CPU"
            near = {"atol": TOLERANCE, "rtol": TOLERANCE, "equal_nan": True}
            torch.testing.assert_close(right[name], value, **near, msg=lambda m, n=name: f"{n}: {m}")
    for row, same in zip(one.rows, other.rows, strict=True):
        for name, value in row.items():
            if isinstance(value, float) and "seconds" not in name:
                assert math.isclose(value, same[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE), f"round {row['round']}: {name}"
    assert one.bytes == other.bytes


def at_level(level: str) -> list[str]:
    """The algorithms that predict graphs, or links."""
    return [name for name in ALGORITHMS if level in getattr(algorithms.find(name), "LEVELS", ())]


def like_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the device's kernels are those of CUDA: embedding bags and fused optimizers."""
    monkeypatch.setitem(compressed.KERNELS, NAME, compressed.bags)
    monkeypatch.setattr(party_tensors, "FUSED", party_tensors.FUSED | {NAME})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_gives_the_numbers_of_the_cpu(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One round on a device like mps (no double precision, no kernels of its own), on one like CUDA, and on the CPU: the same
    state, metrics and bytes."""
    config = small(algorithm, rounds=1)
    usual = runner.rounds(runner.prepare(config))
    with monkeypatch.context() as patch:
        patch.setattr(devices, "NARROW", {NAME})
        assert_agree(usual, on_device(config, doubles=False)[0])
    like_cuda(monkeypatch)
    assert_agree(usual, on_device(config, kernels=FUSED)[0])


@pytest.fixture(scope="module")
def graph_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small datasets of graphs."""
    root = tmp_path_factory.mktemp("data")
    write(root)
    return root


@pytest.mark.parametrize("algorithm", at_level("graph"))
def test_graphs_give_the_numbers_of_the_cpu(algorithm: str, graph_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method that classifies graphs."""
    monkeypatch.setenv("ATOLL_DATA", str(graph_data))
    config = small_graphs(algorithm, {"fedproto": "nci1", "centralized": "nci1"}.get(algorithm, "chem"), rounds=1)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


@pytest.mark.parametrize("algorithm", at_level("link"))
def test_every_method_for_links_gives_the_numbers_of_the_cpu(algorithm: str) -> None:
    """On whole graphs."""
    config = small_links(algorithm, algorithms.find(algorithm).SCENARIOS[0], rounds=1)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


@pytest.mark.parametrize("target", ["labels", "values"])
@pytest.mark.parametrize(
    "algorithm", [name if name in ("fedavg", "apfl") else pytest.param(name, marks=pytest.mark.full) for name in FOR_TARGETS]
)
def test_labels_and_values_give_the_numbers_of_the_cpu(algorithm: str, target: str) -> None:
    """Their sums and the scale of values included, also without double precision."""
    config = small_targets(algorithm, target, rounds=1)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=pytest.mark.full) if name in ("feddep", "fedsage") else name for name in BATCHED]
)
def test_mini_batches_give_the_numbers_of_the_cpu(algorithm: str) -> None:
    """Batches drawn and cut out on the CPU, by every method that has them, with a sampler of their own each."""
    sampler = list(SAMPLERS)[BATCHED.index(algorithm) % len(SAMPLERS)]
    config = batched(algorithm, sampler, rounds=1, epochs=1, batch_size=10)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedproto", "fedala", "moon"])
@pytest.mark.parametrize("decoder", ["dot", "bilinear", "mlp"])
def test_links_give_the_numbers_of_the_cpu(algorithm: str, decoder: str) -> None:
    """Pairs drawn on the CPU, scored on the device, in mini-batches."""
    config = small_links(algorithm, rounds=2, decoder=decoder, batch_size=20)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


@pytest.mark.parametrize("values", [{"secure": "true"}, {"class_weight": "balanced"}, {"clip": 0.1}, {"track": "auc"}], ids=str)
def test_a_device_without_double_precision(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What else is computed in double precision on other devices: masks of totals, class weights, norms, histograms."""
    usual = runner.rounds(runner.prepare(small("fedavg", **values)))
    monkeypatch.setattr(devices, "NARROW", {NAME})
    assert_agree(usual, on_device(small("fedavg", **values), doubles=False)[0])


def test_messages_and_checkpoints_know_no_device(tmp_path: Path) -> None:
    """What is sent and what is written are tensors of the CPU, whose types do not tell where they were computed; a run that
    began on a device goes on on the CPU, and ends as one that never left it."""
    config = small("ditto", rounds=4, checkpoint_every=1)
    recorded: list[Recorded] = []

    def record(engine: Any) -> Recorded:
        recorded.append(Recorded(engine))
        return recorded[-1]

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            raise Broken

    with Accelerator():
        runner.rounds(runner.prepare(replace(config, device=NAME), engine=record))
    for message, results in recorded[0].delivered:
        fields = [message.common, message.each, *(result.fields for result in results if isinstance(result, Answer))]
        for name, value in (leaf for part in fields for leaf in wire.leaves(part)):
            assert value.device == devices.CPU, f"{name} of {message.verb}"
            assert type(value) is torch.Tensor, f"{name} of {message.verb}"
    usual = runner.run(config, out=tmp_path / "cpu")
    with Accelerator(), pytest.raises(Broken):
        runner.run(replace(config, device=NAME), out=tmp_path / "run", watch=watch)
    shapes = [
        {name: (tuple(value.shape), value.dtype) for name, value in load_file(tmp_path / run / "checkpoint.safetensors").items()}
        for run in ("cpu", "run")
    ]
    assert {name: shape for name, shape in shapes[0].items() if "memory" in name} == {
        name: shape for name, shape in shapes[1].items() if "memory" in name
    }
    assert_agree(usual, runner.resume(tmp_path / "run", device="cpu"))


def test_a_tensor_in_the_wrong_place_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An objective that makes a tensor on the CPU fails on a device, and the error says where."""
    usual = fedprox.Cohort.objective

    def misplaced(self: Any, batch: Any, draws: Any, model: Any) -> torch.Tensor:
        return usual(self, batch, draws, model) + (torch.ones(3) * self.model.layers[0].bias.sum(1)).sum()

    monkeypatch.setattr(fedprox.Cohort, "objective", misplaced)
    runner.rounds(runner.prepare(small("fedprox", rounds=1)))
    with pytest.raises(RuntimeError, match=r"of the CPU meets one .* of pretend.*test_device.py"):
        on_device(small("fedprox", rounds=1))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_the_kernels_of_cuda_give_the_same(optimizer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With embedding bags and fused optimizers, as on CUDA, a round is that of the CPU."""
    like_cuda(monkeypatch)
    config = small("fedavg", rounds=1, optimizer=optimizer, weight_decay=0.01)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config, kernels=FUSED)[0])


DOOR = "federation/transfer.py"
GROWING = {  # methods whose steps wait, and why
    "adafgl": "each step finds the largest of all pairs' similarities",
    "fedlit": "links find their types in every step",
    "fedlit_deep": "whether types have changed is looked at in every step",
    "fgssl": "every step makes new random views of the graph, and their matrices on the CPU",
    "fedsage": "whether the graph was mended is looked at in every step",
}
SPLIT = 16  # levels of sampled nodes, and what the round's memory is of, for each of several messages
WAITS = {
    "fedala": 40,
    "fgssl": 60,
    "adafgl": 60,
    "glasu": SPLIT,
    "simulated": SPLIT,
    "standalone": SPLIT,
}  # fedala's adaptations end by their losses
AT_THE_SERVER = ("cnfgnn", "gfl_appnp")  # whose server computes on the device, too
MAX_WAITS = 10  # of any other method: what evaluation and a party's bookkeeping need


class Copies(NamedTuple):
    """What crossed in a round."""

    waits: dict[str, int]  # where the CPU waited for the device, apart from the door, and how often
    back: int  # copies through the door: replies and memory
    there: int  # copies through the door: arguments
    replies: int  # tensors of the parties' replies
    arguments: int  # tensors of the messages


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_do_not_wait_for_the_device(algorithm: str) -> None:
    """A second round with four epochs waits as often as one with two, and seldom: no hidden `.item()` in a step. Each tensor of a
    message is copied to the device once, and each one of a reply back."""
    steps = next((name for name in ("epochs", "local_steps") if name in known(type(small(algorithm).settings))), None)
    few, many = (copies(small(algorithm, rounds=2, **({steps: count} if steps else {}))) for count in (2, 4))
    waited = sum(few.waits.values())
    assert algorithm in GROWING or waited == sum(many.waits.values()), f"{algorithm} waits in its steps: {many}, not {few}"
    assert waited <= WAITS.get(algorithm, MAX_WAITS), f"{algorithm} waits here: {few.waits}"
    if algorithm not in AT_THE_SERVER:
        for one in (few, many):
            assert one.back >= one.replies  # the rest is what parties remember, in a round that is the best so far, too
            assert one.there == one.arguments, f"{algorithm} copies {one.there} tensors to the device, of {one.arguments}"


def copies(config: Config) -> Copies:
    """What crosses in the second round."""
    sent: list[Any] = []
    replies: list[Any] = []

    class Kept(Wrapper):
        """Keeps what passes, as it is."""

        def deliver(self, message: Message) -> list[Answer | Failure]:
            """Forward."""
            results = self.engine.deliver(message)
            sent.extend((message.common, message.each))
            replies.extend(result.fields for result in results if isinstance(result, Answer))
            return results

    with Accelerator() as traffic:
        seen: list[Copies] = []

        def watch(row: dict[str, Any], rounds: int) -> None:
            there = sum(count for line, count in traffic.up.items() if DOOR in line)
            seen.append(Copies(traffic.waited_outside(DOOR), traffic.waited_in(DOOR), there, tensors(replies), tensors(sent)))
            traffic.clear()
            sent.clear()
            replies.clear()

        runner.rounds(runner.prepare(replace(config, device=NAME), engine=Kept), None, watch)
    return seen[1]


def tensors(parts: list[Any]) -> int:
    """How many tensors there are."""
    return sum(isinstance(value, torch.Tensor | Deferred) for part in parts for _, value in wire.leaves(part))


def test_a_site_computes_where_it_wants(tmp_path: Path) -> None:
    """One site on its device, two on the CPU: the numbers of three on the CPU, and messages that do not tell."""
    config = small("fedavg")
    usual = runner.run(config)
    sites = sites_with_data(tmp_path, config)
    deployed = launch.deployment_config({"algorithm": "fedavg", "seed": 3}, "run.toml", list(sites))
    deployed = replace(deployed, settings=config.settings, run=config.run)
    engine = remote_engine(deployed, DirectCarrier(sites))
    with Accelerator() as traffic:
        sites["site-1"].device = NAME
        mixed = runner.rounds(runner.build_experiment(deployed, engine, Schema(12, 3, 3), None, "horizontal"))
    assert traffic.up
    assert_agree(usual, mixed)


def test_hosts_have_devices_that_the_server_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over hosts the parties compute on the devices of their nodes; the server's machine need not have any."""
    monkeypatch.setattr(devices, "KINDS", {**devices.KINDS, NAME: lambda: int(inside)})
    inside = 0

    class Inside(Host):
        """A host on a node with a device."""

        def handle(self, shared: bytes, own: bytes = b"") -> bytes:
            """Meanwhile the device is there."""
            nonlocal inside
            inside += 1
            try:
                return super().handle(shared, own)
            finally:
                inside -= 1

    config = replace(small("fedspray"), engine="hosted")
    with hosted():
        usual = runner.run(config)
        monkeypatch.setattr(hosts, "Host", Inside)
        with Accelerator() as traffic:
            there = runner.run(replace(config, device=NAME))
        assert traffic.up
        assert_agree(usual, there)
    with pytest.raises(AtollError, match=f"There is no {NAME} here"):
        runner.run(replace(config, engine="inprocess", device=NAME))


@pytest.mark.parametrize("device", ["cuda:77", "gpu"])
@pytest.mark.parametrize("command", ["run", "config", "compare", "tune", "resume", "extend", "predict", "evaluate", "join"])
def test_a_device_that_is_not_here_is_one_sentence(
    command: str,
    device: str,
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every command says what is here, ends with 2 and writes nothing."""
    edited = tmp_path / "edited"
    shutil.copytree(trained, edited)
    settings = edited / "config.toml"
    settings.write_text(f'device = "{device}"\n{settings.read_text()}')
    new, there = ["--out", str(tmp_path / "out")], ["--device", device]
    words = {
        "run": ["run", "fedavg", *new, *there],
        "config": ["resume", str(edited), "--rounds", "9"],
        "join": ["join", str(tmp_path / "kit"), "--data", str(tmp_path / "data"), *there],
        "compare": ["compare", "fedavg,local", *new, *there],
        "tune": ["tune", "fedavg", *new, *there],
        "resume": ["resume", str(trained), *there],
        "extend": ["resume", str(trained), "--rounds", "9", *there],
        "predict": ["predict", str(trained), "--out", str(tmp_path / "out.csv"), *there],
        "evaluate": ["evaluate", str(trained), *there],
    }
    before = files(tmp_path), files(trained)
    monkeypatch.setattr(sys, "argv", ["atoll", *words[command]])
    with pytest.raises(SystemExit) as ended:
        main.main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert ("There is no cuda:77 here: this machine has cpu" if device == "cuda:77" else "must be cpu, cuda") in said
    assert (files(tmp_path), files(trained)) == before


@pytest.mark.parametrize("said", ["CUDA out of memory. Tried to allocate 2.00 GiB.", "MPS backend out of memory"])
def test_a_full_device_is_one_sentence(said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the memory of the CPU."""

    def full(*args: Any, **more: Any) -> None:
        raise torch.OutOfMemoryError(said)

    monkeypatch.setattr(fedprox.Cohort, "objective", full)
    monkeypatch.setattr(sys, "argv", ["atoll", "run", "fedprox", "--rounds", "1", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "There is not enough memory for this" in capsys.readouterr().err


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    runner.run(small("fedavg", rounds=1), out=folder)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """All files of a folder, but for the lock that opening it leaves."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix != ".lock"}
