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
from dataclasses import replace

import torch
from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.nfedgnn.joining import FIXED_POINT, absent, admit, draw_late, fixed_point, join, present, training_graph
from atoll.algorithms.nfedgnn.server import Server
from atoll.algorithms.nfedgnn.settings import Settings, Split
from atoll.errors import AtollError
from atoll.federation import metrics, transfer
from atoll.federation.cohort import STORED_FEATURE, Fields, verb
from atoll.federation.declarations import COUNTS, MAX_PARAMETER, flag, real, whole
from atoll.federation.federation import Federation, Replies
from atoll.federation.memory import FRESH, PARTY
from atoll.graphs.graph import Graph
from atoll.graphs.user_rows import Entries, Patched, Weights
from atoll.models import optim
from atoll.models.losses import smoothness
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.user_optim import RankOneAdam, step_by_rows
from atoll.random import SERVER, Draws, Streams

__all__ = ["SCENARIOS", "STATE_AXES", "TASKS", "Cohort", "Server", "Settings", "Split", "admit", "evaluate", "start", "step"]
SCENARIOS = ("node",)
TASKS = ("node-classification",)
STATE_AXES = {"optimizer": FRESH, "latent": PARTY, "late": FRESH}
LATENT = real("width")  # x̄_i, and its gradient
WEIGHTS = real("features", "width")  # W_i
FIXED_WEIGHTS = whole("features", "width", low=-MAX_PARAMETER * FIXED_POINT, high=MAX_PARAMETER * FIXED_POINT)
MAX_NUMBERS = 1 << 18  # of the gradient of W that are made at once, so that they stay in the cache
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
        self.optimizer: optim.Optimizer
        if s.moments == "user":
            self.memory = {**self.memory, "optimizer": PARTY}  # type: ignore[misc]
            self.optimizer = RankOneAdam(self.weights.rows, self.features, s.lr, decoupled_decay(s))
        else:
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
        self.descend(gradient)

    def descend(self, gradient: Tensor) -> None:
        """One step of the optimizer, some rows of W after the others: their gradient is never written out as a whole."""
        if isinstance(self.optimizer, RankOneAdam):
            self.weights.latent = None  # x̄ of the weights before
            self.optimizer.step_users(gradient)
        elif isinstance(self.optimizer, optim.Adam):
            step_by_rows(self.optimizer, lambda rows: self.weights.backward(gradient, rows), MAX_NUMBERS // self.settings.width)

    @verb(takes={}, gives={"weight": FIXED_WEIGHTS, "count": whole("features", 1)})
    def sum_weights(self) -> Fields:
        """W_i in the rows of the user's features, zero in the others, and which rows these are; the server sees sums."""
        rows, users = fixed_point(self.weights.rows), self.graph.parties
        none, counts = rows.new_zeros(1, self.schema.features, 1), rows.new_ones(len(rows), 1)
        return {
            "weight": Patched(self.features, rows, none.expand(users, -1, self.settings.width)),
            "count": Patched(self.features, counts, none.expand(users, -1, 1)),
        }

    @verb(takes={"weight": WEIGHTS}, gives={"latent": LATENT})
    def embed_with(self, weight: Tensor) -> Fields:
        """x̄_i = x_i·W̄, of a user without weights of its own."""
        return {"latent": self.features.product(weight[self.features.feature])}

    @verb(takes={"logits": real("classes"), "late": flag()}, gives=COUNTS)
    def evaluate_late(self, logits: Tensor, late: Tensor) -> Fields:
        """As `evaluate`, but zeros from users who were there from the start."""
        joined = late[self.graph.party]
        return self._counts(logits, replace(self.graph, val=self.graph.val & joined, test=self.graph.test & joined))

    @verb(takes={"logits": real("classes")}, gives=COUNTS)
    def evaluate(self, logits: Tensor) -> Fields:
        """Counts of the server's prediction at each user; the server knows the training loss itself."""
        return self._counts(logits, self.graph)

    def _counts(self, logits: Tensor, graph: Graph) -> Fields:
        counts = self.task.counts(self.predict(logits), graph)
        counts.pop("training", None)
        return counts

    def predict(self, logits: Tensor) -> Tensor:
        """What the server predicts."""
        return logits


def decoupled_decay(settings: Split) -> float:
    """The weight decay of an optimizer that keeps moments per user; refused where it is a part of the gradient."""
    if settings.optimizer == "adam" and settings.weight_decay:
        raise AtollError(
            f"moments=user needs decoupled weight decay, but optimizer=adam makes weight_decay={settings.weight_decay:g} part "
            "of every weight's own gradient; set optimizer=adamw or weight_decay=0, or leave moments out."
        )
    return settings.weight_decay


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
    state = {"model": get_parameters(server), "optimizer": optimizer.state(), "latent": latent, "loss": torch.zeros(())}
    return state | {"late": draw_late(federation, settings)} if settings.late else state


def step(federation: Federation, state: State, settings: Settings) -> State:
    """One round of Algorithm 1. A user that does not take part is represented by the latent vector it sent last."""
    replies = federation.ask("embed", to=present(federation, state, settings))  # lines 4 to 7
    state, gradient = descend(federation, with_latent(state, replies), settings, laplacian(settings))  # lines 8 and 9
    own = gradient if len(replies.parties) == len(gradient) else gradient[replies.index]
    federation.tell("update", to=replies.parties, each={"gradient": own})  # lines 10 to 13
    return state


def evaluate(federation: Federation, state: State, settings: Split) -> dict[str, object]:
    """The server predicts for all users; each user with a label that the server does not know counts for itself."""
    latent = with_latent(state, federation.ask("embed", to=present(federation, state, settings)))["latent"]
    if (late := absent(state, settings)) is not None:
        latent = join(federation, latent, late, first_weight(settings, federation.schema, federation.seed), settings)
    server = Server(settings, federation.schema.classes, None).to(federation.device)
    set_parameters(server, state["model"])
    with torch.no_grad():
        logits = server(latent.to(federation.device), federation.topology).cpu()
    values = metrics.evaluate(federation, each={"logits": logits}) | {"train_loss": float(state["loss"])}
    return values | late_metrics(federation, state, logits)


def late_metrics(federation: Federation, state: State, logits: Tensor) -> dict[str, object]:
    """The metrics of the test nodes among the users who join late, under names of their own; the server sees sums."""
    if "late" not in state:
        return {}
    sums = federation.total("evaluate_late", each={"logits": logits, "late": state["late"]})
    computed = federation.task.metrics(sums).items()
    return {f"late_{name}": value for name, value in computed if not name.startswith(metrics.NOT_TEST)}


def with_latent(state: State, replies: Replies) -> State:
    """The state with the latent vectors that arrived."""
    arrived: Tensor = replies.stack("latent")
    if len(arrived) < len(state["latent"]):
        arrived = state["latent"].index_copy(0, replies.index, arrived)
    return state | {"latent": arrived}


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
    server = Server(settings, federation.schema.classes, None).to(federation.device)
    optimizer = optim.make(settings.optimizer, server, settings.lr, settings.weight_decay)
    set_parameters(server, state["model"])
    optimizer.restore(state["optimizer"])
    graph, users = training_graph(federation, state, settings)
    latent = state["latent"][users].to(federation.device).requires_grad_()
    draws = Draws(federation.seed, [SERVER], "dropout", federation.round, device=federation.device)
    logits = server(latent, graph, draws)
    loss = federation.task.loss(logits, graph) * (int(graph.num_train.sum()) if settings.loss == "sum" else 1)
    loss = loss + penalty(latent, graph)
    *gradients, gradient = torch.autograd.grad(loss, [*optimizer.params.values(), latent])
    graph.forget_adjacency()
    optimizer.step([part.contiguous() for part in gradients])
    after = {"model": get_parameters(server), "optimizer": optimizer.state(), "loss": loss.detach(), "gradient": gradient}
    after = transfer.to_cpu(after, federation.device)
    everybody: Tensor = after.pop("gradient")
    if isinstance(users, Tensor):
        everybody = torch.zeros_like(state["latent"]).index_copy(0, users, everybody)
    return state | after, everybody
