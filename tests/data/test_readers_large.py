"""The heterophilous five and the Open Graph Benchmark, from small files of the same layout."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from public_graphs import pyg

from atoll.data import known, load
from atoll.errors import AtollError
from graphs import dense, edge_set

FIVE = ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")
X = np.array([[1.0, 2], [3, 4], [5, 6]])
EDGES = np.array([[0, 1], [2, 0], [1, 0], [2, 2]])  # one both ways, and a loop


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and a fresh cache."""
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "raw"))
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "raw"


def heterophilous(folder: Path, name: str) -> None:
    """The .npz of one of the five, with two splits."""
    folder.mkdir(parents=True, exist_ok=True)
    masks = {f"{part}_masks": np.roll(np.eye(3, dtype=bool), shift, 1)[:2] for shift, part in enumerate(("train", "val", "test"))}
    np.savez(folder / f"{name}.npz", node_features=X, node_labels=np.array([0, 1, 0]), edges=EDGES, **masks)


def table(path: Path, rows: np.ndarray) -> None:
    """Numbers as a compressed CSV without a heading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in np.atleast_2d(rows).tolist())
    path.write_bytes(gzip.compress(text.encode()))


def splits(folder: Path, kind: str) -> None:
    """One node of each role."""
    for node, part in enumerate(("train", "valid", "test")):
        table(folder / "split" / kind / f"{part}.csv.gz", np.array([[node]]))


def ogb_csv(folder: Path, kind: str) -> None:
    """ogbn-arxiv and ogbn-products."""
    table(folder / "raw/node-feat.csv.gz", X)
    table(folder / "raw/edge.csv.gz", EDGES)
    table(folder / "raw/node-label.csv.gz", np.array([[0], [1], [0]]))
    splits(folder, kind)


def ogb_binary(folder: Path, kind: str) -> None:
    """ogbn-papers100M: most papers have no label."""
    (folder / "raw").mkdir(parents=True)
    np.savez(folder / "raw/data.npz", node_feat=X.astype(np.float32), edge_index=EDGES.T, node_year=np.zeros((3, 1)))
    np.savez(folder / "raw/node-label.npz", node_label=np.array([[0], [1], [np.nan]], np.float32))
    splits(folder, kind)


OGB: dict[str, tuple[Callable[[Path, str], None], str, str]] = {
    "ogbn-arxiv": (ogb_csv, "ogbn_arxiv", "time"),
    "ogbn-products": (ogb_csv, "ogbn_products", "sales_ranking"),
    "ogbn-papers100M": (ogb_binary, "ogbn_papers100M", "time"),
}


@pytest.mark.parametrize("name", FIVE)
def test_the_heterophilous_five(data: Path, name: str) -> None:
    """Features, edges both ways, classes and each split."""
    stem = name.replace("-", "_")
    heterophilous(data / stem / "raw", stem)
    graph, other = load(name), load(name, fold=1)
    assert dense(graph).tolist() == X.tolist()
    assert edge_set(graph) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert edge_set(load(name, directed=True)) == {(0, 1), (1, 0), (2, 0)}
    assert graph.y.tolist() == [0, 1, 0]
    assert [mask.nonzero().item() for mask in (graph.train, graph.val, graph.test)] == [0, 1, 2]
    assert [mask.nonzero().item() for mask in (other.train, other.val, other.test)] == [1, 2, 0]


def test_the_five_are_downloaded_by_the_pyg_class(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into the cache, under the name that PyG gives the file."""
    kind = pyg("HeterophilousGraphDataset")
    monkeypatch.setattr(kind, "download", lambda self: heterophilous(Path(self.raw_dir), self.name))
    assert load("Roman-Empire").num_nodes == 3
    assert next(one for one in known() if one.name == "roman-empire").available


@pytest.mark.parametrize("name", OGB)
def test_the_open_graph_benchmark(data: Path, name: str) -> None:
    """From the raw files where the package `ogb` puts them; papers without a label have none."""
    write, folder, kind = OGB[name]
    write(data / folder, kind)
    graph = load(name)
    assert dense(graph).tolist() == X.tolist()
    assert edge_set(graph) == {(0, 1), (1, 0), (0, 2), (2, 0)}
    assert graph.y.tolist() == [0, 1, -1 if name == "ogbn-papers100M" else 0]
    assert [mask.nonzero().item() for mask in (graph.train, graph.val, graph.test)] == [0, 1, 2]


def test_an_archive_is_downloaded_and_unpacked(data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The .zip's raw files and splits land in the cache; nothing else of it does."""
    ogb_csv(tmp_path / "made" / "arxiv", "time")
    (tmp_path / "made/arxiv/mapping.txt").write_text("not needed")

    def download(address: str, folder: str, log: bool = True) -> str:
        assert address.endswith("/arxiv.zip")
        with zipfile.ZipFile(Path(folder) / "arxiv.zip", "w") as archive:
            for path in (tmp_path / "made").rglob("*.*"):
                archive.write(path, path.relative_to(tmp_path / "made"))
        return str(Path(folder) / "arxiv.zip")

    monkeypatch.setattr("torch_geometric.data.download_url", download)
    assert load("ogbn-arxiv").num_nodes == 3
    root = tmp_path / "cache" / "data" / "ogbn_arxiv"
    assert sorted(path.name for path in root.rglob("*.*")) == [
        *("edge.csv.gz", "node-feat.csv.gz", "node-label.csv.gz"),
        *("test.csv.gz", "train.csv.gz", "valid.csv.gz"),
    ]


def test_missing_and_damaged_files(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says which files belong where."""

    def unreachable(address: str, folder: str, log: bool = True) -> str:
        raise OSError("no network")

    monkeypatch.setattr("torch_geometric.data.download_url", unreachable)
    with pytest.raises(
        AtollError, match=r"'ogbn-products' is not here .*no network.* put raw/edge\.csv\.gz, .* and 3 more into .*raw/ogbn_p"
    ):
        load("ogbn-products")
    ogb_csv(data / "ogbn_products", "sales_ranking")
    (data / "ogbn_products/raw/edge.csv.gz").write_bytes(b"not compressed")
    with pytest.raises(AtollError, match=r"raw files of ogbn-products in .* cannot be read .*put fresh copies there"):
        load("ogbn-products")
