"""GLASU in plain torch with dense matrices, one party at a time: a reference for its tests."""

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
        row = {node: index for index, node in enumerate(self.nodes[lower].tolist())}
        return hidden[[row[node] for node in self.nodes[upper].tolist()]]


def everything(party: Party, layers: int) -> Levels:
    """All nodes at every level."""
    return Levels(party, [torch.arange(len(party.y))] * (layers + 1))


def encode(w: Weights, levels: Levels) -> Tensor:
    """relu(X·W + b) on level 0."""
    return (levels.party.x[levels.nodes[0]] @ w["encoder.weight"] + w["encoder.bias"]).relu()


def layer(model: str, number: int, w: Weights, hidden: Sequence[Tensor], levels: Levels, layers: int) -> Tensor:
    """H⁺[l] of one backbone."""
    own = {name.removeprefix(f"layers.{number}."): value for name, value in w.items() if name.startswith(f"layers.{number}.")}
    h = hidden[number]
    if model == "mlp":
        return (levels.take(h, number, number + 1) @ own["weight"] + own["bias"]).relu()
    if model == "gat":
        return attention(number, own, h, levels)
    near = levels.matrix(number) @ h
    if model == "gcn":
        return (near @ own["weight"] + own["bias"]).relu()
    if model == "gcnii":
        beta = math.log(0.5 / (number + 1) + 1)
        z = 0.9 * near + 0.1 * levels.take(hidden[0], 0, number + 1)
        return ((1 - beta) * z + beta * z @ own["weight"]).relu()
    out = (near @ own["linear.weight"] + own["linear.bias"]).relu()
    out = (out - out.mean(0)) / (out.var(0, correction=0) + 1e-5).sqrt() * own["scale"] + own["shift"]
    if number % 2 == 0 and number + 1 < layers:
        return out
    first, share = number - number % 2, 0.5 ** (number // 2 + 1)
    return share * out + (1 - share) * levels.take(hidden[first], first, number + 1)


def attention(number: int, own: Weights, h: Tensor, levels: Levels) -> Tensor:
    """Head by head, over all pairs of nodes, those without an edge masked."""
    lower, upper = levels.nodes[number], levels.nodes[number + 1]
    wide = (h @ own["weight"]).unflatten(1, own["source"].shape)  # (n, heads, width)
    seen = (levels.party.adjacency[upper][:, lower] > 0) | (upper[:, None] == lower)
    parts = []
    for head in range(wide.shape[1]):
        target = levels.take(wide[:, head], number, number + 1) @ own["target"][head]
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
    for number in range(layers):
        local = [layer(model, number, w, h, own, layers) for w, h, own in zip(ws, hidden, levels, strict=True)]
        if number in shared:
            sent[number] = local
            aggregate = torch.cat(local, 1) if concatenate else torch.stack(local).mean(0)
            local = [merged(w, number + 1, aggregate) for w in ws]
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
    party: int,
    levels: Levels,
    layers: int,
    sent: dict[int, list[Tensor]],
    concatenate: bool = False,
) -> Tensor:
    """Algorithm 4, lines 2-10: H_m[L] of one party, with the others' representations as they were sent."""
    hidden = [encode(w, levels)]
    for number in range(layers):
        local = layer(model, number, w, hidden, levels, layers)
        if number in sent:
            everyone = [local if p == party else other.detach() for p, other in enumerate(sent[number])]
            aggregate = torch.cat(everyone, 1) if concatenate else torch.stack(everyone).mean(0)
            local = merged(w, number + 1, aggregate)
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
    gradients = torch.autograd.grad(objective, list(w.values()), materialize_grads=True)
    with torch.no_grad():
        for value, gradient in zip(w.values(), gradients, strict=True):
            value -= lr * gradient
