"""GIN: Xu et al., ICLR 2019."""

from __future__ import annotations

from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.hops import Hop
from atoll.models.backbone import Chain
from atoll.models.layers import GINLayer
from atoll.random import Draws


class GIN(Chain):
    """Xu et al., ICLR 2019, with ε = 0: H⁺ = relu(MLP((A + I)·H)), the MLP of two layers with `hidden` units between them."""

    weighted_edges = False
    reach = 1

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """The two layers of the MLP."""
        return GINLayer(self.shape.parties, fan_in, self.shape.hidden, fan_out, draws, bias=self.shape.bias)

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        out: Tensor = self.layers[index](x, graph, relu=index < self.last)
        return out
