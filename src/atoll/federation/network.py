"""A network model: how long messages would take on a network of given latency and bandwidth. Nothing is really delayed.

A message of b bytes to or from a party takes latency + b / bandwidth seconds. The server sends to all parties at once and waits
for the slowest; exchanges follow one another. Bytes are those on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError


@dataclass(frozen=True)
class NetworkModel:
    """The latency and bandwidth between the server and each party."""

    latency: NDArray[np.float64]  # (M,) seconds one way
    bandwidth: NDArray[np.float64]  # (M,) bytes per second; infinite where there is no limit

    @classmethod
    def of(cls, parties: int, latency: Sequence[float], bandwidth: Sequence[float]) -> NetworkModel | None:
        """From settings: seconds, and 10⁶ bytes per second (0: no limit), one number for all or one per party; or None."""
        if not latency and not bandwidth:
            return None
        speed = _each("bandwidth", bandwidth or [0.0], parties) * 1e6
        return cls(_each("latency", latency or [0.0], parties), np.where(speed > 0, speed, np.inf))

    def seconds(self, parties: Sequence[int], bytes: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """How long a message to or from each of these parties takes."""
        index = np.asarray(parties, dtype=np.int64)
        result: NDArray[np.float64] = self.latency[index] + bytes / self.bandwidth[index]
        return result

    def exchange(
        self, asked: Sequence[int], down: int | NDArray[np.int64], replied: Sequence[int], up: int | NDArray[np.int64]
    ) -> float:
        """From the first byte down to the last reply."""
        waits = np.zeros(len(self.latency))
        waits[np.asarray(asked, dtype=np.int64)] = self.seconds(asked, down)
        waits[np.asarray(replied, dtype=np.int64)] += self.seconds(replied, up)
        return float(waits.max())


def _each(name: str, values: Sequence[float], parties: int) -> NDArray[np.float64]:
    if len(values) not in (1, parties):
        raise AtollError(f"{name} has {len(values)} numbers for {parties} parties; give one for all or one per party.")
    if not all(0 <= value < float("inf") for value in values):
        raise AtollError(f"{name} must not be negative or infinite; it is {', '.join(f'{value:g}' for value in values)}.")
    return np.broadcast_to(np.asarray(values, dtype=np.float64), parties)
