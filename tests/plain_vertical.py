"""GLASU in plain torch with dense matrices, one party at a time: what its tests compare with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plain import Party, Weights


def between(party: Party, rows: Tensor, columns: Tensor) -> Tensor:
    """The scaled submatrix, row by row."""
    result = party.normalized_adjacency[rows][:, columns]
    for row, i in zip(result, rows.tolist(), strict=True):
        sampled = party.adjacency[i, columns].sum().clamp(min=1)
        row *= torch.where(columns == i, 1.0, party.adjacency[i].sum() / sampled)
    return result


@dataclass
class Levels:
    """A party's levels and the matrices between them."""

    party: Party
    nodes: list[Tensor]

    def matrix(self, layer: int) -> Tensor:
        """Level l + 1 by level l."""
        return between(self.party, self.nodes[layer + 1], self.nodes[layer])

    def take(self, hidden: Tensor, lower: int, upper: int) -> Tensor:
        """Rows of the upper level's nodes."""
        place = {node: index for index, node in enumerate(self.nodes[lower].tolist())}
        return hidden[[place[node] for node in self.nodes[upper].tolist()]]


def everything(party: Party, layers: int) -> Levels:
    """All nodes at every level."""
    return Levels(party, [torch.arange(len(party.y))] * (layers + 1))


def encode(w: Weights, levels: Levels) -> Tensor:
    """relu(X·W + b) on level 0."""
    return (levels.party.x[levels.nodes[0]] @ w["encoder.weight"] + w["encoder.bias"]).relu()


def layer(model: str, place: int, w: Weights, hidden: Sequence[Tensor], levels: Levels, layers: int) -> Tensor:
    """H⁺[l] of one backbone."""
    own = {name.removeprefix(f"layers.{place}."): value for name, value in w.items() if name.startswith(f"layers.{place}.")}
    h = hidden[place]
    if model == "mlp":
        return (levels.take(h, place, place + 1) @ own["weight"] + own["bias"]).relu()
    if model == "gat":
        return attention(place, own, h, levels)
    near = levels.matrix(place) @ h
    if model == "gcn":
        return (near @ own["weight"] + own["bias"]).relu()
    if model == "gcnii":
        beta = math.log(0.5 / (place + 1) + 1)
        z = 0.9 * near + 0.1 * levels.take(hidden[0], 0, place + 1)
        return ((1 - beta) * z + beta * z @ own["weight"]).relu()
    out = (near @ own["linear.weight"] + own["linear.bias"]).relu()
    out = (out - out.mean(0)) / (out.var(0, correction=0) + 1e-5).sqrt() * own["scale"] + own["shift"]
    if place % 2 == 0 and place + 1 < layers:
        return out
    first, share = place - place % 2, 0.5 ** (place // 2 + 1)
    return share * out + (1 - share) * levels.take(hidden[first], first, place + 1)


def attention(place: int, own: Weights, h: Tensor, levels: Levels) -> Tensor:
    """Head by head, over all pairs of nodes, those without an edge masked."""
    lower, upper = levels.nodes[place], levels.nodes[place + 1]
    wide = (h @ own["weight"]).unflatten(1, own["source"].shape)  # (n, heads, width)
    seen = (levels.party.adjacency[upper][:, lower] > 0) | (upper[:, None] == lower)
    parts = []
    for head in range(wide.shape[1]):
        target = levels.take(wide[:, head], place, place + 1) @ own["target"][head]
        scores = F.leaky_relu(target[:, None] + wide[:, head] @ own["source"][head], 0.2)
        parts.append(scores.masked_fill(~seen, -torch.inf).softmax(1) @ wide[:, head])
    return F.elu(torch.cat(parts, 1) + own["bias"])


def classify(w: Weights, hidden: Tensor) -> Tensor:
    """Logits on level L."""
    return hidden @ w["classifier.weight"] + w["classifier.bias"]


def joint(
    model: str, ws: Sequence[Weights], levels: Sequence[Levels], layers: int, shared: Sequence[int], concatenate: bool = False
) -> tuple[list[Tensor], dict[int, list[Tensor]]]:
    """Algorithm 3 for all parties at once, differentiable in everything: every H_m[L], and every H⁺_m[l] of shared layers."""
    hidden = [[encode(w, own)] for w, own in zip(ws, levels, strict=True)]
    sent: dict[int, list[Tensor]] = {}
    for place in range(layers):
        local = [layer(model, place, w, h, own, layers) for w, h, own in zip(ws, hidden, levels, strict=True)]
        if place in shared:
            sent[place] = local
            aggregate = torch.cat(local, 1) if concatenate else torch.stack(local).mean(0)
            local = [merged(w, place + 1, aggregate) for w in ws]
        for h, new in zip(hidden, local, strict=True):
            h.append(new)
    return [h[-1] for h in hidden], sent


def merged(w: Weights, level: int, hidden: Tensor) -> Tensor:
    """A concatenation brought back to the hidden width."""
    key = f"merges.{level}.weight"
    return hidden @ w[key] if key in w else hidden


def local_step(
    model: str,
    w: Weights,
    number: int,
    levels: Levels,
    layers: int,
    sent: dict[int, list[Tensor]],
    concatenate: bool = False,
) -> Tensor:
    """Algorithm 4, lines 2-10: H_m[L] of one party, the others' representations as they were sent."""
    hidden = [encode(w, levels)]
    for place in range(layers):
        local = layer(model, place, w, hidden, levels, layers)
        if place in sent:
            everyone = [local if p == number else other.detach() for p, other in enumerate(sent[place])]
            aggregate = torch.cat(everyone, 1) if concatenate else torch.stack(everyone).mean(0)
            local = merged(w, place + 1, aggregate)
        hidden.append(local)
    return hidden[-1]


def loss(w: Weights, hidden: Tensor, levels: Levels) -> Tensor:
    """The mean over the training nodes of level L."""
    nodes = levels.nodes[-1]
    train = levels.party.train[nodes]
    return F.cross_entropy(classify(w, hidden)[train], levels.party.y[nodes][train])


def weights(memory: dict[str, Any], party: int) -> Weights:
    """One party's weights from a cohort's memory, ready to train."""
    return {name: value[party].detach().clone().requires_grad_() for name, value in memory["model"].items()}


def descend(w: Weights, objective: Tensor, lr: float) -> None:
    """One step of plain gradient descent."""
    found = torch.autograd.grad(objective, list(w.values()), materialize_grads=True)
    with torch.no_grad():
        for value, gradient in zip(w.values(), found, strict=True):
            value -= lr * gradient
