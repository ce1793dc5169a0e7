"""FedPer: Arivazhagan et al., 2019. The lower layers are shared, the last ones stay with their party.

Payload bytes a round and party, w_B parameters in the shared layers: down 4·w_B, up 4·w_B + 8 (the number of training nodes).
The server sees the sum of the parties' shared layers, weighted by their training nodes, and the sum of those nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, Schema, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.models import optim
from atoll.models.backbones import Model, get_parameters, set_parameters
from atoll.models.losses import cross_entropy
from atoll.models.parameters import scale, weighted
from atoll.settings import Training, setting

SCENARIOS = ("horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(Training):
    """The shared training settings and where the personal layers begin."""

    personal: int = setting(
        1, "Number of last layers that stay with their party (K_P); 0 is FedAvg, all of them is Local.", low=0, high=1000
    )
    keep_optimizer: bool = setting(True, "Keep the parties' optimiser state from round to round instead of starting afresh.")


def base(settings: Settings, schema: Schema) -> dict[str, Tensor]:
    """W_B of a blank model, for one party."""
    model = backbone(settings, schema, 1, None)
    return {name: value for name, value in get_parameters(model).items() if name in base_names(model, settings.personal)}


BASE = ModelForm(base)  # where all layers are personal it is empty


class Cohort(atoll.federation.cohort.Cohort):
    """Parties with layers of their own on top of the server's."""

    memory = {"model": PARTY, "optimizer": PARTY}  # of the model only W_P matters: W_B arrives with every message
    settings: Settings

    def setup(self) -> None:
        """A model, its personal layers drawn by the party, and its optimiser."""
        s = self.settings
        self.model = backbone(s, self.schema, self.graph.parties, self.first_draws("model"))
        self.optimizer = optim.make(s.optimizer, self.model, s.lr, s.weight_decay)

    @verb(takes={"base": BASE}, gives={"base": BASE, "n": WEIGHT}, averaged={"base": "n"})
    def fit(self, base: Fields | None = None) -> Fields:
        """(W_B, W_P) ← E epochs from the server's W_B and the party's own W_P; only W_B goes back."""
        self.put(base)
        if not self.settings.keep_optimizer:
            self.optimizer.reset()
        draws = self.draws()
        for _ in range(self.settings.epochs):
            optim.descend(self.optimizer, cross_entropy(self.model(self.graph, draws), self.graph, "train"))
        shared = {
            name: value
            for name, value in get_parameters(self.model).items()
            if name in base_names(self.model, self.settings.personal)
        }
        return {"base": weighted(shared, self.graph.num_train), "n": self.graph.num_train}

    @verb(takes={"base": BASE}, gives=COUNTS)
    def evaluate(self, base: Fields | None = None) -> Fields:
        """Counts of the server's base under each party's own layers."""
        self.put(base)
        return metrics.local_counts(self.model(self.graph), self.graph)

    def put(self, base: Fields | None) -> None:
        """W_B ← the server's; nothing arrives where all layers are personal."""
        set_parameters(self.model, {**get_parameters(self.model), **(base or {})})


def base_names(model: Model, personal: int) -> set[str]:
    """The names of the shared parameters: those of all layers but the last `personal` ones."""
    names = [name for name, _ in model.named_parameters()]
    layers = list(dict.fromkeys(model.layer_of(name) for name in names))  # bottom to top
    shared = layers[: max(len(layers) - personal, 0)]
    return {name for name in names if model.layer_of(name) in shared}


def start(federation: Federation, settings: Settings) -> State:
    """First base layers."""
    shared = base_names(backbone(settings, federation.schema, 1, None), settings.personal)
    model = first_model(settings, federation.schema, federation.seed)
    return {"base": {name: value for name, value in model.items() if name in shared}}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """W_B ← Σ_k (n_k / n) W_B,k."""
    total = federation.total("fit", base=state.get("base", {}))
    return {"base": scale(total.get("base", {}), 1 / total["n"])}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, base=state.get("base", {}))
