"""A run's parties made once more in this process, where their data is here, whatever processes hold them in the run itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from atoll.engines.inprocess import MakeCohort
from atoll.runs.experiment import Experiment


class Simulation(Protocol):
    """An engine whose parties can be made in this process, too."""

    make: MakeCohort
    sites: Sequence[Sequence[int]]


def simulation_of(experiment: Experiment) -> Simulation | None:
    """The run's engine, where this process has the parties' data; None where it is elsewhere."""
    engine: Any = experiment.engine
    here = experiment.data is not None and experiment.data.extent is None
    return engine if here and hasattr(engine, "make") and hasattr(engine, "sites") else None
