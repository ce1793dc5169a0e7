"""Random graphs, on which an exported model is compared with the backbone it comes from."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.graph_level import GraphNetwork
from atoll.models.link_level import LinkNetwork


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


def random_items(backbone: Backbone, nodes: int, seed: int) -> Graph:
    """A random graph with the items of the backbone: small graphs, the last of them of one node, or pairs of nodes."""
    graph, generator = random_graph(backbone.shape, nodes, seed), torch.Generator().manual_seed(seed + 1)
    if isinstance(backbone, LinkNetwork):
        pairs = torch.randint(nodes, (2, nodes // 2), generator=generator)
        none = torch.zeros(nodes // 2, dtype=torch.bool)
        return replace(graph, pairs=pairs, y=torch.full((nodes // 2,), -1), train=none, val=none, test=none)
    if isinstance(backbone, GraphNetwork):
        bounds = torch.tensor([0, nodes // 4, nodes // 2, nodes - 1, nodes])
        ends = torch.searchsorted(bounds[1:], graph.edge_index.contiguous(), right=True)
        none = torch.zeros(4, dtype=torch.bool)
        y, edges = torch.full((4,), -1), graph.edge_index[:, ends[0] == ends[1]]
        return replace(graph, graph_ptr=bounds, edge_index=edges, y=y, train=none, val=none, test=none)
    return graph


def inputs_of(graph: Graph) -> dict[str, Tensor]:
    """What an exported model takes of a graph, by name."""
    assert isinstance(graph.x, Tensor)
    inputs = {"x": graph.x, "edge_index": graph.edge_index}
    if graph.graph_ptr is not None:
        inputs["ptr"] = graph.graph_ptr
    return inputs if graph.pairs is None else inputs | {"pairs": graph.pairs}
