"""Memory of another run's parties: each party gets the rows that it had, wherever it lives."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll import wire
from atoll.federation.adoption import adopt, check_form
from atoll.runs import runner
from small import small


def remembered(algorithm: str, seed: int, **values: Any) -> tuple[Any, dict[str, Any]]:
    """The parties of a run of one round, and what they remember."""
    experiment = runner.prepare(small(algorithm, seed=seed, rounds=1, **values))
    runner.rounds(experiment)
    engine: Any = experiment.engine
    return engine, engine.snapshot()


@pytest.mark.parametrize("placement", ["together", "apart"])
def test_every_party_has_its_row(placement: str) -> None:
    """As a loop over parties and pieces would do it; a party that is new keeps what it has."""
    trained = remembered("apfl", 3)[1]
    engine, own = remembered("apfl", 5, placement=placement)
    before = torch.tensor([2, -1, 0])
    assert sorted(adopt(engine.cohorts, trained, before)) == ["mixture", "personal"]
    now = dict(wire.leaves(engine.snapshot()))
    for name, value in wire.leaves(trained):
        for party, row in enumerate(before.tolist()):
            assert torch.equal(now[name][party], dict(wire.leaves(own))[name][party] if row < 0 else value[row]), name


@pytest.mark.parametrize("placement", ["together", "apart"])
@pytest.mark.parametrize("algorithm", ["fedspray", "fedstar", "nfedgnn", "cnfgnn"])
def test_the_same_data_has_every_row(algorithm: str, placement: str) -> None:
    """Also what is kept per node, training node or feature; optimizers keep their own."""
    trained = remembered(algorithm, 3)[1]
    engine: Any = runner.prepare(small(algorithm, seed=3, placement=placement)).engine
    optimizers = {key: {name: item for name, item in site.items() if "optimizer" in name} for key, site in engine.state().items()}
    adopt(engine.cohorts, trained, None)
    now = dict(wire.leaves(engine.snapshot()))
    assert all(torch.equal(now[name], value) for name, value in wire.leaves(trained))
    after = dict(wire.leaves(engine.state()))
    assert all(torch.equal(after[name], value) for name, value in wire.leaves(optimizers))


def test_what_belongs_to_nodes_stays_with_them() -> None:
    """On other data, memory per node is not given; weights that are kept by features not even in part."""
    assert adopt(remembered("fedspray", 5)[0].cohorts, remembered("fedspray", 3)[1], torch.arange(3)) == ["gnn"]
    assert adopt(remembered("cnfgnn", 5)[0].cohorts, remembered("cnfgnn", 3)[1], torch.arange(60)) == []
    assert adopt([], {"model": torch.zeros(3, 1)}, torch.arange(3)) == []


def test_other_forms_are_named() -> None:
    """A missing piece, another shape, another type; with `rows` their number may differ."""
    check_form("it", {"a": torch.zeros(2, 3)}, {"a": torch.zeros(2, 3)})
    check_form("it", {"a": torch.zeros(2, 3)}, {"a": torch.zeros(5, 3)}, rows=True)
    for there, here, sentence in (
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, "it had a, which it does not have here"),
        ({}, {"b": torch.zeros(2)}, "it had no b"),
        ({"a": torch.zeros(2, 3)}, {"a": torch.zeros(2, 4)}, r"it a would be \(2, 4\) and was \(2, 3\)"),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2), r"it would be \(2,\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check_form("it", there, here)
