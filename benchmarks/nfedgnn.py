"""nFedGNN: a cohort against one object a user on Cora, and rounds of up to a million users.

Cora: both take turns in one process, on the same server; a user of the plain version is an object with its whole W_i (1433 × 16)
and Adam. Synthetic users: average degree 10, 500 features of which 10 are not zero, 5 classes; a process for each size, so
that the peak memory is its own (the data included). Rounds are those of the runner, bill and checks included.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from atoll.algorithms import nfedgnn
from atoll.data.builder import build_graph
from atoll.graphs.graph import Graph
from atoll.runs import config, runner
from benchmarks import peak

warnings.filterwarnings("ignore")

SIZES = (10_000, 100_000, 1_000_000)
TURNS = 5


class User:
    """One user of the plain version."""

    def __init__(self, x: torch.Tensor, weight: torch.Tensor, settings: nfedgnn.Settings) -> None:
        self.x, self.weight = x, weight.clone().requires_grad_()
        self.adam = torch.optim.Adam([self.weight], lr=settings.lr, weight_decay=settings.weight_decay)

    def embed(self) -> torch.Tensor:
        self.latent = self.x @ self.weight
        return self.latent.detach()

    def update(self, gradient: torch.Tensor) -> None:
        self.adam.zero_grad()
        self.latent.backward(gradient)
        self.adam.step()


def seconds(function: Callable[[int], None], number: int) -> float:
    began = time.perf_counter()
    function(number)
    return time.perf_counter() - began


def cora() -> list[dict[str, Any]]:
    experiment = runner.prepare(config.resolve("nfedgnn", dataset="cora"))
    federation, settings = experiment.federation, experiment.config.settings
    federation.begin(0)
    state = plain_state = nfedgnn.start(federation, settings)
    x = torch.from_numpy(experiment.party_data.parts.nonzero_features.toarray())
    weight = nfedgnn.first_weight(settings, federation.schema, federation.seed)
    users = [User(row, weight, settings) for row in x]

    def together(number: int) -> None:
        nonlocal state
        federation.begin(number)
        state = nfedgnn.step(federation, state, settings)

    def one_by_one(number: int) -> None:
        nonlocal plain_state
        federation.begin(number)
        latent = torch.stack([user.embed() for user in users])
        plain_state, gradient = nfedgnn.descend(
            federation, plain_state | {"latent": latent}, settings, nfedgnn.laplacian(settings)
        )
        for user, own in zip(users, gradient, strict=True):
            user.update(own)

    for number in (1, 2):
        together(number)
        one_by_one(number)
    torch.testing.assert_close(state["latent"], plain_state["latent"], atol=1e-5, rtol=1e-5)
    fast, slow = [], []
    for turn in range(TURNS):  # 200 rounds of the one, a few of the other between them
        fast += [seconds(together, 3 + turn * 40 + number) for number in range(40)]
        slow.append(seconds(one_by_one, 3 + turn))
    ratio = float(np.mean(slow) / np.mean(fast))
    return [
        row("Cora, a cohort", len(users), float(np.mean(fast))),
        row("Cora, one object a user", len(users), float(np.mean(slow)), note=f"{ratio:.0f} × as long"),
    ]


def row(what: str, users: int, usual: float, peak: float | None = None, note: str = "") -> dict[str, Any]:
    memory = "" if peak is None else f"{peak:.2f}"
    return {"what": what, "seconds a round": usual, "users a second": users / usual, "peak GB": memory, "note": note}


def synthetic(users: int, degree: int = 10, features: int = 500, stored: int = 10, classes: int = 5) -> Graph:
    """Random users: one feature of every tenth of the columns, edges at random."""
    rng = np.random.default_rng(0)
    block = features // stored
    columns = rng.integers(0, block, (users, stored), dtype=np.int32) + np.arange(stored, dtype=np.int32) * block
    x = sp.csr_array(
        (rng.random(users * stored, np.float32) + 0.1, columns.ravel(), np.arange(users + 1) * stored), shape=(users, features)
    )
    edges = rng.integers(0, users, (2, users * degree // 2))
    role = rng.random(users)
    masks = (role < 0.1, (role >= 0.1) & (role < 0.2), role >= 0.2)
    return build_graph(x, edges, rng.integers(0, classes, users), masks, where="synthetic", num_classes=classes)


def measure(users: int) -> dict[str, Any]:
    """Rounds with this many users, in this process."""
    graph = synthetic(users)
    began = time.perf_counter()
    experiment = runner.prepare(config.resolve("nfedgnn", dataset="given", partition="node"), graph)
    federation, settings = experiment.federation, experiment.config.settings
    federation.begin(0)
    state = nfedgnn.start(federation, settings)
    ready, rounds, work = time.perf_counter() - began, [], []
    for number in range(1, TURNS + 1):
        federation.begin(number)
        began, busy = time.perf_counter(), time.process_time()
        state = nfedgnn.step(federation, state, settings)
        rounds.append(time.perf_counter() - began)
        work.append(time.process_time() - busy)
    began = time.perf_counter()
    with federation.evaluating():
        nfedgnn.evaluate(federation, state, settings)
    evaluation = time.perf_counter() - began
    held = peak()
    usual = float(np.median(rounds[1:]))
    note = f"{np.median(work[1:]):.3g} s of processor time; set-up {ready:.1f} s, an evaluation {evaluation:.2f} s"
    return row(f"{users:,} users", users, usual, held, note)


def main() -> list[dict[str, Any]]:
    rows = cora() if "ATOLL_DATA" in os.environ else []
    for users in SIZES:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.nfedgnn", str(users)], capture_output=True, text=True, check=True
        )
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    return rows


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(json.dumps(measure(int(argument)) if argument != "cora" else cora()))
