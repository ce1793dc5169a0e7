"""FGSSL: Huang, Wan, Ye & Du, IJCAI 2023. FedAvg whose parties learn from the shared model on two random views of their graphs.

On a weak view the shared model, which stays as it was received, is the teacher; the party's model sees a strong view. Nodes of
one class are to be alike in both (semantics), and a node's neighbors are to resemble it as much in both (structure).

In mini-batches views are drawn once per epoch, for whole graphs, and sampled. A batch contrasts its own nodes, and distills the
structure between them and sampled neighbors; since all nodes have such a structure, an epoch then passes over all of them.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes; views never leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import EVALUATIONS, SCENARIOS, evaluate, start, step
from atoll.federation.cohort import Fields, backbone
from atoll.graphs import minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.masks import node_weights
from atoll.graphs.minibatch import MiniBatch
from atoll.graphs.views import view
from atoll.models.batching import fan_outs
from atoll.models.parameters import get_parameters, set_parameters
from atoll.random import Draws
from atoll.settings import BatchedTraining, setting

__all__ = ["EVALUATIONS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]

TASKS = ("node-classification",)
Pair = tuple[Tensor, Tensor]  # hidden representations, logits


@dataclass(frozen=True)
class Settings(fedavg.Averaging, BatchedTraining):
    """FedAvg's settings, mini-batches, the views, the contrast and the distillation."""

    variant: str = setting(
        "paper",
        "The paper, the authors' code (contrast=self, structure=none) or OpenFGL (contrast=none, structure=edges).",
        choices=("paper", "authors", "openfgl"),
    )
    contrast: str = setting(
        "global",
        "What the party's strong view is contrasted with: the shared model's weak view, the party's own, both, or nothing.",
        choices=("global", "self", "both", "none"),
    )
    structure: str = setting(
        "neighbors",
        "What is distilled: how much a node resembles each neighbor, in which columns the ends of an edge differ, or nothing.",
        choices=("neighbors", "edges", "none"),
    )
    contrast_weight: float = setting(1.5, "Weight λ_C of the contrast.", low=0)
    structure_weight: float = setting(1.0, "Weight λ_D of the structure's distillation.", low=0)
    contrast_temperature: float = setting(0.1, "Temperature τ of the contrast.", low=1e-3)
    structure_temperature: float = setting(0.1, "Temperature ω of the structure's distillation.", low=1e-3)
    weak_edges: float = setting(0.3, "Share of edges that the weak view leaves out.", low=0, high=1)
    weak_columns: float = setting(0.3, "Share of feature columns that the weak view masks.", low=0, high=1)
    strong_edges: float = setting(0.8, "Share of edges that the strong view leaves out.", low=0, high=1)
    strong_columns: float = setting(0.5, "Share of feature columns that the strong view masks.", low=0, high=1)


class Cohort(fedavg.Cohort):
    """FedAvg's parties with a teacher for each round."""

    settings: Settings

    def setup(self) -> None:
        """A network for the shared model as it was received."""
        super().setup()
        self.teacher = backbone(self.settings, self.schema, self.graph.parties, None, device=self.device)

    def load(self, model: Fields | None = None) -> None:
        """w_k ← w, which is the teacher of the training that follows."""
        super().load(model)
        set_parameters(self.teacher, get_parameters(self.model))

    def objective(self, batch: Graph, draws: Draws, model: Fields) -> Tensor:
        """CE on the whole graph + λ_C·contrast + λ_D·structure; without both nothing is drawn."""
        s = self.settings
        loss = self.task.loss(self.output(batch, draws), batch)
        contrast = s.contrast if s.contrast_weight else "none"
        structure = s.structure if self.distills else "none"
        if contrast == structure == "none":
            return loss
        weak, strong, graph, counted = self.compared(batch, draws)
        student = self.model.embed_and_output(strong, draws)
        teacher = self.taught(weak) if contrast in ("global", "both") or structure != "none" else student
        if contrast in ("global", "both"):
            loss = loss + s.contrast_weight * self.semantics(student[0], teacher[0], graph)
        if contrast in ("self", "both"):
            loss = loss + s.contrast_weight * self.semantics(student[0], self.model.embed_and_output(weak, draws)[0], graph)
        if structure == "neighbors":
            loss = loss + s.structure_weight * self.neighbors(student[1], teacher[1], graph, counted)
        elif structure == "edges":
            loss = loss + s.structure_weight * self.edges(student[0], teacher[0], graph)
        return loss

    def epoch(self, draws: Draws) -> Iterator[Graph]:
        """Mini-batches of all nodes where structure is distilled, else of the training nodes; views are drawn with the first."""
        s = self.settings
        if not self.batched:
            return super().epoch(draws)
        self.sampling, self.views = draws, list[Graph]()
        items = torch.ones_like(self.graph.train) if self.distills else None
        return minibatch.epoch(self.graph, s.batch_size, fan_outs(s, self.hops), s.sampler, draws, items)

    @property
    def distills(self) -> bool:
        """Whether structure is distilled."""
        return self.settings.structure != "none" and self.settings.structure_weight > 0

    def compared(self, batch: Graph, draws: Draws) -> tuple[Graph, Graph, Graph, Tensor | None]:
        """The weak and the strong view; the nodes that both are of, with edges, and which of these count (None for all)."""
        s = self.settings
        if not isinstance(batch, MiniBatch):
            weak, strong = (view(batch, *shares, draws) for shares in self.shares)
            return weak, strong, batch, None
        if not self.views:  # in an epoch's first step, which all parties take, whoever else has more batches
            self.views = [view(self.graph, *shares, draws) for shares in self.shares]
        graph: Graph = batch
        rows, counted = batch.index.cpu().numpy(), None
        if self.distills and batch.sampled is not None:  # clusters have edges of their own
            around = minibatch.Sampled(self.graph, rows, s.fan_out[:1], s.sampler, self.sampling)
            (graph, inside), rows = around.union, around.rows
            counted = torch.zeros_like(graph.train)
            counted[inside] = True
            graph = replace(graph, train=graph.train & counted)
        numbers = fan_outs(s, self.hops)
        weak, strong = (minibatch.batch_of(one, rows, numbers, s.sampler, self.sampling) for one in self.views)
        return weak, strong, graph, counted

    @property
    def shares(self) -> list[tuple[float, float]]:
        """What the weak and the strong view leave out: shares of edges and of columns."""
        s = self.settings
        return [(s.weak_edges, s.weak_columns), (s.strong_edges, s.strong_columns)]

    @torch.no_grad()
    def taught(self, graph: Graph) -> Pair:
        """What the shared model makes of a view, without dropout."""
        return self.teacher.embed_and_output(graph)

    def semantics(self, anchors: Tensor, samples: Tensor, graph: Graph) -> Tensor:
        """Σ_k mean_i −(1/|pos_i|) Σ_{j ∈ pos_i} log(e^{cos/τ} / Σ_l e^{cos/τ}) over training nodes; pos_i: those of i's class."""
        total = anchors.new_zeros(())
        labeled = graph.train & (graph.y >= 0)
        for first, last in graph.blocks.ranges:
            rows = labeled[first:last].nonzero()[:, 0] + first
            if len(rows):
                cosines = F.normalize(anchors[rows], dim=1) @ F.normalize(samples[rows], dim=1).t()
                same = (graph.y[rows][:, None] == graph.y[rows]).float()
                logs = (cosines / self.settings.contrast_temperature).log_softmax(1)
                total = total - ((logs * same).sum(1) / same.sum(1)).mean()
        return total

    def neighbors(self, student: Tensor, teacher: Tensor, graph: Graph, counted: Tensor | None = None) -> Tensor:
        """Σ_k mean_i KL(teacher ‖ student) of softmax_j(cos(y_i, y_j)/ω) over j ∈ N(i) ∪ i, for the nodes i that count."""
        nodes = torch.arange(graph.num_nodes, device=graph.device) if counted is None else counted.nonzero()[:, 0]
        source, target = torch.cat([graph.edge_index[0], nodes]), torch.cat([graph.edge_index[1], nodes])
        given, wanted = (self.log_shares(rows, source, target) for rows in (student, teacher))
        return node_weights(graph, counted)[target] @ (wanted.exp() * (wanted - given))

    def log_shares(self, rows: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """(E,) log softmax over the entries of each target; cosines are at most 1, which is taken off."""
        unit = F.normalize(rows, dim=1)
        scores = ((unit[source] * unit[target]).sum(1) - 1) / self.settings.structure_temperature
        return scores - scores.new_zeros(len(rows)).index_add(0, target, scores.exp()).log()[target]

    def edges(self, student: Tensor, teacher: Tensor, graph: Graph) -> Tensor:
        """Σ_k mean over edges of KL(teacher ‖ student) of softmax(|h_i − h_j|/ω) over columns (OpenFGL)."""
        source, target = graph.edge_index
        given, wanted = (
            ((rows[source] - rows[target]).abs() / self.settings.structure_temperature).log_softmax(1)
            for rows in (student, teacher)
        )
        party = graph.party[target]
        each = 1 / torch.bincount(party, minlength=graph.parties).clamp(min=1)
        return each[party] @ (wanted.exp() * (wanted - given)).sum(1)
