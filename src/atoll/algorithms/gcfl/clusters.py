"""When and how GCFL cuts a cluster of parties in two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll.algorithms import State

if TYPE_CHECKING:
    from atoll.algorithms.gcfl import Settings


def cut(state: State, cluster: int, settings: Settings) -> State:
    """Part a cluster in two where its members are stationary together but not alone; the second half gets a new number."""
    members = (state["cluster"] == cluster).nonzero().squeeze(1)
    updates, n = state["update"][members], state["n"][members]
    if len(members) <= 2 or not bool((n > 0).all()):
        return state
    weights = n / n.sum() if settings.mean_update == "weighted" else torch.full((len(members),), 1 / len(members))
    together = (updates * weights[:, None]).sum(0).norm()  # δ_mean = ‖Σ_i |G_i| / |G| · Δθ_i‖
    alone = updates.norm(dim=1).max()  # δ_max
    if not (
        together < settings.mean_update_threshold * state["unit"] and alone > settings.longest_update_threshold * state["unit"]
    ):
        return state
    if settings.use_sequences:
        waiting = state["heard"] if settings.sequence_reset == "all" else state["heard"][members]
        if int(waiting.min()) < settings.sequence_length:
            return state
        distance = time_warping(state["norms"][members], settings.standardize_sequences)
        ties = distance.max() - distance
    else:
        directions = updates / updates.norm(dim=1, keepdim=True).clamp(min=1e-12)
        ties = directions @ directions.t() + 1  # cosine similarity, from 0 to 2
    leaving = members[min_cut(ties)]
    assigned, heard = state["cluster"].clone(), state["heard"].clone()
    assigned[leaving] = len(next(iter(state["model"].values())))
    heard[slice(None) if settings.sequence_reset == "all" else members] = 0
    models = {name: torch.cat([value, value[cluster : cluster + 1]]) for name, value in state["model"].items()}
    return state | cached(state, members) | {"cluster": assigned, "heard": heard, "model": models}


def cached(state: State, members: Tensor) -> State:
    """The test accuracies of a cluster that is cut, kept."""
    if "cached" not in state:
        return {}
    highest = state["cached"].clone()
    highest[members] = torch.fmax(highest[members], state["accuracy"][members])
    return {"cached": highest}


def min_cut(ties: Tensor) -> Tensor:
    """(m,) bool: the part without the first member, of the two with the weakest ties between them (Stoer & Wagner)."""
    import igraph  # slow to import

    graph = igraph.Graph.Full(len(ties))
    sources, targets = zip(*graph.get_edgelist(), strict=True)
    first, second = graph.mincut(capacity=ties[list(sources), list(targets)].clamp(min=0).tolist()).partition
    leaving = torch.zeros(len(ties), dtype=torch.bool)
    leaving[second if 0 in first else first] = True
    return leaving


def time_warping(sequences: Tensor, standardize: bool) -> Tensor:
    """(m, d) → (m, m): dynamic time warping distances, all pairs at once: the root of the least sum of squared differences."""
    if standardize:
        sequences = sequences / sequences.std(dim=1, correction=0, keepdim=True).clamp(min=1e-12)
    count, length = sequences.shape
    blocked = torch.full((count, count), torch.inf)
    above = [torch.zeros(count, count)] + [blocked] * length  # the row before: costs of warping the first i − 1 onto the first j
    for i in range(length):
        row = [blocked]
        for j in range(length):
            step_cost = (sequences[:, None, i] - sequences[None, :, j]).square()
            row.append(step_cost + torch.minimum(torch.minimum(above[j], above[j + 1]), row[j]))
        above = row
    return above[length].sqrt()
