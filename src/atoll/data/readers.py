"""Readers of the public datasets' raw files: each turns one folder into arrays and never writes beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from atoll.data.builder import Bools, Features, Ints, Masks
from atoll.data.planetoid import read


@dataclass(frozen=True)
class Raw:
    """The content of a raw folder; `folds` are its public splits."""

    x: Features
    edges: Ints  # (2, E) as stored, with directions, loops and repeats
    y: Ints
    folds: list[Masks] = field(default_factory=list)
    class_names: tuple[str, ...] | None = None


Reader = Callable[[Path, str], Raw]


def planetoid(folder: Path, name: str) -> Raw:
    """Cora, CiteSeer, PubMed with the public split of Yang et al., the same as PyG gives; see `atoll.data.planetoid`.

    `tx` holds the test nodes in the order of `test.index`; nodes that are in no file (CiteSeer) get zeros and class 0.
    """
    stem = f"ind.{name.lower()}"
    tx, allx = (_part(folder / f"{stem}.{part}", sp.csr_array) for part in ("tx", "allx"))
    y_train, y_test, y_known = (_part(folder / f"{stem}.{part}", np.ndarray) for part in ("y", "ty", "ally"))
    graph: dict[int, list[int]] = _part(folder / f"{stem}.graph", dict)
    test = np.loadtxt(folder / f"{stem}.test.index", dtype=np.int64, ndmin=1)
    known, nodes = allx.shape[0], int(test.max()) + 1
    rows = np.concatenate([np.arange(known), test])  # row r of allx over tx is node rows[r]
    consistent = tx.shape[0] == len(test) == len(y_test) and known == len(y_known) and tx.shape[1] == allx.shape[1]
    consistent = consistent and y_test.ndim == y_known.ndim == 2 and y_test.shape[1] == y_known.shape[1]
    if (
        not consistent
        or len(y_train) + 500 > known
        or len(np.unique(rows)) != len(rows)
        or test.min() < 0
        or nodes > 2 * len(rows)
    ):
        raise ValueError("the files are not of one dataset")
    permutation = sp.csr_array((np.ones(len(rows), np.float32), (rows, np.arange(len(rows)))), shape=(nodes, len(rows)))
    x = permutation @ sp.csr_array(sp.vstack([allx, tx]), dtype=np.float32)
    y = np.zeros(nodes, np.int64)
    y[rows] = np.concatenate([y_known, y_test]).argmax(1)
    sources = np.repeat(np.array(list(graph), np.int64), [len(targets) for targets in graph.values()])
    edges = np.stack([sources, np.concatenate([np.asarray(targets, np.int64) for targets in graph.values()])])
    if edges.size and not 0 <= edges.min() <= edges.max() < nodes:
        raise ValueError(f"an edge of {stem}.graph leads to a node that does not exist")
    labeled = len(y_train)
    return Raw(x, edges, y, [(_mask(range(labeled), nodes), _mask(range(labeled, labeled + 500), nodes), _mask(test, nodes))])


def _part(path: Path, kind: type) -> Any:
    """The content of a Planetoid file, if it is of that kind."""
    content = read(path)
    if not isinstance(content, kind):
        raise ValueError(f"{path.name} does not hold what it should")
    return content


def gnn_benchmark(folder: Path, name: str) -> Raw:
    """Coauthor and Amazon: CSR parts in one .npz, read without making a dense matrix."""
    with np.load(folder / GNN_BENCHMARK[name]) as file:
        x = sp.csr_array((file["attr_data"], file["attr_indices"], file["attr_indptr"]), shape=tuple(file["attr_shape"]))
        adjacency = sp.csr_array((file["adj_data"], file["adj_indices"], file["adj_indptr"]), shape=tuple(file["adj_shape"]))
        names = tuple(str(n) for n in file["class_names"]) if "class_names" in file.files else None
        y = file["labels"].astype(np.int64)
    return Raw(x, _edges(adjacency), y, class_names=names if names and len(names) == y.max() + 1 else None)


GNN_BENCHMARK = {
    "Physics": "ms_academic_phy.npz",
    "CS": "ms_academic_cs.npz",
    "Photo": "amazon_electronics_photo.npz",
    "Computers": "amazon_electronics_computers.npz",
}


def geom_gcn(folder: Path, name: str) -> Raw:
    """Chameleon, Squirrel: tab-separated text and the ten 60/20/20 splits of Pei et al."""
    lines = (folder / "out1_node_feature_label.txt").read_text().splitlines()[1:]
    columns = [line.split("\t") for line in lines]
    order = np.argsort([int(column[0]) for column in columns])
    x = sp.csr_array(np.stack([np.fromstring(column[1], dtype=np.float32, sep=",") for column in columns])[order])
    y = np.array([int(column[2]) for column in columns], np.int64)[order]
    edges = np.loadtxt(folder / "out1_graph_edges.txt", dtype=np.int64, skiprows=1, ndmin=2).T
    folds = []
    for fold in range(10):
        with np.load(folder / f"{name}_split_0.6_0.2_{fold}.npz") as masks:
            folds.append((_bools(masks["train_mask"]), _bools(masks["val_mask"]), _bools(masks["test_mask"])))
    return Raw(x, edges, y, folds)


def wiki(folder: Path, name: str) -> Raw:
    """Wiki of TADW: TF-IDF features, classes numbered from 1 in the file."""
    labels = np.loadtxt(folder / "labels.txt", dtype=np.int64, ndmin=2)
    y = np.full(labels[:, 0].max() + 1, -1, np.int64)
    y[labels[:, 0]] = labels[:, 1] - 1
    edges = np.loadtxt(folder / "edgelist.txt", dtype=np.int64, ndmin=2).T
    return Raw(sp.csr_array(sp.load_npz(folder / "attrs.npz")), edges, y)


def acm(folder: Path, name: str) -> Raw:
    """ACM: papers joined by a common author."""
    with np.load(folder / "acm.npz") as file:
        x = sp.csr_array((file["x_data"], file["x_indices"], file["x_indptr"]), shape=tuple(file["x_shape"]))
        return Raw(x, file["edge_index"], file["y"].astype(np.int64))


def wikics(folder: Path, name: str) -> Raw:
    """WikiCS: twenty training and validation masks, one test mask."""
    data = json.loads((folder / "data.json").read_text())
    links = [np.asarray(targets, np.int64) for targets in data["links"]]
    sources = np.repeat(np.arange(len(links)), [len(targets) for targets in links])
    train, val, test = (_bools(np.asarray(data[key])) for key in ("train_masks", "val_masks", "test_mask"))
    folds = [(train[fold], val[fold] & ~test, test) for fold in range(len(train))]
    edges = np.stack([sources, np.concatenate(links)])
    return Raw(np.asarray(data["features"], np.float32), edges, np.asarray(data["labels"], np.int64), folds)


def flickr(folder: Path, name: str) -> Raw:
    """Flickr of GraphSAINT."""
    with np.load(folder / "adj_full.npz") as file:
        adjacency = sp.csr_array((file["data"], file["indices"], file["indptr"]), shape=tuple(file["shape"]))
    x = np.load(folder / "feats.npy").astype(np.float32)
    y = np.full(len(x), -1, np.int64)
    classes = json.loads((folder / "class_map.json").read_text())
    y[np.array([int(node) for node in classes])] = np.array(list(classes.values()))
    role = json.loads((folder / "role.json").read_text())
    return Raw(x, _edges(adjacency), y, [(_mask(role["tr"], len(x)), _mask(role["va"], len(x)), _mask(role["te"], len(x)))])


def reddit(folder: Path, name: str) -> Raw:
    """Reddit of GraphSAGE."""
    with np.load(folder / "reddit_data.npz") as file:
        x, y, kind = file["feature"].astype(np.float32), file["label"].astype(np.int64), file["node_types"]
    adjacency = sp.load_npz(folder / "reddit_graph.npz").tocsr()
    return Raw(x, _edges(adjacency), y, [(kind == 1, kind == 2, kind == 3)])


def heterophilous(folder: Path, name: str) -> Raw:
    """Roman-empire, Amazon-ratings, Minesweeper, Tolokers and Questions (Platonov et al., ICLR 2023) with their ten splits."""
    with np.load(folder / f"{name}.npz") as file:
        masks = [_bools(file[f"{part}_masks"]) for part in ("train", "val", "test")]
        folds = [(train, val, test) for train, val, test in zip(*masks, strict=True)]
        return Raw(file["node_features"].astype(np.float32), file["edges"].T, file["node_labels"].astype(np.int64), folds)


def ogb(folder: Path, name: str) -> Raw:
    """Node classification of the Open Graph Benchmark: the raw files, which need neither the package `ogb` nor a pickle.

    ogbn-arxiv and ogbn-products are compressed CSV; ogbn-papers100M is two .npz, with NaN for papers without a label.
    """
    if name == "papers100M":
        with np.load(folder / "raw/data.npz") as file, np.load(folder / "raw/node-label.npz") as labels:
            x, edges, label = file["node_feat"].astype(np.float32, copy=False), file["edge_index"], labels["node_label"]
        y = np.where(np.isnan(label.reshape(-1)), -1, label.reshape(-1)).astype(np.int64)
    else:
        x = _csv(folder / "raw/node-feat.csv.gz", np.float32)
        edges = _csv(folder / "raw/edge.csv.gz", np.int64).T
        y = _csv(folder / "raw/node-label.csv.gz", np.int64).reshape(-1)
    split = folder / "split" / ("sales_ranking" if name == "products" else "time")
    train, val, test = (_csv(split / f"{part}.csv.gz", np.int64).reshape(-1) for part in ("train", "valid", "test"))
    return Raw(x, edges, y, [(_mask(train, len(y)), _mask(val, len(y)), _mask(test, len(y)))])


def _csv(path: Path, kind: type) -> NDArray[Any]:
    """The numbers of a compressed CSV without a heading."""
    import pandas as pd  # takes a while to import

    values: NDArray[Any] = pd.read_csv(path, header=None, dtype=kind).to_numpy()
    return values


def herigraph(folder: Path, name: str) -> Raw:
    """HeriGraph, the union of its three graphs: no features are published, so a node's feature is its own number (one-hot)."""
    with np.load(folder / f"{name.removeprefix('herigraph-')}_structure_labels.npz") as file:
        labeled = file["y_labelled"]
        y = np.where(labeled, file["y"], -1).astype(np.int64)
        edges = np.concatenate(
            [file[f"edge_index_{kind}"].astype(np.int64) for kind in ("social", "spatial", "temporal")], axis=1
        )
        train, val, test = (_mask(file[f"{part}_idx"], len(y)) & labeled for part in ("train", "val", "test"))
        names = tuple(str(n) for n in file["class_names"])
    return Raw(sp.csr_array(sp.eye_array(len(y), dtype=np.float32, format="csr")), edges, y, [(train, val, test)], names)


def _edges(adjacency: sp.csr_array) -> Ints:
    return np.stack(adjacency.tocoo().coords).astype(np.int64)


def _bools(values: NDArray[np.generic]) -> Bools:
    return values.astype(bool)


def _mask(nodes: Ints | Sequence[int], size: int) -> Bools:
    mask = np.zeros(size, bool)
    mask[np.asarray(nodes, np.int64)] = True
    return mask
