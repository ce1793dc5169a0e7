"""Checks of a run's settings together: values that are valid by themselves but not for this algorithm, task or noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll import algorithms
from atoll.data.damage import DamageSettings
from atoll.errors import AtollError, suggest
from atoll.federation.first_model import check_first_model
from atoll.federation.memory import TRAIN_ITEM
from atoll.federation.robust import check_algorithm
from atoll.privacy.masking import SECURE_STEPS
from atoll.privacy.noise_settings import NoiseSettings
from atoll.runs import protocol
from atoll.runs.data_task import require_whole_graphs
from atoll.tasks import TASKS, class_weights, decisions, selecting_metric


def check_together(algorithm: str, built: Mapping[str, Any]) -> None:
    """Refuse values that are valid by themselves but not for this run."""
    verb, verbs = built["dp"].verb, algorithms.find(algorithm).Cohort.verbs()
    if verb and verb not in verbs:
        raise AtollError(f"dp.verb is {verb!r}, which {algorithm} does not have{suggest(verb, verbs)}")
    if verb in SECURE_STEPS:
        raise AtollError(f"dp.verb is {verb!r}, a step of secure totals; its reply holds nothing that noise can be added to.")
    run = built["run"]
    check_damage(algorithm, built["noise"])
    TASKS.check(run.task)
    check_first_model(built.get("settings"), getattr(TASKS.find(run.task), "level", "node"))
    require_whole_graphs(algorithm, run.task, built.get("settings"))
    if run.task not in (tasks := getattr(algorithms.find(algorithm), "TASKS", (run.task,))):
        raise AtollError(f"{algorithm} is for the task {' or '.join(tasks)}, not for {run.task}; choose another algorithm.")
    for setting, names in {"select_by": (run.select_by,), "track": run.track}.items():
        for name in names:
            selecting_metric(TASKS.find(run.task), name, setting)
    protocol.check(algorithm, run, built["dp"])
    class_weights.check(run.class_weight)
    if run.class_weight == class_weights.BALANCED and built["dp"].active:
        raise AtollError(
            "class_weight=balanced needs exact class counts, which noise (dp) does not cover; give the weights: class_weight=1,5."
        )
    if run.threshold != decisions.NONE:
        decisions.parse(run.threshold)
    check_algorithm(run.robust, algorithm, algorithms.find(algorithm).Cohort.averaged(), secure=run.secure)
    if run.secure_min == 1:
        raise AtollError("secure_min is 1 but must be at least 2: the sum of one party is its reply.")


def check_damage(algorithm: str, noise: DamageSettings) -> None:
    """Refuse injected noise where the parties' memory belongs to one graph."""
    cohort = algorithms.find(algorithm).Cohort
    if noise.active and cohort.one_graph:
        raise AtollError(f"{algorithm} cannot train on a damaged graph: {cohort.one_graph}; leave noise.… out.")
    if noise.label_sparsity and TRAIN_ITEM in cohort.memory.values():
        raise AtollError(f"{algorithm} keeps something for each training node, so none can be dropped; leave label_sparsity out.")


def check_noise(dp: NoiseSettings, asked: Mapping[str, Any]) -> None:
    """Refuse settings of noise that would add none: their user would believe that there is some."""
    if not dp.active and (set_names := sorted(name for name in asked if name != "verb")):
        raise AtollError(
            f"dp.{set_names[0]} is set, but nothing is noised: dp.verb names no verb; set it, for instance dp.verb=fit."
        )
