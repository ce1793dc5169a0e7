"""FedAvg and Local against plain PyG, party by party."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch_geometric.nn import GCNConv

from atoll.federation.cohort import first_model
from atoll.graphs.graph import Graph
from atoll.models.parameters import get_parameters
from atoll.runs import runner
from small import small


class PlainGCN(torch.nn.Module):
    """Two GCNConv layers."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.one, self.two = GCNConv(features, 64), GCNConv(64, classes)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Logits."""
        return self.two(self.one(x, edge_index).relu(), edge_index)

    def set(self, weights: list[torch.Tensor]) -> None:
        """Take weight, bias, weight, bias."""
        with torch.no_grad():
            for layer, (weight, bias) in zip((self.one, self.two), (weights[:2], weights[2:]), strict=True):
                layer.lin.weight.copy_(weight.T)
                layer.bias.copy_(bias)

    def get(self) -> list[torch.Tensor]:
        """Give weight, bias, weight, bias."""
        return [w.detach().clone() for layer in (self.one, self.two) for w in (layer.lin.weight.T, layer.bias)]


def ordered(model: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Weight, bias, weight, bias of atoll's GCN."""
    return [model[f"layers.{layer}.{name}"] for layer in (0, 1) for name in ("weight", "bias")]


def dense(graph: Graph) -> torch.Tensor:
    """Features as a plain tensor."""
    return graph.x if isinstance(graph.x, torch.Tensor) else torch.from_numpy(graph.x.toarray())


def train(model: PlainGCN, optimizer: torch.optim.Optimizer, graph: Graph, epochs: int) -> None:
    """Full-batch epochs on the training nodes."""
    for _ in range(epochs):
        optimizer.zero_grad()
        F.cross_entropy(model(dense(graph), graph.edge_index)[graph.train], graph.y[graph.train]).backward()
        optimizer.step()


@pytest.mark.parametrize("keep", [True, False])
def test_three_rounds_equal_a_plain_loop(keep: bool) -> None:
    """w ← Σ (n_k/n) w_k with E local Adam epochs, optimizer kept or not, written plainly with PyG."""
    experiment = runner.prepare(small("fedavg", keep_optimizer=keep))
    parties = [experiment.party_data.parts.select([party]) for party in range(3)]
    settings, schema = experiment.config.settings, experiment.federation.schema
    shared = ordered(first_model(settings, schema, experiment.config.seed))
    models = [PlainGCN(schema.features, schema.classes) for _ in parties]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.003) for model in models]
    for _ in range(3):
        for place, (model, graph) in enumerate(zip(models, parties, strict=True)):
            model.set(shared)
            if not keep:
                optimizers[place] = torch.optim.Adam(model.parameters(), lr=0.003)
            train(model, optimizers[place], graph, settings.epochs)
        counts = [int(graph.train.sum()) for graph in parties]
        shared = [
            sum(n * w for n, w in zip(counts, column, strict=True)) / sum(counts)
            for column in zip(*(m.get() for m in models), strict=True)
        ]
    result = runner.rounds(experiment)
    for ours, plain in zip(ordered(result.state["model"]), shared, strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-4)


def test_local_equals_plain_training_of_each_party() -> None:
    """Three rounds of five epochs are fifteen epochs of each party alone."""
    experiment = runner.prepare(small("local"))
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    first = {name: value.clone() for name, value in get_parameters(cohort.model).items()}
    runner.rounds(experiment)
    for party in range(3):
        graph = experiment.party_data.parts.select([party])
        model = PlainGCN(graph.num_features, graph.num_classes)
        model.set([value[party] for value in ordered(first)])
        train(model, torch.optim.Adam(model.parameters(), lr=0.003), graph, 15)
        for ours, plain in zip(ordered(get_parameters(cohort.model)), model.get(), strict=True):
            torch.testing.assert_close(ours[party], plain, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model", ["gcn", "gcn_head", "sgc", "sage", "gat", "gcnii", "appnp", "mlp"])
@pytest.mark.parametrize("placement", ["together", "apart"])
def test_the_bytes_are_the_formula(model: str, placement: str) -> None:
    """Down 4·w, up 4·w + 8 a round and party, for every backbone and placement."""
    result = runner.run(small("fedavg", model=model, placement=placement))
    weights = sum(value.numel() for value in result.state["model"].values())
    assert result.bytes["down"] == 3 * 3 * 4 * weights
    assert result.bytes["up"] == 3 * 3 * (4 * weights + 8)


def test_no_epochs_leave_the_model_as_it_is() -> None:
    """Zero local epochs average equal models: nothing changes but rounding."""
    experiment = runner.prepare(small("fedavg", epochs=0))
    first = first_model(experiment.config.settings, experiment.federation.schema, experiment.config.seed)
    result = runner.rounds(experiment)
    for name, value in result.state["model"].items():
        torch.testing.assert_close(value, first[name])


def test_equal_weights_are_the_plain_mean() -> None:
    """`weighting=parties`: w ← (1/P)·Σ w_k, whatever the parties' sizes."""
    experiment = runner.prepare(small("fedavg", rounds=1, weighting="parties", split="stratified"))
    result = runner.rounds(experiment)
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    message = {"model": first_model(experiment.config.settings, experiment.federation.schema, experiment.config.seed)}
    fresh = runner.prepare(small("fedavg", rounds=1, weighting="parties", split="stratified"))
    fresh.federation.begin(1)
    replies = fresh.federation.ask("fit", **message)
    assert len(set(cohort.graph.num_train.tolist())) > 1
    for name, value in result.state["model"].items():
        torch.testing.assert_close(value, replies.stack("model")[name].mean(0))


def test_local_may_start_from_fedavgs_first_model() -> None:
    """`start=shared`: all parties begin with the server's first values; one round of FedAvg's parties is one of Local's."""
    values = {"start": "shared", "rounds": 1}
    experiment = runner.prepare(small("local", **values))
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    first = first_model(experiment.config.settings, experiment.federation.schema, experiment.config.seed)
    for name, value in get_parameters(cohort.model).items():
        assert all(torch.equal(value[party], first[name]) for party in range(3))
    runner.rounds(experiment)
    fedavg = runner.prepare(small("fedavg", rounds=1, weighting="parties"))
    fedavg.federation.begin(1)
    trained = fedavg.federation.ask("fit", model=first).stack("model")
    for name, value in get_parameters(cohort.model).items():
        assert torch.equal(value, trained[name])


def test_dropout_in_evaluation_is_random_but_repeatable() -> None:
    """`evaluation_dropout` changes the metrics, differs between rounds, and `predict` gives what was evaluated."""
    plain = runner.run(small("fedavg", dropout=0.5))
    noisy = runner.run(small("fedavg", dropout=0.5, evaluation_dropout=True))
    assert [row["train_loss"] for row in plain.rows] != [row["train_loss"] for row in noisy.rows]
    still = runner.run(small("fedavg", dropout=0.5, evaluation_dropout=True, epochs=0))
    assert len({row["val_loss"] for row in still.rows}) == len(still.rows)
    assert noisy.model().evaluate().to_dict()["overall"]["accuracy"] == noisy.metrics["accuracy"]
    for name, value in plain.state["model"].items():
        assert torch.equal(value, noisy.state["model"][name])  # training is untouched
