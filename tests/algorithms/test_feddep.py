"""FedDEP: degenerate cases, and clusters, generators, layers and rounds against loops over nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll import wire
from atoll.algorithms import feddep
from atoll.algorithms.feddep import clusters
from atoll.algorithms.feddep.networks import EmbeddingGenerator, generator_loss, mean_embeddings, network
from atoll.algorithms.fedsage.targets import hide
from atoll.deferred import dense
from atoll.errors import AtollError
from atoll.federation.declarations import Case, Free, Model, flat
from atoll.graphs.graph import Graph
from atoll.models.parameters import get_parameters
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.runner import Experiment
from small import Absent, Recorded, small

QUIET = {"generator_dropout": 0.0}


def started(**values: Any) -> tuple[Experiment, Any, dict[str, Any]]:
    """An experiment after `start`, its cohort, and the server's state."""
    experiment = runner.prepare(small("feddep", **values))
    state = experiment.algorithm.start(experiment.federation, experiment.config.settings)
    return experiment, experiment.engine.cohorts[0], state  # type: ignore[attr-defined]


def test_without_generated_neighbors_it_is_fedsage() -> None:
    """FedSage's model, metrics and bytes, bit for bit, with dropout and sampled neighbors too."""
    values = {"dropout": 0.3, "batch_size": 4, "fan_out": 2}
    ours = runner.run(small("feddep", generated_neighbors=0, **values))
    split = {"train": 0.3, "val": 0.5, "test": 0.2}
    for other in (
        small("fedsage", generator="none", **values),
        small("fedavg", model="sage", weighting="parties", **values, **split),
    ):
        result = runner.run(other)
        plain.same(ours.state["model"], result.state["model"])
        assert plain.metrics(ours) == plain.metrics(result)
        assert ours.bytes["up"] == result.bytes["up"]
        assert ours.bytes["down"] == result.bytes["down"]


def dense_layer(own: Tensor, given: Tensor, party: plain.Party, w: plain.Weights, name: str) -> Tensor:
    """One layer on a dense graph."""
    near = party.mean @ own @ w[f"{name}.near.weight"] + w[f"{name}.near.bias"]
    return near + own @ w[f"{name}.own.weight"] + given @ w[f"{name}.generated.weight"]


def dense_forward(w: plain.Weights, party: plain.Party, given: Tensor) -> Tensor:
    """Both layers."""
    hidden = dense_layer(party.x, given, party, w, "layers.0").relu()
    return dense_layer(hidden, given, party, w, "layers.1")


def naive_means(counts: Tensor, rows: Tensor, kept: Tensor | None = None) -> Tensor:
    """The mean of each node's generated embeddings, one by one."""
    made, at = torch.zeros(len(counts), rows.shape[1]), 0
    for node, count in enumerate(counts.tolist()):
        mine = [rows[at + slot] for slot in range(count) if kept is None or kept[at + slot]]
        at += count
        if mine:
            made[node] = torch.stack(mine).mean(0)
    return made


def test_means_of_generated_neighbors() -> None:
    """Of all of a node's, or of those that are kept; zeros where there are none."""
    source = torch.Generator().manual_seed(0)
    counts = torch.randint(0, 4, (30,), generator=source)
    rows = torch.randn(int(counts.sum()), 5, generator=source)
    kept = torch.rand(len(rows), generator=source) < 0.5
    torch.testing.assert_close(mean_embeddings(counts, rows), naive_means(counts, rows))
    torch.testing.assert_close(mean_embeddings(counts, rows, kept), naive_means(counts, rows, kept))
    assert not mean_embeddings(torch.zeros(3, dtype=torch.int64), rows[:0]).any()


def test_two_rounds_equal_a_loop_over_parties() -> None:
    """Local steps with the mean of the generated neighbors that are drawn, equal weights, written out on dense graphs."""
    experiment, cohort, state = started(optimizer="sgd", lr=0.1, epochs=2, rounds=2)
    assert int(cohort.counts.sum()) > 0
    parties, server, seed = plain.parties(cohort.graph), dict(state["model"]), experiment.config.seed
    given, first = [], 0
    for number, size in enumerate(cohort.graph.sizes):
        counts, rows = cohort.counts[first : first + size], cohort.made[number]
        first, drawn = first + size, []
        for round in (1, 2):
            draws = Draws(seed, [number], "fit", round, 1)
            drawn.append([torch.from_numpy(next(draws.kept_values(0.5, [len(rows)])[0]).copy()) for _ in range(2)])
        given.append([[naive_means(counts, rows, kept) for kept in steps] for steps in drawn])
    for round in range(2):
        models = []
        for number, party in enumerate(parties):
            own = plain.leaves(server)
            for epoch in range(2):
                plain.descend(own, party.loss(dense_forward(own, party, given[number][round][epoch])), 0.1)
            models.append(own)
        server = plain.average(models, [1] * 3)
    result = runner.run(small("feddep", optimizer="sgd", lr=0.1, epochs=2, rounds=2))
    plain.close(result.state["model"], server, 1e-4)
    assert sum(int(party["counts"].sum()) for party in result.memory.values()) == int(cohort.counts.sum())


def test_generated_neighbors_reach_the_logits() -> None:
    """They change the logits of their nodes; judged on the real graph nothing does."""
    _, cohort, state = started()
    with torch.no_grad():
        mended = cohort.predict(state["model"])
        cohort.settings = replace(cohort.settings, judged_on="real")
        real = cohort.predict(state["model"])
        cohort.settings = replace(cohort.settings, judged_on="mended")
        in_blocks = cohort.settings = replace(cohort.settings, batch_size=4)
        blocks = cohort.predict(state["model"])
    assert in_blocks.batch_size == 4
    changed = (mended - real).abs().amax(1) > 1e-5
    assert bool(changed[cohort.counts > 0].all())
    torch.testing.assert_close(blocks, mended, atol=1e-5, rtol=1e-4)
    dense_real = torch.cat(
        [dense_forward(state["model"], party, torch.zeros(len(party.x), 6)) for party in plain.parties(cohort.graph)]
    )
    torch.testing.assert_close(real, dense_real, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("sampler", ["neighbors", "clusters"])
def test_batches_of_everything_are_the_whole_graph(sampler: str) -> None:
    """With all neighbors, and all training nodes in a step, mini-batches give the numbers of the whole graph."""
    values = {"generated_share": 1, "optimizer": "sgd", "lr": 0.1}
    whole = runner.run(small("feddep", **values))
    batched = runner.run(
        small("feddep", **values, batch_size=100, sampler=sampler, **({"fan_out": 0} if sampler == "neighbors" else {}))
    )
    if sampler == "neighbors":
        plain.close(batched.state["model"], whole.state["model"], 1e-4)
    else:  # a few clusters at a time are all of them
        assert all(bool(value.isfinite().all()) for value in batched.state["model"].values())


def test_the_generators_loss_is_that_of_a_loop_over_nodes() -> None:
    """Numbers, own targets, other parties' prototypes and labels, node by node."""
    values = {"count_weight": 0.5, "prototype_weight": 2.0, "label_weight": 0.7, **QUIET}
    _, cohort, _ = started(**values)
    for party in range(3):
        graph = cohort.one(party)
        hidden = hide(graph, 1.0, torch.arange(graph.num_nodes))
        net = EmbeddingGenerator(cohort.settings, cohort.schema, Draws(1, [party]))
        with torch.no_grad():
            net.count.bias.fill_(1.4)
        embeddings = torch.randn(graph.num_nodes, 6, generator=torch.Generator().manual_seed(party))
        others, noise = torch.randn(4, 6, generator=torch.Generator().manual_seed(9)), torch.randn(graph.num_nodes, 4)
        targets = embeddings[hidden.neighbors]
        found = generator_loss(net, hidden, targets, others, noise, cohort.task, Draws(0, [0]))
        torch.testing.assert_close(found, naive_loss(net, graph, hidden.nodes, embeddings, others, noise), atol=1e-5, rtol=1e-4)


def naive_loss(
    net: EmbeddingGenerator, graph: Graph, hidden: Tensor, embeddings: Tensor, others: Tensor, noise: Tensor
) -> Tensor:
    """The same on a dense graph."""
    w = {name: value[0] for name, value in get_parameters(net).items()}
    party, whole = plain.dense(graph), plain.dense(graph)
    party.adjacency = party.adjacency * ~hidden[:, None] * ~hidden[None]

    def sage(own: Tensor, name: str) -> Tensor:
        return party.mean @ own @ w[f"{name}.near.weight"] + w[f"{name}.near.bias"] + own @ w[f"{name}.own.weight"]

    latents = sage(sage(party.x, "encoder.0").relu(), "encoder.1").relu()
    numbers = (latents @ w["count.weight"] + w["count.bias"]).relu()[:, 0]
    rows = latents + noise
    for layer in (0, 1):
        rows = (rows @ w[f"features.layers.{layer}.weight"] + w[f"features.layers.{layer}.bias"]).relu()
    vectors = (rows @ w["features.layers.2.weight"] + w["features.layers.2.bias"]).tanh().view(len(rows), 5, -1)
    missing, own, far, given = [], [], [], torch.zeros(len(rows), 6)
    for i in range(len(rows)):
        near = (whole.adjacency[i].bool() & hidden).nonzero()[:, 0] if not hidden[i] else torch.empty(0, dtype=torch.int64)
        missing.append(float(len(near)))
        made = [vectors[i, slot] for slot in range(min(5, int(numbers[i].round())))]
        if made:
            given[i] = torch.stack(made).mean(0)
        for vector in made if party.train[i] else []:
            far.append(torch.stack([(vector - other).square().mean() for other in others]).min())
            if len(near):
                own.append(torch.stack([(vector - embeddings[j]).square().mean() for j in near]).min())
    assert own
    layers = {name.removeprefix("classifier."): value for name, value in w.items() if name.startswith("classifier.")}
    logits = dense_forward(layers, party, given)
    off = F.smooth_l1_loss(numbers[party.train], torch.tensor(missing)[party.train])
    return 0.5 * off + 2.0 * (torch.stack(own).mean() + torch.stack(far).mean()) + 0.7 * party.loss(logits)


@pytest.mark.parametrize("clustering", ["deep", "kmeans"])
def test_prototypes_are_means_of_clusters(clustering: str) -> None:
    """Far apart, three bundles of embeddings are three clusters; what is shared are the means of those with enough nodes."""
    source = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 12 + [1] * 9 + [2] * 4)
    rows = torch.eye(3, 6)[labels] + 0.01 * torch.randn(25, 6, generator=source)
    settings = small("feddep", clustering=clustering, code_epochs=30).settings
    made = clusters.prototypes(rows, settings, Draws(0, [0]))
    assert sorted(made.sizes.tolist()) == [4, 9, 12]
    for number in range(3):
        inside = made.cluster == number
        assert len(labels[inside].unique()) == 1
        torch.testing.assert_close(made.means[number], rows[inside].mean(0))
    _, cohort, _ = started(clustering=clustering, min_count=8)
    offered = cohort.offer()
    assert torch.equal(offered["known"], cohort.sizes >= 8)
    assert not offered["prototypes"][~offered["known"]].any()
    few = clusters.prototypes(rows[:2], settings, Draws(0, [0]))
    assert int(few.sizes.sum()) == 2
    same = clusters.prototypes(torch.ones(7, 6), settings, Draws(0, [0]))
    assert int(same.sizes.sum()) == 7


def test_deep_clustering_is_written_out() -> None:
    """Student's t, the sharper distribution and the divergence, number by number."""
    rows = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    deep = clusters.DeepClustering(rows, small("feddep").settings, Draws(0, [0]))
    centers = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    codes = rows @ deep.encoder.weight[0] + deep.encoder.bias[0]  # type: ignore[index]
    codes = codes.detach()
    q = torch.tensor([[1 / (1 + float((code - center).square().sum())) for center in centers] for code in codes])
    q = q / q.sum(1, keepdim=True)
    p = torch.tensor([[float(q[i, c]) ** 2 / float(q[:, c].sum()) for c in range(3)] for i in range(7)])
    p = p / p.sum(1, keepdim=True)
    torch.testing.assert_close(deep.shares(centers).detach(), q)
    torch.testing.assert_close(clusters.sharpened(q), p)
    wanted = sum(float(p[i, c] * (p[i, c] / q[i, c]).log()) for i in range(7) for c in range(3)) / 7
    assert float(clusters.divergence(p, q)) == pytest.approx(wanted, rel=1e-4)


def test_nothing_of_a_single_node_is_in_a_message() -> None:
    """No field has rows of nodes, none of what passes is a node's embedding; parties get the others' prototypes alone."""
    recorded: list[Recorded] = []
    experiment = runner.prepare(
        small("feddep", clustering="kmeans"), engine=lambda e: recorded.append(Recorded(e)) or recorded[0]
    )
    case = Case(experiment.config.settings, experiment.federation.schema)
    for name in ("prepare", "offer", "mend", "fit"):
        method = feddep.Cohort.verb_named(name)
        for declared in (method.takes, method.gives):  # type: ignore[attr-defined]
            forms = declared(case) if callable(declared) else declared
            for field, form in forms.items():
                for leaf in flat({field: form}, case).values() if not isinstance(form, Model) else ():
                    assert not any(isinstance(part, Free) for part in getattr(leaf, "shape", ()))
                    assert not getattr(leaf, "ragged", False)
    embedded: list[Tensor] = []
    real = clusters.prototypes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feddep, "prototypes", lambda rows, *rest: embedded.append(rows) or real(rows, *rest))
        runner.rounds(experiment)
    sent = 0
    for _, answers in recorded[0].delivered:
        for _, value in (leaf for answer in answers for leaf in wire.leaves(dense(answer.fields))):  # type: ignore[union-attr]
            if isinstance(value, Tensor) and value.shape[1:] == (3, 6):
                sent += 1
                kept = value.flatten(0, 1)[value.flatten(0, 1).any(1)]
                assert float(torch.cdist(kept, torch.cat(embedded)).min()) > 1e-4
    assert sent == 1


def test_others_prototypes_are_those_of_other_parties(monkeypatch: pytest.MonkeyPatch) -> None:
    """A party's generator is compared with what the others sent, and not with its own."""
    seen: list[Tensor] = []
    real = feddep.Cohort.generate
    monkeypatch.setattr(feddep.Cohort, "generate", lambda self, party, others: seen.append(others) or real(self, party, others))
    _, cohort, _ = started()
    offered = cohort.offer()
    for party, others in enumerate(seen):
        wanted = [offered["prototypes"][other][offered["known"][other]] for other in range(3) if other != party]
        assert torch.equal(others, torch.cat(wanted))
    seen.clear()
    started(help="none")
    assert [len(others) for others in seen] == [0, 0, 0]


def test_some_generated_neighbors_are_drawn() -> None:
    """About the wanted share, drawn by each party for itself."""
    _, cohort, _ = started(generated_share=0.5)
    cohort.counts, cohort.made = torch.full((60,), 5), [torch.ones(100, 6)] * 3
    drawn = torch.stack([cohort.drawn(Draws(number, [0, 1, 2])) for number in range(50)])
    assert 0.9 < float(drawn[:, :, 0].mean()) < 1.0  # 1 unless none of five is drawn
    one = cohort.drawn(Draws(0, [0, 1, 2]))
    part = cohort.graph.select([1])
    alone = feddep.Cohort(part, cohort.settings, cohort.schema, 3, [1])
    alone.counts, alone.made = torch.full((20,), 5), [torch.ones(100, 6)]
    assert torch.equal(alone.drawn(Draws(0, [1])), one[20:40])


def test_a_party_that_misses_the_beginning_has_no_neighbors() -> None:
    """Away before the first round, it takes part afterwards with its own graph; the others do without its prototypes."""
    result = runner.rounds(runner.prepare(small("feddep"), engine=lambda engine: Absent(engine, {0}, {1})))
    party = runner.prepare(small("feddep")).party_data.parts.party
    counts = result.memory["0"]["counts"]
    assert not counts[party == 1].any()
    assert bool(counts[party != 1].any())
    assert [row.get("missing") for row in result.rows] == [None, None, None]


def test_odd_parties() -> None:
    """A party of one node, one without some class, isolated nodes: all is finite, and each is what it is alone."""
    experiment = runner.prepare(small("feddep", min_count=1))
    graph, schema, settings = experiment.party_data.parts, experiment.federation.schema, experiment.config.settings
    ptr = torch.tensor([0, 1, *graph.ptr[2:].tolist()])
    party = torch.bucketize(torch.arange(60), ptr[1:-1], right=True)
    edges = graph.edge_index[:, (graph.edge_index != 25).all(0)]
    edges = edges[:, party[edges[0]] == party[edges[1]]]
    train = graph.train.clone()
    train[0] = True
    y = torch.where((party == 2) & (graph.y == 0), 1, graph.y)
    odd = replace(graph, ptr=ptr, edge_index=edges, train=train, val=graph.val & ~train, test=graph.test & ~train, y=y)
    model = {name: value.detach()[0] for name, value in network(settings, schema, 1, Draws(0, [0])).named_parameters()}
    together = feddep.Cohort(odd, settings, schema, 3, [0, 1, 2])
    together.prepare()
    pool = together.offer()
    together.mend(**pool)
    reply = together.fit(model)
    assert all(bool(value.isfinite().all()) for value in (*reply["model"].values(), pool["prototypes"]))
    for number in range(3):
        alone = feddep.Cohort(odd.select([number]), settings, schema, 3, [number])
        alone.prepare()
        assert torch.equal(alone.offer()["prototypes"][0], pool["prototypes"][number])
        alone.mend(**pool)
        for name, value in alone.fit(model)["model"].items():
            torch.testing.assert_close(value[0], reply["model"][name][number], atol=1e-5, rtol=1e-4)


def test_other_models_are_refused() -> None:
    """One sentence."""
    with pytest.raises(AtollError, match="feddep extends the layers of GraphSAGE and cannot train gcn; set model=sage"):
        runner.run(small("feddep", model="gcn"))


def test_secure_totals_give_the_same_model() -> None:
    """Prototypes are asked for in the open, models are masked."""
    open_, secure = (runner.run(small("feddep", rounds=1, secure=value)) for value in (False, True))
    assert torch.equal(open_.memory["0"]["counts"], secure.memory["0"]["counts"])
    plain.close(open_.state["model"], secure.state["model"], 1e-3)


@pytest.mark.parametrize("judged_on", ["mended", "real"])
def test_predictions_are_reproduced(judged_on: str) -> None:
    """What is kept of the parties' memory predicts what was reported."""
    result = runner.run(small("feddep", judged_on=judged_on))
    table = result.model().predict()
    test = table[table["split"] == "test"]
    assert float((test["class"] == test["label"]).mean()) == pytest.approx(result.metrics["accuracy"])


@pytest.mark.parametrize("help", ["prototypes", "none"])
def test_bytes(help: str) -> None:
    """The formula of the docstring."""
    result = runner.run(small("feddep", rounds=2, help=help))
    w, each = plain.size(result.state["model"]), 4 * 3 * 6 + 3 if help == "prototypes" else 0
    assert result.bytes["up"] == 2 * 3 * (4 * w + 8) + 3 * each
    assert result.bytes["down"] == 2 * 3 * 4 * w + 3 * 3 * each
