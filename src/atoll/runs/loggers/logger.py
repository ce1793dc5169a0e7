"""What a logger is: opened when a run begins, called with each of its rounds, closed when it ends."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.runs.columns import Columns, column_of
from atoll.runs.folder import Folder

if TYPE_CHECKING:
    from atoll.runs.config import Config
    from atoll.runs.result import Result

RoundCallback = Callable[[Mapping[str, Any], int], bool | None]  # called with a round's row and the number of rounds


class Logger(Protocol):
    """Called with each round's row, as `result.history` names its columns, and the number of rounds; closed when the run ends.

    It may also have a method `configure(config)`, called before the first round with what config.toml holds, and a method
    `finish(result)`, called after the last one with what result.json holds. If a call returns False, the run stops.

    Examples:
        >>> import atoll
        >>> accuracies = []
        >>> def keep(row, rounds):  # a plain function is enough
        ...     accuracies.append(row["test_accuracy"])
        >>> result = atoll.run("local", dataset="csbm", parties=2, rounds=2, nodes=200, loggers=[keep])
        >>> len(accuracies)
        2
    """

    def __enter__(self) -> Logger: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def __call__(self, row: Mapping[str, Any], rounds: int) -> bool | None:
        """Record one round."""
        ...


class MakeLogger(Protocol):
    """Makes a logger for a run: its label, and its folder where it has one."""

    def __call__(self, label: str, folder: Path | None) -> Logger:
        """A logger of that run."""
        ...


class RunLoggers:
    """Several loggers, or plain functions, as one: opened together, each called with every round, closed together.

    It is called with the lines of the history and calls the loggers with rows that have clear names and totals.
    """

    def __init__(
        self, callbacks: Sequence[Logger | RoundCallback], folder: Path | None = None, config: Config | None = None
    ) -> None:
        self.callbacks, self.folder, self.config = callbacks, folder, config
        self.stack = ExitStack()
        self.opened: list[RoundCallback] = []
        self.lines: list[Mapping[str, Any]] = []
        self.columns = Columns()

    def __enter__(self) -> RunLoggers:
        with ExitStack() as stack:
            for each in self.callbacks:
                self.opened.append(stack.enter_context(each) if isinstance(each, AbstractContextManager) else each)
                if self.config is not None and hasattr(each, "configure"):
                    each.configure(self.config.to_dict())
            self.stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool | None:
        return self.stack.__exit__(kind, error, trace)

    def __call__(self, line: Mapping[str, Any], rounds: int) -> bool:
        """Call every logger with a round; False where one of them wants the run to stop."""
        if not self.opened:
            return True
        row = self._row(line)
        answers = [each(row, rounds) for each in self.opened]
        return not any(isinstance(answer, bool | np.bool_) and not answer for answer in answers)

    def _row(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a line; where it does not follow the last one (a resumed run), totals are those of the lines before it."""
        number = line["round"]
        if number != len(self.lines) + 1:
            earlier = self.lines or (Folder(self.folder).rows() if self.folder is not None else [])
            self.lines = [each for each in earlier if each["round"] < number]
            self.columns = Columns.after(self.lines)
        self.lines.append(line)
        return self.columns(line)

    def finish(self, result: Result) -> None:
        """Tell the loggers what the run came to."""
        for each in self.opened:
            if hasattr(each, "finish"):
                each.finish(result.to_dict())


def numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of a row or of metrics, without flags and lists."""
    numeric = {name: value for name, value in row.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    return {name: value for name, value in numeric.items() if math.isfinite(value)}


def summary(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a result.json for a service's summary: the best round, its metrics as `best_…`, and how many rounds."""
    best = {f"best_{column_of(name)}": value for name, value in numbers(result["metrics"]).items()}
    return {"rounds": result["rounds"], "best_round": result["best_round"], **best}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as one level, with dotted names."""
    nested: dict[str, Any] = {}
    for name, value in settings.items():
        nested |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return nested


def read_id(path: Path | None) -> str:
    """The id of a service's run that a run's folder keeps; empty where there is none, or nothing that could be one."""
    if path is None or not path.is_file():
        return ""
    text = path.read_bytes().decode(errors="replace").strip()
    return text if re.fullmatch(r"[\w-]{1,64}", text, re.ASCII) else ""


def run_name(config: Mapping[str, Any], label: str) -> str:
    """What a run is called at a service: algorithm, dataset and seed."""
    if "algorithm" not in config:
        return label
    dataset = Path(str(config.get("dataset", ""))).name
    return " ".join(filter(None, [Path(str(config["algorithm"])).stem, dataset, f"seed {config.get('seed', 0)}"]))
