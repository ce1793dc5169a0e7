"""Link prediction: is there an edge between two nodes of a party? Messages pass along training edges only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll.device import precise
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.negatives import NonEdges, pair_codes, pairs_of
from atoll.graphs.pairs import stepping, with_pairs
from atoll.random import Draws
from atoll.tasks import class_weights, link_ranking
from atoll.tasks.node_classification import NodeClassification
from atoll.tasks.task import CountField, TaskOptions


@dataclass(frozen=True)
class LinkPrediction(NodeClassification):
    """Every pair of nodes is an edge (class 1) or not; the model's output (M, 2) are the logits 0 and s, its score.

    Training edges are the only items that train by themselves: each epoch adds as many pairs that are not training edges, drawn
    by the party. What it does not know, its own validation and test edges included, may be among them.
    """

    name: ClassVar[str] = "link-prediction"  # type: ignore[misc]
    level: ClassVar[str] = "link"
    score: ClassVar[str] = "auc"  # type: ignore[misc]
    headings = link_ranking.HEADINGS | {
        name: NodeClassification.headings[name] for name in ("accuracy", "macro_f1", "loss", "brier", "calibration_error")
    }

    @cached_property
    def fields(self) -> dict[str, CountField]:
        """The usual counts, and each party's own ranking metrics beside a 1 where it has them."""
        return super().fields | link_ranking.FIELDS

    def configured(self, options: TaskOptions) -> LinkPrediction:
        """The task as a run wants it."""
        if options.class_weight != class_weights.NONE:
            raise AtollError("class_weight is for classes of items; link prediction trains on as many edges as other pairs.")
        for setting, names in {"select_by": (options.select_by,), "track": options.track}.items():
            if of_test := next((name for name in names if name in link_ranking.TEST[len(link_ranking.VALIDATION) :]), None):
                raise AtollError(f"{setting} is {of_test}, which is measured on test pairs alone; use auc or average_precision.")
        counted = ("score", *link_ranking.VALIDATION)  # anyway
        select_by = "loss" if options.select_by in counted else options.select_by
        track = tuple(name for name in options.track if name not in counted)
        made = super().configured(replace(options, select_by=select_by, track=track, training=False))
        assert isinstance(made, LinkPrediction)
        return made

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """The training edges, or step after step `size` of each party's, each time with as many other pairs, drawn again."""
        positives = party_pairs(graph)
        longest = max((pairs.shape[1] for pairs in positives), default=0)
        if 0 < size < longest:
            positives = [shuffled(pairs, size, own) for pairs, own in zip(positives, draws.generators, strict=True)]
        step = size if 0 < size < longest else longest
        for first in range(0, longest, max(step, 1)):
            yield drawn_batch(graph, [pairs[:, first : first + step] for pairs in positives], draws)

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's counts on its validation and test pairs, as of classes, and its ranking metrics."""
        return super().counts(out, graph) | link_ranking.counts(precise(out[:, 1] - out[:, 0]), graph)

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Of classes, pooled; ranking metrics are means over the parties that have them."""
        usual = {name: value for name, value in super().metrics(sums).items() if "minority" not in name}
        return usual | link_ranking.metrics(sums)

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """AUC and average precision of each party, and its accuracy."""
        usual = {name: values for name, values in super().by_party(counts).items() if "minority" not in name}
        return link_ranking.by_party(counts) | usual


def shuffled(pairs: Tensor, size: int, own: torch.Generator) -> Tensor:
    """A party's pairs in random order; with no more than `size` as they are, as of a party alone: then nothing is drawn."""
    count = pairs.shape[1]
    return pairs[:, torch.randperm(count, generator=own)] if count > size else pairs


def party_pairs(graph: Graph) -> list[Tensor]:
    """Each party's training edges, as (2, n_p) rows of the party."""
    if "links.train" not in graph.derived:
        assert graph.pairs is not None
        graph.derived["links.train"] = (graph.pairs - graph.ptr[:-1][graph.owner])[:, graph.train].cpu()
    return list(torch.split(graph.derived["links.train"], graph.num_train.tolist(), dim=1))


def known_edges(graph: Graph) -> list[NonEdges]:
    """What each party knows of its edges: those that train and those that messages pass along. Kept with the graph."""
    if "links.known" not in graph.derived:
        starts, edges = graph.ptr[:-1].cpu(), graph.edge_index.cpu()
        owner = torch.searchsorted(graph.ptr[1:].cpu(), edges[0].contiguous(), right=True)
        local = edges - starts[owner]
        known = []
        for party, (nodes, training) in enumerate(zip(graph.sizes, party_pairs(graph), strict=True)):
            mine = torch.cat([local[:, owner == party], training], 1)
            known.append(NonEdges(nodes, pair_codes(mine, nodes).unique()))  # type: ignore[no-untyped-call]
        graph.derived["links.known"] = known  # type: ignore[assignment]  # kept where tensors are
    return graph.derived["links.known"]  # type: ignore[return-value]


def drawn_batch(graph: Graph, positives: list[Tensor], draws: Draws) -> Graph:
    """The graph whose pairs are these edges of each party and as many pairs that are not edges the party knows.

    The latter are drawn from each party's own generator.
    """
    pairs, labels = [], []
    for source, start, known, edges in zip(
        draws.generators, graph.bounds[:-1].tolist(), known_edges(graph), positives, strict=True
    ):
        others = pairs_of(known.draw(edges.shape[1], source), known.nodes)
        pairs.append(torch.cat([edges, others], 1) + start)
        labels += [torch.ones(edges.shape[1], dtype=torch.int64), torch.zeros(others.shape[1], dtype=torch.int64)]
    y = torch.cat(labels).to(graph.device)
    nobody = torch.zeros(len(y), dtype=torch.bool, device=graph.device)
    return stepping(with_pairs(graph, torch.cat(pairs, 1).to(graph.device), y, ~nobody, nobody, nobody))


TASK = LinkPrediction()
