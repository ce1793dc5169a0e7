"""Class-wise reliability: how much each class of a party's training nodes can be trusted, from features and topology."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.similarity import neighbor_cosines
from atoll.graphs.structure import return_probabilities
from atoll.random import Draws


def class_reliability(graph: Graph, topology: str, steps: int, draws: Draws) -> Tensor:
    """(P, C) Φ_kc = Σ_i φ_i over party k's training nodes of class c, φ_i = (1 + Σ_{j ∈ N(i)} cos(e_i, e_j)) / (|N(i)| + 1).

    e_i = [x_i ‖ t_i]. Deviation: a negative sum, which features of both signs can give, counts as 0.
    """
    beside = {
        "return": lambda: return_probabilities(graph.host, steps).to(graph.device),
        "authors": lambda: walk_numbers(graph, steps, draws),
    }
    degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes)
    each = (1 + neighbor_cosines(graph, beside[topology]() if topology in beside else None)) / (degree + 1)  # φ_i
    labeled = graph.train & (graph.y >= 0)
    cells = (graph.party * graph.num_classes + graph.y)[labeled]
    sums = each.new_zeros(graph.parties * graph.num_classes).index_add(0, cells, each[labeled])
    return sums.view(graph.parties, graph.num_classes).clamp(min=0)


def walk_numbers(graph: Graph, steps: int, draws: Draws) -> Tensor:
    """(N, steps·(steps + 1)/2) the numbers, within the party, of the nodes on walks of 1, 2, …, `steps` nodes from each node.

    As in the authors' code, whose transition matrix A∘D⁻¹ has nothing beside its diagonal, and goes through a softmax: a walk
    stays with probability e^s / (e^s + N_k − 1), s = 1/(d + 1), and else goes to any other node of the party.
    """
    starts, sizes = graph.ptr[:-1][graph.party], graph.ptr.diff()[graph.party]
    first = torch.arange(graph.num_nodes, device=graph.device) - starts
    weight = torch.exp(1 / (torch.bincount(graph.edge_index[1], minlength=graph.num_nodes) + 1.0))
    columns = [first]
    for length in range(2, steps + 1):
        columns.append(first)
        here = first
        for _ in range(length - 1):
            stay, which = uniform_rows(graph, draws).unbind(1)
            own = weight[starts + here]
            other = (which * (sizes - 1)).long().minimum(sizes - 2)
            other = other + (other >= here).long()
            here = torch.where((stay < own / (own + sizes - 1)) | (sizes < 2), here, other)
            columns.append(here)
    return torch.stack(columns, 1).float()


def uniform_rows(graph: Graph, draws: Draws) -> Tensor:
    """(N, 2) uniform numbers, each party's its own."""
    drawn = [torch.rand(size, 2, generator=one) for size, one in zip(graph.sizes, draws.generators, strict=True)]
    return torch.cat(drawn).to(graph.device)


def shares(reliability: Tensor, over: str) -> Tensor:
    """(P, C) Φ divided by its sum over the parties, or over a party's classes; 0/0 is 0."""
    total = reliability.sum(0 if over == "parties" else 1, keepdim=True)
    return torch.where(total > 0, reliability / total, reliability.new_zeros(()))
