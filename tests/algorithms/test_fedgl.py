"""FedGL against a plain loop, its degenerate cases, its bill and the two goals."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import atoll
import plain
from atoll.algorithms import fedgl
from atoll.errors import AtollError
from atoll.graphs import knn
from atoll.runs import config, runner
from atoll.runs.runner import Result
from small import Absent, small

PLAIN = {"dropout": 0, "input_dropout": 0, "pseudo_label_threshold": 0.4, "neighbors": 7}


def run(algorithm: str = "fedgl", **values: Any) -> Result:
    """A small run without files."""
    return runner.rounds(runner.prepare(small(algorithm, **values)))


def pseudo_graph(embeddings: Tensor, s: Any) -> Tensor:
    """Ā of Eq. 14 with all N × N products."""
    if s.pseudo_graph in ("joint", "cosine"):
        embeddings = F.normalize(embeddings, dim=1)
    product = (embeddings @ embeddings.t()).relu()
    if not s.count_itself:
        product.fill_diagonal_(-1)
    kept = torch.zeros_like(product).scatter_(1, product.topk(s.neighbors, dim=1).indices, 1.0) * product
    return kept / kept.sum(1, keepdim=True).clamp(min=1e-12)


def complemented(party: plain.Party, pseudo: Tensor, beta: float, form: str) -> Tensor:
    """A_k of Eq. 9, or normalized jointly."""
    if form in ("joint", "cosine"):
        pseudo = (pseudo + pseudo.t()) / 2
    if form == "joint":
        return plain.normalized(party.adjacency + beta * pseudo.fill_diagonal_(0))
    degree = (pseudo > 0).sum(1) if form == "counts" else pseudo.sum(1)
    scale = torch.where(degree > 0, degree, 1.0) ** -0.5
    return party.normalized_adjacency + beta * scale[:, None] * pseudo * scale


def attended(x: Tensor, w: dict[str, Tensor], layer: int, counted: Tensor, beside: Tensor) -> Tensor:
    """A layer of GAT, head by head: α_i = softmax_j(e_ij + log counted_ij), and `beside` added to α."""
    rows, source, target = (w[f"layers.{layer}.{name}"] for name in ("weight", "source", "target"))
    outputs = []
    for head, h in enumerate((x @ rows).split(source.shape[1], dim=1)):
        scores = F.leaky_relu((h @ source[head])[None, :] + (h @ target[head])[:, None], 0.2)
        outputs.append(((scores + counted.log()).softmax(1) + beside) @ h)
    return torch.cat(outputs, 1)


def network(party: plain.Party, pseudo: Tensor, w: dict[str, Tensor], s: Any) -> Tensor:
    """H_k: Eq. 2 over A_k of Eq. 9, or of GAT with the pseudo graph in its attention."""
    if s.model == "gcn":
        through = complemented(party, pseudo, s.pseudo_graph_weight, s.pseudo_graph)  # Eq. 9
        return through @ (through @ party.x @ w["layers.0.weight"]).relu() @ w["layers.1.weight"]  # Eq. 2
    counted, beside = party.adjacency + torch.eye(len(party.x)), torch.zeros_like(party.adjacency)
    if s.pseudo_graph == "joint":
        counted = counted + s.pseudo_graph_weight * ((pseudo + pseudo.t()) / 2).fill_diagonal_(0)
    else:
        beside = complemented(party, pseudo, s.pseudo_graph_weight, s.pseudo_graph) - party.normalized_adjacency
    hidden = F.elu(attended(party.x, w, 0, counted, beside))
    return attended(hidden, w, 1, counted, beside)


def total_loss(hidden: Tensor, party: plain.Party, pseudo: Tensor, s: Any) -> Tensor:
    """Eq. 8."""
    reduction = s.loss
    loss = F.cross_entropy(hidden[party.train], party.y[party.train], reduction=reduction)
    if bool((pseudo >= 0).any()):
        groups = [pseudo == label for label in pseudo.unique() if label >= 0] if s.balance_classes else [pseudo >= 0]
        terms = [F.cross_entropy(hidden[group], pseudo[group], reduction=reduction) for group in groups]
        loss = loss + s.pseudo_label_weight * torch.stack(terms).mean()
    return loss


def adam_of(w: dict[str, Tensor], s: Any) -> torch.optim.Adam:
    """Adam, its L2 penalty on all weights or on those of the first layer."""
    decayed = [value for name, value in w.items() if s.decay_layers == "all" or name.startswith("layers.0.")]
    others = [value for name, value in w.items() if s.decay_layers == "first" and not name.startswith("layers.0.")]
    groups = [{"params": decayed, "weight_decay": s.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.Adam([group for group in groups if group["params"]], lr=s.lr)


def naive(settings: dict[str, Any], rounds: int) -> tuple[dict[str, Tensor], Tensor]:
    """Algorithm 1, party after party, in plain torch: the model, and the pseudo labels of the last round."""
    model, labels, _ = naive_with_graph(settings, rounds)
    return model, labels


def naive_with_graph(settings: dict[str, Any], rounds: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """The same, and the pseudo graph of the last round."""
    experiment, parties = plain.prepare(small("fedgl", **settings))
    s = experiment.config.settings
    ids = experiment.party_data.parts.ids.split(experiment.party_data.parts.sizes)
    count = int(torch.cat(ids).max()) + 1
    model = fedgl.start(experiment.federation, s)["model"]
    weights = [plain.leaves(model) for _ in parties]
    adams = [adam_of(w, s) for w in weights]
    labels, graph = torch.full((count,), -1), torch.zeros(count, count)
    for _ in range(rounds):
        predictions, embeddings, held = torch.zeros(count, 3), torch.zeros(count, 3), torch.zeros(count)
        for party, own, w, adam in zip(parties, ids, weights, adams, strict=True):
            local = graph[own][:, own]
            pseudo = labels[own].masked_fill(party.train, -1)
            with torch.no_grad():
                for name, value in w.items():
                    value.copy_(model[name])
            for _ in range(s.epochs):
                hidden = network(party, local, w, s)  # line 6
                adam.zero_grad()
                total_loss(hidden, party, pseudo, s).backward()  # line 7
                adam.step()
            if s.outputs == "after":
                hidden = network(party, local, w, s)
            hidden = hidden.detach()
            predictions[own] += len(own) * hidden.softmax(1)
            embeddings[own] += len(own) * hidden
            held[own] += len(own)
        model = plain.average(weights, [len(own) for own in ids])  # Eq. 10
        over = held.clamp(min=1) if s.fusion == "holders" else torch.full((count,), float(sum(map(len, ids))))
        confidence, classes = (predictions / over[:, None]).max(1)  # Eq. 11
        labels = torch.where(confidence > s.pseudo_label_threshold, classes, -1)  # Eq. 12
        graph = pseudo_graph(embeddings / over[:, None], s)  # Eqs. 13 and 14
    return model, labels, graph


@pytest.mark.parametrize("form", knn.FORMS)
@pytest.mark.parametrize("upload", ["sum", "rows"])
def test_three_rounds_by_a_plain_loop(form: str, upload: str) -> None:
    """The model and the pseudo labels after three rounds are those of a loop over parties with dense matrices."""
    settings = {**PLAIN, "pseudo_graph": form, "upload": upload}
    model, labels = naive(settings, 3)
    result = run(rounds=3, **settings)
    plain.close(result.state["model"], model, 1e-4)
    found = fedgl.pseudo_labels(result.state["predictions"], PLAIN["pseudo_label_threshold"])
    assert found.tolist() == labels.tolist()
    assert bool((labels >= 0).any())


@pytest.mark.parametrize("upload", ["sum", "rows"])
def test_literal_fusion_by_a_plain_loop(upload: str) -> None:
    """N_k/M over all parties: the paper's letter."""
    settings = {**PLAIN, "fusion": "literal", "pseudo_label_threshold": 0.2, "upload": upload}
    model, labels = naive(settings, 3)
    result = run(rounds=3, **settings)
    plain.close(result.state["model"], model, 1e-4)
    assert fedgl.pseudo_labels(result.state["predictions"], 0.2).tolist() == labels.tolist()
    fused = run(rounds=3, **{**settings, "fusion": "holders"})
    assert int((labels >= 0).sum()) < int((fedgl.pseudo_labels(fused.state["predictions"], 0.2) >= 0).sum())


def test_balanced_pseudo_labels_by_a_plain_loop() -> None:
    """`balance`: the loss on pseudo labels is a mean over the classes of every class's mean; the model is another one for it."""
    settings = {**PLAIN, "balance_classes": True}
    model, _ = naive(settings, 3)
    found = run(rounds=3, **settings).state["model"]
    plain.close(found, model, 1e-4)
    plain.close(found, run(rounds=3, placement="apart", **settings).state["model"], 1e-5)
    other = run(rounds=3, **PLAIN).state["model"]
    assert any(not torch.allclose(value, other[name], atol=1e-3) for name, value in model.items())


SWITCHES: list[dict[str, Any]] = [
    {"count_itself": False},
    {"count_itself": False, "pseudo_graph": "literal"},
    {"loss": "sum"},
    {"outputs": "before"},
    {"decay_layers": "first", "weight_decay": 0.05},
    {"variant": "paper", "pseudo_label_threshold": 0.2},
    {"variant": "paper", "pseudo_label_threshold": 0.2, "loss": "mean", "count_itself": False},
]


@pytest.mark.parametrize("switches", SWITCHES, ids=lambda each: " ".join(f"{name}={value}" for name, value in each.items()))
def test_every_switch_by_a_plain_loop(switches: dict[str, Any]) -> None:
    """The paper's variant, what it sets and the other switches, each alone; and every one makes another model."""
    settings = {**PLAIN, "upload": "sum", **switches}
    model, labels = naive(settings, 3)
    result = run(rounds=3, **settings)
    plain.close(result.state["model"], model, 1e-4)
    assert fedgl.pseudo_labels(result.state["predictions"], settings["pseudo_label_threshold"]).tolist() == labels.tolist()
    other = run(rounds=3, **PLAIN).state["model"]
    assert any(not torch.allclose(value, other[name], atol=1e-4) for name, value in model.items())


def test_the_paper_s_variant_sets_all_of_the_text() -> None:
    """`variant=paper` is the switches that its docstring lists; a switch set by hand wins; baselines take the decay."""
    text = {
        "pseudo_graph": "literal",
        "neighbors": 100,
        "fusion": "literal",
        "loss": "sum",
        "outputs": "before",
        "upload": "rows",
    }
    values = {"variant": "paper"}
    chosen = config.resolve("fedgl", dataset="cora", values=values).settings
    usual = config.resolve("fedgl", dataset="cora").settings
    differing = {field.name for field in fields(usual) if getattr(usual, field.name) != getattr(chosen, field.name)}
    assert differing == {*text, "decay_layers", "variant"}
    assert {name: getattr(chosen, name) for name in text} == text
    assert chosen.decay_layers == "first"
    assert all(f"`{name}={value}`" in (fedgl.Settings.__doc__ or "") for name, value in text.items())
    assert config.resolve("fedgl", dataset="cora", values={**values, "neighbors": 5}).settings.neighbors == 5
    baseline = config.resolve("fedavg", dataset="cora", partition="overlap", values=values).settings
    assert baseline.decay_layers == "first"


@pytest.mark.parametrize("form", ["joint", "literal"])
def test_gat_with_a_pseudo_graph_by_a_plain_loop(form: str) -> None:
    """GAT attends to pseudo neighbors by their weights (`joint`), or Eq. 9 adds them to its attention."""
    settings = {**PLAIN, "model": "gat", "hidden": 8, "model.heads": 2, "pseudo_graph": form}
    model, labels = naive(settings, 3)
    result = run(rounds=3, **settings)
    plain.close(result.state["model"], model, 1e-3)
    assert fedgl.pseudo_labels(result.state["predictions"], PLAIN["pseudo_label_threshold"]).tolist() == labels.tolist()
    plain.close(result.state["model"], run(rounds=3, placement="apart", **settings).state["model"], 1e-4)


def test_gat_without_a_pseudo_graph_is_fedavg_s() -> None:
    """As β goes to 0, the model goes to that of β = 0, where pseudo edges have no part."""
    settings = {**PLAIN, "model": "gat", "hidden": 8, "model.heads": 2, "pseudo_label_weight": 0}
    without = run(rounds=3, pseudo_graph_weight=0, **settings).state["model"]
    plain.close(run(rounds=3, pseudo_graph_weight=1e-7, **settings).state["model"], without, 1e-3)
    full = run(rounds=3, **settings).state["model"]
    assert any(not torch.allclose(value, full[name], atol=1e-2) for name, value in without.items())


@pytest.mark.parametrize("values", [{}, {"pseudo_graph": "literal"}, {"model": "gat", "hidden": 8, "model.heads": 2}])
def test_evaluation_over_the_pseudo_graph(values: dict[str, Any]) -> None:
    """Both goals use the last pseudo graph, whose bytes are counted; predictions for the training data are those evaluated."""
    settings = {**PLAIN, **values, "evaluate_pseudo_graph": True}
    experiment = runner.prepare(small("fedgl", **settings))
    result = runner.rounds(experiment)
    model, _, graph = naive_with_graph(settings, 3)
    s = experiment.config.settings
    whole, parts = experiment.party_data.whole, experiment.party_data.parts
    ids = parts.ids.split(parts.sizes)
    pairs = zip(plain.parties(parts), ids, parts.test.split(parts.sizes), strict=True)
    local = torch.cat([right(network(party, graph[own][:, own], model, s), party.y, test) for party, own, test in pairs])
    union = right(network(plain.dense(whole), graph[whole.ids][:, whole.ids], model, s), whole.y, whole.test)
    assert result.last["local_accuracy"] == pytest.approx(float(local.double().mean()))
    assert result.last["accuracy"] == pytest.approx(float(union.double().mean()))
    nodes, w = int(result.state["nodes"]), plain.size(model)
    assert result.bytes["evaluation"]["down"] == 3 * 3 * (4 * w + 8 * nodes * s.neighbors)
    trained = result.model()
    table = trained.predict()
    tested = table[table["split"] == "test"]
    assert float((tested["label"] == tested["class"]).mean()) == pytest.approx(result.metrics["local_accuracy"])
    assert len(trained.predict(atoll.load("csbm", nodes=50, classes=3, features=12, graph_seed=1))) == 50
    with pytest.raises(AtollError, match="evaluated over its pseudo graph"):
        trained.export("torchscript", "unused")


def right(logits: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Which of the masked nodes are predicted rightly."""
    return (logits.argmax(1) == y)[mask]


def test_sums_have_no_balanced_classes() -> None:
    """One sentence where two settings contradict each other."""
    with pytest.raises(AtollError, match="set loss=mean"):
        run(loss="sum", balance_classes=True)


@pytest.mark.parametrize("upload", ["sum", "rows"])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_without_self_supervision_it_is_fedavg(upload: str, participation: float) -> None:
    """α = β = 0: the same bits, metrics and bytes as FedAvg."""
    shared = {"partition.proportions": "0.5,0.6,0.7", "rounds": 4, "participation": participation}
    own = runner.rounds(runner.prepare(small("fedgl", pseudo_label_weight=0, pseudo_graph_weight=0, upload=upload, **shared)))
    values = {**shared, **{f"data.{k}": v for k, v in vars(own.config.data).items()}, "split": "random", "patience": 0}
    chosen = config.resolve("fedavg", dataset="csbm", partition="overlap", parties=3, seed=3, values=values)
    other = runner.rounds(runner.prepare(chosen))
    plain.same(own.state["model"], other.state["model"])
    assert plain.metrics(own) == plain.metrics(other)
    assert own.bytes == other.bytes


def test_every_party_must_be_heard_at_the_start() -> None:
    """The numbers of all nodes are needed before the first round."""

    def absent(engine: Any) -> Absent:
        return Absent(engine, {0}, {1})

    with pytest.raises(AtollError, match="party 1 does not answer"):
        runner.rounds(runner.prepare(small("fedgl"), engine=absent))


def test_ablations_send_only_what_they_need() -> None:
    """Without the pseudo graph no embeddings travel, without pseudo labels no predictions."""
    assert "embeddings" not in run(pseudo_graph_weight=0).state
    assert "predictions" not in run(pseudo_label_weight=0).state


@pytest.mark.parametrize("upload", ["sum", "rows"])
def test_the_bytes_are_those_of_the_docstring(upload: str) -> None:
    """Down 4w + 2N + 8Ns; up 4w + 8 + 8NC + 4N summed, 4w + 8 + N_k(8C + 4) as rows; the first round sends no pseudo labels."""
    experiment = runner.prepare(small("fedgl", rounds=2, neighbors=7, upload=upload))
    result = runner.rounds(experiment)
    w, nodes, classes = plain.size(result.state["model"]), int(result.state["nodes"]), 3
    sizes = experiment.party_data.parts.sizes
    up = [4 * w + 8 + (8 * nodes * classes + 4 * nodes if upload == "sum" else own * (8 * classes + 4)) for own in sizes]
    assert [row["up"] for row in result.rows] == [sum(up)] * 2
    assert [row["down"] for row in result.rows] == [3 * 4 * w, 3 * (4 * w + 2 * nodes + 8 * nodes * 7)]
    assert result.bytes["by_verb"]["count"]["up"] == 3 * 8


def test_pseudo_labels_pass_the_threshold_and_leave_training_nodes_alone() -> None:
    """Eq. 12, and only nodes without a real label learn from them."""
    predictions = torch.tensor([[0.7, 0.3], [0.5, 0.5], [0.2, 0.8], [0.0, 0.0]])
    assert fedgl.pseudo_labels(predictions, 0.5).tolist() == [0, -1, 1, -1]
    experiment = runner.prepare(small("fedgl"))
    cohort: Any = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    labels = torch.arange(60) % 3
    pseudo = cohort.project(labels)
    assert not bool((pseudo.train & cohort.graph.train).any())
    assert torch.equal(pseudo.y, labels[cohort.graph.ids])


def test_a_model_that_ignores_edge_weights_is_refused() -> None:
    """GraphSAGE and MLP cannot run over a weighted pseudo graph; without it they can."""
    with pytest.raises(AtollError, match="sage does not use"):
        run(model="sage")
    assert run(model="sage", pseudo_graph_weight=0, rounds=1).rounds == 1


def test_two_goals() -> None:
    """`accuracy` is the shared model's on the union graph, `local_accuracy` the parties' own; Local has no global goal."""
    shared = {"proportions": "0.5,0.6,0.7", "data.nodes": 60, "data.features": 12, "split": "random", "rounds": 2}
    for algorithm in ("fedgl", "fedavg", "local", "centralized"):
        chosen = config.resolve(algorithm, dataset="csbm", partition="overlap", seed=1, values=shared)
        experiment = runner.prepare(chosen)
        result = runner.rounds(experiment)
        assert ("accuracy" in result.last) == (algorithm != "local")
        assert ("local_accuracy" in result.last) == (algorithm != "centralized")
        if algorithm in ("fedgl", "fedavg"):
            whole, parts = experiment.party_data.whole, experiment.party_data.parts
            assert result.last["accuracy"] == pytest.approx(accuracy(result.state["model"], [plain.dense(whole)], [whole.test]))
            masks = list(parts.test.split(parts.sizes))
            assert result.last["local_accuracy"] == pytest.approx(accuracy(result.state["model"], plain.parties(parts), masks))


def accuracy(model: dict[str, Tensor], parties: list[plain.Party], masks: list[Tensor]) -> float:
    """The share of right answers among all masked nodes, by dense matrices."""
    right = []
    for party, mask in zip(parties, masks, strict=True):
        through = party.normalized_adjacency
        logits = through @ (through @ party.x @ model["layers.0.weight"]).relu() @ model["layers.1.weight"]
        right.append((logits.argmax(1) == party.y)[mask])
    return float(torch.cat(right).double().mean())


def test_the_union_graph_holds_what_some_party_holds() -> None:
    """Every edge of the union is an edge of a party and the other way round; a node has one role everywhere."""
    experiment = runner.prepare(small("fedgl"))
    whole, parts = experiment.party_data.whole, experiment.party_data.parts
    held = {(int(a), int(b)) for a, b in parts.ids[parts.edge_index].t()}
    assert {(int(a), int(b)) for a, b in whole.ids[whole.edge_index].t()} == held
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not bool((getattr(whole, one) & getattr(whole, other)).any())


def test_baselines_are_run_as_fedgl() -> None:
    """With the overlap partition FedAvg, Local and Centralized take FedGL's model, optimizer and split."""
    own = config.resolve("fedgl", dataset="acm", partition="overlap")
    for name in ("fedavg", "local", "centralized"):
        chosen = config.resolve(name, dataset="acm", partition="overlap")
        for key in ("hidden", "dropout", "input_dropout", "bias", "lr", "weight_decay", "epochs"):
            assert getattr(chosen.settings, key) == getattr(own.settings, key), key
        assert (chosen.split, chosen.data, chosen.run) == (own.split, own.data, own.run)
        assert chosen.partition_settings == own.partition_settings
    assert config.resolve("fedavg", dataset="acm").settings.hidden == 64


@pytest.mark.skipif("ATOLL_DATA" not in os.environ, reason="needs Cora under ATOLL_DATA")
def test_the_paper_s_overlap_on_cora() -> None:
    """Independent samples share about 1 % of the nodes among all parties (Section 5.6.3); `overlap` makes that exact."""
    for overlap, expected in ((-1.0, 0.0126), (0.05, 0.05), (0.10, 0.10), (0.15, 0.15)):
        chosen = config.resolve("fedgl", dataset="cora", values={"overlap": overlap})
        parts = runner.prepare(chosen).party_data.parts
        counts = torch.bincount(parts.ids, minlength=2708)
        assert int((counts == 6).sum()) / 2708 == pytest.approx(expected, abs=0.006 if overlap < 0 else 3e-4)
        shares = [0.3, 0.4, 0.5, 0.5, 0.6, 0.7]
        assert [round(size / 2708, 2) for size in parts.sizes] == shares


@pytest.mark.parametrize(
    "values", [{"pseudo_graph": "literal"}, {"loss": "sum"}, {"upload": "rows"}, {"outputs": "before"}], ids=str
)
def test_one_batch_with_all_neighbors_is_the_whole_graph(values: dict[str, Any]) -> None:
    """Pseudo labels and pseudo neighbors of a batch's nodes, however they are weighted, summed and sent."""
    whole, batched = run(**PLAIN, **values), run(**PLAIN, batch_size=1000, fan_out="0", **values)
    for name, value in whole.state["model"].items():
        torch.testing.assert_close(batched.state["model"][name], value, atol=1e-5, rtol=1e-5)


def test_with_fewer_batches_outputs_before_the_last_step_are_the_partys_own() -> None:
    """Of its own last step, not of that of a party with more batches: alone or together, it reports the same."""
    values = {"outputs": "before", "batch_size": 4, "fan_out": "0", "pseudo_label_weight": 0.2}
    together, apart = run(**PLAIN, **values), run(**PLAIN, **values, placement="apart")
    for name in ("predictions", "embeddings"):
        torch.testing.assert_close(together.state[name], apart.state[name], atol=1e-6, rtol=1e-6)


def test_attention_over_a_pseudo_graph_is_in_clusters_or_whole() -> None:
    """Its weights cannot be sampled; clusters are trained on with their own part of the pseudo graph."""
    with pytest.raises(AtollError, match="attends over a pseudo graph, which cannot be sampled; set sampler=clusters"):
        run(model="gat", batch_size=4)
    assert run(model="gat", batch_size=4, sampler="clusters").rounds == 3
