"""A site's model of the best round: kept when the server names the round, saved with the checkpoints, written at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from atoll.data.encoding import Encoding
from atoll.deploy.site_metrics import SiteMetrics
from atoll.errors import AtollError
from atoll.federation.cohort import Cohort, Fields, Message, Schema
from atoll.federation.fields import copied
from atoll.models.parameters import get_parameters
from atoll.privacy.noise_settings import EVALUATE
from atoll.privacy.releases import Releases
from atoll.runs.config import Config
from atoll.runs.documents import finite
from atoll.runs.evaluation import from_counts
from atoll.runs.experiment import extent_of
from atoll.runs.model_card import describe, model_scale
from atoll.runs.model_files import ModelFiles
from atoll.tasks import decisions


@dataclass
class SiteModel:
    """What the site's parties predict with: what they remember, and what they were sent with the best round's `evaluate`.

    Everything was here already: to keep it, the server names the round with its next message and sends nothing else.
    """

    config: Config
    schema: Schema
    scenario: str
    names: Sequence[str]  # of the sites, where they are known
    metrics: SiteMetrics
    releases: Releases | None = None  # of a run with noise
    encoding: Encoding | None = None  # of the site's table, where it has one
    round: int = 0  # the best round; 0 while there is none
    kept: Fields = field(default_factory=dict)  # its memory, arguments, metrics and counts
    asked: int = -1  # the round of the last message, after which the memory is what it is now
    arguments: Fields = field(default_factory=dict)  # of the last `evaluate` to all parties in that round

    def note_model(self, message: Message, cohort: Cohort) -> None:
        """Note an answered message."""
        if message.round != self.asked or message.training:
            self.arguments = {}
        self.asked = message.round
        if message.verb == EVALUATE and not message.training and message.parties == cohort.parties:
            self.arguments = {**message.common, **message.each}

    def keep(self, round: int, cohort: Cohort) -> None:
        """Copy the round; nothing happens where it is kept already, or the parties were not asked anything in it."""
        if round in (self.round, 0) or round != self.asked:
            return
        self.kept = {
            "memory": copied(cohort.trained(), self.kept.get("memory")),
            "arguments": copied(self.arguments, self.kept.get("arguments")),
            "metrics": finite(self.metrics.of_round(round)),
            "counts": copied(self.metrics.counts_of_round(round)),
        }
        self.round = round

    def document(self, round: int) -> Fields:
        """For the checkpoint of a round: without the memory where it is that very round, whose memory is there anyway."""
        if not self.round:
            return {}
        left_out = {"memory"} if self.round == round else set()
        return {"round": self.round, **{name: value for name, value in self.kept.items() if name not in left_out}}

    def restore(self, document: Mapping[str, Any], round: int, cohort: Cohort) -> None:
        """Return to what `document` gave, after the cohort's memory was restored."""
        self.asked, self.round = round, int(document.get("round", 0))
        memory = cohort.trained() if self.round == round else document.get("memory", {})
        kept = {"memory": memory, **{name: document.get(name, {}) for name in ("arguments", "metrics", "counts")}}
        self.kept = copied(kept) if self.round else {}

    def files(self, cohort: Cohort, best: int, rounds: int, index: int | None = None, value: float | None = None) -> ModelFiles:
        """What `model/` is to hold; it must be of the server's best round. `index` and `value`: the federation's threshold."""
        if self.round != best:
            raise AtollError(
                f"it has no model of the best round, {best}: it was not asked, or it restarted without a save of it."
            )
        rule, names = getattr(cohort.task, "decision", None), cohort.graph.class_names
        threshold = None if rule is None else decisions.described(rule.by, index, value, names)
        judged = from_counts(self.kept["counts"], {}, names, threshold) if "confusion" in cohort.task.fields else None
        facts: dict[str, Any] = {"rounds": rounds, "data": extent_of(cohort.graph), "threshold": threshold}
        facts |= {"detail": judged.to_dict() if judged else {}, **model_scale(cohort.task)}
        if cohort.graph.edge_weight is not None:
            facts["edge_weights"] = True
        if self.releases is not None:
            facts |= {"epsilon": self.releases.epsilon(), "delta": self.config.dp.delta}
        about = describe(
            self.config,
            self.schema,
            self.scenario,
            best_round=best,
            metrics=self.kept["metrics"],
            names=self.names,
            columns=cohort.graph.feature_names,
            classes=names,
            party_numbers=cohort.parties,
            preprocessing=None if self.encoding is None else self.encoding.to_dict(),
            **facts,
        )
        return ModelFiles(finite(about), memory=self.kept["memory"], arguments=self.kept["arguments"])


def personal_models(cohort: Cohort) -> Fields:
    """The parties' models as they are now, with the numbers that belong to them (APFL's α); empty if there is no model."""
    values = {name: getattr(cohort, name) for name in cohort.memory}
    models = {name: _without_party_axis(get_parameters(value)) for name, value in values.items() if isinstance(value, nn.Module)}
    numbers = _without_party_axis({name: value for name, value in values.items() if isinstance(value, Tensor)})
    return models | numbers if models else {}


def _without_party_axis(model: dict[str, Tensor]) -> dict[str, Tensor]:
    """A single party's model without the party axis."""
    return {name: value[0] if len(value) == 1 else value for name, value in model.items()}
