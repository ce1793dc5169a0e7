"""Networks whose items are graphs or pairs of nodes, around the modules of `torch_modules` or `pyg_modules`.

Nothing here imports atoll. A subclass, which an export writes, names the class of the convolutions or of the encoder as `part`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class NetworkOfGraphs(nn.Module):
    """H⁰ = X·W + b; convolutions H⁺ = relu(conv(H)); z = sum, mean or max of H over each graph; relu(z·V + c)·U + d."""

    part: ClassVar[type[nn.Module]]

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, readout: str, part: dict[str, Any]
    ) -> None:
        super().__init__()
        self.readout = readout
        self.input = nn.Linear(in_channels, hidden_channels)
        self.layers = nn.ModuleList(self.part(**part) for _ in range(num_layers))
        self.post = nn.Linear(hidden_channels, hidden_channels)
        self.output = nn.Linear(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, ptr: Tensor) -> Tensor:
        """Logits (G, C); graph g has the rows ptr[g] to ptr[g + 1], as in a batch of PyG."""
        x = self.input(x)
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        begins = torch.zeros(x.size(0) + 1, dtype=torch.int64, device=x.device)
        graph = begins.index_add(0, ptr[1:], torch.ones_like(ptr[1:])).cumsum(0)[:-1]  # (N,) of each row
        rows = x.new_zeros(ptr.size(0) - 1, x.size(1))
        if self.readout == "max":  # of rows that are not negative
            rows = rows.scatter_reduce(0, graph.unsqueeze(1).expand(-1, x.size(1)), x, "amax")
        else:
            rows = rows.index_add(0, graph, x)
        if self.readout == "mean":
            rows = rows / (ptr[1:] - ptr[:-1]).unsqueeze(1)
        logits: Tensor = self.output(self.post(rows).relu())
        return logits


class NetworkOfPairs(nn.Module):
    """Z = encoder(X, A); the score of a pair is s(z_u, z_v), its logits are 0 (no edge) and s (an edge).

    dot: z_u·z_v. bilinear: z_uᵀ·½(W + Wᵀ)·z_v. mlp: relu((z_u ∘ z_v)·V + c)·U + d.
    """

    part: ClassVar[type[nn.Module]]

    def __init__(self, hidden_channels: int, decoder: str, part: dict[str, Any]) -> None:
        super().__init__()
        self.kind = decoder
        self.encoder = self.part(**part)
        self.decoder: nn.Module = nn.Identity()
        if decoder == "bilinear":
            self.decoder = nn.Linear(hidden_channels, hidden_channels, bias=False)
        elif decoder == "mlp":
            self.decoder = nn.Sequential(nn.Linear(hidden_channels, hidden_channels), nn.ReLU(), nn.Linear(hidden_channels, 1))

    def forward(self, x: Tensor, edge_index: Tensor, pairs: Tensor) -> Tensor:
        """Logits (M, 2) of pairs of rows (2, M), in any order of the two."""
        z = self.encoder(x, edge_index)
        one, other = z.index_select(0, pairs[0]), z.index_select(0, pairs[1])
        score = one * other
        if self.kind == "bilinear":
            score = 0.5 * (self.decoder(one) * other + self.decoder(other) * one)
        elif self.kind == "mlp":
            score = self.decoder(score)
        score = score.sum(1, keepdim=True)
        return torch.cat([torch.zeros_like(score), score], 1)
