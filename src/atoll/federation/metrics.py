"""How good a model is: the parties send counts, the task makes metrics of their sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from atoll.deferred import dense
from atoll.errors import AtollError
from atoll.federation import transfer
from atoll.federation.averages import POOLED, averaged, every_average
from atoll.federation.cohort import Fields, backbone
from atoll.federation.federation import Federation
from atoll.federation.fields import sum_over_parties
from atoll.graphs.graph import Graph
from atoll.models.parameters import set_parameters
from atoll.settings import Training

UNION, TRAINED, FINETUNED = "union", "trained", "finetuned"
KEPT = (TRAINED, FINETUNED)  # evaluations of models that the parties keep
EVALUATIONS = ("global", "personal", TRAINED, FINETUNED, UNION)
NOT_TEST = ("val_", "train_")  # how the names of metrics of other than test items begin
MAX_LISTED_PARTIES = 100  # of more parties, no metrics of each one are kept


def evaluate(
    federation: Federation, verb: str = "evaluate", *, each: Mapping[str, Any] | None = None, **common: Any
) -> dict[str, Any]:
    """Metrics over the parties, averaged as the run wants them, and, unless the server gets sums only, of each party.

    Where parties overlap, what they measure on their own graphs is the local goal: `local_accuracy` and so on. With the
    evaluation `trained` or `finetuned` the parties are sent nothing and judge the models that they keep.
    """
    if federation.evaluation == FINETUNED:
        federation.tell("finetune", each=each, **common)
    if federation.evaluation in KEPT:
        each, common = None, {}
    if federation.secure or not federation.evaluate_at_server:
        sums = federation.total(verb, each=each, **common)
        keep_counts(federation, sums)
        return _goal(federation, federation.task.metrics(sums))
    replies = federation.ask(verb, each=each, **common)
    counts = {name: replies.stack(name) for name in federation.task.fields if name in replies.fields}
    sums = {name: sum_over_parties(value) for name, value in counts.items()}
    keep_counts(federation, sums, replies.parties, counts)
    pooled = federation.average == POOLED
    metrics = federation.task.metrics(sums) if pooled else averaged(federation.task, dense(counts), federation.average)
    return _goal(federation, metrics) | by_party(federation, replies.parties, counts)


def keep_counts(federation: Federation, sums: Fields, parties: Sequence[int] = (), counts: Fields | None = None) -> None:
    """Keep the last evaluation's sums and, of few parties, their own counts: the detail of the best round is made of them."""
    kept: Fields = {"sums": {name: sums[name] for name in federation.task.fields if name in sums}}
    if counts and 1 < len(parties) <= MAX_LISTED_PARTIES:
        numbers = torch.from_numpy(np.array(parties, dtype=np.int64))
        kept |= {"parties": numbers, "by_party": {name: dense(counts[name]) for name in kept["sums"]}}
    federation.counted = kept


def averages_of(federation: Federation, kept: Fields) -> dict[str, dict[str, float]]:
    """The metrics of an evaluation whose counts were kept, in every average; pooled alone where each party's are not known."""
    if "sums" not in kept or not kept["sums"]:
        return {}
    task = federation.task
    ways = every_average(task, kept["by_party"]) if "by_party" in kept else {POOLED: task.metrics(kept["sums"])}
    return {how: _goal(federation, metrics) for how, metrics in ways.items()}


def evaluate_shared(
    federation: Federation, settings: Training, model: Fields, over: Callable[[Graph], Graph] | None = None, **more: Any
) -> dict[str, Any]:
    """Metrics of one model for all, at the parties and, where they overlap, on the union of their graphs: the global goal.

    With the evaluation `union`, on the union wherever the parties' graphs come from one. The validation scores and the training
    loss are always the parties': outside a simulation there is no union graph. `over` makes the graph that the model runs on of
    the union; `more` is sent to the parties along with the model.
    """
    metrics = evaluate(federation, model=model, **more)
    asked = federation.evaluation == UNION
    if asked and federation.load_whole is None:
        raise AtollError("evaluation=union needs all parties' graphs with the edges between them, which only a simulation has.")
    wanted = asked or (federation.evaluation == "auto" and federation.scenario == "overlapping")
    if federation.load_whole is None or not wanted:
        return metrics
    if "whole" not in federation.derived:
        federation.derived["whole"] = federation.load_whole().to(federation.device)
    whole: Graph = federation.derived["whole"]
    network = backbone(settings, federation.schema, 1, None, device=federation.device)
    set_parameters(network, model)
    with torch.no_grad():
        union = whole if over is None else over(whole)
        counts = transfer.to_cpu(federation.task.counts(network(union), whole), federation.device)
    on_union = federation.task.metrics({name: value[0] for name, value in counts.items()})
    return {name: value for name, value in on_union.items() if not name.startswith(NOT_TEST)} | metrics


def by_party(federation: Federation, parties: Sequence[int], counts: Fields) -> dict[str, Any]:
    """The task's metrics of each of all parties, where they are few enough to list.

    `counts` are those of `parties`. None stands for a party that has no such items, was missing or was not asked.
    """
    total = federation.schema.parties
    if total > MAX_LISTED_PARTIES:
        return {}
    listed: dict[str, Any] = {}
    for name, values in federation.task.by_party(counts).items():
        of_party = dict(zip(parties, values, strict=True))
        listed[name] = [of_party.get(party) for party in range(total)]
    return listed


def _goal(federation: Federation, metrics: dict[str, float]) -> dict[str, float]:
    if federation.scenario != "overlapping" and federation.evaluation != UNION:
        return metrics
    return {name if name.startswith(NOT_TEST) else f"local_{name}": value for name, value in metrics.items()}
