"""The catalog: downloads, the cache and broken files; nothing is ever written beside raw files."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from public_graphs import HERE, pyg

from atoll.data import known, load, readers
from atoll.data.catalog import catalog
from atoll.errors import AtollError
from graphs import dense, edge_set, same

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
    """Half a download is not a dataset, and the error says which files to put where."""

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


def test_known_lists_every_name(small: Path) -> None:
    """For `atoll datasets`: name, size, whether it is here, and the folder of its files."""
    listed = {one.name: one for one in known()}
    assert set(listed) == {
        *HERE,
        "wikics",
        "flickr",
        "reddit",
        "herigraph-suzhou",
        "herigraph-amsterdam",
        *("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"),
        *("ogbn-arxiv", "ogbn-products", "ogbn-papers100m"),
        *("aids", "bzr", "collab", "cox2", "dd", "dhfr", "enzymes", "imdb-binary", "imdb-multi", "letter-high", "letter-low"),
        *("letter-med", "mutag", "nci1", "nci109", "ohsu", "peking_1", "proteins", "ptc_mr"),
        *("chem", "biochem", "biochemsn", "biosncv"),
        "csbm",
        "majorities",
        "subcora",
        "twitch",
    }
    assert listed["acm"].available
    assert listed["csbm"].available
    assert not listed["cora"].available
    assert listed["cora"].folder == "Cora/raw"
    assert not listed["subcora"].available
