"""What a run predicts: the parties of this process are asked for outputs and hidden representations of their nodes.

Nothing is counted or sent, and only a process that holds the parties can ask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.errors import AtollError
from atoll.federation.cohort import Observation
from atoll.federation.fields import Fields
from atoll.federation.messages import Answer, Engine, Failure, Message
from atoll.federation.metrics import FINETUNED, TRAINED
from atoll.privacy.noise_settings import EVALUATE
from atoll.runs.experiment import Experiment


def observe(experiment: Experiment, state: dict[str, Any], *, hidden: bool = True) -> list[Observation]:
    """What the parties predict with the server's `state` and their own memory, in the order in which they are evaluated.

    With `hidden`, also their last hidden representations.
    """
    federation = experiment.federation
    observer = _Observer(federation.engine, hidden)
    federation.engine, asked = observer, federation.evaluation
    federation.evaluation = without_finetuning(asked)
    try:
        with torch.no_grad(), federation.evaluating():
            experiment.algorithm.evaluate(federation, state, experiment.config.settings)
    finally:
        federation.engine, federation.evaluation = observer.engine, asked
    return observer.seen


def without_finetuning(evaluation: str) -> str:
    """The evaluation of models that are in the parties' memory already: nothing is tuned again."""
    return TRAINED if evaluation == FINETUNED else evaluation


def predict(experiment: Experiment, state: dict[str, Any]) -> Tensor:
    """(N, C) the output of every node of the parties, in the order of `experiment.party_data.parts`."""
    return _joined(experiment, [one.output for one in observe(experiment, state)], "outputs")


def embed(experiment: Experiment, state: dict[str, Any]) -> Tensor:
    """(N, h) the last hidden representation of every node of the parties, in the order of `experiment.party_data.parts`."""
    hidden = [one.hidden for one in observe(experiment, state)]
    return _joined(experiment, [one for one in hidden if one is not None], "hidden representations")


def _joined(experiment: Experiment, values: list[Tensor], what: str) -> Tensor:
    if sum(map(len, values)) != len(experiment.party_data.parts.y):
        raise AtollError(f"The parties of {experiment.config.algorithm} have no {what} of their own for every node.")
    return torch.cat(values)


class _Observer:
    """An engine that keeps what the parties of this process predict when they are asked to evaluate."""

    def __init__(self, engine: Engine, hidden: bool) -> None:
        self.engine, self.hidden = engine, hidden
        self.seen: list[Observation] = []

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Observe, then deliver."""
        for cohort in getattr(self.engine, "cohorts", []) if message.verb == EVALUATE else []:
            if here := message.parties.among(cohort.parties):
                self.seen.append(cohort.observe(message.select(here), hidden=self.hidden))
        return self.engine.deliver(message)

    def state(self) -> Fields:
        """The memory of all parties."""
        return self.engine.state()

    def restore(self, memory: Fields) -> None:
        """Give all parties their memory back."""
        self.engine.restore(memory)
