"""FedALA: Zhang et al., AAAI 2023. Before it trains, a party learns how much of the shared model to take, number by number.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes; never a mixing weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import LEVELS, SCENARIOS, TARGETS, start, step
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, verb
from atoll.federation.declarations import COUNTS, WEIGHT
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.graphs.graph import Graph
from atoll.graphs.pairs import trained_pairs
from atoll.models import optim
from atoll.models.parameters import Parameters, choose, get_parameters, set_parameters, weighted, zeros_of
from atoll.settings import setting

__all__ = ["LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal",)
NEW, TRAINED, ADAPTED = 0, 1, 2  # a party that never trained; that never learned its mixture; that did
LAST_LOSSES = 10  # whose standard deviation ends the first adaptation
MAX_STEPS = 200  # of the first adaptation; the authors' loop has no end
NO_NORM = "a mixing weight is learned for each number of the model by its gradient, and running statistics have none"


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the mixture's."""

    mixed_tensors: int = setting(
        2, "Number p of last parameter tensors that are mixed; those below are the server's. 0 is FedAvg.", low=0, high=10**4
    )
    mixing_lr: float = setting(1.0, "Learning rate η_W of the mixing weights; 0 keeps them as they begin.", low=0)
    mixing_share: float = setting(
        80.0, "Percent s of a party's training nodes that mixing weights are learned on.", low=0, high=100
    )
    mixing_threshold: float = setting(
        0.1, "The first adaptation ends once the last ten losses have a smaller standard deviation than this.", low=0
    )
    initial_mixing: float = setting(
        1.0, "First mixing weights: 1 takes the shared model, 0 keeps the party's own.", low=0, high=1
    )
    mixed_with: str = setting(
        "trained",
        "What the shared model is mixed with: the model of the party's last training, or that training's beginning, as in FedGB, "
        "so that no local training ever enters the mixture.",
        choices=("trained", "mixture"),
        since="0.2",
    )


class Cohort(LocalTraining):
    """Parties that mix the shared model with the model of their last training, train the mixture, and send it."""

    memory = {"optimizer": PARTY, "previous": PARTY, "mixing": PARTY, "stage": PARTY}
    settings: Settings

    def setup(self) -> None:
        """No earlier model; mixing weights for the last tensors."""
        super().setup()
        self.previous = zeros_of(self.shared())  # θ_k
        names = list(self.previous)[max(len(self.previous) - self.settings.mixed_tensors, 0) :]
        self.mixing = {name: torch.full_like(self.previous[name], self.settings.initial_mixing) for name in names}  # W
        self.stage = torch.full((self.graph.parties,), NEW, device=self.device)

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """Learn the mixture (Algorithm 1, lines 8 to 12), train it, and send it back."""
        if self.mixing and self.settings.mixing_lr:
            self.adapt(model)
        self.load(model)
        before = get_parameters(self.model, copy=True)
        self.train(model=model)
        kept = before if self.settings.mixed_with == "mixture" else self.shared()
        self.previous = {name: kept[name].clone() for name in self.previous}
        self.stage = self.stage.clamp(min=TRAINED)
        return {"model": weighted(self.shared(), self.weights), "n": self.weights}

    @verb(takes={"model": MODEL}, gives=COUNTS)
    def evaluate(self, model: Fields) -> Fields:  # type: ignore[override]
        """Counts of each party's mixture of the server's model and its own."""
        return self.task.counts(self.predict(model), self.graph)

    def load(self, model: Fields | None = None) -> None:
        """θ̂_k = θ_k + W∘(θ − θ_k) for the last tensors, θ for the others, and for a party that never trained."""
        if model is None:
            return
        mixed: Parameters = {name: value.expand_as(self.previous[name]) for name, value in model.items()}
        mixtures = {name: torch.lerp(self.previous[name], mixed[name], share) for name, share in self.mixing.items()}
        set_parameters(self.model, get_parameters(self.model) | mixed | choose(self.stage > NEW, mixtures, mixed))

    def adapt(self, model: Fields) -> None:
        """W ← W − η_W·∂F/∂θ̂ ∘ (θ − θ_k), within [0, 1]: until the losses settle at first, later once."""
        active = (self.stage > NEW) & self.differs(model)
        first = active & (self.stage == TRAINED)
        if not bool(active.any()):
            return
        batch = self.sample()
        losses: list[Tensor] = []
        parts = [batch.select([party]) for party in range(batch.parties)] if bool(first.any()) else []
        away = {name: model[name] - self.previous[name] for name in self.mixing}  # θ − θ_k
        running = active
        for _ in range(MAX_STEPS):
            self.load(model)
            out = self.output(batch)
            computed = optim.gradients(self.optimizer, self.task.loss(out, batch))
            gradients = dict(zip(self.optimizer.params, computed, strict=True))
            lr = self.settings.mixing_lr
            stepped = {name: (w - lr * gradients[name] * away[name]).clamp(0, 1) for name, w in self.mixing.items()}
            self.mixing = choose(running, stepped, self.mixing)
            if parts:
                rows = torch.split(out.detach(), batch.items.sizes)
                losses.append(torch.stack([self.task.loss(*pair) for pair in zip(rows, parts, strict=True)]))
            running = running & first & ~self.settled(losses)
            if not bool(running.any()):
                break
        self.stage = torch.where(active, ADAPTED, self.stage)

    def differs(self, model: Fields) -> Tensor:
        """(P,) whether the server's model is another than the party's last one."""
        parts = [(self.previous[name] != value).flatten(1).any(1) for name, value in model.items()]
        return torch.stack(parts).any(0)

    def sample(self) -> Graph:
        """The graph with a random run of consecutive training nodes at each party as its training nodes; of graphs, that run."""
        graph = self.graph
        count = (graph.num_train * self.settings.mixing_share / 100).floor().long()
        start = (self.draws("mixing").uniform() * (graph.num_train - count + 1)).long().minimum(graph.num_train - count)
        rows = graph.train.nonzero()[:, 0]
        party = graph.owner[rows]
        index = torch.arange(len(rows), device=self.device) - (graph.num_train.cumsum(0) - graph.num_train)[party]
        mask = torch.zeros_like(graph.train)
        mask[rows] = (index >= start[party]) & (index < (start + count)[party])
        if graph.pairs is not None:
            return trained_pairs(graph, mask)
        return graph.fitting(mask) if graph.graph_ptr is None else graph.take(mask.nonzero()[:, 0])

    def settled(self, losses: list[Tensor]) -> Tensor:
        """(P,) whether each party's last losses hardly differ any more."""
        if len(losses) <= LAST_LOSSES:
            return torch.zeros(self.graph.parties, dtype=torch.bool, device=self.device)
        return torch.stack(losses[-LAST_LOSSES:]).std(0, correction=0) < self.settings.mixing_threshold


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of the mixtures, pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"])
