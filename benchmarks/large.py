"""Training on whole graphs and in mini-batches, side by side: seconds and the peak memory of one process each.

`arxiv`: 170,000 generated nodes, 1.2 million edges, 128 dense features, 40 classes, 10 METIS parties, as many as ogbn-arxiv has.
`products`: the shape of ogbn-products, 2.4 million nodes, 62 million edges, 100 features, 47 classes, in 10 parties, each a
generated graph of its own (METIS would need more memory than all the rest); 64 and 256 hidden units, in mini-batches only.
One thread, and the seconds are the processor's. `python -m benchmarks.large arxiv` runs the cases whose names begin so.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import json
import resource
import subprocess
import sys
import time
from typing import Any

NETWORK = {"model": "gcn", "hidden": 256, "layers": 2, "epochs": 1, "patience": 0}
BATCHES = {"batch_size": 512, "fan_out": "10,10"}
ARXIV = {"nodes": 170_000, "degree": 14.1, "features": 128, "classes": 40, "train": 0.54, "val": 0.18, "test": 0.28}
PRODUCTS = {
    "nodes": 2_400_000,
    "degree": 51.6,
    "features": 100,
    "classes": 47,
    "train": 0.08,
    "val": 0.02,
    "test": 0.9,
    "hidden": 64,
    "batch_size": 1024,
}
CASES = ("arxiv whole graphs", "arxiv mini-batches", "products mini-batches", "products of 256 hidden units mini-batches")


def main(which: str = "") -> list[dict[str, object]]:
    """One row per case, each in a process of its own."""
    rows: list[dict[str, object]] = []
    for case in (case for case in CASES if case.startswith(which)):
        command = [sys.executable, "-m", "benchmarks.large", "--child", case]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        rows.append({"case": case, **json.loads(printed.splitlines()[-1])})
        print(*rows[-1].values(), file=sys.stderr, flush=True)
    return rows


class Clock:
    """An engine that adds up the seconds of training and of evaluation."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.seconds = engine, {True: 0.0, False: 0.0}

    def deliver(self, message: Any) -> Any:
        """Forward and time."""
        began = time.process_time()
        replies = self.engine.deliver(message)
        self.seconds[message.training] += time.process_time() - began
        return replies

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)


def child(case: str) -> None:
    """One round of one case in this process: the data's and the whole peak, the seconds of training and of evaluation."""
    from atoll.runs import config, runner
    from atoll.runs.experiment import build_cohort, build_experiment, prepare, schema_of

    shape = ARXIV if case.startswith("arxiv") else PRODUCTS
    values = {**NETWORK, "split": "random", "rounds": 1, **(BATCHES if case.endswith("batches") else {}), **shape}
    values |= {"hidden": 256} if "256" in case else {}
    chosen = config.resolve("fedavg", dataset="csbm", partition="metis", parties=10, values=values)
    clocks: list[Clock] = []

    def timed(engine: Any) -> Clock:
        clocks.append(Clock(engine))
        return clocks[0]

    if shape is ARXIV:
        experiment = prepare(chosen, engine=timed)
    else:
        from atoll.data.federated_data import FederatedData, always
        from atoll.engines.inprocess import InProcessEngine

        parts = products()
        data = FederatedData("horizontal", parts, always(parts), always(parts))
        schema = schema_of(data)
        engine = InProcessEngine(
            lambda parties, blank: build_cohort(chosen, parts.select(parties), schema, parties, blank=blank), [range(10)]
        )
        experiment = build_experiment(chosen, timed(engine), schema, data, "horizontal")
    row = {"GB of data": peak()}
    runner.rounds(experiment)
    row |= {"s of training": clocks[0].seconds[True], "s of evaluation": clocks[0].seconds[False], "peak GB": peak()}
    print(json.dumps(row))


def products(parties: int = 10) -> Any:
    """The parties' graphs, generated one after the other into arrays that hold all of them."""
    import numpy as np
    import torch

    import atoll
    from atoll.graphs.graph import Graph

    each = PRODUCTS["nodes"] // parties
    nodes, columns = each * parties, PRODUCTS["features"]
    x, y = torch.empty(nodes, columns), torch.empty(nodes, dtype=torch.int64)
    edges, used = torch.empty(2, int(nodes * PRODUCTS["degree"] * 1.01), dtype=torch.int64), 0
    for party in range(parties):
        names = ("degree", "features", "classes")
        one = atoll.load("csbm", nodes=each, graph_seed=party, **{name: PRODUCTS[name] for name in names})
        rows = slice(party * each, (party + 1) * each)
        x[rows], y[rows] = torch.as_tensor(one.x), one.y
        count = one.edge_index.shape[1]
        torch.add(one.edge_index, party * each, out=edges[:, used : used + count])
        used += count
        del one
    print(f"{nodes} nodes, {used // 2} edges", file=sys.stderr)
    role = torch.from_numpy(np.random.default_rng(0).choice(3, nodes, p=[PRODUCTS[name] for name in ("train", "val", "test")]))
    ptr = torch.arange(parties + 1) * each
    return Graph(
        x=x, edge_index=edges[:, :used], y=y, train=role == 0, val=role == 1, test=role == 2,
        num_classes=PRODUCTS["classes"], ids=torch.arange(nodes), ptr=ptr,
    )  # fmt: skip


def peak() -> float:
    """The most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    child(sys.argv[2]) if sys.argv[1:2] == ["--child"] else main(*sys.argv[1:])
