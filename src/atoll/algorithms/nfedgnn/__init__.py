"""nFedGNN: "One Node Per User: Node-Level Federated Learning for Graph Neural Networks", Algorithm 1 with Eqs. 5 to 7.

Every user is one node with one feature vector x_i and weights W_i of its own. The first layer is split: users send
x̄_i = x_i·W_i; the server, who knows the edges and the labels of the training nodes, does the rest and sends back ∂L/∂x̄_i. A
Laplacian term in the loss keeps neighbors' x̄ together: without it labeled users fit their one vector and nobody else learns.

Payload bytes per round and user, h = hidden (gat: heads·hidden, sage: 2·hidden): up 4·h, down 4·h. Table 1 is the sum of `up`.
The server sees every user's x̄_i in every round; users see the gradient of their own and nothing of each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.nfedgnn.server import Server
from atoll.algorithms.nfedgnn.settings import Settings, Split
from atoll.federation import metrics
from atoll.federation.cohort import STORED_FEATURE, Fields, verb
from atoll.federation.declarations import COUNTS, real
from atoll.federation.federation import Federation, Replies
from atoll.federation.memory import FRESH, PARTY
from atoll.graphs.graph import Graph
from atoll.graphs.user_rows import Entries, Weights
from atoll.models import optim
from atoll.models.losses import smoothness
from atoll.models.parameters import get_parameters, set_parameters
from atoll.random import SERVER, Draws, Streams

__all__ = ["SCENARIOS", "STATE_AXES", "TASKS", "Cohort", "Server", "Settings", "Split", "evaluate", "start", "step"]
SCENARIOS = ("node",)
TASKS = ("node-classification",)
STATE_AXES = {"optimizer": FRESH, "latent": PARTY}
LATENT = real("width")  # x̄_i, and its gradient
Penalty = Callable[[Tensor, Graph], Tensor]  # what is added to the cross-entropy, of X̄


class Cohort(atoll.federation.cohort.Cohort):
    """Users with weights of their own, kept for their non-zero features only: the other rows never touch anything."""

    no_backbone = "every user has a first layer of their own, for their own features, and the server the rest"
    memory = {"weights": STORED_FEATURE, "optimizer": STORED_FEATURE}
    settings: Settings

    def setup(self) -> None:
        """W_i and its optimizer."""
        s = self.settings
        self.features = Entries(self.graph)
        self.weights = Weights(self.features, s.width)
        self.optimizer = optim.make(s.optimizer, self.weights, s.lr, s.weight_decay)
        if not self.blank:
            self.begin()

    def begin(self) -> None:
        """W_i from U(−b, b), b² = 6 / (d + h): the same for all, or each user's own."""
        if self.settings.initial_weights == "own":
            self.weights.draw(Streams(self.seed, self.parties, "weights"), bound(self.settings, self.schema))
        else:
            self.weights.share(first_weight(self.settings, self.schema, self.seed))

    @verb(takes={}, gives={"latent": LATENT})
    def embed(self) -> Fields:
        """Lines 5 and 6: x̄_i = x_i·W_i."""
        return {"latent": self.weights()}

    @verb(takes={"gradient": LATENT}, gives={})
    def update(self, gradient: Tensor) -> None:
        """Lines 11 and 12: ∂L/∂W_i = x_iᵀ·∂L/∂x̄_i, one step of the optimizer."""
        self.optimizer.step([self.weights.backward(gradient)])

    @verb(takes={"logits": real("classes")}, gives=COUNTS)
    def evaluate(self, logits: Tensor) -> Fields:
        """Counts of the server's prediction at each user; the server knows the training loss itself."""
        counts = self.task.counts(self.predict(logits), self.graph)
        counts.pop("training", None)
        return counts

    def predict(self, logits: Tensor) -> Tensor:
        """What the server predicts."""
        return logits


def bound(settings: Split, schema: atoll.federation.cohort.Schema) -> float:
    """Glorot's bound for one head's d × h weights."""
    return math.sqrt(6 / (schema.features + settings.width))


def first_weight(settings: Split, schema: atoll.federation.cohort.Schema, seed: int) -> Tensor:
    """(d, h) every user's first weight: a function of the seed, which all know, so it is never sent."""
    limit = bound(settings, schema)
    return Streams(seed, [SERVER], "weights").uniform(schema.features, settings.width, low=-limit, high=limit)[0]


def start(federation: Federation, settings: Split) -> State:
    """The server's part of the model, its optimizer, and zeros for the users' latent vectors."""
    server = Server(settings, federation.schema.classes, Draws(federation.seed, [SERVER], "model"))
    optimizer = optim.make(settings.optimizer, server, settings.lr, settings.weight_decay)
    latent = torch.zeros(federation.schema.parties, settings.width)
    return {"model": get_parameters(server), "optimizer": optimizer.state(), "latent": latent, "loss": torch.zeros(())}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """One round of Algorithm 1. A user that does not take part is represented by the latent vector it sent last."""
    replies = federation.ask("embed")  # lines 4 to 7
    state, gradient = descend(federation, with_latent(state, replies), settings, laplacian(settings))  # lines 8 and 9
    federation.tell("update", to=replies.parties, each={"gradient": gradient[replies.index]})  # lines 10 to 13
    return state


def evaluate(federation: Federation, state: State, settings: Split) -> dict[str, object]:
    """The server predicts for all users; each user with a label that the server does not know counts for itself."""
    state = with_latent(state, federation.ask("embed"))
    server = Server(settings, federation.schema.classes, None)
    set_parameters(server, state["model"])
    with torch.no_grad():
        logits = server(state["latent"], federation.topology)
    return metrics.evaluate(federation, each={"logits": logits}) | {"train_loss": float(state["loss"])}


def with_latent(state: State, replies: Replies) -> State:
    """The state with the latent vectors that arrived."""
    latent = state["latent"].clone()
    latent[replies.index] = replies.stack("latent")
    return state | {"latent": latent}


def laplacian(settings: Settings) -> Penalty:
    """λ·L_reg: Eq. 6 of x̄ or, of gat's heads, of their mean (the second scheme of Appendix D)."""

    def penalty(latent: Tensor, graph: Graph) -> Tensor:
        if settings.model == "gat" and settings.regularized == "mean":
            latent = latent.view(len(latent), settings.heads, settings.hidden).mean(1)
        return settings.regularization * smoothness(latent, graph)

    return penalty if settings.regularization else no_penalty


def no_penalty(latent: Tensor, graph: Graph) -> Tensor:
    """Cross-entropy alone."""
    return latent.new_zeros(())


def descend(federation: Federation, state: State, settings: Split, penalty: Penalty = no_penalty) -> tuple[State, Tensor]:
    """One step of the server's part down L = CE + λ·L_reg (Eqs. 6, 7), and ∂L/∂X̄ at the weights before that step.

    Deviation: the cross-entropy is a mean over the training nodes, as λ's range suggests; `loss=sum` is Eq. 3's sum.
    """
    server = Server(settings, federation.schema.classes, None)
    optimizer = optim.make(settings.optimizer, server, settings.lr, settings.weight_decay)
    set_parameters(server, state["model"])
    optimizer.restore(state["optimizer"])
    graph, latent = federation.topology, state["latent"].requires_grad_()
    logits = server(latent, graph, Draws(federation.seed, [SERVER], "dropout", federation.round))
    loss = federation.task.loss(logits, graph) * (int(graph.num_train.sum()) if settings.loss == "sum" else 1)
    loss = loss + penalty(latent, graph)
    *gradients, gradient = torch.autograd.grad(loss, [*optimizer.params.values(), latent])
    optimizer.step([part.contiguous() for part in gradients])
    state = {"model": get_parameters(server), "optimizer": optimizer.state(), "latent": latent.detach(), "loss": loss.detach()}
    return state, gradient
