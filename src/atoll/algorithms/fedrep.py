"""FedRep: Collins et al., ICML 2021. FedPer whose parties train their own layers first, then, with those fixed, the shared ones.

Payload bytes per round and party, w_B parameters in the shared layers: down 4·w_B, up 4·w_B + 8 (the number of training nodes; of
all nodes with `weighting=nodes`; 1 with `weighting=parties`).
The server sees the sum of the parties' shared layers, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.algorithms import fedavg, fedper
from atoll.algorithms.fedper import EVALUATIONS, LEVELS, SCENARIOS, base_of, evaluate, start, step
from atoll.federation.cohort import PARTY
from atoll.models import optim
from atoll.models.optim import Optimizer
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]


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
    settings: Settings

    def setup(self) -> None:
        """The model, and an optimizer for each part of it that has parameters."""
        super().setup()
        del self.optimizer  # of the whole model
        shared = base_of(self.model, self.settings)
        live = dict(self.model.named_parameters())
        self.base_optimizer = self._optimizer("base_optimizer", {name: live[name] for name in live if name in shared})
        self.head_optimizer = self._optimizer("head_optimizer", {name: live[name] for name in live if name not in shared})

    def _optimizer(self, name: str, parameters: dict[str, Tensor]) -> Optimizer | None:
        if parameters:
            return optim.of_settings(self.settings, parameters)
        self.memory = {key: axis for key, axis in self.memory.items() if key != name}  # type: ignore[misc]
        return None

    def train(self) -> Tensor:
        """`head_epochs` of φ_k with the base fixed, then `epochs` of the base with φ_k fixed (Algorithm 1, lines 6 to 9)."""
        draws, steps = self.draws(), torch.zeros(self.graph.parties, dtype=torch.int64)
        for optimizer, epochs in ((self.head_optimizer, self.settings.head_epochs), (self.base_optimizer, self.settings.epochs)):
            if optimizer is None:
                continue
            if not self.settings.keep_optimizer:
                optimizer.reset()
            for batch in self.batches(draws, epochs):
                optim.descend(optimizer, self.objective(batch, draws), batch.active)
                steps += 1 if batch.active is None else batch.active.long()
        return steps
