"""The detail of a run's best round: the evaluation of its test nodes, made once at the end.

A simulation asks the best round's model for the outputs themselves, in cohorts made for it, so that the run's own parties, bytes
and randomness are untouched. Where the parties are elsewhere, or their replies are noised, it is computed from the server's sums.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from atoll.engines.inprocess import InProcessEngine
from atoll.errors import AtollWarning
from atoll.federation.cohort import Cohort, Observation
from atoll.federation.memory import axes_of, divided, rows_along
from atoll.runs.best import BestRound
from atoll.runs.evaluation import MAX_LISTED, Evaluation, from_counts, of_items
from atoll.runs.experiment import Experiment, build_experiment
from atoll.runs.predictions import observe
from atoll.runs.simulation import simulation_of

MAX_OBSERVED = 100_000  # parties: a second cohort of more could need too much memory


def threshold_of(experiment: Experiment, best: BestRound) -> dict[str, Any] | None:
    """The threshold by which the best round's model decides, as result.json and model.json hold it."""
    choose = getattr(experiment.federation.task, "threshold", None)
    chosen: dict[str, Any] | None = choose(best.counts.get("sums", {})) if choose is not None else None
    return chosen


def missing_threshold(experiment: Experiment, threshold: Mapping[str, Any] | None) -> list[str]:
    """A warning where a threshold was asked for and could not be chosen."""
    if threshold is not None or getattr(experiment.federation.task, "decision", None) is None:
        return []
    asked = experiment.config.run.threshold
    return [f"threshold={asked}: the validation nodes do not have both classes, so the likeliest class is predicted."]


def of_best(
    experiment: Experiment, best: BestRound, row: Mapping[str, Any], threshold: Mapping[str, Any] | None
) -> dict[str, Any]:
    """`detail` of result.json; empty where the best round is not known, or the task does not predict classes.

    `row` is the best round's line of the history: parties that were missing in it are not judged.
    """
    task: Any = experiment.federation.task
    if not best.round or "confusion" not in task.fields:
        return {}
    try:
        seen = _outputs(experiment, best, row)
    except Exception as error:  # an algorithm's own `predict`; its run must not end without a result
        text = f"The best round's outputs could not be had ({type(error).__name__}: {error}); its detail is made of counts."
        warnings.warn(text, AtollWarning, stacklevel=2)
        seen = []
    evaluation = _judged(experiment, seen, threshold) if seen else _counted(experiment, best, threshold)
    return {} if evaluation is None else evaluation.to_dict()


def _judged(experiment: Experiment, seen: Sequence[Observation], threshold: Mapping[str, Any] | None) -> Evaluation | None:
    """The evaluation of what the parties predict for their labeled test nodes."""
    y, logits, party = [], [], []
    for one in seen:
        rows = (one.graph.test & (one.graph.y >= 0)).nonzero()[:, 0]
        y.append(one.graph.y[rows])
        logits.append(one.output[rows].detach())
        party.append(torch.tensor(one.parties.numbers)[one.graph.owner[rows]])
    if not sum(map(len, y)):
        return None
    federation = experiment.federation
    return of_items(
        torch.cat(y),
        torch.cat(logits),
        torch.cat(party),
        federation.schema.parties,
        federation.names,
        _class_names(experiment),
        threshold,
        list_parties=federation.evaluate_at_server and not federation.secure,
    )


def _counted(experiment: Experiment, best: BestRound, threshold: Mapping[str, Any] | None) -> Evaluation | None:
    """The evaluation from the counts of the best round."""
    federation, sums = experiment.federation, best.counts.get("sums", {})
    listed = best.counts.get("by_party", {})
    numbers = best.counts["parties"].tolist() if listed else []
    by_party = {
        federation.name_of(party): {name: value[index] for name, value in listed.items()} for index, party in enumerate(numbers)
    }
    return from_counts(sums, by_party if len(by_party) <= MAX_LISTED else {}, _class_names(experiment), threshold)


def _outputs(experiment: Experiment, best: BestRound, row: Mapping[str, Any]) -> list[Observation]:
    """What the parties predict with the best round's model; nothing where they are elsewhere, or their replies are noised."""
    engine, kind = simulation_of(experiment), experiment.algorithm.Cohort
    if engine is None or experiment.config.dp.active or kind.predict is Cohort.predict:
        return []
    if experiment.federation.schema.parties > MAX_OBSERVED:
        return []

    def make(parties: Sequence[int], blank: bool) -> Cohort:
        cohort = engine.make(parties, True)
        cohort.guards, cohort.secrets = (), None
        return cohort

    twin = InProcessEngine(make, engine.sites)
    axes = axes_of(twin.cohorts[0].memory, {})
    rows = [rows_along({axes[name] for name in best.memory}, cohort.graph) for cohort in twin.cohorts]
    for cohort, memory in zip(twin.cohorts, divided(best.memory, axes, rows), strict=True):
        cohort.restore(memory)
    config, federation = experiment.config, experiment.federation
    plain = replace(config, run=replace(config.run, secure=False))
    judging = build_experiment(plain, twin, federation.schema, experiment.data, federation.scenario, federation.names)
    judging.federation.derived = federation.derived
    judging.federation.begin(best.round)
    judging.federation.missing = {int(party): reason for party, reason in row.get("missing", {}).items()}
    return observe(judging, best.state, hidden=False)


def _class_names(experiment: Experiment) -> Sequence[str] | None:
    return None if experiment.data is None else experiment.data.parts.class_names
