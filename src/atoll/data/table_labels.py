"""The column `label` of a table of nodes, and `classes.txt`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from atoll.data.builder import MAX_CLASSES, Ints
from atoll.data.table_files import TableFile
from atoll.errors import AtollError

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


def labels_of(nodes: TableFile, names: tuple[str, ...] | None, where: Path) -> tuple[Ints, int, tuple[str, ...] | None]:
    """Classes as numbers, their number, and their names where they have names; `names` are those of classes.txt."""
    if "label" not in nodes.frame.columns:
        return np.full(len(nodes.frame), -1, np.int64), len(names or ()), _unless_numbers(names)
    texts = nodes.texts("label")
    labeled = np.flatnonzero(texts != "")
    if names is None:
        numeric = np.array([bool(NUMBER.fullmatch(text)) for text in texts[labeled]], bool)
        if not numeric.any():
            names = tuple(sorted(set(texts[labeled])))
        else:
            y = np.full(len(texts), -1, np.int64)
            y[labeled] = [_class_number(text, nodes, int(row)) for text, row in zip(texts[labeled], labeled, strict=True)]
            return y, int(y.max(initial=-1)) + 1, None
    y = pd.Index(names).get_indexer(pd.Index(texts)).astype(np.int64)
    wrong = labeled[y[labeled] < 0]
    if len(wrong):
        raise AtollError(
            f"Label '{texts[wrong[0]]}' in {nodes.location(int(wrong[0]))} is not among the classes of {where / 'classes.txt'}; "
            "add it there or correct it."
        )
    return y, len(names), _unless_numbers(names)


def _unless_numbers(names: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The names, or None where they are only 0, 1, 2, …"""
    return None if names is None or names == tuple(str(number) for number in range(len(names))) else names


def _class_number(text: str, nodes: TableFile, row: int) -> int:
    if not re.fullmatch(r"\d+(\.0*)?", text) or float(text) >= MAX_CLASSES:
        raise AtollError(
            f"Label '{text}' in {nodes.location(row)} is not a class; other labels are numbers, so write 0, 1, 2, … or leave it "
            "empty for an unlabeled node."
        )
    return int(float(text))


def read_classes(folder: Path) -> tuple[str, ...] | None:
    """The classes of a folder's classes.txt; None where it has none."""
    path = folder / "classes.txt"
    if not path.is_file():
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise AtollError(f"{path} cannot be read ({error}); save it as UTF-8 text, one class per line.") from error
    names = tuple(line.strip() for line in lines if line.strip())
    if not names or len(set(names)) < len(names):
        raise AtollError(f"{path} must name each class once, one per line.")
    return names
