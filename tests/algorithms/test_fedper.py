"""FedPer against FedAvg, Local and a naive loop over parties."""

from __future__ import annotations

import pytest

import plain
from atoll.algorithms.fedper import Settings, base_of
from atoll.federation.cohort import first_model
from atoll.models.registry import build
from atoll.runs import runner
from small import small


@pytest.mark.parametrize("model", ["gcn", "sgc", "sage"])
def test_without_personal_layers_it_is_fedavg(model: str) -> None:
    """personal_layers = 0 gives FedAvg's model and metrics, bit for bit."""
    per = runner.run(small("fedper", model=model, dropout=0.3, personal_layers=0))
    avg = runner.run(small("fedavg", model=model, dropout=0.3))
    plain.same(per.state["base"], avg.state["model"])
    assert plain.metrics(per) == plain.metrics(avg)


@pytest.mark.parametrize(("model", "personal"), [("gcn", 2), ("sgc", 1), ("sage", 5)])
@pytest.mark.parametrize("amnesia", ["false", "true"])
def test_with_personal_layers_only_it_is_local(model: str, personal: int, amnesia: str) -> None:
    """Where every layer is personal nothing is shared: Local, bit for bit, also when messages travel as bytes."""
    per = runner.run(small("fedper", model=model, dropout=0.3, personal_layers=personal, amnesia=amnesia))
    local = runner.run(small("local", model=model, dropout=0.3))
    plain.same(per.memory["0"]["model"], local.memory["0"]["model"])
    assert plain.metrics(per) == plain.metrics(local)
    assert per.bytes["down"] == 0
    assert per.bytes["up"] == 3 * 3 * 8


@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_two_rounds_equal_a_loop_over_parties(model: str) -> None:
    """The first layer is averaged, the second stays; both train."""
    config = small("fedper", model=model, rounds=2, optimizer="sgd", lr=0.2, epochs=3)
    experiment, parties = plain.prepare(config)
    first = experiment.engine.state()["0"]["model"]
    heads = [{name: value[p].clone() for name, value in first.items() if name.startswith("layers.1")} for p in range(3)]
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for _ in range(2):
        bases = []
        for p, party in enumerate(parties):
            own = plain.leaves({**server, **heads[p]})
            for _ in range(3):
                plain.descend(own, party.loss(plain.forward(model, own, party)), 0.2)
            heads[p] = {name: own[name].detach() for name in heads[p]}
            bases.append(own)
        server = plain.average(bases, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["base"], {name: value for name, value in server.items() if name.startswith("layers.0")})
    for p, head in enumerate(heads):
        plain.close({name: result.memory["0"]["model"][name][p] for name in head}, head)


@pytest.mark.parametrize(
    ("model", "personal", "expected"),
    [
        ("gcn", 1, {"layers.0", "layers.1"}),
        ("gcn", 2, {"layers.0"}),
        ("gcn", 7, set()),
        ("sage", 1, {"layers.0", "layers.1"}),
        ("gcnii", 1, {"input", "layers.0", "layers.1", "layers.2"}),
        ("gcnii", 2, {"input", "layers.0", "layers.1"}),
    ],
)
def test_layers_are_counted_from_the_top(model: str, personal: int, expected: set[str]) -> None:
    """The shared parameters are those of the lower layers, whatever the backbone calls them."""
    network = build(model, parties=1, features=4, classes=2, hidden=8, layers=3)
    names = base_of(network, Settings(personal_layers=personal))
    layers = {".".join(name.split(".")[: 2 if name.startswith("layers") else 1]) for name in names}
    assert layers == expected


def test_bytes() -> None:
    """4·w_B down; 4·w_B + 8 up."""
    result = runner.run(small("fedper", rounds=2))
    parameters = 12 * 64 + 64
    assert plain.size(result.state["base"]) == parameters
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)
