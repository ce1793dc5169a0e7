"""FedTAD against FedAvg and against a naive loop over parties, generated nodes and classes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll.algorithms.fedtad.distillation import Distillation, diversity, first_state, nearest_edges, pseudo_labels
from atoll.algorithms.fedtad.reliability import class_reliability, shares, walk_numbers
from atoll.federation.cohort import first_model
from atoll.random import SERVER, Draws
from atoll.runs import runner
from atoll.runs.runner import Experiment
from small import small

FEW = {"generated_nodes": 10, "server_steps": 2, "distillation_steps": 3, "generated_neighbors": 3}


def test_without_server_steps_it_is_fedavg_by_nodes() -> None:
    """server_steps = 0 gives FedAvg's model and metrics by nodes, bit for bit, with dropout and partial participation."""
    values = {"dropout": 0.3, "weighting": "nodes", "participation": 0.7}
    tad, avg = (runner.run(small(name, **values, **more)) for name, more in (("fedtad", {"server_steps": 0}), ("fedavg", {})))
    plain.same(tad.state["model"], avg.state["model"])
    assert plain.metrics(tad) == plain.metrics(avg)


def reliabilities(party: plain.Party, topology: str) -> Tensor:
    """(C,) Φ_k, node by node."""
    degree, nodes = party.adjacency.sum(1), range(len(party.x))
    transition = party.adjacency / degree.clamp(min=1)
    walks = torch.stack([torch.linalg.matrix_power(transition, step).diagonal() for step in (1, 2, 3, 4, 5)], 1)
    e = torch.cat([party.x, walks], 1) if topology == "return" else party.x
    total = torch.zeros(3)
    for i in nodes:
        if party.train[i]:
            near = [torch.cosine_similarity(e[i], e[j], dim=0) for j in nodes if party.adjacency[i, j]]
            total[party.y[i]] += (1 + sum(near)) / (len(near) + 1)
    return total.clamp(min=0)


@pytest.mark.parametrize("topology", ["return", "none"])
def test_reliability_is_the_sum_over_training_nodes(topology: str) -> None:
    """Φ_kc of every party and class, from return probabilities of one to five steps or from features alone."""
    experiment, parties = plain.prepare(small("fedtad"))
    graph = experiment.party_data.parts
    found = class_reliability(graph, topology, 5, Draws(0, range(3)))
    torch.testing.assert_close(found, torch.stack([reliabilities(party, topology) for party in parties]), atol=1e-5, rtol=1e-5)


def test_walks_of_the_authors_code() -> None:
    """15 columns of node numbers: each walk begins at its node and, but for a share 1/N_k and some more, goes anywhere."""
    graph = runner.prepare(small("fedtad")).party_data.parts
    numbers = walk_numbers(graph, 5, Draws(0, range(3)))
    assert numbers.shape == (60, 15)
    first = torch.cat([torch.arange(size) for size in graph.sizes]).float()
    for column in (0, 1, 3, 6, 10):
        assert torch.equal(numbers[:, column], first)
    sizes = graph.ptr.diff()[graph.party]
    assert bool((numbers >= 0).all())
    assert bool((numbers < sizes[:, None]).all())
    jumps = torch.stack([walk_numbers(graph, 2, Draws(seed, range(3)))[:, 2] for seed in range(300)])
    degree = torch.bincount(graph.edge_index[1], minlength=60)
    weight = (1 / (degree + 1)).exp()
    stayed = (jumps == first).float().mean(0)
    assert float((stayed - weight / (weight + sizes - 1)).mean().abs()) < 0.01


def test_shares() -> None:
    """Over parties columns sum to 1, over classes rows; a class that nobody has counts nothing."""
    reliability = torch.tensor([[1.0, 0.0, 3.0], [1.0, 0.0, 1.0]])
    torch.testing.assert_close(shares(reliability, "parties"), torch.tensor([[0.5, 0, 0.75], [0.5, 0, 0.25]]))
    torch.testing.assert_close(shares(reliability, "classes"), torch.tensor([[0.25, 0, 0.75], [0.5, 0, 0.5]]))


def test_generated_nodes_are_joined_to_the_nearest() -> None:
    """Labels in equal numbers with the rest in the last class; an edge where either end is among the other's nearest."""
    assert pseudo_labels(8, 3).tolist() == [0, 0, 1, 1, 2, 2, 2, 2]
    rows = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
    cosine = torch.cosine_similarity(rows[:, None], rows[None], dim=2)
    wanted = {(i, j) for i in range(7) for j in cosine[i].argsort(descending=True)[:3].tolist() if i != j}
    assert set(map(tuple, nearest_edges(rows, 3).t().tolist())) == wanted | {(j, i) for i, j in wanted}


def generate(weights: plain.Weights, classes: Tensor, noise: Tensor) -> Tensor:
    """The generator, layer by layer."""
    rows = torch.cat([weights["embedding"][0][classes], noise], 1)
    for layer in range(4):
        rows = rows @ weights[f"layers.{layer}.weight"][0] + weights[f"layers.{layer}.bias"][0]
        rows = rows.tanh() if layer < 3 else rows
    return rows


def party_of(rows: Tensor, neighbors: int) -> plain.Party:
    """Generated nodes with their edges."""
    adjacency = torch.zeros(len(rows), len(rows))
    source, target = nearest_edges(rows.detach(), neighbors)
    adjacency[target, source] = 1
    return plain.Party(rows, adjacency, torch.zeros(len(rows)), torch.ones(len(rows)))


class Server:
    """The server's side written out: loops over parties and classes, torch's own optimizers."""

    def __init__(self, experiment: Experiment, divergence: str) -> None:
        settings, schema, seed = experiment.config.settings, experiment.federation.schema, experiment.config.seed
        self.divergence, self.seed = divergence, seed
        self.model = plain.leaves(first_model(settings, schema, seed))
        self.generator = plain.leaves(first_state(settings, schema, self.model, seed)["generator"])
        self.steps = [
            torch.optim.Adam(values.values(), lr, weight_decay=5e-4)
            for values, lr in ((self.model, settings.distillation_lr), (self.generator, settings.generator_lr))
        ]
        self.classes = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2, 2])

    def distance(self, graph: plain.Party, teachers: list[plain.Weights], trust: Tensor) -> Tensor:
        """Σ_k Σ_c Φ_kc D_c."""
        student, total = plain.forward("gcn", self.model, graph), torch.zeros(())
        for k, teacher in enumerate(teachers):
            said = plain.forward("gcn", teacher, graph).detach()
            for c in range(3):
                rows = self.classes == c
                if self.divergence == "kl":
                    p = said[rows].softmax(1)
                    apart = (p * (p.log() - student[rows].log_softmax(1))).sum(1).mean()
                else:
                    apart = (student[rows] - said[rows]).abs().mean()
                total = total + trust[k, c] * apart
        return total

    def distill(self, round: int, teachers: list[plain.Weights], trust: Tensor) -> None:
        """Lines of the server: two draws of noise, one step of the generator and three of the model for each."""
        draws = Draws(self.seed, [SERVER], "noise", round)
        for _ in range(2):
            noise = draws.normal(10, 32)[0]
            rows = generate(self.generator, self.classes, noise)
            graph = party_of(rows, 3)
            semantic = torch.zeros(())
            for k, teacher in enumerate(teachers):
                said = plain.forward("gcn", teacher, graph)
                for c in range(3):
                    semantic = semantic + trust[k, c] * F.cross_entropy(said[self.classes == c], self.classes[self.classes == c])
            pairs = [
                ((noise[i] - noise[j]).square().mean(), (rows[i] - rows[j]).abs().mean()) for i in range(10) for j in range(10)
            ]
            spread = len(teachers) * torch.stack([-z * x for z, x in pairs]).mean().exp()
            self.step(1, self.generator, 0.7 * semantic - self.distance(graph, teachers, trust) + 0.3 * spread)
            graph = party_of(generate(self.generator, self.classes, noise).detach(), 3)
            for _ in range(3):
                self.step(0, self.model, self.distance(graph, teachers, trust))

    def step(self, index: int, weights: plain.Weights, loss: Tensor) -> None:
        """One step of one of the two optimizers."""
        for value, gradient in zip(weights.values(), torch.autograd.grad(loss, list(weights.values())), strict=True):
            value.grad = gradient
        self.steps[index].step()


@pytest.mark.parametrize("divergence", ["kl", "l1"])
def test_two_rounds_equal_a_loop_over_parties_and_classes(divergence: str) -> None:
    """Local training, the mean by nodes, and the server's adversarial distillation, whose optimizers go on in round two."""
    values = {**FEW, "divergence": divergence, "semantic_weight": 0.7, "diversity_weight": 0.3, "weighting": "nodes"}
    values |= {"generator_lr": 0.02, "distillation_lr": 0.02}
    config = small("fedtad", optimizer="sgd", lr=0.3, epochs=2, rounds=2, **values)
    experiment, parties = plain.prepare(config)
    trust = shares(torch.stack([reliabilities(party, "return") for party in parties]), "parties")
    server = Server(experiment, divergence)
    for round in (1, 2):
        models = []
        for party in parties:
            own = plain.leaves(server.model)
            for _ in range(2):
                plain.descend(own, party.loss(plain.forward("gcn", own, party)), 0.3)
            models.append({name: value.detach() for name, value in own.items()})
        mean = plain.average(models, [len(party.x) for party in parties])
        with torch.no_grad():
            for name, value in server.model.items():
                value.copy_(mean[name])
        server.distill(round, models, trust)
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server.model, 1e-4)
    plain.close(result.state["generator"], server.generator, 1e-3)  # Adam's steps are as long where a gradient is nearly 0


@pytest.mark.parametrize("divergence", ["kl", "l1"])
def test_equal_models_teach_nothing(divergence: str) -> None:
    """Where every party's model is the server's, and nothing is dropped, D = 0 and so is its gradient."""
    experiment = runner.prepare(small("fedtad", **FEW, divergence=divergence))
    settings, schema = experiment.config.settings, experiment.federation.schema
    model = first_model(settings, schema, 0)
    teachers = {name: value.expand(3, *value.shape).clone() for name, value in model.items()}
    state = first_state(settings, schema, model, 0)
    distillation = Distillation(settings, schema, model, teachers, torch.full((3, 3), 1 / 3), state)
    graphs = distillation.graphs(torch.randn(10, schema.features, generator=torch.Generator().manual_seed(0)))
    apart = distillation.divergence(distillation.student(graphs[0]), distillation.teachers(graphs[1]))
    assert float(apart.detach().abs().max()) < 1e-6
    if divergence == "kl":  # |0| has no gradient
        moved = torch.autograd.grad(distillation.weights @ apart, list(distillation.student.parameters()))
        assert max(float(gradient.abs().max()) for gradient in moved) < 1e-6


def test_diversity_is_small_where_nodes_differ() -> None:
    """Equal nodes have diversity loss 1; the further apart nodes of different noise are, the less."""
    noise = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    values = [float(diversity(noise, rows)) for rows in (torch.zeros(6, 3), noise[:, :3], 10 * noise[:, :3])]
    assert values[0] == 1
    assert values[0] > values[1] > values[2]


def test_dropout_in_evaluation_is_the_servers_too() -> None:
    """The released code drops hidden units whenever it calls a model: with evaluation_dropout distillation differs."""
    usual, dropped = (
        runner.run(small("fedtad", **FEW, dropout=0.5, evaluation_dropout=value, topology="none", rounds=1))
        for value in (False, True)
    )
    assert not torch.equal(usual.state["model"]["layers.0.weight"], dropped.state["model"]["layers.0.weight"])


@pytest.mark.parametrize("model", ["sgc", "gat", "sage", "gcnii", "appnp", "gcn_head", "gin", "mlp"])
def test_every_backbone_distills(model: str) -> None:
    """The gradient reaches the generated features through every backbone."""
    result = runner.run(small("fedtad", **FEW, model=model, hidden=8, rounds=2))
    first = first_state(result.config.settings, runner.prepare(result.config).federation.schema, result.state["model"], 3)
    assert not torch.equal(first["generator"]["layers.3.weight"], result.state["generator"]["layers.3.weight"])


def test_bytes() -> None:
    """4·w down; 4·w + 8 up; 4·C once, in the party's first round."""
    result = runner.run(small("fedtad", **FEW, rounds=4, participation=0.7))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 4 * 2 * 4 * parameters
    assert result.bytes["up"] == 4 * 2 * (4 * parameters + 8) + 3 * 4 * 3
    assert bool(result.state["known"].all())
