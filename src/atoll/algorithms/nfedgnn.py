"""nFedGNN: "One Node Per User: Node-Level Federated Learning for Graph Neural Networks", Algorithm 1 with Eqs. 5 to 7.

Every user is one node with one feature vector x_i and weights W_i of its own. The first layer is split: users send
x̄_i = x_i·W_i; the server, who knows the edges and the labels of the training nodes, does the rest and sends back ∂L/∂x̄_i. A
Laplacian term in the loss keeps neighbors' x̄ together: without it labeled users fit their one vector and nobody else learns.

Payload bytes per round and user, h = hidden (gat: heads·hidden): up 4·h, down 4·h. The paper's Table 1 is the sum of `up`.
The server sees every user's x̄_i in every round; users see the gradient of their own and nothing of each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import STORED_FEATURE, Fields, verb
from atoll.federation.declarations import COUNTS, real
from atoll.federation.federation import Federation, Replies
from atoll.federation.memory import FRESH, PARTY
from atoll.graphs.attention import elu
from atoll.graphs.graph import Graph
from atoll.graphs.user_rows import Entries, Weights
from atoll.models import optim
from atoll.models.layers import AttentionLayer, Dense
from atoll.models.losses import smoothness
from atoll.models.parameters import get_parameters, set_parameters
from atoll.random import SERVER, Draws, Streams
from atoll.settings import setting

SCENARIOS = ("node",)
TASKS = ("node-classification",)
STATE_AXES = {"optimizer": FRESH, "latent": PARTY}
LATENT = real("width")  # x̄_i, and its gradient


@dataclass(frozen=True)
class Split:
    """A network split between users and server: Section 4.1."""

    model: str = setting("gcn", "The network that is split between users and server.", choices=("gcn", "gat"))
    hidden: int = setting(16, "Length of a user's latent vector, per head.", low=1, high=10**6)
    heads: int = setting(8, "Attention heads of gat; every user has separate weights for each.", low=1, high=1000)
    dropout: float = setting(0.5, "Dropout rate between the layers and, with gat, on the attention.", low=0, high=0.99)
    lr: float = setting(0.1, "Learning rate, on both sides.", low=0)
    weight_decay: float = setting(5e-4, "L2 penalty on the weights, on both sides.", low=0)

    @property
    def width(self) -> int:
        """The length of x̄_i."""
        return self.hidden * (self.heads if self.model == "gat" else 1)


@dataclass(frozen=True)
class Settings(Split):
    """The split network's, Eq. 7's λ, and how users start."""

    regularization: float = setting(
        100.0, "λ, how strongly the latent vectors of neighbors are pulled together.", low=0, was="regularisation"
    )
    initial_weights: str = setting(
        "shared", "Whether all users start with the same weights or each draws its own.", choices=("shared", "own"), was="first"
    )


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
        self.optimizer = optim.Adam(self.weights, s.lr, s.weight_decay)
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
        """Lines 11 and 12: ∂L/∂W_i = x_iᵀ·∂L/∂x̄_i, one step of Adam."""
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


class Server(nn.Module):
    """What follows the users' part of the first layer."""

    def __init__(self, settings: Split, classes: int, draws: Draws | None) -> None:
        super().__init__()
        self.settings = settings
        if settings.model == "gat":
            self.first = AttentionLayer(1, None, settings.heads, settings.hidden, draws)
            self.second: nn.Module = AttentionLayer(1, settings.width, 1, classes, draws)
        else:
            self.second = Dense(1, settings.hidden, classes, draws, bias=False, glorot=True)

    def forward(self, latent: Tensor, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C): Â·relu(Â·X̄)·W⁽¹⁾ (Eq. 5), or two layers of attention (Eq. 9)."""
        if self.settings.model == "gat":
            hidden = self._drop(elu(self.first(latent, graph, draws, self.settings.dropout)), draws)
            return self.second(hidden, graph, draws, self.settings.dropout)  # type: ignore[no-any-return]
        hidden = self._drop((graph.normalized_adjacency @ latent).relu(), draws)
        return self.second(hidden, graph.blocks, graph.normalized_adjacency)  # type: ignore[no-any-return]

    def _drop(self, hidden: Tensor, draws: Draws | None) -> Tensor:
        if draws is None or not self.settings.dropout:
            return hidden
        return hidden * draws.keep(1 - self.settings.dropout, [len(hidden)], hidden.shape[1])


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
    optimizer = optim.Adam(server, settings.lr, settings.weight_decay)
    latent = torch.zeros(federation.schema.parties, settings.width)
    return {"model": get_parameters(server), "optimizer": optimizer.state(), "latent": latent, "loss": torch.zeros(())}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """One round of Algorithm 1. A user that does not take part is represented by the latent vector it sent last."""
    replies = federation.ask("embed")  # lines 4 to 7
    state, gradient = descend(federation, with_latent(state, replies), settings, settings.regularization)  # lines 8 and 9
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


def descend(federation: Federation, state: State, settings: Split, regularization: float = 0.0) -> tuple[State, Tensor]:
    """One step of the server's part down L = CE + λ·L_reg (Eqs. 6, 7), and ∂L/∂X̄ at the weights before that step.

    Deviation: the cross-entropy is a mean over the training nodes where Eq. 3 has a sum, as λ's range suggests.
    """
    server = Server(settings, federation.schema.classes, None)
    optimizer = optim.Adam(server, settings.lr, settings.weight_decay)
    set_parameters(server, state["model"])
    optimizer.restore(state["optimizer"])
    graph, latent = federation.topology, state["latent"].requires_grad_()
    logits = server(latent, graph, Draws(federation.seed, [SERVER], "dropout", federation.round))
    loss = federation.task.loss(logits, graph)
    if regularization:
        loss = loss + regularization * smoothness(latent, graph)
    *own, gradient = torch.autograd.grad(loss, [*optimizer.params.values(), latent])
    optimizer.step([part.contiguous() for part in own])
    state = {"model": get_parameters(server), "optimizer": optimizer.state(), "latent": latent.detach(), "loss": loss.detach()}
    return state, gradient
