"""GraphSAGE: Hamilton et al., NeurIPS 2017."""

from __future__ import annotations

from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.hops import Hop
from atoll.models.backbone import Chain, normalized
from atoll.models.layers import SAGELayer
from atoll.random import Draws


class GraphSAGE(Chain):
    """Hamilton et al., NeurIPS 2017, with the mean aggregator: H⁺ = relu(D⁻¹A·H·W + H·V + b)."""

    weighted_edges = False
    reach = 1
    takes_norm = True

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """W, b and V."""
        return SAGELayer(self.shape.parties, fan_in, fan_out, draws, bias=self.next_has_bias)

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        out: Tensor = self.layers[index](x, graph)
        return normalized(self.layers[index], out, graph, draws).relu() if index < self.last else out
