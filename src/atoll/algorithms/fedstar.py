"""FedStar: Tan et al., AAAI 2023. What parties have in common is structure: an encoder of structure embeddings is shared.

A structure encoder runs beside the feature encoder and feeds it, layer by layer; only the structure encoder is averaged.

Payload bytes per round and party, w_S parameters in the structure encoder: down 4·w_S, up 4·w_S + 8 (the number of training
nodes).
The server sees the sum of the parties' structure encoders, weighted by their training nodes, and the sum of those nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from atoll.algorithms import State
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import NODE, PARTY, Fields, Schema, verb
from atoll.federation.declarations import COUNTS, WEIGHT
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.graphs.features import Features as Inputs
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop, SampledHop
from atoll.graphs.inference import Stage
from atoll.graphs.minibatch import MiniBatch
from atoll.graphs.structure import structure_embedding
from atoll.models import optim
from atoll.models.backbone import Chain, ModelShape
from atoll.models.graph_level import padded, read_out
from atoll.models.layers import Dense
from atoll.models.parameters import Parameters, get_parameters, scale, set_parameters, weighted
from atoll.models.registry import find_model
from atoll.models.user import short_name
from atoll.random import SERVER, Draws
from atoll.settings import BatchedTraining, setting

SCENARIOS = ("horizontal", "overlapping")
LEVELS = ("node", "graph")
TARGETS = ("class", "labels", "values")
EVALUATIONS = ("personal",)


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings and the structure embeddings."""

    walk_steps: int = setting(
        16, "Random walk embedding: return probabilities after 1 to N steps (k₁).", low=0, high=10**4, was="walks"
    )
    max_degree: int = setting(16, "Degree embedding: one-hot degrees 1, 2, …, N or more (k₂).", low=0, high=10**5, was="degrees")
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")
    head: str = setting(
        "linear",
        "From the last representations to the classes: one linear layer, or the authors' three.",
        choices=("linear", "authors"),
        since="0.2",
    )
    isolated: str = setting(
        "none",
        "Degree embedding of a node without neighbors: none, or that of degree one (the authors' code).",
        choices=("none", "one"),
        since="0.2",
    )


class StructureEncoder(nn.Module):
    """s⁰ = z·W + b; s⁺ = tanh(Â·s·W + b): the part that all parties share."""

    def __init__(self, settings: Settings, parties: int, layers: int, draws: Draws | None) -> None:
        super().__init__()
        self.embedding = Dense(parties, settings.walk_steps + settings.max_degree, settings.hidden, draws)
        self.layers = nn.ModuleList(Dense(parties, settings.hidden, settings.hidden, draws, glorot=True) for _ in range(layers))

    def forward(self, structure: Tensor, graph: Graph) -> list[Tensor]:
        """(N, k₁ + k₂) → s⁰ … s^L, each (N, hidden)."""
        encoded: list[Tensor] = [self.embedding(structure, graph.hop(0).blocks)]
        for index in range(len(self.layers)):
            encoded.append(self.layer(index, encoded[-1], graph.hop(index)))
        return encoded

    def layer(self, index: int, encoded: Tensor, graph: Hop) -> Tensor:
        """tanh(Â·s·W + b)."""
        return torch.tanh(self.layers[index](encoded, graph.blocks, graph.normalized_adjacency))


class FeatureEncoder(nn.Module):
    """h⁰ = x·W + b; h⁺ = relu(conv([h ‖ s])), conv a layer of the backbone; logits = [h^L ‖ s^L]·W + b: the personal part.

    With `head=authors` the logits are relu((z·W_hp + b)·W_post + b)·W + b with z = [h^L ‖ s^L]. Of graphs, z is read out over the
    nodes before W, and with `head=authors` between W_hp and W_post.
    """

    def __init__(self, settings: Settings, schema: Schema, draws: Draws | None, graph: Graph) -> None:
        super().__init__()
        parties, self.readout = graph.parties, settings.readout
        self.linear = settings.model == "sgc"  # one convolution and no activation
        self.input = padded(Dense(parties, schema.features, settings.hidden, draws), draws, graph.widths or (), 1)
        count = 1 if self.linear else settings.layers
        self.layers = nn.ModuleList(one_layer(settings, parties, draws) for _ in range(count))
        hidden, self.dropout, outputs = settings.hidden, settings.dropout, schema.outputs or schema.classes
        self.inner = nn.ModuleList()  # W_hp and W_post
        if settings.head == "authors":
            self.inner.extend(Dense(parties, width, hidden, draws) for width in (2 * hidden, hidden))
        self.output = padded(Dense(parties, hidden if self.inner else 2 * hidden, outputs, draws), draws, graph.classes or (), 2)

    def forward(self, encoded: list[Tensor], graph: Graph, draws: Draws | None = None) -> Tensor:
        """(I, C)."""
        x = self.embed(encoded, graph, draws)
        if graph.graph_ptr is None:
            return self.head(x, graph.hop(len(self.layers)), draws)
        out: Tensor = self.output(self.drop(self.read_out(x, graph), graph.items.sizes, draws), graph.items)
        return out

    def read_out(self, x: Tensor, graph: Graph) -> Tensor:
        """(N, 2·hidden) → (G, ·) what the last layer takes of each graph."""
        if not self.inner:
            return read_out(x, graph, self.readout)
        pooled = read_out(self.inner[0](x, graph.blocks), graph, self.readout)
        out: Tensor = self.inner[1](pooled, graph.items, relu=True)
        return out

    def embed(self, encoded: list[Tensor], graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, 2·hidden) [h^L ‖ s^L]."""
        x: Tensor = self.input(graph.hop(0).features, graph.hop(0).blocks)
        for index, structure in zip(range(len(self.layers)), encoded, strict=False):
            x = self.convolve(index, torch.cat([x, structure], 1), graph.hop(index), draws)
            x = self.chain(index).drop(x, graph.hop(index + 1), draws)
        return torch.cat([x, encoded[-1]], 1)

    def convolve(self, index: int, joined: Tensor, graph: Hop, draws: Draws | None = None) -> Tensor:
        """relu(conv([h ‖ s]))."""
        out = self.chain(index).layer(0, joined, graph, draws)
        return out if self.linear else out.relu()

    def head(self, x: Tensor, graph: Hop, draws: Draws | None = None) -> Tensor:
        """The logits of [h^L ‖ s^L]."""
        for layer in self.inner:
            x = layer(x, graph.blocks, relu=layer is self.inner[-1])
        out: Tensor = self.output(self.drop(x, graph.sizes, draws), graph.blocks)
        return out

    def drop(self, x: Tensor, sizes: Sequence[int], draws: Draws | None) -> Tensor:
        """Dropout before the last layer, where the authors' layers are before it."""
        if not self.inner or draws is None or not self.dropout:
            return x
        return x * draws.keep(1 - self.dropout, sizes, x.shape[1])

    def chain(self, index: int) -> Chain:
        """A convolution."""
        layer = self.layers[index]
        assert isinstance(layer, Chain)
        return layer


def one_layer(settings: Settings, parties: int, draws: Draws | None) -> Chain:
    """A single layer of the backbone from 2·hidden to hidden."""
    hidden = settings.hidden
    layer = find_model(settings.model)(ModelShape(parties, 2 * hidden, hidden, hidden, 1, settings.dropout), draws)
    if not isinstance(layer, Chain):
        raise AtollError(
            "fedstar joins structure to the features in every layer, which "
            f"{short_name(settings.model)} has no place for; choose gcn."
        )
    return layer


STRUCTURE = ModelForm(lambda settings, schema: StructureEncoder(settings, 1, depth(settings), None))


def depth(settings: Settings) -> int:
    """Layers of the structure encoder beside its embedding."""
    return 1 if settings.model == "sgc" else settings.layers


class Cohort(LocalTraining):
    """Parties with a feature encoder of their own and the server's structure encoder."""

    one_graph = "it keeps embeddings of each node's structure, which are those of one graph"
    no_backbone = "its network also takes embeddings of each node's structure, which it computes from the graph"
    memory = {"features": PARTY, "structure": PARTY, "optimizer": PARTY, "embedding": NODE}
    settings: Settings

    def setup(self) -> None:
        """The structure embeddings, both encoders, and one optimizer for both."""
        s, parties = self.settings, self.graph.parties
        self.features = FeatureEncoder(s, self.schema, self.first_draws("features"), self.graph).to(self.device)
        self.structure = StructureEncoder(s, parties, len(self.features.layers), None).to(self.device)
        both = {"features": self.features, "structure": self.structure}
        self.optimizer = optim.of_settings(s, nn.ModuleDict(both))
        width = s.walk_steps + s.max_degree
        empty = torch.zeros(self.graph.num_nodes, width, device=self.device)
        self.embedding = empty if self.blank else self.structures()

    def structures(self) -> Tensor:
        """(N, k₁ + k₂) the structure embeddings of the parties' nodes."""
        s = self.settings
        return structure_embedding(self.graph, s.walk_steps, s.max_degree, least=int(s.isolated == "one"))

    @verb(takes={"structure": STRUCTURE}, gives={"structure": STRUCTURE, "n": WEIGHT}, averaged={"structure": "n"})
    def fit(self, structure: Fields) -> Fields:
        """Both encoders take E epochs on the party's own training nodes; only the structure encoder goes back."""
        self.load(structure)
        self.train()
        return {"structure": weighted(self.structure, self.weights), "n": self.weights}

    @verb(takes={"structure": STRUCTURE}, gives=COUNTS)
    def evaluate(self, structure: Fields) -> Fields:  # type: ignore[override]  # not a model
        """Counts of each party's feature encoder with the server's structure encoder."""
        return self.task.counts(self.predict(structure), self.graph)

    def transfer(self, memory: Mapping[str, Any]) -> None:
        """The encoders; structure embeddings follow from the graph."""
        super().transfer({name: value for name, value in memory.items() if name != "embedding"})
        self.embedding = self.structures()

    def load(self, structure: Fields | None = None) -> None:
        """The server's structure encoder for every party."""
        if structure is not None:
            set_parameters(self.structure, structure)

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(I, C)."""
        out: Tensor = self.features(self.structure(self.embedding_of(graph.hop(0)), graph), graph, draws)
        return out

    def hidden(self, graph: Graph) -> Tensor:
        """(N, 2·hidden) [h^L ‖ s^L]; of graphs, what the last layer takes."""
        x = self.features.embed(self.structure(self.embedding_of(graph.hop(0)), graph), graph)
        return x if graph.graph_ptr is None else self.features.read_out(x, graph)

    def embedding_of(self, graph: Hop) -> Tensor:
        """The structure embeddings of the nodes that a hop reads."""
        if isinstance(graph, Graph) and graph.origin is not None:
            return self.embedding[graph.origin]
        return self.embedding[graph.index] if isinstance(graph, SampledHop | MiniBatch) else self.embedding

    @property
    def hops(self) -> int | None:
        """One per layer; None for SGC and APPNP, whose layers reach further than those of the structure encoder."""
        return len(self.features.layers) if self.features.chain(0).reach == 1 else None

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """The inputs, the layers of both encoders with h and s side by side, and the head."""
        if self.hops is None:
            return None
        layers = [Stage(1, partial(self.layer, index)) for index in range(self.hops)]
        return [Stage(0, self.enter), *layers, *([] if embed else [Stage(0, self.leave)])]

    def enter(self, x: Inputs | Tensor, graph: Hop) -> Tensor:
        """[h⁰ ‖ s⁰]."""
        structure = self.structure.embedding(self.embedding_of(graph), graph.blocks)
        return torch.cat([self.features.input(x, graph.blocks), structure], 1)

    def layer(self, index: int, x: Inputs | Tensor, graph: Hop) -> Tensor:
        """[h ‖ s] → [h⁺ ‖ s⁺]."""
        assert isinstance(x, Tensor)
        structure = x.chunk(2, 1)[1].contiguous()
        return torch.cat([self.features.convolve(index, x, graph), self.structure.layer(index, structure, graph)], 1)

    def leave(self, x: Inputs | Tensor, graph: Hop) -> Tensor:
        """The logits of [h^L ‖ s^L]."""
        assert isinstance(x, Tensor)
        return self.features.head(x, graph)


def start(federation: Federation, settings: Settings) -> State:
    """A first structure encoder."""
    encoder = StructureEncoder(settings, 1, depth(settings), Draws(federation.seed, [SERVER], "structure"))
    first: Parameters = {name: value[0] for name, value in get_parameters(encoder).items()}
    return {"structure": first}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Structure encoder ← Σ_k (n_k / n) of the parties'."""
    total = federation.total("fit", structure=state["structure"])
    return {"structure": scale(total["structure"], 1 / total["n"])}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, structure=state["structure"])
