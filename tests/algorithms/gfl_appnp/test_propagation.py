"""Personalized propagation against the matrix written out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp import propagation
from atoll.algorithms.gfl_appnp.propagation import Propagation, Toward, connectivity
from atoll.data import csbm


def written_out(edge_index: Tensor, nodes: int, teleport: float, steps: int) -> Tensor:
    """Ã by its definition, in double precision."""
    looped = torch.eye(nodes, dtype=torch.float64)
    looped[edge_index[1], edge_index[0]] = 1
    root = looped.sum(1) ** -0.5
    once = root[:, None] * looped * root
    powers = [torch.eye(nodes, dtype=torch.float64)]
    for _ in range(steps):
        powers.append(once @ powers[-1])
    shares = [teleport * (1 - teleport) ** i for i in range(steps)] + [(1 - teleport) ** steps]
    return sum((share * power for share, power in zip(shares, powers, strict=True)), torch.zeros(nodes, nodes).double())


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("teleport", "steps"), [(0.1, 10), (0.3, 3), (1.0, 4), (0.2, 0)])
@pytest.mark.parametrize(("worth", "large"), [(0, False), (0, True), (1e9, False)])
def test_the_matrix(
    directed: bool, teleport: float, steps: int, worth: float, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products, diagonal and the rows toward some nodes, stored, by sparse steps or, in large graphs, by fewer of them."""
    monkeypatch.setattr(propagation, "DENSE_ADVANTAGE", worth)
    monkeypatch.setattr(propagation, "MAX_DENSE", 1 if large else 100)
    monkeypatch.setattr(propagation, "BLOCK", 7)
    graph = csbm(30, 4, 1, 1, 2, seed=1)
    edges = graph.edge_index[:, graph.edge_index[0] < graph.edge_index[1]] if directed else graph.edge_index
    matrix = written_out(edges, 30, teleport, steps).float()
    made = Propagation(edges, 30, teleport, steps)
    values = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(made @ values, matrix @ values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(made.transposed(values), matrix.t() @ values, atol=1e-6, rtol=1e-5)
    nodes = torch.tensor([29, 3, 17, 4])
    torch.testing.assert_close(made.diagonal(nodes), matrix.diagonal()[nodes], atol=1e-6, rtol=1e-5)
    others = (matrix - torch.diag(matrix.diagonal()))[nodes]
    toward = made.toward(nodes)
    assert (toward.rows is None) == (worth == 0)
    torch.testing.assert_close(torch.cat([block for _, block in toward.blocks()]), others, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(toward.gather(values), others @ values, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(toward.scatter(values[:4]), others.t() @ values[:4], atol=1e-6, rtol=1e-5)
    root, chosen = toward.root(torch.arange(12)), others[:, :12]
    torch.testing.assert_close(root @ root.t(), chosen @ chosen.t(), atol=1e-5, rtol=1e-4)


def test_the_rows_are_kept_while_the_nodes_stay() -> None:
    """The same nodes get the same object, others another."""
    made = Propagation(csbm(20, 4, 1, 1, 2).edge_index, 20)
    first = made.toward(torch.tensor([1, 2]))
    assert isinstance(first, Toward)
    assert made.toward(torch.tensor([1, 2])) is first
    assert made.toward(torch.tensor([1, 3])) is not first


def test_the_diagonal_does_not_depend_on_who_asked() -> None:
    """Bit for bit the same, asked for alone or among others."""
    edges = csbm(300, 6, 1, 1, 2).edge_index
    one, other = Propagation(edges, 300), Propagation(edges, 300)
    alone = one.diagonal(torch.tensor([7]))
    assert torch.equal(alone, other.diagonal(torch.arange(300))[7:8])


def test_connectivity() -> None:
    """1 / (N·λ₂): N for a complete graph, 2 − 2·cos(π/N) for a path; infinite without a path from everywhere to everywhere."""
    complete = torch.combinations(torch.arange(6)).t()
    path = torch.stack([torch.arange(5), torch.arange(1, 6)])
    both = lambda edges: torch.cat([edges, edges.flip(0)], 1)  # noqa: E731
    assert connectivity(both(complete), 6) == pytest.approx(1 / 36)
    assert connectivity(both(path), 6) == pytest.approx(1 / (6 * (2 - 2 * math.cos(math.pi / 6))))
    assert connectivity(both(path), 7) == math.inf
    centered = torch.eye(6).double() / 6 - 1 / 36
    laplacian = torch.diag(torch.tensor([1.0, 2, 2, 2, 2, 1]).double())
    laplacian[path[0], path[1]] = laplacian[path[1], path[0]] = -1
    literal = torch.linalg.eigvals(centered @ torch.linalg.pinv(laplacian)).real.max()
    assert connectivity(both(path), 6) == pytest.approx(float(literal))
