"""How time and memory grow: parties and nodes (FedAvg), users (nFedGNN, GFL-APPNP's set-up), each size in a process of its own.

The slope is that of log(seconds) over log(size) from the size before: 1 is linear. Rounds are the runner's, evaluation included;
the fastest of some rounds counts; one thread, and the seconds are the processor's. Users' moments are kept per user
(`moments=user`). `python -m benchmarks growth` runs all series, `python -m benchmarks.growth parties` one, and
`python -m benchmarks.growth users 10000000` one at other sizes.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from atoll.data.builder import build_graph
from atoll.data.script_data import ScriptData
from atoll.runs import config, runner
from benchmarks import Ours, peak

warnings.filterwarnings("ignore")

SIZES = {
    "parties": (10, 100, 1_000, 5_000, 20_000),
    "nodes, whole graphs": (20_000, 200_000, 2_000_000),
    "nodes, mini-batches": (20_000, 200_000, 2_000_000),
    "users": (10_000, 100_000, 1_000_000),
    "dense users": (10_000, 100_000, 400_000),
    "gfl_appnp users": (25_000, 50_000, 100_000, 200_000),
}
ROUNDS = 3
PER_PARTY = 50  # nodes
USERS = {"moments": "user", "optimizer": "adamw", "rounds": ROUNDS, "patience": 0}


def fedavg(nodes: int, parties: int, partition: str, **values: Any) -> Any:
    """A FedAvg experiment on a generated graph."""
    plain = {"nodes": nodes, "degree": 10, "features": 64, "hidden": 64, "split": "random", "epochs": 1, "train": 0.1}
    rest = {"val": 0.1, "test": 0.8, "rounds": ROUNDS, "patience": 0}
    return runner.prepare(
        config.resolve("fedavg", dataset="csbm", partition=partition, parties=parties, values={**plain, **rest, **values})
    )


def of_parties(size: int) -> Any:
    """So many parties of 50 nodes."""
    rng = np.random.default_rng(0)
    nodes, party = size * PER_PARTY, np.repeat(np.arange(size), 3 * PER_PARTY)
    edges = rng.integers(0, PER_PARTY, (2, len(party))) + party * PER_PARTY
    role = rng.random(nodes)
    masks = (role < 0.4, (role >= 0.4) & (role < 0.6), role >= 0.6)
    x, y = rng.standard_normal((nodes, 64), np.float32), rng.integers(0, 5, nodes)
    graph = build_graph(x, edges, y, masks, where="parties", num_classes=5)
    values = {"hidden": 64, "epochs": 1, "rounds": ROUNDS, "patience": 0}
    lists = np.arange(nodes).reshape(size, PER_PARTY)
    given = ScriptData(graph, list(lists))
    return runner.prepare(config.resolve("fedavg", dataset="given", partition="given", values=values), given)


def of_nodes(size: int) -> Any:
    """So many nodes in ten parties."""
    return fedavg(size, 10, "random")


def in_batches(size: int) -> Any:
    """The same, in mini-batches of 512."""
    return fedavg(size, 10, "random", batch_size=512, model="gcn", fan_out="10,10")


def users(size: int) -> Any:
    """So many users, ten of 500 features each."""
    from benchmarks.nfedgnn import synthetic

    return runner.prepare(config.resolve("nfedgnn", dataset="given", partition="node", values=USERS), synthetic(size))


def dense_users(size: int) -> Any:
    """So many users, 64 dense features each."""
    rng = np.random.default_rng(0)
    edges, role = rng.integers(0, size, (2, size * 5)), rng.random(size)
    masks = (role < 0.1, (role >= 0.1) & (role < 0.2), role >= 0.2)
    x, y = rng.standard_normal((size, 64), np.float32), rng.integers(0, 5, size)
    graph = build_graph(x, edges, y, masks, where="users", num_classes=5)
    del x, edges, role, masks
    return runner.prepare(config.resolve("nfedgnn", dataset="given", partition="node", values=USERS), graph)


def appnp(size: int) -> Any:
    """So many users of the papers' cSBM with a connected training set."""
    values = {"nodes": size, "samples": 1, "degree": 5, "edge_signal": 2, "features": 64, "classes": 2, "communities": 0}
    values |= {"connected_train_share": 0.05, "rounds": ROUNDS}
    return runner.prepare(config.resolve("gfl_appnp", dataset="csbm", partition="node", values=values))


SERIES: dict[str, Callable[[int], Any]] = {
    "parties": of_parties,
    "nodes, whole graphs": of_nodes,
    "nodes, mini-batches": in_batches,
    "users": users,
    "dense users": dense_users,
    "gfl_appnp users": appnp,
}


def child(series: str, size: int) -> dict[str, float]:
    """The set-up, with the first round, and the fastest further round, in this process."""
    began = time.process_time()
    experiment = SERIES[series](size)
    federation = experiment.federation
    federation.begin(0)
    ours = Ours(experiment, experiment.algorithm.start(federation, experiment.config.settings))
    ours.round()
    ready, seconds = time.process_time() - began, []
    for _ in range(ROUNDS - 1):
        began = time.process_time()
        ours.round()
        seconds.append(time.process_time() - began)
    return {"set-up": ready, "round": min(seconds), "peak GB": peak()}


def table(series: str, sizes: Sequence[int] = ()) -> list[dict[str, object]]:
    """One row per size."""
    rows: list[dict[str, object]] = []
    before: tuple[int, dict[str, float]] | None = None
    for size in sizes or SIZES[series]:
        command = [sys.executable, "-m", "benchmarks.growth", "--child", series, str(size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        slopes = dict.fromkeys(("set-up", "round"), "")
        if before is not None:
            wide = math.log(size / before[0])
            slopes = {name: f"{math.log(found[name] / before[1][name]) / wide:.2f}" for name in slopes}
        row: dict[str, object] = {"series": series, "size": f"{size:,}", "set-up and a round, s": found["set-up"]}
        row |= {"slope": slopes["set-up"], "round, s": found["round"], "slope of a round": slopes["round"]}
        rows.append(row | {"peak GB": found["peak GB"]})
        print(*rows[-1].values(), file=sys.stderr, flush=True)
        before = size, found
    return rows


def main(*names: str) -> list[dict[str, object]]:
    """All series, or one at its own or other sizes."""
    if names:
        return table(names[0], [int(size) for size in names[1:]])
    return [row for series in SERIES for row in table(series)]


if __name__ == "__main__":
    if sys.argv[1] == "--child":
        print(json.dumps(child(sys.argv[2], int(sys.argv[3]))))
    else:
        main(*sys.argv[1:])
