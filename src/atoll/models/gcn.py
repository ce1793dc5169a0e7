"""GCN: Kipf & Welling, ICLR 2017."""

from __future__ import annotations

from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.models.backbone import Chain, normalized
from atoll.random import Draws


class GCN(Chain):
    """Kipf & Welling, ICLR 2017: H⁺ = relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2)."""

    glorot = True
    reach = 1
    takes_norm = True
    propagates_first = True

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Â·(H·W) + b; with `propagate_first` (Â·X)·W + b of a graph's own dense features."""
        relu = index < self.last
        if index == 0 and self.shape.propagate_first and isinstance(graph, Graph) and x is graph.features and graph.dense:
            out: Tensor = self.layers[0](graph.propagated_features, graph.blocks, relu=relu and not self.normed)
        else:
            out = self.layers[index](x, graph.blocks, graph.normalized_adjacency, relu=relu and not self.normed)
        return normalized(self.layers[index], out, graph, draws).relu() if relu and self.normed else out
