"""Tasks: what is predicted and how it is judged. The registry is open to other packages (entry points `atoll.tasks`)."""

from __future__ import annotations

from atoll.registry import Registry
from atoll.tasks.options import LAST, selecting_metric
from atoll.tasks.task import ClassTask, CountField, Metric, ScaledTask, Task, TaskOptions, check_task

__all__ = [
    "DEFAULT_TASK",
    "GRAPH_TASK",
    "LAST",
    "LINK_TASK",
    "OF_TARGETS",
    "TASKS",
    "ClassTask",
    "CountField",
    "Metric",
    "ScaledTask",
    "Task",
    "TaskOptions",
    "selecting_metric",
]

DEFAULT_TASK = "node-classification"
GRAPH_TASK = "graph-classification"
LINK_TASK = "link-prediction"
OF_TARGETS = {  # what is predicted of an item → the task, by the item
    "class": {"node": DEFAULT_TASK, "graph": GRAPH_TASK},
    "labels": {"node": "node-multilabel", "graph": "graph-multilabel"},
    "values": {"node": "node-regression", "graph": "graph-regression"},
}
TASKS: Registry[Task] = Registry(
    "task",
    {
        DEFAULT_TASK: "atoll.tasks.node_classification:TASK",
        GRAPH_TASK: "atoll.tasks.graph_classification:TASK",
        LINK_TASK: "atoll.tasks.link_prediction:TASK",
        "node-multilabel": "atoll.tasks.multilabel:NODES",
        "node-regression": "atoll.tasks.regression:NODES",
        "graph-multilabel": "atoll.tasks.multilabel:GRAPHS",
        "graph-regression": "atoll.tasks.regression:GRAPHS",
    },
    check_task,
)
