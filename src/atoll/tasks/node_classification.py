"""Node classification: one class per node, cross-entropy, and accuracy over all nodes and over minority nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph, majority_class
from atoll.graphs.masks import Mask, cache_key, class_shares, party_shares, resolve
from atoll.graphs.softmax import softmax_loss
from atoll.tasks import class_weights, decisions, details
from atoll.tasks.confusion import macro_f1 as macro_f1
from atoll.tasks.counting import counting_plan, share, split_sums, training_counts
from atoll.tasks.levels import NodeItems
from atoll.tasks.options import CLASS_METRICS, class_index, selecting_metric, split_class_metric
from atoll.tasks.tallies import tally
from atoll.tasks.task import CountField, Metric, Task, TaskOptions

MAX_NOISED_PARTIES = 1000  # with noise on counts all numbers of a histogram are written out: no histograms of more parties
VALIDATION = "val_"


@dataclass(frozen=True)
class NodeClassification(NodeItems, Task):
    """Every node has at most one class; the model's output (N, C) are logits.

    The fields are what a run asks for (`configured`); at their defaults only the usual counts are sent.
    """

    class_names: tuple[str, ...] = ()
    selected: str = ""  # the metric that selects the best round, where it needs more than the usual counts
    tracked: tuple[str, ...] = ()  # the other metrics of validation nodes that a run wants and that need more
    class_weights: tuple[float, ...] = ()  # of each class in the loss; empty where all weigh 1
    balanced: bool = False  # whether the weights follow from the federation's class counts
    decision: decisions.Rule | None = None  # how one of two classes is decided; None for the likeliest
    training: bool = False  # whether training nodes are counted too

    name = "node-classification"
    score = "accuracy"
    headings = {
        "accuracy": Metric("accuracy", percent=True),
        "minority_accuracy": Metric("minority accuracy", percent=True, heading="minority"),
        "macro_f1": Metric("macro F1", percent=True),
        "weighted_f1": Metric("weighted F1", percent=True),
        "auc": Metric("AUC", percent=True),
        "average_precision": Metric("average precision", percent=True, heading="AP"),
        "loss": Metric("loss", higher_is_better=False),
        "brier": Metric("Brier score", higher_is_better=False, heading="Brier"),
        "calibration_error": Metric("calibration error", percent=True, higher_is_better=False, heading="ECE"),
    }
    class_metrics = CLASS_METRICS

    @cached_property
    def fields(self) -> dict[str, CountField]:
        """The usual counts and what the selecting metric and those that a run tracks need."""
        usual = {
            "validation": CountField((3,), ("items", "items", "sum")),
            "test": CountField((5,), ("items", "items", "sum", "items", "items")),
            "confusion": details.FIELDS["confusion"],
        }
        usual |= {f"{VALIDATION}{name}": details.FIELDS[name] for name in self._extra}
        usual |= {name: details.FIELDS[name] for name in self._decided}
        return usual | ({"training": CountField((2,), ("items", "sum"), optional=True)} if self.training else {})

    @cached_property
    def _extra(self) -> list[str]:
        """The fields of validation nodes beside the usual ones."""
        kinds = [split_class_metric(name)[0] for name in (self.selected, *self.tracked)]
        needed = [details.NEEDED[kind] for kind in kinds if kind in details.NEEDED]
        return list(dict.fromkeys([*needed, *(["histogram"] if self.chooses else [])]))

    @cached_property
    def _decided(self) -> list[str]:
        """The fields of test nodes beside the usual ones: what the decisions at a threshold are known from."""
        return [] if self.decision is None else ["histogram"] if self.chooses else ["decided"]

    @property
    def chooses(self) -> bool:
        """Whether a threshold is chosen on validation nodes."""
        return self.decision is not None and self.decision.value is None

    def configured(self, options: TaskOptions) -> NodeClassification:
        """The task as a run wants it."""
        selected = self._further(selecting_metric(self, options.select_by)[0], options, "select_by")
        tracked = [self._further(selecting_metric(self, name, "track")[0], options, "track") for name in options.track]
        rule = decisions.rule_of(options.threshold, options.class_names, options.classes)
        made = replace(
            self,
            class_names=options.class_names,
            selected=selected,
            tracked=tuple(dict.fromkeys(name for name in tracked if name)),
            class_weights=class_weights.given(options.class_weight, options.class_names, options.classes),
            balanced=options.class_weight == class_weights.BALANCED,
            decision=rule,
            training=options.training,
        )
        if options.noised and options.parties > MAX_NOISED_PARTIES and "histogram" in made._extra:
            asked = {
                f"threshold={options.threshold}": made.chooses,
                f"select_by={options.select_by}": "histogram" in replace(made, tracked=())._extra,
                f"track={','.join(options.track)}": True,
            }
            raise AtollError(
                f"{next(name for name, counts in asked.items() if counts)} counts histograms, which are not noised for more than "
                f"{MAX_NOISED_PARTIES} parties; name another metric, or leave dp.evaluation_noise out."
            )
        return made

    def _further(self, name: str, options: TaskOptions, setting: str) -> str:
        """The metric that a setting names, if it needs more than the usual counts; a class that does not exist is an error."""
        kind, label = split_class_metric(name)
        if label:
            class_index(label, options.class_names, options.classes, setting)
        return name if kind in details.NEEDED else ""

    def weighted(self, weights: tuple[float, ...]) -> NodeClassification:
        """The task with these class weights in its loss."""
        return self if weights == self.class_weights else replace(self, class_weights=weights)

    def outputs(self, classes: int) -> int:
        """One logit per class."""
        return classes

    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train", *, balance: bool = False) -> Tensor:
        """Σ_p mean_{i ∈ mask_p} −log softmax(out_i)[y_i]; unlabeled nodes are left out, a party without any counts 0.

        With class weights every node's term is multiplied by that of its class, and still divided by the number of nodes: the sum
        over parties, weighted by their nodes, is what the pooled nodes would give. With `balance` each party's mean is over its
        classes, of each class's mean.
        """
        return softmax_loss(out, *_targets(graph, mask, balance, self.class_weights))

    def item_losses(self, out: Tensor, y: Tensor) -> Tensor:
        """(n,) −w[y_i]·log softmax(out_i)[y_i]; 0 where y_i is −1."""
        weights = torch.tensor(self.class_weights).to(out.device) if self.class_weights else None
        return F.cross_entropy(out, y, weights, ignore_index=-1, reduction="none")

    def item_weights(self, targets: Tensor) -> Tensor | float:
        """(…) the weight of each row of one-hot targets (…, C) in the loss; 1 where all weigh the same."""
        return targets @ torch.tensor(self.class_weights).to(targets.device) if self.class_weights else 1.0

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's counts on its labeled validation and test nodes.

        `validation` (P, 3): nodes, correct, summed loss. `test` (P, 5): the same, then minority nodes and correct ones.
        `confusion` (P, C, C): test nodes by class and prediction. `training` (P, 2), where it is declared: labeled training
        nodes and their summed loss. Whatever else `fields` declares, as `details.count` does.
        """
        plan, parties, classes = counting_plan(graph, training=self.training), graph.parties, graph.num_classes
        logits = out.index_select(0, plan.rows)  # validation nodes, test nodes, training nodes
        losses = F.cross_entropy(logits, plan.y, reduction="none")
        predicted = logits.argmax(1)
        correct = predicted == plan.y
        columns = torch.stack([plan.ones, correct, losses, plan.minority, plan.minority * correct], 1)
        validation, test, *training = split_sums(plan, columns, parties)
        tested = slice(plan.validated, plan.evaluated)
        usual: dict[str, Any] = {
            "validation": validation,
            "test": test,
            "confusion": tally(plan.tested, (plan.cells + predicted[tested])[:, None], parties, (classes, classes)),
        }
        if self._extra or self._decided:
            usual |= self._extra_counts(logits[: plan.evaluated], plan.y[: plan.evaluated], graph)
        if not self.training:
            return usual
        unknown = bool(losses[plan.evaluated :].isnan().any())
        return usual | {"training": training_counts(out, graph) if unknown else training[0]}

    def _extra_counts(self, logits: Tensor, y: Tensor, graph: Graph) -> dict[str, Any]:
        """The fields beside the usual ones, of validation nodes and of test nodes."""
        plan, parties = counting_plan(graph, training=self.training), graph.parties
        first, group = plan.validated, plan.group[: plan.evaluated]  # `first`: where the rows of test nodes begin
        minority = (graph.y != majority_class(graph))[plan.rows[:first]].float()
        counted = details.count(self._extra, logits[:first], y[:first], group[:first], minority, parties)
        value = None if self.decision is None or self.chooses else self.threshold({})
        tested = logits[first:], y[first:], group[first:] - parties, minority, parties
        return {f"{VALIDATION}{name}": value for name, value in counted.items()} | details.count(self._decided, *tested, value)

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """Metrics from summed counts; undefined ones (no such nodes) are left out.

        Noised counts may be impossible (a negative number of nodes): shares lie between 0 and 1 all the same.
        """
        nodes, correct, loss = sums["validation"].tolist()
        metrics: dict[str, float] = {}
        if nodes:
            metrics |= {"val_loss": _mean(loss, nodes), "val_accuracy": share(correct, nodes)}
        nodes, correct, loss, minority, minority_correct = sums["test"].tolist()
        if nodes:
            metrics |= {"loss": _mean(loss, nodes), "accuracy": share(correct, nodes), "macro_f1": macro_f1(sums["confusion"])}
        if minority:
            metrics["minority_accuracy"] = share(minority_correct, minority)
        nodes, loss = sums["training"].tolist() if "training" in sums else (0, 0)
        if nodes:
            metrics["train_loss"] = _mean(loss, nodes)
        return metrics | self._extra_metrics(sums) if self._extra else metrics

    def _extra_metrics(self, sums: Mapping[str, Any]) -> dict[str, Any]:
        """What the further counts tell of validation nodes."""
        fields = {name: sums[f"{VALIDATION}{name}"] for name in self._extra}
        classes = len(sums["confusion"])
        computed = details.metrics_of(fields, float(sums["validation"][0]), classes)
        if self.decision is not None and self.chooses:
            _, chosen = decisions.chosen(self.decision, fields["histogram"])
            computed |= {} if chosen is None else {"threshold": chosen}
        for name in (self.selected, *self.tracked):
            kind, label = split_class_metric(name)
            if label:
                value = details.class_value(kind, class_index(label, self.class_names, classes, name), fields)
                computed |= {} if value is None else {name: value}
        return {f"{VALIDATION}{name}": value for name, value in computed.items()}

    def threshold(self, sums: Mapping[str, Any]) -> dict[str, Any] | None:
        """How one of two classes is decided, as result.json holds it, from the sums of an evaluation; None for the likeliest."""
        rule, histogram = self.decision, sums.get(f"{VALIDATION}histogram")
        if rule is None or (rule.value is None and histogram is None):
            return None
        index, value = (
            decisions.chosen(rule, histogram) if rule.value is None and histogram is not None else (rule.index, rule.value)
        )
        return decisions.described(rule.by, index, value, self.class_names)

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """Accuracy of each party over all and over minority test nodes; nothing where no party has more than one test node."""
        test = counts["test"]
        if float(test[:, 0].max()) <= 1:
            return {}
        return {
            "party_accuracy": _ratios(test[:, 1], test[:, 0]),
            "party_minority_accuracy": _ratios(test[:, 4], test[:, 3]),
        }


def _targets(graph: Graph, mask: Mask, balance: bool, of_classes: tuple[float, ...] = ()) -> tuple[Tensor, Tensor]:
    """Weighted one-hot targets (N, C) and weights (N,) of the labeled nodes in the mask, 0 elsewhere; kept with the graph."""
    name = cache_key(graph, mask)
    keys = f"targets.{name}.{balance}.{of_classes}", f"labeled.{name}.{balance}.{of_classes}"
    if name is not None and keys[0] in graph.derived:
        return graph.derived[keys[0]], graph.derived[keys[1]]
    selected = resolve(graph, mask) & (graph.y >= 0)
    weights = class_shares(graph, selected) if balance else party_shares(graph, selected)
    if of_classes:
        weights = weights * torch.tensor(of_classes).to(weights.device)[graph.y.clamp(min=0)]
    targets = weights.new_zeros(len(graph.y), graph.num_classes).scatter_(1, graph.y.clamp(min=0)[:, None], weights[:, None])
    if name is not None:
        graph.derived[keys[0]], graph.derived[keys[1]] = targets, weights
    return targets, weights


def _mean(total: float, count: float) -> float:
    return max(total, 0.0) / count if count > 0 else math.inf


def _ratios(part: Tensor, whole: Tensor) -> list[float | None]:
    return [a / b if b else None for a, b in zip(part.tolist(), whole.tolist(), strict=True)]


TASK = NodeClassification()
