"""Which nodes of a graph are counted where, and the counts of training nodes."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.deferred import Deferred
from atoll.device import precise
from atoll.graphs.graph import Graph, majority_class
from atoll.tasks.tallies import MAX_SUMS, Sums


class CountingPlan(NamedTuple):
    """What counting needs of a graph and its splits; made once per graph."""

    rows: Tensor  # labeled validation nodes, then test nodes, then, where they are counted, training nodes
    y: Tensor  # their labels
    group: Tensor  # the row of the counts that each adds to: parties 0 … P − 1 for validation, then for test, then for training
    groups: int  # such rows
    ones: Tensor  # 1 for every node
    minority: Tensor  # 1 where it is a minority node of the test set
    validated: int  # validation nodes
    evaluated: int  # validation and test nodes
    tested: Tensor  # the parties of the test nodes
    cells: Tensor  # where each of these stands in its party's confusion matrix, if class 0 were predicted


def counting_plan(graph: Graph, *, training: bool) -> CountingPlan:
    """The plan of a graph, with or without its training nodes."""
    name = f"counting.{training}"
    if name not in graph.derived:
        masks = (graph.val, graph.test, graph.train)[: 2 + training]
        parts = [(mask & (graph.y >= 0)).nonzero().squeeze(1) for mask in masks]
        rows = torch.cat(parts)
        split = torch.cat([torch.full_like(part, number) for number, part in enumerate(parts)])
        group, y, evaluated = graph.owner[rows] + split * graph.parties, graph.y[rows], len(parts[0]) + len(parts[1])
        minority = ((split == 1) & (graph.y != majority_class(graph))[rows]).float()
        graph.derived[name] = CountingPlan(  # type: ignore[assignment]  # a tuple of tensors
            rows=rows,
            y=y,
            group=group,
            groups=len(parts) * graph.parties,
            ones=torch.ones_like(minority),
            minority=minority,
            validated=len(parts[0]),
            evaluated=evaluated,
            tested=graph.owner[parts[1]],
            cells=graph.y[parts[1]] * graph.num_classes,
        )
    return graph.derived[name]  # type: ignore[return-value]


def split_sums(plan: CountingPlan, columns: Tensor, parties: int) -> list[Tensor | Deferred]:
    """Each party's sums over validation nodes (P, 3), test nodes (P, 5) and, where they are counted, training nodes (P, 2).

    `columns` (n, 5): one, correct, loss, minority, correct minority. Of too many parties to write sums out, by their items.
    """
    kept = slice(0, 3), slice(0, 5), slice(0, 3, 2)  # columns
    if 5 * plan.groups <= MAX_SUMS:
        columns = precise(columns)
        sums = columns.new_zeros(plan.groups, 5).index_add_(0, plan.group, columns)
        return [sums[split * parties : (split + 1) * parties, kept[split]] for split in range(plan.groups // parties)]
    ends = [0, plan.validated, plan.evaluated, len(plan.rows)]
    return [
        Sums(plan.group[first:last], columns[first:last, kept[split]], split * parties, parties)
        for split, (first, last) in enumerate(pairwise(ends[: plan.groups // parties + 1]))
    ]


def training_counts(out: Tensor, graph: Graph) -> Tensor:
    """(P, 2) each party's labeled training nodes and the sum of their losses; nodes that are not predicted (NaN) do not count."""
    if "training.rows" not in graph.derived:
        graph.derived["training.rows"] = (graph.train & (graph.y >= 0)).nonzero().squeeze(1)
    rows = graph.derived["training.rows"]
    logits = out.index_select(0, rows)
    losses = F.cross_entropy(logits, graph.y.index_select(0, rows), reduction="none")
    if bool(losses.isnan().any()):
        predicted = ~logits.isnan().all(1)
        rows, losses = rows[predicted], losses[predicted]
    columns = precise(torch.stack([torch.ones_like(losses), losses], 1))
    return columns.new_zeros(graph.parties, 2).index_add_(0, graph.owner[rows], columns)


def evaluated_rows(graph: Graph) -> Tensor:
    """The rows that are counted: labeled validation nodes, then labeled test nodes."""
    return counting_plan(graph, training=False).rows


def share(part: float, whole: float) -> float:
    """part / whole; between 0 and 1 for noised counts too, which may be impossible, and 0 of nothing."""
    return min(max(part, 0.0), whole) / whole if whole > 0 else 0.0
