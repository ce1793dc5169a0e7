"""The losses against loops over parties."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.models import losses

SIZES = [6, 9, 4]


@pytest.fixture
def graph() -> Graph:
    """Three parties; the last has no validation nodes; some nodes have no label."""
    nodes = sum(SIZES)
    source = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (nodes,), generator=source)
    y[[2, 8]] = -1
    role = torch.arange(nodes) % 3
    role[-4:] = torch.tensor([0, 0, 2, 2])
    return Graph(
        x=torch.zeros(nodes, 1),
        edge_index=torch.zeros(2, 0, dtype=torch.int64),
        y=y,
        train=role == 0,
        val=role == 1,
        test=role == 2,
        num_classes=3,
        ids=torch.arange(nodes),
        ptr=torch.tensor([0, 6, 15, 19]),
    )


@pytest.fixture
def logits() -> Tensor:
    """Logits with a gradient."""
    return torch.randn(sum(SIZES), 3, generator=torch.Generator().manual_seed(1)).mul_(5).requires_grad_()


def blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """The parties' rows."""
    return tensor.split(SIZES)


def naive_cross_entropy(logits: Tensor, graph: Graph, mask: Tensor, balance: bool = False) -> Tensor:
    """A loop over the parties, and over the classes of each to balance them, with torch's own loss."""
    terms = []
    for own, y, chosen in zip(blocks(logits), blocks(graph.y), blocks(mask), strict=True):
        counted = chosen & (y >= 0)
        if counted.any():
            groups = [counted & (y == place) for place in y[counted].unique()] if balance else [counted]
            terms.append(torch.stack([F.cross_entropy(own[group], y[group]) for group in groups]).mean())
    return torch.stack(terms).sum()


@pytest.mark.parametrize("mask", ["train", "val", "test"])
@pytest.mark.parametrize("form", ["name", "own", "other"])
@pytest.mark.parametrize("balance", [False, True])
def test_cross_entropy_is_a_sum_of_means(graph: Graph, logits: Tensor, mask: str, form: str, balance: bool) -> None:
    """Each party's mean over its labelled masked nodes, or over its classes, summed; a mask by name, the graph's own or another.

    One form of the loss does not remember for the other.
    """
    losses.cross_entropy(logits, graph, mask, balance=not balance)
    chosen: Tensor = getattr(graph, mask)
    given = {"name": mask, "own": chosen, "other": chosen.clone()}[form]
    expected = naive_cross_entropy(logits, graph, chosen, balance)
    for _ in range(2):  # computed, then remembered
        loss = losses.cross_entropy(logits, graph, given, balance=balance)
        torch.testing.assert_close(loss, expected)
        ours, wanted = (torch.autograd.grad(value, logits, retain_graph=True)[0] for value in (3 * loss, 3 * expected))
        torch.testing.assert_close(ours, wanted)


def test_other_masks_are_not_remembered(graph: Graph, logits: Tensor) -> None:
    """A mask that changes in place gives a new loss: only the graph's own masks are kept."""
    mask = graph.train.clone()
    first = losses.cross_entropy(logits, graph, mask)
    mask[:6] = True
    assert not torch.equal(first, losses.cross_entropy(logits, graph, mask))


def test_parties_without_nodes_count_nothing(graph: Graph, logits: Tensor) -> None:
    """An empty mask gives loss 0 and gradient 0, not NaN."""
    empty = torch.zeros_like(graph.train)
    loss = losses.cross_entropy(logits, graph, empty) + losses.cross_entropy(logits, graph, empty, balance=True)
    loss = loss + losses.kl(logits.detach().softmax(1), logits, graph, empty)
    assert loss.item() == 0
    assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.zeros_like(logits))


def test_cross_entropy_of_large_logits(graph: Graph, logits: Tensor) -> None:
    """Logits of a thousand overflow nothing."""
    large = logits.detach() * 1000
    torch.testing.assert_close(losses.cross_entropy(large, graph, "train"), naive_cross_entropy(large, graph, graph.train))


@pytest.mark.parametrize("mask", [None, "val"])
def test_kl_is_a_sum_of_means(graph: Graph, logits: Tensor, mask: str | None) -> None:
    """Each party's mean of Σ t·log(t / p), summed; targets of zero count zero."""
    targets = torch.randn(sum(SIZES), 3).mul(2).softmax(1)
    targets[0] = torch.tensor([1.0, 0.0, 0.0])
    chosen = torch.ones(sum(SIZES), dtype=torch.bool) if mask is None else graph.val
    expected = torch.zeros(())
    for t, z, own in zip(blocks(targets), blocks(logits), blocks(chosen), strict=True):
        each = (torch.special.xlogy(t, t) - t * z.log_softmax(1)).sum(1)
        if own.any():
            expected = expected + each[own].mean()
    loss = losses.kl(targets, logits, graph, mask)
    torch.testing.assert_close(loss, expected)
    ours, wanted = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, wanted)


def test_sums_by_party(graph: Graph) -> None:
    """Sums of numbers and of rows over a party's nodes, all or masked; masked-out NaNs do not leak; integers stay integers."""
    values = torch.arange(float(sum(SIZES)))
    torch.testing.assert_close(losses.by_party(values, graph), torch.stack([block.sum() for block in blocks(values)]))
    values[~graph.train] = torch.nan
    expected = torch.stack([block.nansum() for block in blocks(values)])
    torch.testing.assert_close(losses.by_party(values, graph, "train"), expected)
    counts = losses.by_party(torch.ones(sum(SIZES), 2, dtype=torch.int64), graph, graph.val)
    assert counts.dtype == torch.int64
    assert counts.tolist() == [[2, 2], [3, 3], [0, 0]]


def test_weights_survive_a_change_of_masks(graph: Graph, logits: Tensor) -> None:
    """A graph with other masks does not inherit the weights remembered for the first."""
    losses.cross_entropy(logits, graph, "train")
    other = replace(graph, train=graph.test)
    torch.testing.assert_close(losses.cross_entropy(logits, other, "train"), naive_cross_entropy(logits, graph, graph.test))


def test_unknown_mask_is_an_error(graph: Graph, logits: Tensor) -> None:
    """A mask that is none of the three is named in the error."""
    with pytest.raises(AtollError, match="'training'"):
        losses.cross_entropy(logits, graph, "training")
