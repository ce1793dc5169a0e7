"""The network model: seconds by hand, in the history, and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll import wire
from atoll.errors import AtollError
from atoll.federation.cohort import pick
from atoll.federation.network import NetworkModel
from atoll.runs import runner
from small import Recorded, small


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    """latency + bytes / bandwidth, party by party; 0 is no limit."""
    network = NetworkModel.of(3, [0.5, 1.0, 2.0], [1.0, 2.0, 0.0])
    assert network is not None
    assert network.seconds([0, 1, 2], 4_000_000).tolist() == [4.5, 3.0, 2.0]
    assert network.seconds([2, 0], np.array([7, 2_000_000])).tolist() == [2.0, 2.5]


def test_parties_are_waited_for_together() -> None:
    """Down and up follow each other; the slowest party counts, also one that never replies."""
    network = NetworkModel.of(2, [0.1], [1.0])
    assert network is not None
    assert network.exchange([0, 1], 1_000_000, [0, 1], np.array([0, 3_000_000])) == pytest.approx(1.1 + 3.1)
    assert network.exchange([0, 1], np.array([0, 9_000_000]), [0], 1_000_000) == pytest.approx(9.1)


def test_without_settings_there_is_no_network_model() -> None:
    """And nothing in the history."""
    assert NetworkModel.of(3, [], []) is None
    assert "simulated_seconds" not in runner.run(small("fedavg", rounds=1)).rows[0]


@pytest.mark.parametrize(
    ("latency", "bandwidth", "sentence"),
    [([1.0, 2.0], [], "one for all or one per party"), ([-1.0], [], "negative"), ([], [float("inf")], "infinite")],
)
def test_impossible_networks_are_refused(latency: list[float], bandwidth: list[float], sentence: str) -> None:
    """One sentence."""
    with pytest.raises(AtollError, match=sentence):
        NetworkModel.of(3, latency, bandwidth)


@pytest.mark.parametrize("algorithm", ["fedavg", "glasu"])
def test_the_history_tells_the_seconds_of_every_round(algorithm: str) -> None:
    """Two latencies an exchange and the wire bytes of the slowest party, exchange after exchange; evaluation does not count."""
    recorded: list[Recorded] = []
    config = small(algorithm, latency="0.25,0.5,0.125", bandwidth="0.001", rounds=2)
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    result = runner.rounds(experiment)
    latency = np.array([0.25, 0.5, 0.125])
    expected = 0.0
    for message, results in recorded[0].delivered:
        if message.training and message.round == 1:
            down, up = np.zeros(3), np.zeros(3)
            for party in range(3):
                own = message.select([party])
                envelope = {"verb": own.verb, "round": own.round, "call": own.call, "training": True}
                down[party] = len(wire.encode({**envelope, **own.common, **own.each}))
                up[party] = len(wire.encode(pick(results[0].fields, [party])))
            expected += float((2 * latency + (down + up) / 1000).max())
    assert result.rows[0]["simulated_seconds"] == pytest.approx(expected)
    assert result.seconds["simulated"] == pytest.approx(sum(row["simulated_seconds"] for row in result.rows))


def test_seconds_survive_a_resume(tmp_path: Path) -> None:
    """Broken off and resumed, the total is that of the whole run."""

    def stop(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    config = small("fedavg", latency="0.5", rounds=4, checkpoint_every=2)
    whole = runner.run(config)
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, out=tmp_path / "run", watch=stop)
    resumed = runner.resume(tmp_path / "run")
    assert whole.seconds["simulated"] == resumed.seconds["simulated"] == 4.0
