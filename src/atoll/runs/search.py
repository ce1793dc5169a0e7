"""Which values to try next: Optuna's samplers behind `ask` and `tell`, or every point of a grid.

Trials come in batches of a fixed size, and a batch is asked for when all results of the earlier ones are known. So the trials
depend on the seed, the space and the results alone: not on the number of processes, nor on how often the tuning was interrupted.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from atoll.errors import AtollError
from atoll.runs.space import Dimension, Range, Space, grid, inside

SAMPLERS = ("tpe", "random", "grid")
BATCH = 4  # trials that are asked for together
MAX_TRIALS = 100_000
DIGITS = 4


class Search(Protocol):
    """Proposes values and learns from their scores."""

    def ask(self) -> dict[str, Any]:
        """The values of the next trial."""
        ...

    def tell(self, index: int, score: float | None) -> None:
        """The score of the index-th answer of `ask`; None where the trial failed."""
        ...


def open_search(space: Space, sampler: str, seed: int, *, higher_is_better: bool, first: Mapping[str, Any]) -> Search:
    """The search by a sampler; `first` are the values of the first trial, the settings as they are without tuning."""
    if sampler not in SAMPLERS:
        raise AtollError(f"--sampler is {sampler!r} but must be one of {', '.join(SAMPLERS)}.")
    if not space:
        raise AtollError("There is nothing to tune: the search space has no setting that is not fixed; give another --space.")
    if sampler == "grid":
        return GridSearch(space, first)
    return OptunaSearch(space, sampler, seed, higher_is_better=higher_is_better, first=first)


def check_trials(trials: int, sampler: str, space: Space, first: Mapping[str, Any], option: str = "--trials") -> None:
    """Refuse a number of trials that is too small or, for a grid, does not cover it."""
    if not 2 <= trials <= MAX_TRIALS:
        raise AtollError(
            f"{option} is {trials} but must be at least 2 (the first is the settings as they are) and at most {MAX_TRIALS}."
        )
    if sampler == "grid" and trials < (size := GridSearch(space, first).size):
        raise AtollError(f"The grid needs {size} trials, but {option} is {trials}; give {size}, or list fewer values.")


class GridSearch:
    """The settings as they are, then every other point of the grid."""

    def __init__(self, space: Space, first: Mapping[str, Any]) -> None:
        self.points = [dict(first), *(point for point in grid(space) if point != dict(first))]
        self.asked = 0

    @property
    def size(self) -> int:
        """The number of trials that cover the grid."""
        return len(self.points)

    def ask(self) -> dict[str, Any]:
        """The next point."""
        self.asked += 1
        return dict(self.points[self.asked - 1])

    def tell(self, index: int, score: float | None) -> None:
        """A grid learns nothing."""


class OptunaSearch:
    """Optuna's tree-structured Parzen estimator, or random values; in memory, seeded."""

    def __init__(self, space: Space, sampler: str, seed: int, *, higher_is_better: bool, first: Mapping[str, Any]) -> None:
        self.optuna = _optuna()
        with _quiet(self.optuna):
            kinds = {"random": self.optuna.samplers.RandomSampler, "tpe": self.optuna.samplers.TPESampler}
            options = {"constant_liar": True} if sampler == "tpe" else {}  # a batch is spread out
            direction = "maximize" if higher_is_better else "minimize"
            self.study = self.optuna.create_study(sampler=kinds[sampler](seed=seed, **options), direction=direction)
        self.space = dict(space)
        self.distributions = {name: self._distribution(one) for name, one in space.items()}
        self.known: dict[int, Any] = {}  # Optuna's trials by the index of their `ask`
        self.first, self.asked = dict(first), 0
        self.inside = inside(space, first)  # otherwise Optuna does not know the first trial

    def _distribution(self, one: Dimension) -> Any:
        kinds = self.optuna.distributions
        if not isinstance(one, Range):
            return kinds.CategoricalDistribution(one.values)
        whole = isinstance(one.low, int) and isinstance(one.high, int)
        return (kinds.IntDistribution if whole else kinds.FloatDistribution)(one.low, one.high, log=one.log)

    def ask(self) -> dict[str, Any]:
        """The first values, then what the sampler proposes."""
        index, self.asked = self.asked, self.asked + 1
        with _quiet(self.optuna):
            if index == 0:
                if self.inside:
                    self.study.enqueue_trial(self.first)
                    self.known[0] = self.study.ask(self.distributions)
                return dict(self.first)
            trial = self.known[index] = self.study.ask(self.distributions)
        return {name: _rounded(trial.params[name], one) for name, one in self.space.items()}

    def tell(self, index: int, score: float | None) -> None:
        """A failed trial is told as such: the sampler passes it over."""
        if (trial := self.known.get(index)) is None:
            return
        with _quiet(self.optuna):
            failed = self.optuna.trial.TrialState.FAIL
            self.study.tell(trial, score, state=failed if score is None else None)


def _rounded(value: Any, one: Dimension) -> Any:
    """A number of a range to four significant digits, for people to read; other values as they are."""
    if not isinstance(one, Range) or isinstance(value, int):
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), one.low), one.high)


def _optuna() -> Any:
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise AtollError('Tuning needs Optuna, which is not installed; run `pip install "atoll[tune]"`.') from error
    return optuna


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without Optuna's own messages: what matters is in the result."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def version() -> str:
    """Optuna's version, which the result names."""
    return str(_optuna().__version__)
