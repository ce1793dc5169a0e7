"""FedAvg: McMahan et al., AISTATS 2017. One model for all; with `model=mlp` it is FedMLP.

Payload bytes a round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT
from atoll.federation.federation import Federation
from atoll.models import optim
from atoll.models.backbones import set_parameters
from atoll.models.losses import cross_entropy
from atoll.models.parameters import scale, weighted
from atoll.settings import Training, setting

SCENARIOS = ("horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(Training):
    """The shared training settings, how parties are weighted, and what becomes of the optimiser between rounds."""

    weighting: str = setting("train", "A party's weight: its training nodes, or all its nodes.", choices=("train", "nodes"))
    keep_optimizer: bool = setting(True, "Keep the parties' optimiser state from round to round instead of starting afresh.")


class Cohort(atoll.federation.cohort.Cohort):
    """Parties that train the server's model on their own graphs."""

    memory = {"optimizer": PARTY}  # the model arrives with every message
    settings: Settings

    def setup(self) -> None:
        """A place for the model, and the optimiser."""
        s = self.settings
        self.model = backbone(s, self.schema, self.graph.parties, None)
        self.optimizer = optim.make(s.optimizer, self.model, s.lr, s.weight_decay)

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """w_k ← w, then E epochs; n_k·w_k and n_k."""
        self.train(model)
        return {"model": weighted(self.model, self.weights), "n": self.weights}

    def train(self, model: Fields) -> None:
        """w_k ← w, then E epochs on the party's own training nodes."""
        set_parameters(self.model, model)
        if not self.settings.keep_optimizer:
            self.optimizer.reset()
        draws = self.draws()
        for _ in range(self.settings.epochs):
            optim.descend(self.optimizer, cross_entropy(self.model(self.graph, draws), self.graph, "train"))

    @property
    def weights(self) -> Tensor:
        """(P,) n_k."""
        return self.graph.num_train if self.settings.weighting == "train" else self.graph.ptr.diff()

    @verb(takes={"model": MODEL}, gives=COUNTS)
    def evaluate(self, model: Fields) -> Fields:
        """Counts of the server's model at each party."""
        set_parameters(self.model, model)
        return metrics.local_counts(self.model(self.graph), self.graph)


def start(federation: Federation, settings: Settings) -> State:
    """A first model."""
    return {"model": first_model(settings, federation.schema, federation.seed)}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """w ← Σ_k (n_k / n) w_k."""
    total = federation.total("fit", model=state["model"])
    return {"model": scale(total["model"], 1 / total["n"])}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes; where they overlap, on the union of their graphs as well."""
    return metrics.evaluate_shared(federation, settings, state["model"])
