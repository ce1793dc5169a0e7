"""A comparison of 27 runs on Cora, as a user starts it: one after the other with all cores, and two at a time with `--jobs 2`.

Each turn is the whole command in a process of its own, start and imports included; turns alternate, and a figure is the fastest.
The goal is a ratio of at most 0.65 on two cores. It needs the dataset (ATOLL_DATA) and an idle machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ALGORITHMS, SEEDS, ROUNDS = "local,fedavg,fedprox", 9, 100
WAYS = {"one after the other": [], "one after the other, one thread": ["--threads", "1"], "--jobs 2": ["--jobs", "2"]}


def command(rounds: int, out: Path, *more: str) -> list[str]:
    values = ["--dataset", "cora", "--partition", "metis", "--parties", "5", "--rounds", str(rounds), "--seeds", str(SEEDS)]
    return [sys.executable, "-m", "atoll.cli.main", "compare", ALGORITHMS, *values, "--quiet", "--out", str(out), *more]


def turn(rounds: int, more: list[str]) -> tuple[float, dict[str, float]]:
    """Seconds of the whole command, and the accuracies that it came to."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "runs"
        began = time.perf_counter()
        subprocess.run(command(rounds, out, *more), check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - began
        return seconds, {row["row"]: row["accuracy"] for row in json.loads((out / "comparison.json").read_text())}


def main(rounds: int = ROUNDS, count: int = 2) -> list[dict[str, object]]:
    best = dict.fromkeys(WAYS, float("inf"))
    found: dict[str, dict[str, float]] = {}
    for _ in range(count):
        for name, more in WAYS.items():
            seconds, found[name] = turn(rounds, more)
            best[name] = min(best[name], seconds)
    assert found["--jobs 2"] == found["one after the other, one thread"], "processes must give the numbers of one thread"
    return [
        {
            "27 runs on Cora": name,
            "seconds": best[name],
            "of one after the other": f"{best[name] / best['one after the other']:.2f} ×",
        }
        for name in WAYS
    ]


if __name__ == "__main__":
    for row in main(*map(int, sys.argv[1:2])):
        print(row)
