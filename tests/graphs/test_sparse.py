"""Products of constant sparse matrices against dense ones, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from products import agree, gradients, random_matrix

from atoll.graphs.sparse import SparseMatrix, diffuse


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.mark.parametrize("width", [1, 3, 64])
@pytest.mark.parametrize(("rows", "columns"), [(17, 11), (6, 40)])
def test_sparse_product_equals_dense(rows: int, columns: int, width: int) -> None:
    """M @ X and its gradient are those of the dense matrix, empty rows and columns included."""
    matrix = random_matrix(rows, columns)
    x = torch.randn(columns, width, requires_grad=True)
    agree(SparseMatrix(matrix) @ x, torch.from_numpy(matrix.toarray()) @ x, [x])


def test_sparse_without_entries_gives_zeros() -> None:
    """A matrix that stores nothing gives zeros, not uninitialized memory."""
    x = torch.randn(4, 3, requires_grad=True)
    result = SparseMatrix(sp.csr_array((5, 4), dtype=np.float32)) @ x
    assert torch.equal(result, torch.zeros(5, 3))
    assert torch.equal(gradients(result, [x])[0], torch.zeros(4, 3))


def test_symmetric_matrix_is_stored_once() -> None:
    """A matrix said to be symmetric is its own transpose, not a second copy; another one is transposed."""
    matrix = random_matrix(8, 8)
    even = SparseMatrix(sp.csr_array(matrix + matrix.T), symmetric=True)
    assert even.transposed is even.forward
    np.testing.assert_array_equal(SparseMatrix(matrix).transposed.to_dense().numpy(), matrix.toarray().T)


@pytest.mark.parametrize("cuts", [[], [0, 5, 5], [11]], ids=str)
def test_masked_entries_reach_both_directions(cuts: list[int]) -> None:
    """A mask, given in parts, clears and scales the stored values of the matrix and those of its transpose."""
    matrix = random_matrix(12, 7)
    ones = np.random.default_rng(0).random(matrix.nnz) < 0.5
    changed = sp.csr_array((matrix.data * ones * 2.0, matrix.indices, matrix.indptr), shape=matrix.shape).toarray()
    whole = SparseMatrix(matrix)
    masked, other = whole.masked(np.split(ones, cuts), 2.0), whole.masked(np.split(~ones, cuts), 2.0)
    rows, columns = torch.eye(12), torch.eye(7)
    np.testing.assert_array_equal((masked @ columns).numpy(), changed)
    np.testing.assert_array_equal(masked.transposed_matmul(rows).numpy(), changed.T)
    np.testing.assert_array_equal(masked.transposed.to_dense().numpy(), changed.T)
    torch.testing.assert_close(masked.transposed_matmul(rows) + other.transposed_matmul(rows), 2 * whole.transposed_matmul(rows))


def test_diffusion_equals_the_iteration() -> None:
    """Z ← (1−α)·M·Z + α·Z⁰ in one function, with the gradient of the unrolled loop."""
    matrix = random_matrix(15, 15)
    dense = torch.from_numpy(matrix.toarray())
    start = torch.randn(15, 4, requires_grad=True)
    naive = start
    for _ in range(5):
        naive = 0.9 * dense @ naive + 0.1 * start
    agree(diffuse(SparseMatrix(matrix), start, 5, 0.1), naive, [start])
