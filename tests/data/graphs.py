"""Small graphs for the data tests, and what it means that two graphs are the same."""

import numpy as np
import torch

from atoll.data.builder import build_graph
from atoll.graphs.graph import Graph


def make_graph(nodes: int, edges: int, seed: int, classes: int = 3) -> Graph:
    """A random whole graph; the last node is isolated and a tenth is unlabeled."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, nodes)
    y[:classes] = np.arange(classes)
    y[rng.random(nodes) < 0.1] = -1
    role = np.where(y >= 0, rng.integers(0, 4, nodes), 3)
    return build_graph(
        rng.standard_normal((nodes, 7)).astype(np.float32) * (rng.random((nodes, 7)) < 0.5),
        rng.integers(0, max(nodes - 1, 1), (2, edges)),
        y,
        (role == 0, role == 1, role == 2),
        where="test",
        num_classes=classes,
    )


def dense(graph: Graph) -> torch.Tensor:
    """The features as a dense tensor, whatever they are kept as."""
    return graph.x if isinstance(graph.x, torch.Tensor) else torch.from_numpy(graph.x.toarray())


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    """The edges as a set of pairs."""
    source, target = graph.edge_index.tolist()
    return set(zip(source, target, strict=True))


def sorted_edges(graph: Graph) -> torch.Tensor:
    """The edges as sorted numbers."""
    return (graph.edge_index[0] * graph.num_nodes + graph.edge_index[1]).sort().values


def same(a: Graph, b: Graph) -> bool:
    """Whether two graphs agree in everything they hold."""
    tensors = ("y", "train", "val", "test", "ids", "ptr")
    return (
        type(a.x) is type(b.x)
        and a.x.shape == b.x.shape
        and not bool(abs(a.x - b.x).sum())
        and torch.equal(sorted_edges(a), sorted_edges(b))
        and all(torch.equal(getattr(a, name), getattr(b, name)) for name in tensors)
        and (a.num_classes, a.class_names, a.widths) == (b.num_classes, b.class_names, b.widths)
    )
