"""FedAvg: McMahan et al., AISTATS 2017. One model for all; with `model=mlp` it is FedMLP.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`, which is what FED-PUB, FedSage, FedBN, Ditto and FedGCN call FedAvg).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes. The evaluation `finetuned`
sends the model once more, 4·w down, counted as evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atoll.algorithms import State
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, Fields, first_model, verb
from atoll.federation.federation import Federation
from atoll.federation.first_model import FIRST_MODEL, RUN
from atoll.federation.local_training import DECAY_LAYERS, EVALUATION_DROPOUT, PROPAGATE_FIRST, LocalTraining
from atoll.models import optim
from atoll.models.normalization import NORM, NORMS
from atoll.models.parameters import scale
from atoll.settings import BatchedTraining, Training, setting

SCENARIOS = ("horizontal", "overlapping")
LEVELS = ("node", "graph", "link")
TARGETS = ("class", "labels", "values")
EVALUATIONS = ("global", "trained", "finetuned", "union")
SHARES = ("all", "layers", "layers+post")
SHARED_PARAMETERS = (
    "Graph tasks: which parameters travel: all, the convolutions (layers), or these and the layer after the readout. The others "
    "stay with their party, which may then have columns and classes of its own."
)
WEIGHTINGS = ("train", "nodes", "parties")


@dataclass(frozen=True)
class Averaging(Training):
    """The shared training settings, how parties are weighted, and what becomes of the optimizer between rounds."""

    weighting: str = setting(
        "train",
        "A party's weight: its training nodes, all its nodes, or the same for all parties.",
        choices=WEIGHTINGS,
    )
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")
    evaluation_dropout: bool = setting(False, EVALUATION_DROPOUT, since="0.2")
    decay_layers: str = setting("all", DECAY_LAYERS, choices=("all", "first"), since="0.2")
    norm: str = setting("none", NORM, choices=NORMS, since="0.2")
    share: str = setting("all", SHARED_PARAMETERS, choices=SHARES, since="0.2")


@dataclass(frozen=True)
class Batched(Averaging, BatchedTraining):
    """Those settings, mini-batches, and Â·X made once."""

    propagate_first: bool = setting(False, PROPAGATE_FIRST, since="0.2")


@dataclass(frozen=True)
class Settings(Batched):
    """Those settings, and where the first model is from."""

    first_model: str = setting(RUN, FIRST_MODEL, since="0.2")


class Cohort(LocalTraining):
    """Parties that train the server's model on their own graphs."""

    settings: Averaging

    @verb(takes={"model": MODEL}, gives={})
    def finetune(self, model: Fields) -> None:
        """Keep the server's model after local training with a fresh optimizer, to be judged next; training goes on without it."""
        if self.evaluation != metrics.FINETUNED:
            raise AtollError("this run does not judge fine-tuned models.")
        self.load(model)
        draws = self.draws()
        with torch.enable_grad():
            self.descend([optim.of_settings(self.settings, self.model)], draws, model=model)


def start(federation: Federation, settings: Settings) -> State:
    """A first model."""
    return {"model": first_model(settings, federation.schema, federation.seed)}


def step(federation: Federation, state: State, settings: Averaging) -> State:
    """w ← Σ_k (n_k / n) w_k."""
    total = federation.total("fit", model=state["model"])
    return {"model": scale(total["model"], 1 / total["n"])}


def evaluate(federation: Federation, state: State, settings: Averaging) -> dict[str, object]:
    """Pooled over the parties' nodes; where they overlap, on the union of their graphs as well."""
    return metrics.evaluate_shared(federation, settings, state["model"])


def answered_share(federation: Federation) -> float:
    """|S| / N: the share of all parties that were asked in this round and answered so far."""
    return len(federation.participants().without(federation.missing)) / len(federation.parties)
