"""Backbones of P parties at once: every parameter has a leading party axis, every layer is one product for all parties."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

import torch
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.attention import attend, elu
from atoll.graphs.graph import Graph
from atoll.graphs.kernels import Blocks, Features, Sparse, diffuse, spread, transform
from atoll.random import Draws


@dataclass(frozen=True)
class Shape:
    """What a model is made from; the names are those of `build`."""

    parties: int
    features: int
    classes: int
    hidden: int = 64
    layers: int = 2
    dropout: float = 0.0
    input_dropout: float = 0.0
    bias: bool = True
    heads: int = 8  # GAT: of width hidden / heads each, one of width C in the last layer
    steps: int = 10  # APPNP: K
    teleport: float = 0.1  # APPNP and GCNII: α
    theta: float = 0.5  # GCNII: β_l = log(θ/l + 1)

    @property
    def widths(self) -> list[int]:
        """Features, hidden widths, classes."""
        return [self.features, *[self.hidden] * (self.layers - 1), self.classes]


class Dense(nn.Module):
    """The weights (P, in, out) and biases (P, out) of one layer; call it for relu(M·(X_p·W_p) + b_p)."""

    def __init__(
        self, parties: int, fan_in: int, fan_out: int, draws: Draws | None, *, bias: bool = True, glorot: bool = False
    ) -> None:
        super().__init__()
        bound = math.sqrt(6 / (fan_in + fan_out)) if glorot else 1 / math.sqrt(fan_in)
        self.weight = parameter(draws, bound, parties, fan_in, fan_out)
        self.bias = parameter(None if glorot else draws, bound, parties, fan_out) if bias else None

    def forward(
        self, x: Features | Tensor, blocks: Blocks, through: Sparse | None = None, *, hops: int = 1, relu: bool = False
    ) -> Tensor:
        """(N, in) → (N, out)."""
        return transform(x, self.weight, blocks, self.bias, through=through, hops=hops, relu=relu)


def parameter(draws: Draws | None, bound: float, parties: int, *shape: int) -> nn.Parameter:
    """(P, *shape) from U(−bound, bound), each party drawing its own; zeros without draws."""
    return nn.Parameter(torch.zeros(parties, *shape) if draws is None else draws.uniform(*shape, low=-bound, high=bound))


class Model(nn.Module):
    """A backbone: `model(graph)` gives logits (N, C); `model(graph, draws)` does so in training, with dropout."""

    head_layer: str  # the name of the last layer

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        raise NotImplementedError

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The last hidden representation (N, hidden); the logits where there is no hidden layer."""
        raise NotImplementedError

    def inputs(self, graph: Graph, draws: Draws | None) -> Features:
        """The features, after input dropout in training."""
        if draws is None or not self.shape.input_dropout:
            return graph.features
        return graph.features.dropped(self.shape.input_dropout, draws)

    def drop(self, hidden: Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Dropout of hidden units in training."""
        if draws is None or not self.shape.dropout:
            return hidden
        return hidden * draws.keep(1 - self.shape.dropout, graph.sizes, hidden.shape[1])


class Chain(Model):
    """Layer after layer, dropout between them; the features are the first one's input."""

    glorot = False

    def __init__(self, shape: Shape, draws: Draws | None) -> None:
        super().__init__(shape)
        self.last = shape.layers - 1
        self.layers = nn.ModuleList()
        for fan_in, fan_out in pairwise(shape.widths):
            self.layers.append(self.make(shape, fan_in, fan_out, draws))
        self.head_layer = f"layers.{self.last}"

    def make(self, shape: Shape, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """One layer's parameters."""
        return Dense(shape.parties, fan_in, fan_out, draws, bias=shape.bias, glorot=self.glorot)

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """(N, in) → (N, out): one layer, activated unless it is the last."""
        raise NotImplementedError

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        x = self.drop(self.embed(graph, draws), graph, draws) if self.last else self.inputs(graph, draws)
        return self.layer(self.last, x, graph, draws)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The representation below the last layer."""
        if not self.last:
            return self.forward(graph, draws)
        x = self.layer(0, self.inputs(graph, draws), graph, draws)
        for place in range(1, self.last):
            x = self.layer(place, self.drop(x, graph, draws), graph, draws)
        return x


class GCN(Chain):
    """Kipf & Welling, ICLR 2017: H⁺ = relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2)."""

    glorot = True

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Â·(H·W) + b."""
        out: Tensor = self.layers[place](x, graph.blocks, graph.normalized_adjacency, relu=place < self.last)
        return out


class MLP(Chain):
    """H⁺ = relu(H·W + b): no edges."""

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """H·W + b."""
        out: Tensor = self.layers[place](x, graph.blocks, relu=place < self.last)
        return out


class SGC(Chain):
    """Wu et al., ICML 2019: Â²·X·W + b: one linear layer, whatever `layers` and `hidden` say."""

    def __init__(self, shape: Shape, draws: Draws | None) -> None:
        super().__init__(Shape(**{**vars(shape), "layers": 1}), draws)

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Â·(Â·(X·W)) + b."""
        out: Tensor = self.layers[place](x, graph.blocks, graph.normalized_adjacency, hops=2)
        return out


class APPNP(MLP):
    """Gasteiger et al., ICLR 2019: Z⁰ = MLP(X), Zᵏ⁺¹ = (1−α)·Â·Zᵏ + α·Z⁰, logits = Zᴷ."""

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """The MLP's layer; the last one's output is spread."""
        out = super().layer(place, x, graph, draws)
        return out if place < self.last else diffuse(graph.normalized_adjacency, out, self.shape.steps, self.shape.teleport)


class Neighbours(nn.Module):
    """A GraphSAGE layer: one weight for the neighbours' mean (with the bias), one for the node itself."""

    def __init__(self, shape: Shape, fan_in: int, fan_out: int, draws: Draws | None) -> None:
        super().__init__()
        self.near = Dense(shape.parties, fan_in, fan_out, draws, bias=shape.bias)
        self.own = Dense(shape.parties, fan_in, fan_out, draws, bias=False)

    def forward(self, x: Features | Tensor, graph: Graph) -> Tensor:
        """D⁻¹A·(H·W) + b + H·V."""
        return self.near(x, graph.blocks, graph.mean_adjacency) + self.own(x, graph.blocks)  # type: ignore[no-any-return]


class SAGE(Chain):
    """GraphSAGE, Hamilton et al., NeurIPS 2017, mean aggregator: H⁺ = relu(D⁻¹A·H·W + H·V + b)."""

    def make(self, shape: Shape, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """W, b and V."""
        return Neighbours(shape, fan_in, fan_out, draws)

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        out: Tensor = self.layers[place](x, graph)
        return out.relu() if place < self.last else out


class Heads(nn.Module):
    """A GAT layer of H heads of width C, side by side; without `fan_in` its rows W·h arrive from elsewhere (a split model)."""

    def __init__(self, shape: Shape, fan_in: int | None, heads: int, width: int, draws: Draws | None) -> None:
        super().__init__()
        bound = math.sqrt(6 / (heads + width))
        self.weight = None
        if fan_in is not None:
            self.weight = parameter(draws, math.sqrt(6 / (fan_in + heads * width)), shape.parties, fan_in, heads * width)
        self.source = parameter(draws, bound, shape.parties, heads, width)  # a_s
        self.target = parameter(draws, bound, shape.parties, heads, width)  # a_t
        self.bias = parameter(None, bound, shape.parties, heads * width) if shape.bias else None

    def forward(self, x: Features | Tensor, graph: Graph, draws: Draws | None, dropout: float) -> Tensor:
        """(N, in) → (N, H·C); dropout falls on α."""
        parties, heads, width = self.source.shape
        places = graph.attention(heads)
        if self.weight is not None:
            x = transform(x, self.weight, graph.blocks)  # W·h
        assert isinstance(x, Tensor)
        rows = x
        vectors = torch.stack([self.source, self.target], 3)  # (P, H, C, 2)
        apart = vectors[..., None] * torch.eye(heads)[:, None, None]  # (P, H, C, 2, H): a head sees its own columns only
        scores = transform(rows, apart.view(parties, heads * width, 2 * heads), graph.blocks)  # (N, 2·H)
        source, target = scores.t().reshape(2, -1)  # (H·N,) each
        kept = None
        if draws is not None and dropout:
            kept = draws.keep(1 - dropout, places.counts(graph.blocks), heads).t().flatten()
        by_head = rows.view(-1, heads, width).transpose(0, 1).reshape(-1, width)  # (H·N, C)
        out = attend(by_head, source, target, places, kept).view(heads, -1, width).transpose(0, 1).reshape(rows.shape)
        return out if self.bias is None else out + spread(self.bias, graph.blocks)


class GAT(Chain):
    """Veličković et al., ICLR 2018: H⁺_i = elu(Σ_j α_ij·W·h_j + b), α_i = softmax_{j ∈ N(i) ∪ i}(leaky(a_s·W·h_j + a_t·W·h_i)).

    `heads` heads of width hidden / heads; one head of width C in the last layer. Dropout falls on α as well.
    """

    def make(self, shape: Shape, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """W, a_s, a_t and b."""
        if shape.hidden % shape.heads:
            raise AtollError(f"gat needs hidden ({shape.hidden}) to be a multiple of heads ({shape.heads})")
        heads = 1 if len(self.layers) == self.last else shape.heads
        return Heads(shape, fan_in, heads, fan_out // heads, draws)

    def layer(self, place: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        out: Tensor = self.layers[place](x, graph, draws, self.shape.dropout)
        return elu(out) if place < self.last else out


class Initial(nn.Module):
    """A GCNII layer, the l-th of its model: (1−β)·Z + β·Z·W with Z = (1−α)·Â·H + α·H⁰."""

    def __init__(self, shape: Shape, place: int, draws: Draws | None) -> None:
        super().__init__()
        self.weight = parameter(draws, math.sqrt(6 / (2 * shape.hidden)), shape.parties, shape.hidden, shape.hidden)
        self.alpha, self.beta = shape.teleport, math.log(shape.theta / place + 1)

    def forward(self, x: Tensor, first: Tensor, graph: Graph) -> Tensor:
        """One product Z·((1−β)·I + β·W), then ReLU."""
        mixed = torch.lerp(graph.normalized_adjacency @ x, first, self.alpha)  # Z
        weight = self.beta * self.weight + (1 - self.beta) * torch.eye(self.weight.shape[1])
        return transform(mixed, weight, graph.blocks, relu=True)


class GCNII(Model):
    """Chen et al., ICML 2020: H⁺ = relu(((1−α)·Â·H + α·H⁰)·((1−β_l)·I + β_l·W_l)), β_l = log(θ/l + 1), H⁰ = relu(X·W + b)."""

    head_layer = "output"

    def __init__(self, shape: Shape, draws: Draws | None) -> None:
        super().__init__(shape)
        self.input = Dense(shape.parties, shape.features, shape.hidden, draws, bias=shape.bias)
        self.layers = nn.ModuleList(Initial(shape, place + 1, draws) for place in range(shape.layers))
        self.output = Dense(shape.parties, shape.hidden, shape.classes, draws, bias=shape.bias)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """H after the last convolution."""
        first: Tensor = self.input(self.inputs(graph, draws), graph.blocks, relu=True)  # H⁰
        x = first
        for layer in self.layers:
            x = layer(self.drop(x, graph, draws), first, graph)
        return x

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        out: Tensor = self.output(self.drop(self.embed(graph, draws), graph, draws), graph.blocks)
        return out


MODELS: dict[str, type[Chain] | type[GCNII]] = {
    "gcn": GCN,
    "sgc": SGC,
    "sage": SAGE,
    "gat": GAT,
    "gcnii": GCNII,
    "appnp": APPNP,
    "mlp": MLP,
}


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
    heads: int = 8,
    steps: int = 10,
    teleport: float = 0.1,
    theta: float = 0.5,
    draws: Draws | None = None,
) -> Model:
    """The model of that name for P parties; its first values have PyG's distributions, drawn by each party for itself."""
    if name not in MODELS:
        close = get_close_matches(name.lower(), MODELS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise AtollError(f"unknown model {name!r}: choose one of {', '.join(MODELS)}{hint}")
    if layers < 1 or hidden < 1:
        raise AtollError(f"a model needs at least one layer and one hidden unit, not layers={layers}, hidden={hidden}")
    shape = Shape(parties, features, classes, hidden, layers, dropout, input_dropout, bias, heads, steps, teleport, theta)
    return MODELS[name](shape, draws)


def get_parameters(model: nn.Module, *, copy: bool = False) -> dict[str, Tensor]:
    """The parameters by name, each (P, …), detached; live views unless `copy`."""
    return {name: p.detach().clone() if copy else p.detach() for name, p in model.named_parameters()}


@torch.no_grad()
def set_parameters(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Copy parameters in: (P, …) as they are, (…) to every party."""
    live = dict(model.named_parameters())
    if live.keys() != params.keys():
        odd = sorted(live.keys() ^ params.keys())
        raise AtollError(f"these parameters belong to another model: {', '.join(odd)} should be in both or neither")
    for name, p in live.items():
        if params[name].shape not in (p.shape, p.shape[1:]):
            shapes = f"{tuple(params[name].shape)}; the model has {tuple(p.shape)}, party first"
            raise AtollError(f"parameter {name!r} has shape {shapes}")
    for name, p in live.items():
        p.copy_(params[name])


def head(model: Model) -> set[str]:
    """The names of the last layer's parameters."""
    return {name for name, _ in model.named_parameters() if name.startswith(f"{model.head_layer}.")}
