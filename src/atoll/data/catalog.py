"""The public graphs of `catalog.toml`: where their raw files are, how they are downloaded, read and cached.

Raw files are looked for under `ATOLL_DATA`, then in the cache (`ATOLL_CACHE`, or `~/.cache/atoll`), then downloaded into the
cache. Raw folders are never written to: the graph that was read is kept as a plain `.npz` in the cache.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import os
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from atoll.data import downloads, files, readers
from atoll.data.builder import build_graph, check_fold, row_normalize
from atoll.data.npz import Arrays, read_npz
from atoll.data.target_columns import CLASS, TARGET, TARGETS
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.settings import setting

CACHE_VERSION = 1  # of the cached form: raise it when `build_graph` or a reader changes its result
CACHE_SECONDS = 30 * 86400  # how long the cached form of an older raw file is kept


@dataclass(frozen=True)
class DataSettings:
    """What can be set for the public graphs and for a user's own."""

    normalize_features: bool = setting(False, "Divide each node's features by their sum.")
    directed: bool = setting(
        False, "Keep the directions of the edges where the dataset has any (Chameleon, Squirrel, Wiki, your own graphs)."
    )
    encode: str = setting(
        "auto",
        "Own tables: auto encodes columns that are not plain numbers or that features.toml describes, always all of them.",
        choices=("auto", "always", "never"),
        since="0.2",
    )
    edge_weights: bool = setting(True, "Own graphs: use the weights of the edges, where they have any.", since="0.2")
    target: str = setting(CLASS, f"Own data: {TARGET[0].lower()}{TARGET[1:]}", choices=TARGETS, since="0.2")
    memory_budget: float = setting(
        0.0,
        "Shards: gigabytes of dense features that a process holds in memory; larger ones stay on disk, also where a graph is "
        "cut. 0 is no limit.",
        low=0,
        since="0.2",
    )


@dataclass(frozen=True)
class RawDataset:
    """A public graph: its size, its raw files and where they belong."""

    Settings: ClassVar[type] = DataSettings

    name: str
    nodes: int
    edges: int  # undirected, without loops and repeats
    features: int
    classes: int
    folder: str  # under ATOLL_DATA or the cache
    files: tuple[str, ...]
    reader: str  # a function of `readers`
    download: str = ""  # the PyG class that downloads it
    spelling: str = ""  # its name there, or for the reader
    archive: str = ""  # the address of a .zip with the raw files, where there is one instead

    @property
    def available(self) -> bool:
        """Whether all raw files are here."""
        return self._find() is not None

    def load(self, settings: DataSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """The whole graph (P = 1) with its public split, where it has one; `fold` selects one of several."""
        graph, folds = self._cached(settings.directed)
        if len(folds):
            index = check_fold(fold, len(folds), f"Dataset {self.name!r}")
            train, val, test = torch.from_numpy(folds[index]).unbind()
            graph = replace(graph, train=train, val=val, test=test)
        elif fold:
            raise AtollError(f"Dataset {self.name!r} has no public split, so there is no fold {fold}; leave `fold` out.")
        return row_normalize(graph) if settings.normalize_features else graph

    def _find(self) -> Path | None:
        """The folder that holds the raw files."""
        return raw_folder(self.folder, self.files)

    def _cached(self, directed: bool) -> tuple[Graph, np.ndarray[Any, Any]]:
        """The graph without a split, and its splits (folds, 3, N): from the cache, or read and put there."""
        folder = self._find() or self._download()
        stamp = [(name, (folder / name).stat().st_size, (folder / name).stat().st_mtime_ns) for name in self.files]
        digest = hashlib.blake2b(repr((CACHE_VERSION, str(folder), directed, stamp)).encode(), digest_size=8).hexdigest()
        path = cache_folder() / "processed" / f"{self.name}-{digest}.npz"
        cached = _from_cache(path)
        if cached is not None:
            return cached
        if folder.is_relative_to(downloaded := cache_folder() / "data"):
            downloads.check(downloaded, {f"{self.folder}/{name}": folder / name for name in self.files}, new=False)
        raw = self._read(folder)
        graph = build_graph(raw.x, raw.edges, raw.y, where=self.name, directed=directed, class_names=raw.class_names)
        folds = np.array(raw.folds, bool).reshape(-1, 3, graph.num_nodes)
        _to_cache(path, graph, folds)
        return graph, folds

    def _read(self, folder: Path) -> readers.Raw:
        reader: readers.Reader = getattr(readers, self.reader)
        try:
            return reader(folder, self.spelling)
        except AtollError:
            raise
        except Exception as error:  # the files may hold anything
            raise AtollError(
                f"The raw files of {self.name} in {folder} cannot be read ({type(error).__name__}: {error}); "
                "put fresh copies there."
            ) from error

    def _download(self) -> Path:
        """Download the raw files into the cache with the PyG class; they appear there all at once or not at all."""
        root = cache_folder() / "data"
        reason = "it cannot be downloaded"
        if self.download or self.archive:
            try:
                root.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(dir=root, prefix=".download-") as folder:
                    self._fetch(Path(folder))
                    fetched = {f"{self.folder}/{name}": next(Path(folder).rglob(name)) for name in self.files}
                    downloads.check(root, fetched, new=True)
                    for name, path in fetched.items():
                        (root / name).parent.mkdir(parents=True, exist_ok=True)
                        path.replace(root / name)
                return root / self.folder
            except AtollError:
                raise
            except Exception as error:  # no network, no space, a moved address: the advice is the same
                reason = f"downloading it failed ({' '.join([type(error).__name__, *str(error).splitlines()[:1]])})"
        target = Path(os.environ.get("ATOLL_DATA") or root) / self.folder
        hint = "" if os.environ.get("ATOLL_DATA") else ", or set ATOLL_DATA to the folder that holds them"
        listed = ", ".join(self.files[:3]) + (f" and {len(self.files) - 3} more" if len(self.files) > 3 else "")
        raise AtollError(f"Dataset {self.name!r} is not here and {reason}; put {listed} into {target}{hint}.")

    def _fetch(self, folder: Path) -> None:
        """Run only the download step of the PyG class: its constructor would also process the files, densely."""
        if self.archive:
            from torch_geometric.data import download_url, extract_zip

            extract_zip(download_url(self.archive, str(folder), log=False), str(folder), log=False)
            return
        import torch_geometric.datasets

        kind = getattr(torch_geometric.datasets, self.download)
        instance = kind.__new__(kind)
        instance.root, instance.name, instance.split, instance.geom_gcn_preprocess = str(folder), self.spelling, "public", True
        Path(instance.raw_dir).mkdir(parents=True, exist_ok=True)
        instance.download()


@cache
def catalog() -> Mapping[str, RawDataset]:
    """The entries of `catalog.toml` by name."""
    text = importlib.resources.files("atoll.data").joinpath("catalog.toml").read_text()
    return {name: RawDataset(name, **{**entry, "files": tuple(entry["files"])}) for name, entry in tomllib.loads(text).items()}


def cache_folder() -> Path:
    """Where downloads and processed graphs are kept."""
    return Path(os.environ.get("ATOLL_CACHE") or Path.home() / ".cache" / "atoll")


def raw_folder(name: str, files: Sequence[str]) -> Path | None:
    """The folder of that name, under ATOLL_DATA or the cache, that holds these files; None where there is none."""
    folders = [root / name for root in _roots()]
    return next((folder for folder in folders if all((folder / file).is_file() for file in files)), None)


def _roots() -> list[Path]:
    """The folders that may hold raw files, in the order in which they are searched."""
    data = os.environ.get("ATOLL_DATA")
    return [*([Path(data).expanduser()] if data else []), cache_folder() / "data"]


def _to_cache(path: Path, graph: Graph, folds: np.ndarray[Any, Any]) -> None:
    arrays: Arrays = files.arrays(graph) | {"folds": folds}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_npz(path, arrays)
        for other in path.parent.glob(f"{path.stem.rsplit('-', 1)[0]}-????????????????.npz"):
            if other != path and other.stat().st_mtime < path.stat().st_mtime - CACHE_SECONDS:
                other.unlink()
    except (OSError, AtollError):
        return  # a cache that cannot be written only costs time


def _from_cache(path: Path) -> tuple[Graph, np.ndarray[Any, Any]] | None:
    try:
        arrays = read_npz(path)
        return files.graph_of(arrays), arrays["folds"]
    except (ValueError, KeyError):
        return None
