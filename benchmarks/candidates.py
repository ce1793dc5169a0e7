"""What might bring rounds nearer to the limit, measured alone: half precision, Â·X made once, unused columns, dropout, pages.

One thread, seconds of the processor, the fastest of some turns. `python -m benchmarks candidates`; docs/benchmarks.md draws the
conclusions.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import ctypes
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.graphs.sparse import multiply
from atoll.runs import config, runner
from benchmarks.roofline import begun, fastest

warnings.filterwarnings("ignore")

HUGE_PAGE = 2 << 20
GRAPHS = {"pubmed": "fedspray_pubmed", "physics": "fedspray_physics"}
DENSE = {"nodes": 34_000, "degree": 14.1, "features": 128, "classes": 40, "train": 0.54, "val": 0.18, "test": 0.28}
NETWORK = {"model": "gcn", "hidden": 256, "layers": 2, "epochs": 1, "patience": 0, "split": "random"}


def halves() -> list[dict[str, object]]:
    """Products as they are, with the table converted in every product, and the error of the result."""
    rows: list[dict[str, object]] = []
    for dataset, partition in GRAPHS.items():
        parts = runner.prepare(config.resolve("fedavg", dataset=dataset, partition=partition)).party_data.parts
        features: Any = parts.features.values
        for name, matrix in (
            ("Â·H", parts.normalized_adjacency.forward),
            ("X·W", features.forward),
            ("Xᵀ·G", features.transposed),
        ):
            table = torch.randn(matrix.shape[1], 64)
            row: dict[str, object] = {
                "what": f"{dataset}, {name}",
                "float32, ms": 1e3 * fastest(lambda m=matrix, t=table: multiply(m, t)),
            }
            for kind in (torch.float16, torch.bfloat16):
                values = matrix.values().to(kind)

                def product(m: Any = matrix, t: Tensor = table, v: Tensor = values, kind: torch.dtype = kind) -> Tensor:
                    bags: tuple[Tensor, ...] = torch.ops.aten._embedding_bag_forward_only(
                        t.to(kind), m.col_indices(), m.crow_indices(), False, 0, False, v, True
                    )
                    return bags[0].float()

                usual = multiply(matrix, table)
                name_of = str(kind).removeprefix("torch.")
                row |= {
                    f"{name_of}, ms": 1e3 * fastest(product),
                    f"{name_of}, error": float((product() - usual).norm() / usual.norm()),
                }
            rows.append(row)
    return rows


def propagated() -> list[dict[str, object]]:
    """A FedAvg round on dense features, Â·(X·W) in every step, and with Â·X made once."""
    seconds = []
    for first in (False, True):
        values = {**DENSE, **NETWORK, "propagate_first": first}
        experiment = runner.prepare(config.resolve("fedavg", dataset="csbm", partition="metis", parties=2, values=values))
        seconds.append(1e3 * fastest(begun(experiment).round, 3))
    return [{"what": "a round, ms", "Â·(X·W)": seconds[0], "(Â·X)·W": seconds[1]}]


def used() -> list[dict[str, object]]:
    """The share of the columns that a party uses."""
    rows: list[dict[str, object]] = []
    for dataset, partition in {**GRAPHS, "cora": "louvain_largest", "citeseer": "louvain_largest"}.items():
        parts = runner.prepare(config.resolve("fedavg", dataset=dataset, partition=partition)).party_data.parts
        x = parts.nonzero_features
        shares = [len(np.unique(x.indices[x.indptr[start] : x.indptr[end]])) / x.shape[1] for start, end in parts.blocks.ranges]
        rows.append(
            {"columns used by a party": dataset, "parties": parts.parties, "mean": float(np.mean(shares)), "least": min(shares)}
        )
    return rows


def cut_out(count: int = 777_000) -> list[dict[str, object]]:
    """Values and columns of a party's sparse features (Wiki's) that a mask of half of them keeps: three ways to cut them out."""
    rng = np.random.default_rng(0)
    columns, values = rng.integers(0, 4973, count).astype(np.int32), rng.random(count).astype(np.float32)
    mask, kept = rng.random(count) < 0.5, (np.empty(count, np.int32), np.empty(count, np.float32))
    tensors = [(torch.from_numpy(array), torch.from_numpy(out)) for array, out in zip((columns, values), kept, strict=True)]

    def selected() -> None:
        index = torch.from_numpy(np.flatnonzero(mask))
        for tensor, out in tensors:
            torch.index_select(tensor, 0, index, out=out[: len(index)])

    def taken() -> None:
        index = np.flatnonzero(mask)
        for array, out in zip((columns, values), kept, strict=True):
            np.take(array, index, out=out[: len(index)], mode="clip")

    ways = {"torch's gathers": selected, "numpy's gathers": taken, "boolean indices": lambda: (columns[mask], values[mask])}
    return [{"cut out of": count, **{f"{name}, ms": 1e3 * fastest(way) for name, way in ways.items()}}]


def pages(reads: int = 10_000_000, sizes: Sequence[int] = (1_000_000, 4_000_000, 10_000_000)) -> list[dict[str, object]]:
    """Rows of 16 numbers gathered from tables of several sizes, on pages of 4 kB and, where the system has them, of 2 MB."""
    indptr, weights = torch.arange(0, reads + 1, 10, dtype=torch.int32), torch.rand(reads)
    rows: list[dict[str, object]] = []
    for size in sizes:
        columns = torch.randint(0, size, (reads,), dtype=torch.int32)
        row: dict[str, object] = {"rows of 64 bytes": size}
        shape = (len(indptr) - 1, size)
        matrix = torch.sparse_csr_tensor(indptr, columns, weights, size=shape, check_invariants=False)
        for name, advice in (("4 kB pages, GB/s", 15), ("2 MB pages, GB/s", 14)):  # MADV_NOHUGEPAGE, MADV_HUGEPAGE
            table = torch.empty(size, 16)
            start, end = -(-table.data_ptr() // HUGE_PAGE) * HUGE_PAGE, (table.data_ptr() + table.nbytes) // HUGE_PAGE * HUGE_PAGE
            ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), advice)
            table.fill_(1)
            row[name] = 64e-9 * reads / fastest(partial(multiply, matrix, table))
        rows.append(row)
    return rows


def main() -> None:
    """Prints its tables."""
    for rows in (halves(), propagated(), used(), cut_out(), pages()):
        for row in rows:
            print(*(f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
