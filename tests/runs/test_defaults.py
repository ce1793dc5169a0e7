"""Defaults: ordered tables with conditions, one file beside each algorithm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll import algorithms
from atoll.runs import config, defaults


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict[str, Any]]]:
    """Tables of algorithms that exist here only."""
    made: dict[str, list[dict[str, Any]]] = {}
    monkeypatch.setattr(defaults, "_tables", lambda algorithm, task=None: made[algorithm])
    return made


def test_later_tables_win_where_their_conditions_hold(tables: dict[str, list[dict[str, Any]]]) -> None:
    """Conditions are compared with what was asked for, else with what is set so far, as text without case."""
    tables["mine"] = [
        {"set": {"lr": 1, "task": "easy", "rounds": 10}},
        {"dataset": ["cora", "pubmed"], "set": {"lr": 2}},
        {"task": "easy", "local_steps": 1, "set": {"lr": 3}},
    ]
    assert defaults.defaults("mine", {})[0] == {"lr": 1, "task": "easy", "rounds": 10}
    assert defaults.defaults("mine", {"dataset": "Cora"})[0]["lr"] == 2
    assert defaults.defaults("mine", {"dataset": "cora", "local_steps": "1"})[0]["lr"] == 3
    assert defaults.defaults("mine", {"dataset": "cora", "local_steps": 1, "task": "hard"})[0]["lr"] == 2


def test_like_starts_over_as_if_its_values_were_asked_for(tables: dict[str, list[dict[str, Any]]]) -> None:
    """A baseline reads the other algorithm's tables for its own kind of task; what the user asks for still wins."""
    tables["theirs"] = [{"set": {"task": "easy"}}, {"task": "hard", "set": {"lr": 9}}]
    tables["mine"] = [{"set": {"rounds": 5}}, {"like": "theirs", "set": {"task": "hard"}}]
    assert defaults.defaults("mine", {})[0] == {"task": "hard", "lr": 9}
    assert "lr" not in defaults.defaults("mine", {"task": "easy"})[0]


def test_names_decide_only_where_the_conditions_before_them_hold(tables: dict[str, list[dict[str, Any]]]) -> None:
    """A condition that is never looked at decides nothing."""
    tables["mine"] = [{"dataset": "csbm", "task": "hard", "model": "gat", "set": {}}]
    assert defaults.defaults("mine", {"dataset": "cora"})[1] == {"dataset"}
    assert defaults.defaults("mine", {"dataset": "csbm"})[1] == {"dataset", "task"}


def test_every_algorithm_has_its_tables_and_they_set_what_exists() -> None:
    """No table is misspelled: each name is a setting or argument of some algorithm."""
    known = {*config.ARGUMENTS, "dataset"}
    for name in algorithms.names():
        for dataset in ("csbm", "subcora", "cora"):
            known |= {key for group in config.groups_of(name, dataset).values() for key in config.known(group)}
    known |= {key for group in config.groups_of("fedavg", "mutag").values() for key in config.known(group)}
    files = sorted(Path(algorithms.__file__).parent.glob("*.toml"))
    assert {path.stem for path in files} == {
        *algorithms.names(),
        "vertical_network",
        "graph_classification",
        "link_prediction",
        "training",
    }
    for path in files:
        if path.stem == "training":
            continue  # a search space alone
        for table in defaults._tables(path.stem, None):
            assert table.keys() - {"set", "like"} <= known, (path, table)
            assert table.get("set", {}).keys() <= known, (path, table)
            assert "set" in table or "like" in table, (path, table)


def test_an_algorithm_that_is_a_file_has_fedavgs_defaults() -> None:
    """Own algorithms are compared with FedAvg."""
    asked = {"dataset": "physics", "partition": "louvain_largest"}
    assert defaults.defaults("somewhere/own.py", asked) == defaults.defaults("fedavg", asked)
