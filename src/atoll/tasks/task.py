"""What a task is: a loss, counts that parties may send, metrics made of their sums, and the metrics' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask
from atoll.random import Draws


@dataclass(frozen=True)
class Metric:
    """How one metric is shown."""

    words: str  # "minority accuracy"
    percent: bool = False  # a share from 0 to 1, shown in %
    higher_is_better: bool = True
    heading: str = ""  # of a column, where the words are too long


@dataclass(frozen=True)
class CountField:
    """One field of a party's counts: its shape and what each number may be at most.

    `most` is "items" for a number of nodes or other items, "sum" for a sum of real numbers that are not negative, and "real" for
    one of numbers that may be; a tuple has one for each column.
    A sum in a tuple is over the items that the first "items" column counts: noise limits the mean of them.
    """

    shape: tuple[int | str, ...]  # "classes" stands for the number of classes
    most: str | tuple[str, ...] = "items"
    whole: bool = False  # int64 instead of float64
    optional: bool = False  # whether an algorithm may leave it out of its replies


class Task(Protocol):
    """What is predicted and how it is judged. It holds no data, so that it is the same at every site.

    Every loss is the sum over parties of each party's mean, and every count has a leading party axis. Metrics of validation
    items begin with `val_`, those of training items with `train_`; `val_loss` selects the best round unless a run says otherwise.

    Examples:
        >>> import atoll
        >>> task = atoll.TASKS.find("node-classification")
        >>> task.outputs(classes=7), list(task.headings)[:2]
        (7, ['accuracy', 'minority_accuracy'])
    """

    @property
    def name(self) -> str:
        """Its name in configurations, result.json and an algorithm's `TASKS`."""
        ...

    @property
    def score(self) -> str:
        """The metric whose validation value may select the best round in place of the loss; higher is better."""
        ...

    @property
    def headings(self) -> Mapping[str, Metric]:
        """Every metric by name, the most important first."""
        ...

    @property
    def fields(self) -> Mapping[str, CountField]:
        """The fields that `counts` replies: anything else is refused."""
        ...

    def outputs(self, classes: int) -> int:
        """Columns of a model's output."""
        ...

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """One epoch: graphs whose training items are to be fitted; the whole graph, once, where nothing is drawn."""
        ...

    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train") -> Tensor:
        """Σ_p of each party's mean over its labeled items in the mask; a party without any counts 0."""
        ...

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's sums over its items, (P, …): all that an evaluation sends."""
        ...

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Metrics from the counts of one party or the sums over several; undefined ones are left out."""
        ...

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """Metrics of each party from counts (P, …), as `party_…`; None for a party without such items."""
        ...
