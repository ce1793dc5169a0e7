"""On a device that is not the CPU (a pretended one: `pretend`) every algorithm computes there, gives the CPU's numbers and does
not wait for the device in its steps. A new algorithm is tested here without a line of its own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll import device as devices
from atoll import wire
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.result import Result
from pretend import NAME, Accelerator, Traffic
from small import ALGORITHMS, small

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
