"""One layer of every party at once against a loop over the parties, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from products import SIZES, agree, naive_product, random_matrix

from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features, transform, unit_rows
from atoll.graphs.sparse import SparseMatrix
from atoll.random import Draws


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.mark.parametrize("fan_out", [3, 20])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
def test_transform_equals_a_loop_over_parties(sizes: list[int], fan_out: int) -> None:
    """Every party's rows meet its own weight, whichever way the sizes and widths are computed."""
    rows = torch.randn(sum(sizes), 18, requires_grad=True)
    weight = torch.randn(len(sizes), 18, fan_out, requires_grad=True)
    agree(transform(rows, weight, Blocks(sizes)), naive_product(rows, weight, sizes), [rows, weight])


@pytest.mark.parametrize("stored", ["sparse", "dense"])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
def test_features_equal_a_loop(sizes: list[int], stored: str) -> None:
    """Shifted sparse columns, and dense blocks, give every party's features times its own weight."""
    matrix = random_matrix(sum(sizes), 6)
    dense = torch.from_numpy(matrix.toarray())
    features = Features.of(matrix if stored == "sparse" else dense, Blocks(sizes))
    weight = torch.randn(len(sizes), 6, 5, requires_grad=True)
    agree(features @ weight, naive_product(dense, weight, sizes), [weight])


@pytest.mark.parametrize("hops", [1, 2])
@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
def test_layer_equals_its_parts(sizes: list[int], hops: int) -> None:
    """relu(Mʰ·(X·W) + b) in one function equals the same in five, for a matrix that is not symmetric."""
    nodes = sum(sizes)
    matrix = random_matrix(nodes, nodes, density=min(0.3, 4 / nodes))
    dense = torch.from_numpy(matrix.toarray())
    rows = torch.randn(nodes, 18, requires_grad=True)
    weight, bias = torch.randn(len(sizes), 18, 4, requires_grad=True), torch.randn(len(sizes), 4, requires_grad=True)
    blocks = Blocks(sizes)
    naive = naive_product(rows, weight, sizes)
    for _ in range(hops):
        naive = dense @ naive
    naive = (naive + torch.repeat_interleave(bias, torch.tensor(sizes), 0)).relu()
    agree(transform(rows, weight, blocks, bias, through=SparseMatrix(matrix), hops=hops, relu=True), naive, [rows, weight, bias])


def test_layer_without_matrix_adds_its_bias() -> None:
    """Without a matrix the layer is linear, for sparse features, dense features and rows alike."""
    sizes = [4, 7]
    matrix = random_matrix(11, 6)
    dense = torch.from_numpy(matrix.toarray())
    weight, bias = torch.randn(2, 6, 3, requires_grad=True), torch.randn(2, 3, requires_grad=True)
    blocks = Blocks(sizes)
    for inputs in (Features.of(matrix, blocks), Features.of(dense, blocks), dense):
        naive = naive_product(dense, weight, sizes) + torch.repeat_interleave(bias, torch.tensor(sizes), 0)
        agree(transform(inputs, weight, blocks, bias), naive, [weight, bias])


def test_feature_dropout_is_the_partys_own() -> None:
    """What a party drops depends on its own generator alone; kept values are scaled, forward and transposed alike."""
    matrix = random_matrix(30, 40)
    together = Features.of(matrix, Blocks([10, 20])).dropped(0.5, Draws(0, [4, 9], "drop"))
    alone = Features.of(matrix[10:], Blocks([20])).dropped(0.5, Draws(0, [9], "drop"))
    weight = torch.randn(2, 40, 3)
    assert torch.equal((together @ weight)[10:], alone @ weight[1:])
    assert isinstance(together.values, SparseMatrix)
    torch.testing.assert_close(together.values.forward.to_dense().t(), together.values.transposed.to_dense())
    kept = alone.values.forward.to_dense().numpy() / np.where(matrix[10:].toarray() == 0, 1, matrix[10:].toarray())
    assert set(np.unique(kept.round(5))) == {0.0, 2.0}


def test_rows_of_length_one() -> None:
    """Row by row, dense and sparse alike; a row of zeros stays."""
    x = torch.tensor([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [0.0, -1e-3, 0.0]])
    expected = torch.tensor([[0.6, 0.8, 0.0], [0.0, 0.0, 0.0], [0.0, -1.0, 0.0]])
    torch.testing.assert_close(unit_rows(x), expected)
    sparse = unit_rows(sp.csr_array(x.numpy()))
    assert sparse.dtype == np.float32
    torch.testing.assert_close(torch.from_numpy(sparse.toarray()), expected)
