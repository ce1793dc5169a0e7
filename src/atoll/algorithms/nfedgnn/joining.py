"""Users who join after training: they have features and edges, but no weights of their own.

Until they join they do not exist for the others: no message, no edge, no term in the loss. Then everybody else's weights and the
server's model stay as they are, and a new user's latent vector x̄ comes from one of three rules:

    initial    x̄ = x·W₀, the first weights, which follow from the seed: nothing is sent for it
    mean       x̄ = x·W̄, W̄_f the mean of row f over the users whose feature f is not zero (CNFGNN: over all): the server sees sums
    neighbors  the x̄ that minimizes the Laplacian term (Eq. 6) given everybody else's: where training the new W alone would end,
               for a user without a label, if λ outweighs the cross-entropy. The server computes it, without the user's features
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll.algorithms import State
from atoll.algorithms.nfedgnn.settings import Split
from atoll.errors import AtollError
from atoll.federation.federation import Federation
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.random import generator

if TYPE_CHECKING:
    from collections.abc import Sequence

FIXED_POINT = 2**24  # weights are summed as whole multiples of 1 / FIXED_POINT, so that the order of the sum does not matter
MAX_SWEEPS = 1000  # of the iteration that solves for new users' vectors
TOLERANCE = 1e-6  # of the largest change, relative to the largest value
DAMPING = 0.5  # how far a sweep goes: without it two new users who know only each other would swap vectors forever


def draw_late(federation: Federation, settings: Split) -> Tensor:
    """(N,) the users who join after training, drawn by the seed from those without a training label."""
    free = (federation.public["y_train"] < 0).nonzero()[:, 0]
    count = round(settings.late * federation.schema.parties)
    if not 0 < count <= len(free):
        raise AtollError(
            f"late={settings.late} is {count} of {federation.schema.parties} users, but 1 to {len(free)} of them can join late: "
            "those without a training label; change late."
        )
    order = torch.randperm(len(free), generator=generator(federation.seed, "late"))
    late = torch.zeros(federation.schema.parties, dtype=torch.bool)
    late[free[order[:count]]] = True
    return late


def absent(state: State, settings: Split) -> Tensor | None:
    """(N,) who is not there yet; None where everybody is."""
    late: Tensor | None = state.get("late")
    return None if settings.join == "start" else late


def present(federation: Federation, state: State, settings: Split) -> Sequence[int] | None:
    """The parties to ask in this round or evaluation, without those who are not there yet; None for all."""
    late = absent(state, settings)
    return None if late is None else federation.participants().without(set(_numbers(late)))


def training_graph(federation: Federation, state: State, settings: Split) -> tuple[Graph, Tensor | slice]:
    """The graph that the server trains on, and the users that its rows are."""
    late = absent(state, settings)
    if late is None:
        return federation.topology, slice(None)
    if "early" not in federation.derived:
        rows = (~late).nonzero()[:, 0]
        federation.derived["early"] = federation.topology.host.rows(rows).to(federation.device), rows
    early: tuple[Graph, Tensor] = federation.derived["early"]
    return early


def join(federation: Federation, latent: Tensor, late: Tensor, first: Tensor, settings: Split) -> Tensor:
    """X̄ with the vectors of those who join, by the rule of `settings`; `first` (d, h) are everybody's first weights."""
    new, latent = Parties(_numbers(late)), latent.clone()
    if settings.join == "mean":
        sums = federation.total("sum_weights", to=Parties(_numbers(~late)))
        mean = sums["weight"].double() / FIXED_POINT / sums["count"].clamp(min=1)  # W̄
        replies = federation.ask("embed_with", to=new, weight=torch.where(sums["count"] > 0, mean.float(), first))
    else:
        replies = federation.ask("embed", to=new)
    latent[replies.index] = replies.stack("latent")
    if settings.join != "neighbors":
        return latent
    return pulled(latent.to(federation.device), late.to(federation.device), federation.topology).cpu()


def fixed_point(weights: Tensor) -> Tensor:
    """Weights as whole numbers, whose sum is exact."""
    return (weights.detach().double() * FIXED_POINT).round().long()


def pulled(latent: Tensor, late: Tensor, graph: Graph) -> Tensor:
    """X̄ with the rows in `late` such that Σ ‖x̄_i − x̄_j‖² over the edges is minimal; a user without neighbors keeps its row."""
    degree = torch.bincount(graph.edge_index.flatten(), minlength=graph.num_nodes).float()
    rate = torch.where(late, DAMPING / degree.clamp(min=1), 0.0)[:, None]
    for _ in range(MAX_SWEEPS):
        change = rate * (graph.laplacian @ latent)
        latent = latent - change
        if float(change.abs().max()) <= TOLERANCE * float(latent.abs().max()):
            break
    return latent


def admit(state: State, known: Tensor, settings: Split) -> State:
    """The state of a federation with new users: `known` (N,) are the users' numbers in training, −1 for those who join."""
    before = absent(state, settings)
    late, latent = known < 0, torch.zeros(len(known), state["latent"].shape[1])
    latent[~late] = state["latent"][known[~late]]
    if before is not None:
        late = late | before[known.clamp(min=0)]
    return state | {"late": late, "latent": latent}


def _numbers(mask: Tensor) -> list[int]:
    numbers: list[int] = mask.nonzero()[:, 0].tolist()
    return numbers
