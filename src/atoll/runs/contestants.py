"""The contestants of a comparison: rows of algorithm, model and point of a sweep, all configured on the same terms."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from atoll.algorithms import find
from atoll.data.federated_data import check_scenario
from atoll.errors import AtollError
from atoll.models import user
from atoll.runs import config
from atoll.runs.config import Config
from atoll.runs.setting_names import bare_names
from atoll.runs.terms import Terms, check_shared, sweeps

EXAMPLES = {
    "horizontal": "metis",
    "overlapping": "overlap",
    "vertical": "vertical",
    "node": "node",
}  # a partition for each scenario
APART = "ones, so they cannot be compared."
Contestant: TypeAlias = tuple[str, str, dict[str, Any]]  # an algorithm, a model (empty: the default), a point of the sweep


@dataclass(frozen=True)
class Contestants:
    """What was asked for, and the configurations that it comes to; None is the default."""

    algorithms: Sequence[str]
    models: Sequence[str]
    dataset: str | None
    partition: str | None
    parties: int | None
    values: Mapping[str, Any]
    sweep: Mapping[str, Sequence[Any]]

    @cached_property
    def terms(self) -> Terms:
        """Data and budget of the contestant whose defaults hold for all: the first, or the only one that needs its partition."""
        usual = {name: self._asked(name).partition for name in self.algorithms}
        if self.partition is not None or len(set(usual.values())) == 1:
            return Terms(self._asked(self.algorithms[0]))
        special = [name for name in usual if find(self.resolved(name)).SCENARIOS[0] not in ("horizontal", "whole")]
        if len({usual[name] for name in special}) != 1:
            listed = ", ".join(f"{name}: {partition}" for name, partition in usual.items())
            raise AtollError(
                f"These algorithms are spread differently by default ({listed}); give --partition to compare them fairly."
            )
        return Terms(self._asked(special[0]))

    @cached_property
    def rows(self) -> dict[str, Contestant]:
        """Each by its name in the table; all are checked."""
        settings = {algorithm: find(self.resolved(algorithm)).Settings for algorithm in self.algorithms}
        check_shared(self.terms.reference, self.values, self.sweep, settings)
        self._check_scenarios()
        return {
            f"{algorithm} {user.short_name(model)} {_listed(point)}".strip().replace("  ", " "): (algorithm, model, point)
            for model in (self.models or [""])
            for algorithm in self.algorithms
            for point in self._grid(algorithm)
        }

    def config(self, contestant: Contestant, values: Mapping[str, Any] | None = None, seed: int = 0) -> Config:
        """A contestant on the terms of all; `values` come last."""
        return self.terms.apply(self.by_default(contestant, values, seed))

    def by_default(self, contestant: Contestant, values: Mapping[str, Any] | None = None, seed: int = 0) -> Config:
        """A contestant by its own defaults, on the dataset and partition of all, with what was asked for."""
        algorithm, model, point = contestant
        shared = self.terms.reference
        return self._resolve(algorithm, model, {**point, **(values or {})}, seed, shared.dataset, shared.partition)

    def notes(self) -> list[str]:
        """Where a method's own defaults are for other data or another budget, in one sentence each."""
        notes = (self.terms.note(self.by_default((algorithm, model, {}))) for algorithm, model, _ in self.rows.values())
        return list(dict.fromkeys(note for note in notes if note))

    def fixed(self, contestant: Contestant) -> set[str]:
        """The names of the settings that were asked for, and so are not tuned."""
        algorithm, _, point = contestant
        return {
            name if name.startswith("model.") else bare
            for name in (*self.values, *point)
            for bare in bare_names({name: 0}, self.resolved(algorithm))
        }

    def resolved(self, algorithm: str) -> str:
        """A method may have a baseline of its own: beside GLASU, `centralized` is its network on the joined columns."""
        baselines = [getattr(find(other), "YARDSTICKS", {}) for other in self.algorithms]
        return next((names[algorithm] for names in baselines if algorithm in names), algorithm)

    def _asked(self, algorithm: str) -> Config:
        return self._resolve(algorithm, "", {}, 0, self.dataset, self.partition)

    def _resolve(
        self, algorithm: str, model: str, values: Mapping[str, Any], seed: int, dataset: str | None, partition: str | None
    ) -> Config:
        return config.resolve(
            self.resolved(algorithm),
            dataset=dataset,
            partition=partition,
            parties=self.parties,
            seed=seed,
            values=dict(self.values) | dict(values) | ({"settings.model": model} if model else {}),
            optional=True,
        )

    def _grid(self, algorithm: str) -> list[dict[str, Any]]:
        """The points of the sweep in the settings that an algorithm has; one, the empty one, where it has none of them."""
        settings = find(self.resolved(algorithm)).Settings
        swept = {name: values for name, values in self.sweep.items() if sweeps(name, algorithm, settings)}
        return [dict(zip(swept, point, strict=True)) for point in itertools.product(*swept.values())]

    def _check_scenarios(self) -> None:
        """Refuse algorithms for other kinds of parties than those of the partition."""
        reference = self.terms.reference
        for algorithm in map(self.resolved, self.algorithms):
            scenarios = find(algorithm).SCENARIOS
            try:
                check_scenario(reference, scenarios, algorithm)
            except AtollError:
                if self.partition is not None:
                    raise
                others = find(reference.algorithm).SCENARIOS
                shared = [EXAMPLES[name] for name in scenarios if name in others and name in EXAMPLES]
                raise AtollError(
                    f"{algorithm} is for {' or '.join(scenarios)} parties and {reference.algorithm} for {' or '.join(others)} "
                    + (
                        f"ones, by default on {reference.partition}; give a --partition for both, such as {shared[0]}."
                        if shared
                        else APART
                    )
                ) from None


def _listed(point: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())
