"""The sparse and party-wise products against their naive versions, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.attention import Attention, attend
from atoll.graphs.kernels import Blocks, Features, Sparse, diffuse, spread, transform
from atoll.random import Draws

SIZES = [[9], [7, 1, 12], [5, 5, 5], [1] * 20, [2, 3] * 40]


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


def random_matrix(rows: int, columns: int, density: float = 0.3) -> sp.csr_array:
    """A random matrix with empty rows and columns."""
    rng = np.random.default_rng(rows * 31 + columns)
    dense = rng.normal(size=(rows, columns)) * (rng.random((rows, columns)) < density)
    dense[::4], dense[:, 1::5] = 0, 0
    return sp.csr_array(dense.astype(np.float32))


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """The gradients of a fixed random combination of the outputs."""
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(3))
    return list(torch.autograd.grad((output * direction).sum(), inputs))


def agree(ours: Tensor, naive: Tensor, inputs: list[Tensor]) -> None:
    """Same values, same gradients."""
    torch.testing.assert_close(ours, naive, atol=1e-5, rtol=1e-5)
    for got, wanted in zip(gradients(ours, inputs), gradients(naive, inputs), strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)


def naive_product(rows: Tensor, weight: Tensor, sizes: list[int]) -> Tensor:
    """A loop over the parties."""
    return torch.cat([block @ own for block, own in zip(rows.split(sizes), weight, strict=True)])


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize(("rows", "columns"), [(17, 11), (6, 40)])
def test_sparse_product_equals_dense(rows: int, columns: int, width: int) -> None:
    """M @ X and its gradient are those of the dense matrix, empty rows and columns included."""
    matrix = random_matrix(rows, columns)
    x = torch.randn(columns, width, requires_grad=True)
    agree(Sparse(matrix) @ x, torch.from_numpy(matrix.toarray()) @ x, [x])


def test_sparse_without_entries_gives_zeros() -> None:
    """A matrix that stores nothing gives zeros, not uninitialised memory."""
    x = torch.randn(4, 3, requires_grad=True)
    result = Sparse(sp.csr_array((5, 4), dtype=np.float32)) @ x
    assert torch.equal(result, torch.zeros(5, 3))
    assert torch.equal(gradients(result, [x])[0], torch.zeros(4, 3))


def test_symmetric_matrix_is_stored_once() -> None:
    """A matrix said to be symmetric is its own transpose, not a second copy; another one is flipped."""
    matrix = random_matrix(8, 8)
    even = Sparse(sp.csr_array(matrix + matrix.T), symmetric=True)
    assert even.transposed is even.forward
    np.testing.assert_array_equal(Sparse(matrix).transposed.to_dense().numpy(), matrix.toarray().T)


@pytest.mark.parametrize("cuts", [[], [0, 5, 5], [11]], ids=str)
def test_masked_entries_reach_both_directions(cuts: list[int]) -> None:
    """A mask clears and scales the stored values of the matrix and, in the right places, of its transpose, told in parts."""
    matrix = random_matrix(12, 7)
    ones = np.random.default_rng(0).random(matrix.nnz) < 0.5
    changed = sp.csr_array((matrix.data * ones * 2.0, matrix.indices, matrix.indptr), shape=matrix.shape).toarray()
    whole = Sparse(matrix)
    masked, other = whole.masked(np.split(ones, cuts), 2.0), whole.masked(np.split(~ones, cuts), 2.0)
    rows, columns = torch.eye(12), torch.eye(7)
    np.testing.assert_array_equal((masked @ columns).numpy(), changed)
    np.testing.assert_array_equal(masked.back(rows).numpy(), changed.T)
    np.testing.assert_array_equal(masked.transposed.to_dense().numpy(), changed.T)
    torch.testing.assert_close(masked.back(rows) + other.back(rows), 2 * whole.back(rows))


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
    agree(transform(rows, weight, blocks, bias, through=Sparse(matrix), hops=hops, relu=True), naive, [rows, weight, bias])


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


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: f"{len(sizes)}x{sizes[0]}")
def test_sums_and_spreads_by_party(sizes: list[int]) -> None:
    """Sums by party and their opposite, for few parties and for many."""
    blocks = Blocks(sizes)
    rows = torch.randn(sum(sizes), 3)
    torch.testing.assert_close(blocks.sum(rows), torch.stack([block.sum(0) for block in rows.split(sizes)]))
    values = torch.randn(len(sizes), 3, requires_grad=True)
    naive = torch.repeat_interleave(values, torch.tensor(sizes), 0)
    agree(spread(values, blocks), naive, [values])
    torch.testing.assert_close(blocks.add_(rows.clone(), values.detach()), rows + naive)


def test_feature_dropout_is_the_partys_own() -> None:
    """What a party drops depends on its own generator alone; kept values are scaled, forward and transposed alike."""
    matrix = random_matrix(30, 40)
    together = Features.of(matrix, Blocks([10, 20])).dropped(0.5, Draws(0, [4, 9], "drop"))
    alone = Features.of(matrix[10:], Blocks([20])).dropped(0.5, Draws(0, [9], "drop"))
    weight = torch.randn(2, 40, 3)
    assert torch.equal((together @ weight)[10:], alone @ weight[1:])
    assert isinstance(together.values, Sparse)
    torch.testing.assert_close(together.values.forward.to_dense().t(), together.values.transposed.to_dense())
    kept = alone.values.forward.to_dense().numpy() / np.where(matrix[10:].toarray() == 0, 1, matrix[10:].toarray())
    assert set(np.unique(kept.round(5))) == {0.0, 2.0}


def test_diffusion_equals_the_iteration() -> None:
    """Z ← (1−α)·M·Z + α·Z⁰ in one function, with the gradient of the unrolled loop."""
    matrix = random_matrix(15, 15)
    dense = torch.from_numpy(matrix.toarray())
    start = torch.randn(15, 4, requires_grad=True)
    naive = start
    for _ in range(5):
        naive = 0.9 * dense @ naive + 0.1 * start
    agree(diffuse(Sparse(matrix), start, 5, 0.1), naive, [start])


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_attention_equals_dense_softmax(heads: int, dropped: bool, scale: float) -> None:
    """Attention over a directed graph equals a dense masked softmax, also where scores are large."""
    nodes, width = 13, 4
    adjacency = sp.csr_array((random_matrix(nodes, nodes).toarray() != 0).astype(float))
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    places = Attention(adjacency, heads)
    looks = torch.from_numpy(adjacency.toarray() + np.eye(nodes)) > 0
    rows = torch.randn(heads, nodes, width, requires_grad=True)
    source, target = torch.randn(heads, nodes, requires_grad=True), torch.randn(heads, nodes, requires_grad=True)
    scores = torch.nn.functional.leaky_relu(scale * (source[:, None, :] + target[:, :, None]), 0.2)
    share = scores.masked_fill(~looks, -torch.inf).softmax(2)
    kept = torch.randint(0, 2, (heads, int(looks.sum()))) * 2.0 if dropped else None
    if kept is not None:
        mask = torch.zeros(heads, nodes, nodes)
        mask[:, looks] = kept
        share = share * mask
    naive = (share @ rows).reshape(-1, width)
    flat = None if kept is None else kept.flatten()
    ours = attend(rows.reshape(-1, width), scale * source.flatten(), scale * target.flatten(), places, flat)
    torch.testing.assert_close(ours, naive, atol=1e-6 * scale, rtol=1e-4)
    for got, wanted in zip(gradients(ours, [rows, source, target]), gradients(naive, [rows, source, target]), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5 * scale, rtol=1e-4)
