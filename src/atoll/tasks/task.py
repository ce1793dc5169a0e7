"""What a task is: a loss, counts that parties may send, metrics made of their sums, and the metrics' names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from atoll.errors import AtollError
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


@dataclass(frozen=True)
class TaskOptions:
    """What a task may need to know of a run; the same at the server and at every site."""

    select_by: str = "loss"
    track: tuple[str, ...] = ()  # further metrics of validation items
    class_names: tuple[str, ...] = ()
    classes: int = 0
    parties: int = 0
    noised: bool = False  # whether counts are noised, and so written out
    class_weight: str = "none"
    threshold: str = "none"
    value_loss: str = "squared"
    value_scale: str = "federation"
    training: bool = True  # whether training items may be counted too: not where noise protects them


class Task(Protocol):
    """What is predicted and how it is judged. It holds no data, so that it is the same at every site.

    Every loss is the sum over parties of each party's mean, and every count has a leading party axis. Metrics of validation
    items begin with `val_`, those of training items with `train_`; `val_loss` selects the best round unless a run says otherwise.
    A task inherits from this class: members that are not abstract are then as for classes of nodes that a run cannot adjust.

    Examples:
        >>> import atoll
        >>> task = atoll.TASKS.find("node-classification")
        >>> task.outputs(classes=7), list(task.headings)[:2]
        (7, ['accuracy', 'minority_accuracy'])
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in configurations, result.json and an algorithm's `TASKS`."""

    @property
    @abstractmethod
    def score(self) -> str:
        """The metric whose validation value may select the best round in place of the loss; higher is better."""

    @property
    @abstractmethod
    def headings(self) -> Mapping[str, Metric]:
        """Every metric by name, the most important first."""

    @property
    @abstractmethod
    def fields(self) -> Mapping[str, CountField]:
        """The fields that `counts` replies: anything else is refused."""

    @abstractmethod
    def outputs(self, classes: int) -> int:
        """Columns of a model's output."""

    @abstractmethod
    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train") -> Tensor:
        """Σ_p of each party's mean over its labeled items in the mask; a party without any counts 0."""

    @abstractmethod
    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's sums over its items, (P, …): all that an evaluation sends."""

    @abstractmethod
    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Metrics from the counts of one party or the sums over several; undefined ones are left out."""

    @property
    def level(self) -> str:
        """What an item is: a `node`, a `graph` or a `link`. It decides which network is made and which algorithms fit."""
        return "node"

    @property
    def target(self) -> str:
        """What is predicted of an item: its `class`, `labels` or `values`. It decides what data and which algorithms fit."""
        return "class"

    @property
    def class_metrics(self) -> Mapping[str, Metric]:
        """Metrics of one class that a run may select by or track, as in `recall[CLASS]`."""
        return {}

    @property
    def balanced(self) -> bool:
        """Whether the loss needs the federation's class counts before the first round (a `ClassTask` then)."""
        return False

    @property
    def by_federation(self) -> bool:
        """Whether the loss needs the scale of the federation's values before the first round (a `ScaledTask` then)."""
        return False

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """One epoch: graphs whose training items are to be fitted; the whole graph, once, where nothing is drawn."""
        yield graph

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """Metrics of each party from counts (P, …), as `party_…`; None for a party without such items."""
        return {}

    def configured(self, options: TaskOptions) -> Task:
        """The task as a run wants it; what it does not know is refused."""
        if options.track:
            raise AtollError(f"track is {','.join(options.track)}, but {self.name} counts nothing further; leave it out.")
        for name in ("class_weight", "threshold"):
            if getattr(options, name) != "none":
                raise AtollError(f"{name} is {getattr(options, name)!r}, but {self.name} does not use it; leave it out.")
        return self


class ClassTask(Task, Protocol):
    """A task whose items have one class each, for algorithms that compute losses themselves (FedGL, GLASU, GFL-APPNP)."""

    @property
    @abstractmethod
    def class_weights(self) -> tuple[float, ...]:
        """What each class weighs in the loss; empty where all weigh 1."""

    @abstractmethod
    def weighted(self, weights: tuple[float, ...]) -> ClassTask:
        """The task with these class weights in its loss."""

    @abstractmethod
    def item_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """(n,) the loss of each row of outputs; 0 where its class is −1."""

    @abstractmethod
    def item_weights(self, targets: Tensor) -> Tensor | float:
        """(…) the weight of each row of one-hot targets (…, C) in the loss."""


class ScaledTask(Task, Protocol):
    """A task whose values are fitted in units of their mean and deviation."""

    @property
    @abstractmethod
    def scale(self) -> tuple[tuple[float, float], ...]:
        """Mean and deviation of each value; empty where they are not known, or the data's units are used."""

    @abstractmethod
    def scaled(self, scale: Sequence[Sequence[float]]) -> ScaledTask:
        """The task with this scale."""


def check_task(task: Any, where: str) -> None:
    """Refuse a task that lacks a member which algorithms and runs use."""
    missing = [name for name in MEMBERS if not hasattr(task, name)]
    if missing:
        raise AtollError(f"{where} has no {', '.join(missing)}; inherit from atoll.Task, which says what each is.")


MEMBERS = tuple(name for name in vars(Task) if not name.startswith("_"))
