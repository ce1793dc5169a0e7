"""Small datasets of graphs as TU files, under names of real ones: unequal columns and classes, uneven numbers of graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.runs import config
from atoll.runs.config import Config

SHAPES = {  # name → graphs, node labels, classes
    "MUTAG": (40, 7, 2),
    "BZR": (24, 5, 2),
    "COX2": (31, 3, 3),
    "DHFR": (20, 4, 2),
    "PTC_MR": (26, 6, 2),
    "AIDS": (22, 2, 2),
    "NCI1": (60, 5, 2),
}


def write(root: Path) -> None:
    """All of them under `tu`; the class of a graph shows in its edges and node labels. Some graphs have a single node."""
    for name, (graphs, labels, classes) in SHAPES.items():
        rng = np.random.default_rng(len(name) + graphs)
        y = np.sort(rng.permutation(np.arange(graphs) % classes))
        sizes = rng.integers(2, 9, graphs)
        sizes[::9] = 1
        member = np.repeat(np.arange(graphs), sizes)
        starts = np.cumsum([0, *sizes[:-1]])
        edges = [
            (starts[g] + i, starts[g] + j)
            for g in range(graphs)
            for i in range(sizes[g])
            for j in range(i + 1, sizes[g])
            if rng.random() < 0.2 + 0.3 * y[g]
        ]
        node_labels = np.where(rng.random(len(member)) < 0.6, y[member] % labels, rng.integers(0, labels, len(member)))
        node_labels[:labels] = np.arange(labels)
        folder = root / "tu" / name / "raw"
        folder.mkdir(parents=True)
        both = np.array([*edges, *[(b, a) for a, b in edges]]) + 1
        np.savetxt(folder / f"{name}_A.txt", both, fmt="%d", delimiter=", ")
        np.savetxt(folder / f"{name}_graph_indicator.txt", member + 1, fmt="%d")
        np.savetxt(folder / f"{name}_graph_labels.txt", y, fmt="%d")
        np.savetxt(folder / f"{name}_node_labels.txt", node_labels, fmt="%d")


def small_graphs(algorithm: str, dataset: str = "chem", *, seed: int = 3, rounds: int = 3, **values: Any) -> Config:
    """A small run on graphs: `chem` (seven parties, one dataset each), or one dataset dealt over three parties."""
    values = {"hidden": 8, "layers": 2, "batch_size": 16, "rounds": rounds, "patience": 0, **values}
    parties = None if dataset == "chem" else 3
    return config.resolve(algorithm, dataset=dataset, parties=parties, seed=seed, values=values)


@pytest.fixture
def graph_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """ATOLL_DATA with the small datasets."""
    root = tmp_path_factory.mktemp("data")
    write(root)
    monkeypatch.setenv("ATOLL_DATA", str(root))
    return root
