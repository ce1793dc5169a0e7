"""Comparisons are of like with like: one table of data and budget for all contestants."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

import atoll
from atoll.algorithms import find, names
from atoll.data.federated import federate
from atoll.errors import AtollError
from atoll.runs.comparison import Comparison
from atoll.runs.config import resolve
from atoll.runs.terms import check_same_data, data_key, flat
from small import small

PAIRS = list(itertools.combinations(names(), 2))
SHARED = ("run", "data", "partition_settings", "split", "dataset", "partition", "parties")
PARTITIONS = {"horizontal": "random", "overlapping": "overlap", "vertical": "vertical", "node": "node"}


def partition_for(*algorithms: str) -> str | None:
    """A partition that all of these take, None where there is none."""
    wanted = [set(PARTITIONS) if find(name).SCENARIOS == ("whole",) else set(find(name).SCENARIOS) for name in algorithms]
    common = set.intersection(*wanted)
    return next((PARTITIONS[scenario] for scenario in PARTITIONS if scenario in common), None)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: "-".join(pair))
def test_every_pair_has_the_same_data_settings(pair: tuple[str, str]) -> None:
    """In both orders, on a paper's graph and on our own: data, split, scaling, seeds and budget are equal, or it is refused."""
    partition = partition_for(*pair)
    for dataset, order in itertools.product(("cora", "csbm"), (pair, pair[::-1])):
        if partition is None:
            with pytest.raises(AtollError, match=r"is for .* parties|spread differently"):
                Comparison(order, dataset=dataset, seeds=[1]).trials()
            continue
        first, second = (trial.config for trial in Comparison(order, dataset=dataset, partition=partition, seeds=[1]).trials())
        for name in SHARED:
            assert getattr(first, name) == getattr(second, name), name
        assert first.seed == second.seed
        assert data_key(first) == data_key(second)


@pytest.mark.parametrize("order", ["fedavg,glasu", "glasu,fedavg"])
def test_algorithms_for_other_parties_are_refused_by_what_was_asked(order: str) -> None:
    """Who gave no partition is not told to choose another."""
    with pytest.raises(AtollError, match=r"^fedavg is for horizontal.* parties and glasu for vertical ones, so they cannot be"):
        Comparison(order.split(","), dataset="csbm").trials()
    with pytest.raises(AtollError, match="choose another --partition"):
        Comparison(order.split(","), dataset="csbm", partition="vertical").trials()


def test_terms_stay_the_same_however_often_trials_are_made() -> None:
    """They are those of the algorithm that needs its partition, also after a first check."""
    compared = Comparison(["centralized", "glasu"], dataset="cora", seeds=[0])
    compared.check()
    again = [trial.config for trial in compared.trials()]
    assert [trial.config for trial in Comparison(["centralized", "glasu"], dataset="cora", seeds=[0]).trials()] == again
    assert {each.run for each in again} == {resolve("glasu", dataset="cora").run}


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("dataset", {"dataset": "citeseer"}),
    ("partition", {"partition": "elsewhere.npz"}),
    ("parties", {"parties": 11}),
    ("partition_seed", {"partition_settings": {"partition_seed": 5}}),
    ("split", {"split": {"split": "by_class"}}),
    ("normalize_features", {"data": {"normalize_features": None}}),
]


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if partition_for(*pair)], ids=lambda pair: "-".join(pair))
def test_no_pair_with_different_data_stands_in_one_table(pair: tuple[str, str]) -> None:
    """Whichever setting of the data differs, and whichever of the two it is; seeds and the algorithms' own settings may."""
    comparison = Comparison(pair, dataset="cora", partition=partition_for(*pair), seeds=[1])
    first, second = (trial.config for trial in comparison.trials())
    check_same_data({"a": first, "b": replace(second, seed=9)})
    for name, change in CHANGES:
        flipped = {"normalize_features": not second.data.normalize_features} if name == "normalize_features" else None
        values = {
            key: replace(getattr(second, key), **(flipped or value)) if isinstance(value, dict) else value
            for key, value in change.items()
        }
        other = replace(second, **values)
        for pairs in ({"a": first, "b": other}, {"b": other, "a": first}):
            with pytest.raises(AtollError, match=rf"have different data \({name} is .*they cannot stand in one table"):
                check_same_data(pairs)


@pytest.mark.parametrize("pair", [("fedavg", "fedgl"), ("fedgl", "fedavg"), ("fedavg", "fedmlp"), ("centralized", "fedgl")])
def test_the_graphs_are_the_same(pair: tuple[str, str]) -> None:
    """Not only the settings: every party's nodes, features and splits, as they are made."""
    trials = Comparison(pair, dataset="csbm", partition="random", parties=3, seeds=[2], values={"nodes": 90}).trials()
    one, other = (federate(trial.config, None, find(trial.config.algorithm).SCENARIOS) for trial in trials)
    assert one.source.digest == other.source.digest
    for mask in ("train", "val", "test"):
        held = [set(data.parts.ids[getattr(data.parts, mask)].tolist()) for data in (one, other)]
        assert held[0] == held[1]
    assert torch.equal(one.whole.y, other.whole.y)


def test_other_defaults_are_said() -> None:
    """A method whose paper wants other data runs on the common one, and the output says which settings those are."""
    comparison = Comparison(["fedavg", "fedgl"], dataset="cora", partition="metis", parties=5, seeds=[0])
    comparison.trials()
    assert len(comparison.notes) == 1
    assert "fedgl by its own defaults would use normalize_features=true (here false)" in comparison.notes[0]
    assert "patience=30 (here 0)" in comparison.notes[0]
    alike = Comparison(["local", "fedavg", "fedspray"], dataset="cora", seeds=[0])
    alike.trials()
    assert not alike.notes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"values": {"fedprox.split": "random"}}, "split is the same for all in a comparison, so fedprox.split cannot be set"),
        ({"values": {"fedprox.rounds": 3}}, "rounds is the same for all"),
        ({"sweep": {"rounds": [1, 2]}}, "--sweep rounds: rounds is the same for all"),
        ({"sweep": {"parties": [1, 2]}}, "--sweep parties: parties is the same for all"),
        ({"sweep": {"nothing": [1, 2]}}, "none of local, fedprox has such a setting"),
        ({"values": {"lr": 0.1}, "sweep": {"lr": [0.1, 0.2]}}, "lr is given and lr is swept; leave one of them out"),
        ({"values": {"settings.lr": 0.1}, "sweep": {"lr": [0.1]}}, "settings.lr is given and lr is swept"),
        ({"values": {"fedprox.lr": 0.1}, "sweep": {"lr": [0.1]}}, "fedprox.lr is given and lr is swept"),
        ({"against": "fedavg"}, "against is 'fedavg', which is not a row of the comparison; there is"),
    ],
)
def test_no_contestant_has_terms_of_its_own(arguments: dict[str, Any], sentence: str) -> None:
    """Neither by a value for one of them, nor by a sweep."""
    with pytest.raises(AtollError, match=sentence):
        Comparison(["local", "fedprox"], dataset="csbm", seeds=[0], **arguments).trials()


def test_a_sweep_of_one_contestant_stands_beside_a_value_for_all() -> None:
    """`lr` for all and `fedprox.lr` swept: the one keeps the value, the other has a row for each of its own."""
    values, sweep = {"lr": 0.5}, {"fedprox.lr": ["0.1", "0.2"]}
    trials = Comparison(["local", "fedprox"], dataset="csbm", seeds=[0], values=values, sweep=sweep).trials()
    assert [trial.config.settings.lr for trial in trials] == [0.5, 0.1, 0.2]


def test_where_defaults_are_for_other_parties_a_partition_is_asked_for() -> None:
    """FedMLP's default is a node per party, but both know disjoint subgraphs; nFedGNN and FedAvg have nothing in common."""
    with pytest.raises(AtollError, match="by default on node; give a --partition for both, such as metis"):
        Comparison(["fedavg", "fedmlp"], dataset="csbm", seeds=[0]).trials()
    with pytest.raises(AtollError, match="nfedgnn for node ones, so they cannot be compared"):
        Comparison(["fedavg", "nfedgnn"], dataset="csbm", seeds=[0]).trials()


def test_a_sweep_is_a_grid() -> None:
    """Every combination of the values that an algorithm has is a row; one that has none of them is one row."""
    sweep = {"lr": ["0.1", "0.01"], "proximal": ["0", "1"]}
    trials = Comparison(["local", "fedprox"], dataset="csbm", seeds=[0, 1], sweep=sweep).trials()
    rows = list(dict.fromkeys(trial.row for trial in trials))
    assert rows == ["local lr=0.1", "local lr=0.01", *(f"fedprox lr={lr} proximal={p}" for lr in ("0.1", "0.01") for p in "01")]
    assert {(trial.config.settings.lr, trial.config.seed) for trial in trials if trial.row == rows[0]} == {(0.1, 0), (0.1, 1)}


def test_results_with_other_data_cannot_be_added() -> None:
    """Two runs with different data never stand in one table."""
    comparison = atoll.compare("local", dataset="csbm", partition="random", parties=2, nodes=60, rounds=1, seeds=1)
    other = atoll.run("fedavg", dataset="csbm", partition="random", parties=3, nodes=60, rounds=1)
    trial = Comparison(["fedavg"], dataset="csbm", seeds=[0]).trials()[0]
    with pytest.raises(AtollError, match=r"local and fedavg have different data \(parties is 2 and 3\)"):
        comparison.add(trial, other)
    first = small("fedavg")
    check_same_data({"a": first, "b": first})
    assert flat(first)["rounds"] == first.run.rounds


def test_settings_of_one_contestant_are_said() -> None:
    """In the notes, with what the others have, and in the summary; a setting for all is not."""
    arguments: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 1, "seeds": 1}
    compared = atoll.compare("local,fedavg", **arguments, **{"fedavg.epochs": "7", "lr": 0.02})
    local = compared.results["local"][0].config.settings.epochs
    assert f"fedavg was given epochs=7 (local {local})." in compared.notes
    assert [row.get("given") for row in compared.summary()] == [None, {"epochs": 7}]
    assert not [note for note in compared.notes if "lr" in note]
    alone = atoll.compare("local,fedprox", **arguments, **{"fedprox.proximal": 0.5})
    assert "fedprox was given proximal=0.5." in alone.notes
