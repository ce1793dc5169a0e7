"""What every party has released: counted at the party before a reply leaves it, and never taken back.

A release of a Gaussian mechanism costs ρ = Δ² / 2σ² (zero-concentrated differential privacy, Bun and Steinke, TCC 2016). Costs
add up over releases, verbs and runs, and turn into (ε, δ) at the end. In a file every release is a line, on disk before the reply
is sent: a crash or a resume does not undo it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from atoll.errors import AtollError
from atoll.parties import Parties
from atoll.storage import append_line

FILE = "releases.jsonl"


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that a site does not go beyond, over all runs with its kit."""

    epsilon: float
    delta: float


class Releases:
    """The ρ each party has spent, in memory or, with a path, in a file that only grows."""

    def __init__(self, path: Path | None = None, run: str = "", budget: Budget | None = None, delta: float = 1e-5) -> None:
        """`run`: which lines of the file are of this run; the `budget` is for all of them, `delta` for this run's ε."""
        self.run = run
        self.budget = budget
        self.delta = delta
        self.costs = np.zeros(0)  # of this run, by party
        self.total = 0.0  # of all runs in the file
        self.path: Path | None = None
        if path is not None:
            self.keep(path)

    def keep(self, path: Path) -> None:
        """Write every release to this file from now on; those it holds count."""
        need_accountant()
        self.path = path
        for line in _lines(path):
            rho = math.inf if line["rho"] is None else float(line["rho"])
            self._add(line["run"], np.concatenate([np.arange(*span) for span in line["parties"]]), rho)

    def spend(self, parties: Parties, rho: float, verb: str = "", round: int = 0) -> None:
        """Count a release of these parties; refuse it where it goes beyond the budget."""
        if self.budget is not None:
            reached = epsilon_of(self.total + rho, self.budget.delta)
            if reached > self.budget.epsilon:
                raise AtollError(
                    f"this site insists on ε ≤ {self.budget.epsilon:g} at δ = {self.budget.delta:g} over all its runs, "
                    f"and another reply to {verb!r} would make it {reached:.4g}."
                )
        if self.path is not None:
            cost = rho if math.isfinite(rho) else None
            line = {"run": self.run, "round": round, "verb": verb, "rho": cost, "parties": _spans(parties.numbers)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, json.dumps(line))
        self._add(self.run, parties.numbers, rho)

    def most(self) -> float:
        """The ρ of the party that has spent most in this run."""
        return float(self.costs.max(initial=0.0))

    def epsilon(self) -> float:
        """ε of this run so far."""
        return epsilon_of(self.most(), self.delta)

    def _add(self, run: str, parties: np.ndarray[Any, np.dtype[np.int64]], rho: float) -> None:
        self.total += rho
        if run != self.run:
            return
        missing = int(parties.max(initial=-1)) + 1 - len(self.costs)
        if missing > 0:
            self.costs = np.pad(self.costs, (0, missing))
        self.costs[parties] += rho


@lru_cache(maxsize=64)
def epsilon_of(rho: float, delta: float) -> float:
    """ε at this δ of releases that cost ρ together, by Opacus' Rényi accountant: a Gaussian mechanism of that ρ."""
    if not rho:
        return 0.0
    if not math.isfinite(rho):
        return math.inf
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(math.sqrt(0.5 / rho), 1.0, 1)]
    return float(accountant.get_epsilon(delta))


def need_accountant() -> None:
    """Refuse to count without the accountant."""
    if find_spec("opacus") is None:
        raise AtollError("Counting privacy needs the package opacus; install atoll[deploy].")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The releases in a file; an unfinished last line does not count: its reply never left."""
    if not path.exists():
        return []
    try:
        data = path.read_bytes()
        lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].decode().splitlines()]
        if any(not {"run", "rho", "parties"} <= line.keys() for line in lines):
            raise ValueError("a line is not a release")
    except (OSError, ValueError, AttributeError) as error:
        raise AtollError(f"{path} is damaged ({error}): what was released cannot be told; restore it.") from error
    return lines


def _spans(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[int]]:
    """Ascending numbers as [first, end) spans."""
    breaks = (np.diff(numbers) != 1).nonzero()[0] + 1
    return [[int(span[0]), int(span[-1]) + 1] for span in np.split(numbers, breaks) if len(span)]
