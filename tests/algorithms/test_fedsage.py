"""FedSage and FedSage+: degenerate cases, and generators, gradients and mended graphs against loops over nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll import wire
from atoll.algorithms import fedsage
from atoll.algorithms.fedsage.generator import FeatureGenerator, loss_at_home
from atoll.algorithms.fedsage.targets import nearest
from atoll.deferred import dense
from atoll.federation.declarations import Case, Model, flat
from atoll.graphs.graph import Graph
from atoll.graphs.groups import group_means
from atoll.graphs.mending import mended
from atoll.models.parameters import get_parameters
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.runner import Experiment
from small import Absent, Recorded, small

SPLIT = {"train": 0.3, "val": 0.5, "test": 0.2}
QUIET = {"generator_dropout": 0.0}


def prepared(**values: Any) -> tuple[Experiment, Any]:
    """An experiment whose parties trained their generators alone, and their cohort."""
    experiment = runner.prepare(small("fedsage", **values))
    experiment.federation.tell("prepare")
    return experiment, experiment.engine.cohorts[0]  # type: ignore[attr-defined]


def started(**values: Any) -> Any:
    """The cohort after `start`."""
    experiment = runner.prepare(small("fedsage", **values))
    experiment.algorithm.start(experiment.federation, experiment.config.settings)
    return experiment.engine.cohorts[0]  # type: ignore[attr-defined]


def test_fedsage_is_fedavg_with_equal_weights() -> None:
    """Without generators: FedAvg of GraphSAGE, bit for bit, with dropout and sampled neighbors too."""
    values = {"model": "sage", "dropout": 0.3, "batch_size": 4, "fan_out": 2, "weighting": "parties", **SPLIT}
    ours, avg = runner.run(small("fedsage", generator="none", **values)), runner.run(small("fedavg", **values))
    plain.same(ours.state["model"], avg.state["model"])
    assert plain.metrics(ours) == plain.metrics(avg)


@pytest.mark.parametrize("generator", ["local", "federated"])
def test_without_generated_neighbors_it_is_fedsage(generator: str) -> None:
    """Where no number of neighbors reaches 1, nothing is mended: FedSage's model and metrics, bit for bit."""
    values = {"dropout": 0.3, "rounding": "floor", "generator_lr": 0.0}
    plus = runner.run(small("fedsage", generator=generator, **values))
    sage = runner.run(small("fedsage", generator="none", dropout=0.3))
    assert not plus.memory["0"]["counts"].any()
    plain.same(plus.state["model"], sage.state["model"])
    numbers = [{name: value for name, value in row.items() if name != "seconds"} for row in plus.rows]
    assert numbers == [{name: value for name, value in row.items() if name != "seconds"} for row in sage.rows]


def test_a_mended_graph_changes_a_real_nodes_logits() -> None:
    """Generated neighbors reach the real nodes; with edges outward only, as in other programs, they change nothing."""
    cohort = started(judged_on="mended")
    assert bool(cohort.counts.any())
    model = {name: value[0] for name, value in get_parameters(cohort.model).items()}
    model = {name: torch.randn(value.shape, generator=torch.Generator().manual_seed(0)) for name, value in model.items()}
    with torch.no_grad():
        mended_logits = cohort.predict(model)
        cohort.settings = small("fedsage", judged_on="real").settings
        alone = cohort.predict(model)
        cohort.graph.__dict__.pop("_mended")
        cohort.settings = small("fedsage", judged_on="mended", mended_edges="outward").settings
        outward = cohort.predict(model)
    assert mended_logits.shape == alone.shape
    changed = (mended_logits - alone).abs().amax(1) > 1e-4
    assert bool(changed[cohort.counts > 0].all())
    torch.testing.assert_close(outward, alone)


@pytest.mark.parametrize("sparse", [True, False])
def test_mended_graphs_hold_each_partys_nodes_together(sparse: bool) -> None:
    """Real nodes with their features, labels and edges, then the generated ones, each joined to its node; party by party."""
    import scipy.sparse as sp

    graph = runner.prepare(small("fedsage")).party_data.parts
    if sparse:
        graph = graph.__class__(**{**{n: getattr(graph, n) for n in graph.__dataclass_fields__}, "x": sp.csr_array(graph.x)})
    counts = torch.arange(60) % 3
    features = torch.randn(int(counts.sum()), 12, generator=torch.Generator().manual_seed(0))
    made, real = mended(graph, counts, features)
    x = made.x if isinstance(made.x, Tensor) else torch.from_numpy(made.x.toarray())
    before = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    torch.testing.assert_close(x[real], before)
    assert torch.equal(made.y[real], graph.y)
    assert torch.equal(made.party[real], graph.party)
    edges = set(map(tuple, made.edge_index.t().tolist()))
    wanted = {(int(real[i]), int(real[j])) for i, j in graph.edge_index.t().tolist()}
    fresh = [row for row in range(made.num_nodes) if row not in set(real.tolist())]
    parents = [i for i in range(60) for _ in range(int(counts[i]))]
    for row, parent, vector in zip(fresh, parents, features, strict=True):
        assert made.party[row] == graph.party[parent]
        assert made.y[row] == -1
        torch.testing.assert_close(x[row], vector)
        wanted |= {(row, int(real[parent])), (int(real[parent]), row)}
    assert edges == wanted
    assert int(made.train.sum()) == int(graph.train.sum())


def sage(own: Tensor, adjacency: Tensor, net: Mapping[str, Tensor], name: str) -> Tensor:
    """A GraphSAGE layer on a dense graph."""
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    return mean @ own @ net[f"{name}.near.weight"][0] + net[f"{name}.near.bias"][0] + own @ net[f"{name}.own.weight"][0]


def naive_loss(net: Mapping[str, Tensor], graph: Graph, hidden: Tensor, noise: Tensor) -> Tensor:
    """Phase 0's loss, node by node, on a dense mended graph."""
    party, whole = plain.dense(graph), plain.dense(graph)
    party.adjacency = party.adjacency * ~hidden[:, None] * ~hidden[None]
    latents = sage(sage(party.x, party.adjacency, net, "encoder.0").relu(), party.adjacency, net, "encoder.1").relu()
    numbers = (latents @ net["count.weight"][0] + net["count.bias"][0]).relu()[:, 0]
    rows = latents + noise
    for layer in (0, 1):
        rows = (rows @ net[f"features.layers.{layer}.weight"][0] + net[f"features.layers.{layer}.bias"][0]).relu()
    vectors = (rows @ net["features.layers.2.weight"][0] + net["features.layers.2.bias"][0]).tanh().view(len(rows), 5, -1)
    missing, errors, x, pairs = [], [], [party.x], []
    for i in range(len(rows)):
        near = (whole.adjacency[i].bool() & hidden).nonzero()[:, 0] if not hidden[i] else torch.empty(0, dtype=torch.int64)
        missing.append(float(len(near)))
        for slot in range(min(5, int(numbers[i].detach().round()))):
            pairs.append((i, len(rows) + len(pairs)))
            x.append(vectors[i, slot][None])
            if party.train[i] and len(near):
                errors.append(torch.stack([(vectors[i, slot] - whole.x[j]).square().mean() for j in near]).min())
    assert errors
    assert pairs
    adjacency = torch.zeros(len(rows) + len(pairs), len(rows) + len(pairs))
    adjacency[: len(rows), : len(rows)] = party.adjacency
    for i, j in pairs:
        adjacency[i, j] = adjacency[j, i] = 1
    logits = sage(sage(torch.cat(x), adjacency, net, "classifier.0").relu(), adjacency, net, "classifier.1")[: len(rows)]
    off = F.smooth_l1_loss(numbers[party.train], torch.tensor(missing)[party.train])
    return 0.5 * off + 2.0 * torch.stack(errors).mean() + 0.7 * party.loss(logits)


def test_the_generators_loss_is_that_of_a_loop_over_nodes() -> None:
    """a·smoothL1 + b·L_f + c·CE of each party, and its gradients, on a mended graph that is written out."""
    values = {"count_weight": 0.5, "feature_weight": 2.0, "label_weight": 0.7, **QUIET}
    _, cohort = prepared(**values)
    for party in range(3):
        cohort.nets["count.bias"][party] = torch.tensor([[1.3]])
        net, hidden = cohort.net(party), cohort.impaired(party)
        noise = cohort.noise(party)
        found = loss_at_home(net, hidden, net.encode(hidden.graph), noise, cohort.task, Draws(0, [0]))
        weights = plain.leaves(get_parameters(net))
        wanted = naive_loss(weights, cohort.one(party), hidden.nodes, noise)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
        ours = torch.autograd.grad(found, list(net.parameters()))
        theirs = torch.autograd.grad(wanted, list(weights.values()))
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_hidden_nodes_neither_train_nor_test() -> None:
    """Half of the validation nodes are hidden, the same in every call; no edge of the impaired graph touches one."""
    _, cohort = prepared(hidden_share=0.5)
    for party in range(3):
        hidden, graph = cohort.impaired(party), cohort.one(party)
        assert int(hidden.nodes.sum()) == round(0.5 * int((~(graph.train | graph.test)).sum()))
        assert not (hidden.nodes & (graph.train | graph.test)).any()
        assert not hidden.nodes[hidden.graph.edge_index].any()
        graph.__dict__.pop("_hidden", None)
        assert torch.equal(cohort.impaired(party).nodes, hidden.nodes)


def test_nearest_hidden_neighbor() -> None:
    """Of each generated vector the nearest among its own node's hidden neighbors; vectors of nodes without any are left out."""
    source = torch.Generator().manual_seed(0)
    made, features = torch.randn(5, 3, generator=source), torch.randn(4, 3, generator=source)
    owner, edges = torch.tensor([0, 0, 2, 5, 5]), torch.tensor([[5, 0, 0, 5], [9, 9, 9, 9]])
    rows, best = nearest(made, owner, edges, features)
    wanted = {}
    for row, node in enumerate(owner.tolist()):
        mine = [edge for edge in range(4) if edges[0, edge] == node]
        if mine:
            wanted[row] = min(mine, key=lambda edge: float((made[row] - features[edge]).square().sum()))
    assert dict(zip(rows.tolist(), best.tolist(), strict=True)) == wanted
    assert sorted(wanted) == [0, 1, 3, 4]


def test_groups_are_large_disjoint_and_always_the_same() -> None:
    """Means of at least `min_targets` nodes, which hold every node once; a party with fewer nodes has no target."""
    graph = runner.prepare(small("fedsage")).party_data.parts
    x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    for size in (1, 4, 21):
        means = group_means(graph, size)
        for part, rows, count in zip(means, torch.split(x, graph.sizes), graph.sizes, strict=True):
            assert len(part) <= count // size
            if not len(part):
                assert count < size
            if size == 1:
                torch.testing.assert_close(part, rows)
        again = group_means(graph.select([0, 1, 2]), size)
        assert all(torch.equal(one, other) for one, other in zip(means, again, strict=True))


def test_judging_is_a_loop_over_vectors_and_groups() -> None:
    """The gradient that each party but the owner returns, by autograd through a generator written out; clipped to its norm."""
    _, cohort = prepared(generator_widths="8,6", gradient_clip=0.0, **QUIET)
    offer = cohort.offer()
    for owner in range(3):
        generator = {name: value[owner] for name, value in offer["generator"].items()}
        numbers = offer["numbers"][owner].clone()
        numbers[:2] = 2
        found = cohort.judge(owner, generator, offer["latents"][owner], numbers)["gradient"]
        for party, targets in enumerate(group_means(cohort.graph, 3)):
            weights = plain.leaves(generator)
            rows = offer["latents"][owner]
            for layer in (0, 1):
                rows = (rows @ weights[f"layers.{layer}.weight"] + weights[f"layers.{layer}.bias"]).relu()
            made = (rows @ weights["layers.2.weight"] + weights["layers.2.bias"]).tanh().view(len(rows), 5, -1)
            errors = [
                torch.stack([(made[i, slot] - target).square().mean() for target in targets]).min()
                for i in range(len(rows))
                for slot in range(int(numbers[i]))
            ]
            wanted = torch.autograd.grad(torch.stack(errors).mean(), list(weights.values()))
            for name, gradient in zip(weights, wanted, strict=True):
                torch.testing.assert_close(found[name][party], gradient * (party != owner), atol=1e-6, rtol=1e-4)
    norm = torch.cat([value[1].flatten() for value in found.values()]).norm()
    cohort.settings = small("fedsage", generator_widths="8,6", gradient_clip=float(norm) / 2).settings
    clipped = cohort.judge(owner, generator, offer["latents"][owner], numbers)["gradient"]
    torch.testing.assert_close(clipped["layers.1.weight"][1], found["layers.1.weight"][1] / 2)


def test_of_one_party_phase_1_is_phase_0_continued_for_the_generator_alone() -> None:
    """P = 1: nobody helps, and fGen goes on down its own loss with a fresh optimizer, all else frozen."""
    config = replace(small("fedsage", **QUIET), parties=1)
    experiment = runner.prepare(config)
    experiment.federation.tell("prepare")
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    net, hidden = cohort.net(0), cohort.impaired(0)
    before = get_parameters(net, copy=True)
    optimizer = torch.optim.Adam(net.features.parameters(), 0.1, weight_decay=1e-4)
    for _ in range(2):
        optimizer.zero_grad()
        latents = net.encode(hidden.graph).detach()
        loss_at_home(net, hidden, latents, cohort.noise(0), cohort.task, Draws(0, [0])).backward()
        optimizer.step()
    fedsage.cooperate(experiment.federation, 0, experiment.config.settings)
    now = get_parameters(cohort.net(0))
    for name, value in get_parameters(net).items():
        wanted = value if name.startswith("features.") else before[name]
        torch.testing.assert_close(now[name], wanted, atol=1e-5, rtol=1e-4)
    assert not torch.equal(now["features.layers.2.weight"], before["features.layers.2.weight"])


def test_no_field_holds_features() -> None:
    """Of all that verbs take and give only generators have a width that depends on the features, and no row of x ever passes."""
    experiment = runner.prepare(small("fedsage"))
    case = Case(experiment.config.settings, experiment.federation.schema)
    size = experiment.federation.schema.features
    for name in fedsage.Cohort.verbs().keys() & {"prepare", "offer", "judge", "improve", "mend"}:
        method = fedsage.Cohort.verb_named(name)
        for kind in ("takes", "gives"):
            declared = getattr(method, kind)
            for field, form in declared.items():
                if not isinstance(form, Model):
                    for leaf in flat({field: form}, case).values():
                        assert size not in getattr(leaf, "shape", ())
    recorded: list[Recorded] = []
    runner.rounds(runner.prepare(small("fedsage", min_targets=2), engine=lambda e: recorded.append(Recorded(e)) or recorded[0]))
    x = experiment.party_data.parts.x
    rows = x if isinstance(x, Tensor) else torch.from_numpy(x.toarray())
    passed = set()
    for message, answers in recorded[0].delivered:
        passed.add(message.verb)
        payloads = [{**message.common, **message.each}, *(dense(answer.fields) for answer in answers)]  # type: ignore[union-attr]
        for _, value in (leaf for payload in payloads for leaf in wire.leaves(payload)):
            if isinstance(value, Tensor) and value.is_floating_point() and value.ndim and value.shape[-1] == size:
                assert float(torch.cdist(value.reshape(-1, size).float(), rows).min()) > 1e-4
    assert {"offer", "judge", "improve"} <= passed


def test_noise_on_latents_is_drawn_once() -> None:
    """Latents are the same in every message, so that noise cannot be averaged out; they are of training nodes alone."""
    recorded: list[Recorded] = []
    runner.rounds(runner.prepare(small("fedsage"), engine=lambda e: recorded.append(Recorded(e)) or recorded[0]))
    judged = [message.common for message, _ in recorded[0].delivered if message.verb == "judge"]
    assert [each["owner"] for each in judged] == [0, 0, 1, 1, 2, 2]
    for first, second in zip(judged[::2], judged[1::2], strict=True):
        assert torch.equal(first["latents"], second["latents"])
        assert not torch.equal(first["generator"]["layers.0.weight"], second["generator"]["layers.0.weight"])
    graph = runner.prepare(small("fedsage")).party_data.parts
    assert [len(each["latents"]) for each in judged[::2]] == graph.num_train.tolist()


def test_a_party_that_misses_the_beginning_has_no_neighbors() -> None:
    """Away before the first round, it takes part afterwards with its own graph; the others' generators go on without it."""
    result = runner.rounds(runner.prepare(small("fedsage"), engine=lambda engine: Absent(engine, {0}, {1})))
    party = runner.prepare(small("fedsage")).party_data.parts.party
    counts = result.memory["0"]["counts"]
    assert not counts[party == 1].any()
    assert bool(counts[party == 0].any() or counts[party == 2].any())
    assert [row.get("missing") for row in result.rows] == [None, None, None]


def test_secure_totals_give_the_same_generators() -> None:
    """With masked gradients the mended graphs are nearly the same."""
    open_, secure = (runner.run(small("fedsage", rounds=1, secure=value)) for value in (False, True))
    assert torch.equal(open_.memory["0"]["counts"], secure.memory["0"]["counts"])
    for one, other in zip(open_.memory["0"]["neighbors"], secure.memory["0"]["neighbors"], strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_the_authors_mend_the_impaired_graph() -> None:
    """variant=authors: floors, and no neighbors for hidden nodes; predictions are still for every node."""
    cohort = started(variant="authors", generator_epochs=40, hidden_share=0.5)
    hidden = torch.cat([cohort.impaired(party).nodes for party in range(3)])
    assert bool(cohort.counts.any())
    assert not cohort.counts[hidden].any()


def test_bytes() -> None:
    """The formula of the docstring: FedAvg's, and per step of each generator its weights, latents and gradients."""
    result = runner.run(small("fedsage", rounds=2))
    generator = FeatureGenerator(result.config.settings, runner.prepare(result.config).federation.schema, None)
    w, w_g = plain.size(result.state["model"]), sum(p.numel() for p in generator.parameters())
    n = int(runner.prepare(result.config).party_data.parts.num_train.sum())
    offers = 2 * (3 * 4 * w_g + 4 * 4 * n + 4 * n)  # both steps of all three generators, z = 4
    judged_down = 2 * 3 * 3 * 4 * w_g + 3 * 2 * (4 * 4 * n + 4 * n)
    assert result.bytes["up"] == 2 * 3 * (4 * w + 8) + offers + 2 * 3 * 3 * 4 * w_g
    assert result.bytes["down"] == 2 * 3 * 4 * w + judged_down + 2 * 3 * 4 * w_g


def test_judged_on_the_mended_graph_predictions_are_reproduced() -> None:
    """What is kept of the parties' memory predicts what was reported."""
    result = runner.run(small("fedsage", judged_on="mended"))
    assert bool(result.memory["0"]["counts"].any())
    table = result.model().predict()
    test = table[table["split"] == "test"]
    assert float((test["class"] == test["label"]).mean()) == pytest.approx(result.metrics["accuracy"])
