"""FedGCN: Yao et al., NeurIPS 2023. Sums over neighbors are exchanged once, those at other parties included; then FedAvg.

An edge between two parties is known to both ends' owners, by the other end's number. Before the first round parties send, of
each node at a border, their share of Σ_{j ∈ N(i) ∪ i} Â_ij·x_j; the server adds the shares and returns to each party the rows of
its own nodes (1 hop) and those of their neighbors elsewhere (2 hops). Layer 1 then has its exact input, and with 2 hops a
two-layer GCN its exact output. With `hops=0` it is FedAvg with equal weights.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (1 with `weighting=parties`). Before the first round, d
features, R nodes at borders of which a party needs the rows of M: up 4·M for their numbers, down 4·R, up 4·(d + 2)·R, down
4·(d + 1)·M.
Deviation: the paper's sparse sums are 4·d·M up; here every party sends R rows, zeros where it has no share: these can be masked.
The server sees the numbers of the nodes that each party needs (their owner has edges to other parties), the sums of the rows, of
their degrees and of how many parties fed each; then the sum of the parties' models, and of the weights. Every party sees the
numbers of all these nodes, not whose they are.
Deviation: a party can subtract its own share from a row; a row that only one other party fed is left out (`min_contributors`),
or sent with noise, as what remains is that party's, perhaps of a single node. The paper sends all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import EVALUATIONS, step
from atoll.algorithms.fedgcn.settings import Settings
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, verb
from atoll.federation.declarations import ROWS, nodes, ragged, real
from atoll.federation.federation import Federation
from atoll.graphs import minibatch
from atoll.graphs.border_batches import BorderBatch, with_sums
from atoll.graphs.border_sums import ExchangedGraph, exchanged, needed_rows, shares
from atoll.graphs.graph import Graph
from atoll.models.batching import fan_outs
from atoll.random import SERVER, Draws

__all__ = ["EVALUATIONS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step", "wants_borders"]

SCENARIOS = ("horizontal",)
TASKS = ("node-classification",)
NO_PROPAGATE_FIRST = "the sums that parties exchange take its place"
NO_NORM = "its networks also compute nodes of other parties, whose statistics are not the party's"
NUMBERS = nodes(ROWS, below=lambda case: case.nodes)
MAX_NUMBERS = 1 << 26  # of all parties' shares in one message


def wants_borders(settings: Settings) -> bool:
    """Whether edges between parties are needed."""
    return settings.hops > 0


class Cohort(fedavg.Cohort):
    """FedAvg's parties, whose networks begin with the exchanged sums."""

    memory = {"optimizer": PARTY, "sums": PARTY}
    graph_memory = frozenset({"sums"})  # other nodes have exchanged nothing: they are predicted on their party's own graph
    one_graph = "the sums that its parties exchange are those of one graph"
    no_backbone = "its parties predict with sums that they exchanged, which an export lacks"
    settings: Settings

    def setup(self) -> None:
        """Nothing has been received."""
        super().setup()
        self.sums = [torch.empty(0, self.schema.features + 1, device=self.device)] * self.graph.parties  # (M_k, d + 1)

    @verb(public=True, takes={}, gives={"rows": ragged(NUMBERS)})
    def border(self) -> Fields:
        """The numbers of the nodes whose rows each party needs, ascending."""
        s = self.settings
        return {"rows": [rows.int() for rows in needed_rows(self.graph, min(s.hops, s.layers))]}

    @verb(
        takes={"rows": NUMBERS},
        gives=lambda case: {"shares": real(case.length("rows"), case.schema.features + 2)},
    )
    def contribute(self, rows: Tensor) -> Fields:
        """The party's share of these nodes' sums, of their degrees, and 1 where it has any."""
        numbers = rows.long().cpu()
        return {"shares": shares(self.graph, numbers, self.settings.normalization).to(self.device)}

    @verb(takes={"sums": ragged(real(ROWS, lambda case: case.schema.features + 1))}, gives={})
    def receive(self, sums: list[Tensor]) -> None:
        """Keep the rows and degrees of the nodes that the party asked for; a degree of 0 stands for no row."""
        self.sums = sums

    def output(self, graph: Graph, draws: Any = None) -> Tensor:
        """(N, C) with the exchanged sums in the place of the first propagation."""
        out: Tensor = self.model(graph if isinstance(graph, BorderBatch) else self.bordered(graph), draws)
        return out

    @property
    def hops(self) -> int | None:
        """One less than the network's where the first propagation is done."""
        hops = self.model.hops
        return None if hops is None else hops - min(self.settings.hops, 1)

    def epoch(self, draws: Draws) -> Iterator[Graph]:
        """The whole graph, or mini-batches over the exchanged sums."""
        s, graph = self.settings, self.graph
        if not self.batched or not s.hops:
            yield from super().epoch(draws)
            return
        numbers = fan_outs(s, self.hops)
        for batch in minibatch.epoch(graph, s.batch_size, numbers, s.sampler, draws):
            yield with_sums(batch, self.exchanged(graph), numbers or [0], draws)

    def hidden(self, graph: Graph) -> Tensor | None:
        """(N, h) what the last layer takes of the party's own nodes."""
        return self.model.embed_and_output(self.bordered(graph))[0]

    def bordered(self, graph: Graph) -> Graph:
        """The graph with its exchanged sums; the graph itself where there are none."""
        s = self.settings
        if not s.hops or (s.normalization == "sym" and not any(len(rows) for rows in self.sums)):
            return graph
        return self.exchanged(graph)

    def exchanged(self, graph: Graph) -> ExchangedGraph:
        """The graph with its exchanged sums, made once."""
        s = self.settings
        held = graph.__dict__.get("_exchanged")
        if held is None or any(one is not other for one, other in zip(held[0], self.sums, strict=True)):
            held = list(self.sums), exchanged(graph, self.sums, min(s.hops, s.layers), s.normalization)
            graph.__dict__["_exchanged"] = held
        made: ExchangedGraph = held[1]
        return made


def start(federation: Federation, settings: Settings) -> State:
    """The exchange, and a first model."""
    if settings.hops:
        exchange(federation, settings)
    return fedavg.start(federation, settings)


def exchange(federation: Federation, settings: Settings) -> None:
    """Ask which rows are needed, add the shares of these, and return each party those that it needs."""
    asked = federation.ask("border")
    needed: list[Tensor] = asked.fields["rows"]
    rows = torch.unique(torch.cat(needed))
    if not len(rows):
        return
    step = max(1, MAX_NUMBERS // ((federation.schema.features + 2) * len(federation.parties)))
    total = torch.cat([federation.total("contribute", rows=piece)["shares"] for piece in rows.split(step)])
    sums = released(total, settings, federation.seed)
    present = asked.parties.without(federation.missing)
    each = [sums[torch.searchsorted(rows, needed[asked.parties.index(party)])] for party in present]
    federation.tell("receive", to=present, each={"sums": each})


def released(total: Tensor, settings: Settings, seed: int) -> Tensor:
    """(R, d + 1) sums and degrees of what may be returned: rows that too few parties fed have degree 0, or noise."""
    sums = total[:, :-1].clone()
    lone = total[:, -1] <= settings.min_contributors  # the party that receives a row has fed it, too
    if settings.min_contributors == 1:  # every row, those of directed edges as well that the one who receives them has not fed
        return sums
    if settings.lone_rows == "suppress":
        sums[lone] = 0
    else:
        noise = Draws(seed, [SERVER], "rows").normal(len(sums), sums.shape[1] - 1)[0]
        sums[:, :-1] += settings.row_noise * noise * lone[:, None]
    return sums


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes, each with its exchanged sums."""
    raw = settings.hops and settings.normalization == "none"
    over = (lambda whole: exchanged(whole, [torch.empty(0, whole.num_features + 1)], 1, "none")) if raw else None
    return metrics.evaluate_shared(federation, settings, state["model"], over)
