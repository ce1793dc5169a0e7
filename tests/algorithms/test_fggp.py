"""FGGP against FedAvg and against a loop over parties, classes and pairs; its second view, prototypes and clusters."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll.algorithms import fggp
from atoll.algorithms.fggp.finch import cluster_means, finch
from atoll.algorithms.fggp.views import SecondView, nearest_nodes
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.graphs.graph import Graph
from atoll.graphs.negatives import NonEdges
from atoll.random import Draws
from atoll.runs import runner
from small import Recorded, small

OFF = {"view_weight": 0.0, "edge_weight": 0.0, "contrast_weight": 0.0}


def cohort_of(**values: Any) -> Any:
    """The cohort of a small experiment, with the first model."""
    cohort = runner.prepare(small("fggp", **values)).engine.cohorts[0]  # type: ignore[attr-defined]
    cohort.load(first_model(cohort.settings, cohort.schema, 0))
    return cohort


@pytest.mark.parametrize("weighting", ["nodes", "train"])
def test_without_second_view_and_prototypes_it_is_fedavg(weighting: str) -> None:
    """Nothing is drawn: FedAvg's model and metrics, bit for bit, with dropout."""
    ours = runner.run(small("fggp", dropout=0.3, predict="classifier", weighting=weighting, **OFF))
    avg = runner.run(small("fedavg", dropout=0.3, weighting=weighting))
    plain.same(ours.state["model"], avg.state["model"])
    assert plain.metrics(ours) == plain.metrics(avg)
    assert ours.bytes["up"] == avg.bytes["up"]


def test_prototypes_predict_and_do_not_train() -> None:
    """With one view, and prototypes that predict, the model is FedAvg's, bit for bit; the predictions are others."""
    ours, avg = (
        runner.run(small("fggp", dropout=0.3, min_count=1, **OFF)),
        runner.run(small("fedavg", dropout=0.3, weighting="nodes")),
    )
    plain.same(ours.state["model"], avg.state["model"])
    assert ours.metrics["loss"] != avg.metrics["loss"]


def embed(w: plain.Weights, adjacency: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """A GCN's hidden layer and logits."""
    hidden = (adjacency @ x @ w["layers.0.weight"] + w["layers.0.bias"]).relu()
    return hidden, adjacency @ hidden @ w["layers.1.weight"] + w["layers.1.bias"]


def second_edges(w: plain.Weights, party: plain.Party, graph: Graph, k: int) -> list[tuple[int, int]]:
    """Own edges and the k nearest nodes of each (tested below: nodes may be equally near), as pairs in order."""
    hidden = embed(w, party.normalized_adjacency, party.x)[0]
    found = nearest_nodes(graph, hidden, k).tolist()
    pairs = {(i, j) for i, j in party.adjacency.nonzero().tolist() if i < j}
    return sorted(pairs | {(min(i, j), max(i, j)) for i, near in enumerate(found) for j in near})


def naive_means(rows: Tensor, party: plain.Party, logits: Tensor) -> dict[int, Tensor]:
    """The confidence-weighted mean of each class, node by node."""
    shares = logits.detach().softmax(1)
    found: dict[int, Tensor] = {}
    for label in range(3):
        total, weight = torch.zeros(rows.shape[1]), 0.0
        for i in range(len(rows)):
            if party.train[i]:
                sure = float(party.y[i] == label)
            else:
                sure = float(shares[i].max()) if int(shares[i].argmax()) == label else 0.0
            total, weight = total + sure * rows[i], weight + sure
        if weight:
            found[label] = total / weight
    return found


def naive_loss(w: plain.Weights, party: plain.Party, pairs: list[tuple[int, int]], source: torch.Generator) -> Tensor:
    """The whole objective of one party, pair by pair on dense matrices."""
    size = len(party.x)
    hidden, logits = embed(w, party.normalized_adjacency, party.x)
    union = torch.zeros(size, size)
    for i, j in pairs:
        union[i, j] = union[j, i] = 1
    rows = embed(w, plain.normalized(union), party.x)[0]
    others = NonEdges(size, torch.tensor([i * size + j for i, j in pairs])).draw(len(pairs), source).tolist()
    edges = torch.stack([F.softplus(-(rows[i] @ rows[j])) for i, j in pairs]).mean()
    unlike = torch.stack([F.softplus(rows[code // size] @ rows[code % size]) for code in others]).mean()
    drawn = torch.rand(len(pairs), generator=source).clamp(1e-6, 1 - 1e-6)
    sampled = torch.zeros(size, size)
    for (i, j), u in zip(pairs, drawn, strict=True):
        soft = torch.sigmoid((rows[i] @ rows[j] + torch.log(u / (1 - u))) / 0.4)
        kept = (soft > 0.5).float() + soft - soft.detach()
        place = torch.zeros(size, size)
        place[i, j] = place[j, i] = 1
        sampled = sampled + kept * place
    hidden_there, logits_there = embed(w, plain.normalized(sampled), party.x)
    ours, theirs = (naive_means(each, party, logits) for each in (hidden_there, hidden))
    contrast = []
    for label, mean in ours.items():
        scores = {other: torch.cosine_similarity(mean, one, 0) / 0.5 for other, one in theirs.items()}
        contrast.append(torch.logsumexp(torch.stack(list(scores.values())), 0) - scores[label])
    terms = 0.7 * party.loss(logits_there) + 0.6 * 0.5 * (edges + unlike) + 0.8 * torch.stack(contrast).mean()
    return party.loss(logits) + terms


def test_two_rounds_equal_a_loop_over_parties_pairs_and_classes() -> None:
    """Nearest nodes, negatives, sampled edges with their gradients, and prototypes, written out; the server's mean by nodes."""
    values: dict[str, Any] = {
        "view_weight": 0.7,
        "edge_weight": 0.6,
        "contrast_weight": 0.8,
        "sample_temperature": 0.4,
        "knn_every": 1,
    }
    config = small("fggp", optimizer="sgd", lr=0.1, epochs=2, rounds=2, neighbors=2, min_count=1, clusters="mean", **values)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for round in (1, 2):
        models, means = [], []
        for number, party in enumerate(parties):
            graph = experiment.party_data.parts.select([number])
            pairs, own = second_edges(server, party, graph, 2), plain.leaves(server)
            (source,) = Draws(config.seed, [number], "fit", round, 1).generators
            for _ in range(2):
                plain.descend(own, naive_loss(own, party, pairs, source), 0.1)
            models.append(own)
            hidden, logits = embed(own, party.normalized_adjacency, party.x)
            means.append(naive_means(hidden.detach(), party, logits))
        server = plain.average(models, [len(party.x) for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server, 1e-4)
    for label in range(3):
        shared = torch.stack([each[label] for each in means if label in each]).mean(0)
        torch.testing.assert_close(result.state["prototypes"][label, 0], shared, atol=1e-4, rtol=1e-3)


def test_nearest_nodes_are_those_of_a_sort() -> None:
    """The largest cosines with other nodes of the same party; −1 where there are fewer nodes."""
    graph = runner.prepare(small("fggp")).party_data.parts
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    found = nearest_nodes(graph, rows, 25)
    for first, last in graph.blocks.ranges:
        own = F.normalize(rows[first:last], dim=1)
        for i in range(last - first):
            wanted = sorted((j for j in range(last - first) if j != i), key=lambda j, i=i: -float(own[i] @ own[j]))[:25]
            assert found[first + i].tolist() == wanted + [-1] * (25 - len(wanted))


def test_drawn_pairs_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every pair that is no edge, it is the weighted cross-entropy of all pairs, with its weight and its norm."""
    graph = runner.prepare(small("fggp")).party_data.parts
    view = SecondView(graph, torch.full((60, 0), -1))
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(NonEdges, "draw", lambda self, count, source: self.enumerated())
    found = view.edge_loss(rows, view.logits(rows), 1, Draws(0, range(3)))
    wanted = torch.zeros(())
    for (first, last), party in zip(graph.blocks.ranges, plain.parties(graph), strict=True):
        pairs = list(combinations(range(last - first), 2))
        edge = torch.tensor([float(party.adjacency[i, j]) for i, j in pairs])
        logit = torch.stack([rows[first + i] @ rows[first + j] for i, j in pairs])
        weight, norm = (len(pairs) - edge.sum()) / edge.sum(), len(pairs) / (2 * (len(pairs) - edge.sum()))
        wanted = wanted + norm * F.binary_cross_entropy_with_logits(logit, edge, pos_weight=weight)
    torch.testing.assert_close(found, wanted)


def test_edges_are_sampled_with_their_probabilities() -> None:
    """Over many draws a pair is there as often as σ of its logit says; learned or not, the same edges."""
    graph = runner.prepare(small("fggp")).party_data.parts
    view = SecondView(graph, torch.full((60, 0), -1))
    logits = torch.randn(view.pairs.shape[1], generator=torch.Generator().manual_seed(0))
    draws, counts = Draws(0, range(3)), torch.zeros(len(logits))
    for _ in range(2000):
        made = view.sampled(logits, 0.5, draws, learned=False).edge_index
        counts += torch.isin(view.pairs[0] * 60 + view.pairs[1], made[0] * 60 + made[1])
    assert float((counts / 2000 - logits.sigmoid()).abs().max()) < 0.06
    fixed, soft = (view.sampled(logits, 0.5, Draws(1, range(3)), learned=learned) for learned in (False, True))
    model = cohort_of().model
    torch.testing.assert_close(model(fixed), model(soft), atol=1e-5, rtol=1e-4)


def test_without_edge_gradient_sampling_does_not_train() -> None:
    """OpenFGL's: edges are drawn, but representations do not learn from them; any backbone can have that."""
    cohort = cohort_of(edge_gradient="false", model="sage", view_weight=0.0, contrast_weight=0.0)
    cohort.second = cohort.second_view()
    loss = cohort.objective(cohort.graph, Draws(0, range(3)), {})
    torch.testing.assert_close(loss, cohort.task.loss(cohort.model(cohort.graph), cohort.graph))
    with pytest.raises(AtollError, match="sage does not use the weights of edges"):
        cohort_of(model="sage")


def test_nearest_nodes_are_found_again_when_due() -> None:
    """In rounds 1, 1 + knn_every and so on; a party that missed the first has them from its first round."""
    experiment = runner.prepare(small("fggp", knn_every=2, rounds=1))
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    runner.rounds(experiment)
    first = cohort.neighbors.clone()
    assert bool((first >= 0).all())
    cohort.load({name: torch.randn_like(value[0]) for name, value in cohort.model.named_parameters()})
    cohort.message = replace(cohort.message, round=2)
    cohort.neighbors[:20] = -1
    cohort.second_view()
    party = cohort.graph.party
    assert bool((cohort.neighbors[party == 0] >= 0).all())
    assert torch.equal(cohort.neighbors[party != 0], first[party != 0])
    cohort.message = replace(cohort.message, round=3)
    cohort.second_view()
    assert not torch.equal(cohort.neighbors[party != 0], first[party != 0])


def test_finch_is_components_of_nearest_neighbors() -> None:
    """Two bundles of directions are two clusters, whatever their lengths; the first partition has pairs; one row is one."""
    angles = torch.tensor([0.0, 0.01, 0.10, 0.11, 2.0, 2.01, 2.10, 2.11])
    rows = torch.stack([angles.cos(), angles.sin()], 1) * torch.arange(1, 9)[:, None]
    assert finch(rows, last=False).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert finch(rows).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert finch(rows[:1]).tolist() == [0]
    assert finch(rows[:2]).tolist() == [0, 0]
    assert finch(rows[:0]).tolist() == []
    torch.testing.assert_close(cluster_means(rows, finch(rows))[1], rows[4:].mean(0))
    for seed in range(20):  # against a search through the graph of nearest neighbors
        rows = torch.randn(12, 3, generator=torch.Generator().manual_seed(seed))
        unit = F.normalize(rows, dim=1)
        nearest = (unit @ unit.t()).fill_diagonal_(-2).argmax(1).tolist()
        component = list(range(12))
        for _ in range(12):
            for i, j in enumerate(nearest):
                component[i] = component[j] = min(component[i], component[j])
        found = finch(rows, last=False).tolist()
        assert all((found[i] == found[j]) == (component[i] == component[j]) for i in range(12) for j in range(12))
    same = torch.ones(5, 3)
    assert finch(same).tolist() == [0] * 5


def test_the_vote_is_a_loop_over_prototypes() -> None:
    """Of the nearest prototypes, those of a class add e^{cos/τ}; unknown ones do not vote."""
    cohort = cohort_of(vote=4, queue_size=3)
    source = torch.Generator().manual_seed(0)
    prototypes, known = torch.randn(3, 3, 64, generator=source), torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    rows = torch.randn(60, 64, generator=source)
    found = cohort.votes(rows, prototypes, known)
    for i, row in enumerate(rows):
        every = [(float(torch.cosine_similarity(row, prototypes[c, s], 0)), c) for c in range(3) for s in range(3) if known[c, s]]
        votes = torch.zeros(3)
        for cosine, label in sorted(every, reverse=True)[:4]:
            votes[label] += torch.tensor(cosine / 0.5).exp()
        torch.testing.assert_close(found[i], votes.log().clamp(min=-2.0), atol=1e-5, rtol=1e-4)
    assert float(found[:, 2].max()) == -2.0


def test_what_is_offered_has_enough_nodes_and_the_right_name() -> None:
    """No prototype of fewer nodes than `min_count`; keyed by position, those of later classes slip to earlier places."""
    cohort = cohort_of(min_count=4)
    cohort.counts = torch.tensor([[5, 3, 4], [1, 9, 9], [4, 4, 4]])
    cohort.means = torch.randn(3, 3, 64, generator=torch.Generator().manual_seed(0))
    offered = cohort.offer()
    assert offered["known"].tolist() == [[True, False, True], [False, True, True], [True, True, True]]
    assert not offered["prototypes"][~offered["known"]].any()
    assert torch.equal(offered["prototypes"][offered["known"]], cohort.means[cohort.counts >= 4])
    cohort.settings = replace(cohort.settings, keyed_by="position")
    shifted = cohort.offer()
    assert shifted["known"].tolist() == [[True, True, False], [True, True, False], [True, True, True]]
    assert torch.equal(shifted["prototypes"][0, 1], cohort.means[0, 2])
    assert torch.equal(shifted["prototypes"][1, 0], cohort.means[1, 1])
    assert small("fggp", variant="authors").settings.keyed_by == "position"


def test_queues_keep_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    """New means come first and the oldest leave; a class that nobody sends keeps what it has."""
    rounds = [
        [torch.full((2, 64), 1.0), torch.full((1, 64), 5.0), torch.empty(0, 64)],
        [torch.full((2, 64), 2.0), *[torch.empty(0, 64)] * 2],
    ]
    monkeypatch.setattr(fggp, "by_clusters", lambda federation, settings: rounds[federation.round - 1])
    state = runner.run(small("fggp", rounds=2, queue_size=3)).state
    assert state["prototypes"][:, :, 0].tolist() == [[2.0, 2.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    assert state["known"].tolist() == [[True, True, True], [True, False, False], [False, False, False]]


def test_odd_parties_train() -> None:
    """A party of one node, one without some class, isolated nodes: everything stays finite, and each is what it is alone."""
    experiment = runner.prepare(small("fggp", min_count=1, neighbors=2))
    graph, schema = experiment.party_data.parts, experiment.federation.schema
    lonely = graph.edge_index[:, (graph.edge_index[0] != 25) & (graph.edge_index[1] != 25)]
    ptr = torch.tensor([0, 1, *graph.ptr[2:].tolist()])
    party = torch.bucketize(torch.arange(60), ptr[1:-1], right=True)
    lonely = lonely[:, party[lonely[0]] == party[lonely[1]]]
    train = graph.train.clone()
    train[0] = True
    y = torch.where((party == 2) & (graph.y == 0), 1, graph.y)
    odd = replace(graph, ptr=ptr, edge_index=lonely, train=train, val=graph.val & ~train, test=graph.test & ~train, y=y)
    model = first_model(experiment.config.settings, schema, 0)
    together = fggp.Cohort(odd, experiment.config.settings, schema, 3, [0, 1, 2])
    reply = together.fit(model)
    offered = together.offer()
    assert all(bool(value.isfinite().all()) for value in (*reply["model"].values(), offered["prototypes"]))
    for number in range(3):
        alone = fggp.Cohort(odd.select([number]), experiment.config.settings, schema, 3, [number])
        for name, value in alone.fit(model)["model"].items():
            assert torch.equal(value[0], reply["model"][name][number])
        assert torch.equal(alone.offer()["prototypes"][0], offered["prototypes"][number])


def test_secure_totals_need_the_mean() -> None:
    """Clusters need each party's prototypes, which is one sentence; with one mean per class, sums do."""
    open_, secure = (runner.run(small("fggp", clusters="mean", min_count=1, rounds=1, secure=value)) for value in (False, True))
    torch.testing.assert_close(secure.state["prototypes"], open_.state["prototypes"], atol=1e-3, rtol=1e-3)
    with pytest.raises(AtollError, match="'offer' is private"):
        runner.run(small("fggp", rounds=1, secure=True))


@pytest.mark.parametrize(("values", "up", "judged"), [
    ({}, 4 * 3 * 64 + 3, 4 * 3 * 10 * 64 + 3 * 10),
    ({"clusters": "mean"}, 4 * 3 * 64 + 8 * 3, 4 * 3 * 10 * 64 + 3 * 10),
    ({"predict": "classifier"}, 0, 0),
])  # fmt: skip
def test_bytes(values: dict[str, Any], up: int, judged: int) -> None:
    """The formula of the docstring; evaluation apart."""
    recorded: list[Recorded] = []
    result = runner.rounds(
        runner.prepare(small("fggp", rounds=2, **values), engine=lambda e: recorded.append(Recorded(e)) or recorded[0])
    )
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8 + up)
    sent = [bytes[1] for (_, verb, training, _), bytes in recorded[0].bytes.items() if verb == "evaluate" and not training]
    assert set(sent) == {4 * parameters + judged}
