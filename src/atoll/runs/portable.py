"""Cohorts that can be made in other processes: what these are sent, and how they make the parties of a run from it.

They are sent the configuration, the files of a user's own algorithm and model, and the parties' graphs; of shards, which a
process reads itself, only where they are. Under secure aggregation they are also sent the simulation's keys, from which every
secret follows, so that a process that is started again has the same ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from atoll import algorithms
from atoll.data.federated import federate
from atoll.data.federated_data import FederatedData
from atoll.data.graph_fields import from_fields, to_fields
from atoll.engines.host import Open, Opened
from atoll.engines.inprocess import MakeCohort
from atoll.errors import AtollError
from atoll.federation.cohort import Cohort, Fields, Schema
from atoll.graphs.graph import Graph
from atoll.models import user
from atoll.parties import Parties
from atoll.privacy.entropy import derived
from atoll.privacy.identities import simulated_identities, simulation_key
from atoll.privacy.masking import as_bytes, min_total_parties
from atoll.privacy.releases import Releases
from atoll.privacy.secrets import Secrets
from atoll.runs import config as configuration
from atoll.runs.config import Config
from atoll.runs.experiment import build_cohort, noise, task_of


@dataclass
class PortableCohorts:
    """Makes the cohorts of a run: here when called, and in another process by `open`, from a `document`."""

    make: MakeCohort
    config: Config
    data: FederatedData
    schema: Schema
    releases: Releases
    key: bytes = field(default_factory=lambda: os.urandom(32), repr=False)  # of the secrets of secure totals

    def __call__(self, parties: Sequence[int], blank: bool, /) -> Cohort:
        """The cohort of some parties, in this process."""
        return self.make(parties, blank)

    @property
    def open(self) -> Open:
        """What makes them there."""
        return open_cohorts

    @property
    def device(self) -> str:
        """Where they compute."""
        return self.config.device

    def document(self, parties: Sequence[int]) -> Fields:
        """What `open_cohorts` needs to make these parties."""
        config = self.config
        model = str(getattr(config.settings, "model", ""))
        if user.is_user_model(model) and user.file_of(model) is None:
            raise AtollError(f"The engine {config.engine} cannot take a model as an object; write it to a file and name that.")
        document = config.to_dict() | {"engine": "inprocess"}
        if config.algorithm.endswith(".py"):
            document["algorithm"] = str(Path(config.algorithm).resolve())
        if (file := user.file_of(model) if user.is_user_model(model) else None) is not None:
            document["settings"]["model"] = f"{file}{model[len(model.rpartition('.py')[0]) + 3 :]}"
        outlined = self.data.extent is not None  # the graphs are not here but in shards
        if outlined:
            document["dataset"] = str(Path(config.dataset).expanduser().resolve())
        sources = {"algorithm": algorithms.source(config.algorithm), "model": user.source(model)}
        return {
            "config": [document],
            "schema": [asdict(self.schema)],
            "parties": torch.tensor(Parties(parties).numbers),
            "sources": {name: as_bytes(content) for name, content in sources.items() if content},
            **({"keys": as_bytes(simulation_key() + self.key)} if config.run.secure else {}),
            **({} if outlined else {"graph": to_fields(self.data.parts.select(parties))}),
        }

    def spend(self, parties: Parties, rho: float | None, verb: str, round: int) -> None:
        """Count what these parties released elsewhere."""
        self.releases.spend(parties, math.inf if rho is None else rho, verb, round)


class ReportedReleases(Releases):
    """Releases that are counted by the process that started this one; `spent` is what it has not been told yet."""

    def __init__(self) -> None:
        super().__init__()
        self.spent: list[tuple[Parties, float | None, str, int]] = []

    def spend(self, parties: Parties, rho: float, verb: str = "", round: int = 0) -> None:
        """Count one release by each of these parties."""
        super().spend(parties, rho, verb, round)
        self.spent.append((parties, rho if math.isfinite(rho) else None, verb, round))


def open_cohorts(document: Mapping[str, Any]) -> Opened:
    """The parties of `PortableCohorts.document`, in the process that is to hold them."""
    plain = document["config"][0]
    for name, content in document.get("sources", {}).items():
        named = plain["algorithm"] if name == "algorithm" else plain["settings"]["model"]
        (algorithms if name == "algorithm" else user).provide(named, content.numpy().tobytes())
    config = configuration.from_dict(plain, "The configuration", configuration.user_model(plain), warn=False)
    schema, parties = Schema(**document["schema"][0]), Parties(document["parties"].numpy())
    graph = from_fields(document["graph"]) if "graph" in document else _read(config, parties)
    releases, secrets = ReportedReleases(), None
    if "keys" in document:
        keys = document["keys"].numpy().tobytes()
        least = min_total_parties(config.run.secure_min, schema.parties)
        secrets = Secrets(simulated_identities(schema.parties, keys[:32]), min_parties=least, entropy=derived(keys[32:]))

    def make(some: Sequence[int], blank: bool) -> Cohort:
        part = graph.select(parties.indices(some))
        guards = noise(config, releases, task_of(config, schema, part.class_names))
        return build_cohort(config, part, schema, some, blank=blank, secrets=secrets, guards=guards)

    return Opened(make, releases.spent)


def _read(config: Config, parties: Parties) -> Graph:
    """The graphs of some parties, from shards."""
    scenarios, unlabeled = algorithms.find(config.algorithm).SCENARIOS, algorithms.takes_unlabeled(config.algorithm)
    return federate(config, None, scenarios, unlabeled=unlabeled, held=list(parties)).parts
