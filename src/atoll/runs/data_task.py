"""Which task a dataset is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll.data.graph_parties import holds_graphs
from atoll.data.manifest import Manifest, is_sharded
from atoll.data.registry import lookup
from atoll.data.target_columns import target_of_folder
from atoll.errors import AtollError
from atoll.tasks import DEFAULT_TASK, GRAPH_TASK, OF_TARGETS, TASKS
from atoll.tasks.regression import FEDERATION, check_scale
from atoll.tasks.targets import CLASS, VALUES

GIVEN = "given"  # the name of a dataset that was given as an object
LEVELS = ("node",)  # the items of an algorithm that does not name them
TARGETS = (CLASS,)  # likewise, what it predicts of an item
WORDS = {"labels": "several labels per item", "values": "values"}


def task_of_data(dataset: str, asked: Mapping[str, Any] | None = None) -> str:
    """The task that a dataset is for, unless a run names another; `asked` may name the target."""
    if lookup(dataset) is None and is_sharded(dataset):
        return task_of_manifest(Manifest.read(Path(dataset).expanduser()))
    usual = GRAPH_TASK if lookup(dataset) is None and holds_graphs(dataset) else DEFAULT_TASK
    usual = str(getattr(lookup(dataset), "task", usual))
    target = (asked or {}).get("target") or target_of_folder(dataset)
    if target not in OF_TARGETS:  # the setting refuses it
        return usual
    return OF_TARGETS[target].get(level_of(usual), usual)


def task_of_manifest(manifest: Manifest) -> str:
    """The task that shards were cut for."""
    return str(manifest.origin.get("task", DEFAULT_TASK))


def level_of(task: str) -> str:
    """What the items of a task are."""
    return TASKS.find(task).level if task in TASKS else "node"


def target_of(task: str) -> str:
    """What a task predicts of an item: its class, labels or values."""
    return TASKS.find(task).target if task in TASKS else CLASS


def require_whole_graphs(algorithm: str, task: str, settings: Any) -> None:
    """Refuse mini-batches of nodes where an algorithm needs all of a party's nodes in every step; graphs come in batches."""
    why = algorithms.find(algorithm).Cohort.whole_graph
    size: int = getattr(settings, "batch_size", 0)
    if why and size and level_of(task) == "node":
        raise AtollError(f"{algorithm} cannot train in mini-batches: {why}; leave batch_size out.")


def tasks_of(algorithm: str) -> tuple[str, ...]:
    """The tasks that an algorithm is for: among those it names, if any, those of its items and targets."""
    module = algorithms.find(algorithm)
    levels, targets = getattr(module, "LEVELS", LEVELS), getattr(module, "TARGETS", TARGETS)
    named = getattr(module, "TASKS", TASKS.names())
    return tuple(task for task in named if level_of(task) in levels and target_of(task) in targets)


def require_items(dataset: str, task: str, algorithm: str) -> None:
    """Refuse a task whose items the data does not have, or that the algorithm (`LEVELS`, `TARGETS`) is not made for."""
    level, target = level_of(task), target_of(task)
    if dataset != GIVEN and (level == "graph") != (level_of(task_of_data(dataset)) == "graph"):
        graphs = f"many small graphs, for {OF_TARGETS[target].get('graph', GRAPH_TASK)}"
        holds = "one graph, whose items are nodes" if level == "graph" else graphs
        raise AtollError(f"The task is {task}, but the dataset {dataset} holds {holds}; leave the task out.")
    module = algorithms.find(algorithm)
    if level not in getattr(module, "LEVELS", LEVELS):
        raise AtollError(f"{algorithm} is not made for {task}: its items are nodes, not {level}s; choose another algorithm.")
    if target not in getattr(module, "TARGETS", TARGETS):
        what = WORDS[target]
        raise AtollError(f"{algorithm} is not made for {task}: it is about classes, not {what}; choose another algorithm.")


def require_target(run: Any, data: Any, *, noised: bool) -> None:
    """Refuse data that is read for another target than the task's, and settings of values that do not fit."""
    target = target_of(run.task)
    wanted = getattr(data, "target", CLASS)
    if wanted != target:
        if not hasattr(data, "target"):
            raise AtollError(f"The task is {run.task}, but this dataset has classes only; leave the task out.")
        raise AtollError(f"The task is {run.task}, but target is {wanted}; leave one of them out.")
    for name, usual in (("value_loss", "squared"), ("value_scale", "federation")):
        if target != VALUES and getattr(run, name) != usual:
            raise AtollError(f"{name} is about values, and the task is {run.task}; leave it out.")
    if target == VALUES:
        check_scale(run.value_scale)
        if noised and run.value_scale == FEDERATION:
            raise AtollError(
                "value_scale=federation needs exact sums, which noise (dp) does not cover; give the scale (7.5:2) or none."
            )
