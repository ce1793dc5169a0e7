"""atoll: federated graph learning. Train graph neural networks on graphs that cannot be put in one place.

result = atoll.run("fedavg", dataset="csbm", parties=5, rounds=50)
result.metrics["accuracy"], result.history, result.bytes
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from atoll.version import __version__ as __version__

if TYPE_CHECKING:
    from atoll.data.datasets import load
    from atoll.errors import AtollError
    from atoll.federation.cohort import Cohort, verb
    from atoll.federation.federation import Federation
    from atoll.graphs.graph import Graph
    from atoll.runs.api import compare, resume, run
    from atoll.runs.result import Result

__all__ = ["AtollError", "Cohort", "Federation", "Graph", "Result", "compare", "load", "resume", "run", "verb"]

_HOME = {
    "run": "runs.api",
    "resume": "runs.api",
    "compare": "runs.api",
    "load": "data.datasets",
    "AtollError": "errors",
    "Cohort": "federation.cohort",
    "verb": "federation.cohort",
    "Federation": "federation.federation",
    "Graph": "graphs.graph",
    "Result": "runs.result",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use: `import atoll` alone stays light."""
    if name not in _HOME:
        raise AttributeError(f"module 'atoll' has no attribute {name!r}")
    return getattr(importlib.import_module(f"atoll.{_HOME[name]}"), name)
