"""Readers: the public graphs as published, compared with PyG's readers."""

import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from public_graphs import HERE, pyg

from atoll.data import DATASETS, load
from atoll.data.builder import tidy_edges
from atoll.errors import AtollError
from graphs import dense, edge_set, same


@pytest.mark.parametrize("name", HERE)
def test_public_graphs_have_their_published_sizes(real: Path, name: str) -> None:
    """Nodes, edges, features and classes are those of the catalog; edges go both ways, without loops and repeats."""
    graph, said = load(name), DATASETS.find(name)
    assert (graph.num_nodes, graph.num_features, graph.num_classes) == (said.nodes, said.features, said.classes)
    assert graph.edge_index.shape[1] == 2 * said.edges
    assert np.array_equal(tidy_edges(graph.edge_index.numpy(), graph.num_nodes), graph.edge_index.numpy())
    assert isinstance(graph.x, sp.csr_array) == (name not in ("photo", "computers"))
    assert same(load(name.upper()), graph)  # from the cache


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_planetoid_is_what_pyg_reads(real: Path, name: str) -> None:
    """Features, edges, labels and the public split agree with PyG's reader to the bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pyg("read_planetoid_data")(str(real / name / "raw"), name)  # type: ignore[operator]
    graph = load(name)
    assert torch.equal(dense(graph), data.x)
    assert torch.equal(graph.y, data.y)
    assert edge_set(graph) == set(zip(*data.edge_index.tolist(), strict=True))
    for mask, theirs in ((graph.train, data.train_mask), (graph.val, data.val_mask), (graph.test, data.test_mask)):
        assert torch.equal(mask, theirs)


def test_amazon_is_what_pyg_reads(real: Path, tmp_path: Path) -> None:
    """Photo agrees with PyG's class (which needs a writable copy)."""
    shutil.copytree(real / "Photo" / "raw", tmp_path / "Photo" / "raw")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = pyg("Amazon")(str(tmp_path), "Photo")[0]  # type: ignore[operator]
    graph = load("photo")
    assert torch.equal(dense(graph), data.x)
    assert torch.equal(graph.y, data.y)
    assert edge_set(graph) == set(zip(*data.edge_index.tolist(), strict=True))


def test_physics_is_never_dense(real: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Reading the raw file makes no dense matrix (1.2 GB)."""
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path))
    for kind in (sp.csr_array, sp.csr_matrix, sp.coo_array):
        monkeypatch.setattr(kind, "toarray", lambda *_, **__: pytest.fail("a dense matrix was made"))
        monkeypatch.setattr(kind, "todense", lambda *_, **__: pytest.fail("a dense matrix was made"))
    assert load("physics").x.nnz == 1137311  # type: ignore[union-attr]


def test_geom_gcn_folds_and_directions(real: Path) -> None:
    """Ten splits by number; the directed graph keeps the file's 36,101 links but for its loops."""
    for fold in (0, 7):
        graph = load("chameleon", fold=fold)
        with np.load(real / f"chameleon/geom_gcn/raw/chameleon_split_0.6_0.2_{fold}.npz") as file:
            assert np.array_equal(graph.val.numpy(), file["val_mask"].astype(bool))
    links = np.unique(np.loadtxt(real / "chameleon/geom_gcn/raw/out1_graph_edges.txt", dtype=int, skiprows=1), axis=0)
    assert len(links) == 36101
    assert edge_set(load("chameleon", directed=True)) == {(int(a), int(b)) for a, b in links if a != b}
    with pytest.raises(AtollError, match="has 10 splits, numbered from 0; there is no fold 10"):
        load("chameleon", fold=10)
    with pytest.raises(AtollError, match="no public split"):
        load("acm", fold=1)


def test_wiki_is_as_stored_until_normalized(real: Path) -> None:
    """TF-IDF values up to 1,663.7, 88 rows of zeros; normalized rows sum to one and the 88 stay zero."""
    assert abs(load("wiki").x).max() == pytest.approx(1663.7, abs=0.1)  # type: ignore[arg-type]
    sums = dense(load("wiki", normalize_features=True)).sum(1)
    assert int((sums == 0).sum()) == 88
    torch.testing.assert_close(sums[sums > 0], torch.ones(2405 - 88))
