"""Defaults: what the papers used, read from the tables beside each algorithm (`algorithms/NAME.toml`).

A file is a list of tables `[[when]]`, read from top to bottom; what a later table sets wins:

    [[when]]                  # no condition: always
    set.rounds = 300

    [[when]]
    dataset = ["wikics", "physics"]
    model = "gat"
    set.lr = 0.01

A table applies where all its conditions hold. A condition names an argument (`dataset`, `partition`) or a setting; it is compared
with what the user asked for, or else with what the tables above have set. `like = "fedspray"` starts over with the tables of
another algorithm, read as if the user had asked for what this table sets: a baseline runs as the paper that it is compared in.

A table `[space]` holds the values that tuning chooses from, where the paper gives a grid; those of settings that methods share
are in `training.toml`.
"""

from __future__ import annotations

import importlib.resources
import tomllib
from collections.abc import Mapping
from functools import cache
from typing import Any

from atoll import algorithms
from atoll.data.catalog import catalog
from atoll.data.natural_parties import NATURAL, has_parties
from atoll.tasks import GRAPH_TASK, LINK_TASK, OF_TARGETS

DROPS_NODES = ("louvain_largest",)  # FedSpray's, right for its paper's graphs
KEEPS_ALL_NODES = "metis"
FALLBACK = "fedavg"  # an algorithm from a file or another package runs with these defaults
OF_TASKS = {GRAPH_TASK: "graph_classification", LINK_TASK: "link_prediction"}  # the files with the defaults of other tasks
LIKE = dict.fromkeys((kinds["graph"] for kinds in OF_TARGETS.values()), GRAPH_TASK)  # tasks with the defaults of another
SHARED = "training"  # the file with the space of the settings that methods share


def defaults(algorithm: str, asked: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """What the paper used where `asked` is asked for, and the names that decided it.

    A name decides where a table has a condition on it and the table's conditions before it hold. A baseline accepts these names
    even if they are not its settings: they say which of the other paper's experiments is meant.
    """
    chosen: dict[str, Any] = {}
    deciding: set[str] = set()
    for table in _tables(algorithm, asked.get("task")):
        for name, wanted in table.items():
            if name in ("set", "like"):
                continue
            deciding.add(name)
            if str(asked.get(name, chosen.get(name, ""))).lower() not in _texts(wanted):
                break
        else:
            values = table.get("set", {})
            if "like" in table:
                chosen, deciding = defaults(table["like"], {**values, **asked})
            chosen |= values
    return chosen, deciding


def spaces(algorithm: str) -> dict[str, Any]:
    """The values that tuning chooses from by setting: those all methods share, of the papers it runs as, and its own."""
    document = _document(algorithm)
    others = dict.fromkeys(table["like"] for table in document["when"] if "like" in table)
    space: dict[str, Any] = dict(_document(SHARED)["space"])
    for more in (*map(spaces, others), document.get("space", {})):
        space |= {name: value for name, value in more.items() if name not in space}
    return space


def default_partition(algorithm: str, dataset: str, wanted: str | None) -> str:
    """The partition that the paper `wanted` on public graphs; a dataset's own parties; on other graphs one that loses no node."""
    wanted = wanted or KEEPS_ALL_NODES
    if has_parties(dataset) and {"horizontal", "overlapping", "whole"} & set(algorithms.find(algorithm).SCENARIOS):
        return NATURAL
    return KEEPS_ALL_NODES if wanted in DROPS_NODES and dataset.lower() not in catalog() else wanted


def _tables(algorithm: str, task: Any) -> list[dict[str, Any]]:
    """The algorithm's tables; in other tasks, those of the task's experiments in place of other papers'."""
    tables: list[dict[str, Any]] = _document(algorithm)["when"]
    task = LIKE.get(task, task)
    if task in OF_TASKS:
        return [*_document(OF_TASKS[task])["when"], *(table for table in tables if not {"like", "partition"} & table.keys())]
    return tables


@cache
def _document(algorithm: str) -> dict[str, Any]:
    folder = importlib.resources.files(algorithms)
    file = folder.joinpath(f"{algorithm}.toml")
    if algorithm.endswith(".py") or not file.is_file():
        file = folder.joinpath(f"{FALLBACK}.toml")
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _texts(wanted: Any) -> list[str]:
    """The values that a condition accepts, as text."""
    return [str(value).lower() for value in (wanted if isinstance(wanted, list) else [wanted])]
