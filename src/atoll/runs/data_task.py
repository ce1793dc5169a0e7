"""Which task a dataset is for."""

from __future__ import annotations

from typing import Any

from atoll import algorithms
from atoll.data.registry import lookup
from atoll.errors import AtollError
from atoll.tasks import DEFAULT_TASK, GRAPH_TASK, TASKS

LEVELS = ("node",)  # the items of an algorithm that does not name them


def task_of_data(dataset: str) -> str:
    """The task that a dataset is for, unless a run names another."""
    return str(getattr(lookup(dataset), "task", DEFAULT_TASK))


def level_of(task: str) -> str:
    """What the items of a task are."""
    return getattr(TASKS.find(task), "level", "node") if task in TASKS else "node"


def require_whole_graphs(algorithm: str, task: str, settings: Any) -> None:
    """Refuse mini-batches of nodes where an algorithm needs all of a party's nodes in every step; graphs come in batches."""
    why = algorithms.find(algorithm).Cohort.whole_graph
    size: int = getattr(settings, "batch_size", 0)
    if why and size and level_of(task) == "node":
        raise AtollError(f"{algorithm} cannot train in mini-batches: {why}; leave batch_size out.")


def require_items(dataset: str, task: str, algorithm: str) -> None:
    """Refuse a task whose items the data does not have, or that the algorithm (its `LEVELS`) is not made for."""
    if (task == GRAPH_TASK) != (task_of_data(dataset) == GRAPH_TASK):
        holds = "one graph, whose items are nodes" if task == GRAPH_TASK else "many small graphs, for graph-classification"
        raise AtollError(f"The task is {task}, but the dataset {dataset} holds {holds}; leave the task out.")
    level = level_of(task)
    if level not in getattr(algorithms.find(algorithm), "LEVELS", LEVELS):
        raise AtollError(f"{algorithm} is not made for {task}: its items are nodes, not {level}s; choose another algorithm.")
