"""The column `weight` of a table of edges."""

from __future__ import annotations

import numpy as np

from atoll.data.column_values import numbers
from atoll.data.edge_weights import NAMES, REMEDY, Weights, first_invalid
from atoll.data.table_files import TableFile
from atoll.errors import AtollError


def weight_column(edges: TableFile) -> str | None:
    """The column with the weights of the edges; None where there is none."""
    plain = {str(name).strip().lower().replace(" ", "_"): str(name) for name in reversed(edges.frame.columns)}
    return next((plain[name] for name in NAMES if name in plain), None)


def weights_of(edges: TableFile, column: str) -> Weights:
    """The weights; one that is empty, negative or not a number is refused by its row."""
    values, wrong = numbers(edges, column)
    values = np.where(wrong, np.nan, values)
    if (row := first_invalid(values)) is not None:
        text = edges.texts(column)[row]
        problem = f"is '{text}'" if text else "is empty"
        raise AtollError(f"The weight (column `{column}`) in {edges.location(row)} {problem}; {REMEDY}.")
    return values
