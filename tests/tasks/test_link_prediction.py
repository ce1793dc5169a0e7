"""Link prediction: rounds beside a loop over parties, metrics beside scikit-learn, and nothing of a test edge in training."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

import plain
from atoll import algorithms, load_model, wire
from atoll.data.links import split_links, whole_links
from atoll.data.splits import SplitSettings
from atoll.deploy.site_data import load_run
from atoll.errors import AtollError, AtollWarning
from atoll.federation.cohort import Schema
from atoll.federation.fields import concatenate
from atoll.graphs.graph import Graph, stack
from atoll.graphs.negatives import NonEdges, corrupted, pair_codes, pairs_of
from atoll.graphs.pairs import EDGE, NO_EDGE, RIVAL
from atoll.models.registry import build
from atoll.parties import Parties
from atoll.random import Draws, generator
from atoll.runs import config as configurations
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.runner import Result
from atoll.tasks import TASKS, link_ranking, ranking
from small_links import LinkParty, Weights, small_links

TASK = TASKS.find("link-prediction")
SHARES = SplitSettings(train=0.7, val=0.1, test=0.2, ranking=4)


def run(config: Config) -> Result:
    """A run without files."""
    return runner.rounds(runner.prepare(config))


def graph_of(nodes: int, edges: list[tuple[int, int]], roles: list[int] | None = None) -> Graph:
    """One party; `roles`: the data's own split of the edges."""
    both = torch.tensor([*edges, *[(b, a) for a, b in edges]], dtype=torch.int64).view(-1, 2).t()
    order = (both[0] * nodes + both[1]).argsort()
    nobody = torch.zeros(nodes, dtype=torch.bool)
    split = None if roles is None else torch.tensor([*roles, *roles], dtype=torch.int8)[order]
    x = torch.randn(nodes, 6, generator=generator("x", nodes))
    y = torch.zeros(nodes, dtype=torch.int64)
    ids = torch.arange(nodes)
    return Graph(x, both[:, order], y, nobody, nobody, nobody, 1, ids, torch.tensor([0, nodes]), edge_split=split)


def random_edges(nodes: int, count: int, seed: int = 0) -> list[tuple[int, int]]:
    """Distinct undirected edges."""
    every = list(combinations(range(nodes), 2))
    order = torch.randperm(len(every), generator=generator("edges", nodes, seed)).tolist()
    return [every[i] for i in order[:count]]


def edge_set(pairs: Tensor) -> set[tuple[int, int]]:
    """Undirected pairs."""
    return {(min(u, v), max(u, v)) for u, v in pairs.t().tolist()}


# one round beside a loop


@pytest.mark.parametrize(
    ("algorithm", "decoder"), [("fedavg", "dot"), ("fedavg", "bilinear"), ("fedavg", "mlp"), ("local", "dot")]
)
def test_rounds_are_those_of_a_loop_over_parties(algorithm: str, decoder: str) -> None:
    """Two rounds of two epochs by SGD: the same parameters, and the same metrics as scikit-learn's of the same scores."""
    lr, rounds = 0.05, 2
    config = small_links(algorithm, decoder=decoder, optimizer="sgd", lr=lr, rounds=rounds, epochs=2, momentum=0)
    experiment = runner.prepare(config)
    parts = experiment.party_data.parts
    graphs = [parts.select([p]) for p in range(3)]
    parties = [LinkParty.of(graph) for graph in graphs]
    shared = algorithm == "fedavg"
    state = experiment.algorithm.start(experiment.federation, config.settings)
    memory = concatenate([cohort.trained() for cohort in experiment.engine.cohorts])  # type: ignore[attr-defined]
    models: list[Weights] = [
        dict(state["model"]) if shared else {name: value[p] for name, value in memory["model"].items()} for p in range(3)
    ]
    for round in range(1, rounds + 1):
        for p, (party, graph) in enumerate(zip(parties, graphs, strict=True)):
            w, draws = plain.leaves(models[p]), Draws(config.seed, [p], "fit", round, 1)
            for _ in range(2):
                (batch,) = TASK.batches(graph, 0, draws)
                assert batch.pairs is not None
                plain.descend(w, party.loss(w, batch.pairs, batch.y, decoder), lr)
            models[p] = {name: value.detach() for name, value in w.items()}
        if shared:
            models = [plain.average([dict(w) for w in models], [party.n for party in parties])] * 3
    result = runner.rounds(experiment)
    found = [result.state["model"]] * 3 if shared else None
    for p, w in enumerate(models):
        mine = found[p] if found else {name: v[p] for name, v in concatenate(list(result.memory.values()))["model"].items()}
        for name, value in w.items():
            torch.testing.assert_close(mine[name], value, atol=1e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")
    expected: dict[str, list[float]] = {"auc": [], "average_precision": []}
    for party, graph, w in zip(parties, graphs, models, strict=True):
        rows = graph.test & (graph.y >= 0)
        assert graph.pairs is not None
        scores = party.scores(w, graph.pairs[:, rows], decoder).detach().numpy()
        expected["auc"].append(roc_auc_score(graph.y[rows], scores))
        expected["average_precision"].append(average_precision_score(graph.y[rows], scores))
    for name, values in expected.items():
        assert result.rows[-1][name] == pytest.approx(np.mean(values), abs=1e-4)
        assert result.rows[-1][f"party_{name}"] == pytest.approx(values, abs=1e-4)


def test_a_batch_is_the_training_edges_and_as_many_other_pairs() -> None:
    """Negatives are no loops and no training edges, but may be test edges; they are drawn anew, by each party for itself."""
    parts = split_links(stack([graph_of(9, random_edges(9, 20, seed)) for seed in range(3)]), SHARES, 5)
    draws = Draws(1, range(3), "fit")
    (one,), (two,) = TASK.batches(parts, 0, draws), TASK.batches(parts, 0, draws)
    assert one.pairs is not None
    assert two.pairs is not None
    assert parts.pairs is not None
    held_out = edge_set(parts.pairs[:, (parts.val | parts.test) & (parts.y == EDGE)])
    met = False
    for batch in (one, two):
        assert batch.pairs is not None
        for p in range(3):
            mine = batch.owner == p
            edges, others = batch.pairs[:, mine & (batch.y == EDGE)], batch.pairs[:, mine & (batch.y == NO_EDGE)]
            assert edge_set(edges) == edge_set(parts.pairs[:, parts.train & (parts.owner == p)])
            assert others.shape == edges.shape
            assert bool((others[0] < others[1]).all())
            assert not edge_set(others) & edge_set(edges)
            assert bool((batch.party[others] == p).all())
            met = met or bool(edge_set(others) & held_out)
    assert met  # a party does not know its test edges
    assert not torch.equal(one.pairs, two.pairs)
    (alone,) = TASK.batches(parts.select([1]), 0, Draws(1, [1], "fit"))
    assert torch.equal(alone.pairs + parts.ptr[1], one.pairs[:, one.owner == 1])


def test_mini_batches_take_each_training_edge_once() -> None:
    """Parties with fewer edges are done before the others, and take no step then; each draws what it draws alone."""
    parts = split_links(stack([graph_of(9, random_edges(9, count, count)) for count in (4, 20)]), SHARES, 5)
    batches = list(TASK.batches(parts, 3, Draws(1, range(2), "fit")))
    assert len(batches) == -(-int(parts.num_train[1]) // 3)
    seen = torch.cat([batch.pairs[:, batch.y == EDGE] for batch in batches if batch.pairs is not None], 1)
    assert seen.shape[1] == int(parts.train.sum())
    assert edge_set(seen) == edge_set(parts.pairs[:, parts.train])
    assert batches[-1].active is not None
    assert batches[-1].active.tolist() == [False, True]
    assert int(parts.num_train[0]) <= 3
    for party in range(2):
        for one, batch in zip(TASK.batches(parts.select([party]), 3, Draws(1, [party], "fit")), batches, strict=False):
            assert batch.pairs is not None
            assert torch.equal(one.pairs + parts.ptr[party], batch.pairs[:, batch.owner == party])


# metrics


def ranks(scores: list[float], rivals: list[list[float]]) -> float:
    """Mean reciprocal rank, one by one."""
    found = []
    for score, others in zip(scores, rivals, strict=True):
        best = 1 + sum(other > score for other in others)
        worst = 1 + sum(other >= score for other in others)
        found.append(2 / (best + worst))
    return sum(found) / len(found)


@pytest.mark.parametrize("ties", [False, True])
def test_metrics_are_those_of_scikit_learn(ties: bool) -> None:
    """AUC and average precision, ties included; Hits@K and the rank by their definitions."""
    for seed in range(20):
        source = generator("scores", seed)
        scores = torch.randint(5, (40,), generator=source).double() if ties else torch.randn(40, generator=source).double()
        positive = torch.rand(40, generator=source) < 0.4
        assert ranking.auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
        assert ranking.average_precision(scores, positive) == pytest.approx(average_precision_score(positive, scores))
        for k in (1, 5, 10):
            threshold = sorted(scores[~positive].tolist(), reverse=True)[k - 1]
            assert ranking.hits_at(k, scores, positive) == pytest.approx(float((scores[positive] > threshold).double().mean()))
        rivals = torch.randint(5, (7, 6), generator=source).double()
        assert ranking.reciprocal_rank(scores[:7], rivals) == pytest.approx(ranks(scores[:7].tolist(), rivals.tolist()))


def test_what_cannot_be_said_is_left_out() -> None:
    """One class, one item, fewer negatives than K; a predictor that says the same of all pairs has no perfect rank."""
    scores = torch.tensor([0.3, 0.1], dtype=torch.float64)
    for positive in ([True, True], [False, False]):
        assert ranking.auc(scores, torch.tensor(positive)) is None
        assert ranking.average_precision(scores, torch.tensor(positive)) is None
    assert ranking.auc(scores[:1], torch.tensor([True])) is None
    assert ranking.hits_at(2, scores, torch.tensor([True, False])) is None
    assert ranking.hits_at(1, scores, torch.tensor([True, False])) == 1.0
    assert ranking.reciprocal_rank(torch.zeros(3), torch.zeros(3, 9)) == pytest.approx(1 / 5.5)
    assert ranking.reciprocal_rank(torch.zeros(3), torch.zeros(3, 0)) is None


def test_a_party_without_a_metric_does_not_count_in_the_mean() -> None:
    """AUC is the mean over those that have it, not ½ for the others."""
    sums = {"val_ranking": torch.zeros(2, 2), "ranking": torch.zeros(6, 2)}
    sums["ranking"][0] = torch.tensor([1.4, 2.0])
    assert link_ranking.metrics(sums) == {"auc": pytest.approx(0.7)}


# negatives


@pytest.mark.parametrize(("nodes", "count"), [(1, 0), (2, 0), (2, 1), (6, 0), (6, 4), (6, 12), (6, 15), (30, 40)])
def test_drawn_pairs_are_no_edges(nodes: int, count: int) -> None:
    """Sparse and dense graphs, one edge, a complete graph: distinct or not, every pair is one that is left."""
    edges = random_edges(nodes, count)
    codes = pair_codes(torch.tensor(edges, dtype=torch.int64).view(-1, 2).t(), nodes).sort().values
    left = {pair for pair in combinations(range(nodes), 2) if pair not in set(edges)}
    non_edges = NonEdges(nodes, codes)
    drawn = pairs_of(non_edges.draw(20, generator("d", nodes, count)), nodes)
    assert drawn.shape[1] == (20 if left else 0)
    assert edge_set(drawn) <= left
    for wanted in (1, len(left), len(left) + 3):
        distinct = pairs_of(non_edges.draw_distinct(wanted, generator("e", nodes, count)), nodes)
        assert distinct.shape[1] == len(edge_set(distinct)) == min(wanted, len(left))
        assert edge_set(distinct) <= left


def test_drawn_pairs_are_uniform() -> None:
    """Each of 11 pairs about as often, drawn by rejection and by enumeration."""
    for nodes, count in ((6, 4), (6, 10)):
        edges = pair_codes(torch.tensor(random_edges(nodes, count)).t(), nodes).sort().values
        drawn = NonEdges(nodes, edges).draw(11_000, generator("uniform", count))
        share = torch.bincount(drawn)[torch.bincount(drawn) > 0] / 11_000 * (15 - count)
        assert len(share) == 15 - count
        assert bool(((share - 1).abs() < 0.12).all())


def test_corrupted_pairs_keep_one_end() -> None:
    """None is an edge; where an end has all others as neighbors, the other end is kept, and else any pair that is no edge."""
    star = [(0, node) for node in range(1, 6)]
    codes = pair_codes(torch.tensor(star).t(), 6).sort().values
    drawn = corrupted(torch.tensor(star).t(), 6, codes, 8, generator("c"))
    assert drawn.shape == (2, 40)
    assert not edge_set(drawn) & set(star)
    for index, (_, leaf) in enumerate(star):
        assert all(leaf in pair for pair in edge_set(drawn[:, index * 8 : (index + 1) * 8]))
    hub = [(0, 1), *[(end, node) for end in (0, 1) for node in range(2, 5)]]
    codes = pair_codes(torch.tensor(hub).t(), 5).sort().values
    drawn = corrupted(torch.tensor([[0], [1]]), 5, codes, 6, generator("c"))
    assert drawn.shape == (2, 6)
    assert not edge_set(drawn) & set(hub)
    every = list(combinations(range(4), 2))
    codes = pair_codes(torch.tensor(every).t(), 4).sort().values
    assert corrupted(torch.tensor(every).t(), 4, codes, 6, generator("c")).shape == (2, 0)


# the split


def test_edges_are_split_within_each_party() -> None:
    """70/10/20 of the undirected edges, each in one role; judged pairs are distinct, and no edges; the same alone."""
    graphs = [graph_of(30, random_edges(30, 100, seed)) for seed in range(3)]
    parts = split_links(replace(stack(graphs), ids=torch.arange(90)), SHARES, 5)
    assert parts.pairs is not None
    for p, graph in enumerate(graphs):
        alone = split_links(graph, SHARES, 5, [p])
        mine = parts.select([p])
        for name in ("pairs", "y", "train", "val", "test", "edge_index"):
            assert torch.equal(getattr(alone, name), getattr(mine, name)), name
        edges = edge_set(graph.edge_index)
        roles = {name: edge_set(mine.pairs[:, getattr(mine, name) & (mine.y == EDGE)]) for name in ("train", "val", "test")}
        assert [len(roles[name]) for name in roles] == [70, 10, 20]
        assert roles["train"] | roles["val"] | roles["test"] == edges
        assert edge_set(mine.edge_index) == roles["train"]
        assert mine.edge_index.shape[1] == 140
        for name, count in (("val", 10), ("test", 20)):
            others = mine.pairs[:, getattr(mine, name) & (mine.y == NO_EDGE)]
            assert others.shape[1] == len(edge_set(others)) == count
            assert not edge_set(others) & edges
        rivals = mine.pairs[:, mine.y == RIVAL]
        assert rivals.shape[1] == 20 * 4
        assert not edge_set(rivals) & edges
        for end, pair in enumerate(mine.pairs[:, mine.test & (mine.y == EDGE)].t().tolist()):
            assert all(set(pair) & set(rival) for rival in rivals[:, end * 4 : end * 4 + 4].t().tolist())


def test_parties_that_share_nodes_agree_on_an_edges_role() -> None:
    """A test edge is in the graph of no party that holds both ends."""
    parts = runner.prepare(small_links("fedavg", "overlapping")).party_data.parts
    assert parts.pairs is not None
    ids = parts.ids[parts.pairs]
    held_out = edge_set(ids[:, (parts.val | parts.test) & (parts.y == EDGE)])
    trained = edge_set(ids[:, parts.train])
    assert held_out
    assert not held_out & trained
    assert not held_out & edge_set(parts.ids[parts.edge_index])


def test_disjoint_edges_supervise_only() -> None:
    """A third of the training edges is fitted and passes no message; negatives know all of them."""
    graph = graph_of(20, random_edges(20, 100))
    split = split_links(graph, replace(SHARES, disjoint=0.3), 5)
    assert split.pairs is not None
    fitted = edge_set(split.pairs[:, split.train])
    assert len(fitted) == 21
    assert len(edge_set(split.edge_index)) == 49
    assert not fitted & edge_set(split.edge_index)
    (batch,) = TASK.batches(split, 0, Draws(1, [0], "fit"))
    assert batch.pairs is not None
    assert not edge_set(batch.pairs[:, batch.y == NO_EDGE]) & (fitted | edge_set(split.edge_index))


def test_the_whole_graph_has_the_parties_test_pairs() -> None:
    """Centralized: edges between parties train, the parties' held-out edges do not, and each party's pairs are ranked alone."""
    data = runner.prepare(small_links("fedavg")).party_data
    parts, whole = data.parts, runner.prepare(small_links("centralized", "whole")).party_data.parts
    assert whole.pairs is not None
    assert parts.pairs is not None
    assert whole.pair_party is not None
    for name in ("val", "test"):
        assert edge_set(whole.ids[whole.pairs[:, getattr(whole, name)]]) == edge_set(
            parts.ids[parts.pairs[:, getattr(parts, name)]]
        )
    held_out = edge_set(parts.ids[parts.pairs[:, (parts.val | parts.test) & (parts.y == EDGE)]])
    assert not held_out & edge_set(whole.ids[whole.edge_index])
    assert edge_set(parts.ids[parts.edge_index]) < edge_set(whole.ids[whole.edge_index])
    out = torch.randn(len(whole.y), 2, generator=generator("out"))
    counted = TASK.counts(out, whole)["ranking"]
    rows = [whole.test & (whole.y >= 0) & (whole.pair_party == p) for p in range(3)]
    scores = (out[:, 1] - out[:, 0]).double()
    assert counted[0, 0].tolist() == [pytest.approx(sum(roc_auc_score(whole.y[r], scores[r]) for r in rows)), 3.0]


# nothing of a test edge is in training


def write_data(folder: Path, edges: list[tuple[int, int]], roles: list[str], nodes: int = 40) -> Path:
    """The user's own graph whose edges have a column `split`."""
    folder.mkdir()
    x = np.random.default_rng(1).normal(size=(nodes, 5))
    table = pd.DataFrame(x, columns=[f"x{i}" for i in range(5)])
    table.insert(0, "id", [f"n{i}" for i in range(nodes)])
    table.insert(1, "label", np.arange(nodes) % 2)
    table.to_csv(folder / "nodes.csv", index=False)
    ends = [{"source": f"n{u}", "target": f"n{v}", "split": role} for (u, v), role in zip(edges, roles, strict=True)]
    pd.DataFrame(ends).to_csv(folder / "edges.csv", index=False)
    return folder


LEAK = {
    "horizontal": ("fedavg", {"partition": "random", "parties": 2}),
    "overlapping": ("fedavg", {"partition": "overlap", "proportions": "0.7,0.8"}),
    "whole": ("centralized", {"partition": "random", "parties": 2}),
    "vertical": ("glasu", {"partition": "vertical", "parties": 2, "edge_fraction": 1, "optimizer": "sgd"}),
    "vertical whole": ("centralized_vertical", {"partition": "vertical", "parties": 2, "edge_fraction": 1}),
}


@pytest.mark.parametrize("scenario", LEAK)
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_a_changed_test_edge_changes_nothing_that_trains(scenario: str, model: str, tmp_path: Path) -> None:
    """With the split in the data: edges, degrees, normalized matrices, batches and the trained model keep every bit."""
    edges = random_edges(40, 160)
    roles = ["test" if i % 5 == 0 else "val" if i % 5 == 1 else "train" for i in range(160)]
    free = sorted({*combinations(range(40), 2)} - {*edges})
    changed = [free[3 * i] if roles[i] == "test" else edge for i, edge in enumerate(edges)]
    algorithm, how = LEAK[scenario]
    values = {"rounds": 2, "patience": 0, "hidden": 8, "model": model, "task": "link-prediction", **how}
    if scenario.startswith("vertical"):
        values |= {"model": "gcn" if model == "gcn" else "gcnii"}
    partition, parties = values.pop("partition"), values.pop("parties", None)
    experiments, results = [], []
    for name, listed in (("before", edges), ("after", changed)):
        folder = write_data(tmp_path / name, listed, roles)
        config = configurations.resolve(
            algorithm, dataset=str(folder), partition=str(partition), parties=parties, seed=2, values=values
        )
        experiments.append(runner.prepare(config))
        results.append(runner.rounds(runner.prepare(config)))
    one, two = (experiment.party_data.parts for experiment in experiments)
    tested = [edge_set(graph.ids[graph.pairs[:, graph.test & (graph.y == EDGE)]]) for graph in (one, two)]  # type: ignore[index]
    assert tested[0]
    assert not tested[0] & tested[1]
    assert torch.equal(one.edge_index, two.edge_index)
    assert torch.equal(one.pairs[:, one.train], two.pairs[:, two.train])  # type: ignore[index]
    for name in ("normalized_adjacency", "mean_adjacency", "summed_adjacency"):
        first, second = (getattr(graph, name).forward for graph in (one, two))
        assert torch.equal(first.to_dense(), second.to_dense()), name
    for first, second in zip(
        *(TASK.batches(graph, 0, Draws(1, range(graph.parties), "fit")) for graph in (one, two)), strict=True
    ):
        assert torch.equal(first.pairs, second.pairs)
        assert torch.equal(first.y, second.y)
    for (name, value), (_, same) in zip(wire.leaves(results[0].state), wire.leaves(results[1].state), strict=True):
        assert torch.equal(value, same), name
    memories = (concatenate(list(result.memory.values())) for result in results)
    for (name, value), (_, same) in zip(*map(wire.leaves, memories), strict=True):
        assert torch.equal(value, same), name


def test_planted_test_edges_are_not_predicted() -> None:
    """Random columns; test edges are a matching. With messages along them an untrained GCN finds them, without it cannot."""
    nodes = 120
    matching = [(2 * i, 2 * i + 1) for i in range(nodes // 2)]
    edges = [edge for edge in random_edges(nodes, 30, 3) if edge not in set(matching)]
    graph = graph_of(nodes, [*matching, *edges], [2] * len(matching) + [0] * len(edges))
    split = split_links(graph, SplitSettings(ranking=0), 1)
    encoder = build("gcn", parties=1, features=6, classes=8, hidden=16, draws=Draws(0, [0], "planted"))

    def auc(messages: Tensor) -> float:
        seen = replace(split, edge_index=messages)
        z = encoder(seen).detach()
        rows = split.test & (split.y >= 0)
        one, other = z[split.pairs[:, rows]]  # type: ignore[index]
        scores = torch.nn.functional.cosine_similarity(one, other).double()
        return float(ranking.auc(scores, split.y[rows] == EDGE) or 0)

    assert auc(split.edge_index) < 0.65
    assert auc(graph.edge_index) > 0.95  # what a system that passes messages along test edges reports


# promises

FOR_LINKS = [name for name in algorithms.names() if "link" in getattr(algorithms.find(name), "LEVELS", ())]


def memory_of(result: Result) -> Any:
    """The memory of all parties, in party order."""
    return concatenate(list(result.memory.values()))


@pytest.mark.parametrize("algorithm", FOR_LINKS)
def test_placement_amnesia_and_resume(algorithm: str, tmp_path: Path) -> None:
    """Apart, forgetful, or broken off and resumed: the same numbers. Tiny parties: each test AUC is of about ten pairs."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 1:
            raise Broken

    scenario = algorithms.find(algorithm).SCENARIOS[0]
    config = small_links(algorithm, scenario, rounds=2, dropout=0.3, checkpoint_every=1, **{"data.nodes": 45})
    usual = runner.run(config, out=tmp_path / "usual")
    for change in ({"placement": "apart"}, {"amnesia": "true"}):
        other = run(small_links(algorithm, scenario, rounds=2, dropout=0.3, checkpoint_every=1, **{"data.nodes": 45}, **change))
        for (name, value), (_, same) in zip(wire.leaves(memory_of(usual)), wire.leaves(memory_of(other)), strict=True):
            torch.testing.assert_close(value, same, atol=1e-5, rtol=1e-5, msg=name)
        assert [row["auc"] for row in usual.rows] == pytest.approx([row["auc"] for row in other.rows])
        assert usual.bytes == other.bytes
    with pytest.raises(Broken):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    resumed = runner.resume(tmp_path / "broken")
    assert resumed.metrics == usual.metrics
    assert resumed.last == usual.last
    model = load_model(tmp_path / "usual")
    again = model.outputs().metrics(model.task)
    assert {name: usual.metrics[name] for name in again} == again


def test_secure_totals_have_the_same_metrics() -> None:
    """Evaluation sends sums only."""
    plainly, securely = (run(small_links("fedavg", **more)) for more in ({}, {"secure": "true"}))
    for name in ("auc", "average_precision", "mrr", "hits_at_10", "accuracy", "val_auc"):
        assert (name in plainly.metrics) == (name in securely.metrics)
        if name in plainly.metrics:
            assert plainly.metrics[name] == pytest.approx(securely.metrics[name], abs=1e-4)
    assert "party_auc" in plainly.rows[-1]
    assert "party_auc" not in securely.rows[-1]


@pytest.mark.parametrize(("decoder", "extra"), [("dot", 0), ("bilinear", 64), ("mlp", 64 + 8 + 8 + 1)])
def test_bytes(decoder: str, extra: int) -> None:
    """4 for each parameter of encoder and decoder, and 8 for the number of training edges."""
    result = run(small_links("fedavg", decoder=decoder, rounds=2))
    count = 12 * 8 + 8 + 8 * 8 + 8 + extra
    assert result.bytes["by_verb"]["fit"]["down"] == 3 * 2 * 4 * count
    assert result.bytes["by_verb"]["fit"]["up"] == 3 * 2 * (4 * count + 8)


# parties with little


def test_parties_without_edges_with_one_and_with_all() -> None:
    """They take part as far as they can: no step without a training edge, no AUC without both kinds of pairs."""
    sizes = {"none": (5, 0), "one": (5, 1), "complete": (5, 10), "usual": (20, 60)}
    graphs = [graph_of(nodes, random_edges(nodes, count)) for nodes, count in sizes.values()]
    parts = split_links(replace(stack(graphs), ids=torch.arange(35)), SHARES, 3)
    assert parts.num_train.tolist() == [0, 0, 7, 42]
    (batch,) = TASK.batches(parts, 0, Draws(1, range(4), "fit"))
    assert batch.active is not None
    assert batch.active.tolist() == [False, False, True, True]
    assert [int((batch.owner == p).sum()) for p in range(4)] == [0, 0, 14, 84]
    counts = TASK.counts(torch.randn(len(parts.y), 2, generator=generator("o")), parts)
    assert counts["ranking"][:, 0, 1].tolist() == [0, 1, 0, 1]  # the one edge is a test edge
    trained = parts.trained
    assert trained.num_train.tolist() == [0, 0, 14, 84]
    assert trained.active is not None


def test_a_run_with_a_party_without_edges(tmp_path: Path) -> None:
    """Its weight is 0, and its model is the others'; without any edge at all nothing can be trained."""
    for name, edges in (("a", random_edges(20, 60)), ("b", [(0, 1)][:0])):
        write_data(tmp_path / name, edges or [(0, 1)], ["train"] * len(edges) if edges else ["test"], 20)
    config = configurations.resolve(
        *("fedavg",),
        dataset=str(tmp_path),
        partition="files",
        values={"task": "link-prediction", "rounds": 2, "hidden": 8, "scenario": "horizontal"},
    )
    with pytest.warns(AtollWarning, match="1 of 2 parties have no training edges"):
        result = run(config)
    assert result.state["model"]
    assert all(bool(value.isfinite().all()) for value in result.state["model"].values())
    lonely = configurations.resolve(
        *("fedavg",), dataset=str(tmp_path / "b"), partition="whole", values={"task": "link-prediction", "rounds": 2}
    )
    with pytest.raises(AtollError, match="No party has a training edge"):
        runner.prepare(lonely)


# predictions


def test_given_pairs_are_scored_as_in_the_run(tmp_path: Path) -> None:
    """By name, in any order; nodes of two parties, and unknown ones, are refused."""
    edges = random_edges(40, 160)
    folder = write_data(tmp_path / "data", edges, ["train", "test", "val", ""] * 40)
    values = {"task": "link-prediction", "rounds": 2, "hidden": 8, "patience": 0}
    config = configurations.resolve("local", dataset=str(folder), partition="random", parties=2, values=values)
    runner.run(config, out=tmp_path / "run")
    model = load_model(tmp_path / "run")
    table = model.predict()
    assert set(table["split"]) == {"train", "val", "test"}
    assert list(table.columns)[:2] == ["source", "target"]
    lines = str(model.evaluate()).splitlines()
    assert "pairs, the likeliest class" in lines[0]
    assert lines[1].startswith("of all pairs together; what the run reported is for AUC")
    assert "nodes" not in str(model.evaluate())
    some = table[table["split"] == "test"].sample(6, random_state=1)
    some[["source", "target"]].to_csv(tmp_path / "pairs.csv", index=False)
    scored = model.predict(pairs=tmp_path / "pairs.csv").set_index(["source", "target"])
    for row in some.itertuples():
        assert scored.loc[(row.source, row.target)]["p[edge]"] == pytest.approx(table.loc[row.Index]["p[edge]"])
    first, second = (table[table["party"] == p]["source"].iloc[0] for p in (0, 1))
    with pytest.raises(AtollError, match="at different parties"):
        model.predict(pairs=pd.DataFrame({"source": [first], "target": [second]}))
    with pytest.raises(AtollError, match="'x' is not a node"):
        model.predict(pairs=pd.DataFrame({"source": ["x"], "target": [second]}))
    with pytest.raises(AtollError, match="give these: --pairs"):
        model.predict(folder)


# refusals


@pytest.mark.parametrize(
    ("algorithm", "values", "words"),
    [
        ("fedgl", {}, "not made for link-prediction"),
        ("fedspray", {}, "not made for link-prediction"),
        ("fedavg", {"split": "per_class"}, "Edges are split by"),
        ("fedavg", {"class_weight": "balanced"}, "class_weight"),
        ("fedavg", {"select_by": "mrr"}, "test pairs alone"),
        ("fedavg", {"share": "layers"}, "share=layers"),
        ("gcfl", {"share": "convolutions"}, "share=convolutions"),
        ("fedavg", {"noise.edge_noise": 0.1}, "leave noise"),
    ],
)
def test_refusals(algorithm: str, values: dict[str, Any], words: str) -> None:
    """One sentence each."""
    with pytest.raises(AtollError, match=words):
        run(small_links(algorithm, **values))


def test_a_role_that_differs_by_direction_is_refused(tmp_path: Path) -> None:
    """One edge, one role; and a role that is none."""
    values = {"task": "link-prediction", "rounds": 1}
    for name, roles, words in (("a", ["train", "test"], "both directions"), ("b", ["train", "maybe"], "is 'maybe'")):
        folder = write_data(tmp_path / name, [(0, 1), (1, 0)], roles)
        with pytest.raises(AtollError, match=words):
            runner.prepare(configurations.resolve("fedavg", dataset=str(folder), partition="whole", values=values))


def test_whole_links_of_disjoint_edges() -> None:
    """What only supervises at a party passes no message in the graph of all parties either."""
    graphs = [graph_of(12, random_edges(12, 30, seed)) for seed in range(2)]
    bare = replace(stack(graphs), ids=torch.arange(24))
    parts = split_links(bare, replace(SHARES, disjoint=0.5), 5)
    whole = whole_links(parts, replace(bare, ptr=torch.tensor([0, 24])), 5, disjoint=True)
    assert parts.pairs is not None
    assert whole.pairs is not None
    fitted = edge_set(parts.pairs[:, parts.train])
    assert edge_set(whole.pairs[:, whole.train]) == fitted
    assert not fitted & edge_set(whole.edge_index)


def test_a_site_splits_its_own_edges_as_the_simulation_does(tmp_path: Path) -> None:
    """From its own folder, without the others': the same graph and pairs; parties that share nodes must bring roles."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("a", "b"):
        write_data(folder / name, random_edges(20, 60, ord(name)), ["train"] * 60, 20)
        edges = pd.read_csv(folder / name / "edges.csv")
        edges[["source", "target"]].to_csv(folder / name / "edges.csv", index=False)
    values = {"task": "link-prediction", "rounds": 1, "scenario": "horizontal"}
    config = configurations.resolve("fedavg", dataset=str(folder), partition="files", values=values)
    experiment = runner.prepare(config)
    at_site = replace(config, partition="horizontal")
    schema = Schema(5, 2, 2)
    graph, scenario, _ = load_run(folder / "b", at_site, schema, Parties([1]), {}, None, b"", print)
    there = experiment.party_data.parts.select([1])
    assert scenario == "horizontal"
    for name in ("edge_index", "pairs", "y", "train", "val", "test"):
        assert torch.equal(getattr(graph, name), getattr(there, name)), name
    with pytest.raises(AtollError, match="give edges a column `split`"):
        load_run(folder / "b", replace(config, partition="overlapping"), schema, Parties([1]), {}, None, b"", print)
