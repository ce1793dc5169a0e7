"""The server's side of FedTAD: a generator of graphs on which parties' models teach the server's, class by class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.algorithms import State
from atoll.algorithms.fedtad.settings import Settings
from atoll.federation.cohort import Schema
from atoll.federation.first_model import backbone
from atoll.graphs.blocks import Blocks
from atoll.graphs.graph import Graph
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.layers import Dense
from atoll.models.parameters import Parameters, get_parameters, set_parameters
from atoll.random import SERVER, Draws

WIDTHS = (64, 128, 256)  # of the generator's hidden layers


class Generator(nn.Module):
    """[embedding of the class ‖ noise] → 64 → 128 → 256, tanh between layers, → d features; parameters as of one party."""

    def __init__(self, noise: int, classes: int, features: int, draws: Draws | None) -> None:
        super().__init__()
        embedding = torch.zeros(1, classes, classes) if draws is None else draws.normal(classes, classes)
        self.embedding = nn.Parameter(embedding)
        widths = [classes + noise, *WIDTHS, features]
        self.layers = nn.ModuleList(Dense(1, *pair, draws) for pair in pairwise(widths))

    def forward(self, classes: Tensor, noise: Tensor) -> Tensor:
        """(n,) classes, (n, z) noise → (n, d)."""
        blocks = Blocks([len(classes)])
        rows = torch.cat([self.embedding[0][classes], noise], 1)
        for index, layer in enumerate(self.layers):
            rows = layer(rows, blocks) if index == len(self.layers) - 1 else layer(rows, blocks).tanh()
        return rows


class Distillation:
    """One round's distillation, from the averaged model and the parties'.

    Attributes:
        student: the server's model θ, P = 1.
        teachers: the parties' models θ_k.
        generator: as it was left in the round before; so are both optimizers.
    """

    def __init__(
        self, settings: Settings, schema: Schema, student: Parameters, teachers: Parameters, shares: Tensor, before: State
    ) -> None:
        """`shares`: (P, C) the reliability of the parties' classes; `before`: what `state` gave in the round before."""
        self.settings, self.parties = settings, len(shares)
        undropped = replace(settings, input_dropout=0.0)  # generated features are dense, and not data
        self.student, self.teachers = loaded(undropped, schema, 1, student), loaded(undropped, schema, self.parties, teachers)
        self.teachers.requires_grad_(False)
        self.generator = Generator(settings.noise_width, schema.classes, schema.features, None)
        decay = settings.server_weight_decay
        self.student_optimizer = optim.Adam(self.student, settings.distillation_lr, decay)
        self.generator_optimizer = optim.Adam(self.generator, settings.generator_lr, decay)
        set_parameters(self.generator, before["generator"])
        self.student_optimizer.restore(before["student_optimizer"])
        self.generator_optimizer.restore(before["generator_optimizer"])
        self.classes = pseudo_labels(settings.generated_nodes, schema.classes)
        counts = torch.bincount(self.classes, minlength=schema.classes)
        self.weights = (shares / counts)[:, self.classes].flatten()  # (P·n,) Φ_kc / |nodes of c|
        self.num_classes = schema.classes

    def state(self) -> State:
        """The server's model, and what the next round goes on with."""
        return {
            "model": {name: value[0] for name, value in get_parameters(self.student).items()},
            "generator": get_parameters(self.generator),
            "student_optimizer": self.student_optimizer.state(),
            "generator_optimizer": self.generator_optimizer.state(),
        }

    def run(self, draws: Draws, dropped: Draws, teachers: Draws | None) -> None:
        """Lines 2 to 6: `draws` are the noise's, `dropped` the dropout's of the student; `teachers` theirs, in evaluation too."""
        s = self.settings
        always = dropped if s.evaluation_dropout else None
        for _ in range(s.server_steps):
            noise = draws.normal(s.generated_nodes, s.noise_width)[0]
            self.student.requires_grad_(False)  # or a layer would compute the gradients of weights, too
            for _ in range(s.generator_steps):
                optim.descend(self.generator_optimizer, self.generator_loss(noise, always, teachers))
            self.student.requires_grad_(True)
            with torch.no_grad():
                rows = self.generator(self.classes, noise)
            graphs = self.graphs(rows)
            answer = self.answers(graphs[1], teachers)
            expected = answer()
            for _ in range(s.distillation_steps):
                distance = self.divergence(self.student(graphs[0], dropped), expected)
                optim.descend(self.student_optimizer, self.weights @ distance)
                expected = answer() if s.evaluation_dropout else expected

    def generator_loss(self, noise: Tensor, student: Draws | None, teachers: Draws | None) -> Tensor:
        """λ₁·Σ Φ·CE(θ_k) − Σ Φ·D(θ, θ_k) + λ₂·P·diversity; D is for the student's output alone, as in the authors' code."""
        s = self.settings
        rows = self.generator(self.classes, noise)
        one, several = self.graphs(rows)
        said = self.teachers(several, teachers)
        semantic = self.weights @ F.cross_entropy(said, several.y, reduction="none")
        apart = self.weights @ self.divergence(self.student(one, student), said.detach())
        return s.semantic_weight * semantic - apart + s.diversity_weight * self.parties * diversity(noise, rows)

    def answers(self, graph: Graph, draws: Draws | None) -> Callable[[], Tensor]:
        """The teachers' logits on a graph, without gradients."""

        @torch.no_grad()
        def answer() -> Tensor:
            out: Tensor = self.teachers(graph, draws)
            return out

        return answer

    def divergence(self, student: Tensor, teachers: Tensor) -> Tensor:
        """(n, C), (P·n, C) → (P·n,) D of every node: KL(θ_k ‖ θ) of the predictions, or the mean difference of the logits."""
        student = student.repeat(self.parties, 1)
        if self.settings.divergence == "l1":
            return (student - teachers).abs().mean(1)
        return F.kl_div(student.log_softmax(1), teachers.log_softmax(1), reduction="none", log_target=True).sum(1)

    def graphs(self, rows: Tensor) -> tuple[Graph, Graph]:
        """Generated nodes, each joined to those with the largest cosines: once, and once for each teacher."""
        edges = nearest_edges(rows.detach(), self.settings.generated_neighbors)
        return graph_of(rows, edges, self.classes, 1, self.num_classes), graph_of(
            rows, edges, self.classes, self.parties, self.num_classes
        )


def loaded(settings: Settings, schema: Schema, parties: int, params: Parameters) -> Backbone:
    """The backbone of this number of parties with these parameters."""
    model = backbone(settings, schema, parties, None)
    set_parameters(model, params)
    return model


def first_state(settings: Settings, schema: Schema, model: Parameters, seed: int) -> State:
    """A first generator, and optimizers that have taken no step."""
    generator = Generator(settings.noise_width, schema.classes, schema.features, Draws(seed, [SERVER], "generator"))
    return {
        "generator": get_parameters(generator),
        "student_optimizer": optim.Adam({name: value[None] for name, value in model.items()}, 0.0).state(),
        "generator_optimizer": optim.Adam(generator, 0.0).state(),
    }


def pseudo_labels(nodes: int, classes: int) -> Tensor:
    """(n,) ⌊n/C⌋ of every class, in order; the last has the rest."""
    return (torch.arange(nodes) // max(nodes // classes, 1)).clamp(max=classes - 1)


def nearest_edges(rows: Tensor, neighbors: int) -> Tensor:
    """(2, E) both directions between every row and those with the largest cosines; the row itself, among them, gives no edge."""
    unit = F.normalize(rows, dim=1)
    near = (unit @ unit.t()).topk(neighbors, dim=1).indices
    joined = torch.zeros(len(rows), len(rows), dtype=torch.bool, device=rows.device).scatter_(1, near, True)
    joined |= joined.t().clone()
    return joined.fill_diagonal_(False).nonzero().t().contiguous()


def graph_of(rows: Tensor, edges: Tensor, classes: Tensor, copies: int, num_classes: int) -> Graph:
    """The same graph repeated, one block each; gradients reach the rows, not the edges."""
    count = len(rows)
    shift = (torch.arange(copies) * count)[:, None, None]
    x = rows.repeat(copies, 1)
    all_nodes = torch.ones(count * copies, dtype=torch.bool)
    graph = Graph(
        x=x,
        edge_index=(edges + shift).transpose(0, 1).reshape(2, -1),
        y=classes.repeat(copies),
        train=all_nodes,
        val=~all_nodes,
        test=~all_nodes,
        num_classes=num_classes,
        ids=torch.arange(count * copies),
        ptr=torch.arange(copies + 1) * count,
    )
    if x.requires_grad:
        graph.__dict__["features"] = x  # layers take rows with gradients as they are
    return graph


def diversity(noise: Tensor, rows: Tensor) -> Tensor:
    """exp(mean_ij(−‖z_i − z_j‖²/|z| · |x_i − x_j|₁/d)): small where different noise makes different nodes."""
    apart = torch.pdist(noise).square() / noise.shape[1]  # of every pair once: a node is not apart from itself
    return (-apart * torch.pdist(rows, p=1) / rows.shape[1]).sum().mul(2 / len(rows) ** 2).exp()
