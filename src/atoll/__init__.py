"""atoll: federated graph learning. Train graph neural networks on graphs that cannot be put in one place.

Everything that users and authors of algorithms import is here; each name is imported on first use, so `import atoll` is light.

Examples:
    >>> import atoll
    >>> result = atoll.run("fedavg", dataset="csbm", parties=3, rounds=2, nodes=200)
    >>> sorted(result.bytes["by_verb"])
    ['fit']
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from atoll import compat
from atoll.version import __version__ as __version__

if TYPE_CHECKING:
    from atoll.algorithms import ALGORITHMS
    from atoll.data.datasets import load
    from atoll.data.registry import DATASETS
    from atoll.engines import ENGINES
    from atoll.errors import AtollError, AtollWarning
    from atoll.federation.cohort import MODEL, Cohort, first_model
    from atoll.federation.declarations import COUNTS, WEIGHT
    from atoll.federation.federation import Federation
    from atoll.federation.local_training import LocalTraining
    from atoll.federation.memory import NODE, PARTY, STORED_FEATURE, TRAIN_ITEM
    from atoll.federation.messages import Engine, verb
    from atoll.graphs.graph import Graph
    from atoll.models.backbone import Backbone
    from atoll.models.parameters import get_parameters, set_parameters
    from atoll.models.registry import MODELS
    from atoll.runs.api import resume, run
    from atoll.runs.api_compare import compare, tune
    from atoll.runs.comparison import Comparison
    from atoll.runs.evaluation import Evaluation, judge
    from atoll.runs.export import export_model
    from atoll.runs.loggers import LOGGERS, Logger
    from atoll.runs.ranks import Ranks, mean_ranks
    from atoll.runs.reader import read
    from atoll.runs.result import Result
    from atoll.runs.trained import TrainedModel, load_model
    from atoll.runs.tuned import Tuned
    from atoll.settings import BatchedTraining, Training, setting
    from atoll.tasks import TASKS, Task

__all__ = [
    "ALGORITHMS",
    "COUNTS",
    "DATASETS",
    "ENGINES",
    "LOGGERS",
    "MODEL",
    "MODELS",
    "NODE",
    "PARTY",
    "STORED_FEATURE",
    "TASKS",
    "TRAIN_ITEM",
    "WEIGHT",
    "AtollError",
    "AtollWarning",
    "Backbone",
    "BatchedTraining",
    "Cohort",
    "Comparison",
    "Engine",
    "Evaluation",
    "Federation",
    "Graph",
    "LocalTraining",
    "Logger",
    "Ranks",
    "Result",
    "Task",
    "TrainedModel",
    "Training",
    "Tuned",
    "compare",
    "export_model",
    "first_model",
    "get_parameters",
    "judge",
    "load",
    "load_model",
    "mean_ranks",
    "read",
    "resume",
    "run",
    "set_parameters",
    "setting",
    "tune",
    "verb",
]

_HOME = {
    # Run and compare
    "run": "runs.api",
    "resume": "runs.api",
    "compare": "runs.api_compare",
    "tune": "runs.api_compare",
    "read": "runs.reader",
    "Result": "runs.result",
    "Comparison": "runs.comparison",
    "Tuned": "runs.tuned",
    "mean_ranks": "runs.ranks",
    "Ranks": "runs.ranks",
    # Use what was trained
    "load_model": "runs.trained",
    "TrainedModel": "runs.trained",
    "export_model": "runs.export",
    "judge": "runs.evaluation",
    "Evaluation": "runs.evaluation",
    # Data
    "load": "data.datasets",
    "Graph": "graphs.graph",
    # Algorithms of your own: the parties' side and the server's
    "Cohort": "federation.cohort",
    "LocalTraining": "federation.local_training",
    "Federation": "federation.federation",
    "verb": "federation.messages",
    "Training": "settings",
    "BatchedTraining": "settings",
    "setting": "settings",
    "first_model": "federation.cohort",
    "get_parameters": "models.parameters",
    "set_parameters": "models.parameters",
    "MODEL": "federation.cohort",
    "WEIGHT": "federation.declarations",
    "COUNTS": "federation.declarations",
    "PARTY": "federation.memory",
    "NODE": "federation.memory",
    "TRAIN_ITEM": "federation.memory",
    "STORED_FEATURE": "federation.memory",
    # What other packages add to, by entry points or `register`
    "ALGORITHMS": "algorithms",
    "MODELS": "models.registry",
    "DATASETS": "data.registry",
    "TASKS": "tasks",
    "ENGINES": "engines",
    "LOGGERS": "runs.loggers",
    "Backbone": "models.backbone",
    "Task": "tasks",
    "Logger": "runs.loggers",
    "Engine": "federation.messages",
    # Errors
    "AtollError": "errors",
    "AtollWarning": "errors",
}

compat.install()


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    return getattr(importlib.import_module(f"atoll.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """The façade, whatever else has been imported."""
    return sorted([*__all__, "__version__"])
