"""Three hospitals' tables, made up and messy, for docs/tutorial.md: `python hospitals.py [FOLDER]`.

Each hospital has `nodes.csv` (patients) and `edges.csv` (who shared a room or met), with `label` = infected or healthy. One
patient in ten is infected, and whom a patient met matters: carriers infect others, and only a noisy `marker` hints at who is a
carrier. As in life, the files differ: columns stand in another order, values are missing, some wards exist in one hospital only,
one hospital writes booleans in its own way, another a code where its laboratory measured nothing.

`next_week` holds the patients whom the hospital `north` admits in the week after training, without labels; some of their contacts
are patients of before. `next_week_outcomes.csv` says what became of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"north": 2400, "south": 1400, "west": 800}  # patients
WARDS = {
    "north": ["surgery", "icu", "general", "oncology"],
    "south": ["surgery", "icu", "general", "maternity"],
    "west": ["surgery", "general", "geriatrics"],
}
RISK = {"surgery": 0.4, "icu": 1.0, "general": 0.0, "oncology": 0.6, "maternity": -0.5, "geriatrics": 0.4}
ROOM = 4  # patients of a ward who share a room
VISITS = 2  # further contacts per patient, in the whole house
DAYS = 180  # of the tables for training; the patients of the seven days after them are next week's
FIRST_DAY = pd.Timestamp("2026-01-05")
CARRIERS = 0.12
MISSING = {"crp": 0.25, "white_cells": 0.1, "age": 0.02, "ward": 0.03, "catheter": 0.05}  # share of the rows
UNMEASURED = 9999.0  # the code of west's laboratory


def hospital(name: str, patients: int, days: int, rng: np.random.Generator) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Patients in the order in which they were admitted, and the pairs who were in contact."""
    ward = rng.choice(WARDS[name], patients)
    age = np.clip(rng.normal(58, 19, patients), 0, 101).round()
    day = np.sort(rng.integers(0, days, patients))
    stay = rng.gamma(2.0, 3.0, patients)
    catheter = rng.random(patients) < 0.3
    crp = rng.lognormal(1.5, 0.9, patients)  # mg/l
    white_cells = rng.normal(7.5e9, 2.2e9, patients).clip(1e9)  # per liter
    carrier = rng.random(patients) < CARRIERS  # known to nobody
    marker = rng.normal(np.where(carrier, 3.0, 0.0), 1.0)
    pairs = contacts(ward, day, rng)
    exposure = np.bincount(pairs.ravel(), carrier[pairs[::-1]].ravel(), patients)  # carriers among a patient's contacts
    risk = (
        0.025 * (age - 58)
        + 0.1 * (stay - 6)
        + 1.0 * catheter
        + 0.6 * (np.log(crp) - 1.5)
        + 0.15 * (white_cells / 1e9 - 7.5)
        + np.vectorize(RISK.get)(ward)
        + 2.0 * exposure
        - 5.3
    )
    ids = np.array([f"{name[0].upper()}{number:05d}" for number in range(patients)])
    table = pd.DataFrame(
        {
            "id": ids,
            "age": age,
            "ward": ward,
            "admitted": FIRST_DAY + pd.to_timedelta(day, unit="D"),
            "stay_days": stay.round(1),
            "catheter": catheter,
            "crp": crp.round(1),
            "white_cells": white_cells.round(-7),
            "marker": marker.round(2),
            "label": np.where(rng.random(patients) < 1 / (1 + np.exp(-risk)), "infected", "healthy"),
        }
    )
    return table, pd.DataFrame({"source": ids[pairs[0]], "target": ids[pairs[1]]})


def contacts(ward: np.ndarray, day: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(2, E) patients who shared a room (of one ward, admitted one after the other) or met elsewhere within a month."""
    met = rng.integers(0, len(ward), (2, 4 * VISITS * len(ward)))
    near = (met[0] != met[1]) & (abs(day[met[0]] - day[met[1]]) < 30)
    pairs = [met[:, near][:, : VISITS * len(ward) // 2]]
    for name in np.unique(ward):
        here = np.flatnonzero(ward == name)
        for step in range(1, ROOM):
            first = np.arange(len(here) - step)
            first = first[first // ROOM == (first + step) // ROOM]
            pairs.append(np.stack([here[first], here[first + step]]))
    return np.unique(np.sort(np.concatenate(pairs, 1), 0), axis=1)


def messy(table: pd.DataFrame, name: str, rng: np.random.Generator) -> pd.DataFrame:
    """The table as that hospital keeps it."""
    table = table.copy()
    for column, share in MISSING.items():
        table[column] = table[column].astype(object).mask(rng.random(len(table)) < share)
    table["age"] = pd.to_numeric(table["age"]).astype("Int64")
    table["admitted"] = table["admitted"].dt.strftime("%Y-%m-%d")
    if name == "south":
        table["catheter"] = table["catheter"].map({True: "yes", False: "no"})
        table = table[[*reversed(table.columns)]]
    if name == "west":
        table["ward"] = " " + table["ward"] + " "
        table.loc[rng.random(len(table)) < 0.04, "crp"] = UNMEASURED
    return table


def write(folder: Path, seed: int = 0) -> None:
    """Write all tables."""
    rng = np.random.default_rng(seed)
    for name, patients in HOSPITALS.items():
        days = DAYS + 7 if name == "north" else DAYS
        table, pairs = hospital(name, patients, days, rng)
        kept = messy(table, name, rng)
        later = table["admitted"] >= FIRST_DAY + pd.Timedelta(days=DAYS)
        new = pairs.isin(set(table["id"][later])).any(axis=1)
        _save(folder / "hospitals" / name, kept[~later], pairs[~new])
        if later.any():
            _save(folder / "next_week", kept[later].drop(columns="label"), pairs[new])
            table.loc[later, ["id", "label"]].to_csv(folder / "next_week_outcomes.csv", index=False)


def _save(folder: Path, nodes: pd.DataFrame, edges: pd.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
