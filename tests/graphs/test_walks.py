"""Closed walks against powers of the matrix itself."""

import numpy as np
import pytest
import torch

from atoll.data import csbm
from atoll.graphs import walks


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 10])
@pytest.mark.parametrize("normalized", [True, False])
def test_closed_walks_are_the_diagonals_of_powers(steps: int, normalized: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without self loops, for any nodes in any order, also where a span is a single node; nodes may be isolated."""
    monkeypatch.setattr(walks, "MAX_ENTRIES", 200)
    graph = csbm(60, 2, 1, 1, 2, seed=1)
    assert int(graph.adjacency.sum(1).min()) == 0
    matrix = graph.normalized if normalized else graph.adjacency
    nodes = torch.randperm(60, generator=torch.Generator().manual_seed(0))[:40]
    found = list(walks.closed_walks(matrix, nodes, steps))
    assert [span.start for span, _ in found] == [0, *(span.stop for span, _ in found[:-1])]
    assert found[-1][0].stop == 40
    powers = np.stack([np.diag(np.linalg.matrix_power(matrix.toarray(), i)) for i in range(steps + 1)])
    np.testing.assert_allclose(torch.cat([part for _, part in found], 1).numpy(), powers[:, nodes.numpy()], rtol=1e-12)
