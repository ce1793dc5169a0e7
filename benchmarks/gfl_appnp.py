"""A GFL-APPNP round, evaluation included: atoll against a bare loop of the same arithmetic, against Jacobians, and in memory.

The bare loop is the exact short cut for one vector a node with nothing around it: no federation, no ledger, no descriptions. The
Jacobian path is atoll's own, all messages written out (`Explicit`), on a piece of Cora. Contestants take turns in one process; a
figure is the fastest turn, in processor time, so that it holds on a busy machine. Written Jacobians are large and new in every
round: how long they take depends on whether freed memory is kept (`atoll.allocator`), so that is measured with and without.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from atoll import allocator as memory
from atoll.algorithms import gfl_appnp
from atoll.graphs.sparse import csr, multiply
from atoll.runs import config, runner
from atoll.runs.runner import Experiment
from benchmarks import peak

warnings.filterwarnings("ignore")

WHOLE = ("cora", "citeseer", "pubmed")


class Bare:
    """Rounds of the short cut by hand."""

    def __init__(self, experiment: Experiment) -> None:
        s, graph = experiment.config.settings, experiment.party_data.whole
        self.teleport, self.steps, self.local_steps, self.lr = s.teleport, s.steps, s.local_steps, s.lr
        source, target = graph.edge_index.numpy()
        n = graph.num_nodes
        looped = sp.csr_array((np.ones(len(source)), (target, source)), shape=(n, n)) + sp.eye_array(n, format="csr")
        scale = sp.diags_array(np.asarray(looped.sum(1)) ** -0.5)
        self.a = csr(scale @ looped @ scale)
        x = sp.csr_array(graph.x)
        self.x, self.xt = csr(x), csr(sp.csr_array(x.T.tocsr()))
        self.train, self.y = graph.train.nonzero()[:, 0], graph.y
        k = len(self.train)
        chosen = torch.zeros(n, k)
        chosen[self.train, torch.arange(k)] = 1
        rows = self.spread(chosen).t().contiguous()
        self.own = rows[torch.arange(k), self.train].clone()  # Ã_kk
        rows[torch.arange(k), self.train] = 0
        self.rows = rows  # A_o
        gram = torch.from_numpy((x[self.train.numpy()] @ x.T).toarray())
        self.coupling = (rows * gram).contiguous()
        self.norm = gram[torch.arange(k), self.train, None].clone()
        self.x_train = csr(sp.csr_array(x[self.train.numpy()].T.tocsr()))
        self.targets = F.one_hot(graph.y[self.train], graph.num_classes).float()
        self.masks = [mask.nonzero()[:, 0] for mask in (graph.train, graph.val, graph.test)]
        self.first, self.second = gfl_appnp.start(experiment.federation, s)["model"].values()

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        result = values
        for _ in range(self.steps):
            result = multiply(self.a, result).lerp_(values, self.teleport)
        return result

    def round(self) -> None:
        first, second, lr = self.first, self.second, self.lr
        inner = multiply(self.x, first)
        active, hidden = (inner > 0).float(), inner.relu()
        context = self.rows @ (hidden @ second)
        reached, others, before = self.coupling @ active, self.rows @ hidden, inner[self.train]
        own, steered = torch.zeros_like(before), torch.zeros_like(context)
        seconds = second.repeat(len(self.train), 1, 1)
        for _ in range(self.local_steps):
            r = (before - (steered @ second.t()) * reached - self.norm * own).relu_()
            outputs = torch.bmm(r[:, None], seconds)[:, 0]
            errors = (self.own[:, None] * outputs + context).softmax(1) - self.targets
            own += (lr * self.own)[:, None] * torch.bmm(seconds, errors[:, :, None])[:, :, 0] * (r > 0)
            steered += lr * errors
            seconds -= lr * ((self.own[:, None] * r + others)[:, :, None] * errors[:, None])
        k = len(self.train)
        moved = multiply(self.xt, active * (self.rows.t() @ (steered @ second.t())))
        self.first = first - (moved + multiply(self.x_train, own)) / k
        self.second = seconds.mean(0)
        logits = self.spread(multiply(self.x, self.first).relu_() @ self.second)
        for mask in self.masks:  # loss, accuracy and, for the macro F1, confusion: what a round's metrics are made of
            rows, y = logits[mask], self.y[mask]
            F.cross_entropy(rows, y).item()
            guesses = rows.argmax(1)
            (guesses == y).sum().item()
            torch.bincount(y * rows.shape[1] + guesses, minlength=rows.shape[1] ** 2).tolist()


def experiment_on(dataset: str, **values: object) -> Experiment:
    return runner.prepare(config.resolve("gfl_appnp", dataset=dataset, values=values))


class Ours:
    """Rounds of atoll, one at a time."""

    def __init__(self, experiment: Experiment) -> None:
        self.federation, self.settings = experiment.federation, experiment.config.settings
        self.federation.begin(0)
        self.state = gfl_appnp.start(self.federation, self.settings)
        self.number = 0

    def round(self) -> None:
        self.number += 1
        self.federation.begin(self.number)
        self.state = gfl_appnp.step(self.federation, self.state, self.settings)
        with self.federation.evaluating():
            gfl_appnp.evaluate(self.federation, self.state, self.settings)


def turns(contestants: dict[str, tuple[Callable[[], None], int]], count: int) -> dict[str, float]:
    """The fastest turn of each, in milliseconds a round."""
    best = dict.fromkeys(contestants, float("inf"))
    for step, _ in contestants.values():
        step()  # what is made once is not part of a round
    for _ in range(count):
        for name, (step, rounds) in contestants.items():
            began = time.process_time()
            for _ in range(rounds):
                step()
            best[name] = min(best[name], (time.process_time() - began) / rounds * 1e3)
    return best


def against_bare(dataset: str, rounds: int = 10, count: int = 7) -> dict[str, object]:
    experiment = experiment_on(dataset)
    bare, ours = Bare(experiment), Ours(experiment)
    best = turns({"atoll": (ours.round, rounds), "bare": (bare.round, rounds)}, count)
    for mine, theirs in zip(ours.state["model"].values(), (bare.first, bare.second), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=1e-4)
    what = f"gfl_appnp round on {dataset}: atoll, against a bare loop ({best['bare']:.1f} ms)"
    return {"what": what, "ms": best["atoll"], "atoll is": f"{best['atoll'] / best['bare']:.2f} ×"}


def against_jacobians(allocator: str) -> dict[str, object]:
    if allocator == "default":
        memory.keep_freed_blocks = lambda: None  # type: ignore[assignment]
    fast, slow = Ours(experiment_on("subcora")), Ours(experiment_on("subcora", amnesia=True))
    best = turns({"fast": (fast.round, 20), "slow": (slow.round, 1)}, 3)
    kept = "freed memory kept" if allocator == "kept" else "the C library's own allocator"
    what = f"gfl_appnp round on subcora: atoll, against written Jacobians ({best['slow']:.0f} ms), {kept}"
    return {"what": what, "ms": best["fast"], "atoll is": f"{best['fast'] / best['slow']:.2g} ×"}


def most_training() -> None:
    """PubMed with 60 % of the nodes training."""
    ours = Ours(experiment_on("pubmed", split="random", train=0.6, val=0.2, test=0.2))
    began = time.process_time()
    ours.round()
    first = time.process_time() - began
    began = time.process_time()
    for _ in range(2):
        ours.round()
    held = peak()
    print(f"{(time.process_time() - began) / 2 * 1e3:.0f} {first:.0f} {held:.2f}")


def main() -> list[dict[str, object]]:
    rows = [against_bare(dataset) for dataset in WHOLE]
    rows += [json.loads(alone("jacobians", allocator)) for allocator in ("kept", "default")]
    ms, first, held = alone("memory").split()
    what = f"gfl_appnp round on pubmed, 60 % training, peak {held} GB (first round {first} s)"
    return [*rows, {"what": what, "ms": float(ms), "atoll is": ""}]


def alone(*arguments: str) -> str:
    """What a process of its own prints: the allocator and the peak are a process's."""
    command = [sys.executable, "-m", "benchmarks.gfl_appnp", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] == ["memory"]:
        most_training()
    elif sys.argv[1:2] == ["jacobians"]:
        print(json.dumps(against_jacobians(sys.argv[2])))
    else:
        for row in [against_bare(name) for name in sys.argv[1:]] or main():
            print(row)
