"""Three hospitals' tables, made up and messy, for the tutorial in docs/tutorial.md: `python hospitals.py [FOLDER]`.

Each hospital has `nodes.csv` (patients) and `edges.csv` (who shared a room), with `label` = infected or not, which is rare. As in
life, the files differ: columns stand in another order, values are missing, a ward exists in one hospital only, one writes dates
and booleans in its own way. `next_week` holds patients of the first hospital who arrived after training, without labels, some of
them in contact with patients of before; `next_week_outcomes.csv` says what became of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

HOSPITALS = {"north": 1400, "south": 1000, "west": 700}  # patients
WARDS = {
    "north": ["surgery", "icu", "general", "oncology"],
    "south": ["surgery", "icu", "general", "maternity"],
    "west": ["surgery", "general", "geriatrics"],
}
RISK = {"surgery": 0.5, "icu": 1.2, "general": 0.0, "oncology": 0.8, "maternity": -0.6, "geriatrics": 0.4}
ROOM = 5  # patients of a ward who share a room
VISITS = 2  # further contacts per patient, in the whole house
FIRST_DAY = pd.Timestamp("2026-01-05")
SHARE_INFECTED = 0.07


def hospital(
    name: str, patients: int, rng: np.random.Generator, first: int = 0, last: int = 180
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The patients of one hospital between two days, with the column `infected`, and the pairs who were in contact."""
    ward = rng.choice(WARDS[name], patients)
    age = np.clip(rng.normal(58, 19, patients), 0, 101).round()
    day = np.sort(rng.integers(first, last, patients))
    stay = rng.gamma(2.0, 3.0, patients)
    catheter = rng.random(patients) < 0.3
    crp = rng.lognormal(1.5, 0.9, patients)  # mg/l
    white_cells = rng.normal(7.5e9, 2.2e9, patients).clip(1e9)  # per liter
    contacts = _contacts(ward, day, rng)
    carrier = rng.random(patients) < 0.12  # colonized, unknown to anybody
    exposed = np.bincount(contacts[0], carrier[contacts[1]], patients) + np.bincount(contacts[1], carrier[contacts[0]], patients)
    marker = np.where(carrier, rng.normal(1.4, 1.0, patients), rng.normal(0.0, 1.0, patients))  # a noisy sign of it
    risk = (
        0.02 * (age - 58)
        + 0.09 * stay
        + 0.9 * catheter
        + 0.5 * np.log(crp)
        + 0.2 * (white_cells / 1e9 - 7.5)
        + np.vectorize(RISK.get)(ward)
        + 1.2 * exposed
        + rng.logistic(0, 0.8, patients)
    )
    ids = np.array([f"{name[0].upper()}{first:03d}-{number:05d}" for number in range(patients)])
    table = pd.DataFrame(
        {
            "patient": ids,
            "age": age,
            "ward": ward,
            "admitted": FIRST_DAY + pd.to_timedelta(day, unit="D"),
            "stay_days": stay.round(1),
            "catheter": catheter,
            "crp": crp.round(1),
            "white_cells": white_cells.round(-7),
            "marker": marker.round(2),
            "infected": risk > np.quantile(risk, 1 - SHARE_INFECTED),
        }
    )
    return table, pd.DataFrame({"source": ids[contacts[0]], "target": ids[contacts[1]]})


def _contacts(ward: np.ndarray, day: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(2, E) patients who shared a room (same ward, one after the other by day) or met elsewhere."""
    pairs = []
    for name in np.unique(ward):
        here = np.flatnonzero(ward == name)  # by day of admission
        for step in range(1, ROOM):
            together = np.flatnonzero(np.arange(len(here) - step) // ROOM == (np.arange(len(here) - step) + step) // ROOM)
            pairs.append(np.stack([here[together], here[together + step]]))
    met = rng.integers(0, len(ward), (2, VISITS * len(ward) // 2))
    pairs.append(met[:, (met[0] != met[1]) & (abs(day[met[0]] - day[met[1]]) < 30)])
    return np.concatenate(pairs, 1)


def messy(table: pd.DataFrame, name: str, rng: np.random.Generator) -> pd.DataFrame:
    """The table as that hospital keeps it."""
    table = table.copy()
    for column, share in {"crp": 0.25, "white_cells": 0.1, "age": 0.02, "ward": 0.03, "catheter": 0.05}.items():
        table[column] = table[column].astype(object).mask(rng.random(len(table)) < share)
    table["age"] = pd.to_numeric(table["age"]).astype("Int64")
    table["admitted"] = table["admitted"].dt.strftime("%Y-%m-%d")
    if name == "south":  # other words for the same, and a column order of its own
        table["catheter"] = table["catheter"].map({True: "yes", False: "no"})
        table = table[[*reversed(table.columns)]]
    if name == "west":
        table["ward"] = table["ward"].where(table["ward"].isna(), " " + table["ward"].astype(str) + " ")
        table.loc[rng.random(len(table)) < 0.004, "crp"] = 9999.0  # the laboratory's code for "too high"
    return table.rename(columns={"patient": "id", "infected": "label"})


def write(folder: Path, seed: int = 0) -> None:
    """Write all tables."""
    rng = np.random.default_rng(seed)
    for name, patients in HOSPITALS.items():
        table, contacts = hospital(name, patients, rng)
        table["infected"] = np.where(table["infected"], "infected", "healthy")
        _save(folder / "hospitals" / name, messy(table, name, rng), contacts)
    known = pd.read_csv(folder / "hospitals" / "north" / "nodes.csv")["id"]
    table, contacts = hospital("north", 150, rng, first=180, last=187)
    met = pd.DataFrame({"source": rng.choice(table["patient"], 40), "target": rng.choice(known[-100:], 40)})  # still there
    outcomes = table[["patient", "infected"]].rename(columns={"patient": "id", "infected": "label"})
    outcomes["label"] = np.where(outcomes["label"], "infected", "healthy")
    _save(folder / "next_week", messy(table.drop(columns="infected"), "north", rng), pd.concat([contacts, met]))
    outcomes.to_csv(folder / "next_week_outcomes.csv", index=False)


def _save(folder: Path, nodes: pd.DataFrame, edges: pd.DataFrame) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)


if __name__ == "__main__":
    write(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
