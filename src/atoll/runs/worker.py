"""A worker process of `parallel`: it runs trials that its parent names, one after the other, with one thread.

A command holds a configuration and a folder; a report, some rounds' rows, then `done` or the sentence that says what is wrong.
"""

from __future__ import annotations

import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from atoll.child import commands, report
from atoll.errors import AtollError

SECONDS_BETWEEN_REPORTS = 0.2


def run_command(command: dict[str, Any]) -> None:
    """Run, or continue, one trial."""
    from atoll.runs import config
    from atoll.runs.trial import Trial

    document = command["config"]  # of the parent process, which is its user's own
    trial = Trial(command["row"], config.from_dict(document, "The configuration", config.user_model(document)))
    rounds = Rounds()
    trial.run(Path(command["folder"]), None, rounds)
    rounds.finish()


class Rounds:
    """Reports the rounds of a run to the parent: the first, then at most a few per second, and the last."""

    def __init__(self) -> None:
        self.next = 0.0
        self.unsent: dict[str, Any] = {}

    def __call__(self, row: dict[str, Any], rounds: int) -> None:
        """Called with every round."""
        self.unsent = {"row": row, "rounds": rounds}
        if time.perf_counter() >= self.next:
            self.finish()
            self.next = time.perf_counter() + SECONDS_BETWEEN_REPORTS

    def finish(self) -> None:
        """Report the last round, if it is not reported yet."""
        if self.unsent:
            report(**self.unsent)
            self.unsent = {}


def main() -> None:
    """Answer commands until the parent closes standard input."""
    import torch

    torch.set_num_threads(1)
    for command in commands():
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run_command(command)
            report(done=True, warnings=[str(one.message) for one in caught if issubclass(one.category, UserWarning)])
        except AtollError as error:
            report(error=str(error))
        except Exception:
            report(crash=traceback.format_exc())


if __name__ == "__main__":
    main()
