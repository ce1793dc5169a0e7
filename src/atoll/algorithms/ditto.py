"""Ditto: Li, Hu, Beirami & Smith, ICML 2021. FedAvg, and at every party a personal model v_k that is held near the shared one.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`). Evaluation sends nothing but counts.
The server sees the sum of the parties' versions of the shared model, weighted, and the sum of the weights; never a v_k.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import LEVELS, SCENARIOS, TARGETS, start, step
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS
from atoll.federation.federation import Federation
from atoll.federation.first_model import LAYERS
from atoll.federation.local_training import LocalTraining
from atoll.graphs.graph import Graph
from atoll.graphs.inference import Stage
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.optim import Optimizer
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.party_tensors import clipped
from atoll.models.pull import Pull
from atoll.random import Draws
from atoll.settings import setting
from atoll.tasks.task import Task

__all__ = ["LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal",)
PROXIMALS = (0.1, 1.0, 2.0)  # what λ is chosen from


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings, how strongly personal models are held, and where they begin."""

    proximal: float = setting(1.0, "Weight λ of the term λ/2·‖v_k − θ‖² of the personal models; 0 is Local.", low=0)
    choose_proximal: bool = setting(
        False,
        "Each party takes, in every step, that λ of 0.1, 1 and 2 whose step has the lowest validation loss; `proximal` has no "
        "effect then.",
    )
    start: str = setting(
        "shared",
        "First values of the personal models: FedAvg's first model (the authors' code), or drawn by each party.",
        choices=("shared", "own"),
    )

    def __post_init__(self) -> None:
        """Refuse to evaluate in every mini-batch."""
        if self.choose_proximal and self.batch_size:
            raise AtollError("ditto: choose_proximal evaluates on all nodes in every step; leave it or batch_size out.")


class Cohort(LocalTraining):
    """Parties that train the shared model as in FedAvg and, on the same batches, a personal one."""

    memory = {"personal": PARTY, "personal_optimizer": PARTY, "optimizer": PARTY}  # θ arrives with every message
    settings: Settings

    def setup(self) -> None:
        """A model for θ_k, v_k, and an optimizer for each."""
        super().setup()
        s = self.settings
        if s.choose_proximal and _loss_column(self.task) is None:
            name = self.task.name
            raise AtollError(f"choose_proximal needs the loss of validation items, which {name} does not count; leave it out.")
        draws = self.first_draws("model") if s.start == "own" or self.share in LAYERS else None
        self.personal = backbone(s, self.schema, self.graph.parties, draws, self.graph, device=self.device)  # v_k
        if s.start == "shared" and not self.blank:
            set_parameters(self.personal, get_parameters(self.personal) | first_model(s, self.schema, self.seed))
        self.personal_optimizer = optim.of_settings(s, self.personal)

    def train(self, model: Fields) -> Tensor:
        """E epochs of both; the same sample for both."""
        return super().train(model=model, same_draws=self.draws())

    def objective(self, batch: Graph, draws: Draws, model: Fields, same_draws: Draws) -> Tensor:
        """F_k(v_k), down which v_k goes along with its pull; and F_k(θ_k), down which θ_k goes."""
        return self.task.loss(self.personal(batch, draws), batch) + self.task.loss(self.model(batch, same_draws), batch)

    def pulls(self, model: Fields, same_draws: Draws) -> Sequence[Pull]:
        """The gradient of λ/2·‖v_k − θ‖², θ as it was received, beside F_k(v_k)'s."""
        return [Pull(self.settings.proximal, model)] if self.settings.proximal else []

    def descend(self, optimizers: Sequence[Optimizer], draws: Draws, *args: Any, **arguments: Any) -> Tensor:
        """The steps of both; with `choose_proximal` those of v_k each with the λ that serves the party best."""
        if not self.settings.choose_proximal:
            return super().descend(optimizers, draws, *args, **arguments)
        model, same_draws = arguments["model"], arguments["same_draws"]
        steps = torch.zeros(self.graph.parties, dtype=torch.int64)
        for batch in self.batches(draws):
            self.descend_chosen(batch, draws, model)
            optim.descend(self.optimizer, self.task.loss(self.model(batch, same_draws), batch), batch.active)
            steps += 1 if batch.active is None else batch.active.long()
        return steps

    def descend_chosen(self, batch: Graph, draws: Draws, model: Fields) -> None:
        """One step of v_k by each λ from the same gradient; each party keeps the one with the lowest validation loss."""
        one, every = self.personal_optimizer, torch.arange(self.graph.parties)
        plain = dict(zip(one.params, optim.gradients(one, self.task.loss(self.personal(batch, draws), batch)), strict=True))
        away = {name: value.detach() - model.get(name, value.detach()) for name, value in one.params.items()}
        judged = backbone(self.settings, self.schema, self.graph.parties, None, self.graph)
        trials: list[Any] = []
        losses, column = [], _loss_column(self.task)
        for proximal in PROXIMALS:
            trial: Any = one.select(every)
            trial.step(clipped([plain[name] + proximal * away[name] for name in plain], one.clip))
            with torch.no_grad():
                set_parameters(judged, get_parameters(self.personal) | trial.params)
                validation = self.task.counts(judged(self.graph), self.graph)["validation"]
            losses.append(validation[:, column] / validation[:, 0].clamp(min=1))
            trials.append(trial)
        best = torch.stack(losses).argmin(0)
        if batch.active is not None:
            best = best.masked_fill(~batch.active, -1)  # no step
        for number, trial in enumerate(trials):
            rows = (best == number).nonzero()[:, 0]
            if len(rows):
                with torch.no_grad():
                    one.put(rows, trial.select(rows))

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those of v_k and θ_k."""
        return [self.personal_optimizer, self.optimizer]

    @verb(takes={}, gives=COUNTS)
    def evaluate(self) -> Fields:  # type: ignore[override]  # nothing arrives
        """Counts of each party's v_k."""
        return self.task.counts(self.predict(), self.graph)

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The output of v_k."""
        out: Tensor = self.personal(graph, draws)
        return out

    def hidden(self, graph: Graph) -> Tensor | None:
        """The hidden representation of v_k."""
        return self.personal.embed(graph)

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """Those of v_k."""
        return self.personal.stages(embed=embed)

    def party_models(self) -> Backbone:
        """v_k."""
        return self.personal


def _loss_column(task: Task) -> int | None:
    """The column of `validation` that has the summed loss; None where a task does not count it."""
    columns = task.fields["validation"].most if "validation" in task.fields else ()
    return columns.index("sum") if isinstance(columns, tuple) and "sum" in columns else None


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of the personal models, pooled over the parties' nodes."""
    return metrics.evaluate(federation)
