"""What parties predict, and on which graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from atoll.federation.messages import Message
from atoll.graphs.graph import Graph
from atoll.parties import Parties


@dataclass(frozen=True, eq=False)
class Observation:
    """What some parties predict."""

    parties: Parties
    graph: Graph
    output: Tensor  # (N, C); NaN for a node that the method leaves out of an evaluation
    hidden: Tensor | None  # (N, h) the last hidden representation, where a single model has one
    personal: bool = False  # whether the parties were sent something of their own


class HasGraphs(Protocol):
    """Parties that train on one graph and may be judged on another."""

    graph: Graph
    clean_graph: Graph | None


@contextmanager
def graph_for(cohort: HasGraphs, message: Message, *, judged: bool = False) -> Iterator[None]:
    """Let `cohort.graph` be the clean graph while an evaluation is answered, where training uses a damaged one.

    With `judged`, where items are graphs, those alone that validate or test.
    """
    before = cohort.graph
    if cohort.clean_graph is not None and not message.training:
        cohort.graph = cohort.clean_graph
    if judged:
        cohort.graph = cohort.graph.judged
    try:
        yield
    finally:
        cohort.graph = before
