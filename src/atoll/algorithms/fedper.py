"""FedPer: Arivazhagan et al., 2019. The lower layers are shared, the last ones stay with their party.

Payload bytes per round and party, w_B parameters in the shared layers: down 4·w_B, up 4·w_B + 8 (the number of training nodes).
The server sees the sum of the parties' shared layers, weighted by their training nodes, and the sum of those nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT, optional
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.models.backbone import Backbone
from atoll.models.parameters import Parameters, get_parameters, scale, set_parameters, weighted
from atoll.settings import BatchedTraining, setting

SCENARIOS = ("horizontal", "overlapping")
LEVELS = ("node", "graph", "link")
TARGETS = ("class", "labels", "values")
EVALUATIONS = ("personal", "trained")


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings and where the personal layers begin."""

    personal_layers: int = setting(
        1,
        "Number of last layers that stay with their party (K_P); 0 is FedAvg, all of them is Local.",
        low=0,
        high=1000,
        was="personal",
    )
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")
    personal_input: bool = setting(
        False, "Keep the first layer with its party too, which may then have columns of its own.", since="0.2"
    )


BASE = ModelForm(lambda settings, schema: base_of(backbone(settings, schema, 1, None), settings))  # W_B


class Cohort(LocalTraining):
    """Parties with layers of their own on top of the server's."""

    memory = {"model": PARTY, "optimizer": PARTY}  # of the model only W_P matters: W_B arrives with every message
    settings: Settings

    @property
    def share(self) -> str:
        """Whether everything whose shape depends on a party's data stays with it."""
        return "base" if self.settings.personal_input and self.settings.personal_layers else "all"

    @verb(takes={"base": BASE}, gives={"base": BASE, "n": WEIGHT}, averaged={"base": "n"})
    def fit(self, base: Fields | None = None) -> Fields:
        """(W_B, W_P) ← E epochs from the server's W_B and the party's own W_P; only W_B goes back."""
        self.load(base)
        self.train()
        return {"base": weighted(base_of(self.model, self.settings), self.weights), "n": self.weights}

    @verb(takes={"base": optional(BASE)}, gives=COUNTS)
    def evaluate(self, base: Fields | None = None) -> Fields:
        """Counts of the server's base under each party's own layers."""
        return self.task.counts(self.predict(base), self.graph)

    def load(self, base: Fields | None = None) -> None:
        """W_B ← the server's; nothing arrives where all layers are personal."""
        set_parameters(self.model, {**get_parameters(self.model), **(base or {})})


def base_of(model: Backbone, settings: Settings) -> Parameters:
    """W_B: the parameters of all layers but the personal ones; none where all layers are personal."""
    parameters = get_parameters(model)
    layers = list(dict.fromkeys(model.layer_of(name) for name in parameters))  # bottom to top
    shared = layers[int(settings.personal_input) : max(len(layers) - settings.personal_layers, 0)]
    return {name: value for name, value in parameters.items() if model.layer_of(name) in shared}


def start(federation: Federation, settings: Settings) -> State:
    """First base layers."""
    shared = base_of(backbone(settings, federation.schema, 1, None), settings)
    model = first_model(settings, federation.schema, federation.seed)
    return {"base": {name: model[name] for name in shared}}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """W_B ← Σ_k (n_k / n) W_B,k."""
    total = federation.total("fit", base=state.get("base", {}))
    return {"base": scale(total.get("base", {}), 1 / total["n"])}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, base=state.get("base", {}))
