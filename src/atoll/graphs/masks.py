"""Masks: which nodes count, what each of them weighs in its party's mean, and random batches of them."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.device import precise
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.segments import occurrences
from atoll.random import Draws

Mask = str | Tensor  # "train", "val", "test", or (N,) bool
MASKS = ("train", "val", "test")
ABSENT = -1e9  # the logit of a class that a party does not have; not −∞, whose product with a zero target is NaN


def resolve(graph: Graph, mask: Mask | None) -> Tensor:
    """(N,) bool: the graph's mask of that name, or the mask itself; all nodes for None."""
    if mask is None:
        return torch.ones(len(graph.y), dtype=torch.bool, device=graph.device)
    if isinstance(mask, Tensor):
        return mask
    if mask not in MASKS:
        raise AtollError(f"there is no mask {mask!r}; a graph has train, val and test")
    selected: Tensor = getattr(graph, mask)
    return selected


def cache_key(graph: Graph, mask: Mask | None) -> str | None:
    """The name under which results for a mask are kept with the graph; None for a mask that is not one of the graph's own."""
    if not isinstance(mask, Tensor):
        return mask or "all"
    return next((name for name in MASKS if getattr(graph, name) is mask), None)


def node_weights(graph: Graph, mask: Mask | None = None) -> Tensor:
    """(N,) 1/n_p at the n_p masked nodes of party p, 0 elsewhere; kept with the graph for its own masks."""
    name = cache_key(graph, mask)
    if name is None:
        return party_shares(graph, resolve(graph, mask))
    key = f"weights.{name}"
    if key not in graph.derived:
        graph.derived[key] = party_shares(graph, resolve(graph, mask))
    weights: Tensor = graph.derived[key]
    return weights


def party_shares(graph: Graph, selected: Tensor) -> Tensor:
    """(N,) 1/n_p at the n_p selected nodes of party p, 0 elsewhere."""
    counts = graph.items.sum(precise(selected))
    return (selected / counts.clamp(min=1)[graph.owner]).to(torch.float32)


def class_shares(graph: Graph, selected: Tensor) -> Tensor:
    """(N,) shares that sum to 1 for each party and are spread evenly over the classes of its selected nodes."""
    cells = graph.owner * graph.num_classes + graph.y.clamp(min=0)
    counts = occurrences(cells[selected], graph.parties * graph.num_classes)
    classes = (counts.view(graph.parties, -1) > 0).sum(1)
    return (selected / precise((counts[cells] * classes[graph.owner]).clamp(min=1))).to(torch.float32)


def party_sums(values: Tensor, graph: Graph, mask: Mask | None = None) -> Tensor:
    """(N, …) → (P, …): each party's sum over its (masked) nodes."""
    if mask is not None:
        selected = resolve(graph, mask).view(-1, *[1] * (values.ndim - 1))
        values = torch.where(selected, values, values.new_zeros(()))
    return graph.items.sum(values)


def random_batch(graph: Graph, size: int, draws: Draws) -> Mask:
    """`size` training nodes per party, each party drawing its own; all of a party that has no more, and everybody's for 0."""
    if size <= 0 or size >= (most := max(graph.train_counts)):
        return "train"
    rows = graph.train_rows
    starts = graph.num_train.cumsum(0) - graph.num_train
    keys = torch.full((graph.parties, most), 2.0, device=graph.device)
    cells = graph.owner[rows], torch.arange(len(rows), device=graph.device) - starts[graph.owner[rows]]
    counts = zip(graph.train_counts, draws.generators, strict=True)  # with no more than `size`, there is nothing to draw
    drawn = [torch.rand(count, generator=one) if count > size else torch.zeros(count) for count, one in counts]
    keys[cells] = torch.cat(drawn).to(graph.device)
    selected = torch.zeros_like(graph.train)
    selected[rows] = (keys.argsort(1).argsort(1) < size)[cells]
    return selected


def only_own(out: Tensor, graph: Graph) -> Tensor:
    """The logits with `ABSENT` in the columns of classes that a graph's party does not have."""
    if graph.classes is None:
        return out
    if "absent" not in graph.derived:
        present = torch.arange(graph.num_classes) < torch.tensor(graph.classes)[:, None]  # (P, C)
        graph.derived["absent"] = ~present.to(graph.device)[graph.owner]
    return out.masked_fill(graph.derived["absent"], ABSENT)
