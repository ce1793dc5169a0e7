"""`load(name)`: every known graph, synthetic ones and the user's own behind one function.

Raw files are looked for under `ATOLL_DATA`, then in the cache (`ATOLL_CACHE`, or `~/.cache/atoll`), then downloaded into the
cache. Raw folders are never written to: what was read is kept as a plain `.npz` in the cache.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atoll.data import downloads, files, readers
from atoll.data.builder import Arrays, assemble, plain, read_npz
from atoll.data.csbm import CsbmSettings, generate
from atoll.data.doubts import mind_edges, mind_features
from atoll.data.subcora import NODES, PAIRS, SubcoraSettings, subcora
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.settings import setting


@dataclass(frozen=True)
class DataSettings:
    """What can be set for known and own graphs; for `csbm` see `CsbmSettings`."""

    normalize_features: bool = setting(False, "Divide each node's features by their sum.")
    directed: bool = setting(
        False, "Keep the directions of the edges where the dataset has any (Chameleon, Squirrel, Wiki, own graphs)."
    )


@dataclass(frozen=True)
class Dataset:
    """A known graph: its size, where its raw files belong and whether they are here."""

    name: str
    nodes: int
    edges: int  # undirected, without loops and repeats
    features: int
    classes: int
    folder: str = ""  # under ATOLL_DATA or the cache
    files: tuple[str, ...] = ()
    source: str = ""  # the PyG class that downloads it
    spelling: str = ""  # its name there
    available: bool = False
    looked: str = ""  # the folder it was found in, or the first one looked at


def _planetoid(name: str, nodes: int, edges: int, features: int, classes: int) -> Dataset:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    inside = tuple(f"ind.{name.lower()}.{part}" for part in parts)
    return Dataset(name.lower(), nodes, edges, features, classes, f"{name}/raw", inside, "Planetoid", name)


def _benchmark(name: str, nodes: int, edges: int, features: int, classes: int, source: str) -> Dataset:
    return Dataset(name.lower(), nodes, edges, features, classes, f"{name}/raw", (readers.GNN_BENCHMARK[name],), source, name)


def _geom(name: str, nodes: int, edges: int, features: int, classes: int) -> Dataset:
    inside = ("out1_node_feature_label.txt", "out1_graph_edges.txt", *(f"{name}_split_0.6_0.2_{i}.npz" for i in range(10)))
    return Dataset(name, nodes, edges, features, classes, f"{name}/geom_gcn/raw", inside, "WikipediaNetwork", name)


def _herigraph(city: str, nodes: int, edges: int) -> Dataset:
    return Dataset(
        f"herigraph-{city}", nodes, edges, nodes, 9, "HeriGraph", (f"{city}_structure_labels.npz",), spelling=f"herigraph-{city}"
    )


CATALOGUE = {
    dataset.name: dataset
    for dataset in (
        _planetoid("Cora", 2708, 5278, 1433, 7),
        _planetoid("CiteSeer", 3327, 4552, 3703, 6),
        _planetoid("PubMed", 19717, 44324, 500, 3),
        _benchmark("Physics", 34493, 247962, 8415, 5, "Coauthor"),
        _benchmark("CS", 18333, 81894, 6805, 15, "Coauthor"),
        _benchmark("Photo", 7650, 119081, 745, 8, "Amazon"),
        _benchmark("Computers", 13752, 245861, 767, 10, "Amazon"),
        _geom("chameleon", 2277, 31371, 2325, 5),
        _geom("squirrel", 5201, 198353, 2089, 5),
        Dataset(
            "wiki",
            2405,
            11596,
            4973,
            17,
            "wiki/raw",
            ("attrs.npz", "edgelist.txt", "labels.txt"),
            "AttributedGraphDataset",
            "wiki",
        ),
        Dataset("acm", 3025, 13128, 1870, 3, "ACM", ("acm.npz",), spelling="ACM"),
        Dataset("wikics", 11701, 215603, 300, 10, "WikiCS/raw", ("data.json",), "WikiCS"),
        Dataset(
            "flickr", 89250, 449878, 500, 7, "Flickr/raw", ("adj_full.npz", "feats.npy", "class_map.json", "role.json"), "Flickr"
        ),
        Dataset("reddit", 232965, 57307946, 602, 41, "Reddit/raw", ("reddit_data.npz", "reddit_graph.npz"), "Reddit"),
        _herigraph("venice", 2951, 534513),
        _herigraph("suzhou", 3137, 916496),
        _herigraph("amsterdam", 3727, 1271171),
    )
}

READERS: dict[str, readers.Reader] = {
    **dict.fromkeys(("cora", "citeseer", "pubmed"), readers.planetoid),
    **dict.fromkeys(("physics", "cs", "photo", "computers"), readers.gnn_benchmark),
    **dict.fromkeys(("chameleon", "squirrel"), readers.geom_gcn),
    "wiki": readers.wiki,
    "acm": readers.acm,
    "wikics": readers.wikics,
    "flickr": readers.flickr,
    "reddit": readers.reddit,
    **dict.fromkeys(("herigraph-venice", "herigraph-suzhou", "herigraph-amsterdam"), readers.herigraph),
}


def load(
    name: str, *, fold: int = 0, seed: int = 0, directed: bool = False, normalize_features: bool = False, **options: Any
) -> Graph:
    """The whole graph (P = 1) of a known name, of `csbm` or `subcora`, or of a path to the user's own graph.

    A public split is kept (`fold` chooses among several), otherwise the masks are empty. Edges lose their loops and repeats and,
    unless `directed`, go both ways. `normalize_features` divides each row by its sum. `options` are the settings of `csbm` and
    `subcora`, which may depend on the run's `seed`.
    """
    key = name.lower()
    if key == "csbm":
        known_options = [field.name for field in fields(CsbmSettings)]
        _refuse_unknown(options, known_options, "csbm")
        graph = generate(CsbmSettings(**options), seed)
        _checked(fold, 1, "csbm")
    elif key == "subcora":
        _refuse_unknown(options, [field.name for field in fields(SubcoraSettings)], "subcora")
        repetition = SubcoraSettings(**options).repetition
        graph = subcora(_load_known(CATALOGUE["cora"], 0, directed), seed % len(PAIRS) if repetition < 0 else repetition)
        _checked(fold, 1, "subcora")
    else:
        _refuse_unknown(options, ["fold", *(field.name for field in fields(DataSettings))], name)
        if key in CATALOGUE:
            graph = _load_known(CATALOGUE[key], fold, directed)
        elif os.sep in name or name.endswith(".npz") or Path(name).exists():
            graph = files.read(Path(name), directed=directed)
            _checked(fold, 1, name)
        else:
            raise AtollError(f"There is no dataset, folder or .npz file {name!r}{suggest(key, [*CATALOGUE, 'csbm', 'subcora'])}")
    return row_normalise(graph) if normalize_features else graph


def known() -> list[Dataset]:
    """Every known graph, and whether it is available here; `csbm` is generated and always is."""
    found = []
    for dataset in CATALOGUE.values():
        place = _find(dataset)
        looked = place if place is not None else _roots()[0] / dataset.folder
        found.append(replace(dataset, available=place is not None, looked=str(looked)))
    s = CsbmSettings()
    synthetic = Dataset("csbm", s.nodes, round(s.nodes * s.degree / 2), s.features, s.classes, available=True, looked="generated")
    cora = next(dataset for dataset in found if dataset.name == "cora")
    return [*found, replace(cora, name="subcora", nodes=NODES, edges=259), synthetic]  # edges of the first piece


def from_pyg(data: Any, *, fold: int = 0, directed: bool = False) -> Graph:
    """The whole graph (P = 1) of a `torch_geometric.data.Data`: `x`, `edge_index`, `y` and, where it has them, its masks."""
    edges, y = _tensor(data, "edge_index"), _tensor(data, "y")
    if getattr(data, "x", None) is None:
        raise AtollError("The PyG graph has no `x`; set data.x.")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = torch.where(torch.isnan(y), -1, y) if y.is_floating_point() else y
    if y.is_complex() or (y.is_floating_point() and not (whole.isfinite() & (whole == whole.round())).all()):
        raise AtollError(
            "The PyG graph's `y` holds numbers that are no classes; give whole numbers, and -1 or NaN where unlabelled."
        )
    masks = []
    for part in ("train_mask", "val_mask", "test_mask"):
        mask = getattr(data, part, None)
        if mask is None:
            masks.append(np.zeros(whole.numel(), bool))
            continue
        mask = _tensor(data, part).bool()
        masks.append((mask[:, _checked(fold, mask.shape[1], "The PyG graph")] if mask.dim() == 2 else mask).numpy())
    where, labels = "The PyG graph", whole.to(torch.int64).numpy()
    graph = assemble(data.x, edges.numpy(), labels, (masks[0], masks[1], masks[2]), where=where, directed=directed)
    mind_features(plain(data.x, where), labels, None, where)
    mind_edges(edges.numpy(), where, [name for name in ("edge_attr", "edge_weight") if getattr(data, name, None) is not None])
    return graph


def _tensor(data: Any, name: str) -> torch.Tensor:
    """A field of a PyG graph; lists and arrays are as good as tensors."""
    value = getattr(data, name, None)
    if value is None:
        raise AtollError(f"The PyG graph has no `{name}`; set data.{name}.")
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise AtollError(f"`{name}` of the PyG graph is a {type(value).__name__} that is no tensor; give a tensor.") from error
    if tensor.layout != torch.strided:
        raise AtollError(f"`{name}` of the PyG graph is a sparse tensor; give a plain one.")
    return tensor


def row_normalise(graph: Graph) -> Graph:
    """Each node's features divided by the sum of their absolute values; rows of zeros stay zero."""
    if isinstance(graph.x, torch.Tensor):
        total = graph.x.abs().sum(1, keepdim=True)
        return replace(graph, x=graph.x / torch.where(total > 0, total, 1))
    total = abs(graph.x).sum(1)
    scaled = graph.x.copy()
    scaled.data = (scaled.data / np.repeat(np.where(total > 0, total, 1), np.diff(scaled.indptr))).astype(np.float32)
    return replace(graph, x=scaled)


def cache_folder() -> Path:
    """Where downloads and processed graphs are kept."""
    return Path(os.environ.get("ATOLL_CACHE") or Path.home() / ".cache" / "atoll")


def _refuse_unknown(options: dict[str, Any], known_options: list[str], name: str) -> None:
    for option in options:
        if option not in known_options:
            raise AtollError(f"Dataset {name!r} has no option {option!r}{suggest(option, known_options)}")


def _checked(fold: int, folds: int, where: str) -> int:
    if not 0 <= fold < folds:
        raise AtollError(f"{where} has {folds} split{'s' if folds > 1 else ''}, numbered from 0; there is no fold {fold}.")
    return fold


def _roots() -> list[Path]:
    given = os.environ.get("ATOLL_DATA")
    return [*([Path(given).expanduser()] if given else []), cache_folder() / "data"]


def _find(dataset: Dataset) -> Path | None:
    for root in _roots():
        folder = root / dataset.folder
        if all((folder / name).is_file() for name in dataset.files):
            return folder
    return None


def _load_known(dataset: Dataset, fold: int, directed: bool) -> Graph:
    folder = _find(dataset) or _download(dataset)
    stamp = [(name, (folder / name).stat().st_size, (folder / name).stat().st_mtime_ns) for name in dataset.files]
    digest = hashlib.blake2b(repr((VERSION, str(folder), directed, stamp)).encode(), digest_size=8).hexdigest()
    cached = cache_folder() / "processed" / f"{dataset.name}-{digest}.npz"
    graph, folds = _from_cache(cached) or (None, None)
    if graph is None or folds is None:
        if folder.is_relative_to(downloaded := cache_folder() / "data"):
            downloads.check(downloaded, {f"{dataset.folder}/{name}": folder / name for name in dataset.files}, new=False)
        try:
            read = READERS[dataset.name](folder, dataset.spelling)
        except AtollError:
            raise
        except Exception as error:  # a reader meets whatever is in the file
            raise AtollError(
                f"The raw files of {dataset.name} in {folder} cannot be read ({type(error).__name__}: {error}); "
                "put fresh copies there."
            ) from error
        graph = assemble(read.x, read.edges, read.y, where=dataset.name, directed=directed, class_names=read.class_names)
        folds = np.array(read.folds, bool).reshape(-1, 3, graph.num_nodes)
        _to_cache(cached, graph, folds)
    if len(folds) == 0:
        if fold:
            raise AtollError(f"Dataset '{dataset.name}' has no public split, so there is no fold {fold}; leave `fold` out.")
        return graph
    train, val, test = torch.from_numpy(folds[_checked(fold, len(folds), f"Dataset '{dataset.name}'")]).unbind()
    return replace(graph, train=train, val=val, test=test)


def _download(dataset: Dataset) -> Path:
    """The raw files fetched by the PyG class into the cache; they appear there all at once or not at all."""
    root = cache_folder() / "data"
    reason = "it cannot be downloaded"
    if dataset.source:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as folder:
                _fetch(dataset, Path(folder))
                fetched = {f"{dataset.folder}/{name}": next(Path(folder).rglob(name)) for name in dataset.files}
                downloads.check(root, fetched, new=True)
                (root / dataset.folder).mkdir(parents=True, exist_ok=True)
                for name, path in fetched.items():
                    path.replace(root / name)
            return root / dataset.folder
        except AtollError:
            raise
        except Exception as error:  # no network, no space, a moved address: all end in the same advice
            reason = f"downloading it failed ({' '.join([type(error).__name__, *str(error).splitlines()[:1]])})"
    asked = Path(os.environ.get("ATOLL_DATA") or root) / dataset.folder
    set_hint = "" if os.environ.get("ATOLL_DATA") else ", or set ATOLL_DATA to the folder that holds them"
    listed = ", ".join(dataset.files[:3]) + (f" and {len(dataset.files) - 3} more" if len(dataset.files) > 3 else "")
    raise AtollError(f"Dataset '{dataset.name}' is not here and {reason}; put {listed} into {asked}{set_hint}.")


def _fetch(dataset: Dataset, folder: Path) -> None:
    """Only the download step of the PyG class: its constructor would also process, densely."""
    import torch_geometric.datasets

    kind = getattr(torch_geometric.datasets, dataset.source)
    shell = kind.__new__(kind)
    shell.root, shell.name, shell.split, shell.geom_gcn_preprocess = str(folder), dataset.spelling, "public", True
    Path(shell.raw_dir).mkdir(parents=True, exist_ok=True)
    shell.download()


VERSION = 1  # of the cached form: raise it when `assemble` or a reader changes what it gives


def _to_cache(path: Path, graph: Graph, folds: np.ndarray[Any, Any]) -> None:
    arrays: Arrays = files.arrays(graph) | {"folds": folds}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_npz(path, arrays)
        for other in path.parent.glob(f"{path.stem.rsplit('-', 1)[0]}-????????????????.npz"):
            if other != path and other.stat().st_mtime < path.stat().st_mtime - 30 * 86400:
                other.unlink()
    except (OSError, AtollError):
        return  # a cache that cannot be written only costs time


def _from_cache(path: Path) -> tuple[Graph, np.ndarray[Any, Any]] | None:
    try:
        arrays = read_npz(path)
        return files.graph_of(arrays), arrays["folds"]
    except (ValueError, KeyError):
        return None
