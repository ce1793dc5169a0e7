"""GCFL: Xie et al., NeurIPS 2021. Parties whose updates diverge are separated: every cluster has its own model.

With `use_sequences=true` it is GCFL+: clusters are cut by the sequences of the updates' norms instead of the updates' directions.

Payload bytes per round and party, w shared parameters: down 4·w, up 4·w + 8 (the number of training nodes).
With `share=convolutions` the network is the authors': dense layers around the convolutions, which stay with their party.
The server sees *each party's* shared model after training, and so its update, and its number of training nodes: clustering needs
them one by one, which is why the verb `fit` cannot be asked under secure aggregation. A party sees its cluster's model.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.algorithms import State, fedavg
from atoll.federation import metrics
from atoll.federation.cohort import Fields, Schema, backbone, verb
from atoll.federation.declarations import COUNTS, WEIGHT
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation, Replies
from atoll.federation.local_training import LocalTraining
from atoll.federation.memory import PARTY
from atoll.federation.memory import SHARED as SAME_FOR_ALL
from atoll.models import optim
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.framed import Framed, FramedSettings
from atoll.models.parameters import Parameters, get_parameters, scale, set_parameters, weighted
from atoll.random import SERVER, Draws
from atoll.settings import setting

SCENARIOS = ("horizontal", "overlapping")
EVALUATIONS = ("personal",)
PERSONAL = ("input", "post", "output")  # the layers that stay with their party with `share=convolutions`
STATE_AXES = {"model": SAME_FOR_ALL, "cluster": PARTY, "update": PARTY, "n": PARTY, "norms": PARTY, "heard": PARTY}
NO_NORM = "clusters are cut by updates, of which running statistics would be a part"


@dataclass(frozen=True)
class Settings(fedavg.Settings):
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
        "What is shared and clustered by: the whole backbone, or the convolutions alone, between dense layers of each party.",
        choices=("all", "convolutions"),
        since="0.2",
    )
    mean_update: str = setting(
        "weighted",
        "The mean update whose norm is compared: weighted by training nodes (the paper), or plain (the authors' code).",
        choices=("weighted", "plain"),
        since="0.2",
    )


def network(settings: Settings, schema: Schema, parties: int, draws: Draws | None) -> Backbone:
    """The parties' network."""
    if settings.share == "all":
        return backbone(settings, schema, parties, draws)
    sizes = (parties, schema.features, schema.outputs or schema.classes, settings.hidden, settings.layers)
    shape = ModelShape(*sizes, settings.dropout, settings.input_dropout, settings.bias)
    return Framed(shape, draws, FramedSettings(settings.model))


def shared_of(model: Backbone) -> Parameters:
    """The parameters that the server averages."""
    parameters = get_parameters(model)
    if not isinstance(model, Framed):
        return parameters
    return {name: value for name, value in parameters.items() if name.startswith("convolutions.")}


SHARED = ModelForm(lambda settings, schema: shared_of(network(settings, schema, 1, None)))


class Cohort(LocalTraining):
    """Parties that train the model of their cluster."""

    memory = {"optimizer": PARTY, "personal": PARTY}
    settings: Settings

    def setup(self) -> None:
        """The network, the layers of it that stay here, and an optimizer for all of it."""
        s = self.settings
        self.model = network(s, self.schema, self.graph.parties, self.first_draws("model"))
        self.optimizer = optim.of_settings(s, self.model)
        framed = isinstance(self.model, Framed)
        self.personal = nn.ModuleDict({name: getattr(self.model, name) for name in PERSONAL} if framed else {})

    def load(self, model: Fields | None = None) -> None:
        """What is shared ← the model of the party's cluster."""
        if model is not None:
            rest = get_parameters(self.model) if self.personal else {}
            set_parameters(self.model, {**rest, **model})

    @verb(takes={"model": SHARED}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of the model of each party's cluster, with the party's own layers."""
        return self.task.counts(self.predict(model), self.graph)

    @verb(takes={"model": SHARED}, gives={"model": SHARED, "nodes": WEIGHT})
    def fit(self, model: Fields) -> Fields:
        """θ_i ← θ of the party's cluster, then E epochs on its own training nodes."""
        self.load(model)
        self.train(model=model)
        shared = {name: value.clone() for name, value in shared_of(self.model).items()}
        return {"model": shared, "nodes": self.weights}


def start(federation: Federation, settings: Settings) -> State:
    """One cluster with everybody; nothing heard of anybody."""
    parties = len(federation.parties)
    model = shared_of(network(settings, federation.schema, 1, Draws(federation.seed, [SERVER], "model")))
    return {
        "model": model,  # (C, …) a cluster
        "cluster": torch.zeros(parties, dtype=torch.int64),  # (P,)
        "update": torch.zeros(parties, sum(value.numel() for value in model.values())),  # (P, w) each party's last Δθ_i
        "n": torch.zeros(parties, dtype=torch.int64),  # (P,) training nodes, 0 where a party was not heard yet
        "norms": torch.zeros(parties, settings.sequence_length),  # (P, d) the last ‖Δθ_i‖, newest last
        "unit": torch.zeros(()) if settings.relative_thresholds else torch.ones(()),  # what ε₁ and ε₂ are measured in
        "heard": torch.zeros(parties, dtype=torch.int64),  # (P,) how many norms since its cluster was cut
    }


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Everybody trains the model of its cluster; clusters may be split; then each takes the mean of its members' models."""
    replies = federation.ask("fit", each={"model": models_of_parties(state)})
    state = observe(state, replies)
    if federation.round > settings.rounds_before_split:
        for cluster in range(int(state["cluster"].max()) + 1):
            state = cut(state, cluster, settings)
    return state | {"model": aggregate(state, replies)}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of each party's cluster's model, pooled over the parties' nodes."""
    return metrics.evaluate(federation, each={"model": models_of_parties(state)})


def models_of_parties(state: State) -> Parameters:
    """(P, …): every party's cluster's model."""
    return {name: value[state["cluster"]] for name, value in state["model"].items()}


def observe(state: State, replies: Replies) -> State:
    """Note the updates of those who answered; of the others the last ones stand (Deviation: in the paper all answer)."""
    parties = torch.tensor(replies.parties)
    sent = models_of_parties(state)
    update, n, norms, heard = (state[name].clone() for name in ("update", "n", "norms", "heard"))
    differences = [(value - sent[name][parties]).flatten(1) for name, value in replies.stack("model").items()]
    update[parties] = torch.cat(differences, 1)  # Δθ_i
    n[parties] = replies.stack("nodes")
    norms[parties] = torch.cat([norms[parties, 1:], update[parties].norm(dim=1, keepdim=True)], 1)
    heard[parties] += 1
    unit = state["unit"] if state["unit"] else norms.max()
    return state | {"update": update, "n": n, "norms": norms, "heard": heard, "unit": unit}


def cut(state: State, cluster: int, settings: Settings) -> State:
    """Part a cluster in two where its members are stationary together but not alone; the second half gets a new number."""
    members = (state["cluster"] == cluster).nonzero().squeeze(1)
    updates, n = state["update"][members], state["n"][members]
    if len(members) <= 2 or not bool((n > 0).all()):
        return state
    weights = n / n.sum() if settings.mean_update == "weighted" else torch.full((len(members),), 1 / len(members))
    together = (updates * weights[:, None]).sum(0).norm()  # δ_mean = ‖Σ_i |G_i| / |G| · Δθ_i‖
    alone = updates.norm(dim=1).max()  # δ_max
    if not (
        together < settings.mean_update_threshold * state["unit"] and alone > settings.longest_update_threshold * state["unit"]
    ):
        return state
    if settings.use_sequences:
        if int(state["heard"][members].min()) < settings.sequence_length:
            return state
        distance = time_warping(state["norms"][members], settings.standardize_sequences)
        ties = distance.max() - distance
    else:
        directions = updates / updates.norm(dim=1, keepdim=True).clamp(min=1e-12)
        ties = directions @ directions.t() + 1  # cosine similarity, from 0 to 2
    leaving = members[min_cut(ties)]
    assigned, heard = state["cluster"].clone(), state["heard"].clone()
    assigned[leaving] = len(next(iter(state["model"].values())))
    heard[members] = 0
    models = {name: torch.cat([value, value[cluster : cluster + 1]]) for name, value in state["model"].items()}
    return state | {"cluster": assigned, "heard": heard, "model": models}


def aggregate(state: State, replies: Replies) -> Parameters:
    """θ_c ← Σ_{i ∈ c} (n_i / n) θ_i over those who answered; a cluster of which nobody did keeps its model."""
    own, n = weighted(replies.stack("model"), replies.stack("nodes")), replies.stack("nodes")
    cluster = state["cluster"][torch.tensor(replies.parties)]
    models = {name: value.clone() for name, value in state["model"].items()}
    for c in cluster.unique().tolist():
        members = (cluster == c).nonzero().squeeze(1)
        mean = scale({name: value[members].sum(0) for name, value in own.items()}, 1 / n[members].sum())
        for name, value in mean.items():
            models[name][c] = value
    return models


def min_cut(ties: Tensor) -> Tensor:
    """(m,) bool: the part without the first member, of the two with the weakest ties between them (Stoer & Wagner)."""
    import igraph  # slow to import

    graph = igraph.Graph.Full(len(ties))
    sources, targets = zip(*graph.get_edgelist(), strict=True)
    first, second = graph.mincut(capacity=ties[list(sources), list(targets)].clamp(min=0).tolist()).partition
    leaving = torch.zeros(len(ties), dtype=torch.bool)
    leaving[second if 0 in first else first] = True
    return leaving


def time_warping(sequences: Tensor, standardize: bool) -> Tensor:
    """(m, d) → (m, m): dynamic time warping distances, all pairs at once: the root of the least sum of squared differences."""
    if standardize:
        sequences = sequences / sequences.std(dim=1, correction=0, keepdim=True).clamp(min=1e-12)
    count, length = sequences.shape
    blocked = torch.full((count, count), torch.inf)
    above = [torch.zeros(count, count)] + [blocked] * length  # the row before: costs of warping the first i − 1 onto the first j
    for i in range(length):
        row = [blocked]
        for j in range(length):
            step_cost = (sequences[:, None, i] - sequences[None, :, j]).square()
            row.append(step_cost + torch.minimum(torch.minimum(above[j], above[j + 1]), row[j]))
        above = row
    return above[length].sqrt()
