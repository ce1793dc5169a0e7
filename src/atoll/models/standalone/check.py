"""Random graphs, on which an exported model is compared with the backbone it comes from."""

from __future__ import annotations

import torch

from atoll.graphs.graph import Graph
from atoll.models.backbone import ModelShape


def random_graph(shape: ModelShape, nodes: int, seed: int) -> Graph:
    """Normal features, about two directed edges per node, a node without any; a function of its arguments alone."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, shape.features, generator=generator)
    edges = torch.randint(nodes - 1, (2, 2 * nodes), generator=generator)  # the last node has none
    none = torch.zeros(nodes, dtype=torch.bool)
    return Graph(
        x=x,
        edge_index=torch.unique(edges[:, edges[0] != edges[1]], dim=1),
        y=torch.full((nodes,), -1),
        train=none,
        val=none,
        test=none,
        num_classes=shape.classes,
        ids=torch.arange(nodes),
        ptr=torch.tensor([0, nodes]),
    )
