"""FedBN: Li et al., ICLR 2021. FedAvg whose parties keep their batch norms to themselves.

Payload bytes per round and party, w numbers in the model, w_bn of them in batch norms (scale, shift, running mean and variance of
each hidden unit): down 4·(w − w_bn), up 4·(w − w_bn) + 8 (the number of training nodes; of all nodes with `weighting=nodes`; 1
with `weighting=parties`). With `keep=statistics` half of w_bn travels, with `keep=none` all of it.
The server sees the sum of what travels, weighted by these nodes, and the sum of the nodes; never what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import SCENARIOS, TARGETS, step
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT, optional
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.models.backbone import Backbone
from atoll.models.normalization import NORM, NORMS, BatchNorm
from atoll.models.parameters import Parameters, get_parameters, set_parameters, weighted
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

LEVELS = ("node", "link")
EVALUATIONS = ("personal", "trained")
KEPT = {"all": ("scale", "shift", "mean", "variance"), "statistics": ("mean", "variance"), "none": ()}  # of a batch norm


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings, of which `norm` is on, and what parties keep."""

    norm: str = setting("batch", NORM, choices=NORMS)
    keep: str = setting(
        "all",
        "What parties keep of a batch norm: all of it, its running statistics alone (SiloBN), or nothing (FedAvg).",
        choices=tuple(KEPT),
    )

    def __post_init__(self) -> None:
        """Refuse a network in which there is nothing to keep."""
        if self.norm == "none":
            raise AtollError("fedbn: parties keep their batch norms, and with norm=none there are none; use fedavg.")


def shared_of(model: Backbone, keep: str) -> Parameters:
    """What travels of a model."""
    kept = [f"norm.{name}" for name in KEPT[keep]]
    return {name: value for name, value in get_parameters(model).items() if ".".join(name.split(".")[-2:]) not in kept}


SHARED = ModelForm(lambda settings, schema: shared_of(backbone(settings, schema, 1, None), settings.keep))


class Cohort(LocalTraining):
    """Parties with batch norms of their own in the server's model."""

    memory = {"norms": PARTY, "optimizer": PARTY}  # the rest of the model arrives with every message
    settings: Settings

    def setup(self) -> None:
        """The model, and what of it stays here."""
        super().setup()
        own = [part for part in self.model.modules() if isinstance(part, BatchNorm)]
        self.norms = nn.ModuleList(own if self.settings.keep != "none" else [])

    @verb(takes={"model": SHARED}, gives={"model": SHARED, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """Local training from the server's model with the party's own batch norms; what is shared goes back."""
        self.load(model)
        self.train()
        return {"model": weighted(shared_of(self.model, self.settings.keep), self.weights), "n": self.weights}

    @verb(takes={"model": optional(SHARED)}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of the server's model with each party's own batch norms."""
        return self.task.counts(self.predict(model), self.graph)

    def load(self, model: Fields | None = None) -> None:
        """What is shared ← the server's."""
        set_parameters(self.model, {**get_parameters(self.model), **(model or {})})


def start(federation: Federation, settings: Settings) -> State:
    """What is shared of a first model."""
    names = shared_of(backbone(settings, federation.schema, 1, None), settings.keep)
    model = first_model(settings, federation.schema, federation.seed)
    return {"model": {name: model[name] for name in names}}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"])
