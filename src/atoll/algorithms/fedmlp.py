"""FedMLP: FedAvg (McMahan et al., AISTATS 2017) of an MLP with I local steps on mini-batches: GFL-APPNP's baseline without edges.

Payload bytes a round and party, w parameters: down 4·w, up 4·w + 8 (the number of training vectors).
The server sees the sum of the parties' models, weighted by their training vectors, and the sum of those.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import evaluate, start, step
from atoll.federation.cohort import MODEL, Fields, verb
from atoll.federation.declarations import WEIGHT
from atoll.models import optim
from atoll.models.backbones import set_parameters
from atoll.models.losses import batch, cross_entropy
from atoll.models.parameters import weighted
from atoll.settings import setting

SCENARIOS = ("node", "horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings, with steps in the place of epochs."""

    model: str = setting("mlp", "Model of the parties; an MLP has no use for edges.", choices=("mlp",))
    bias: bool = setting(False, "Whether the layers have biases.")
    optimizer: str = setting("sgd", "Optimiser of the parties.", choices=("adam", "sgd"))
    local_steps: int = setting(10, "Steps between two rounds, I; `epochs` does nothing here.", low=1, high=10**5)
    batch_size: int = setting(0, "Training vectors of a step, drawn anew for each; 0 takes all of a party's.", low=0, high=10**9)


class Cohort(fedavg.Cohort):
    """Parties that train the server's model on their own vectors."""

    settings: Settings

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """w_k ← w, then I steps on batches of the party's own training vectors."""
        s, draws = self.settings, self.draws()
        set_parameters(self.model, model)
        if not s.keep_optimizer:
            self.optimizer.reset()
        for _ in range(s.local_steps):
            mask = batch(self.graph, s.batch_size, draws)
            optim.descend(self.optimizer, cross_entropy(self.model(self.graph, draws), self.graph, mask))
        return {"model": weighted(self.model, self.weights), "n": self.weights}


__all__ = ["SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]
