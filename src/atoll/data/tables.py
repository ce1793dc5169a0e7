"""Own graphs as tables (`nodes` and `edges`, .parquet or .csv): reading with one clear sentence for each mistake, and writing."""

from __future__ import annotations

import csv
import re
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from atoll import storage
from atoll.data.builder import LARGEST, MOST_CLASSES, Ints, Masks, assemble
from atoll.data.doubts import mind_edges, mind_features
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph

RESERVED = ("id", "label", "split", "index")
SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}


@dataclass(frozen=True)
class Table:
    """A table, where it came from, and how to say where its row i stands."""

    frame: pd.DataFrame
    path: Path

    def place(self, row: int) -> str:
        """`line 7 of nodes.csv` as an editor counts, `row 5 of nodes.parquet` from 0."""
        number = int(self.frame.index[row])
        return f"line {number + 2} of {self.path}" if self.path.suffix == ".csv" else f"row {number} of {self.path}"

    def texts(self, column: str) -> NDArray[np.object_]:
        """The column as text, '' where there is nothing; whole floats (integers beside missing values) lose their .0."""
        values = self.frame[column]
        if pd.api.types.is_float_dtype(values.dtype):
            numbers = values.dropna()
            if ((numbers == numbers.round()) & (numbers.abs() < 2**53)).all():  # beyond, floats are not exact
                values = values.astype("Int64")
        texts = values.astype("string").fillna("").str.strip()
        return np.asarray(texts, dtype=object)


def read_tables(folder: Path, directed: bool) -> Graph:
    """The whole graph (P = 1) of a folder's `nodes` and `edges` tables."""
    nodes = _open(folder, "nodes", ("id",))
    edges = _open(folder, "edges", ("source", "target"))
    if len(nodes.frame) == 0:
        raise AtollError(f"{nodes.path} has no nodes; give at least one row.")
    ids = _ids(nodes)
    y, num_classes, names = _labels(nodes, folder)
    columns, x = _features(nodes)
    ends = _edges(edges, ids, nodes.path)
    graph = assemble(
        x.astype(np.float32),
        ends,
        y,
        _splits(nodes, y),
        where=str(folder),
        directed=directed,
        num_classes=num_classes,
        class_names=names,
        ids=_index(nodes),
        feature_names=columns,
    )
    extra = [str(column) for column in edges.frame.columns if column not in ("source", "target")]
    if extra:
        said = f"{edges.path}: only source and target are used; {', '.join(extra)} is ignored, edges have no weights here."
        warnings.warn(said, AtollWarning, stacklevel=3)
    mind_features(x, y, columns, str(nodes.path))
    mind_edges(ends, str(edges.path))
    return graph


def node_names(folder: Path) -> NDArray[np.object_]:
    """The nodes' ids as text, in the order in which `read_tables` gives their rows."""
    return np.asarray(_ids(_open(folder, "nodes", ("id",))), dtype=object)


def write_tables(graph: Graph, folder: Path, form: str) -> None:
    """`nodes` and `edges` tables and `classes.txt`; a node's id is its number in the whole graph."""
    x = graph.x.numpy() if isinstance(graph.x, torch.Tensor) else graph.x.toarray()
    roles = np.select([graph.train.numpy(), graph.val.numpy(), graph.test.numpy()], ["train", "val", "test"], "")
    names = graph.class_names or tuple(str(label) for label in range(graph.num_classes))
    labels = np.array([*names, ""], dtype=object)[graph.y.numpy()]  # −1 takes the last, empty one
    columns = {"id": np.arange(graph.num_nodes), "index": graph.ids.numpy(), "label": labels, "split": roles.astype(object)}
    features = graph.feature_names
    if features is None or {*features} & {*RESERVED}:
        features = tuple(f"x{column}" for column in range(x.shape[1]))
    nodes = pd.DataFrame(columns | {name: x[:, column] for column, name in enumerate(features)})
    source, target = graph.edge_index.numpy()
    edges = pd.DataFrame({"source": source, "target": target})
    for name, frame in (("nodes", nodes), ("edges", edges)):
        if form == "csv":
            frame.to_csv(folder / f"{name}.csv", index=False)
        else:
            frame.to_parquet(folder / f"{name}.parquet", index=False)
    storage.write_whole(folder / "classes.txt", "".join(f"{name}\n" for name in names).encode())


def _open(folder: Path, name: str, needed: tuple[str, ...]) -> Table:
    paths = [folder / f"{name}.{suffix}" for suffix in ("parquet", "csv")]
    found = [path for path in paths if path.is_file()]
    if not found:
        raise AtollError(f"{folder} has no {name}.parquet or {name}.csv; an own graph needs the tables `nodes` and `edges`.")
    if len(found) == 2:
        raise AtollError(f"{folder} has both {name}.parquet and {name}.csv; keep the one that counts.")
    frame = _read_csv(found[0]) if found[0].suffix == ".csv" else _read_parquet(found[0])
    for column in needed:
        if column not in frame.columns:
            listed = ", ".join(map(str, frame.columns[:8]))
            raise AtollError(f"{found[0]} has no column `{column}` (it has {listed}); add or rename it.")
    return Table(frame, found[0])


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # pyarrow raises many kinds
        raise AtollError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]}); write it again.") from error
    return frame.reset_index(drop=True)


def _read_csv(path: Path) -> pd.DataFrame:
    """The table with text ids, labels and splits; empty lines are skipped but counted."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = [name.strip() for name in next(csv.reader(file), [])]
        if not names:
            raise AtollError(f"{path} is empty; give a line of column names and a line a row.")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise AtollError(f"{path} has two columns named `{twice}`; name each once.")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                encoding="utf-8-sig",
                header=0,
                names=names,
                dtype={name: str for name in names if name in (*RESERVED, "source", "target")},
                index_col=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                keep_default_na=False,
                na_values=[""],
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        _refuse_ragged(path)
        raise AtollError(f"{path} cannot be read as CSV; check its quotes and commas.") from None
    except (UnicodeDecodeError, OSError, ValueError, csv.Error) as error:
        raise AtollError(f"{path} cannot be read as CSV ({str(error).splitlines()[0]}); save it as UTF-8 text.") from error
    if frame[names[-1]].isna().any():
        _refuse_ragged(path)  # a short line looks like one with an empty end
    return frame[~frame.isna().all(axis=1)]


def _refuse_ragged(path: Path) -> None:
    """Name the first line that has more or fewer fields than the header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        width = len(next(rows))
        for row in rows:
            if len(row) != width and any(field.strip() for field in row):
                raise AtollError(
                    f"Line {rows.line_num} of {path} has {len(row)} fields where the header has {width}; give it as many."
                )


def _ids(nodes: Table) -> pd.Index:
    texts = nodes.texts("id")
    missing = np.flatnonzero(texts == "")
    if len(missing):
        raise AtollError(f"The node in {nodes.place(missing[0])} has no id; give it one.")
    index = pd.Index(texts)
    if index.has_duplicates:
        row = int(np.flatnonzero(index.duplicated())[0])
        first = int(np.flatnonzero(texts == texts[row])[0])
        raise AtollError(
            f"Node id '{texts[row]}' in {nodes.place(row)} was already used in {nodes.place(first)}; make ids unique."
        )
    return index


def _features(nodes: Table) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The columns' names and their values, which fit into float32."""
    columns = [column for column in nodes.frame.columns if column not in RESERVED]
    if not columns:
        raise AtollError(
            f"{nodes.path} has no feature column beside {', '.join(RESERVED)}; add at least one (the degree is a start)."
        )
    numbers = nodes.frame[columns].apply(_numbers).to_numpy(np.float64)
    wrong = np.argwhere(~(np.abs(numbers) <= LARGEST))  # NaN and infinity, and what float32 cannot hold
    if len(wrong):
        row, column = wrong[0]
        value = nodes.frame[columns[column]].iloc[row]
        said = "is empty" if pd.api.types.is_scalar(value) and pd.isna(value) else f"is '{value}'"
        raise AtollError(
            f"Feature `{columns[column]}` in {nodes.place(row)} {said}; give a finite number or leave the column out."
        )
    return tuple(str(column) for column in columns), numbers


def _numbers(column: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(column.dtype) and not column.hasnans:
        return column.astype(np.float64)
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_timedelta64_dtype(column.dtype):
        return pd.Series(np.nan, column.index)  # a date is no number
    return pd.to_numeric(column, errors="coerce").astype(np.float64)


def _edges(edges: Table, ids: pd.Index, nodes: Path) -> Ints:
    ends = []
    for column in ("source", "target"):
        texts = edges.texts(column)
        place = ids.get_indexer(pd.Index(texts))
        unknown = np.flatnonzero(place < 0)
        if len(unknown):
            row = int(unknown[0])
            raise AtollError(
                f"The {column} '{texts[row]}' in {edges.place(row)} is no node of {nodes.name}; add the node or remove the edge."
            )
        ends.append(place.astype(np.int64))
    return np.stack(ends)


def _labels(nodes: Table, folder: Path) -> tuple[Ints, int, tuple[str, ...] | None]:
    """Classes as numbers, how many there are, and their names where they have names."""
    given = _classes(folder)
    if "label" not in nodes.frame.columns:
        return np.full(len(nodes.frame), -1, np.int64), len(given or ()), _unless_numbers(given)
    texts = nodes.texts("label")
    labelled = np.flatnonzero(texts != "")
    if given is None:
        numeric = np.array([bool(NUMBER.fullmatch(text)) for text in texts[labelled]], bool)
        if not numeric.any():
            given = tuple(sorted(set(texts[labelled])))
        else:
            y = np.full(len(texts), -1, np.int64)
            y[labelled] = [_class_number(text, nodes, int(row)) for text, row in zip(texts[labelled], labelled, strict=True)]
            return y, int(y.max(initial=-1)) + 1, None
    place = pd.Index(given).get_indexer(pd.Index(texts))
    wrong = labelled[place[labelled] < 0]
    if len(wrong):
        raise AtollError(
            f"Label '{texts[wrong[0]]}' in {nodes.place(int(wrong[0]))} is not among the classes of {folder / 'classes.txt'}; "
            "add it there or correct it."
        )
    return place.astype(np.int64), len(given), _unless_numbers(given)


def _unless_numbers(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Names that say more than 0, 1, 2, …"""
    return None if names is None or names == tuple(str(number) for number in range(len(names))) else names


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def _class_number(text: str, nodes: Table, row: int) -> int:
    if not re.fullmatch(r"\d+(\.0*)?", text) or float(text) >= MOST_CLASSES:
        raise AtollError(
            f"Label '{text}' in {nodes.place(row)} is no class; other labels are numbers, so write 0, 1, 2, … or leave it empty "
            "for an unlabelled node."
        )
    return int(float(text))


def _classes(folder: Path) -> tuple[str, ...] | None:
    path = folder / "classes.txt"
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AtollError(f"{path} cannot be read ({error}); save it as UTF-8 text, one class a line.") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names or len(set(names)) < len(names):
        raise AtollError(f"{path} must name each class once, one a line.")
    return names


def _splits(nodes: Table, y: Ints) -> Masks | None:
    if "split" not in nodes.frame.columns:
        return None
    texts = np.array([text.lower() for text in nodes.texts("split")], dtype=object)
    roles = np.array([SPLITS.get(text, -1) for text in texts])
    unknown = np.flatnonzero((roles < 0) & (texts != ""))
    if len(unknown):
        raise AtollError(
            f"Split '{texts[unknown[0]]}' in {nodes.place(unknown[0])} is unknown; write train, val, test or leave it empty."
        )
    unlabelled = np.flatnonzero((roles >= 0) & (y < 0))
    if len(unlabelled):
        row = int(unlabelled[0])
        raise AtollError(
            f"The node in {nodes.place(row)} has split '{texts[row]}' but no label; give it a label or leave the split empty."
        )
    return roles == 0, roles == 1, roles == 2


def _index(nodes: Table) -> Ints | None:
    if "index" not in nodes.frame.columns:
        return None
    texts = nodes.texts("index")
    wrong = [row for row, text in enumerate(texts) if not re.fullmatch(r"\d{1,18}", text)]
    if wrong:
        raise AtollError(
            f"Index '{texts[wrong[0]]}' in {nodes.place(wrong[0])} is no number of a node; count the federation's nodes from 0."
        )
    return texts.astype(np.int64)
