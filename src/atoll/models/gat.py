"""GAT: Veličković et al., ICLR 2018."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.attention import elu
from atoll.graphs.features import Features
from atoll.graphs.hops import Hop
from atoll.models.backbone import Chain, normalized
from atoll.models.layers import AttentionLayer
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class Settings:
    """The attention heads."""

    heads: int = setting(8, "Attention heads of width hidden / heads each; the last layer has one.", low=1, high=1000)


class GAT(Chain):
    """Veličković et al., ICLR 2018: H⁺_i = elu(Σ_j α_ij·W·h_j + b), α_i = softmax_{j ∈ N(i) ∪ i}(leaky(a_s·W·h_j + a_t·W·h_i)).

    `heads` heads of width hidden / heads; one head of width C in the last layer. Dropout is applied to α as well.
    """

    settings_type = Settings
    reach = 1
    takes_norm = True
    weighted_edges = False
    attends = True
    ignores_edge_weight = True

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """W, a_s, a_t and b."""
        hidden, heads = self.shape.hidden, self.settings.heads
        if hidden % heads:
            raise AtollError(f"gat needs hidden ({hidden}) to be a multiple of model.heads ({heads}).")
        heads = 1 if len(self.layers) == self.last else heads
        return AttentionLayer(self.shape.parties, fan_in, heads, fan_out // heads, draws, bias=self.next_has_bias)

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        out: Tensor = self.layers[index](x, graph, draws, self.shape.dropout)
        return elu(normalized(self.layers[index], out, graph, draws)) if index < self.last else out
