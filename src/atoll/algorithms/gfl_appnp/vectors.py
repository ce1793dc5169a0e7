"""The parties' feature vectors in GFL-APPNP: which of them train, which are shared, and how they vote for a node's class."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from atoll.device import precise
from atoll.graphs.graph import Graph


def roles(graph: Graph) -> dict[str, Tensor]:
    """(P,) which parties train, and which have labels for training, validation or test."""
    if "trains" not in graph.derived:
        known = graph.y >= 0
        graph.derived["trains"] = graph.blocks.sum((known & graph.train).long()) > 0
        graph.derived["labeled"] = graph.blocks.sum((known & (graph.train | graph.val | graph.test)).long()) > 0
    return {name: graph.derived[name] for name in ("trains", "labeled")}


def training_vectors(graph: Graph) -> Graph:
    """Each party's training vectors; all vectors of a party without any."""
    known = graph.train & (graph.y >= 0)
    rows = (known | ~roles(graph)["trains"][graph.party]).nonzero()[:, 0]
    if len(rows) == graph.num_nodes:
        return graph
    sizes = torch.bincount(graph.party[rows], minlength=graph.parties)
    return replace(graph.rows(rows), ptr=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


def votes(logits: Tensor, graph: Graph) -> Tensor:
    """(P, 2) whether a party has test vectors, and whether most of them are given its class."""
    rows = (graph.test & (graph.y >= 0)).nonzero()[:, 0]
    party = graph.party[rows]
    ballots = logits.new_zeros(graph.parties, graph.num_classes)
    ballots.index_put_((party, logits[rows].argmax(1)), logits.new_ones(len(rows)), accumulate=True)
    label = torch.full((graph.parties,), -1, device=graph.device).index_copy_(0, party, graph.y[rows])
    return precise(torch.stack([label >= 0, (ballots.argmax(1) == label) & (label >= 0)], 1))
