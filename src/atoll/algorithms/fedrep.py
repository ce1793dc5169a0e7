"""FedRep: Collins et al., ICML 2021. FedPer whose parties train their own layers first, then, with those fixed, the shared ones.

Payload bytes per round and party, w_B parameters in the shared layers: down 4·w_B, up 4·w_B + 8 (the number of training nodes; of
all nodes with `weighting=nodes`; 1 with `weighting=parties`). The evaluation `finetuned` sends the base once more, 4·w_B down,
counted as evaluation.
The server sees the sum of the parties' shared layers, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.algorithms import fedavg, fedper
from atoll.algorithms.fedper import BASE, LEVELS, SCENARIOS, TARGETS, base_of, evaluate, start, step
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, verb
from atoll.federation.declarations import WEIGHT
from atoll.models import optim
from atoll.models.optim import Optimizer
from atoll.models.parameters import Parameters, get_parameters, set_parameters
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = (*fedper.EVALUATIONS, metrics.FINETUNED)


@dataclass(frozen=True)
class Settings(fedper.Settings):
    """FedPer's settings, of which `epochs` are those of the shared layers, and the epochs of the personal ones."""

    head_epochs: int = setting(10, "Local epochs per round of the personal layers, before the shared ones'.", low=0, high=10**5)
    weighting: str = setting(
        "train",
        "A party's weight: its training nodes, all its nodes, or the same for all parties.",
        choices=fedavg.WEIGHTINGS,
    )


class Cohort(fedper.Cohort):
    """FedPer's parties, which train one part of the model at a time; what is fixed does not move at all."""

    memory = {"model": PARTY, "base_optimizer": PARTY, "head_optimizer": PARTY}
    training_memory = frozenset({"heads"})
    settings: Settings

    def setup(self) -> None:
        """The model, and an optimizer for each part of it that has parameters."""
        super().setup()
        del self.optimizer  # of the whole model
        shared = base_of(self.model, self.settings)
        live = dict(self.model.named_parameters())
        self.base_optimizer = self._optimizer("base_optimizer", {name: live[name] for name in live if name in shared})
        self.head_optimizer = self._optimizer("head_optimizer", {name: live[name] for name in live if name not in shared})

        self.heads: Parameters = {}  # φ_k, where the model holds fine-tuned ones after an evaluation
        if self.evaluation == metrics.FINETUNED:
            self.memory = {**self.memory, "heads": PARTY}  # type: ignore[misc]
            self.heads = self._heads()

    def _heads(self) -> Parameters:
        shared = base_of(self.model, self.settings)
        return {name: value for name, value in get_parameters(self.model, copy=True).items() if name not in shared}

    @verb(takes={"base": BASE}, gives={"base": BASE, "n": WEIGHT}, averaged={"base": "n"})
    def fit(self, base: Fields | None = None) -> Fields:
        """Both parts in turn; only the base goes back."""
        if self.heads:
            set_parameters(self.model, get_parameters(self.model) | self.heads)
        reply = super().fit(base)
        self.heads = self._heads() if self.heads else {}
        return reply

    @verb(takes={"base": BASE}, gives={})
    def finetune(self, base: Fields | None = None) -> None:
        """Keep the server's base with heads trained for `head_epochs` more, to be judged next; training goes on without them."""
        if self.evaluation != metrics.FINETUNED:
            raise AtollError("this run does not judge fine-tuned models.")
        set_parameters(self.model, get_parameters(self.model) | self.heads)
        self.load(base)
        live, draws = dict(self.model.named_parameters()), self.draws()
        if self.heads:
            optimizer = optim.of_settings(self.settings, {name: live[name] for name in self.heads})
            with torch.enable_grad():
                for batch in self.batches(draws, self.settings.head_epochs):
                    optim.descend(optimizer, self.objective(batch, draws), batch.active)

    def _optimizer(self, name: str, parameters: dict[str, Tensor]) -> Optimizer | None:
        if parameters:
            return optim.of_settings(self.settings, parameters)
        self.memory = {key: axis for key, axis in self.memory.items() if key != name}  # type: ignore[misc]
        return None

    def train(self) -> Tensor:
        """`head_epochs` of φ_k with the base fixed, then `epochs` of the base with φ_k fixed (Algorithm 1, lines 6 to 9)."""
        draws, steps = self.draws(), torch.zeros(self.graph.parties, dtype=torch.int64, device=self.device)
        for optimizer, epochs in ((self.head_optimizer, self.settings.head_epochs), (self.base_optimizer, self.settings.epochs)):
            if optimizer is None:
                continue
            if not self.settings.keep_optimizer:
                optimizer.reset()
            for batch in self.batches(draws, epochs):
                optim.descend(optimizer, self.objective(batch, draws), batch.active)
                steps += 1 if batch.active is None else batch.active.long()
        return steps
