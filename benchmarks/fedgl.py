"""FedGL's pseudo graph: time and memory of the s nearest rows of H·Hᵀ, and a whole round on a large synthetic graph.

Three ways to the nearest rows, in turns in one process: the product as a whole (N² numbers), blocks of rows sorted as they are,
and atoll's blocks whose columns are grouped first; faiss beside them if installed. The round runs in a process of its own
and tells that process's peak memory: python -m benchmarks.fedgl round NODES exact|approximate.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor

from atoll import config, pseudograph, runner
from benchmarks import peak


def whole(embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
    scores, columns = (embeddings @ embeddings.t()).topk(count, dim=1)
    return scores, columns


def blocks(embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
    step = max(1, pseudograph.ENTRIES // len(embeddings))
    parts = [(rows @ embeddings.t()).topk(count, dim=1) for rows in embeddings.split(step)]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def clustered(nodes: int, width: int = 7) -> Tensor:
    source = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(width, width, generator=source)
    return centres[torch.randint(width, (nodes,), generator=source)] + torch.randn(nodes, width, generator=source)


def nearest(nodes: int, count: int = 100, turns: int = 3) -> None:
    embeddings = clustered(nodes)
    ways: dict[str, Callable[[Tensor, int], tuple[Tensor, Tensor]]] = {"blocks": blocks, "grouped": pseudograph.nearest}
    if nodes <= 10_000:
        ways["whole"] = whole
    try:
        pseudograph.approximate(embeddings[:100], 5)
        ways["faiss"] = pseudograph.approximate
    except Exception:
        print("faiss is not installed")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found = {}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            found[name] = way(embeddings, count)
            seconds[name].append(time.process_time() - began)
    for name, times in seconds.items():
        kept = found[name][0].sum() / found["grouped"][0].sum()
        print(f"N = {nodes:6d}, s = {count}: {name:8s} {min(times):7.3f} s, {100 * float(kept):.2f} % of the similarity found")


def one_round(nodes: int, search: str) -> None:
    """Two rounds: the second one has a pseudo graph to train on."""
    values = {
        "data.nodes": nodes,
        "rounds": 2,
        "search": search,
        "neighbours": 100,
        "split": "random",
        "train": 0.05,
        "val": 0.05,
    }
    experiment = runner.prepare(config.resolve("fedgl", dataset="csbm", values=values))
    ready = peak()
    result = runner.rounds(experiment)
    held = peak()
    rows = experiment.spread.parts.num_nodes
    times = [row["seconds"] for row in result.rows]
    print(f"{nodes} nodes in 6 parties ({rows} rows), {search}: first round {times[0]:.0f} s, second {times[1] - times[0]:.0f} s")
    print(f"peak memory of the process {held:.2f} GB, {ready:.2f} GB of it with the parties standing and before the first round")


def main() -> None:
    for nodes in (2708, 20_000):
        nearest(nodes)
    for search in ("exact", "approximate"):
        subprocess.run([sys.executable, "-m", "benchmarks.fedgl", "round", "200000", search], check=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["round"]:
        one_round(int(sys.argv[2]), sys.argv[3])
    else:
        main()
