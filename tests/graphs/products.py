"""Random matrices and a comparison with naive products, for the tests of the kernels."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

SIZES = [[9], [7, 1, 12], [5, 5, 5], [1] * 20, [2, 3] * 40]


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
