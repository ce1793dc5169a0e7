"""FedGL: Chen et al., "FedGL: Federated Graph Learning Framework with Global Self-Supervision", 2021, Algorithm 1.

FedAvg over overlapping parties; the server fuses what they predict for each node into pseudo labels and what they embed into a
pseudo graph, and sends both back. Without either (α = β = 0) it is FedAvg.

Payload bytes a round and party (w parameters, N nodes in all, C classes, s neighbors; α, β > 0, from the second round on):
down 4·w + 2·N + 8·N·s; up 4·w + 8 + 8·N·C + 4·N with `upload=sum`; up 4·w + 8 + N_k·(8·C + 4) with `upload=rows`.
The server sees, with `upload=sum`, sums over the parties: of their models and, for each node, of predictions, embeddings and
weights; with `upload=rows` each party's model, nodes, predictions and embeddings. The parties see every node's pseudo label and
pseudo neighbors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll.algorithms import State, fedavg
from atoll.errors import AtollError, PartyFailure
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, Fields, first_model, verb
from atoll.federation.declarations import ROWS, WEIGHT, Case, Forms, Scalar, nodes, optional, ragged, real, share, whole
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.federation.memory import FRESH, NODE
from atoll.graphs import knn
from atoll.graphs.graph import Graph
from atoll.models.parameters import scale, weighted
from atoll.models.registry import find_model
from atoll.models.user import short_name
from atoll.random import Draws
from atoll.settings import setting
from atoll.tasks.node_classification import TASK

SCENARIOS = ("overlapping", "horizontal")
EVALUATIONS = ("global", "union")
TASKS = ("node-classification",)
STATE_AXES = {"nodes": FRESH, "predictions": NODE, "embeddings": NODE}


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and those of the global self-supervision."""

    pseudo_label_weight: float = setting(0.2, "α, the weight of the loss on pseudo labels; 0 turns them off.", low=0, was="alpha")
    pseudo_graph_weight: float = setting(1.0, "β, the weight of the pseudo graph; 0 turns it off.", low=0, was="beta")
    balance_classes: bool = setting(
        False,
        "Weight all classes of pseudo labels equally instead of all pseudo labels (the paper); for few labels per class.",
        was="balance",
    )
    pseudo_label_threshold: float = setting(
        0.5, "λ, the confidence above which a fused prediction becomes a pseudo label.", low=0, high=1, was="threshold"
    )
    neighbors: int = setting(
        10, "s, neighbors per node in the pseudo graph; the paper uses 100.", low=1, high=10**5, was="neighbours"
    )
    pseudo_graph: str = setting("joint", "How the pseudo graph is weighted.", choices=knn.FORMS)
    fusion: str = setting(
        "holders",
        "How a node's predictions and embeddings are averaged: over the parties that hold it, or divided by all parties' nodes.",
        choices=("holders", "literal"),
    )
    upload: str = setting(
        "sum", "Whether the server sees the parties' predictions and embeddings summed or row by row.", choices=("sum", "rows")
    )
    neighbor_search: str = setting(
        "exact",
        "How neighbors are found: exactly, by comparing all pairs block by block, or approximately, with faiss.",
        choices=("exact", "approximate"),
        was="search",
    )


def message(case: Case) -> Forms:
    """What `fit` takes: N, and of each node its pseudo label and its pseudo neighbors."""
    count = case.argument("nodes")
    neighbors = min(case.settings.neighbors, count)
    graph = {"columns": nodes(count, neighbors, below=count), "weights": share(count, neighbors)}
    labels = whole(count, low=-1, high=lambda case: case.schema.classes - 1, dtype=torch.int16)
    number = Scalar(0, "max_nodes", optional=True)
    return {"model": MODEL, "nodes": number, "labels": optional(labels), "graph": optional(graph)}


def reply(case: Case) -> Forms:
    """What `fit` gives: beside the model P_k and H_k as far as they are needed, by the party's rows or by all nodes'."""
    s, count = case.settings, case.argument("nodes")
    forms: Forms = {"model": MODEL, "n": WEIGHT}
    if not (s.pseudo_label_weight or s.pseudo_graph_weight):
        return forms
    if s.upload == "rows":
        told = {"predictions": share(ROWS, "classes"), "embeddings": real(ROWS, "classes"), "ids": nodes(ROWS, below=count)}
        told = {name: ragged(form) for name, form in told.items()}
    else:
        weighed = real(count, "classes", low=0, high="max_weight")
        held = real(*([count] if s.fusion == "holders" else []), low=0, high="max_weight")
        told = {"predictions": weighed, "embeddings": real(count, "classes"), "held": held}
    unused = {
        name for name, needed in (("predictions", s.pseudo_label_weight), ("embeddings", s.pseudo_graph_weight)) if not needed
    }
    return {**forms, **{name: form for name, form in told.items() if name not in unused}}


class Cohort(LocalTraining):
    """Parties that train the server's model with its pseudo labels over its pseudo graph."""

    settings: Settings

    @verb(public=True, takes={}, gives={"nodes": whole(low=1, high="max_nodes")})
    def count(self) -> Fields:
        """How far the numbers of the parties' nodes reach."""
        return {"nodes": torch.stack([ids.max() + 1 for ids in torch.split(self.graph.ids, self.graph.sizes)])}

    @verb(takes=message, gives=reply, averaged={"model": "n", "predictions": "held", "embeddings": "held"})
    def fit(self, model: Fields, nodes: int = 0, labels: Tensor | None = None, graph: dict[str, Tensor] | None = None) -> Fields:
        """Lines 5 to 8 of Algorithm 1."""
        s = self.settings
        if nodes and int(self.graph.ids.max()) >= nodes:
            raise PartyFailure(f"holds nodes beyond the {nodes} that the server knows of")
        local = (
            self.graph if graph is None else knn.complement(self.graph, **graph, beta=s.pseudo_graph_weight, form=s.pseudo_graph)
        )  # Eq. 9
        self.load(model)
        self.train(local=local, pseudo=None if labels is None else self.project(labels))  # Ȳ⁽ᵏ⁾
        reply = {"model": weighted(self.model, self.weights), "n": self.weights}
        with torch.no_grad():
            return reply | self.upload(self.model(local), nodes)  # H_k after training, without dropout

    def objective(self, batch: Graph, draws: Draws, local: Graph, pseudo: Graph | None) -> Tensor:
        """L_GCN + α·L_SSL."""
        logits = self.model(local, draws)
        loss = self.task.loss(logits, batch)  # Eq. 4
        if pseudo is None:
            return loss
        return loss + self.settings.pseudo_label_weight * TASK.loss(
            logits, pseudo, balance=self.settings.balance_classes
        )  # Eqs. 7, 8

    def project(self, labels: Tensor) -> Graph:
        """The party's nodes with their pseudo labels, Fig. 4; those that have a real label to train on are left out.

        Deviation: each term of Eq. 8 is a mean where the paper writes a sum, under which pseudo labels drown the real ones.
        """
        own = labels[self.graph.ids].long()
        return replace(self.graph, y=own, train=(own >= 0) & ~self.graph.train)

    def upload(self, embeddings: Tensor, nodes: int) -> Fields:
        """P_k and H_k as far as they are needed: N_k times each on the global rows (sum), or as they are (rows)."""
        s, graph = self.settings, self.graph
        told = ({"predictions": embeddings.softmax(1)} if s.pseudo_label_weight else {}) | (
            {"embeddings": embeddings} if s.pseudo_graph_weight else {}
        )
        if not told:
            return {}
        if s.upload == "rows":
            told["ids"] = graph.ids.int()
            return {name: list(torch.split(rows, graph.sizes)) for name, rows in told.items()}
        sizes = graph.ptr.diff().float()  # N_k
        held = self.scatter(torch.ones(graph.num_nodes), nodes) if s.fusion == "holders" else torch.ones(graph.parties)
        on_rows = {name: self.scatter(rows, nodes) for name, rows in told.items()} | {"held": held}
        return weighted(on_rows, sizes)

    def scatter(self, rows: Tensor, nodes: int) -> Tensor:
        """(n, …) → (P, N, …): each party's rows where its nodes stand among all, 0 elsewhere."""
        result = rows.new_zeros(self.graph.parties, nodes, *rows.shape[1:])
        result[self.graph.party, self.graph.ids] = rows
        return result


def start(federation: Federation, settings: Settings) -> State:
    """Line 1: a first model, no pseudo labels and no pseudo graph."""
    if settings.pseudo_graph_weight and not find_model(settings.model).weighted_edges:
        name = short_name(settings.model)
        raise AtollError(
            f"A pseudo graph has weights that {name} does not use; choose another model, or --set pseudo_graph_weight=0."
        )
    state: State = {"model": first_model(settings, federation.schema, federation.seed)}
    if settings.pseudo_label_weight or settings.pseudo_graph_weight:
        if federation.robust and (settings.upload, settings.fusion) != ("sum", "holders"):
            raise AtollError("Robust totals need to know who holds a node: use upload=sum and fusion=holders, or robust=none.")
        state["nodes"] = federation.ask("count").stack("nodes").max()
        if silent := federation.missing.keys() - federation.refused:  # who names an impossible number is left out
            raise AtollError(
                f"FedGL must know how many nodes there are: party {federation.name_of(min(silent))} does not answer."
            )
    return state


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Lines 3 to 16: the pseudo labels and pseudo graph of the last round go out, what the parties learn comes back."""
    message = {"model": state["model"]}
    if "nodes" in state:
        message["nodes"] = int(state["nodes"])
    if "predictions" in state:
        message["labels"] = pseudo_labels(state["predictions"], settings.pseudo_label_threshold)
    if "embeddings" in state:
        columns, weights = knn.nearest_neighbors(
            state["embeddings"], settings.neighbors, settings.pseudo_graph, settings.neighbor_search
        )
        message["graph"] = {"columns": columns, "weights": weights}
    total = gather(federation, message, settings)
    after: State = {"model": scale(total["model"], 1 / total["n"])}  # Eq. 10
    for name in ("predictions", "embeddings"):
        if name in total:
            after[name] = fuse(total[name], total["held"])  # Eqs. 11 and 13
    return state | after


def gather(federation: Federation, message: Fields, settings: Settings) -> Fields:
    """Sums over the parties: Σ N_k·W_k, for each node Σ N_k·P_k and Σ N_k·H_k, and Σ N_k over its holders or all parties."""
    if settings.upload == "sum" or "nodes" not in message:
        return federation.total("fit", **message)
    replies = federation.ask("fit", **message)
    sizes = [float(len(ids)) for ids in replies.stack("ids")]  # N_k
    total = replies.total(scatter="ids", size=message["nodes"], weights=sizes)
    total["held"] = torch.tensor(sum(sizes)) if settings.fusion == "literal" else total["ids"]
    return total


def fuse(total: Tensor, held: Tensor) -> Tensor:
    """Σ_k N_k/M·P_k; M are the nodes of the parties that hold the node or, taken literally, of all (`held` is a number).

    Deviation: with the paper's M, that of all parties, a node that few parties hold can never pass the threshold.
    """
    return total / (held if held.ndim == 0 else held.clamp(min=1)[:, None])


def pseudo_labels(predictions: Tensor, threshold: float) -> Tensor:
    """(N,) Ȳ, Eq. 12: the likeliest class where it is likelier than λ, else −1."""
    confidence, labels = predictions.max(1)
    return torch.where(confidence > threshold, labels, -1).short()


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Global goal: the model on the union of the parties' graphs. Local goal: at each party. Neither uses the pseudo graph."""
    return metrics.evaluate_shared(federation, settings, state["model"])
