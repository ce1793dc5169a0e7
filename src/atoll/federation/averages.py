"""How the parties' metrics become one number: pooled over all items, or from each party's own metrics.

Papers mean different things by "the accuracy": `pooled` counts every item once; `mean` counts every party once (FED-PUB, FedAux);
`nodes` weighs a party by its nodes (FedTAD, FedGTA, OpenFGL); `worst` is the party that fares worst. All of them are made of the
counts that the parties send anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from atoll.errors import AtollError
from atoll.federation.fields import Fields, sum_over_parties
from atoll.tasks import Task

POOLED = "pooled"
AVERAGES = (POOLED, "mean", "nodes", "worst")
PREFIXES = ("val_", "train_")
MAX_AVERAGED_PARTIES = 1000  # a party's own metrics are computed one party after the other


def averaged(task: Task, counts: Fields, how: str) -> dict[str, float]:
    """Metrics of parties with these counts (P, …). What no party has alone, such as a threshold, is that of the pooled counts.

    Deviation: a party without test items does not count in `mean`; in FED-PUB's code its accuracy is 1.
    """
    return every_average(task, counts)[how] if how != POOLED else _pooled(task, counts)


def every_average(task: Task, counts: Fields) -> dict[str, dict[str, float]]:
    """The metrics in all ways, by the names in `AVERAGES`."""
    sizes = party_sizes(task, counts)
    if len(sizes) > MAX_AVERAGED_PARTIES:
        raise AtollError(
            f"Metrics of {len(sizes)} parties are not computed one by one (at most {MAX_AVERAGED_PARTIES}); use average=pooled."
        )
    each = [task.metrics({name: value[party] for name, value in counts.items()}) for party in range(len(sizes))]
    pooled = _pooled(task, counts)
    ways: dict[str, dict[str, float]] = {POOLED: pooled} | {how: dict(pooled) for how in AVERAGES[1:]}
    for name in [name for name in pooled if _plain(name) in task.headings]:
        known = [(metrics[name], size) for metrics, size in zip(each, sizes, strict=True) if name in metrics]
        values, weights = [value for value, _ in known], [size for _, size in known]
        if not values:
            continue
        ways["mean"][name] = sum(values) / len(values)
        ways["nodes"][name] = sum(value * size for value, size in known) / sum(weights)
        ways["worst"][name] = min(values) if task.headings[_plain(name)].higher_is_better else max(values)
    return ways


def party_sizes(task: Task, counts: Mapping[str, Any]) -> list[float]:
    """Each party's nodes, as far as they train, validate or test: the first column of every field that begins with items.

    Where every node has one of these roles it is N_k; the server does not ask for more.
    """
    columns: list[Tensor] = []
    for name, field in task.fields.items():
        if name in counts and len(field.shape) == 1 and isinstance(field.most, tuple) and field.most[0] == "items":
            columns.append(counts[name][:, 0].double())
    sizes: list[float] = sum(columns).tolist()  # type: ignore[union-attr]
    return sizes


def _pooled(task: Task, counts: Fields) -> dict[str, float]:
    return task.metrics({name: sum_over_parties(value) for name, value in counts.items()})


def _plain(name: str) -> str:
    """A metric's name without the items that it is of."""
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    return name
