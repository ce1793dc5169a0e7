"""Which algorithms take a dataset's items."""

from __future__ import annotations

import pytest

from atoll import algorithms
from atoll.errors import AtollError
from atoll.runs.data_task import require_items
from atoll.tasks import DEFAULT_TASK, GRAPH_TASK, LINK_TASK

# those whose graph runs are compared with a loop over graphs, or with each other: tests/tasks, tests/algorithms/test_on_graphs.py
GRAPHS = {"apfl", "centralized", "ditto", "fedala", "fedavg", "feddc", "feddyn", "fedopt", "fedper", "fedprox", "fedproto"}
GRAPHS |= {"fedrep", "fedstar", "gcfl", "local", "moon", "scaffold"}
LINKS = GRAPHS - {"fedstar"} | {"fedbn"}  # tests/tasks/test_link_prediction.py
LINKS |= {"centralized_vertical", "glasu", "simulated", "standalone"}  # tests/algorithms/test_glasu_links.py


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_links_are_refused_unless_an_algorithm_names_them(algorithm: str) -> None:
    """An algorithm that was written for nodes does not silently run on pairs of them."""
    if algorithm in LINKS:
        require_items("cora", LINK_TASK, algorithm)
        return
    with pytest.raises(AtollError, match=f"{algorithm} is not made for link-prediction"):
        require_items("cora", LINK_TASK, algorithm)


@pytest.mark.parametrize("algorithm", algorithms.names())
def test_graphs_are_refused_unless_an_algorithm_names_them(algorithm: str) -> None:
    """An algorithm that was written for nodes does not silently run on graphs."""
    require_items("cora", DEFAULT_TASK, algorithm)
    if algorithm in GRAPHS:
        require_items("mutag", GRAPH_TASK, algorithm)
        return
    with pytest.raises(AtollError, match=f"{algorithm} is not made for graph-classification"):
        require_items("mutag", GRAPH_TASK, algorithm)


def test_the_data_decides_the_task() -> None:
    """Nodes cannot be judged as graphs, nor graphs as nodes."""
    with pytest.raises(AtollError, match="leave the task out"):
        require_items("cora", GRAPH_TASK, "fedavg")
    with pytest.raises(AtollError, match="leave the task out"):
        require_items("mutag", DEFAULT_TASK, "fedavg")
