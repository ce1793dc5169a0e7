"""Predicting a million nodes: seconds and the peak memory of one process, for FedAvg's GCN, as a table in a file.

A small run trains the model; a process of its own then predicts generated nodes, as a graph in memory and as a run's own data.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NODES = 1_000_000


def main(nodes: int = NODES) -> list[dict[str, object]]:
    """One row per kind of data."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for what in ("new nodes", "training data"):
            told = subprocess.run(
                [sys.executable, "-m", "benchmarks.predict", what, folder, str(nodes)], check=True, capture_output=True, text=True
            )
            seconds, gigabytes = told.stdout.split()
            rows.append({"data": what, "nodes": nodes, "seconds": float(seconds), "peak GB": float(gigabytes)})
    return rows


def child(what: str, folder: str, nodes: int) -> None:
    """Predict in this process, and print the seconds and the peak."""
    import atoll
    from atoll.cli.predict import write

    if what == "new nodes":
        model = atoll.run("fedavg", dataset="csbm", partition="random", parties=10, nodes=10_000, rounds=2).model()
        data = atoll.load("csbm", nodes=nodes, graph_seed=1)
    else:  # a run of its own first, in another process: what counts is the prediction
        values = f"partition='random', parties=10, nodes={nodes}, rounds=1, epochs=1, out={folder + '/run'!r}"
        code = f"import atoll; atoll.run('fedavg', dataset='csbm', {values})"
        subprocess.run([sys.executable, "-c", code], check=True)
        model, data = atoll.load_model(f"{folder}/run"), None
    start = time.perf_counter()
    write(model.predict(data), Path(folder) / "predictions.parquet")
    print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
