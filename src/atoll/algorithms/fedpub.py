"""FED-PUB: Baek et al., ICML 2023. Parties with similar models help each other more, each through a mask of its own.

A party's network multiplies the server's weights by masks that it learns and keeps. The server computes how similar two parties'
are by what their networks give for the same random graphs, and sends every party its own mixture of all models.

Payload bytes per round and party, w parameters, w_m of them in weight matrices, h columns of the functional embedding: down 4·w,
up 4·(w + h). With `upload_masks` 4·w_m more in both directions. Evaluation sends 4·w down, unless it judges trained models.
The server sees *each party's* model after training and its functional embedding (with `upload_masks` its masks, too):
similarities are between pairs, which is why `fit` cannot be asked under secure aggregation. A party never learns the weights of
its mixture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atoll.algorithms import State
from atoll.algorithms.fedavg import SCENARIOS, TARGETS
from atoll.device import CPU
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, Schema, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, Case, Forms, optional, real
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.federation.first_model import embedding_width
from atoll.federation.local_training import LocalTraining
from atoll.graphs.graph import Graph
from atoll.graphs.inference import Stage
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.gcn_head import GCNHead
from atoll.models.optim import Optimizer
from atoll.models.parameters import Parameters, get_parameters, set_parameters
from atoll.models.pull import Pull
from atoll.random import SERVER, Draws, generator
from atoll.settings import BatchedTraining, setting

__all__ = ["EVALUATIONS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal", "trained")
STATE_AXES = {"model": PARTY, "masks": PARTY, "answered": PARTY}
PROXY_NODES, PROXY_EDGES = 100, 0.1  # of each random graph: nodes, and the probability of an edge


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings, the masks and penalties, and the similarities."""

    variant: str = setting(
        "paper",
        "The paper's method, or the authors' code, which sets penalties, proximal and upload_masks.",
        choices=("paper", "authors"),
    )
    masks: bool = setting(True, "Multiply weight matrices by masks that stay with their party.")
    mask_weight: float = setting(
        1e-3, "Weight λ₁ of the masks' L1 norm; in evaluation a mask shorter than this counts as 0.", low=0
    )
    proximal_weight: float = setting(1e-3, "Weight λ₂ of the distance from the party's mixture, from round 2 on.", low=0)
    proximal: str = setting(
        "squared", "That distance: squared, or the sum of each tensor's norm (the authors' code).", choices=("squared", "norm")
    )
    penalties: bool = setting(
        True, "Whether both penalties are trained on; in the authors' code they have no gradient, and λ₁ only prunes."
    )
    upload_masks: bool = setting(False, "Send masks along and average them, as the authors' code does; nobody uses them.")
    similarity_scale: float = setting(
        10.0, "Scale τ of the similarities: 0 weighs all parties alike, a large one leaves each alone.", low=0
    )
    proxy_graphs: int = setting(5, "Random graphs of 100 nodes for which the parties' networks are compared.", low=1, high=1000)
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")


def matrices(parameters: Parameters) -> Parameters:
    """The weight matrices: what has a mask."""
    return {name: value for name, value in parameters.items() if value.ndim > 2}


MASKS = ModelForm(lambda settings, schema: matrices(get_parameters(backbone(settings, schema, 1, None))))


def taken(case: Case) -> Forms:
    """The party's mixture of models and, as published, of masks."""
    return {"model": MODEL, "masks": MASKS} if case.settings.upload_masks else {"model": MODEL}


def given(case: Case) -> Forms:
    """The trained model, what it gives for the random graphs and, as published, its masks."""
    forms: Forms = {"model": MODEL, "embedding": real(embedding_width(case.settings, case.schema))}
    return {**forms, "masks": MASKS} if case.settings.upload_masks else forms


class Cohort(LocalTraining):
    """Parties that train their mixture of the parties' models through masks of their own."""

    memory = {"optimizer": PARTY, "masks": PARTY, "mask_optimizer": PARTY}  # the mixture arrives with every message
    settings: Settings

    def setup(self) -> None:
        """The model, masks of ones, and an optimizer for each."""
        super().setup()
        every = matrices(get_parameters(self.model)) if self.settings.masks else {}
        self.masks = nn.ParameterDict({name.replace(".", ":"): torch.ones_like(value) for name, value in every.items()})
        if every:
            self.mask_optimizer = optim.of_settings(self.settings, self.masks)
        else:
            self.memory = {name: axis for name, axis in self.memory.items() if name != "mask_optimizer"}  # type: ignore[misc]

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those of the weights and of the masks."""
        return [self.optimizer, self.mask_optimizer] if self.masks else [self.optimizer]

    @verb(takes=taken, gives=given)
    def fit(self, model: Fields, masks: Fields | None = None) -> Fields:
        """θ_k ← the party's mixture, then local training of θ_k and its masks; averaged masks are not used."""
        self.load(model)
        self.train(model=model)
        reply: Fields = {"model": get_parameters(self.model, copy=True), "embedding": self.functional_embedding()}
        if masks is not None:
            ones = {name: torch.ones_like(value) for name, value in matrices(get_parameters(self.model)).items()}
            reply["masks"] = ones | {name.replace(":", "."): mask.detach().clone() for name, mask in self.masks.items()}
        return reply

    @verb(takes={"model": optional(MODEL)}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of each party's mixture through its masks; without one, of the model that it keeps."""
        return self.task.counts(self.predict(model), self.graph)

    def objective(self, batch: Graph, draws: Draws, model: Fields) -> Tensor:
        """L(θ_k∘μ_k) + λ₁·‖μ_k‖₁ + λ₂·‖θ_k − θ̄_k‖², but for what `pulls` adds."""
        loss = self.task.loss(self.output(batch, draws), batch)
        return loss + self.held * self.distance(model) if self.held and self.settings.proximal == "norm" else loss

    def pulls(self, model: Fields) -> Sequence[Pull]:
        """λ₁·sign(μ_k), and 2·λ₂·(θ_k − θ̄_k)."""
        s = self.settings
        squared = Pull(2 * self.held, model) if self.held and s.proximal == "squared" else Pull()
        return [squared, Pull(shrinkage=s.mask_weight if s.penalties else 0.0)]

    @property
    def held(self) -> float:
        """λ₂ where it is trained on: from round 2."""
        later = self.message is not None and self.message.round > 1
        return self.settings.proximal_weight if later and self.settings.penalties else 0.0

    def distance(self, model: Fields) -> Tensor:
        """Σ_k Σ ‖θ_k − θ̄_k‖ over the tensors."""
        moved = [(p - model[name]).flatten(1) for name, p in self.model.named_parameters()]
        return torch.stack([torch.linalg.vector_norm(one, dim=1).sum() for one in moved]).sum()

    def weights_through_masks(self, *, pruned: bool) -> Parameters:
        """θ_k∘μ_k of the weight matrices; `pruned`: without the masks that count as 0."""
        parameters, limit = dict(self.model.named_parameters()), torch.tensor(self.settings.mask_weight)
        masks = {name.replace(":", "."): mask for name, mask in self.masks.items()}
        if pruned:
            below = torch.nextafter(limit, torch.zeros(())).item()  # of |μ| > this are those with |μ| ≥ λ₁
            masks = {name: torch.nn.functional.hardshrink(mask, below) for name, mask in masks.items()}
        return {name: parameters[name] * mask for name, mask in masks.items()}

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, C) through all masks in training, without pruned ones in evaluation."""
        out: Tensor = functional_call(self.model, self.weights_through_masks(pruned=draws is None), (graph, draws))
        return out

    def masked_model(self) -> Backbone:
        """The network that predicts: the weights through the masks."""
        model = backbone(self.settings, self.schema, self.graph.parties, None, device=self.device)
        set_parameters(model, get_parameters(self.model) | self.weights_through_masks(pruned=True))
        return model

    def hidden(self, graph: Graph) -> Tensor | None:
        """The hidden representation of the network that predicts."""
        return self.masked_model().embed(graph)

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """Those of the network that predicts."""
        return self.masked_model().stages(embed=embed)

    def party_models(self, model: Fields | None = None) -> Backbone:
        """The networks that predict."""
        self.load(model)
        return self.masked_model()

    @torch.no_grad()
    def functional_embedding(self) -> Tensor:
        """(P, h) the mean representation of the random graphs' nodes, by one party's network after the other."""
        graph = proxy(self.seed, self.schema, self.settings.proxy_graphs, self.device)
        values = get_parameters(self.model) | self.weights_through_masks(pruned=True)
        alone = backbone(self.settings, self.schema, 1, None, device=self.device)
        means = []
        for party in range(self.graph.parties):
            set_parameters(alone, {name: value[party : party + 1] for name, value in values.items()})
            rows = alone.last_convolution(graph) if isinstance(alone, GCNHead) else alone.embed(graph)
            means.append(rows.mean(0))
        return torch.stack(means)


@lru_cache(maxsize=4)
def proxy(seed: int, schema: Schema, graphs: int, device: torch.device = CPU) -> Graph:
    """The random graphs: normal features, edges with probability 0.1.

    Deviation: every party draws them from the run's seed, which it knows, instead of being sent them: the same for all.
    """
    source = generator(seed, SERVER, "proxy")
    edges, nodes = [], graphs * PROXY_NODES
    for first in range(0, nodes, PROXY_NODES):
        joined = (torch.rand(PROXY_NODES, PROXY_NODES, generator=source) < PROXY_EDGES).triu(1)
        edges.append((joined | joined.t()).nonzero().t() + first)
    x, none = torch.randn(nodes, schema.features, generator=source), torch.zeros(nodes, dtype=torch.bool)
    y, ids, ptr = torch.full((nodes,), -1), torch.arange(nodes), torch.tensor([0, nodes])
    return Graph(x, torch.cat(edges, 1), y, none, none, none, schema.classes, ids, ptr).to(device)


def start(federation: Federation, settings: Settings) -> State:
    """The same first model for everybody; nobody has answered."""
    parties = len(federation.parties)
    model = first_model(settings, federation.schema, federation.seed)
    state: State = {
        "model": {name: value.expand(parties, *value.shape).clone() for name, value in model.items()},  # (P, …) θ̄_k
        "answered": torch.zeros(parties, dtype=torch.bool),  # (P,) who has a mixture of its own
    }
    if settings.upload_masks:
        shapes = matrices(get_parameters(backbone(settings, federation.schema, 1, None)))
        state["masks"] = {name: value.new_ones(parties, *value.shape[1:]) for name, value in shapes.items()}
    return state


def step(federation: Federation, state: State, settings: Settings) -> State:
    """θ̄_k ← Σ_j softmax_j(τ·cos(e_k, e_j))·θ_j over those who answered, k included.

    Who did not answer keeps its mixture; who never did gets the plain mean (the authors' first model).
    """
    sent: State = {name: state[name] for name in ("model", "masks") if name in state}
    replies = federation.ask("fit", each=sent)
    shares = similarity_shares(replies.stack("embedding"), settings.similarity_scale)
    answered = state["answered"].clone()
    answered[replies.index] = True
    new: State = {"answered": answered}
    for field, before in sent.items():
        new[field] = {}
        for name, value in replies.stack(field).items():
            mean = value.sum(0) * (1 / len(replies))
            mixed = before[name].clone()
            mixed[~answered] = mean
            mixed[replies.index] = mean if not settings.similarity_scale else (shares @ value.flatten(1)).view_as(value)
            new[field][name] = mixed
    return new


def similarity_shares(embeddings: Tensor, scale: float) -> Tensor:
    """(K, K) softmax of the scaled cosines of each row with all rows."""
    unit = embeddings.double() / embeddings.double().norm(dim=1, keepdim=True).clamp(min=1e-12)
    return torch.softmax(scale * (unit @ unit.t()), 1).float()


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of each party's mixture through its masks, pooled over the parties' nodes."""
    return metrics.evaluate(federation, each={"model": state["model"]})
