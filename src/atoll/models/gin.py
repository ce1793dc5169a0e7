"""GIN: Xu et al., ICLR 2019."""

from __future__ import annotations

from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.hops import Hop
from atoll.models.backbone import Chain, normalized
from atoll.models.layers import GINLayer
from atoll.random import Draws


class GIN(Chain):
    """Xu et al., ICLR 2019, with ε = 0: H⁺ = relu(MLP((A + I)·H)), the MLP of two layers with `hidden` units between them."""

    weighted_edges = False
    reach = 1
    takes_norm = True

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """The two layers of the MLP."""
        shape = self.shape
        return GINLayer(shape.parties, fan_in, shape.hidden, fan_out, draws, bias=shape.bias, last_bias=self.next_has_bias)

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        relu = index < self.last
        out: Tensor = self.layers[index](x, graph, relu=relu and not self.normed)
        return normalized(self.layers[index], out, graph, draws).relu() if relu and self.normed else out
