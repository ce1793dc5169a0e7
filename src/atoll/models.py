"""Backbones of P parties at once: every parameter has a leading party axis, every layer is one product for all parties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import pairwise

import torch
from torch import Tensor, nn

from .errors import AtollError
from .graph import Graph
from .kernels import Blocks, Features, Sparse, transform
from .random import Draws


class Dense(nn.Module):
    """The weights (P, in, out) and biases (P, out) of one layer; call it for relu(M·(X_p·W_p) + b_p)."""

    def __init__(
        self, parties: int, fan_in: int, fan_out: int, draws: Draws | None, *, bias: bool = True, glorot: bool = False
    ) -> None:
        super().__init__()
        bound = math.sqrt(6 / (fan_in + fan_out)) if glorot else 1 / math.sqrt(max(fan_in, 1))
        self.weight = parameter(draws, bound, parties, fan_in, fan_out)
        self.bias = parameter(None if glorot else draws, bound, parties, fan_out) if bias else None

    def forward(self, x: Features | Tensor, blocks: Blocks, through: Sparse | None = None, relu: bool = False) -> Tensor:
        """(N, in) → (N, out)."""
        return transform(x, self.weight, blocks, self.bias, through=through, relu=relu)


def parameter(draws: Draws | None, bound: float, parties: int, *shape: int) -> nn.Parameter:
    """(P, *shape) from U(−bound, bound), each party drawing its own; zeros without draws."""
    return nn.Parameter(torch.zeros(parties, *shape) if draws is None else draws.uniform(*shape, low=-bound, high=bound))


class Model(nn.Module):
    """A backbone: `model(graph)` gives logits (N, C), `model(graph, draws)` the same in training, with dropout."""

    head_layer: str  # the name of the last layer

    def __init__(self, dropout: float, input_dropout: float) -> None:
        super().__init__()
        self.dropout, self.input_dropout = dropout, input_dropout

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C); draws mean training."""
        raise NotImplementedError

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The last hidden representation (N, hidden); the logits where there is no hidden layer."""
        raise NotImplementedError

    def inputs(self, graph: Graph, draws: Draws | None) -> Features:
        """The features, after input dropout in training."""
        if draws is None or not self.input_dropout:
            return graph.features
        return graph.features.dropped(self.input_dropout, draws)

    def drop(self, hidden: Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Dropout of hidden units in training."""
        if draws is None or not self.dropout:
            return hidden
        return hidden * draws.keep(1 - self.dropout, graph.sizes, hidden.shape[1])


class Chain(Model):
    """Layer after layer with ReLU and dropout between them; the features are the first layer's input."""

    def __init__(self, layers: nn.ModuleList, dropout: float, input_dropout: float) -> None:
        super().__init__(dropout, input_dropout)
        self.layers = layers
        self.head_layer = f"layers.{len(layers) - 1}"

    def layer(self, place: int, x: Features | Tensor, graph: Graph, relu: bool) -> Tensor:
        """(N, in) → (N, out): one layer."""
        raise NotImplementedError

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        last = len(self.layers) - 1
        x = self.embed(graph, draws) if last else self.inputs(graph, draws)
        if last:
            x = self.drop(x, graph, draws)
        return self.layer(last, x, graph, relu=False)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The representation below the last layer."""
        if len(self.layers) == 1:
            return self.forward(graph, draws)
        x = self.layer(0, self.inputs(graph, draws), graph, relu=True)
        for place in range(1, len(self.layers) - 1):
            x = self.layer(place, self.drop(x, graph, draws), graph, relu=True)
        return x


class GCN(Chain):
    """Kipf & Welling, ICLR 2017: H⁺ = relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2)."""

    def layer(self, place: int, x: Features | Tensor, graph: Graph, relu: bool) -> Tensor:
        """Â·(H·W) + b."""
        out: Tensor = self.layers[place](x, graph.blocks, graph.propagate, relu)
        return out


class MLP(Chain):
    """H⁺ = relu(H·W + b): no edges."""

    def layer(self, place: int, x: Features | Tensor, graph: Graph, relu: bool) -> Tensor:
        """H·W + b."""
        out: Tensor = self.layers[place](x, graph.blocks, None, relu)
        return out


NAMES = ("gcn", "mlp")


def build(
    name: str,
    *,
    parties: int,
    features: int,
    classes: int,
    hidden: int = 64,
    layers: int = 2,
    dropout: float = 0.0,
    input_dropout: float = 0.0,
    bias: bool = True,
    draws: Draws | None = None,
) -> Model:
    """The model of that name for P parties; its first values are PyG's distributions, drawn by each party for itself."""
    if name not in NAMES:
        close = get_close_matches(name.lower(), NAMES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AtollError(f"unknown model {name!r}: choose one of {', '.join(NAMES)}{hint}")
    widths = [features, *[hidden] * (layers - 1), classes]
    made = [Dense(parties, fan_in, fan_out, draws, bias=bias, glorot=name == "gcn") for fan_in, fan_out in pairwise(widths)]
    return {"gcn": GCN, "mlp": MLP}[name](nn.ModuleList(made), dropout, input_dropout)


def read(model: nn.Module, *, copy: bool = False) -> dict[str, Tensor]:
    """The parameters by name, each (P, …), detached; live views unless `copy`."""
    return {name: p.detach().clone() if copy else p.detach() for name, p in model.named_parameters()}


@torch.no_grad()
def load(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Copy parameters in: (P, …) as they are, (…) to every party."""
    live = dict(model.named_parameters())
    if live.keys() != params.keys():
        odd = sorted(live.keys() ^ params.keys())
        raise AtollError(f"these parameters belong to another model: {', '.join(odd)} should be in both or neither")
    for name, p in live.items():
        if params[name].shape not in (p.shape, p.shape[1:]):
            raise AtollError(
                f"parameter {name!r} has shape {tuple(params[name].shape)}; the model has {tuple(p.shape)} (first axis: party)"
            )
    for name, p in live.items():
        p.copy_(params[name])


def head(model: Model) -> set[str]:
    """The names of the last layer's parameters."""
    return {name for name, _ in model.named_parameters() if name.startswith(f"{model.head_layer}.")}
