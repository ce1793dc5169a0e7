"""A GIN layer in one function beside the same layer of two."""

from __future__ import annotations

import pytest
import torch

from atoll.graphs.features import Kept
from atoll.graphs.gin import gin
from atoll.models.layers import GINLayer
from atoll.random import Draws
from atoll.runs import config, runner


@pytest.mark.parametrize("dropout", [0.0, 0.5, 0.3])
@pytest.mark.parametrize("whole", [True, False])
def test_one_function_is_two_layers(dropout: float, whole: bool) -> None:
    """Outputs and gradients, bit for bit; without `whole` the rows are constant and have no gradient."""
    graph = runner.prepare(config.resolve("local", dataset="csbm", parties=3, values={"nodes": 60})).party_data.parts
    layer = GINLayer(3, 5, 6, 4, Draws(0, range(3), "model"))
    rows = Draws(0, range(1), "rows").normal(graph.num_nodes, 5)[0].requires_grad_(whole)
    direction = Draws(0, range(1), "direction").normal(graph.num_nodes, 4)[0]

    def kept() -> Kept | None:
        return Kept(*Draws(0, range(3), "masks").masks(1 - dropout, graph.sizes, 4)) if dropout else None

    assert layer.first.bias is not None
    assert layer.second.bias is not None
    weights = (layer.first.weight, layer.first.bias), (layer.second.weight, layer.second.bias)
    inputs = [*layer.parameters(), *([rows] if whole else [])]
    outs = gin(rows, *weights, graph.summed_adjacency, graph.blocks, kept()), layer(rows, graph, relu=True, kept=kept())
    found = [[out.detach(), *torch.autograd.grad((out * direction).sum(), inputs)] for out in outs]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
