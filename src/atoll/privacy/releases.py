"""The privacy cost of what each party has released: counted at the party before a reply leaves, and never undone.

A release of a Gaussian mechanism costs ρ = Δ² / 2σ² (zero-concentrated differential privacy, Bun and Steinke, TCC 2016). Costs
add up over releases, verbs and runs, and are converted to (ε, δ) at the end. In a file each release is a line, on disk before the
reply is sent, so neither a crash nor a resume undoes it. Each line holds a checksum of itself and all lines before it.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from atoll.errors import AtollError
from atoll.parties import Parties
from atoll.storage import append_line

RELEASES_FILE = "releases.jsonl"
LOW_ORDERS = [1 + 2.0**-power for power in range(20, 3, -1)]  # Rényi orders beside the accountant's own
HIGH_ORDERS = [2.0 ** (power / 4) for power in range(24, 120)]


@dataclass(frozen=True)
class Budget:
    """The (ε, δ) that a site must not exceed over all runs with its kit."""

    epsilon: float
    delta: float


class Releases:
    """The ρ that each party has spent, in memory or, with a path, in an append-only file."""

    def __init__(self, path: Path | None = None, run: str = "", budget: Budget | None = None, delta: float = 1e-5) -> None:
        """`run` selects this run's lines of the file; `budget` applies to all lines, `delta` to this run's ε."""
        self.run = run
        self.budget = budget
        self.delta = delta
        self.costs = np.zeros(0)  # of this run, by party
        self.total = 0.0  # of all runs in the file
        self.path: Path | None = None
        self.check = ""  # the checksum of the file's last line
        self.length = 0  # of the file, as this process left it
        if path is not None:
            self.keep(path)

    def keep(self, path: Path) -> None:
        """Write all releases to this file from now on; those already in it count."""
        require_accountant()
        self.path, self.length = path, _length(path)
        for line in _lines(path):
            rho = math.inf if line["rho"] is None else float(line["rho"])
            self._add(line["run"], np.concatenate([np.arange(*span) for span in line["parties"]]), rho)
            self.check = line["check"]

    def spend(self, parties: Parties, rho: float, verb: str = "", round: int = 0) -> None:
        """Count one release by each of these parties; refuse it if it exceeds the budget."""
        if len(np.unique(parties.numbers)) < max(len(parties), 1):
            raise AtollError(f"a reply to {verb!r} is from no party, or from one more than once.")
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
            self._write(self.path, line)
        self._add(self.run, parties.numbers, rho)

    def _write(self, path: Path, line: dict[str, Any]) -> None:
        if _length(path) != self.length:
            raise AtollError(f"{path} was changed by another program, so what was released is not known; restore it.")
        check = _chained(self.check, line)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            append_line(path, json.dumps(line | {"check": check}))
        finally:
            self.length = _length(path)
        self.check = check

    def most(self) -> float:
        """The largest ρ that a party has spent in this run."""
        return float(self.costs.max(initial=0.0))

    def epsilon(self) -> float:
        """The ε of this run so far."""
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
    """ε at this δ of releases with total cost ρ, by Opacus's Rényi accountant, as of one Gaussian mechanism with that ρ."""
    if not rho:
        return 0.0
    if not math.isfinite(rho):
        return math.inf
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(math.sqrt(0.5 / rho), 1.0, 1)]
    orders = (
        LOW_ORDERS + RDPAccountant.DEFAULT_ALPHAS + HIGH_ORDERS
    )  # with its default orders alone, ε never falls below 0.1 at δ = 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the best order is the first or last
        return max(0.0, float(accountant.get_epsilon(delta, alphas=orders)))  # negative if δ alone is enough


def require_accountant() -> None:
    """Refuse, with what to install, if the accountant is missing."""
    if find_spec("opacus") is None:
        raise AtollError("Counting privacy needs the package opacus; install atoll[deploy].")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The releases in a file; an unfinished last line is ignored: its reply never left."""
    if not path.exists():
        return []
    try:
        data = path.read_bytes()
        lines = [json.loads(line) for line in data[: data.rfind(b"\n") + 1].decode().splitlines()]
        check = ""
        for number, line in enumerate(lines, 1):
            if line.get("check") != (check := _chained(check, {name: line[name] for name in line if name != "check"})):
                raise ValueError(f"the checksum of line {number} does not match")
    except (OSError, ValueError, AttributeError) as error:
        raise AtollError(f"{path} is damaged ({error}), so what was released is not known; restore it.") from error
    return lines


def _chained(before: str, line: dict[str, Any]) -> str:
    """The checksum of a line that follows the one with the checksum `before`."""
    return hashlib.sha256(f"{before}{json.dumps(line)}".encode()).hexdigest()[:32]


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _spans(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> list[list[int]]:
    """Ascending numbers as [first, end) spans."""
    breaks = (np.diff(numbers) != 1).nonzero()[0] + 1
    return [[int(span[0]), int(span[-1]) + 1] for span in np.split(numbers, breaks) if len(span)]
