"""On a device that is not the CPU (a pretended one: `pretend`) every algorithm computes there, gives the CPU's numbers and does
not wait for the device in its steps. A new algorithm is tested here without a line of its own."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll import device as devices
from atoll import wire
from atoll.algorithms import fedprox
from atoll.cli import main
from atoll.graphs import compressed
from atoll.models import optim
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.result import Result
from atoll.settings import known
from pretend import FUSED, NAME, Accelerator, Traffic
from small import ALGORITHMS, small
from small_links import small_links

TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """One device of that name is here."""
    monkeypatch.setitem(devices.KINDS, NAME, lambda: 1)


def on_device(config: Config, **options: Any) -> tuple[Result, Traffic]:
    """A run on the pretended device, and what crossed to and from it."""
    with Accelerator(**options) as traffic:
        result = runner.rounds(runner.prepare(replace(config, device=NAME)))
    return result, traffic


def assert_agree(one: Result, other: Result) -> None:
    """States of the server, metrics and bytes are the same up to rounding."""
    left, right = (dict(wire.leaves(result.state)) for result in (one, other))
    assert left.keys() == right.keys()
    for name, value in left.items():
        if isinstance(value, torch.Tensor):
            assert right[name].device.type == "cpu", f"{name} of the state is not a tensor of the CPU"
            torch.testing.assert_close(right[name], value, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")
    for row, same in zip(one.rows, other.rows, strict=True):
        for name, value in row.items():
            if isinstance(value, float) and "seconds" not in name:
                assert math.isclose(value, same[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE), f"round {row['round']}: {name}"
    assert one.bytes == other.bytes


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_gives_the_numbers_of_the_cpu(algorithm: str) -> None:
    """One round on the device and on the CPU: the same state, metrics and bytes."""
    config = small(algorithm, rounds=1)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedproto", "fedala", "moon"])
@pytest.mark.parametrize("decoder", ["dot", "bilinear", "mlp"])
def test_links_give_the_numbers_of_the_cpu(algorithm: str, decoder: str) -> None:
    """Pairs drawn on the CPU, scored on the device, in mini-batches."""
    config = small_links(algorithm, rounds=2, decoder=decoder, batch_size=20)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config)[0])


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
    monkeypatch.setitem(compressed.KERNELS, NAME, compressed.bags)
    monkeypatch.setattr(optim, "FUSED", optim.FUSED | {NAME})
    config = small("fedavg", rounds=1, optimizer=optimizer, weight_decay=0.01)
    assert_agree(runner.rounds(runner.prepare(config)), on_device(config, kernels=FUSED)[0])


DOOR = "federation/door.py"
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
MAX_WAITS = 10  # of any other method: what evaluation and a party's bookkeeping need


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_steps_do_not_wait_for_the_device(algorithm: str) -> None:
    """A second round with four epochs waits as often as one with two, and seldom: no hidden `.item()` in a step."""
    steps = next((name for name in ("epochs", "local_steps") if name in known(type(small(algorithm).settings))), None)
    few, many = (waits(small(algorithm, rounds=2, **({steps: count} if steps else {}))) for count in (2, 4))
    assert algorithm in GROWING or sum(few.values()) == sum(many.values()), f"{algorithm} waits in its steps: {many}, not {few}"
    assert sum(few.values()) <= WAITS.get(algorithm, MAX_WAITS), f"{algorithm} waits here: {few}"


def waits(config: Config) -> dict[str, int]:
    """Where the second round waits for the device, apart from messages and memory, and how often."""
    with Accelerator() as traffic:
        seen: list[dict[str, int]] = []

        def watch(row: dict[str, Any], rounds: int) -> None:
            seen.append(traffic.waited_outside(DOOR))
            traffic.clear()

        runner.rounds(runner.prepare(replace(config, device=NAME)), None, watch)
    return seen[1]


def test_a_device_that_is_not_here_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line says what is here and ends with 2."""
    monkeypatch.setattr(sys, "argv", ["atoll", "run", "fedavg", "--device", "cuda:77"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "There is no cuda:77 here: this machine has cpu" in capsys.readouterr().err
