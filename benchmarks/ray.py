"""A cluster on this machine: FedAvg on Physics in one process, and over actors of Ray that share the same cores.

With 5 local epochs, the default, and with 20: what messages cost does not depend on the epochs. Start-up is left out (it is
reported by itself): a round's seconds are the median of those after the first two.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import statistics
import time
from typing import Any

PARTIES, ROUNDS, FIRST = 8, 12, 2


def main() -> list[dict[str, Any]]:
    from atoll.runs import config, runner

    cores = len(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    for epochs, sites in itertools.product((5, 20), (0, 1, 2, 4)):
        values = {"rounds": ROUNDS, "epochs": epochs}
        chosen = config.resolve("fedavg", dataset="physics", partition="metis", parties=PARTIES, values=values)
        stamps: list[float] = []

        def watch(row: dict[str, Any], rounds: int, stamps: list[float] = stamps) -> None:
            stamps.append(time.perf_counter())

        settings = dataclasses.replace(
            chosen.run, sites=sites, cpus_per_site=cores // sites if 0 < sites <= cores else cores / max(sites, cores)
        )
        engine = "ray" if sites else "inprocess"
        began = time.perf_counter()
        result = runner.run(dataclasses.replace(chosen, engine=engine, run=settings), watch=watch)
        seconds = statistics.median(after - before for before, after in zip(stamps[FIRST:], stamps[FIRST + 1 :], strict=False))
        rows.append(
            {
                "local epochs": epochs,
                "what": f"{sites} actors" if sites else "one process",
                "seconds per round": seconds,
                "ratio": seconds / next((row["seconds per round"] for row in rows if row["local epochs"] == epochs), seconds),
                "first round after s": stamps[0] - began,
                "accuracy": result.metrics["accuracy"],
            }
        )
    return rows
