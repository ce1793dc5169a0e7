"""FedGL: Chen et al., "FedGL: Federated Graph Learning Framework with Global Self-Supervision", 2021, Algorithm 1.

FedAvg over overlapping parties; the server fuses what they predict for each node into pseudo labels and what they embed into a
pseudo graph, and sends both back. Without either (α = β = 0) it is FedAvg.

Payload bytes a round and party (w parameters, N nodes in all, C classes, s neighbors; α, β > 0, from the second round on):
down 4·w + 2·N + 8·N·s; up 4·w + 8 + 8·N·C + 4·N with `upload=sum`; up 4·w + 8 + N_k·(8·C + 4) with `upload=rows`.
An evaluation sends 4·w down, with `evaluate_pseudo_graph` 8·N·s more.
The server sees, with `upload=sum`, sums over the parties: of their models and, for each node, of predictions, embeddings and
weights; with `upload=rows` each party's model, nodes, predictions and embeddings. The parties see every node's pseudo label and
pseudo neighbors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from atoll.algorithms import State
from atoll.algorithms.fedgl.settings import Settings, check
from atoll.errors import AtollError, PartyFailure
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, Fields, first_model, verb
from atoll.federation.declarations import COUNTS, ROWS, WEIGHT, Case, Forms, Scalar, nodes, optional, ragged, real, share, whole
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.federation.memory import FRESH, NODE
from atoll.graphs import knn, minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.inference import in_blocks
from atoll.graphs.minibatch import MiniBatch
from atoll.models.backbone import Backbone
from atoll.models.batching import fan_outs
from atoll.models.parameters import choose, get_parameters, scale, weighted
from atoll.models.registry import find_model
from atoll.random import Draws
from atoll.tasks.node_classification import TASK, NodeClassification

SCENARIOS = ("overlapping", "horizontal")
EVALUATIONS = ("global", "union")
TASKS = ("node-classification",)
NUMBER = Scalar(0, "max_nodes", optional=True)  # N
STATE_AXES = {"nodes": FRESH, "predictions": NODE, "embeddings": NODE}

__all__ = ["EVALUATIONS", "SCENARIOS", "STATE_AXES", "TASKS", "Cohort", "Settings", "evaluate", "start", "step"]


def pseudo_graph_form(case: Case) -> Forms:
    """Ā as it is sent: of each node its pseudo neighbors and their weights."""
    count = case.argument("nodes")
    entries = knn.entries_per_row(case.settings.neighbors, count, itself=case.settings.count_itself)
    return {"columns": nodes(count, entries, below=count), "weights": share(count, entries)}


def message(case: Case) -> Forms:
    """What `fit` takes: N, and of each node its pseudo label and its pseudo neighbors."""
    labels = whole(case.argument("nodes"), low=-1, high=lambda case: case.schema.classes - 1, dtype=torch.int16)
    return {"model": MODEL, "nodes": NUMBER, "labels": optional(labels), "graph": optional(pseudo_graph_form(case))}


def judged(case: Case) -> Forms:
    """What `evaluate` takes: the model and, with `evaluate_pseudo_graph`, the pseudo graph."""
    return {"model": MODEL, "nodes": NUMBER, "graph": optional(pseudo_graph_form(case))}


def reply(case: Case) -> Forms:
    """What `fit` gives: beside the model P_k and H_k as far as they are needed, by the party's rows or by all nodes'."""
    s, count = case.settings, case.argument("nodes")
    forms: Forms = {"model": MODEL, "n": WEIGHT}
    if not (s.pseudo_label_weight or s.pseudo_graph_weight):
        return forms
    if s.upload == "rows":
        reported = {"predictions": share(ROWS, "classes"), "embeddings": real(ROWS, "classes"), "ids": nodes(ROWS, below=count)}
        reported = {name: ragged(form) for name, form in reported.items()}
    else:
        weighed = real(count, "classes", low=0, high="max_weight")
        held = real(*([count] if s.fusion == "holders" else []), low=0, high="max_weight")
        reported = {"predictions": weighed, "embeddings": real(count, "classes"), "held": held}
    unused = {
        name for name, needed in (("predictions", s.pseudo_label_weight), ("embeddings", s.pseudo_graph_weight)) if not needed
    }
    return {**forms, **{name: form for name, form in reported.items() if name not in unused}}


class Cohort(LocalTraining):
    """Parties that train the server's model with its pseudo labels over its pseudo graph."""

    settings: Settings
    task: NodeClassification
    about_nodes = ("nodes", "graph")

    @verb(public=True, takes={}, gives={"nodes": whole(low=1, high="max_nodes")})
    def count(self) -> Fields:
        """How far the numbers of the parties' nodes reach."""
        return {"nodes": torch.stack([ids.max() + 1 for ids in torch.split(self.graph.ids, self.graph.sizes)])}

    @verb(takes=message, gives=reply, averaged={"model": "n", "predictions": "held", "embeddings": "held"})
    def fit(self, model: Fields, nodes: int = 0, labels: Tensor | None = None, graph: dict[str, Tensor] | None = None) -> Fields:
        """Lines 5 to 8 of Algorithm 1."""
        local = self.complemented(nodes, graph)  # Eq. 9
        self.load(model)
        self.previous = model
        pseudo = None if labels is None else self.project(labels)  # Ȳ⁽ᵏ⁾
        self.sampled_from = local, pseudo
        self.train(local=local, pseudo=pseudo, added=graph)
        reply = {"model": weighted(self.model, self.weights), "n": self.weights}
        if self.settings.outputs == "before":
            self.load(self.previous)
        with torch.no_grad():
            return reply | self.upload(self.over(local), nodes)  # H_k, without dropout

    @verb(takes=judged, gives=COUNTS)
    def evaluate(self, model: Fields, nodes: int = 0, graph: dict[str, Tensor] | None = None) -> Fields:  # type: ignore[override]
        """Counts of the server's model at each party, over the pseudo graph if it is sent."""
        return self.task.counts(self.predict(model, nodes, graph), self.graph)

    def complemented(self, nodes: int, graph: dict[str, Tensor] | None) -> Graph:
        """The parties' graphs, each with its part of the pseudo graph."""
        if nodes and int(self.graph.host.ids.max()) >= nodes:
            raise PartyFailure(f"holds nodes beyond the {nodes} that the server knows of")
        return self.graph if graph is None else complement(self.graph, graph, self.settings)

    def epoch(self, draws: Draws) -> Iterator[Graph]:
        """The whole graph, or mini-batches of the nodes with a label, real or pseudo, sampled over the pseudo graph, too."""
        s, (local, pseudo) = self.settings, self.sampled_from
        if not self.batched:
            return super().epoch(draws)
        items = None if pseudo is None else self.graph.train | pseudo.train
        graph = self.graph if s.sampler == "clusters" else local
        return minibatch.epoch(graph, s.batch_size, fan_outs(s, self.hops), s.sampler, draws, items)

    def objective(
        self, batch: Graph, draws: Draws, local: Graph, pseudo: Graph | None, added: dict[str, Tensor] | None = None
    ) -> Tensor:
        """L_GCN + α·L_SSL; in a mini-batch of its nodes, clusters with their part of the pseudo graph."""
        if isinstance(batch, MiniBatch):
            local = batch if batch.sampled or added is None else complement(batch, added, self.settings)
            pseudo = pseudo and replace(batch, y=pseudo.y[batch.index], train=pseudo.train[batch.index])
        if self.settings.outputs == "before":
            before, active = get_parameters(self.model, copy=True), batch.active if isinstance(batch, MiniBatch) else None
            self.previous = before if active is None else choose(active, before, self.previous)  # of those who take the step
        logits = self.model(local, draws)
        loss = self.term(logits, batch)  # Eq. 4
        if pseudo is None:
            return loss
        return loss + self.settings.pseudo_label_weight * self.term(logits, pseudo, pseudo=True)  # Eqs. 7, 8

    def term(self, logits: Tensor, graph: Graph, *, pseudo: bool = False) -> Tensor:
        """The cross entropy of the training nodes of `graph`, whose labels are real or `pseudo`: Σ over the parties.

        Deviation: a mean over each party's nodes where the paper writes a sum (`loss=sum`), under which pseudo labels drown the
        real ones.
        """
        task = TASK if pseudo else self.task
        if self.settings.loss == "sum":
            return task.item_losses(logits, graph.y.masked_fill(~graph.train, -1)).sum()
        return task.loss(logits, graph, balance=pseudo and self.settings.balance_classes)

    def project(self, labels: Tensor) -> Graph:
        """The party's nodes with their pseudo labels, Fig. 4; those that have a real label to train on are left out."""
        pseudo = labels[self.graph.ids].long()
        return replace(self.graph, y=pseudo, train=(pseudo >= 0) & ~self.graph.train)

    def upload(self, embeddings: Tensor, nodes: int) -> Fields:
        """P_k and H_k as far as they are needed: N_k times each on the global rows (sum), or as they are (rows)."""
        s, graph = self.settings, self.graph
        reported = ({"predictions": embeddings.softmax(1)} if s.pseudo_label_weight else {}) | (
            {"embeddings": embeddings} if s.pseudo_graph_weight else {}
        )
        if not reported:
            return {}
        if s.upload == "rows":
            reported["ids"] = graph.ids.int()
            return {name: list(torch.split(rows, graph.sizes)) for name, rows in reported.items()}
        sizes = graph.ptr.diff().float()  # N_k
        held = self.scatter(sizes.new_ones(graph.num_nodes), nodes) if s.fusion == "holders" else torch.ones_like(sizes)
        on_rows = {name: self.scatter(rows, nodes) for name, rows in reported.items()} | {"held": held}
        return weighted(on_rows, sizes)

    def over(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, C) the output of the model as it stands; with mini-batches, in blocks of rows where there is no other attention."""
        stages = self.model.stages() if self.batched and (graph is self.graph or not self.model.attends) else None
        return self.output(graph, draws) if stages is None else in_blocks(stages, graph)

    def scatter(self, rows: Tensor, nodes: int) -> Tensor:
        """(n, …) → (P, N, …): each party's rows where its nodes stand among all, 0 elsewhere."""
        result = rows.new_zeros(self.graph.parties, nodes, *rows.shape[1:])
        result[self.graph.party, self.graph.ids] = rows
        return result

    def predict(self, model: Fields, nodes: int = 0, graph: dict[str, Tensor] | None = None) -> Tensor:
        """(N, C) the output of the server's model, over the pseudo graph if there is one."""
        self.load(model)
        return self.over(self.complemented(nodes, graph), self.evaluation_draws())

    def embeddings(self, model: Fields, nodes: int = 0, graph: dict[str, Tensor] | None = None) -> Tensor | None:
        """(N, h) its last hidden representation."""
        self.load(model)
        return self.hidden(self.complemented(nodes, graph))

    def party_models(self, model: Fields, nodes: int = 0, graph: dict[str, Tensor] | None = None) -> Backbone:
        """The server's model, where it predicts alone."""
        if graph is not None:
            raise AtollError(
                "This run is evaluated over its pseudo graph, which no exported model has; set evaluate_pseudo_graph=false."
            )
        self.load(model)
        return self.model


def start(federation: Federation, settings: Settings) -> State:
    """Line 1: a first model, no pseudo labels and no pseudo graph."""
    check(settings)
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
        message["graph"] = pseudo_graph(state["embeddings"], settings)
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


def pseudo_graph(embeddings: Tensor, settings: Settings) -> Fields:
    """Ā, Eq. 14: of each node its nearest and their weights, (N, s) each."""
    s = settings
    columns, weights = knn.nearest_neighbors(embeddings, s.neighbors, s.pseudo_graph, s.neighbor_search, itself=s.count_itself)
    return {"columns": columns, "weights": weights}


def complement(graph: Graph, pseudo: Fields, settings: Settings) -> Graph:
    """The graph with Ā added as Eq. 9 or the form that was chosen, for a model that convolves or one that attends."""
    add = knn.complement_attention if find_model(settings.model).attends else knn.complement
    return add(graph, **pseudo, beta=settings.pseudo_graph_weight, form=settings.pseudo_graph)


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Global goal: the model on the union of the parties' graphs. Local goal: at each party.

    Neither uses the pseudo graph unless `evaluate_pseudo_graph` is set: the last one, which line 16 sends with the model.
    """
    if not settings.evaluate_pseudo_graph or "embeddings" not in state:
        return metrics.evaluate_shared(federation, settings, state["model"])
    graph = pseudo_graph(state["embeddings"], settings)
    over = partial(complement, pseudo=graph, settings=settings)
    return metrics.evaluate_shared(federation, settings, state["model"], over, nodes=int(state["nodes"]), graph=graph)
