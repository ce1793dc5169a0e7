"""A round of every horizontal method on Cora's ten released parties as a multiple of FedAvg's, beside what arithmetic explains.

GCN with 64 hidden units, dropout 0.5, 5 local epochs, evaluation included, one thread. All take turns in one process; a figure is
the round with the least processor time of all turns, the first two of a turn left out (in these FedTAD makes its reliabilities).

What a round consists of is counted by hand: training steps, further forward passes, and passes over all parties' parameters. What
each takes is measured in the same run: a step from FedAvg with 5 and with 10 epochs. Other work, a server's distillation for
instance, is timed by itself, as bare products of its sizes.

One pass is one operation of two operands per number (a sum, a product); a step of Adam is two and a half, as it reads four and
writes three. A pass is priced as it is met in a round: tensors of the parameters' sizes, out of the cache, as a step goes
through more than the cache holds before they are used again. So each timed pass comes after one over 64 MB.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F

from atoll.federation.first_model import first_model
from atoll.graphs.views import view
from atoll.models.parameters import get_parameters
from atoll.runs import config, runner

E = 5
SWEPT = 1 << 24  # numbers, more than a cache holds
COMMON: dict[str, Any] = {"model": "gcn", "hidden": 64, "dropout": 0.5, "normalize_features": False, "patience": 0}


@dataclass(frozen=True)
class Work:
    """A round's work beside the evaluation, and the settings that it is for."""

    steps: float = E
    forwards: float = 0
    vectors: float = 0
    extra: str = ""
    what: str = ""
    settings: tuple[tuple[str, Any], ...] = ()


WORK = {
    "fedavg": Work(),
    "local": Work(),
    "fedprox": Work(vectors=2 * E, what="a difference, added to each gradient"),
    "scaffold": Work(vectors=E + 8, what="a correction of each gradient, the new control"),
    "moon": Work(forwards=2, vectors=4, what="two other models' representations, once a round"),
    "fedproto": Work(forwards=1, what="prototypes; sends no model"),
    "feddc": Work(vectors=3 * E + 10, what="a difference and a correction, added to each gradient, the drift, the last update"),
    "feddyn": Work(vectors=2 * E + 3, what="a difference, added to each gradient, the drift"),
    "fedopt": Work(what="an optimizer over one model"),
    "ditto": Work(2 * E, vectors=2 * E, what="two models, a difference, added to each gradient of one"),
    "apfl": Work(2 * E + 1, vectors=6 * E + 9, what="two models and their mixture"),
    "fedper": Work(),
    "fedrep": Work(1, forwards=10, what="10 steps of the head, each a whole forward pass", settings=(("epochs", 1),)),
    "fedbn": Work(what="batch norms"),
    "fedala": Work(E + 1, what="a step for the mixture"),
    "gcfl": Work(vectors=6, what="lengths of updates and their cosines"),
    "fedgta": Work(forwards=1, vectors=16, what="soft labels; a mixture of ten models for each party"),
    "fedpub": Work(
        vectors=9.5 * E + 24, extra="proxy", what="masks: products, gradients, Adam, penalties; mixtures; random graphs"
    ),
    "adafgl": Work(what="the shared stage"),
    "fgssl": Work(
        2 * E,
        forwards=E,
        vectors=E,
        extra="views",
        what="a step has three forward passes, two trained on, whose gradients are added",
    ),
    "fedsage": Work(what="mended graphs apart", settings=(("generator", "none"), ("model", "gcn"))),
    "fedtad": Work(extra="distillation", what="at the server 5 generator steps through all models, 25 of its model"),
    "fedgcn": Work(what="the exchange apart", settings=(("hops", 0),)),
}


class Contestant:
    """A method whose rounds are timed."""

    def __init__(self, name: str, rounds: int, epochs: int = E) -> None:
        own = {"epochs": epochs, "rounds": rounds} | dict(WORK[name].settings)
        values = COMMON | own | ({"shared_rounds": rounds - 1} if name == "adafgl" else {})
        self.experiment = runner.prepare(config.resolve(name, dataset="cora", partition="fedtad_cora_10", values=values))

    def turn(self) -> float:
        """Milliseconds of processor time of the fastest round; not the first two, and not the last (AdaFGL's personal stage)."""
        ends = [time.process_time()]
        runner.rounds(self.experiment, None, lambda row, total: ends.append(time.process_time()))
        return 1e3 * min(after - before for before, after in pairwise(ends[2:-1]))


def fastest(what: Callable[[], object], count: int = 20) -> float:
    """Milliseconds of the fastest of several calls."""
    best = float("inf")
    for _ in range(count):
        began = time.process_time()
        what()
        best = min(best, time.process_time() - began)
    return 1e3 * best


def streamed(parameters: list[torch.Tensor]) -> float:
    """Milliseconds of a pass over parameters that are not in the cache."""
    others, results = ([torch.ones_like(value) for value in parameters] for _ in range(2))
    swept, best = torch.zeros(SWEPT), float("inf")
    for _ in range(20):
        swept.add_(1)
        best = min(
            best,
            fastest(lambda: [torch.add(*part[:2], out=part[2]) for part in zip(parameters, others, results, strict=True)], 1),
        )
    return best


def units(contestant: Contestant) -> dict[str, float]:
    """Milliseconds of a forward pass in training, of a pass over all parties' parameters, and of what WORK names as extra."""
    contestant.experiment.federation.begin(1)
    cohort: Any = contestant.experiment.federation.engine.cohorts[0]
    graph, parameters = cohort.graph, list(get_parameters(cohort.model).values())
    weight = first_model(contestant.experiment.config.settings, cohort.schema, 0)["layers.0.weight"].reshape(
        graph.num_features, -1
    )
    proxy, draws = torch.randn(500, graph.num_features), cohort.draws()
    both = lambda: [view(graph, share, columns, draws) for share, columns in ((0.3, 0.3), (0.8, 0.5))]  # noqa: E731
    return {
        "forward": fastest(lambda: cohort.task.loss(cohort.output(graph, draws), graph)),
        "vector": streamed([value.detach() for value in parameters]),
        "proxy": graph.parties * fastest(lambda: proxy @ weight),
        "views": E * fastest(both),
        "distillation": distillation(weight, graph.parties, graph.num_classes),
    }


def distillation(weight: torch.Tensor, parties: int, classes: int) -> float:
    """The products of FedTAD's server in a round: 5 times 100 nodes, a step of the generator and five of the model."""
    wide = torch.randn(weight.shape[0], parties * weight.shape[1])
    student, top = weight.clone().requires_grad_(), torch.randn(weight.shape[1], classes)
    last, inner = torch.randn(256, weight.shape[0], requires_grad=True), torch.randn(100, 256)
    nodes, adam = torch.randn(100, weight.shape[0]), torch.optim.Adam([student, last], fused=True)

    def generate() -> None:
        made = inner @ last
        apart = torch.pdist(made, p=1).mean()
        ((made @ wide).relu().square().mean() + ((made @ student.detach()).relu() @ top).square().mean() + apart).backward()

    def distill() -> None:
        F.mse_loss((nodes @ student).relu() @ top, torch.zeros(100, classes)).backward()

    return 5 * (fastest(generate) + fastest(lambda: nodes @ wide)) + 25 * fastest(distill) + 15 * fastest(adam.step)


def main(rounds: int = 10, turns: int = 3) -> list[dict[str, object]]:
    """One row for each method."""
    warnings.filterwarnings("ignore")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    runs = {name: Contestant(name, rounds) for name in WORK} | {"twice": Contestant("fedavg", rounds, 2 * E)}
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(turns):
        for name, run in runs.items():
            best[name] = min(best[name], run.turn())
    unit = units(runs["fedavg"])
    step = (best["twice"] - best["fedavg"]) / E
    rest = best["fedavg"] - E * step
    rows: list[dict[str, object]] = []
    for name, work in WORK.items():
        told = rest + work.steps * step + work.forwards * unit["forward"] + work.vectors * unit["vector"]
        told += unit.get(work.extra, 0.0)
        counts = {"steps": work.steps, "forward passes": work.forwards, "vectors": work.vectors}
        ratios = {"of FedAvg's": f"{best[name] / best['fedavg']:.2f}", "explained": f"{told / best['fedavg']:.2f}"}
        rows.append({"method": name, "ms": best[name], **ratios, **counts, "beside FedAvg": work.what})
    print({name: round(value, 2) for name, value in {"step": step, "rest": rest, **unit}.items()})
    torch.set_num_threads(threads)
    return rows


if __name__ == "__main__":
    for row in main():
        print(row)
