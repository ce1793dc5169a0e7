"""The scores of given pairs of nodes, by a model of link prediction: no edge among the parties' own data says what is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.pairs import RIVAL, with_pairs

if TYPE_CHECKING:
    import pandas as pd

ENDS = ("source", "target")


def read_pairs(source: Any) -> pd.DataFrame:
    """The columns `source` and `target` of a .csv, a .parquet or a DataFrame, as text."""
    import pandas as pd

    where = "The pairs" if isinstance(source, pd.DataFrame) else str(source)
    if not isinstance(source, pd.DataFrame):
        path = Path(source).expanduser()
        if not path.is_file() or path.suffix not in (".csv", ".parquet"):
            raise AtollError(f"There is no file {path} of pairs; give a .csv or .parquet with the columns source and target.")
        source = pd.read_csv(path, dtype=str) if path.suffix == ".csv" else pd.read_parquet(path)
    if missing := [name for name in ENDS if name not in source.columns]:
        raise AtollError(f"{where} has no column {missing[0]!r}; pairs have the columns source and target.")
    frame = source[list(ENDS)]
    if bool(frame.isna().any(axis=None)) or not len(frame):
        raise AtollError(f"{where} has no pairs, or an empty end; give two nodes in every row.")
    return frame.astype(str)


def with_given_pairs(parts: Graph, frame: pd.DataFrame, number: int | None) -> tuple[Graph, NDArray[np.int64]]:
    """The parties' graphs with these pairs in place of their own, and which row each pair is from; `number` is the only party."""
    names = parts.ids.numpy().astype(str) if parts.node_names is None else parts.node_names.astype(str)
    held = np.arange(parts.num_nodes) if number is None else np.flatnonzero(parts.party.numpy() == number)
    known, first, counts = np.unique(names[held], return_index=True, return_counts=True)
    ends = []
    for name in ENDS:
        wanted = frame[name].to_numpy().astype(str)
        place = np.searchsorted(known, wanted).clip(max=max(len(known) - 1, 0))
        if len(unknown := np.flatnonzero(known[place] != wanted)):
            whose = "the training data" if number is None else "this party"
            raise AtollError(f"{str(wanted[unknown[0]])!r} is not a node of {whose}; correct the pair.")
        if len(shared := np.flatnonzero(counts[place] > 1)):
            raise AtollError(f"{str(wanted[shared[0]])!r} is a node of several parties; say with --party whose score is meant.")
        ends.append(torch.from_numpy(held[first[place]]))
    pairs = torch.stack(ends)
    owners = parts.party[pairs]
    if bool((owners[0] != owners[1]).any()):
        row = int((owners[0] != owners[1]).nonzero()[0])
        raise AtollError(
            f"{frame[ENDS[0]].iloc[row]!r} and {frame[ENDS[1]].iloc[row]!r} are at different parties; no party scores them."
        )
    order = owners[0].argsort(stable=True)
    nobody = torch.zeros(len(order), dtype=torch.bool)
    return with_pairs(parts, pairs[:, order], torch.full_like(order, RIVAL), nobody, nobody, nobody), order.numpy()
