"""nFedGNN and CNFGNN written out plainly: one object a user with its whole weight matrix, dense matrices at the server."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms.nfedgnn import Server, Split, first_weight
from atoll.data.builder import build_graph
from atoll.federation.cohort import Schema
from atoll.graphs.graph import Graph
from atoll.random import SERVER, Draws, Streams


def some_users(nodes: int = 24, features: int = 40, classes: int = 3, directed: bool = False, seed: int = 0) -> Graph:
    """A random graph whose nodes have a few non-zero features each; node 5 has none, node 7 no neighbors."""
    rng = np.random.default_rng(seed)
    x = np.where(rng.random((nodes, features)) < 0.12, rng.random((nodes, features)), 0).astype(np.float32)
    x[5] = 0
    edges = rng.integers(0, nodes, (2, 3 * nodes))
    edges = edges[:, (edges != 7).all(0)]
    y = rng.integers(0, classes, nodes)
    role = rng.permutation(nodes)
    masks = (role < nodes // 3, (role >= nodes // 3) & (role < 2 * nodes // 3), role >= 2 * nodes // 3)
    return build_graph(sp.csr_array(x), edges, y, masks, where="test", directed=directed, num_classes=classes)


def torch_optimizer(parameters: Iterable[Tensor], settings: Split) -> torch.optim.Optimizer:
    """torch's own Adam or AdamW."""
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer]
    return kind(parameters, lr=settings.lr, weight_decay=settings.weight_decay)


class User:
    """One user: a feature vector, all of W_i, and torch's optimizer."""

    def __init__(self, x: Tensor, weight: Tensor, settings: Split) -> None:
        self.x = x
        self.weight = weight.clone().requires_grad_()
        self.adam = torch_optimizer([self.weight], settings)

    def embed(self) -> Tensor:
        """x_i·W_i."""
        return self.x @ self.weight

    def update(self, gradient: Tensor) -> None:
        """Back-propagate the gradient of x̄_i into W_i, and step."""
        self.adam.zero_grad()
        self.embed().backward(gradient)
        self.adam.step()


class Plain:
    """A server and its users, who take part round by round as they are told."""

    def __init__(self, graph: Graph, settings: Split, seed: int) -> None:
        self.graph, self.settings, self.seed = graph, settings, seed
        self.averaging = getattr(settings, "averaging", "")  # CNFGNN's
        nodes, schema = graph.num_nodes, Schema(graph.num_features, graph.num_classes, graph.num_nodes)
        limit = math.sqrt(6 / (schema.features + settings.width))
        own = Streams(seed, range(nodes), "weights").uniform(schema.features, settings.width, low=-limit, high=limit)
        weights = (
            own
            if getattr(settings, "initial_weights", "shared") == "own"
            else first_weight(settings, schema, seed).expand_as(own)
        )
        x = torch.from_numpy(graph.nonzero_features.toarray())
        self.users = [User(x[i], weights[i], settings) for i in range(nodes)]
        first = Server(settings, graph.num_classes, Draws(seed, [SERVER], "model"))
        self.parameters = {name: p.detach().clone().requires_grad_() for name, p in first.named_parameters()}
        self.adam = torch_optimizer(self.parameters.values(), settings)
        self.latent = torch.zeros(nodes, settings.width)
        source, target = graph.edge_index
        self.edges = torch.zeros(nodes, nodes)
        self.edges[target, source] = 1
        self.looped = self.edges + torch.eye(nodes)

    def logits(self, latent: Tensor, draws: Draws | None) -> Tensor:
        """The server's part, dense."""
        if self.settings.model == "gat":
            hidden = F.elu(self._attend("first", latent, self.settings.heads, draws))
            hidden = self._dropped(hidden, draws)
            return self._attend("second", hidden @ self.parameters["second.weight"][0], 1, draws)
        if self.settings.model in ("sage", "gin"):
            return self._two_kinds(latent, draws)
        degree = self.looped.sum(1)
        hat = self.looped / (degree[:, None] * degree[None]).sqrt()
        hidden = self._dropped((hat @ latent).relu(), draws)
        for index in range(self.settings.layers - 2):
            hidden = self._dropped((hat @ (hidden @ self.parameters[f"middle.{index}.weight"][0])).relu(), draws)
        return hat @ (hidden @ self.parameters["second.weight"][0])

    def _two_kinds(self, latent: Tensor, draws: Draws | None) -> Tensor:
        """GraphSAGE (mean of the neighbors) and GIN (sum with the node itself)."""
        p = {name: value[0] for name, value in self.parameters.items()}
        names = [*(f"middle.{index}" for index in range(self.settings.layers - 2)), "second"]
        if self.settings.model == "sage":
            mean = self.edges / self.edges.sum(1, keepdim=True).clamp(min=1)
            own, near = latent.chunk(2, 1)
            hidden = own + mean @ near + p["first.bias"]
            for name in names:
                hidden = self._dropped(hidden.relu(), draws)
                hidden = hidden @ p[f"{name}.own.weight"] + mean @ hidden @ p[f"{name}.near.weight"] + p[f"{name}.near.bias"]
            return hidden
        hidden = (self.looped @ latent + p["first.inner.bias"]).relu() @ p["first.outer.weight"] + p["first.outer.bias"]
        for name in names:
            hidden = self.looped @ self._dropped(hidden.relu(), draws)
            hidden = (hidden @ p[f"{name}.inner.weight"] + p[f"{name}.inner.bias"]).relu()
            hidden = hidden @ p[f"{name}.outer.weight"] + p[f"{name}.outer.bias"]
        return hidden

    def _dropped(self, hidden: Tensor, draws: Draws | None) -> Tensor:
        if draws is None or not self.settings.dropout:
            return hidden
        return hidden * draws.keep(1 - self.settings.dropout, [len(hidden)], hidden.shape[1])

    def _attend(self, layer: str, rows: Tensor, heads: int, draws: Draws | None) -> Tensor:
        assert not self.settings.dropout  # the order in which attention is dropped is the fast version's own
        source, target, bias = (self.parameters[f"{layer}.{name}"][0] for name in ("source", "target", "bias"))
        outs = []
        for head, h in enumerate(rows.chunk(heads, 1)):
            scores = F.leaky_relu((h @ source[head])[None] + (h @ target[head])[:, None], 0.2)
            outs.append(scores.masked_fill(self.looped == 0, -math.inf).softmax(1) @ h)
        return torch.cat(outs, 1) + bias

    def round(self, number: int, present: list[int] | None = None) -> None:
        """One round of Algorithm 1 with some users."""
        present = list(range(len(self.users))) if present is None else present
        for i in present:
            self.latent[i] = self.users[i].embed().detach()
        latent = self.latent.clone().requires_grad_()
        logits = self.logits(latent, Draws(self.seed, [SERVER], "dropout", number))
        loss = F.cross_entropy(logits[self.graph.train], self.graph.y[self.graph.train], reduction=self.settings.loss)
        strength = getattr(self.settings, "regularization", 0.0)  # λ
        pulled = latent
        if getattr(self.settings, "regularized", "") == "mean":
            pulled = torch.stack(latent.chunk(self.settings.heads, 1)).mean(0)
        apart = sum(((pulled[i] - pulled[j]) ** 2).sum() for j, i in self.graph.edge_index.t().tolist())
        loss = loss + strength * apart / self.looped.sum()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()
        if self.averaging == "before":
            self._take_mean(present)
        for i in present:
            self.users[i].update(latent.grad[i])
        if self.averaging == "after":
            self._take_mean(present)

    def _take_mean(self, present: list[int]) -> None:
        mean = torch.stack([self.users[i].weight.detach() for i in present]).double().mean(0).float()
        for i in present:
            self.users[i].weight.data.copy_(mean)
