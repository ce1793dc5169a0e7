"""Speed and memory, measured: `make bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll.runs.runner import Experiment


def peak() -> float:
    """The peak memory of this process in GB; getrusage would include its parent's at the time of the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return float(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1e6


class Ours:
    """atoll's rounds one by one, evaluation included, to compare with plain loops."""

    def __init__(self, experiment: Experiment, state: dict[str, Any]) -> None:
        self.experiment, self.state, self.rounds = experiment, state, 0

    def round(self) -> float:
        """One round; the test accuracy after it."""
        algorithm, federation = self.experiment.algorithm, self.experiment.federation
        settings = self.experiment.config.settings
        self.rounds += 1
        federation.begin(self.rounds)
        self.state = algorithm.step(federation, self.state, settings)
        with federation.evaluating():
            return float(algorithm.evaluate(federation, self.state, settings)["accuracy"])  # type: ignore[arg-type]
