"""A link model: how long a run's messages would take on a network of given latency and bandwidth. Nothing is delayed for it.

A message of b bytes to or from a party takes latency + b / bandwidth seconds. The server speaks to all parties at once and waits
for the slowest; one exchange comes after the other. Bytes are those on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError


@dataclass(frozen=True)
class Link:
    """Every party's way to the server."""

    latency: NDArray[np.float64]  # (M,) seconds one way
    bandwidth: NDArray[np.float64]  # (M,) bytes a second; infinite where there is no limit

    @classmethod
    def of(cls, parties: int, latency: Sequence[float], bandwidth: Sequence[float]) -> Link | None:
        """From settings: seconds, and 10⁶ bytes a second (0: no limit), one number for all or one a party; None without any."""
        if not latency and not bandwidth:
            return None
        speed = _each("bandwidth", bandwidth or [0.0], parties) * 1e6
        return cls(_each("latency", latency or [0.0], parties), np.where(speed > 0, speed, np.inf))

    def seconds(self, parties: Sequence[int], bytes: int | NDArray[np.int64]) -> NDArray[np.float64]:
        """How long a message to or from each of these parties takes."""
        places = np.asarray(parties, dtype=np.int64)
        result: NDArray[np.float64] = self.latency[places] + bytes / self.bandwidth[places]
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
        raise AtollError(f"{name} has {len(values)} numbers for {parties} parties; give one for all or one a party.")
    if not all(0 <= value < float("inf") for value in values):
        raise AtollError(f"{name} must not be negative or infinite; it is {', '.join(f'{value:g}' for value in values)}.")
    return np.broadcast_to(np.asarray(values, dtype=np.float64), parties)
