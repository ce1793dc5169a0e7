"""Batch norm against torch's, party by party; which backbones can have it; what their exports compute."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import plain
from atoll.errors import AtollError
from atoll.graphs.blocks import MAX_LOOPED_PARTIES, Blocks
from atoll.graphs.graph import stack
from atoll.models.backbone import Backbone
from atoll.models.normalization import BatchNorm
from atoll.models.registry import MODELS, build
from atoll.models.standalone.check import random_graph
from atoll.models.standalone.convert import one_party, standalone
from atoll.random import Draws

ABLE = [name for name in MODELS.names() if MODELS.find(name).takes_norm]
FLAVORS = ("torch", "pyg")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def torch_norms(norm: BatchNorm) -> list[nn.BatchNorm1d]:
    """One of torch's per party, with the same values."""
    made = []
    for party in range(len(norm.scale)):
        one = nn.BatchNorm1d(norm.scale.shape[1])
        with torch.no_grad():
            one.weight.copy_(norm.scale[party])
            one.bias.copy_(norm.shift[party])
            one.running_mean.copy_(norm.mean[party])  # type: ignore[union-attr]
            one.running_var.copy_(norm.variance[party])  # type: ignore[union-attr]
        made.append(one)
    return made


@pytest.mark.parametrize("parties", [3, MAX_LOOPED_PARTIES + 3])
def test_it_is_torchs_party_by_party(parties: int) -> None:
    """Outputs, gradients and running statistics after two steps in training, then the outputs in evaluation."""
    blocks = Blocks([2 + p % 5 for p in range(parties)])
    norm = BatchNorm(parties, 4)
    with torch.no_grad():
        norm.scale.copy_(numbers(parties, 4, seed=1))
        norm.shift.copy_(numbers(parties, 4, seed=2))
    expected = torch_norms(norm)
    for training in (True, True, False):
        rows, direction = numbers(blocks.rows, 4, seed=3).requires_grad_(), numbers(blocks.rows, 4, seed=4)
        out = norm(rows, blocks, training=training)
        outs = [one.train(training)(rows[a:b]) for one, (a, b) in zip(expected, blocks.ranges, strict=True)]
        torch.testing.assert_close(out, torch.cat(outs), atol=1e-5, rtol=1e-5)
        ours = torch.autograd.grad((out * direction).sum(), [rows, norm.scale, norm.shift])
        own = [value for one in expected for value in (one.weight, one.bias)]
        theirs = torch.autograd.grad((torch.cat(outs) * direction).sum(), [rows, *own])
        torch.testing.assert_close(ours[0], theirs[0], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours[1], torch.stack(theirs[1::2]), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours[2], torch.stack(theirs[2::2]), atol=1e-4, rtol=1e-4)
        for kept, name in ((norm.mean, "running_mean"), (norm.variance, "running_var")):
            torch.testing.assert_close(kept.data, torch.stack([getattr(one, name) for one in expected]), atol=1e-5, rtol=1e-5)


def test_parties_with_one_row_or_none() -> None:
    """One row gives the shift; without rows the running statistics stay."""
    norm, blocks = BatchNorm(3, 2), Blocks([3, 1, 0])
    with torch.no_grad():
        norm.shift.fill_(0.5)
    out = norm(numbers(4, 2), blocks, training=True)
    assert torch.equal(out[3], torch.full((2,), 0.5))
    assert torch.equal(norm.mean[2], torch.zeros(2))
    assert torch.equal(norm.variance[2], torch.ones(2))
    assert torch.isfinite(norm.variance).all()


def normed(name: str, parties: int = 2, **options: object) -> Backbone:
    """A backbone with batch norm that has been trained for some steps, so that nothing has its first value."""
    every = list(range(parties))
    model = build(
        name, parties=parties, features=6, classes=3, hidden=8, layers=3, norm="batch", draws=Draws(0, every), **options
    )
    graph = stack([random_graph(model.shape, 25, seed=seed) for seed in every])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * Draws(0, every, "more").normal(*parameter.shape[1:])
        for _ in range(3):
            model(graph, Draws(0, every))
    return model


@pytest.mark.parametrize("name", ABLE)
def test_each_party_is_as_if_alone(name: str) -> None:
    """In training and evaluation, and what it leaves; hidden layers have norms, the last one has none."""
    model = normed(name)
    count = sum(isinstance(part, BatchNorm) for part in model.modules())
    assert count == (3 if name == "gcn_head" else 2)
    graphs = [random_graph(model.shape, size, seed=5) for size in (20, 30)]
    alone = [one_party(model, party) for party in (0, 1)]
    for training in (True, False):
        parts = [one(graph, Draws(0, [0]) if training else None) for one, graph in zip(alone, graphs, strict=True)]
        together = model(stack(graphs), Draws(0, [0, 1]) if training else None)
        torch.testing.assert_close(together, torch.cat(parts), atol=1e-5, rtol=1e-5)
    for name, value in model.named_parameters():
        both = torch.cat([dict(one.named_parameters())[name] for one in alone])
        torch.testing.assert_close(value, both, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_it_stands_before_the_activation(training: bool) -> None:
    """GCN: Â·relu(norm(Â·X·W))·W + b, in plain torch; below a norm there is no bias."""
    model = build("gcn", parties=1, features=6, classes=3, hidden=8, norm="batch", draws=Draws(0, [0]))
    graph = random_graph(model.shape, 25, seed=1)
    party, w = plain.dense(graph), {name: value[0] for name, value in model.named_parameters()}
    (norm,) = torch_norms(next(part for part in model.modules() if isinstance(part, BatchNorm)))
    hidden = party.normalized_adjacency @ party.x @ w["layers.0.weight"]
    inner = norm.train(training)(hidden).relu()
    expected = party.normalized_adjacency @ inner @ w["layers.1.weight"] + w["layers.1.bias"]
    torch.testing.assert_close(model(graph, Draws(0, [0]) if training else None), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("flavor", FLAVORS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", [name for name in ABLE if name != "gat"])
@pytest.mark.filterwarnings("ignore")  # torch deprecates what PyG still uses
def test_an_export_does_the_norms_work_in_its_linear_layers(name: str, bias: bool, flavor: str) -> None:
    """The exported network has no batch norm, and the same outputs."""
    alone = one_party(normed(name, bias=bias), 1)
    made, graph = standalone(alone, flavor), random_graph(alone.shape, 25, seed=3)
    assert not any("norm." in key for key in made.module.state_dict())
    torch.testing.assert_close(made.module(graph.x, graph.edge_index), alone(graph).detach(), atol=1e-5, rtol=1e-5)


def test_attention_with_batch_norm_is_not_exported() -> None:
    """Said in one sentence."""
    with pytest.raises(AtollError, match="GAT with batch norm cannot be exported"):
        standalone(one_party(normed("gat"), 0), "torch")


@pytest.mark.parametrize(
    ("name", "layers", "norm", "sentence"),
    [
        ("sgc", 2, "batch", "sgc cannot have batch norm"),
        ("gcnii", 2, "batch", "gcnii cannot have batch norm"),
        ("gcn", 1, "batch", "gcn with layers=1 has none"),
        ("gcn", 2, "layer", "norm is 'layer' but must be one of none, batch"),
    ],
)
def test_what_cannot_have_it_is_refused(name: str, layers: int, norm: str, sentence: str) -> None:
    """Models without hidden layers, and those that it would not be right for."""
    with pytest.raises(AtollError, match=sentence):
        build(name, parties=1, features=2, classes=2, layers=layers, norm=norm)
    assert build("gcn_head", parties=1, features=2, classes=2, layers=1, norm="batch")
