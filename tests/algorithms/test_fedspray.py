"""FedSpray against a naive loop over parties with PyG's layers, its degenerate cases and its bytes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import atoll
from atoll import wire
from atoll.algorithms import fedspray
from atoll.algorithms.fedspray.encoder import Encoder
from atoll.errors import AtollError, AtollWarning
from atoll.federation.cohort import Message
from atoll.graphs.blocks import Blocks
from atoll.graphs.graph import Graph
from atoll.models import optim
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.runner import Experiment, Result
from small import small

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv, SAGEConv, SGConv

SWITCHES: dict[str, dict[str, Any]] = {
    "paper": {"variant": "paper"},
    "gate": {"variant": "paper", "confidence": 0.6},
    "authors": {"variant": "authors", "confidence": 0.6},
}


def run(**values: Any) -> Result:
    """FedSpray, or another algorithm, on a graph of 60 nodes."""
    return runner.rounds(runner.prepare(small(values.pop("algorithm", "fedspray"), **values)))


def dense(graph: Graph) -> Tensor:
    """The features as an ordinary tensor."""
    return graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray()).float()


class Network(nn.Module):
    """PyG's layers with the parameters of one party of ours."""

    def __init__(self, model: str, params: dict[str, Tensor], party: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place in sorted({name.split(".")[1] for name in params}):
            own = {name.split(".", 2)[2]: v[party] for name, v in params.items() if name.split(".")[1] == place}
            fan_in, fan_out = own["near.weight" if model == "sage" else "weight"].shape
            layer = {"gcn": GCNConv, "sage": SAGEConv, "sgc": lambda i, o: SGConv(i, o, K=2)}[model](fan_in, fan_out)
            if model == "sage":
                wanted = {
                    "lin_l.weight": own["near.weight"].t(),
                    "lin_l.bias": own["near.bias"],
                    "lin_r.weight": own["own.weight"].t(),
                }
            else:
                wanted = {"lin.weight": own["weight"].t(), "bias" if model == "gcn" else "lin.bias": own["bias"]}
            layer.load_state_dict(wanted)
            layers.append(layer)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        for layer in self.layers[:-1]:
            x = layer(x, edge_index).relu()
        return self.layers[-1](x, edge_index)


class Party:
    """One party of Algorithm 1, written as plainly as possible."""

    def __init__(self, graph: Graph, network: Network, settings: Any) -> None:
        self.x, self.edges, self.y, self.train = dense(graph), graph.edge_index, graph.y, graph.train
        self.network, self.s, self.recipe = network, settings, fedspray.recipe(settings)
        self.adam = torch.optim.Adam(network.parameters(), lr=settings.lr)
        width, classes = settings.proxy_dim, graph.num_classes
        self.encoder = nn.ModuleDict(
            {
                "embedding": nn.Linear(self.x.shape[1], width),
                "classifier": nn.Linear(width, classes),
                "projector": nn.Linear(width, classes),
            }
        )
        self.encoder_adam = torch.optim.Adam(self.encoder.parameters(), lr=settings.lr)
        self.own = nn.Parameter(torch.full((len(self.y), width), self.recipe.initial_proxy_value))
        self.own_adam = torch.optim.Adam([self.own], lr=settings.proxy_lr)
        self.gated = 0

    def load(self, encoder: dict[str, Tensor]) -> None:
        """ω⁽ᵏ⁾ ← ω."""
        self.encoder.load_state_dict({n: v.t() if v.ndim == 2 else v for n, v in encoder.items()})

    def update(self, encoder: dict[str, Tensor], proxies: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """LocalUpdate: the encoder, the class proxies, and each class's ratio among the labeled nodes."""
        self.load(encoder)
        e = self.encoder["embedding"](self.x).relu().detach()
        q = self.encoder["projector"](e).softmax(1).detach()
        structure = torch.zeros(len(self.y), proxies.shape[1])
        for i in range(len(self.y)):
            if not self.train[i]:
                structure[i] = sum(q[i, c] * proxies[c] for c in range(len(proxies)))
            else:
                structure[i] = proxies[self.y[i]] if self.recipe.refresh_proxies else self.own.detach()[i]
        p = self.encoder["classifier"](e + structure).softmax(1).detach()
        counted = self.train | (q.max(1).values > self.recipe.confidence)
        self.gated += int((~counted).sum())
        for _ in range(self.s.epochs):
            logits = self.network(self.x, self.edges)
            loss = F.cross_entropy(logits[self.train], self.y[self.train])
            divergence = (p * (p.log() - logits.log_softmax(1))).sum(1)[counted].mean()
            self.adam.zero_grad()
            (loss + self.s.soft_target_weight * divergence).backward()
            self.adam.step()
        belief = self.network(self.x, self.edges).softmax(1).detach()
        with torch.no_grad():
            self.own[:] = structure
        if self.recipe.tie_projector:
            self.encoder["projector"].load_state_dict(self.encoder["classifier"].state_dict())
        for _ in range(self.s.epochs):
            e = self.encoder["embedding"](self.x).relu()
            loss = F.cross_entropy(self.encoder["projector"](e)[self.train], self.y[self.train])
            guess = self.encoder["classifier"](e + self.own).log_softmax(1)
            divergence = (belief * (belief.log() - guess)).sum(1)[self.train].mean()
            self.encoder_adam.zero_grad()
            self.own_adam.zero_grad()
            (loss + self.s.belief_weight * divergence).backward()
            self.encoder_adam.step()
            self.own_adam.step()
        ratio = torch.stack([(self.y[self.train] == c).float().mean() for c in range(len(proxies))])
        means = torch.zeros_like(proxies)
        for c in range(len(proxies)):
            if ratio[c] > 0:
                means[c] = self.own.detach()[self.train & (self.y == c)].mean(0)
        return {n: v.t() if v.ndim == 2 else v for n, v in self.encoder.state_dict().items()}, means, ratio


def naive_round(parties: list[Party], encoder: dict[str, Tensor], proxies: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The server's side: Eqs. 14 and 15."""
    replies = [party.update(encoder, proxies) for party in parties]
    n = [int(party.train.sum()) for party in parties]
    encoder = {name: sum(k * reply[0][name] for k, reply in zip(n, replies, strict=True)) / sum(n) for name in encoder}
    aligned = torch.zeros_like(proxies)
    for c in range(len(proxies)):
        weights = [reply[2][c] for reply in replies]
        aligned[c] = sum(w * reply[1][c] for w, reply in zip(weights, replies, strict=True)) / sum(weights)
    return encoder, aligned


def naive_parties(experiment: Experiment) -> list[Party]:
    """Plain parties with the first values of ours."""
    settings, parts = experiment.config.settings, experiment.party_data.parts
    params = {name: value.clone() for name, value in experiment.engine.state()["0"]["gnn"].items()}
    return [Party(parts.select([p]), Network(settings.model, params, p), settings) for p in range(parts.parties)]


@pytest.mark.parametrize("model", ["gcn", "sgc", "sage"])
@pytest.mark.parametrize("switches", SWITCHES)
def test_three_rounds_are_those_of_a_naive_loop(model: str, switches: str) -> None:
    """Encoder, proxies and every party's logits after three rounds, for the letter of the paper and the authors' switches."""
    experiment = runner.prepare(small("fedspray", model=model, lr=0.01, **SWITCHES[switches]))
    settings, federation = experiment.config.settings, experiment.federation
    state = fedspray.start(federation, settings)
    encoder, proxies = {n: v.clone() for n, v in state["encoder"].items()}, state["proxies"].clone()
    parties = naive_parties(experiment)
    for round in range(1, 4):
        federation.begin(round)
        state = fedspray.step(federation, state, settings)
        encoder, proxies = naive_round(parties, encoder, proxies)
    for name, value in encoder.items():
        torch.testing.assert_close(state["encoder"][name], value, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(state["proxies"], proxies, atol=2e-5, rtol=1e-4)
    cohort = experiment.engine.cohorts[0]
    logits = torch.cat([party.network(party.x, party.edges) for party in parties])
    torch.testing.assert_close(cohort.gnn(cohort.graph), logits, atol=2e-4, rtol=1e-4)
    unlabeled = int((~experiment.party_data.parts.train).sum())
    assert (0 < sum(party.gated for party in parties) < 3 * unlabeled) == (switches != "paper")


@pytest.mark.parametrize("variant", fedspray.RECIPES)
@pytest.mark.parametrize("model", ["gcn", "sgc", "sage"])
def test_without_distillation_it_is_local(model: str, variant: str) -> None:
    """λ₁ = 0 gives Local's models, bit for bit, and so its history."""
    spray, local = run(model=model, variant=variant, soft_target_weight=0), run(algorithm="local", model=model)
    for name, value in local.memory["0"]["model"].items():
        assert torch.equal(spray.memory["0"]["gnn"][name], value), name
    for row, same in zip(spray.rows, local.rows, strict=True):
        assert [row[name] for name in ("val_loss", "loss", "accuracy")] == [
            same[name] for name in ("val_loss", "loss", "accuracy")
        ]


@pytest.mark.parametrize("variant", fedspray.RECIPES)
def test_without_proxies_they_stay_zero(variant: str) -> None:
    """S = 0 throughout (Table 3), at the server and at the parties, whatever the variant starts from."""
    result = run(variant=variant, proxies=False)
    assert not result.state["proxies"].any()
    assert not result.memory["0"]["proxies"]["own"].any()
    assert run(variant=variant).state["proxies"].all()


def test_bytes_are_the_formula() -> None:
    """Down 4·(w + C·h), up 4·(w + C·h + C) + 8 for every party and round; evaluation sends nothing down."""
    d, c, h, parties, rounds = 12, 3, 20, 3, 3
    w = d * h + h + 2 * (h * c + c)
    result = run(proxy_dim=h)
    assert result.bytes["by_verb"].keys() == {"update"}
    assert result.bytes["down"] == rounds * parties * 4 * (w + c * h)
    assert result.bytes["up"] == rounds * parties * (4 * (w + c * h + c) + 8)
    assert result.bytes["evaluation"]["down"] == 0


def test_the_server_needs_totals_only() -> None:
    """Under secure aggregation, where no single reply is seen, the state is the same."""
    secure = dict(wire.leaves(run(secure=True).state))
    for name, value in wire.leaves(run().state):
        torch.testing.assert_close(secure[name], value, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


class Sums:
    """A federation that says one thing."""

    def __init__(self, **said: Any) -> None:
        self.said = said

    def total(self, verb: str, **common: Any) -> dict[str, Any]:
        """Whatever was asked."""
        return self.said


def test_a_class_nobody_has_keeps_its_proxy() -> None:
    """Eq. 15 divides by the sum of the shares; where that is zero the proxy stays as it was."""
    sums = Sums(encoder={}, n=torch.tensor(4), proxies=torch.tensor([[0.5], [0.0]]), share=torch.tensor([2.0, 0.0]))
    state = fedspray.step(sums, {"encoder": {}, "proxies": torch.tensor([[7.0], [8.0]])}, fedspray.Settings())  # type: ignore[arg-type]
    assert state["proxies"].tolist() == [[0.25], [8.0]]


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("elsewhere", [{"placement": "apart"}, {"amnesia": True}])
def test_the_authors_proxies_stay_with_their_nodes(elsewhere: dict[str, Any], participation: float) -> None:
    """Proxies that labeled nodes keep survive wherever the party lives, and rounds in which it does not take part."""
    usual = run(variant="authors", rounds=5, participation=participation)
    moved = run(variant="authors", rounds=5, participation=participation, **elsewhere)
    found = dict(wire.leaves(moved.state))
    for name, value in wire.leaves(usual.state):
        torch.testing.assert_close(value, found[name], atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_variant_sets_all_switches_and_each_can_be_set_by_hand() -> None:
    """`variant` chooses the recipe; a switch that is given wins."""
    assert fedspray.recipe(fedspray.Settings()) == fedspray.RECIPES["default"]
    assert fedspray.recipe(fedspray.Settings(variant="authors")) == fedspray.RECIPES["authors"]
    mixed = fedspray.recipe(fedspray.Settings(variant="authors", confidence=0.0, refresh_proxies=True))
    assert (mixed.confidence, mixed.refresh_proxies, mixed.tie_projector) == (0.0, True, True)
    with pytest.raises(AtollError, match="must be one of default, paper, authors"):
        small("fedspray", variant="author's")


def test_a_training_node_without_a_label_is_refused() -> None:
    """There is no proxy for a node of no class: one sentence, before anything is trained."""
    experiment = runner.prepare(small("fedspray"))
    graph = experiment.party_data.parts
    y = graph.y.masked_fill(graph.train & (torch.arange(60) == int(graph.train.nonzero()[0])), -1)
    with pytest.raises(AtollError, match="training node has no label"):
        fedspray.Cohort(replace(graph, y=y), experiment.config.settings, experiment.federation.schema, 0, range(3))


def test_uniform_weights_are_between_zero_and_one() -> None:
    """The authors' first GNN weights: U(0, 1), each party its own."""
    gnn = runner.prepare(small("fedspray", uniform_weights=True)).engine.state()["0"]["gnn"]
    for value in gnn.values():
        assert 0 <= float(value.min()) < float(value.max()) <= 1
        assert not torch.equal(value[0], value[1])


@pytest.mark.parametrize("make", [optim.Adam, optim.SGD])
def test_several_optimizers_descend_one_loss(make: Callable[..., Any]) -> None:
    """One backward pass for both gives what each would have done alone."""
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(4, 3, requires_grad=True)
    same = [t.detach().clone().requires_grad_() for t in (a, b)]
    optim.descend([make([a], 0.1), make([b], 0.3)], (a.sum() * b).square().sum())
    for place, lr in enumerate((0.1, 0.3)):
        fresh = [t.detach().clone().requires_grad_() for t in same]
        optim.descend(make([fresh[place]], lr), (fresh[0].sum() * fresh[1]).square().sum())
        assert torch.equal(fresh[place], (a, b)[place])


def test_the_same_backbone_by_party_is_the_usual_one() -> None:
    """`models=gcn` has the numbers of `model=gcn`, bit for bit, also with dropout: same first weights, same draws."""
    mixed, usual = run(models="gcn", dropout=0.3), run(model="gcn", dropout=0.3)
    assert mixed.metrics == usual.metrics
    found = dict(wire.leaves(mixed.state))
    assert all(torch.equal(value, found[name]) for name, value in wire.leaves(usual.state))


def test_backbones_by_party_equal_a_loop_over_parties() -> None:
    """Parties 0 and 2 have a GCN, party 1 a GraphSAGE; two rounds of Algorithm 1 by PyG's layers."""
    config = small("fedspray", rounds=2, models="gcn,sage", variant="authors", confidence=0.6)
    experiment = runner.prepare(config)
    first = experiment.engine.state()["0"]["gnn"]
    graph, names = experiment.party_data.parts, ["gcn", "sage", "gcn"]
    parties = []
    for p, name in enumerate(names):
        prefix = f"backbones.{name}."
        own = {key.removeprefix(prefix): value for key, value in first.items() if key.startswith(prefix)}
        parties.append(Party(graph.select([p]), Network(name, own, p), config.settings))
    state = fedspray.start(experiment.federation, config.settings)
    for _ in range(2):
        replies = [party.update(state["encoder"], state["proxies"]) for party in parties]
        n = [int(party.train.sum()) for party in parties]
        encoder = {k: sum(r[0][k] * c for r, c in zip(replies, n, strict=True)) / sum(n) for k in state["encoder"]}
        shares = sum(r[2] for r in replies)
        proxies = sum(r[1] * r[2][:, None] for r in replies) / shares[:, None]
        state = {"encoder": {k: v.detach() for k, v in encoder.items()}, "proxies": proxies}
    found = runner.rounds(experiment).state
    for (name, value), (_, other) in zip(wire.leaves(found), wire.leaves(state), strict=True):
        torch.testing.assert_close(value, other, atol=1e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("elsewhere", [{"placement": "apart"}, {"amnesia": True}, {"participation": 0.5}])
def test_backbones_by_party_may_be_anywhere(elsewhere: dict[str, Any]) -> None:
    """A party has the same backbone and numbers wherever it lives."""
    some = {name: value for name, value in elsewhere.items() if name == "participation"}
    usual, moved = run(models="sgc,gin,sage", rounds=4, **some), run(models="sgc,gin,sage", rounds=4, **elsewhere)
    found = dict(wire.leaves(moved.state))
    for name, value in wire.leaves(usual.state):
        torch.testing.assert_close(value, found[name], atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_a_party_uses_and_trains_only_its_own_backbone(tmp_path: Path) -> None:
    """The parameters of the others stay zero; an export holds the party's own."""
    result = runner.run(small("fedspray", models="gcn,sage", rounds=2, weight_decay=0.1), out=tmp_path / "run")
    gnn = result.memory["0"]["gnn"]
    for name, value in gnn.items():
        own = [p for p in range(3) if name.startswith(f"backbones.{['gcn', 'sage', 'gcn'][p]}.")]
        assert all(bool(value[p].any()) == (p in own) for p in range(3)), name
    for party, layer in ((0, "gcn"), (1, "sage")):
        out = tmp_path / f"party{party}"
        result.model().export("safetensors", out, party=party)
        assert ("neighbors" in "".join(path.read_text() for path in out.glob("*.py"))) == (layer == "sage")


def test_unknown_backbones_are_refused() -> None:
    """By name, before anything is trained."""
    with pytest.raises(AtollError, match=r"models names 'gcm', but must name some of appnp, .*gcn"):
        run(models="gcn,gcm")


def test_concatenation_is_a_wider_classifier() -> None:
    """g_p takes [e ‖ s]: h·C numbers more; its sum with a twice repeated weight is addition; no tie to the projector."""
    result = run(combine="concat", variant="paper", rounds=2, proxy_dim=8)
    assert result.state["encoder"]["classifier.weight"].shape == (16, 3)
    assert result.bytes["down"] == 2 * 3 * 4 * (12 * 8 + 8 + 8 * 3 + 3 + 16 * 3 + 3 + 3 * 8)
    settings = fedspray.Settings(proxy_dim=4)
    schema = runner.prepare(small("fedspray")).federation.schema
    added = Encoder(settings, schema, 2, Draws(0, [0, 1], "x"))
    joined = Encoder(replace(settings, combine="concat"), schema, 2, None)
    weights = {f"classifier.{name}": value for name, value in added.classifier.named_parameters()}
    with torch.no_grad():
        joined.classifier.weight.copy_(torch.cat([weights["classifier.weight"]] * 2, 1))
        joined.classifier.bias.copy_(weights["classifier.bias"])
    e, s = torch.randn(6, 4), torch.randn(6, 4)
    blocks = Blocks([2, 4])
    torch.testing.assert_close(joined.classify(e, s, blocks), added.classify(e, s, blocks))
    with pytest.raises(AtollError, match="set tie_projector=false"):
        run(combine="concat", variant="authors")


def without_labels(graph: Graph, party: int) -> Graph:
    """The parties' graph with the training nodes of one of them taken out."""
    return replace(graph, train=graph.train & (graph.party != party))


def test_a_party_without_labels_learns_from_soft_targets_and_gives_nothing() -> None:
    """Its report is zero, its GNN moves, and the others' encoder and proxies are those of a federation without it."""
    experiment = runner.prepare(small("fedspray", variant="paper"))
    settings, schema = experiment.config.settings, experiment.federation.schema
    graph = without_labels(experiment.party_data.parts, 1)
    cohort = fedspray.Cohort(graph, settings, schema, 3, range(3))
    others = fedspray.Cohort(graph.select([0, 2]), settings, schema, 3, [0, 2])
    state = fedspray.start(experiment.federation, settings)
    before = {name: value.clone() for name, value in cohort.state()["gnn"].items()}
    for number in (1, 2):
        message = Message("update", number, 0, True, (0, 1, 2), state, {})
        report, rest = cohort.answer(message), others.answer(message.select([0, 2]))
        for (name, value), (_, other) in zip(wire.leaves(report), wire.leaves(rest), strict=True):
            assert not bool(value[1].any()), name
            torch.testing.assert_close(value[[0, 2]], other, atol=1e-5, rtol=1e-5)
    after = cohort.state()["gnn"]
    assert all(bool(torch.isfinite(value).all()) for value in after.values())
    assert any(not torch.equal(value[1], after[name][1]) for name, value in before.items())


@pytest.mark.parametrize("elsewhere", [{"placement": "apart"}, {"amnesia": True}])
def test_a_federation_with_an_unlabeled_party_runs_anywhere(elsewhere: dict[str, Any], tmp_path: Path) -> None:
    """Refused by other methods, run by FedSpray with a sentence; its test nodes count, none of them as a minority node."""
    for party in range(3):
        rows = ["id,x0,x1,label,split"]
        for i in range(12):
            label = "" if party == 1 and i < 8 else str(i % 2)
            split = ["train", "val", "test"][0 if i < 8 else 1 + i % 2] if not (party == 1 and i < 8) else ""
            rows.append(f"p{party}n{i},{(i % 2) - 0.5 + 0.1 * party},{i / 10},{label},{split}")
        folder = tmp_path / f"p{party}"
        folder.mkdir()
        (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
        edges = [f"p{party}n{i},p{party}n{(i + 2) % 12}" for i in range(12)]
        (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    chosen: dict[str, Any] = {"dataset": str(tmp_path), "partition": "files", "rounds": 2, "patience": 0}
    with pytest.raises(AtollError, match="no training nodes"):
        atoll.run("fedavg", **chosen)
    with pytest.warns(AtollWarning, match="1 of 3 parties have no training nodes"):
        usual = atoll.run("fedspray", **chosen)
    with pytest.warns(AtollWarning):
        moved = atoll.run("fedspray", **chosen, **elsewhere)
    assert usual.metrics["val_loss"] == pytest.approx(moved.metrics["val_loss"], abs=1e-5)
    assert usual.metrics["party_accuracy"][1] is not None
    assert usual.metrics["party_minority_accuracy"][1] is None


def test_a_round_in_which_nobody_has_labels_changes_nothing() -> None:
    """All sums are zero: the server keeps its encoder and proxies."""
    state = {"encoder": {"w": torch.ones(2)}, "proxies": torch.ones(2, 1)}
    sums = Sums(encoder={"w": torch.zeros(2)}, n=torch.tensor(0), proxies=torch.zeros(2, 1), share=torch.zeros(2))
    assert fedspray.step(sums, state, fedspray.Settings()) is state  # type: ignore[arg-type]
