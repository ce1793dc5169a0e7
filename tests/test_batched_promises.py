"""The promises of the design with mini-batches on, for every algorithm that has them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atoll import algorithms
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.settings import BatchedTraining
from small import Recorded, small
from test_promises import assert_resume_is_exact, assert_same, numbers, partial, run, usual

MODULES = {name: algorithms.find(name) for name in algorithms.names()}
BATCHED = [name for name, one in MODULES.items() if issubclass(one.Settings, BatchedTraining) and not one.Cohort.whole_graph]
SAMPLERS: dict[str, dict[str, Any]] = {
    "neighbors": {"fan_out": "2,1"},
    "layers": {"sampler": "layers", "fan_out": "2"},
    "clusters": {"sampler": "clusters"},
}
USUAL = {"dropout": 0.3, "hidden": 8, "epochs": 2, "model": "gcn", "layers": 2}
OWN = {"feddep": {"model": "sage"}, "fedgcn": {"layers": 3}}  # it trains no other model; it samples over one hop less
PLACED = [
    *(("neighbors", 1.0), ("neighbors", 0.5), ("layers", 0.5), ("clusters", 0.5)),
    *(pytest.param(sampler, 1.0, marks=pytest.mark.full) for sampler in ("layers", "clusters")),
]

pytestmark = pytest.mark.parametrize("algorithm", BATCHED)


def values_of(algorithm: str) -> dict[str, Any]:
    """The settings of the runs here: of random parties one has twice as many nodes as the next, and so more batches."""
    uneven = {"size_exponent": 1.0} if MODULES[algorithm].SCENARIOS[0] == "horizontal" else {}
    return USUAL | uneven | OWN.get(algorithm, {})


def batched(algorithm: str, sampler: str = "neighbors", **values: Any) -> Config:
    """A small run with four training nodes per batch."""
    return small(algorithm, **{**values_of(algorithm), "batch_size": 4, **SAMPLERS[sampler], **values})


def test_with_all_neighbors_it_is_full_batch_training(algorithm: str) -> None:
    """One batch of all training nodes with all their neighbors: the numbers of training on the whole graph."""
    if algorithm == "fedbn":
        pytest.skip("batch norm is over the nodes that a step computes, which are not all nodes")
    still = {"dropout": 0.0, "input_dropout": 0.0}
    whole = usual(small(algorithm, **{**values_of(algorithm), **still}))
    for sampler in ("neighbors", "layers"):
        values = {**still, "batch_size": 1000, "fan_out": "0"}
        assert_same(whole, run(batched(algorithm, sampler, **values)), 1e-4 if algorithm == "gcfl" else 1e-5)


@pytest.mark.parametrize(("sampler", "participation"), PLACED)
def test_placement_does_not_matter(algorithm: str, sampler: str, participation: float) -> None:
    """All parties in one cohort, or each at a site of its own, all or some of them: the same numbers and bytes."""
    if not partial(algorithm):
        participation = 1.0  # it needs every party in every round
    together = usual(batched(algorithm, sampler, participation=participation))
    assert_same(together, run(batched(algorithm, sampler, participation=participation, placement="apart")), 1e-5)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_memory_is_declared(algorithm: str, participation: float) -> None:
    """Parties rebuilt from their declared memory before every message give the same numbers."""
    if participation < 1 and not partial(algorithm):
        pytest.skip(f"{algorithm} needs every party in every round")
    forgetful = run(batched(algorithm, participation=participation, amnesia="true"))
    assert_same(usual(batched(algorithm, participation=participation)), forgetful, 1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_resume_is_exact(algorithm: str, sampler: str, tmp_path: Any) -> None:
    """Broken off and resumed, a run ends with the same bits in state, memory, history and bytes."""
    assert_resume_is_exact(batched(algorithm, sampler, checkpoint_every=1), 2, tmp_path)


def test_the_bill_is_exact(algorithm: str) -> None:
    """The ledger's bytes are those of the messages really encoded, and those of training on the whole graph."""
    recorded: list[Recorded] = []

    def wrap(engine: Any) -> Recorded:
        recorded.append(Recorded(engine))
        return recorded[0]

    experiment = runner.prepare(batched(algorithm, placement="apart"), engine=wrap)
    result = runner.rounds(experiment)
    counted = {
        (round, verb, training, party): row[:4].tolist()
        for round, rows in experiment.federation.ledger.rounds.items()
        for (verb, training), table in rows.items()
        for party, row in enumerate(table)
        if row.any()
    }
    assert counted == recorded[0].bytes
    assert result.bytes == usual(small(algorithm, **values_of(algorithm))).bytes


def test_batches_matter_and_default_off(algorithm: str) -> None:
    """Mini-batches give other numbers than the whole graph; without a batch_size the settings are left out of a digest."""
    from atoll.settings import first_named

    assert numbers(usual(batched(algorithm))) != numbers(usual(small(algorithm, **values_of(algorithm))))
    settings = small(algorithm).settings
    assert not {"batch_size", "fan_out", "sampler"} & first_named(settings).keys()
    assert first_named(replace(settings, batch_size=4))["batch_size"] == 4
    with pytest.raises(AtollError, match="batch_size is 0"):
        small(algorithm, fan_out="3")
