"""Models for links of several types: per type a channel (a whole backbone) or a branch (a part of one network)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atoll.errors import AtollError
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.links import TypedCopies, touched
from atoll.graphs.minibatch import MiniBatch
from atoll.graphs.neighbors import Ints
from atoll.models.backbone import Backbone
from atoll.models.layers import Dense, SAGELayer
from atoll.models.parameters import Parameters, set_parameters
from atoll.random import Draws

Sample = Callable[[Graph, Ints], MiniBatch]  # a graph and rows of it → the batch of these rows


class RelationalModel:
    """K channels per party, whose outputs are added; the parameters are those of a backbone with the axes (P, K, …)."""

    def __init__(self, backbone: Backbone, graph: Graph, types: int) -> None:
        """`backbone` is for P·K parties: a party's channels one after the other."""
        self.backbone, self.types = backbone, types
        self.nodes = TypedCopies(graph, types)
        self.channels = _stacks_of(backbone, graph.parties, types)

    def __call__(self, types: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C): the sum of the channels' outputs, for links (L,) of these types; a party's channels share its draws."""
        repeated = None if draws is None else draws.repeated(self.types)
        stacked: Tensor = functional_call(self.backbone, self._stacked(), (self.nodes.linked(types), repeated))  # (N·K, C)
        return self.nodes.total @ stacked

    def of_batch(self, batch: MiniBatch, types: Tensor, sample: Sample, draws: Draws) -> Tensor:
        """(n, C): the same for the nodes of a mini-batch; `sample` takes a batch of its copies from their graph."""
        copies = self.nodes.copy_of[:, batch.index]  # (K, n)
        rows, place = copies.flatten().unique(return_inverse=True)  # type: ignore[no-untyped-call]
        sampled = sample(self.nodes.linked(types), rows.cpu().numpy())
        stacked: Tensor = functional_call(self.backbone, self._stacked(), (sampled, draws.repeated(self.types)))  # (n·K, C)
        return stacked[place.view_as(copies)].sum(0)

    @torch.no_grad()
    def embed_alone(self) -> Tensor:
        """(N, h): the sum of what the channels' hidden layers make of each node without any links."""
        set_parameters(self.backbone, self._stacked())
        return self.nodes.total @ self.backbone.embed(self.nodes.unlinked)

    @torch.no_grad()
    def load(self, channels: Mapping[str, Tensor]) -> None:
        """The same channels (K, …) for every party."""
        for name, value in self.channels.items():
            value.copy_(channels[name])

    def parameters(self) -> Parameters:
        """A copy of the channels, (P, K, …)."""
        return {name: value.detach().clone() for name, value in self.channels.items()}

    def _stacked(self) -> Parameters:
        """(P, K, …) → (P·K, …)."""
        return {name: value.flatten(0, 1) for name, value in self.channels.items()}


def _stacks_of(module: nn.Module, parties: int, types: int) -> dict[str, nn.Parameter]:
    """Zeros (P, K, …) for the parameters (P·K, …) of a module, on its device."""
    return {name: nn.Parameter(value.new_zeros(parties, types, *value.shape[1:])) for name, value in module.named_parameters()}


class SharedLayers(nn.Module):
    """H = X·W + b before the branches and Y = Z·W + b after them."""

    def __init__(self, parties: int, features: int, hidden: int, outputs: int, draws: Draws | None) -> None:
        super().__init__()
        self.input = Dense(parties, features, hidden, draws)
        self.output = Dense(parties, hidden, outputs, draws)


class Branch(nn.Module):
    """What one type of links makes of H: Z⁰ = H·W + b, then convolutions over the links of the type, without self loops.

    gcn: Z⁺ = relu(Â·Z·W + b) with Â = D^(-1/2)·A·D^(-1/2); sage: Z⁺ = relu(D⁻¹A·Z·W + Z·V + b); sgc: one of them, Â²·Z·W + b.
    """

    def __init__(self, model: str, parties: int, hidden: int, layers: int, draws: Draws | None, *, bias: bool = True) -> None:
        super().__init__()
        if model not in CONVOLUTIONS:
            raise AtollError(
                f"fedlit's branches are convolutions without self loops, of {', '.join(CONVOLUTIONS)}, not {model}; "
                "choose one of these, or fedlit_deep, whose channels are whole backbones."
            )
        self.linear = model == "sgc"
        self.projection = Dense(parties, hidden, hidden, draws)
        self.layers = nn.ModuleList()
        for _ in range(1 if self.linear else layers):
            self.layers.append(
                SAGELayer(parties, hidden, hidden, draws, bias=bias)
                if model == "sage"
                else Dense(parties, hidden, hidden, draws, bias=bias, glorot=model == "gcn")
            )

    def forward(self, x: Tensor, graph: Graph, draws: Draws | None, dropout: float) -> Tensor:
        """(N·K, h) → (N·K, h); zero for a node that no link of the type touches."""
        x = self.projection(x, graph.hop(0).blocks)
        for index, layer in enumerate(self.layers):
            hop, hops = graph.hop(index), 2 if self.linear else 1
            if self.linear and graph.hop(1) is not hop:  # sampled
                x, hop, hops = hop.unlooped_adjacency @ x, graph.hop(1), 1
            if isinstance(layer, SAGELayer):
                x = layer(x, hop).relu()
            else:
                x = layer(x, hop.blocks, hop.unlooped_adjacency, hops=hops, relu=not self.linear)
            if draws is not None and dropout:
                x = x * draws.keep(1 - dropout, hop.out_blocks.sizes, x.shape[1])
        return x * touched(graph)[:, None]


CONVOLUTIONS = ("gcn", "sgc", "sage")


class BranchedModel:
    """Shared layers with K branches per party between them, which are added; a branch's parameters have the axes (P, K, …)."""

    def __init__(self, shared: SharedLayers, branch: Branch, graph: Graph, types: int, dropout: float) -> None:
        """`branch` is for P·K parties: a party's branches one after the other."""
        self.shared, self.branch, self.types, self.dropout = shared, branch, types, dropout
        self.nodes = TypedCopies(graph, types)
        self.branches = _stacks_of(branch, graph.parties, types)

    @property
    def trainable(self) -> dict[str, Tensor]:
        """All parameters, each (P, …)."""
        return {**dict(self.shared.named_parameters(prefix="shared")), **{f"branches.{k}": v for k, v in self.branches.items()}}

    def embed(self, graph: Graph, draws: Draws | None = None, input_dropout: float = 0.0) -> Tensor:
        """H (N, h)."""
        dropped = draws is not None and input_dropout > 0
        features = graph.features.dropped(input_dropout, draws) if dropped and draws is not None else graph.features
        embedded: Tensor = self.shared.input(features, graph.blocks)
        return embedded

    def sum_branches(self, embedded: Tensor, types: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, h) → (N, h): the sum of the branches, for links (L,) of these types; a party's branches share its draws."""
        repeated = None if draws is None else draws.repeated(self.types)
        stacked = {name: value.flatten(0, 1) for name, value in self.branches.items()}
        arguments = (self.nodes.each @ embedded, self.nodes.linked(types), repeated, self.dropout)
        out: Tensor = functional_call(self.branch, stacked, arguments)  # (N·K, h)
        return self.nodes.total @ out

    @property
    def hops(self) -> int:
        """Over how many links a branch reads."""
        return 2 if self.branch.linear else len(self.branch.layers)

    def of_batch(self, batch: MiniBatch, types: Tensor, sample: Sample, draws: Draws, input_dropout: float = 0.0) -> Tensor:
        """(n, C): the output for the nodes of a mini-batch; `sample` takes a batch of its copies from their graph."""
        copies, linked, graph = self.nodes.copy_of[:, batch.index], self.nodes.linked(types), self.nodes.graph  # (K, n)
        rows, place = copies.flatten().unique(return_inverse=True)  # type: ignore[no-untyped-call]
        sampled = sample(linked, rows.cpu().numpy())
        read = sampled.index
        if sampled.sampled is not None:
            sampled.derived["touched"] = touched(linked)[rows]
            read = torch.from_numpy(sampled.sampled.hop(0).rows).to(rows.device)
        nodes, local = self.nodes.node_of[read].unique(return_inverse=True)  # type: ignore[no-untyped-call]
        blocks = Blocks(torch.bincount(graph.party[nodes], minlength=graph.parties).tolist(), graph.device)
        features = Features.of(graph.x[nodes] if isinstance(graph.x, Tensor) else graph.x[nodes.cpu().numpy()], blocks)
        embedded = self.shared.input(features.dropped(input_dropout, draws) if input_dropout else features, blocks)
        stacked = {name: value.flatten(0, 1) for name, value in self.branches.items()}
        arguments = (embedded[local], sampled, draws.repeated(self.types), self.dropout)
        out: Tensor = functional_call(self.branch, stacked, arguments)  # (n·K, h)
        return self.classify(out[place.view_as(copies)].sum(0), batch)

    def classify(self, summed: Tensor, graph: Graph) -> Tensor:
        """(N, h) → (N, C)."""
        out: Tensor = self.shared.output(summed, graph.blocks)
        return out

    def trained_nodes(self, types: Tensor) -> Tensor:
        """(P, K) training nodes that links of each type touch."""
        graph = self.nodes.linked(types)
        return graph.blocks.sum((touched(graph) & graph.train).long()).view(-1, self.types)

    @torch.no_grad()
    def load(self, shared: Mapping[str, Tensor], branches: Mapping[str, Tensor]) -> None:
        """The same parameters for every party: of the shared layers, and (K, …) of the branches."""
        set_parameters(self.shared, shared)
        for name, value in self.branches.items():
            value.copy_(branches[name])
