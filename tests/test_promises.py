"""The promises of the design, for every algorithm there is: a new algorithm is tested here without a line of its own."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import algorithms, wire
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.runner import Result
from small import ALGORITHMS, Absent, Poisoned, Recorded, Wrapper, on_shards, parties_of, small

MAX_USUAL = 8  # runs that are kept

pytestmark = pytest.mark.parametrize("algorithm", ALGORITHMS)


def run(config: Config, engine: Any = None) -> Result:
    """A run without files, its engine perhaps wrapped."""
    return runner.rounds(runner.prepare(config, engine=engine))


def usual(config: Config) -> Result:
    """The run that others are compared with, made once for the tests of an algorithm."""
    key = str(config.to_dict())
    if key not in _usual:
        while len(_usual) >= MAX_USUAL:
            _usual.pop(next(iter(_usual)))
        _usual[key] = run(config)
    return _usual[key]


_usual: dict[str, Result] = {}


def tensors(result: Result) -> dict[str, torch.Tensor]:
    """The server's state, by name."""
    return {name: value for name, value in wire.leaves(result.state) if isinstance(value, torch.Tensor)}


def numbers(result: Result) -> list[dict[str, Any]]:
    """The history without the clock."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in result.rows]


def assert_same(one: Result, other: Result, tolerance: float) -> None:
    """The same states, metrics and bytes."""
    assert tensors(one).keys() == tensors(other).keys()
    for name, value in tensors(one).items():
        near = {"atol": tolerance, "rtol": tolerance, "equal_nan": True}
        torch.testing.assert_close(value, tensors(other)[name], **near, msg=lambda m, n=name: f"{n}: {m}")
    for row, same in zip(numbers(one), numbers(other), strict=True):
        assert row.keys() == same.keys()
        for name, value in row.items():
            if isinstance(value, float):
                assert math.isclose(value, same[name], rel_tol=tolerance, abs_tol=tolerance), f"round {row['round']} {name}"
            elif isinstance(value, list):
                assert [one is None for one in value] == [one is None for one in same[name]]
                there = [one for one in same[name] if one is not None]
                assert [one for one in value if one is not None] == pytest.approx(there, rel=tolerance, abs=tolerance)
            else:
                assert value == same[name], f"round {row['round']} {name}"
    assert one.bytes == other.bytes


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_placement_does_not_matter(algorithm: str, participation: float) -> None:
    """All parties in one cohort, or each at a site of its own: the same numbers and bytes."""
    if participation < 1 and not partial(algorithm):
        pytest.skip(f"{algorithm} needs every party in every round")
    together = usual(small(algorithm, participation=participation))
    apart = run(small(algorithm, participation=participation, placement="apart"))
    assert_same(together, apart, 1e-5)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_memory_is_declared(algorithm: str, participation: float) -> None:
    """Parties rebuilt from their declared memory before every message give the same numbers."""
    if participation < 1 and not partial(algorithm):
        pytest.skip(f"{algorithm} needs every party in every round")
    forgetful = run(small(algorithm, participation=participation, amnesia="true"))
    assert_same(usual(small(algorithm, participation=participation)), forgetful, 1e-6)


def test_runs_repeat_exactly(algorithm: str) -> None:
    """The same configuration gives the same bits, whatever was drawn from torch's global generator in between."""
    first = usual(small(algorithm))
    torch.rand(7)
    second = run(small(algorithm))
    assert_same(first, second, 0.0)
    assert numbers(first) == numbers(second)


def test_shards_give_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    """From shards, with features on disk, a run gives the bits of the run that they were cut from, in every scenario."""
    for scenario in algorithms.find(algorithm).SCENARIOS:
        config = small(algorithm, scenario=scenario)
        whole, stored = usual(config), run(on_shards(config, tmp_path / scenario, budget=1e-9))
        assert_same(whole, stored, 0.0)
        assert numbers(whole) == numbers(stored)


def test_seeds_matter(algorithm: str) -> None:
    """Another seed gives other numbers."""
    assert numbers(usual(small(algorithm, seed=3))) != numbers(run(small(algorithm, seed=4)))


class Broken(Exception):
    """Stands for a process that dies."""


def assert_resume_is_exact(config: Config, stop: int, folder: Path) -> None:
    """A run that breaks off after that round and is resumed ends as one that did not: state, memory, history, bytes."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == stop:
            raise Broken

    whole = usual(config)
    with pytest.raises(Broken):
        runner.run(config, out=folder / "broken", watch=watch)
    resumed = runner.resume(folder / "broken")
    assert_same(whole, resumed, 0.0)
    assert numbers(whole) == numbers(resumed)
    for (name, value), (_, same) in zip(wire.leaves(whole.memory), wire.leaves(resumed.memory), strict=True):
        assert torch.equal(value, same), name


@pytest.mark.parametrize("stop", [1, 3])
def test_resume_is_exact(algorithm: str, stop: int, tmp_path: Any) -> None:
    """Broken off after any round and resumed, a run ends with the same bits in state, memory, history and bytes."""
    assert_resume_is_exact(small(algorithm, rounds=4, checkpoint_every=2), stop, tmp_path)


def test_the_bill_is_exact(algorithm: str) -> None:
    """The ledger's bytes are those of the messages really encoded, party by party; training and evaluation kept apart."""
    recorded: list[Recorded] = []

    def wrap(engine: Any) -> Recorded:
        recorded.append(Recorded(engine))
        return recorded[0]

    experiment = runner.prepare(small(algorithm, placement="apart"), engine=wrap)
    runner.rounds(experiment)
    counted: dict[tuple[int, str, bool, int], list[int]] = {}
    for round, rows in experiment.federation.ledger.rounds.items():
        for (verb, training), table in rows.items():
            for party, row in enumerate(table):
                if row.any():  # not every verb goes to every party
                    counted[round, verb, training, party] = row[:4].tolist()
    assert counted == recorded[0].bytes


def test_a_missing_party_is_named_and_the_round_goes_on(algorithm: str) -> None:
    """Without one party in round 2 the run goes on, or says in one sentence that it cannot; with `on_missing=stop` it stops."""
    if parties_of(algorithm) == 1:
        pytest.skip(f"{algorithm} has a single party")

    def absent(engine: Any) -> Wrapper:
        return Absent(engine, {2}, {1})

    if partial(algorithm):
        result = run(small(algorithm), absent)
        assert [row.get("missing") for row in result.rows] == [None, {"1": "timed out"}, None]
    else:
        with pytest.raises(AtollError, match="party 1"):
            run(small(algorithm), absent)
    with pytest.raises(AtollError, match=r"Round 2.*party 1: timed out"):
        run(small(algorithm, on_missing="stop"), absent)


def test_a_poisoned_reply_is_refused(algorithm: str) -> None:
    """A party that sends NaN is named with the field, and left out of the round."""
    if parties_of(algorithm) == 1:
        pytest.skip(f"{algorithm} has a single party")
    recorded: list[Recorded] = []
    run(small(algorithm, rounds=1), lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    training = [answers for message, answers in recorded[0].delivered if message.round == 1 and message.training]
    if not any(value.dtype.is_floating_point for answers in training for a in answers for _, value in wire.leaves(a.fields)):
        pytest.skip(f"{algorithm}'s parties send no numbers while training")

    def poisoned(engine: Any) -> Wrapper:
        return Poisoned(engine, 2, 1)

    if partial(algorithm):
        result = run(small(algorithm), poisoned)
        assert "is not finite" in result.rows[1]["missing"]["1"]
        assert all(torch.isfinite(value).all() for value in tensors(result).values() if value.is_floating_point())
    else:
        with pytest.raises(AtollError, match=r"party 1.*is not finite"):
            run(small(algorithm), poisoned)


def test_settings_have_a_sentence_each_and_one_place(algorithm: str) -> None:
    """Every setting says what it is in one sentence, and no two groups share a name."""
    from atoll.runs.config import groups_of
    from atoll.runs.setting_names import PREFIXED
    from atoll.settings import known

    names: list[str] = []
    for prefix, group in groups_of(algorithm, "csbm").items():
        for name, field in known(group).items():
            names.append(f"{prefix}.{name}" if prefix in PREFIXED else name)
            assert field.metadata.get("help", "").endswith("."), name
    assert sorted(names) == sorted(set(names))


def test_the_docstring_tells_bytes_and_what_the_server_sees(algorithm: str) -> None:
    """An algorithm's page begins in its docstring: the bill and what the server sees."""
    text = (algorithms.find(algorithm).__doc__ or "").lower()
    assert "byte" in text
    assert "server sees" in text


def partial(algorithm: str) -> bool:
    """Whether the algorithm can do without some of the parties in a round."""
    return algorithms.find(algorithm).SCENARIOS[0] not in ("vertical", "whole")
