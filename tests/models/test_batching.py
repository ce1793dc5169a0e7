"""Backbones on mini-batches and in blocks, against the whole graph and against PyG."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_backbone import CASES, CLASSES, FEATURES, HIDDEN, Reference, make_graph, make_model, with_weights
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from atoll.errors import AtollError
from atoll.graphs import inference
from atoll.graphs.graph import stack
from atoll.graphs.inference import in_blocks
from atoll.graphs.minibatch import epoch
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.batching import check, fan_outs
from atoll.models.gcfl_network import GCFLNetwork
from atoll.models.optim import SGD, Adam, descend
from atoll.models.parameters import get_parameters
from atoll.models.plain import plain_backbone
from atoll.random import Draws
from atoll.settings import BatchedTraining

SIZES = (30, 17, 45)


class UserGCN(nn.Module):
    """A module for one graph, as a user writes it."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int) -> None:
        super().__init__()
        self.one, self.two = (
            GCNConv(in_channels, hidden_channels, normalize=False),
            GCNConv(hidden_channels, out_channels, normalize=False),
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.two(self.one(x, edge_index).relu(), edge_index)


def model_of(name: str, layers: int, parties: int = 3) -> Backbone:
    """A backbone of the registry, GCFL's frame, or a user's module."""
    if name in ("framed", "user"):
        kind = GCFLNetwork if name == "framed" else plain_backbone(UserGCN, "UserGCN")
        return kind(ModelShape(parties, FEATURES, CLASSES, HIDDEN, layers), Draws(0, range(parties), "first"))
    return make_model(name, list(range(parties)), layers)


ALL = [*CASES, ("gamlp", 2), ("gamlp", 3), ("framed", 2), ("user", 2)]


@pytest.mark.parametrize("kind", ["sparse", "dense", "weighted"])
@pytest.mark.parametrize("sampler", ["neighbors", "layers"])
@pytest.mark.parametrize(("name", "layers"), ALL)
def test_with_all_neighbors_a_batch_is_the_whole_graph(name: str, layers: int, sampler: str, kind: str) -> None:
    """Logits of the batch's nodes and the parameters' gradients are those of the whole graph."""
    if kind == "weighted" and name == "user":
        pytest.skip("this module takes no edge weights")
    graphs = [make_graph(size, seed, sparse=kind == "sparse", directed=seed == 2) for seed, size in enumerate(SIZES)]
    graph = stack([with_weights(one, seed) for seed, one in enumerate(graphs)] if kind == "weighted" else graphs)
    model = model_of(name, layers)
    assert model.hops is not None
    for batch in epoch(graph, 6, [0] * model.hops, sampler, Draws(0, range(3), "sample")):
        logits, expected = model(batch), model(graph)[batch.index]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        direction = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1))
        parameters = list(model.parameters())
        ours = torch.autograd.grad((logits * direction).sum(), parameters)
        naive = torch.autograd.grad((expected * direction).sum(), parameters)
        for gradient, wanted in zip(ours, naive, strict=True):
            torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_representations_are_those_of_the_batchs_nodes(name: str, layers: int) -> None:
    """With all neighbors, one row per node of the batch: the whole graph's."""
    graph = stack([make_graph(size, seed, sparse=True) for seed, size in enumerate(SIZES)])
    model = model_of(name, layers)
    expected = model.embed_and_output(graph)
    for batch in epoch(graph, 6, [0] * (model.hops or 0), "neighbors", Draws(0, range(3), "sample")):
        for ours, wanted in zip(model.embed_and_output(batch), expected, strict=True):
            torch.testing.assert_close(ours, wanted[batch.index], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["sage", "gat"])
def test_a_sampled_batch_equals_pyg_on_the_sampled_edges(name: str) -> None:
    """The mean over the sampled neighbors, and attention over them, as PyG's layers on a NeighborLoader's batch."""
    graph = make_graph(60, 2, sparse=False)
    model = make_model(name, [0], 2)
    for batch in epoch(graph, 8, [3, 2], "neighbors", Draws(0, [0], "sample")):
        whole, index = batch.sampled.union
        torch.testing.assert_close(model(batch), Reference(name, model, 0, 2)(whole)[index], atol=1e-5, rtol=1e-5)


def test_a_sampled_gcn_equals_pyg_with_scaled_weights_of_the_whole_graph() -> None:
    """GCNConv(normalize=False) with Â_ij·d_i / s_i of the whole graph as edge weights and Â_ii as those of loops."""
    graph = make_graph(60, 2, sparse=False)
    model, full = make_model("gcn", [0], 2), graph.normalized_adjacency.forward.to_dense()
    degree = torch.bincount(graph.edge_index[1], minlength=60)
    for batch in epoch(graph, 8, [3, 2], "neighbors", Draws(0, [0], "sample")):
        whole, index = batch.sampled.union
        rows = torch.from_numpy(batch.sampled.rows)
        source, target = whole.edge_index
        sampled = torch.bincount(target, minlength=len(rows))
        weights = full[rows[target], rows[source]] * degree[rows[target]] / sampled[target]
        loops = torch.arange(len(rows))
        edges = torch.cat([whole.edge_index, torch.stack([loops, loops])], 1)
        weights = torch.cat([weights, full[rows, rows]])
        reference = Reference("gcn", model, 0, 2)
        for conv in reference.convs:
            conv.normalize = False
        first, second = reference.convs
        expected = second(first(whole.x, edges, weights).relu(), edges, weights)
        torch.testing.assert_close(model(batch), expected[index], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sampler", ["neighbors", "clusters"])
@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("name", "layers"), [("gcn", 2), ("sage", 3), ("gat", 2), ("gcnii", 2), ("sgc", 2), ("user", 2)])
def test_a_party_trains_the_same_alone(name: str, layers: int, sparse: bool, sampler: str) -> None:
    """Trained in a cohort of three whose parties have other numbers of batches, or alone, with dropout: the same parameters."""
    from atoll.tasks.node_classification import TASK

    graphs = [make_graph(size, seed, sparse=sparse) for seed, size in enumerate(SIZES)]

    def train(parties: list[int], graph: object) -> dict[str, Tensor]:
        if name == "user":
            model: Backbone = plain_backbone(UserGCN, "UserGCN")(
                ModelShape(len(parties), FEATURES, CLASSES, HIDDEN, 2), Draws(0, parties, "first")
            )
        else:
            model = make_model(name, parties, layers, dropout=0.4, input_dropout=0.2)
        optimizer, draws, sampling = Adam(model, 0.01), Draws(0, parties, "train"), Draws(0, parties, "sample")
        for _ in range(2):
            for batch in epoch(graph, 5, [2] * model.hops, sampler, sampling):
                descend(optimizer, TASK.loss(model(batch, draws), batch), batch.active)
        return get_parameters(model)

    together = train([0, 1, 2], stack(graphs))
    for party, graph in enumerate(graphs):
        for key, value in train([party], graph).items():
            torch.testing.assert_close(together[key][party], value[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("make", [Adam, SGD])
def test_parties_that_are_done_are_left_alone(make: type) -> None:
    """A step of some parties moves them as a step of all would, and leaves the others and their state as they are."""
    generator = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    some, every = start.clone().requires_grad_(), start.clone().requires_grad_()
    partial, full = make([some], 0.1), make([every], 0.1)
    for optimizer, value in ((partial, some), (full, every)):
        descend(optimizer, (value * gradients).sum())
    before = some.detach().clone()
    descend(partial, (some * gradients).sum(), torch.tensor([True, False, True]))
    descend(full, (every * gradients).sum())
    torch.testing.assert_close(some[[0, 2]], every[[0, 2]])
    assert torch.equal(some[1], before[1])
    for name, value in partial.state().items():
        torch.testing.assert_close(value[[0, 2]], full.state()[name][[0, 2]])
    if make is Adam:
        assert partial.steps.tolist() == [2, 1, 2]


@pytest.mark.parametrize("kind", ["sparse", "dense", "weighted"])
@pytest.mark.parametrize(("name", "layers"), [case for case in ALL if case[0] != "user"])
def test_blocks_give_what_the_whole_graph_gives(name: str, layers: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and embeddings, a few rows at a time, of a party in several blocks and of several parties in one."""
    graphs = [make_graph(size, seed, sparse=kind == "sparse", directed=True) for seed, size in enumerate((5, 6, *SIZES))]
    graph = stack([with_weights(one, seed) for seed, one in enumerate(graphs)] if kind == "weighted" else graphs)
    model = model_of(name, layers, len(graphs))
    monkeypatch.setattr(inference, "MAX_ROWS", 12)
    monkeypatch.setattr(inference, "MAX_NEIGHBORS", 50)
    torch.testing.assert_close(in_blocks(model.stages(), graph), model(graph), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(in_blocks(model.stages(embed=True), graph), model.embed(graph), atol=1e-5, rtol=1e-5)


def test_settings_that_do_not_fit_are_refused() -> None:
    """One sentence each."""
    batched = BatchedTraining(batch_size=8)
    assert fan_outs(batched, 3) == [10, 10, 10]
    assert fan_outs(BatchedTraining(batch_size=8, fan_out=(4, 2)), 2) == [4, 2]
    for settings, words in [
        (BatchedTraining(sampler="layers"), "sampler is for mini-batches, but batch_size is 0"),
        (BatchedTraining(fan_out=(3,)), "fan_out is for mini-batches"),
        (BatchedTraining(batch_size=8, fan_out=(3, -1)), "each at least 0"),
        (BatchedTraining(batch_size=8, fan_out=()), "one number of neighbors"),
        (BatchedTraining(batch_size=8, sampler="clusters", fan_out=(3,)), "has no fan_out"),
    ]:
        with pytest.raises(AtollError, match=words):
            check(settings)
    with pytest.raises(AtollError, match="fan_out has 3 numbers, but the network reads over 2 edges"):
        fan_outs(BatchedTraining(batch_size=8, fan_out=(3, 3, 3)), 2)
    with pytest.raises(AtollError, match="gcn cannot be trained on sampled neighbors here"):
        fan_outs(batched, None)
    assert np.prod(fan_outs(BatchedTraining(batch_size=8, sampler="clusters"), None)) == 1
