"""Graph classification: a party holds many small graphs, each with one class; batches of graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, only_own
from atoll.tasks.levels import GraphItems
from atoll.tasks.node_classification import NodeClassification
from atoll.tasks.task import TaskOptions


@dataclass(frozen=True)
class GraphClassification(GraphItems, NodeClassification):
    """Every small graph has at most one class; the model's output (G, C) are logits.

    Parties may have different classes: the columns that a party does not have are never chosen, and have gradient zero.
    """

    name: ClassVar[str] = "graph-classification"  # type: ignore[misc]
    headings = {name: NodeClassification.headings[name] for name in ("accuracy", "macro_f1")} | NodeClassification.headings

    def configured(self, options: TaskOptions) -> GraphClassification:
        """The task as a run wants it; training graphs are not judged, which would make an evaluation five times as long."""
        made = super().configured(replace(options, training=False))
        assert isinstance(made, GraphClassification)
        return made

    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train", *, balance: bool = False) -> Tensor:
        """Σ_p mean_{g ∈ mask_p} −log softmax(out_g)[y_g] over the party's own classes; a party without such graphs counts 0."""
        return super().loss(only_own(out, graph), graph, mask, balance=balance)

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's counts on its validation and test graphs; see `NodeClassification.counts`."""
        return super().counts(only_own(out, graph), graph)


TASK = GraphClassification()
