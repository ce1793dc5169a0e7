"""AdaFGL against FedAvg, its signed propagation and its personal stage against dense formulas, party by party."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll.algorithms.adafgl import networks
from atoll.errors import AtollError
from atoll.runs import runner
from small import small


def test_without_the_personal_stage_it_is_fedavg() -> None:
    """Bit for bit, with dropout, and with FedAvg's bytes."""
    ada = runner.run(small("adafgl", dropout=0.3, personal_stage=False))
    avg = runner.run(small("fedavg", dropout=0.3, weighting="nodes"))
    plain.same(ada.state["model"], avg.state["model"])
    assert plain.metrics(ada) == plain.metrics(avg)
    assert ada.bytes == avg.bytes


@pytest.mark.parametrize("shared_model", ["best", "last"])
def test_the_shared_stage_is_fedavg_and_the_personal_one_sends_nothing(shared_model: str) -> None:
    """The shared model stays as FedAvg left it; bytes: 4·w and 4·w + 8 (+ 16), once 4·w more or 8·w and 16, then 0."""
    ada = runner.run(small("adafgl", rounds=5, dropout=0.3, shared_rounds=2, shared_model=shared_model))
    avg = runner.run(small("fedavg", rounds=2, dropout=0.3, weighting="nodes"))
    plain.same(ada.state["model"], avg.state["model"])
    w, more = 4 * plain.size(avg.state["model"]), 16 if shared_model == "best" else 0
    sent = {"best": (2 * w, 16), "last": (w, 0)}[shared_model]
    assert ada.bytes["down"] == 3 * (2 * w + sent[0])
    assert ada.bytes["up"] == 3 * (2 * (w + 8 + more) + sent[1])
    assert [(row["down"], row["up"]) for row in ada.rows[3:]] == [(0, 0), (0, 0)]
    assert ada.rows[-1]["val_loss"] != ada.rows[-2]["val_loss"]


def test_the_personal_stage_begins_from_the_best_shared_model() -> None:
    """That of the round whose validation accuracy, weighted by nodes, is highest, the first of equals; all parties keep it."""
    recipe: dict[str, Any] = {"lr": 0.3, "average": "nodes", "weighting": "nodes"}
    ada = runner.run(small("adafgl", rounds=7, shared_rounds=6, **recipe))
    scores = [float(row["val_accuracy"]) for row in runner.run(small("fedavg", rounds=6, **recipe)).rows]
    best = scores.index(max(scores)) + 1
    assert best < 6  # not the last one
    assert float(ada.state["score"]) == pytest.approx(max(scores))
    plain.close(ada.state["best"], runner.run(small("fedavg", rounds=best, **recipe)).state["model"])
    for name, value in ada.memory["0"]["kept"].items():
        assert torch.equal(value, ada.state["best"][name].expand_as(value))


def test_without_validation_nodes_it_begins_from_the_last_shared_model() -> None:
    """There is nothing to choose by: not from the first one, which nobody has trained."""
    split: dict[str, Any] = {"train": 0.5, "val": 0.0, "test": 0.5, "select_by": "last"}
    best = runner.run(small("adafgl", rounds=4, shared_rounds=3, **split)).state["best"]
    plain.close(best, runner.run(small("fedavg", rounds=3, **split)).state["model"])


def dense_propagation(rows: Tensor, related: Tensor, slope: Tensor, share: float, negative: str) -> Tensor:
    """The formula as it is written, with all pairs at once."""
    unit = F.normalize(torch.softmax(rows, 1), dim=1)
    cosines = unit @ unit.t()
    similar = share * related.float() + (1 - share) * (cosines - torch.diag(torch.diag(cosines)))
    mean, top = similar.mean(), similar.max()
    centered = similar - mean
    below = -(centered + mean) / mean if negative == "authors" else centered / mean
    signed = torch.where(centered > 0, centered / (top - mean), below) + torch.eye(len(rows))
    positive, opposite = F.prelu(signed, slope) @ rows, F.prelu(-signed, slope) @ rows
    return (torch.softmax(positive, 1) - torch.softmax(opposite, 1) + rows) / 2


@pytest.mark.parametrize("negative", ["authors", "linear"])
@pytest.mark.parametrize("pairs", [1 << 22, 60], ids=["whole", "blocks"])
def test_signed_propagation(pairs: int, negative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of B and the slope, in one block or in blocks that the backward pass computes again."""
    monkeypatch.setattr(networks, "MAX_PAIRS", pairs)
    source = torch.Generator().manual_seed(0)
    rows, slope = torch.randn(17, 3, generator=source).requires_grad_(), torch.tensor([0.25], requires_grad=True)
    related = networks.related_pairs(torch.randn(17, 3, generator=source), 0.9)
    assert related.any()
    assert not related.diagonal().any()
    direction = torch.randn(17, 3, generator=source)
    found, expected = (made(rows, related, slope, 0.2, negative) for made in (networks.signed_propagation, dense_propagation))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    for one, other in zip(
        *(torch.autograd.grad((out * direction).sum(), [rows, slope]) for out in (found, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)


def test_signed_propagation_of_one_node_and_of_equal_ones() -> None:
    """Nothing is divided by 0."""
    for rows in (torch.zeros(1, 3), torch.ones(4, 3)):
        made = networks.signed_propagation(
            rows, torch.zeros(len(rows), len(rows), dtype=torch.bool), torch.tensor([0.25]), 0.2, "authors"
        )
        assert torch.isfinite(made).all()


def mlp(weights: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    """The layers with a PReLU between them."""
    index = 0
    while f"{prefix}.layers.{index}.weight" in weights:
        x = F.prelu(x, weights[f"{prefix}.slope"]) if index else x
        x = x @ weights[f"{prefix}.layers.{index}.weight"] + weights[f"{prefix}.layers.{index}.bias"]
        index += 1
    return x


def parts(weights: dict[str, Tensor], party: plain.Party, q: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Logits of the homophilous branch, and the three parts of the other, with dense matrices."""
    unit = F.normalize(torch.softmax(q, 1), dim=1)
    related = (unit @ unit.t() > 0.999).fill_diagonal_(False)
    both = 0.05 * party.adjacency + 0.95 * related.float() + torch.eye(len(q))
    scale = both.sum(1) ** -0.5
    smoothing = scale[:, None] * both * scale
    hops = [party.x]
    for _ in range(3):
        hops.append(smoothing @ hops[-1])
    wide = torch.cat(hops, 1)
    signed = dense_propagation(mlp(weights, "signed", wide), related, weights["signed.slope"], 0.2, "authors")
    return mlp(weights, "homophilous", wide), [mlp(weights, "own", party.x), mlp(weights, "smooth", wide), signed]


@pytest.mark.parametrize("combine", ["choice", "mixture"])
def test_two_personal_steps_equal_a_loop_over_parties(combine: str) -> None:
    """Both branches' networks after two steps, and what each party predicts with them."""
    values: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "epochs": 2, "homophily_threshold": 0.3, "combine": combine}
    config = small("adafgl", rounds=2, hidden=8, shared_model="last", **values)
    experiment, parties = plain.prepare(config)
    first = {name: value.detach().clone() for name, value in experiment.engine.cohorts[0].personal.named_parameters()}  # type: ignore[attr-defined]
    result = runner.rounds(experiment)
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    outputs = torch.split(cohort.predict(), cohort.graph.sizes)
    shared = result.state["model"]
    used = []
    for p, party in enumerate(parties):
        q = torch.softmax(plain.forward("gcn", shared, party), 1)
        weights = plain.leaves({name: value[p] for name, value in first.items()})
        homophily = float(cohort.homophily[p])
        share = homophily if combine == "mixture" else float(homophily >= 0.3)
        used.append(share)
        for _ in range(2):
            same, others = parts(weights, party, q)
            loss = party.loss(same) + F.mse_loss(same, q) + (sum(party.loss(part) for part in others) if share < 1 else 0)
            trained = {n: v for n, v in weights.items() if share < 1 or n.startswith("homophilous")}
            plain.descend(trained, loss, 0.05)
        names = [name for name in weights if share < 1 or name.startswith("homophilous")]
        found = dict(cohort.personal.named_parameters())
        plain.close({name: found[name][p].detach() for name in names}, {name: weights[name] for name in names}, 1e-4)
        same, others = parts(weights, party, q)
        alike = (torch.softmax(same, 1) + torch.softmax(q, 1)) / 2
        unlike = torch.stack([torch.softmax(part, 1) for part in others]).mean(0)
        torch.testing.assert_close(outputs[p].exp(), share * alike + (1 - share) * unlike, atol=1e-4, rtol=1e-3)
    assert combine == "mixture" or {0.0, 1.0} == set(used)  # both branches are chosen by some party


def test_homophily_is_the_accuracy_of_propagated_labels() -> None:
    """Half of the training nodes keep their label, ten steps, the other half is judged; a share of its size."""
    experiment = runner.prepare(small("adafgl", rounds=2))
    runner.rounds(experiment)
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    judged = cohort.graph.num_train - cohort.graph.num_train // 2
    right = cohort.homophily * judged
    torch.testing.assert_close(right, right.round(), atol=1e-4, rtol=0)
    assert torch.equal(cohort.homophily, cohort.measured_homophily())  # it follows from the seed alone
    assert 0 < float(cohort.homophily.mean()) < 1


def test_a_party_with_too_many_nodes_is_refused() -> None:
    """In one sentence, when the personal stage begins."""
    with pytest.raises(AtollError, match="compares all pairs of a party's nodes"):
        runner.run(small("adafgl", rounds=2, largest_party=5))


def test_who_was_away_when_the_stage_began_is_told_later() -> None:
    """A party that was missing adopts the shared model in the next round."""
    from small import Absent

    experiment = runner.prepare(small("adafgl", rounds=3), engine=lambda engine: Absent(engine, {2}, {1}))
    result = runner.rounds(experiment)
    assert bool(result.state["adopted"].all())
    assert [row.get("missing") for row in result.rows] == [None, {"1": "timed out"}, None]
