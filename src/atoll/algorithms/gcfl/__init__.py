"""GCFL: Xie et al., NeurIPS 2021. Parties whose updates diverge are separated: every cluster has its own model.

With `use_sequences=true` it is GCFL+: clusters are cut by the sequences of the updates' norms instead of the updates' directions.

Payload bytes per round and party, w shared parameters: down 4·w, up 4·w + 8 (the number of training nodes).
With `share=convolutions` the network is the authors': dense layers around the convolutions, which stay with their party. In graph
tasks it always is, and `share` is FedAvg's. With `sequence_of=gradients` another 4 bytes go up, a norm.
The server sees *each party's* shared model after training, and so its update, and its number of training nodes: clustering needs
them one by one, which is why the verb `fit` cannot be asked under secure aggregation. A party sees its cluster's model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atoll.algorithms import State, fedavg
from atoll.algorithms.gcfl.clusters import cut
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import Fields, Schema, backbone, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Case, Forms, real
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation, Replies
from atoll.federation.first_model import require_alike, shared_part
from atoll.federation.local_training import LocalTraining
from atoll.federation.memory import PARTY
from atoll.federation.memory import SHARED as SAME_FOR_ALL
from atoll.graphs.graph import Graph
from atoll.models import optim
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.gcfl_network import GCFLNetwork, GCFLNetworkSettings
from atoll.models.graph_level import GraphNetwork
from atoll.models.parameters import Parameters, get_parameters, scale, set_parameters, weighted
from atoll.random import SERVER, Draws
from atoll.settings import setting

SCENARIOS = ("horizontal", "overlapping")
LEVELS = ("node", "graph", "link")
TARGETS = ("class", "labels", "values")
EVALUATIONS = ("personal",)
CACHED = ("cached", "accuracy")  # of a graph task's state: each party's best test accuracy before a cut, and its last one
STATE_AXES = {"model": SAME_FOR_ALL, **dict.fromkeys(("cluster", "update", "n", "norms", "heard", *CACHED), PARTY)}
NO_NORM = "clusters are cut by updates, of which running statistics would be a part"


@dataclass(frozen=True)
class Settings(fedavg.Batched):
    """FedAvg's settings and when clusters are cut."""

    mean_update_threshold: float = setting(
        0.3, "A cluster may be split once the norm of its mean update is below this; 0 never splits.", low=0, was="epsilon1"
    )
    longest_update_threshold: float = setting(
        0.5, "A cluster is split only if the norm of some member's update is above this.", low=0, was="epsilon2"
    )
    relative_thresholds: bool = setting(
        True, "Measure both thresholds in units of the largest update norm of the first round.", was="relative"
    )
    rounds_before_split: int = setting(20, "Rounds before the first split.", low=0, high=10**9, was="wait")
    use_sequences: bool = setting(
        False, "GCFL+: split by dynamic time warping of the sequences of update norms.", was="sequences"
    )
    sequence_length: int = setting(10, "GCFL+: length of the sequences.", low=1, high=10**5, was="length")
    standardize_sequences: bool = setting(
        False, "GCFL+: divide every sequence by its standard deviation, so that only its shape counts.", was="standardize"
    )
    share: str = setting(
        "all",
        "What is shared and clustered by: the whole backbone, or the convolutions alone, between dense layers of each party; of "
        "graph tasks' networks all, the convolutions (layers), or these and the layer after the readout.",
        choices=("all", "convolutions", *fedavg.SHARES[1:]),
        since="0.2",
    )
    mean_update: str = setting(
        "weighted",
        "The mean update whose norm is compared: weighted by training nodes (the paper), or plain (the authors' code).",
        choices=("weighted", "plain"),
        since="0.2",
    )
    sequence_of: str = setting(
        "updates",
        "GCFL+: whose norms make the sequences: the parties' updates, or the last step's gradients (the authors' code).",
        choices=("updates", "gradients"),
        since="0.2",
    )
    sequence_reset: str = setting(
        "cluster",
        "GCFL+: whose sequences a cut waits for and clears: those of its cluster, or all parties' (the authors' code).",
        choices=("cluster", "all"),
        since="0.2",
    )
    variant: str = setting(
        "paper",
        "The paper's method or the authors' code, which sets mean_update, sequence_of and sequence_reset.",
        choices=("paper", "authors"),
        since="0.2",
    )


def network(settings: Settings, schema: Schema, parties: int, draws: Draws | None, graph: Graph | None = None) -> Backbone:
    """The parties' network."""
    if settings.share != "convolutions":
        return backbone(settings, schema, parties, draws, graph)
    if schema.level == "graph":
        raise AtollError("share=convolutions is for networks of nodes; in graph tasks it is called share=layers.")
    if schema.level != "node":
        raise AtollError(
            "share=convolutions is for node tasks, whose dense layers stand around the convolutions; leave share out."
        )
    sizes = (parties, schema.features, schema.outputs or schema.classes, settings.hidden, settings.layers)
    shape = ModelShape(*sizes, settings.dropout, settings.input_dropout, settings.bias)
    return GCFLNetwork(shape, draws, GCFLNetworkSettings(settings.model))


def shared_of(model: Backbone, settings: Settings) -> Parameters:
    """The parameters that the server averages."""
    parameters = get_parameters(model)
    if not isinstance(model, GCFLNetwork):
        return shared_part(model, settings)
    return {name: value for name, value in parameters.items() if name.startswith("convolutions.")}


def reply(case: Case) -> Forms:
    """What a party sends."""
    forms: Forms = {"model": SHARED, "nodes": WEIGHT}
    return {**forms, "norm": real(low=0)} if case.settings.sequence_of == "gradients" else forms


SHARED = ModelForm(lambda settings, schema: shared_of(network(settings, schema, 1, None), settings))


class Cohort(LocalTraining):
    """Parties that train the model of their cluster."""

    memory = {"optimizer": PARTY, "personal": PARTY}
    settings: Settings

    def setup(self) -> None:
        """The network, the layers of it that stay here, and an optimizer for all of it."""
        s = self.settings
        require_alike(self.schema, s.share)
        self.model = network(s, self.schema, self.graph.parties, self.first_draws("model"), self.graph).to(self.device)
        self.optimizer = optim.of_settings(s, self.model)
        children = dict(self.model.named_children()) if isinstance(self.model, GCFLNetwork | GraphNetwork) else {}
        shared = {name.partition(".")[0] for name in self.shared()}
        self.personal = nn.ModuleDict({name: child for name, child in children.items() if name not in shared})
        unknown = torch.zeros(self.graph.parties, device=self.device)
        self.norm = unknown  # of the shared parameters' gradients in each party's last step

    def load(self, model: Fields | None = None) -> None:
        """What is shared ← the model of the party's cluster."""
        if model is not None:
            rest = get_parameters(self.model) if self.personal else {}
            set_parameters(self.model, {**rest, **model})

    @verb(takes={"model": SHARED}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of the model of each party's cluster, with the party's own layers."""
        return self.task.counts(self.predict(model), self.graph)

    def shared(self) -> Parameters:
        """The parameters that the server averages, (P, …), as live views."""
        return shared_of(self.model, self.settings)

    @verb(takes={"model": SHARED}, gives=reply)
    def fit(self, model: Fields) -> Fields:
        """θ_i ← θ of the party's cluster, then E epochs on its own training nodes."""
        self.load(model)
        self.train(model=model)
        fields: Fields = {"model": {name: value.clone() for name, value in self.shared().items()}, "nodes": self.weights}
        return {**fields, "norm": self.norm} if self.settings.sequence_of == "gradients" else fields

    def stepped(self, gradients: Sequence[Tensor], batch: Graph) -> None:
        """Note the norm of the gradients of what is shared, of the parties that took the step."""
        if self.settings.sequence_of == "updates":
            return
        by_name, shared = dict(zip(self.optimizer.params, gradients, strict=True)), self.shared()
        norm = torch.cat([by_name[name].flatten(1) for name in shared], 1).norm(dim=1)
        self.norm = norm if batch.active is None else torch.where(batch.active, norm, self.norm)


def start(federation: Federation, settings: Settings) -> State:
    """One cluster with everybody; nothing heard of anybody."""
    parties = len(federation.parties)
    model = shared_of(network(settings, federation.schema, 1, Draws(federation.seed, [SERVER], "model")), settings)
    graphs = federation.schema.level == "graph"
    return {
        "model": model,  # (C, …) a cluster
        "cluster": torch.zeros(parties, dtype=torch.int64),  # (P,)
        "update": torch.zeros(parties, sum(value.numel() for value in model.values())),  # (P, w) each party's last Δθ_i
        "n": torch.zeros(parties, dtype=torch.int64),  # (P,) training nodes, 0 where a party was not heard yet
        "norms": torch.zeros(parties, settings.sequence_length),  # (P, d) the last ‖Δθ_i‖, newest last
        "unit": torch.zeros(()) if settings.relative_thresholds else torch.ones(()),  # what ε₁ and ε₂ are measured in
        "heard": torch.zeros(parties, dtype=torch.int64),  # (P,) how many norms since its cluster was cut
        **({name: torch.full((parties,), torch.nan) for name in CACHED} if graphs else {}),
    }


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Everybody trains the model of its cluster; clusters may be split; then each takes the mean of its members' models."""
    sent = models_of_parties(state)
    replies = federation.ask("fit", each={"model": sent})
    state = observe(state, sent, replies)
    if federation.round > settings.rounds_before_split:
        for cluster in range(int(state["cluster"].max()) + 1):
            state = cut(state, cluster, settings)
    return state | {"model": aggregate(state, replies)}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of each party's cluster's model, pooled over the parties' nodes.

    Of graphs also what the authors report: each party's highest test accuracy of those before its cluster was cut and now, as
    a mean over the parties (`max_cached_accuracy`). It chooses by test accuracy, so nothing is ever selected by it.
    """
    found = metrics.evaluate(federation, each={"model": models_of_parties(state)})
    if "cached" in state and "party_accuracy" in found:
        highest = torch.fmax(state["cached"], accuracies(found))
        found["max_cached_accuracy"] = float(highest.nanmean())
    return found


def after_evaluation(state: State, found: Mapping[str, Any]) -> State:
    """Remember the parties' test accuracies, which the authors keep where a cluster is cut in the next round."""
    return state | {"accuracy": accuracies(found)} if "cached" in state and "party_accuracy" in found else state


def accuracies(found: Mapping[str, Any]) -> Tensor:
    """(P,) each party's test accuracy; NaN where it is not known."""
    return torch.tensor([torch.nan if value is None else value for value in found["party_accuracy"]])


def models_of_parties(state: State) -> Parameters:
    """(P, …): every party's cluster's model."""
    return {name: value[state["cluster"]] for name, value in state["model"].items()}


def observe(state: State, sent: Parameters, replies: Replies) -> State:
    """Note the updates of those who answered; of the others the last ones stand (Deviation: in the paper all answer)."""
    parties = replies.index
    update, n, norms, answers = (state[name].clone() for name in ("update", "n", "norms", "heard"))
    differences = [(value - sent[name][parties]).flatten(1) for name, value in replies.stack("model").items()]
    update[parties] = torch.cat(differences, 1)  # Δθ_i
    n[parties] = replies.stack("nodes")
    lengths = update[parties].norm(dim=1, keepdim=True)  # ‖Δθ_i‖
    newest = replies.stack("norm")[:, None] if "norm" in replies.fields else lengths
    norms[parties] = torch.cat([norms[parties, 1:], newest], 1)
    answers[parties] += 1
    unit = state["unit"] if state["unit"] else lengths.max()
    return state | {"update": update, "n": n, "norms": norms, "heard": answers, "unit": unit}


def aggregate(state: State, replies: Replies) -> Parameters:
    """θ_c ← Σ_{i ∈ c} (n_i / n) θ_i over those who answered; a cluster of which nobody did keeps its model."""
    trained, n = weighted(replies.stack("model"), replies.stack("nodes")), replies.stack("nodes")
    cluster = state["cluster"][replies.index]
    models = {name: value.clone() for name, value in state["model"].items()}
    for c in cluster.unique().tolist():
        members = (cluster == c).nonzero().squeeze(1)
        mean = scale({name: value[members].sum(0) for name, value in trained.items()}, 1 / n[members].sum())
        for name, value in mean.items():
            models[name][c] = value
    return models
