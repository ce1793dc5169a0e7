"""CNFGNN (Meng et al., KDD 2021) as nFedGNN's paper adapts it for comparison, Section 4.1: users upload their weights as well.

As nFedGNN, but with x̄_i a user sends W_i, and the server returns the mean W̄ of all W_i. There is no Laplacian term. The paper
does not say when in a round the mean is taken; both readings are here:

    averaging=before   send x̄_i and W_i together; W_i ← W̄, then the step with ∂L/∂x̄_i: x̄_i is of the user's own step from W̄
    averaging=after    send x̄_i; the step; send W_i; W_i ← W̄: x̄_i = x_i·W̄ is of weights that all share, as in FedAvg

Payload bytes per round and user, d features, h = hidden (gat: heads·hidden, sage: 2·hidden): up 4·(h + d·h), down 4·(h + d·h).
The server sees every user's x̄_i and W_i in every round: from two successive W_i it can read off the user's features.
Users see the mean of all W_i and the gradient of their own x̄_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atoll import wire
from atoll.algorithms import State, nfedgnn
from atoll.algorithms.nfedgnn import (
    FIXED_WEIGHTS,
    LATENT,
    SCENARIOS,
    STATE_AXES,
    TASKS,
    WEIGHTS,
    admit,
    descend,
    evaluate,
    first_weight,
    start,
    with_latent,
)
from atoll.algorithms.nfedgnn.joining import fixed_point, present
from atoll.deferred import Deferred
from atoll.federation.cohort import PARTY, Fields, verb
from atoll.federation.declarations import whole
from atoll.federation.federation import Federation
from atoll.graphs.user_rows import Patched
from atoll.models import optim
from atoll.settings import setting

__all__ = ["SCENARIOS", "STATE_AXES", "TASKS", "Cohort", "Settings", "admit", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(nfedgnn.Split):
    """The split network's, and when the mean is taken."""

    averaging: str = setting(
        "before",
        "Whether the mean of all weights is taken before or after the users' step.",
        choices=("before", "after"),
        was="average",
        since="0.2",
    )


class Cohort(nfedgnn.Cohort):
    """Users who start every step from the mean of all weights.

    The rows of zero features only decay, and in the same way at all users that took the same steps: they are kept once for all
    of these (tensors expanded along the party axis), and per user only where participation has driven users apart.
    """

    memory = {"rest": PARTY, "rest_first": PARTY, "rest_second": PARTY, "steps": PARTY, **nfedgnn.Cohort.memory}
    settings: Settings  # type: ignore[assignment]

    def setup(self) -> None:
        """W_i and its optimizer for the non-zero features as in nFedGNN, and for the others."""
        users, shape = self.graph.parties, (self.schema.features, self.settings.width)
        self.rest = self.rest_first = self.rest_second = torch.zeros(shape, device=self.device).expand(users, *shape)
        self.steps = torch.zeros(users, device=self.device)
        super().setup()

    def begin(self) -> None:
        """The same W_i for all."""
        weight = first_weight(self.settings, self.schema, self.seed).to(self.device)
        self.weights.share(weight)
        self.rest = weight.expand_as(self.rest)

    def trained(self) -> Fields:
        """Without the moments of the rows of zero features, which are an optimizer's state."""
        return {name: value for name, value in super().trained().items() if name in ("weights", "rest")}

    @verb(takes={}, gives={"latent": LATENT, "weight": WEIGHTS})
    def upload(self) -> Fields:
        """x̄_i = x_i·W_i and W_i."""
        return self.embed() | {"weight": Patched(self.features, self.weights.rows.clone(), self.rest)}

    @verb(takes={"weight": WEIGHTS, "gradient": LATENT}, gives={})
    def update(self, weight: Tensor, gradient: Tensor) -> None:  # type: ignore[override]
        """W_i ← W̄, then one step of the optimizer with ∂L/∂W_i = x_iᵀ·∂L/∂x̄_i."""
        self.adopt(weight)
        self._descend(gradient)

    @verb(takes={"gradient": LATENT}, gives={"weight": WEIGHTS})
    def fit(self, gradient: Tensor) -> Fields:
        """One step from the weights it has; the new W_i."""
        self._descend(gradient)
        return {"weight": Patched(self.features, self.weights.rows.clone(), self.rest)}

    @verb(takes={"weight": WEIGHTS}, gives={})
    def adopt(self, weight: Tensor) -> None:
        """W_i ← W̄."""
        self.weights.share(weight)
        self.rest = weight.expand_as(self.rest)

    @verb(takes={}, gives={"weight": FIXED_WEIGHTS, "count": whole("features", 1)})
    def sum_weights(self) -> Fields:
        """W_i and 1 for each of its rows; the server sees sums."""
        rest = fixed_point(self.rest[:1] if wire.rows_are_shared(self.rest) else self.rest).expand_as(self.rest)
        ones = rest.new_ones(1, self.schema.features, 1).expand(len(self.steps), -1, 1)
        return {"weight": Patched(self.features, fixed_point(self.weights.rows), rest), "count": ones}

    def _descend(self, gradient: Tensor) -> None:
        """One step: for the rows of zero features, whose gradient is zero, their weight decay alone."""
        self.descend(gradient)
        users, s = len(self.steps), self.settings
        same = bool((self.steps == self.steps[0]).all()) and not self.rest_first.stride(0) and not self.rest.stride(0)
        kept = slice(0, 1 if same else users)
        rest = self.rest[kept].clone(memory_format=torch.contiguous_format)
        adam = optim.make(s.optimizer, {"rest": rest}, s.lr, s.weight_decay)
        assert isinstance(adam, optim.Adam)
        adam.restore({"steps": self.steps[kept], "first.rest": self.rest_first[kept], "second.rest": self.rest_second[kept]})
        adam.step([torch.zeros_like(rest)])
        self.rest, self.rest_first, self.rest_second = (
            tensor.expand(users, -1, -1) for tensor in (rest, adam.first["rest"], adam.second["rest"])
        )
        self.steps = self.steps + 1


def step(federation: Federation, state: State, settings: Settings) -> State:
    """One round: the server takes its step as in nFedGNN and averages the users' weights, before or after theirs."""
    users = present(federation, state, settings)
    if settings.averaging == "after":
        replies = federation.ask("embed", to=users)
        state, gradient = descend(federation, with_latent(state, replies), settings)
        replies = federation.ask("fit", to=replies.parties, each={"gradient": gradient[replies.index]})
        federation.tell("adopt", to=replies.parties, weight=average(replies.stack("weight")))  # W̄
        return state
    replies = federation.ask("upload", to=users)
    state, gradient = descend(federation, with_latent(state, replies), settings)
    mean = average(replies.stack("weight"))  # W̄
    federation.tell("update", to=replies.parties, each={"gradient": gradient[replies.index]}, weight=mean)
    return state


def average(weights: Tensor | Deferred) -> Tensor:
    """(P, d, h) → (d, h), summed in double precision, so that deferred and dense weights have the same mean."""
    total = weights.total() if isinstance(weights, Deferred) else weights.sum(0, dtype=torch.float64)
    return (total / len(weights)).float()
