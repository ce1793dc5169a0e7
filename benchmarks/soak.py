"""Ten thousand rounds over NVFlare with three sites on loopback: threads, open files and memory of every process.

`python -m benchmarks.soak [rounds]` prints twenty rows of a table and at the end, process by process, whether anything still grew
after the first tenth of the rounds. Not a part of `make bench`, as it takes several minutes.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

SITES, SAMPLES = 3, 20
COLUMNS = ("threads", "files", "MB")
SLACK = {"threads": 8, "files": 8, "MB": 8.0}  # what may come and go without being growth
HISTORY = 0.001  # MB that the server keeps of a round: its row of the history and of the ledger


def measure(pid: int) -> dict[str, float]:
    """Threads, open files and sockets, and resident memory of a process."""
    import psutil

    process = psutil.Process(pid)
    return {"threads": process.num_threads(), "files": process.num_fds(), "MB": process.memory_info().rss / 1e6}


def soak(rounds: int, every: int, folder: Path, **values: Any) -> dict[str, list[dict[str, float]]]:
    """A run of FedAvg; the measurements of the server and of every site, after each `every` rounds."""
    from atoll.deploy import supervisor
    from atoll.runs import config
    from atoll.runs.folder import Folder

    seldom = max(1, rounds // 20)  # so that the first tenth has seen everything
    given = {"rounds": rounds, "evaluate_every": seldom, "checkpoint_every": seldom, "data.nodes": 60, "data.features": 16}
    chosen = config.resolve(
        "fedavg", dataset="csbm", partition="random", parties=SITES, engine="nvflare", values={**given, **values}
    )
    found: dict[str, list[dict[str, float]]] = {}
    with supervisor.local_federation(SITES, folder, folder / "sites", print) as federation:
        children = {"server": federation.server.child, **{str(guest.kit.site): guest.child for guest in federation.sites}}

        def watch(row: dict[str, Any], of: int) -> None:
            if row["round"] % every == 0 and row["round"] // every > len(found.get("server", ())):
                for name, child in children.items():
                    found.setdefault(name, []).append({"round": row["round"], **measure(child.process.pid)})
                show({name: samples[-1] for name, samples in found.items()})

        Folder.create(folder / "run", chosen)
        federation.run(chosen, folder / "run", SITES, watch=watch)
    return found


def show(latest: dict[str, dict[str, float]]) -> None:
    """One line of the table: the round, then each process's threads, files and MB."""
    cells = [f"{sample['threads']:.0f} / {sample['files']:.0f} / {sample['MB']:.0f}" for sample in latest.values()]
    print(" | ".join([f"| {next(iter(latest.values()))['round']:.0f}", *cells]) + " |", flush=True)


def growth(name: str, samples: list[dict[str, float]], rounds: int) -> dict[str, float]:
    """How much each column grew from the end of the first tenth to the end, where it is more than what may come and go."""
    settled = [sample for sample in samples if sample["round"] >= rounds / 10]
    allowed = {**SLACK, "MB": SLACK["MB"] + (HISTORY * rounds if name == "server" else 0)}
    grown = {column: settled[-1][column] - settled[0][column] for column in COLUMNS}
    return {column: value for column, value in grown.items() if value > allowed[column]}


def main(rounds: int = 10_000) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="atoll-soak-") as scratch:
        print("| round | server: threads / files / MB | " + " | ".join(f"site-{n}" for n in range(SITES)) + " |")
        print("|---" * (SITES + 2) + "|", flush=True)
        found = soak(rounds, max(1, rounds // SAMPLES), Path(scratch))
    for name, samples in found.items():
        grown = growth(name, samples, rounds)
        told = ", ".join(f"{column} by {value:.0f}" for column, value in grown.items())
        print(f"{name}: {f'grew after the first tenth: {told}' if grown else 'flat after the first tenth'}")
    return []


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
