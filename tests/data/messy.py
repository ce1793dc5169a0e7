"""A messy table of patients: text ids, categories, missing values, booleans, dates, numbers of any scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd


def patients(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """The table as texts and numbers, with None where a value is missing."""
    rng = np.random.default_rng(seed)
    wards = rng.choice(["icu", "surgery", "general", "zebra"], rows, p=[0.2, 0.3, 0.48, 0.02])
    admitted = pd.Timestamp("2025-01-01") + pd.to_timedelta(rng.integers(0, 365, rows), unit="D")
    frame = pd.DataFrame(
        {
            "id": [f"p-{number:04d}" for number in range(rows)],
            "age": rng.normal(60, 15, rows).round(1),
            "charge": np.exp(rng.normal(8, 2, rows)),
            "year": rng.integers(1990, 2020, rows),
            "ward": wards,
            "smoker": rng.choice(["yes", "no"], rows),
            "admitted": admitted.strftime("%Y-%m-%d"),
            "label": rng.choice(["home", "ward"], rows),
        }
    ).astype(object)
    for column in ("age", "ward", "smoker", "admitted"):
        frame.loc[rng.random(rows) < 0.1, column] = None
    return frame


def write(frame: pd.DataFrame, folder: Path, features: str = "") -> Path:
    """A folder with the nodes in a ring."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / "nodes.csv", index=False)
    ids = frame["id"].tolist()
    pd.DataFrame({"source": ids, "target": [*ids[1:], ids[0]]}).to_csv(folder / "edges.csv", index=False)
    if features:
        (folder / "features.toml").write_text(features)
    return folder
