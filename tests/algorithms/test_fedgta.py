"""FedGTA against FedAvg, Local and a naive loop over parties; its moments and who shares with whom."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import plain
from atoll.algorithms import fedgta
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small


@pytest.mark.parametrize("model", ["gcn", "gamlp"])
def test_one_model_for_all_is_fedavg(model: str) -> None:
    """ε = −1 and equal confidence: FedAvg with plain means, bit for bit, with dropout."""
    gta = runner.run(small("fedgta", model=model, dropout=0.3, similarity_threshold=-1.0, confidence=False))
    avg = runner.run(small("fedavg", model=model, dropout=0.3, weighting="parties"))
    for party in range(3):
        plain.same({name: value[party] for name, value in gta.state["model"].items()}, avg.state["model"])
    assert plain.metrics(gta) == plain.metrics(avg)


def test_each_alone_is_local() -> None:
    """ε = 1: every party's own model, Local's that begin alike, bit for bit, whatever its confidence."""
    gta = runner.run(small("fedgta", dropout=0.3, similarity_threshold=1.0))
    local = runner.run(small("local", dropout=0.3, start="shared"))
    plain.same(gta.state["model"], local.memory["0"]["model"])
    assert plain.metrics(gta) == plain.metrics(local)


def described(party: plain.Party, logits: Tensor, settings: Any) -> tuple[Tensor, float]:
    """A party's moments and its confidence, in plain torch."""
    s, classes = settings, logits.shape[1]
    own = torch.nn.functional.one_hot(party.y, classes).float()
    first = torch.softmax(logits, 1)
    first[party.train] = own[party.train]
    rows = first.clone()
    for _ in range(s.propagation_steps):
        rows = s.propagation_share * (party.normalized_adjacency @ rows) + (1 - s.propagation_share) * first
        if s.boost_training:
            rows[party.train] += first[party.train]
    sharp = soft = rows
    if s.softened:
        sharp, soft = torch.softmax(rows, 1), torch.softmax(rows / s.temperature, 1)
        sharp[party.train] = soft[party.train] = own[party.train]
    raw = [(sharp**order).mean(0) for order in range(1, s.moment_order + 1)]
    central = [((sharp - sharp.mean(0)) ** order).mean(0) for order in range(1, s.moment_order + 1)]
    moments = {"raw": raw, "central": central, "hybrid": raw + central}[s.moments]
    confidence = 0.0
    for node, row in enumerate(soft):
        entropies = sum(float(value) * math.log(float(value) + 1e-8) for value in row)
        confidence += float(party.adjacency[node].sum()) * (classes / math.e + entropies)
    return torch.cat(moments), confidence


@pytest.mark.parametrize(
    "values",
    [{"moments": "hybrid"}, {"moments": "central", "variant": "paper"}, {"moments": "raw", "propagation_share": 0.3}],
    ids=str,
)
def test_three_rounds_equal_a_loop_over_parties(values: dict[str, Any]) -> None:
    """Training, propagation, moments, confidence and mixtures; the threshold lies between the parties' similarities."""
    config = small("fedgta", optimizer="sgd", lr=0.3, epochs=3, similarity_threshold=0.96, **values)
    experiment, parties = plain.prepare(config)
    own = [first_model(config.settings, experiment.federation.schema, config.seed) for _ in parties]
    found = []
    for _ in range(3):
        models, all_moments, weights = [], [], []
        for party, weights_before in zip(parties, own, strict=True):
            model = plain.leaves(weights_before)
            for _ in range(3):
                plain.descend(model, party.loss(plain.forward("gcn", model, party)), 0.3)
            moments, confidence = described(party, plain.forward("gcn", model, party).detach(), config.settings)
            models.append({name: value.detach() for name, value in model.items()})
            all_moments.append(moments)
            weights.append(confidence)
        own = []
        for k in range(3):
            alike = [
                j for j in range(3) if j == k or float(torch.cosine_similarity(all_moments[k], all_moments[j], dim=0)) > 0.96
            ]
            found.append(len(alike))
            total = sum(weights[j] for j in alike)
            own.append({name: sum(models[j][name] * weights[j] for j in alike) / total for name in models[0]})
    result = runner.rounds(experiment)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.state["model"].items()}, own[p], 1e-4)
    assert len(set(found)) > 1  # not all share with equally many


def test_moments_of_equal_predictions() -> None:
    """Raw ones are their powers, central ones are 0."""
    cohort = runner.prepare(small("fedgta", moments="hybrid", moment_order=2)).engine.cohorts[0]
    rows = torch.tensor([0.5, 0.3, 0.2]).expand(cohort.graph.num_nodes, 3)
    moments = cohort.moments_of(rows)
    torch.testing.assert_close(moments[:, :3], rows[:3], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(moments[:, 3:6], rows[:3] ** 2, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(moments[:, 6:], torch.zeros(3, 6), atol=1e-6, rtol=0)


def test_who_shares_with_whom() -> None:
    """Above the threshold, and always oneself; mixtures are weighted by confidence, or plain where nobody has any."""
    moments = torch.tensor([[1.0, 0.0], [2.0, 0.2], [0.0, 1.0], [0.0, 0.0]])
    expected = torch.eye(4, dtype=torch.bool)
    assert torch.equal(fedgta.similar(moments, 1.0), expected)
    expected[0, 1] = expected[1, 0] = True
    assert torch.equal(fedgta.similar(moments, 0.5), expected)
    models = {"w": torch.tensor([[1.0], [3.0], [100.0]])}
    two = torch.tensor([True, True, False])
    assert float(fedgta.mixture(models, torch.tensor([3.0, 1.0, 9.0]), two)["w"]) == 1.5
    assert float(fedgta.mixture(models, torch.zeros(3), two)["w"]) == 2.0


def test_who_is_not_asked_keeps_its_model() -> None:
    """With some of the parties in a round the replies are not mixed up with the parties' numbers."""
    before = runner.run(small("fedgta", rounds=1, participation=0.7, similarity_threshold=1.0))
    first = first_model(before.config.settings, runner.prepare(before.config).federation.schema, before.config.seed)
    unchanged = [p for p in range(3) if all(torch.equal(v[p], first[name]) for name, v in before.state["model"].items())]
    assert len(unchanged) == 1


@pytest.mark.parametrize(("moments", "count"), [("hybrid", 12), ("raw", 6)])
def test_bytes(moments: str, count: int) -> None:
    """4·w down; 4·(w + M + 1) up."""
    result = runner.run(small("fedgta", rounds=2, moments=moments, moment_order=2))
    parameters = plain.size(result.state["model"]) // 3
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * 4 * (parameters + count + 1)
