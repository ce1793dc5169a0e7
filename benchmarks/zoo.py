"""A round of every horizontal method on Cora's ten released parties as a multiple of FedAvg's, beside what its arithmetic explains.

GCN with 64 hidden units, dropout 0.5, 5 local epochs, evaluation included. All take turns in one process; a figure is the fastest
round of all turns, the first two of a turn left out (in these FedSage+ makes its neighbors, FedTAD its reliabilities).

What a round consists of is counted by hand in COUNTS: training steps, further forward passes, and passes over all parties'
parameters. What each of these takes is measured in the same run: a step from FedAvg with 5 and with 10 epochs, the rest by itself.
Other work (a server's distillation, a random graph that models are compared on) is timed by itself in `extras`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from atoll.federation.first_model import first_model
from atoll.models.parameters import get_parameters
from atoll.runs import config, runner

E = 5
COMMON: dict[str, Any] = {"model": "gcn", "hidden": 64, "dropout": 0.5, "normalize_features": False, "patience": 0}


@dataclass(frozen=True)
class Counted:
    """A round's work: whole training steps, forward passes beside them, passes over all parties' parameters, and further seconds."""

    steps: float = E
    forwards: float = 0
    vectors: float = 0
    why: str = ""
    extra: str = ""
    settings: tuple[tuple[str, Any], ...] = ()


COUNTS: dict[str, Counted] = {
    "fedavg": Counted(),
    "local": Counted(),
    "fedprox": Counted(vectors=4 * E, why="the term and its gradient"),
    "scaffold": Counted(vectors=2 * E + 4, why="two vectors on each gradient; the new control"),
    "moon": Counted(forwards=2, why="two other models' representations, once a round"),
    "fedproto": Counted(forwards=1, why="prototypes"),
    "feddc": Counted(vectors=6 * E + 4, why="penalty and correction"),
    "feddyn": Counted(vectors=5 * E + 2, why="penalty and correction"),
    "fedopt": Counted(why="an optimizer over one model at the server"),
    "ditto": Counted(steps=2 * E, vectors=4 * E, why="two models"),
    "apfl": Counted(steps=2 * E, vectors=4 * E, why="two models"),
    "fedper": Counted(),
    "fedrep": Counted(steps=1, forwards=10 * 1.5, why="10 steps of the head, whose forward pass is a whole one"),
    "fedbn": Counted(why="and batch norms"),
    "fedala": Counted(steps=E + 1, vectors=6, why="a step of the mixture"),
    "gcfl": Counted(vectors=4, why="lengths and cosines of updates"),
    "fedgta": Counted(forwards=1, vectors=2, why="soft labels; a mixture for each party"),
    "fedpub": Counted(vectors=20 * E + 4, why="masks: products, gradients, their own Adam, penalties", extra="proxy"),
    "adafgl": Counted(),
    "fgssl": Counted(steps=2 * E, forwards=E, why="a step has two views and the teacher's", extra="views"),
    "fedsage": Counted(settings=(("generator", "none"), ("model", "gcn"))),
    "fedtad": Counted(why="25 steps over the parties' models at the server", extra="distillation"),
    "fedgcn": Counted(settings=(("hops", 0),)),
}


class Contestant:
    """A method whose rounds are timed."""

    def __init__(self, name: str, rounds: int, epochs: int = E) -> None:
        own = dict(COUNTS[name].settings) | {"epochs": 1 if name == "fedrep" else epochs, "rounds": rounds}
        values = COMMON | own | ({"shared_rounds": rounds - 1} if name == "adafgl" else {})
        chosen = config.resolve(name, dataset="cora", partition="fedtad_cora_10", values=values)
        self.experiment = runner.prepare(chosen)

    def turn(self) -> float:
        """Milliseconds of the fastest round after the first two; AdaFGL's last is of its personal stage and left out."""
        ends = [time.perf_counter()]
        runner.rounds(self.experiment, None, lambda row, total: ends.append(time.perf_counter()))
        spans = [after - before for before, after in zip(ends[2:-2], ends[3:-1], strict=True)]
        return 1e3 * min(spans)


def fastest(what: Callable[[], object], count: int) -> float:
    """Milliseconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(count):
        began = time.perf_counter()
        what()
        best = min(best, time.perf_counter() - began)
    return 1e3 * best


def units(contestant: Contestant, count: int) -> dict[str, float]:
    """Milliseconds of a forward pass, of a pass over all parties' parameters, and of the work that COUNTS names."""
    cohort: Any = contestant.experiment.federation.engine.cohorts[0]
    graph, schema = cohort.graph, cohort.schema
    parameters = torch.cat([value.flatten() for value in get_parameters(cohort.model).values()])
    with torch.no_grad():
        forward = fastest(lambda: cohort.model(graph), count)
        vector = fastest(lambda: parameters * 1.5, count)
    w = first_model(contestant.experiment.config.settings, schema, 0)["layers.0.weight"].reshape(schema.features, -1)
    proxy = torch.randn(500, schema.features)
    return {"forward": forward, "vector": vector, "proxy": graph.parties * fastest(lambda: proxy @ w, count)} | {
        "views": E * 2 * fastest(lambda: graph.x.copy(), count),
        "distillation": server_distillation(w, graph.parties, schema.classes, count),
    }


def server_distillation(w: torch.Tensor, parties: int, classes: int, count: int) -> float:
    """25 distillation steps and 5 generator steps of FedTAD's on 100 generated nodes, without its graph: dense products alone."""
    nodes = torch.randn(100, w.shape[0])
    student = w.clone().requires_grad_()
    last = torch.randn(256, w.shape[0], requires_grad=True)
    noise, top = torch.randn(100, 256), torch.randn(w.shape[1], classes)

    def distill() -> None:
        told = [(nodes @ w).relu() @ top for _ in range(parties)]
        out = (nodes @ student).relu() @ top
        torch.stack([F.mse_loss(out, each) for each in told]).sum().backward()

    def generate() -> None:
        made = noise @ last
        torch.stack([((made @ w).relu() @ top).square().mean() for _ in range(parties + 1)]).sum().backward()

    adam = torch.optim.Adam([student, last])
    return 5 * fastest(generate, count) + 25 * fastest(distill, count) + 30 * fastest(adam.step, count)


def main(rounds: int = 8, turns: int = 3) -> list[dict[str, object]]:
    warnings.filterwarnings("ignore")
    runs = {name: Contestant(name, rounds) for name in COUNTS} | {"twice": Contestant("fedavg", rounds, 2 * E)}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(turns):
        for name, run in runs.items():
            best[name] = min(best[name], run.turn())
    unit = units(runs["fedavg"], 20)
    step = (best["twice"] - best["fedavg"]) / E
    rest = best["fedavg"] - E * step
    rows: list[dict[str, object]] = []
    for name, counted in COUNTS.items():
        told = rest + counted.steps * step + counted.forwards * unit["forward"] + counted.vectors * unit["vector"]
        told += unit.get(counted.extra, 0.0)
        rows.append(
            {
                "method": name,
                "ms": best[name],
                "of FedAvg's": best[name] / best["fedavg"],
                "explained": told / best["fedavg"],
                "steps": counted.steps,
                "forward passes": counted.forwards,
                "vectors": counted.vectors,
                "": counted.why,
            }
        )
    return rows


if __name__ == "__main__":
    for row in main():
        print(row)
