"""FedTAD: Zhu et al., IJCAI 2024. FedAvg whose server learns from each party's model what is reliable in it, class by class.

A generator at the server makes graphs that the parties' models know and the server's does not; on them these models teach it,
each class as much as the party's training nodes of that class resemble their neighbors.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of all nodes; of training nodes with
`weighting=train`; 1 with `weighting=parties`). Once, C classes: up 4·C. The generator is never sent.
The server sees *each party's* model after training, its number of nodes, and how reliable each class is there, which tells the
classes of its training nodes: distillation needs them one by one, which is why `fit` cannot be asked under secure aggregation.
"""

from __future__ import annotations

import torch

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import EVALUATIONS, SCENARIOS, evaluate
from atoll.algorithms.fedtad.distillation import Distillation, first_state
from atoll.algorithms.fedtad.reliability import class_reliability, shares
from atoll.algorithms.fedtad.settings import Settings
from atoll.federation.cohort import MODEL, Fields, verb
from atoll.federation.declarations import WEIGHT, real
from atoll.federation.federation import Federation, Replies
from atoll.federation.memory import FRESH, SHARED
from atoll.models.parameters import Parameters, get_parameters, scale, weighted
from atoll.random import SERVER, Draws

__all__ = ["EVALUATIONS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]

TASKS = ("node-classification",)
NO_PROPAGATE_FIRST = "the server teaches on generated nodes"
NO_NORM = "the server teaches on generated nodes, whose statistics are not the parties'"
STATE_AXES = {
    "model": SHARED, "generator": FRESH, "generator_optimizer": FRESH, "student_optimizer": FRESH, "reliability": FRESH,
    "known": FRESH,
}  # fmt: skip


class Cohort(fedavg.Cohort):
    """FedAvg's parties, which say once how reliable their classes are."""

    settings: Settings

    @verb(takes={}, gives={"reliability": real("classes", low=0)})
    def reliability(self) -> Fields:
        """Φ_k, from the party's features, edges and training labels; the random walks of topology=authors are drawn here."""
        s = self.settings
        return {"reliability": class_reliability(self.graph, s.topology, s.walk_steps, self.draws())}

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "nodes": WEIGHT})
    def fit(self, model: Fields) -> Fields:
        """w_k ← w, then local training; w_k and n_k."""
        self.load(model)
        self.train(model=model)
        return {"model": get_parameters(self.model, copy=True), "nodes": self.weights}


def start(federation: Federation, settings: Settings) -> State:
    """A first model and generator; nothing known of the parties."""
    first, schema = fedavg.start(federation, settings), federation.schema
    unknown = {"reliability": torch.zeros(schema.parties, schema.classes), "known": torch.zeros(schema.parties, dtype=torch.bool)}
    return first | unknown | first_state(settings, schema, first["model"], federation.seed)


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Everybody trains; w ← Σ_k (N_k / N) w_k; then the models teach w on generated graphs."""
    replies = federation.ask("fit", model=state["model"])
    mean = average(replies)
    if not settings.server_steps:
        return state | {"model": mean}
    state = learn_reliability(federation, state, replies)
    reliability = shares(state["reliability"][replies.index], settings.reliability_over)
    distillation = Distillation(settings, federation.schema, mean, replies.stack("model"), reliability, state)
    seed, round = federation.seed, federation.round
    of_teachers = Draws(seed, replies.parties, "teachers", round) if settings.evaluation_dropout else None
    distillation.run(Draws(seed, [SERVER], "noise", round), Draws(seed, [SERVER], "dropout", round), of_teachers)
    return state | distillation.state()


def average(replies: Replies) -> Parameters:
    """Σ_k (n_k / n) w_k."""
    nodes = replies.stack("nodes")
    sums = {name: value.sum(0) for name, value in weighted(replies.stack("model"), nodes).items()}
    return scale(sums, 1 / nodes.sum(0))


def learn_reliability(federation: Federation, state: State, replies: Replies) -> State:
    """Ask the parties whose Φ_k is not known yet: each in the first round that it takes part in."""
    unknown = [party for party in replies.parties if not bool(state["known"][party])]
    if not unknown:
        return state
    answers = federation.ask("reliability", to=unknown)
    reliability, known = state["reliability"].clone(), state["known"].clone()
    reliability[answers.index] = answers.stack("reliability")
    known[answers.index] = True
    return state | {"reliability": reliability, "known": known}
