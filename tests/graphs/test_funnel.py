"""A diffusion at a few rows against the whole diffusion."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atoll.data import csbm
from atoll.graphs import funnel
from atoll.graphs.funnel import Funnel
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix, diffuse

NODES = 200


def normalized(*, directed: bool) -> SparseMatrix:
    """Â of a sparse generated graph."""
    edges = csbm(NODES, 3, 1, 1, 2, seed=2).edge_index
    if directed:
        edges = edges[:, edges[0] < edges[1]]
    mask = torch.zeros(NODES, dtype=torch.bool)
    ends = torch.tensor([0, NODES])
    graph = Graph(torch.empty(NODES, 0), edges, mask.long(), mask, mask, mask, 1, torch.arange(NODES), ends)
    return graph.normalized_adjacency


def values(columns: int = 8) -> Tensor:
    """Some numbers per node."""
    return torch.randn(NODES, columns, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 2, 10])
@pytest.mark.parametrize("most", [0.0, 0.5, 1.0])
def test_the_rows_of_the_whole_diffusion(directed: bool, steps: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, in the order asked for, also for a row that is asked for twice and however many steps are cut down."""
    monkeypatch.setattr(funnel, "MOST", most)
    matrix, rows = normalized(directed=directed), torch.tensor([150, 3, 77, 3])
    made = Funnel(matrix, rows, steps, 0.1)
    assert torch.equal(made @ values(), diffuse(matrix, values(), steps, 0.1)[rows])


def test_only_what_is_read_is_computed() -> None:
    """The last step has the rows asked for, the one before it their neighbors and themselves; wide steps stay whole."""
    matrix, rows = normalized(directed=False), torch.tensor([3, 77])
    _, columns, indptr = matrix.arrays
    near = {int(c) for row in rows.tolist() for c in columns[indptr[row] : indptr[row + 1]]}
    made = Funnel(matrix, rows, 10, 0.1)
    assert made.narrowed[0].rows.tolist() == rows.tolist()
    assert set(made.narrowed[1].rows.tolist()) == near
    assert 2 <= len(made.narrowed) < 10
    assert all(len(step.rows) <= funnel.MOST * NODES for step in made.narrowed)
