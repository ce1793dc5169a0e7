"""The backbones of PyG's layers: `model(x, edge_index)` gives logits (N, C). Nothing here imports atoll.

Edges go from source to target, each once; loops are left out, as the networks that have them add their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_geometric.nn import APPNP, ChebConv, GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv, SGConv
from torch_geometric.utils import remove_self_loops


class PyGMLP(nn.Module):
    """Multilayer perceptron: H⁺ = relu(H·W + b). The edges are not used."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(nn.Linear(widths[i], widths[i + 1], bias=bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu())
        return x


class PyGGCN(nn.Module):
    """Kipf & Welling, ICLR 2017: H⁺ = relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2)."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(GCNConv(widths[i], widths[i + 1], bias=bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index)
        return x


class PyGGCNHead(nn.Module):
    """Convolutions relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2), below a linear layer."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * num_layers
        self.layers = nn.ModuleList(GCNConv(widths[i], widths[i + 1], bias=bias) for i in range(num_layers))
        self.output = nn.Linear(hidden_channels, out_channels, bias=bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        logits: Tensor = self.output(x)
        return logits


class PyGSGC(nn.Module):
    """Wu et al., ICML 2019: Â²·X·W + b."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([SGConv(in_channels, out_channels, K=2, bias=bias)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        logits: Tensor = self.layers[0](x, edge_index)
        return logits


class PyGGraphSAGE(nn.Module):
    """Hamilton et al., NeurIPS 2017, with the mean aggregator: H⁺ = relu(D⁻¹A·H·W + H·V + b)."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(SAGEConv(widths[i], widths[i + 1], bias=bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        edge_index, _ = remove_self_loops(edge_index)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index)
        return x


class PyGGIN(nn.Module):
    """Xu et al., ICLR 2019, with ε = 0: H⁺ = relu(MLP((A + I)·H)), the MLP of two layers with `hidden_channels` between them."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList()
        for i in range(num_layers):
            first, second = nn.Linear(widths[i], hidden_channels, bias=bias), nn.Linear(hidden_channels, widths[i + 1], bias=bias)
            self.layers.append(GINConv(nn.Sequential(first, nn.ReLU(), second)))
            self.layers[-1].register_buffer("eps", torch.zeros(1), persistent=False)  # ε = 0 is not a parameter

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        edge_index, _ = remove_self_loops(edge_index)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index)
        return x


class PyGGAT(nn.Module):
    """Veličković et al., ICLR 2018: H⁺_i = elu(Σ_j α_ij·W·h_j + b), α_i = softmax_{j ∈ N(i) ∪ i}(leaky(a_s·W·h_j + a_t·W·h_i)).

    `heads` heads of width hidden / heads; the last layer has one.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True, heads: int = 8
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1)
        inner = [GATConv(widths[i], hidden_channels // heads, heads=heads, bias=bias) for i in range(num_layers - 1)]
        self.layers = nn.ModuleList([*inner, GATConv(widths[-1], out_channels, heads=1, bias=bias)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else F.elu(x), edge_index)
        return x


class PyGGCNII(nn.Module):
    """Chen et al., ICML 2020: H⁺ = relu((1−β_l)·Z + β_l·Z·W_l), Z = (1−α)·Â·H + α·H⁰, β_l = log(θ/l + 1), H⁰ = relu(X·W + b)."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        bias: bool = True,
        teleport: float = 0.1,
        theta: float = 0.5,
    ) -> None:
        super().__init__()
        self.input = nn.Linear(in_channels, hidden_channels, bias=bias)
        self.layers = nn.ModuleList(
            GCN2Conv(hidden_channels, alpha=teleport, theta=theta, layer=number) for number in range(1, num_layers + 1)
        )
        self.output = nn.Linear(hidden_channels, out_channels, bias=bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        initial = self.input(x).relu()
        x = initial
        for layer in self.layers:
            x = layer(x, initial, edge_index).relu()
        logits: Tensor = self.output(x)
        return logits


class PyGAPPNP(nn.Module):
    """Gasteiger et al., ICLR 2019: Z⁰ = MLP(X), Zᵏ⁺¹ = (1−α)·Â·Zᵏ + α·Z⁰, logits = Zᴷ."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        bias: bool = True,
        steps: int = 10,
        teleport: float = 0.1,
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(nn.Linear(widths[i], widths[i + 1], bias=bias) for i in range(num_layers))
        self.propagation = APPNP(steps, teleport)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu())
        logits: Tensor = self.propagation(x, edge_index)
        return logits


class PyGGAMLP(nn.Module):
    """Zhang et al., KDD 2022, with "JK" attention: an MLP of Σ_k a_k·Âᵏ·x, a = softmax(σ(scores of a node's hops)), PReLU."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True, steps: int = 3
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(nn.Linear(widths[i], widths[i + 1], bias=bias) for i in range(num_layers))
        self.reference = nn.Parameter(torch.zeros(in_channels, steps + 1))  # r_0 … r_K
        self.own = nn.Parameter(torch.zeros(in_channels, 1))
        if bias:
            self.offset = nn.Parameter(torch.zeros(1))
        else:
            self.register_buffer("offset", torch.zeros(1), persistent=False)
        self.slope = nn.Parameter(torch.zeros(1))  # of the PReLUs
        self.steps = steps
        self.propagation = APPNP(1, 0.0)  # Â·x

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        hops = [x]
        for _ in range(self.steps):
            hops.append(self.propagation(hops[-1], edge_index))
        every = torch.stack(hops, 1)  # (N, K + 1, in)
        reference = (every * self.reference.t()).sum(2).sum(1, keepdim=True)
        shares = torch.softmax(torch.sigmoid(reference + (every @ self.own).squeeze(2) + self.offset), 1)
        x = (every * shares.unsqueeze(2)).sum(1)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else torch.where(x > 0, x, self.slope * x))
        return x


class PyGCheb(nn.Module):
    """Defferrard et al., NeurIPS 2016: H⁺ = relu(Σ_k T_k(L̂)·H·W_k + b), T_k the Chebyshev polynomials."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True, order: int = 2
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(ChebConv(widths[i], widths[i + 1], order, bias=bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        edge_index, _ = remove_self_loops(edge_index)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index, lambda_max=2.0)
        return x


class PyGDisen(nn.Module):
    """Ma et al., ICML 2019: relu(x·W + b) in factors of unit length, neighbor routing in every layer, then a linear layer."""

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int,
        bias: bool = True,
        factors: int = 4,
        iterations: int = 6,
    ) -> None:
        super().__init__()
        self.input = nn.Linear(in_channels, hidden_channels, bias=bias)
        self.output = nn.Linear(hidden_channels, out_channels, bias=bias)
        self.layers, self.factors, self.iterations = num_layers, factors, iterations

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        edge_index, _ = remove_self_loops(edge_index)
        source, target = edge_index
        x = self.input(x).relu().unflatten(1, [self.factors, -1])  # (N, F, h)
        for _ in range(self.layers):
            unit = F.normalize(x, dim=2)
            near, x = unit[source], unit
            for _ in range(self.iterations):
                share = torch.softmax((near * x[target]).sum(2), 1)
                x = F.normalize(unit.index_add(0, target, near * share.unsqueeze(2)), dim=2)
        logits: Tensor = self.output(x.flatten(1))
        return logits
