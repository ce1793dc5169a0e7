"""`from_pyg`: a PyG graph with and without masks, and one sentence for each mistake."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from atoll.data import from_pyg
from atoll.errors import AtollError, AtollWarning
from graphs import edge_set


def data(**changes: object) -> SimpleNamespace:
    """What a PyG Data object looks like."""
    found = {"x": torch.ones(3, 2), "edge_index": torch.tensor([[0], [1]]), "y": torch.tensor([0, 1, -1])}
    return SimpleNamespace(**(found | changes))


def test_from_pyg() -> None:
    """With and without masks, with a column of masks a fold, with labels as a column or as floats with NaN."""
    with pytest.warns(AtollWarning, match=r"The PyG graph: 1 edge from a node to itself is dropped\."):
        graph = from_pyg(data(edge_index=torch.tensor([[0, 1], [1, 1]])))
    assert edge_set(graph) == {(0, 1), (1, 0)}
    assert not (graph.train | graph.val | graph.test).any()
    folds = torch.tensor([[True, False], [False, True], [False, False]])
    assert from_pyg(data(train_mask=folds), fold=1).train.tolist() == [False, True, False]
    assert from_pyg(data(y=torch.tensor([[1.0], [0.0], [float("nan")]]))).y.tolist() == [1, 0, -1]
    assert from_pyg(data(x=torch.eye(3, 20).to_sparse())).x.nnz == 3  # type: ignore[union-attr]
    assert from_pyg(data(x=[[1.0], [2.0], [3.0]], y=np.array([0, 1, 2]))).x[2, 0] == 3
    assert from_pyg(data(x=torch.ones(3, 2, dtype=torch.bfloat16))).x[0, 0] == 1


def test_nodes_without_a_class_have_no_role() -> None:
    """A mask that names them too would let them weigh in a party's number of training nodes."""
    every = torch.ones(3, dtype=torch.bool)
    assert from_pyg(data(train_mask=every)).train.tolist() == [True, True, False]
    assert from_pyg(data(test_mask=every)).test.tolist() == [True, True, False]


def test_from_pyg_takes_a_real_data_object() -> None:
    """torch_geometric's own class."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch_geometric.data import Data
    found = from_pyg(Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0], [2]]), y=torch.tensor([0, 1, 2])))
    assert (found.num_nodes, found.num_classes) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": None}, "has no `x`"),
        ({"y": None}, "has no `y`"),
        ({"x": torch.full((3, 2), float("nan"))}, "feature 0 of node 0 is NaN"),
        ({"edge_index": torch.tensor([[0], [5]])}, "from 0 to 5"),
        ({"y": torch.tensor([0.5, 1, 2])}, "not classes"),
        ({"y": torch.tensor([0, float("inf"), 1])}, "not classes"),
        ({"y": object()}, "`y` of the PyG graph is a object"),
        ({"edge_index": torch.eye(3).to_sparse()}, "`edge_index` of the PyG graph is a sparse tensor"),
        ({"x": torch.ones(3, 2, dtype=torch.complex64)}, "give real numbers"),
        ({"x": [[1.0], [1.0, 2.0], [1.0]]}, "differ in length"),
        ({"y": torch.zeros(3, 4)}, "one whole number per node"),
        ({"y": torch.tensor([0, -4, 1])}, "label -4 of node 1"),
        ({"train_mask": torch.ones(2, dtype=torch.bool)}, "train mask"),
    ],
)
def test_from_pyg_refuses(changes: dict[str, object], said: str) -> None:
    """Shapes, NaN, labels and edges are checked."""
    with pytest.raises(AtollError, match=said):
        from_pyg(data(**changes))
