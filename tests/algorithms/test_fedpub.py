"""FED-PUB against FedAvg, Local and a naive loop over parties; its similarities and its random graphs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import plain
from atoll.algorithms import fedpub
from atoll.federation.cohort import Schema, first_model
from atoll.runs import runner
from small import small

PLAIN: dict[str, Any] = {"masks": False, "proximal_weight": 0.0}
WEIGHTS = ("layers.0.weight", "layers.1.weight", "output.weight")


def test_with_equal_weights_and_without_masks_it_is_fedavg() -> None:
    """τ = 0: FedAvg with plain means, bit for bit, with dropout."""
    pub = runner.run(small("fedpub", dropout=0.3, similarity_scale=0.0, **PLAIN))
    avg = runner.run(small("fedavg", dropout=0.3, weighting="parties"))
    for party in range(3):
        plain.same({name: value[party] for name, value in pub.state["model"].items()}, avg.state["model"])
    assert plain.metrics(pub) == plain.metrics(avg)


def test_with_itself_alone_it_is_local() -> None:
    """τ → ∞: every party's own model, Local's that begin alike, bit for bit."""
    pub = runner.run(small("fedpub", dropout=0.3, similarity_scale=1e12, **PLAIN))
    local = runner.run(small("local", dropout=0.3, start="shared"))
    plain.same(pub.state["model"], local.memory["0"]["model"])
    assert plain.metrics(pub) == plain.metrics(local)


def test_without_penalties_paper_and_code_agree() -> None:
    """λ₁ = λ₂ = 0: the same bits; the authors' code sends the masks as well."""
    none = {"mask_weight": 0.0, "proximal_weight": 0.0, "dropout": 0.3, "epochs": 3}
    paper, authors = (runner.run(small("fedpub", variant=variant, **none)) for variant in ("paper", "authors"))
    plain.same(paper.state["model"], authors.state["model"])
    plain.same(paper.memory["0"]["masks"], authors.memory["0"]["masks"])
    assert plain.metrics(paper) == plain.metrics(authors)
    assert authors.bytes["up"] > paper.bytes["up"]


def forward(weights: plain.Weights, party: plain.Party, *, before: bool = False) -> Tensor:
    """Two convolutions and a linear layer; `before`: what the second convolution gives before its ReLU."""
    hidden = (party.normalized_adjacency @ party.x @ weights["layers.0.weight"] + weights["layers.0.bias"]).relu()
    hidden = party.normalized_adjacency @ hidden @ weights["layers.1.weight"] + weights["layers.1.bias"]
    return hidden if before else hidden.relu() @ weights["output.weight"] + weights["output.bias"]


@pytest.mark.parametrize(
    "values",
    [
        {"mask_weight": 0.357, "proximal_weight": 0.2},
        {"mask_weight": 1.0, "variant": "authors"},
        {"mask_weight": 0.357, "proximal_weight": 0.2, "proximal": "norm"},
    ],
    ids=["paper", "authors", "norm"],
)
def test_three_rounds_equal_a_loop_over_parties(values: dict[str, Any]) -> None:
    """Masks and weights of every party by plain steps, embeddings of the random graphs, mixtures by softmax."""
    config = small("fedpub", model="gcn_head", hidden=8, optimizer="sgd", lr=0.2, epochs=3, similarity_scale=4, **values)
    s = config.settings
    experiment, parties = plain.prepare(config)
    schema = experiment.federation.schema
    proxy = plain.dense(fedpub.proxy(config.seed, schema, 5))
    server = [first_model(s, schema, config.seed) for _ in parties]
    masks = [{name: torch.ones_like(server[0][name]) for name in WEIGHTS} for _ in parties]
    for round in (1, 2, 3):
        models, embeddings = [], []
        for p, party in enumerate(parties):
            own = plain.leaves(server[p])
            mask = plain.leaves(masks[p])
            for _ in range(3):
                loss = party.loss(forward({name: own[name] * mask.get(name, 1) for name in own}, party))
                if s.penalties:
                    loss = loss + s.mask_weight * sum(value.abs().sum() for value in mask.values())
                    moved = [own[name] - server[p][name] for name in own]
                    lengths = [value.square().sum() if s.proximal == "squared" else value.norm() for value in moved]
                    loss = loss + (s.proximal_weight * sum(lengths) if round > 1 else 0)
                plain.descend_both(own, mask, loss, 0.2)
            models.append({name: value.detach() for name, value in own.items()})
            masks[p] = {name: value.detach() for name, value in mask.items()}
            kept = {name: torch.where(value.abs() < s.mask_weight, 0, value) for name, value in masks[p].items()}
            through = {name: models[p][name] * kept.get(name, 1) for name in own}
            embeddings.append(forward(through, proxy, before=True).mean(0))
        server = []
        for own_embedding in embeddings:
            shares = [math.exp(4 * float(torch.cosine_similarity(own_embedding, other, dim=0))) for other in embeddings]
            pairs = list(zip(shares, models, strict=True))
            server.append({name: sum(share * model[name] for share, model in pairs) / sum(shares) for name in models[0]})
    pruned = torch.cat([(value.abs() < s.mask_weight).flatten() for value in masks[0].values()])
    assert pruned.any()
    assert not pruned.all()
    result = runner.rounds(experiment)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.state["model"].items()}, server[p], 1e-4)
        found = {name.replace(":", "."): value[p] for name, value in result.memory["0"]["masks"].items()}
        plain.close(found, masks[p], 1e-4)


def test_shares_of_a_mixture() -> None:
    """They sum to 1, depend on directions alone, and a party itself has the largest; nothing for nobody."""
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 0.1], [0.0, 2.0], [0.0, 0.0]])
    shares = fedpub.similarity_shares(embeddings, 5.0)
    torch.testing.assert_close(shares.sum(1), torch.ones(4))
    assert shares[:3].argmax(1).tolist() == [0, 1, 2]
    assert shares[0, 1] > shares[0, 2]
    torch.testing.assert_close(shares[3], torch.full((4,), 0.25))
    torch.testing.assert_close(fedpub.similarity_shares(embeddings * 7, 5.0), shares)


def test_who_has_not_answered_yet_gets_the_plain_mean() -> None:
    """And who is not asked keeps its mixture."""
    result = runner.run(small("fedpub", rounds=1, participation=0.4, model="gcn_head"))
    (answered,) = result.state["answered"].nonzero()[:, 0].tolist()
    for value in result.state["model"].values():
        for party in range(3):
            assert torch.equal(value[party], value[answered])  # of one model, mean and mixture are the same
    later = runner.run(small("fedpub", rounds=4, participation=0.7))
    assert bool(later.state["answered"].all())


def test_the_random_graphs() -> None:
    """Five of a hundred nodes, without edges between them, about a tenth of all pairs joined; a function of the seed."""
    graph = fedpub.proxy(3, Schema(7, 2, 2), 5)
    assert graph.num_nodes == 500
    assert bool((graph.edge_index[0] // 100 == graph.edge_index[1] // 100).all())
    assert 0.08 < graph.edge_index.shape[1] / (5 * 100 * 99) < 0.12
    assert graph.symmetric
    assert abs(float(graph.x.mean())) < 0.1
    assert 0.9 < float(graph.x.std()) < 1.1
    assert torch.equal(graph.x, fedpub.proxy.__wrapped__(3, Schema(7, 2, 2), 5).x)
    assert not torch.equal(graph.x, fedpub.proxy(4, Schema(7, 2, 2), 5).x)


def test_masks_only_prune_in_evaluation() -> None:
    """With a threshold above all masks the trained model predicts with its biases alone."""
    result = runner.run(small("fedpub", rounds=2, model="gcn_head", mask_weight=2.0, penalties=False))
    every = result.model().outputs()
    for party in range(3):
        rows = every.logits[every.graph.party == party]
        assert torch.equal(rows, rows[:1].expand_as(rows))


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_bytes(variant: str) -> None:
    """4·w down and 4·(w + h) up; with masks 4·w_m more both ways."""
    result = runner.run(small("fedpub", rounds=2, hidden=8, model="gcn_head", variant=variant))
    matrices = 12 * 8 + 8 * 8 + 8 * 3
    parameters = matrices + 8 + 8 + 3
    more = matrices if variant == "authors" else 0
    assert result.bytes["down"] == 2 * 3 * 4 * (parameters + more)
    assert result.bytes["up"] == 2 * 3 * 4 * (parameters + 8 + more)
