"""MOON against FedAvg and against a naive loop over parties."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import plain
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small


def hidden(weights: plain.Weights, party: plain.Party) -> Tensor:
    """The hidden layer of a GCN."""
    return (party.normalized_adjacency @ party.x @ weights["layers.0.weight"] + weights["layers.0.bias"]).relu()


def test_without_the_contrast_it_is_fedavg() -> None:
    """μ = 0 gives FedAvg's model and metrics, bit for bit, with dropout too."""
    moon = runner.run(small("moon", dropout=0.3, contrast_weight=0.0))
    avg = runner.run(small("fedavg", dropout=0.3))
    plain.same(moon.state["model"], avg.state["model"])
    assert plain.metrics(moon) == plain.metrics(avg)


@pytest.mark.parametrize("on", ["train", "all"])
def test_three_rounds_equal_a_loop_over_parties(on: str) -> None:
    """The contrast of cosines written out; a party's first round has none; two of three parties in a round."""
    values = {"contrast_weight": 0.7, "temperature": 0.4, "contrast_on": on, "participation": 0.7}
    config = small("moon", optimizer="sgd", lr=0.2, epochs=3, **values)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    last: dict[int, plain.Weights] = {}
    for round in range(1, 4):
        experiment.federation.begin(round)
        asked, models = list(experiment.federation.participants()), []
        for p in asked:
            own, party = plain.leaves(server), parties[p]
            rows = party.train if on == "train" else torch.ones_like(party.train)
            for _ in range(3):
                loss = party.loss(plain.forward("gcn", own, party))
                if p in last:
                    z, shared, before = hidden(own, party), hidden(server, party), hidden(last[p], party).detach()
                    near, far = (torch.cosine_similarity(z, other).div(0.4).exp() for other in (shared, before))
                    loss = loss + 0.7 * -(near / (near + far)).log()[rows].mean()
                plain.descend(own, loss, 0.2)
            last[p] = own
            models.append(own)
        server = plain.average(models, [parties[p].n for p in asked])
    assert len(last) == 3
    plain.close(runner.rounds(experiment).state["model"], server)


def test_equal_representations_cost_the_logarithm_of_two() -> None:
    """Where the last model is the shared one, every node's contrast is ln 2, at each of three parties."""
    experiment = runner.prepare(small("moon"))
    (cohort,) = experiment.engine.cohorts
    cohort.load(first_model(cohort.settings, cohort.schema, 0))
    cohort.trained_before = torch.ones(3, dtype=torch.bool)
    z = cohort.model.embed(cohort.graph).detach()
    assert float(cohort.contrast(z, z, z, cohort.graph)) == pytest.approx(3 * math.log(2), abs=1e-6)


def test_bytes() -> None:
    """4·w down; 4·w + 8 up."""
    result = runner.run(small("moon", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)


def test_with_a_projection_it_is_contrasted_and_classified() -> None:
    """A network written out: two linear layers on the backbone's output, the classifier on them; batches and blocks alike."""
    (cohort,) = runner.prepare(small("moon", projection=7, hidden=6)).engine.cohorts  # type: ignore[attr-defined]
    model = first_model(cohort.settings, cohort.schema, 0)
    cohort.load(model)
    outputs, rows = cohort.predict(model).detach(), cohort.model.embed(cohort.graph).detach()
    for party, (first, last) in zip(plain.parties(cohort.graph), cohort.graph.blocks.ranges, strict=True):
        encoder = {name.removeprefix("encoder."): value for name, value in model.items() if name.startswith("encoder.")}
        h = plain.forward("gcn", encoder, party).relu()
        h = (h @ model["head.0.weight"] + model["head.0.bias"]).relu()
        z = h @ model["head.1.weight"] + model["head.1.bias"]
        torch.testing.assert_close(rows[first:last], z, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(outputs[first:last], z @ model["head.2.weight"] + model["head.2.bias"], atol=1e-5, rtol=1e-4)
    values = {"projection": 7, "hidden": 6, "optimizer": "sgd", "lr": 0.1, "contrast_weight": 0.7}
    whole = runner.run(small("moon", **values))
    batched = runner.run(small("moon", **values, batch_size=100, fan_out=0))
    plain.close(batched.state["model"], whole.state["model"], 1e-4)
    plain.same(runner.run(small("moon", **values, placement="apart")).state["model"], whole.state["model"])
    without = runner.run(small("moon", **{**values, "contrast_weight": 0.0}))
    assert not torch.equal(without.state["model"]["head.1.weight"], whole.state["model"]["head.1.weight"])
    with pytest.raises(AtollError, match="no form outside atoll"):
        cohort.party_models(model)


@pytest.mark.parametrize("projection", [0, 7])
def test_a_stored_embedding_gives_the_same_numbers(projection: int) -> None:
    """What the last model made of the nodes, or that model: the same bits, wherever parties live."""
    values = {"projection": projection, "dropout": 0.3, "participation": 0.7, "rounds": 4}
    model, rows = (runner.run(small("moon", stored=word, **values)) for word in ("model", "embedding"))
    plain.same(model.state["model"], rows.state["model"])
    assert plain.metrics(model) == plain.metrics(rows)
    for more in ({"placement": "apart"}, {"amnesia": "true"}):
        plain.close(runner.run(small("moon", stored="embedding", **values, **more)).state["model"], rows.state["model"], 1e-6)
    with pytest.raises(AtollError, match="stored=embedding is for nodes and whole graphs"):
        runner.run(small("moon", stored="embedding", batch_size=4))
