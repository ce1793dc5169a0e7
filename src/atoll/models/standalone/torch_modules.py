"""The backbones in plain torch: `model(x, edge_index)` gives logits (N, C); TorchScript, torch.export and ONNX take them, too.

Nothing here imports atoll, and nothing depends on the numbers of nodes and edges. Edges go from source to target, each once;
loops are left out, as the networks that have them add their own.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def unlooped(edge_index: Tensor, x: Tensor) -> Tensor:
    """(E,) 1 for an edge between two nodes, 0 for a loop."""
    return (edge_index[0] != edge_index[1]).to(x.dtype)


def add_to_targets(start: Tensor, edge_index: Tensor, values: Tensor) -> Tensor:
    """(N, …) `start` plus the values (E, …) of the edges into each node."""
    return start.index_add(0, edge_index[1], values)


def inverse_root_degree(edge_index: Tensor, x: Tensor) -> Tensor:
    """(N, 1) D^(-1/2), D the in-degrees with one loop per node."""
    ones = torch.ones_like(x[:, 0])
    return add_to_targets(ones, edge_index, unlooped(edge_index, x)).rsqrt().unsqueeze(1)


def propagate(x: Tensor, edge_index: Tensor, scale: Tensor) -> Tensor:
    """Â·x with Â = D^(-1/2)(A + I)D^(-1/2), `scale` the D^(-1/2)."""
    x = x * scale
    near = x.index_select(0, edge_index[0]) * unlooped(edge_index, x).unsqueeze(1)
    return add_to_targets(x, edge_index, near) * scale


def mean_of_neighbors(x: Tensor, edge_index: Tensor) -> Tensor:
    """(N, h) D⁻¹A·x; 0 for a node without neighbors."""
    kept = unlooped(edge_index, x)
    degree = add_to_targets(torch.zeros_like(x[:, 0]), edge_index, kept)
    total = add_to_targets(torch.zeros_like(x), edge_index, x.index_select(0, edge_index[0]) * kept.unsqueeze(1))
    return total / degree.clamp(min=1).unsqueeze(1)


class TorchMLP(nn.Module):
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


class TorchGCNLayer(nn.Module):
    """Âᵏ·H·W + b, k the hops."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool, hops: int = 1) -> None:
        super().__init__()
        self.hops = hops
        self.linear = nn.Linear(in_channels, out_channels, bias=False)  # W
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: Tensor, edge_index: Tensor, scale: Tensor) -> Tensor:
        """(N, in) → (N, out); `scale` is D^(-1/2)."""
        x = self.linear(x)
        for _ in range(self.hops):
            x = propagate(x, edge_index, scale)
        return x if self.bias is None else x + self.bias


class TorchGCN(nn.Module):
    """Kipf & Welling, ICLR 2017: H⁺ = relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2)."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(TorchGCNLayer(widths[i], widths[i + 1], bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        scale = inverse_root_degree(edge_index, x)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index, scale)
        return x


class TorchGCNHead(nn.Module):
    """Convolutions relu(Â·H·W + b), Â = D^(-1/2)(A + I)D^(-1/2), below a linear layer."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * num_layers
        self.layers = nn.ModuleList(TorchGCNLayer(widths[i], widths[i + 1], bias) for i in range(num_layers))
        self.output = nn.Linear(hidden_channels, out_channels, bias=bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        scale = inverse_root_degree(edge_index, x)
        for layer in self.layers:
            x = layer(x, edge_index, scale).relu()
        logits: Tensor = self.output(x)
        return logits


class TorchSGC(nn.Module):
    """Wu et al., ICML 2019: Â²·X·W + b."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TorchGCNLayer(in_channels, out_channels, bias, hops=2)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        scale = inverse_root_degree(edge_index, x)
        for layer in self.layers:
            x = layer(x, edge_index, scale)
        return x


class TorchSAGELayer(nn.Module):
    """D⁻¹A·H·W + H·V + b."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool) -> None:
        super().__init__()
        self.neighbors = nn.Linear(in_channels, out_channels, bias=False)  # W
        self.root = nn.Linear(in_channels, out_channels, bias=bias)  # V, b

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        root: Tensor = self.root(x)
        return mean_of_neighbors(self.neighbors(x), edge_index) + root


class TorchGraphSAGE(nn.Module):
    """Hamilton et al., NeurIPS 2017, with the mean aggregator: H⁺ = relu(D⁻¹A·H·W + H·V + b)."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(TorchSAGELayer(widths[i], widths[i + 1], bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index)
        return x


class TorchGINLayer(nn.Module):
    """An MLP of the sum of a node and its neighbors."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, bias: bool) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, hidden_channels, bias=bias)
        self.second = nn.Linear(hidden_channels, out_channels, bias=bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        near = x.index_select(0, edge_index[0]) * unlooped(edge_index, x).unsqueeze(1)
        out: Tensor = self.second(self.first(add_to_targets(x, edge_index, near)).relu())
        return out


class TorchGIN(nn.Module):
    """Xu et al., ICLR 2019, with ε = 0: H⁺ = relu(MLP((A + I)·H)), the MLP of two layers with `hidden_channels` between them."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(TorchGINLayer(widths[i], hidden_channels, widths[i + 1], bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index)
        return x


class TorchGATLayer(nn.Module):
    """Attention of several heads side by side over a node's neighbors and itself."""

    def __init__(self, in_channels: int, out_channels: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.linear = nn.Linear(in_channels, heads * out_channels, bias=False)  # W
        self.source = nn.Parameter(torch.zeros(heads, out_channels))  # a_s
        self.target = nn.Parameter(torch.zeros(heads, out_channels))  # a_t
        self.bias = nn.Parameter(torch.zeros(heads * out_channels)) if bias else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N, in) → (N, heads·out)."""
        rows = self.linear(x)
        rows = rows.view(-1, self.heads, self.source.size(1))  # (N, H, C)
        source, target = (rows * self.source).sum(2), (rows * self.target).sum(2)  # (N, H)
        near = F.leaky_relu(source.index_select(0, edge_index[0]) + target.index_select(0, edge_index[1]), 0.2)  # (E, H)
        loop = F.leaky_relu(source + target, 0.2)  # (N, H): each node's own score
        peak = loop.scatter_reduce(0, edge_index[1].unsqueeze(1).expand(-1, self.heads), near, "amax")
        near = (near - peak.index_select(0, edge_index[1])).exp() * unlooped(edge_index, x).unsqueeze(1)
        loop = (loop - peak).exp()
        total = add_to_targets(loop, edge_index, near).unsqueeze(2)
        messages = rows.index_select(0, edge_index[0]) * near.unsqueeze(2)
        out = (add_to_targets(rows * loop.unsqueeze(2), edge_index, messages) / total).flatten(1)
        return out if self.bias is None else out + self.bias


class TorchGAT(nn.Module):
    """Veličković et al., ICLR 2018: H⁺_i = elu(Σ_j α_ij·W·h_j + b), α_i = softmax_{j ∈ N(i) ∪ i}(leaky(a_s·W·h_j + a_t·W·h_i)).

    `heads` heads of width hidden / heads; the last layer has one.
    """

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True, heads: int = 8
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1)
        inner = [TorchGATLayer(widths[i], hidden_channels // heads, heads, bias) for i in range(num_layers - 1)]
        self.layers = nn.ModuleList([*inner, TorchGATLayer(widths[-1], out_channels, 1, bias)])

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else F.elu(x), edge_index)
        return x


class TorchGCNII(nn.Module):
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
        self.teleport, self.theta = teleport, theta  # α, θ
        self.input = nn.Linear(in_channels, hidden_channels, bias=bias)
        self.layers = nn.ModuleList(nn.Linear(hidden_channels, hidden_channels, bias=False) for _ in range(num_layers))
        self.output = nn.Linear(hidden_channels, out_channels, bias=bias)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        scale = inverse_root_degree(edge_index, x)
        initial = self.input(x).relu()
        x = initial
        for index, layer in enumerate(self.layers):
            beta = math.log(self.theta / (index + 1) + 1)
            mixed = (1 - self.teleport) * propagate(x, edge_index, scale) + self.teleport * initial
            x = ((1 - beta) * mixed + beta * layer(mixed)).relu()
        logits: Tensor = self.output(x)
        return logits


class TorchAPPNP(nn.Module):
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
        self.steps, self.teleport = steps, teleport  # K, α

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        scale = inverse_root_degree(edge_index, x)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu())
        initial = x
        for _ in range(self.steps):
            x = (1 - self.teleport) * propagate(x, edge_index, scale) + self.teleport * initial
        return x


class TorchGAMLP(nn.Module):
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

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        scale = inverse_root_degree(edge_index, x)
        hops = [x]
        for _ in range(self.steps):
            hops.append(propagate(hops[-1], edge_index, scale))
        every = torch.stack(hops, 1)  # (N, K + 1, in)
        reference = (every * self.reference.t()).sum(2).sum(1, keepdim=True)
        shares = torch.softmax(torch.sigmoid(reference + (every @ self.own).squeeze(2) + self.offset), 1)
        x = (every * shares.unsqueeze(2)).sum(1)
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else torch.where(x > 0, x, self.slope * x))
        return x


class TorchChebLayer(nn.Module):
    """Σ_k T_k(L̂)·H·W_k + b, L̂ = −D^(-1/2)·A·D^(-1/2), D the number of edges out of a node."""

    def __init__(self, in_channels: int, out_channels: int, order: int, bias: bool) -> None:
        super().__init__()
        self.lins = nn.ModuleList(nn.Linear(in_channels, out_channels, bias=False) for _ in range(order))  # W_0 … W_{K−1}
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """(N, in) → (N, out)."""
        kept = unlooped(edge_index, x)
        degree = torch.zeros_like(x[:, 0]).index_add(0, edge_index[0], kept)
        scale = torch.where(degree > 0, degree, torch.ones_like(degree)).rsqrt() * (degree > 0).to(x.dtype)
        weight = kept * scale.index_select(0, edge_index[0]) * scale.index_select(0, edge_index[1])
        before, now = x, x  # T_{k−2}·x, T_{k−1}·x
        out = torch.zeros(0)
        for k, linear in enumerate(self.lins):
            if k > 0:
                near = now.index_select(0, edge_index[0]) * weight.unsqueeze(1)
                moved = -add_to_targets(torch.zeros_like(now), edge_index, near)
                before, now = now, moved if k == 1 else 2 * moved - before
            out = linear(now) if k == 0 else out + linear(now)
        return out if self.bias is None else out + self.bias


class TorchCheb(nn.Module):
    """Defferrard et al., NeurIPS 2016: H⁺ = relu(Σ_k T_k(L̂)·H·W_k + b), T_k the Chebyshev polynomials."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, num_layers: int, bias: bool = True, order: int = 2
    ) -> None:
        super().__init__()
        widths = [in_channels] + [hidden_channels] * (num_layers - 1) + [out_channels]
        self.layers = nn.ModuleList(TorchChebLayer(widths[i], widths[i + 1], order, bias) for i in range(num_layers))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits (N, C)."""
        for index, layer in enumerate(self.layers):
            x = layer(x if index == 0 else x.relu(), edge_index)
        return x


class TorchDisen(nn.Module):
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
        kept = unlooped(edge_index, x).unsqueeze(1)
        x = self.input(x).relu().unflatten(1, [self.factors, -1])  # (N, F, h)
        for _ in range(self.layers):
            unit = F.normalize(x, dim=2)
            near, x = unit.index_select(0, edge_index[0]), unit
            for _ in range(self.iterations):
                share = torch.softmax((near * x.index_select(0, edge_index[1])).sum(2), 1) * kept
                x = F.normalize(add_to_targets(unit, edge_index, near * share.unsqueeze(2)), dim=2)
        logits: Tensor = self.output(x.flatten(1))
        return logits
