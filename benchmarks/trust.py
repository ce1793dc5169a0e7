"""Two source trees side by side: a FedAvg round in one process, and `ask` over NVFlare to three sites.

    python -m benchmarks.trust OLD [--new NEW] [--only round,ask] [--starts 5] [--turns 20] [--threads 1]

OLD and NEW are roots of two checkouts (a `git worktree` of an older commit); NEW is this one by default. Each tree runs in
processes of its own that take turns, old and new alternately and in changing order, so that both meet the same machine. A start
is a new pair of processes; its ratio is the median over its turns, the figure is the median over the starts, and the spread is
their lowest and highest ratio. Run it when nothing else runs; on a busy machine only CPU time tells anything.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
LIMITS = {"round": 1.02, "ask": 1.10}
SITES = 3
ROUNDS = {"cora": 5, "csbm": 20}  # rounds of a turn
ECHOES = {"1 kB": (1_000, 20), "100 kB": (100_000, 10), "10 MB": (10_000_000, 2)}
TRAINED = 20  # rounds of the run over the sites


class Tree:
    """A source tree's worker: a process that measures one turn whenever it is told to."""

    def __init__(self, root: Path, kind: str, threads: int) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(HERE)])}
        environment |= {"GOMP_SPINCOUNT": "100000", "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "benchmarks.trust", "--worker", kind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=tempfile.gettempdir()
        )
        about = self._read()
        if not Path(about["atoll"]).is_relative_to(root.resolve()):
            sys.exit(f"The worker for {root} imported {about['atoll']}.")
        self.names: list[str] = about["names"]

    def turn(self, name: str) -> float:
        """Milliseconds of one turn."""
        assert self.process.stdin is not None
        self.process.stdin.write(name + "\n")
        self.process.stdin.flush()
        return float(self._read()["ms"])

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                document: dict[str, Any] = json.loads(line)
                return document
        sys.exit("A worker ended early; what it printed above says why.")

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(old: Path, new: Path, kind: str, starts: int, turns: int, threads: int) -> list[dict[str, Any]]:
    """A row for each thing that the workers of a kind measure."""
    times: dict[str, list[list[tuple[float, float]]]] = {}
    for start in range(starts):
        order = (old, new) if start % 2 == 0 else (new, old)
        made = {root: Tree(root, kind, threads) for root in order}
        try:
            for name in made[new].names:
                pairs = []
                for tree in made.values():
                    tree.turn(name)  # caches, first allocations
                for turn in range(turns):
                    taken = {root: made[root].turn(name) for root in (order if turn % 2 == 0 else order[::-1])}
                    pairs.append((taken[old], taken[new]))
                times.setdefault(name, []).append(pairs)
                print(f"start {start + 1}, {name}: {ratio(pairs):.3f}", file=sys.stderr, flush=True)
        finally:
            for tree in made.values():
                tree.stop()
    rows = []
    for name, starts_of in times.items():
        ratios = [ratio(pairs) for pairs in starts_of]
        every = [pair for pairs in starts_of for pair in pairs]
        rows.append(
            {
                "what": name,
                "old ms": statistics.median(pair[0] for pair in every),
                "new ms": statistics.median(pair[1] for pair in every),
                "new / old": f"{statistics.median(ratios):.3f}",
                "lowest to highest start": f"{min(ratios):.3f} to {max(ratios):.3f}",
                "fastest turns": f"{min(pair[1] for pair in every) / min(pair[0] for pair in every):.3f}",
                "limit": f"{LIMITS[kind]:.2f}",
            }
        )
    return rows


def ratio(pairs: list[tuple[float, float]]) -> float:
    """The median over the turns of new / old."""
    return statistics.median(new / old for old, new in pairs)


# Workers: only what both trees have


@contextmanager
def rounds() -> Iterator[dict[str, Callable[[], float]]]:
    """A FedAvg round in one process, evaluation included."""
    from atoll.runs import config, runner

    def turn(experiment: Any, count: int, clock: Callable[[], float]) -> float:
        began = clock()
        runner.rounds(experiment)
        return (clock() - began) / count * 1e3

    measured: dict[str, Callable[[], float]] = {}
    for dataset, count in ROUNDS.items():
        if dataset == "cora" and not os.environ.get("ATOLL_DATA"):
            continue
        values = {"rounds": count, "patience": 0}
        chosen = config.resolve("fedavg", dataset=dataset, partition="louvain_largest", parties=5, values=values)
        experiment = runner.prepare(chosen)
        for label, clock in (("", time.perf_counter), (", CPU time", time.process_time)):
            measured[f"fedavg round on {dataset}, 5 parties{label}"] = partial(turn, experiment, count, clock)
    yield measured


@contextmanager
def asks() -> Iterator[dict[str, Callable[[], float]]]:
    """Bytes to three sites and back, and a FedAvg round over them."""
    from atoll.deploy import supervisor
    from atoll.runs import config
    from atoll.runs.folder import Folder

    with tempfile.TemporaryDirectory(prefix="atoll-trust-") as scratch:
        folder = Path(scratch)
        with supervisor.local_federation(SITES, folder, folder / "sites", lambda text: None) as federation:
            values = {"rounds": TRAINED, "patience": 0}
            chosen = config.resolve("fedavg", dataset="csbm", partition="random", parties=SITES, engine="nvflare", values=values)

            def run() -> float:
                out = folder / f"run-{time.monotonic_ns()}"
                Folder.create(out, chosen)
                return 1e3 * float(federation.run(chosen, out, SITES).seconds["per_round"])

            def echo(size: int, times: int) -> float:
                names = [str(guest.kit.site) for guest in federation.sites]
                return 1e3 * statistics.median(each[0] for each in federation.server.echo(names, size, times))

            run()  # everybody is there
            measured: dict[str, Callable[[], float]] = {
                f"{label} to {SITES} sites and back": partial(echo, size, times) for label, (size, times) in ECHOES.items()
            }
            yield measured | {f"fedavg round over {SITES} sites": run}


def work(kind: str) -> None:
    """Measure what stdin names, a line each, until it ends."""
    import atoll

    with (rounds if kind == "round" else asks)() as measured:
        print(json.dumps({"atoll": atoll.__file__, "names": list(measured)}), flush=True)
        for line in sys.stdin:
            print(json.dumps({"ms": measured[line.strip()]()}), flush=True)


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", nargs="?", type=Path, help="root of the older checkout")
    parser.add_argument("--new", type=Path, default=HERE, help="root of the newer one; this one by default")
    parser.add_argument("--only", default="round,ask", help="round, ask or both")
    parser.add_argument("--starts", type=int, default=5, help="pairs of processes")
    parser.add_argument("--turns", type=int, default=20, help="turns of each pair")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; with one, turns differ least")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args([] if arguments is None else arguments)
    if given.worker:
        work(given.worker)
        return []
    if given.old is None:
        return [{"what": "skipped: it compares two trees; python -m benchmarks.trust OLD"}]
    for root in (given.old, given.new):
        if not (root / "src" / "atoll" / "__init__.py").is_file():
            parser.error(f"{root} holds no src/atoll")
    old, new = given.old.resolve(), given.new.resolve()
    return [row for kind in given.only.split(",") for row in compare(old, new, kind, given.starts, given.turns, given.threads)]


if __name__ == "__main__":
    found = main(sys.argv[1:])
    if found:
        from rich.console import Console
        from rich.table import Table

        table = Table(*found[0].keys(), title="trust", title_justify="left")
        for row in found:
            table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
        Console(width=160).print(table)
