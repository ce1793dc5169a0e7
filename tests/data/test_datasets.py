"""`load`: the public graphs as published, the cache, the download, the errors; nothing is ever written beside raw files."""

import json
import pickle
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data import DATASETS, from_pyg, known, load, readers, row_normalize
from atoll.data.builder import tidy_edges
from atoll.data.catalog import catalog
from atoll.errors import AtollError, AtollWarning
from graphs import dense, edge_set, same

HERE = [
    "cora",
    "citeseer",
    "pubmed",
    "physics",
    "cs",
    "photo",
    "computers",
    "chameleon",
    "squirrel",
    "wiki",
    "acm",
    "herigraph-venice",
]


def pyg(what: str) -> object:
    """Something of torch_geometric, whose import warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch_geometric.datasets
        import torch_geometric.io

        return getattr(torch_geometric.io if what.startswith("read") else torch_geometric.datasets, what)


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


def test_row_normalize_sparse_and_dense() -> None:
    """Both kinds divide a row by the sum of absolute values."""
    graph = load("csbm", nodes=20, features=4)
    expected = dense(graph) / dense(graph).abs().sum(1, keepdim=True)
    torch.testing.assert_close(dense(row_normalize(graph)), expected)
    sparse = replace(graph, x=sp.csr_array(dense(graph).numpy()))
    torch.testing.assert_close(dense(row_normalize(sparse)), expected)
    assert torch.equal(dense(sparse), dense(graph))  # the graph itself is not changed


# Small raw files, made as the real ones are


def acm(folder: Path, nodes: int = 6) -> None:
    """ACM's file with a few nodes."""
    folder.mkdir(parents=True, exist_ok=True)
    x = sp.csr_array(np.eye(nodes, 10, dtype=np.float32))
    edges = np.array([[0, 1, 1, 2], [1, 0, 1, 3]])
    np.savez(
        folder / "acm.npz",
        x_data=x.data,
        x_indices=x.indices,
        x_indptr=x.indptr,
        x_shape=x.shape,
        edge_index=edges,
        y=np.arange(nodes) % 3,
    )


def wikics(folder: Path) -> None:
    """WikiCS: two folds."""
    masks = {"train_masks": [[1, 0, 0], [0, 1, 0]], "val_masks": [[0, 1, 0], [1, 0, 0]], "test_mask": [0, 0, 1]}
    found = {"features": [[1, 2], [3, 4], [5, 6]], "labels": [0, 1, 0], "links": [[1], [], [0, 2]], **masks}
    (folder / "data.json").write_text(json.dumps(found))


def flickr(folder: Path) -> None:
    """Flickr of GraphSAINT."""
    matrix = sp.csr_array(np.array([[0, 1, 0], [0, 0, 0], [1, 0, 1]]))
    np.savez(folder / "adj_full.npz", data=matrix.data, indices=matrix.indices, indptr=matrix.indptr, shape=matrix.shape)
    np.save(folder / "feats.npy", np.array([[1.0, 2], [3, 4], [5, 6]]))
    (folder / "class_map.json").write_text(json.dumps({"0": 0, "1": 1, "2": 0}))
    (folder / "role.json").write_text(json.dumps({"tr": [0], "va": [1], "te": [2]}))


def reddit(folder: Path) -> None:
    """Reddit of GraphSAGE."""
    features = np.array([[1.0, 2], [3, 4], [5, 6]])
    np.savez(folder / "reddit_data.npz", feature=features, label=np.array([0, 1, 0]), node_types=np.array([1, 2, 3]))
    sp.save_npz(folder / "reddit_graph.npz", sp.coo_matrix(np.array([[0, 1, 0], [0, 0, 0], [1, 0, 1]])))


@pytest.mark.parametrize(
    ("name", "source", "write"), [("wikics", "WikiCS", wikics), ("flickr", "Flickr", flickr), ("reddit", "Reddit", reddit)]
)
def test_downloaded_by_the_pyg_class_and_read(
    no_data: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str, write: Callable[[Path], None]
) -> None:
    """Only the class's download step runs; the files land in the cache and the graph is what they say."""
    monkeypatch.setattr(pyg(source), "download", lambda self: write(Path(self.raw_dir)))
    graph = load(name)
    assert edge_set(graph) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert graph.y.tolist() == [0, 1, 0]
    assert (graph.train.tolist(), graph.val.tolist(), graph.test.tolist()) == ([1, 0, 0], [0, 1, 0], [0, 0, 1])
    assert dense(graph).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert next(one for one in known() if one.name == name).available
    assert not list((no_data / "data").glob(".download*"))
    if name == "wikics":
        assert load(name, fold=1).train.tolist() == [0, 1, 0]


def test_a_download_that_breaks_leaves_nothing(no_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a download is no dataset, and the error says which files to put where."""

    def half(self: object) -> None:
        Path(self.raw_dir, "adj_full.npz").write_bytes(b"x")  # type: ignore[attr-defined]
        raise OSError("connection reset")

    monkeypatch.setattr(pyg("Flickr"), "download", half)
    with pytest.raises(
        AtollError, match=r"'flickr' is not here .*connection reset.*adj_full\.npz.* into .*data/Flickr/raw, or set ATOLL_DATA"
    ):
        load("flickr")
    assert not [path for path in no_data.rglob("*") if path.is_file()]


def test_what_cannot_be_downloaded_says_where_it_belongs(no_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ACM and HeriGraph have no class to fetch them."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "mine"))
    with pytest.raises(AtollError, match=r"put acm\.npz into .*/mine/ACM\."):
        load("acm")
    with pytest.raises(AtollError, match=r"put suzhou_structure_labels\.npz into .*/mine/HeriGraph\."):
        load("herigraph-suzhou")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with a small ACM, and a fresh cache."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "raw"))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    acm(tmp_path / "raw" / "ACM")
    return tmp_path


def test_raw_folders_are_never_written_to(small: Path) -> None:
    """After two loads the raw folder holds what it held, and a read-only one is fine."""
    folder = small / "raw" / "ACM"
    folder.chmod(0o555)
    before = [(path, path.stat().st_mtime_ns) for path in sorted(small.joinpath("raw").rglob("*"))]
    first = load("acm")
    assert same(load("acm"), first)
    assert [(path, path.stat().st_mtime_ns) for path in sorted(small.joinpath("raw").rglob("*"))] == before
    folder.chmod(0o755)


def test_the_second_load_comes_from_the_cache(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader runs once, until the raw file changes."""
    first = load("acm")
    with monkeypatch.context() as patch:
        patch.setattr(readers, "acm", lambda *_: pytest.fail("read again"))
        assert same(load("acm"), first)
    acm(small / "raw" / "ACM", nodes=9)
    assert load("acm").num_nodes == 9


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "other"])
def test_a_corrupt_cache_is_rebuilt(small: Path, harm: str) -> None:
    """Cut off, with flipped bytes, emptied or another archive: the graph is the same and the cache is whole again."""
    first = load("acm")
    (cached,) = (small / "cache" / "processed").glob("*.npz")
    good = cached.read_bytes()
    if harm == "other":
        np.savez(cached, y=np.arange(3))
    else:
        half = len(good) // 2
        flipped = good[:half] + bytes(255 - byte for byte in good[half : half + 40]) + good[half + 40 :]
        cached.write_bytes({"cut": good[:half], "flip": flipped, "empty": b""}[harm])
    assert same(load("acm"), first)
    assert len(cached.read_bytes()) == len(good)


def test_a_cache_that_cannot_be_written_only_costs_time(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache's place is taken by a file."""
    (small / "taken").write_text("")
    monkeypatch.setenv("ATOLL_CACHE", str(small / "taken"))
    assert load("acm").num_nodes == 6


def test_broken_raw_files_are_named(small: Path) -> None:
    """A raw file that is rubbish, and one whose numbers make no graph."""
    path = small / "raw" / "ACM" / "acm.npz"
    path.write_bytes(b"rubbish")
    with pytest.raises(AtollError, match=r"raw files of acm in .*ACM cannot be read"):
        load("acm")


def test_a_forged_pickle_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planetoid's raw files are pickles: one that calls a function is refused."""

    class Forged:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "ran",))  # type: ignore[return-value]

    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "Cora" / "raw").mkdir(parents=True)
    for name in catalog()["cora"].files:
        (tmp_path / "Cora" / "raw" / name).write_bytes(pickle.dumps(Forged(), 2))
    with pytest.raises(AtollError, match="does not belong in a dataset"):
        load("cora")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: load("pubmde"), "did you mean 'pubmed'"),
        (lambda: load("csbm", node=5), "'csbm' has no option 'node'; did you mean 'nodes'"),
        (lambda: load("cora", direct=True), "'cora' has no option 'direct'; did you mean 'directed'"),
        (lambda: load("csbm", fold=1), "there is no fold 1"),
        (lambda: load("no/such/folder"), "no folder or file no/such/folder"),
    ],
)
def test_typing_mistakes(call: Callable[[], object], said: str) -> None:
    """What is unknown gets the nearest known word."""
    with pytest.raises(AtollError, match=said):
        call()


def test_known_lists_every_name(small: Path) -> None:
    """For `atoll datasets`: name, size, whether it is here, and the folder of its files."""
    listed = {one.name: one for one in known()}
    assert set(listed) == {*HERE, "wikics", "flickr", "reddit", "herigraph-suzhou", "herigraph-amsterdam", "csbm", "subcora"}
    assert listed["acm"].available
    assert listed["csbm"].available
    assert not listed["cora"].available
    assert listed["cora"].folder == "Cora/raw"
    assert not listed["subcora"].available


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
