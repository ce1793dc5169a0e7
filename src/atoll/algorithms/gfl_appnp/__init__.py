"""GFL-APPNP: Chen et al., "Graph Federated Learning with Hidden Representation Sharing", Algorithm 1.

Every node is a party with n_k feature vectors; the server knows the graph. All parties share an MLP h = relu(x·W₁)·W₂ and send
its mean output ĥ over their vectors, with its gradient; the server propagates both over the graph by Ã (APPNP's propagation)
and returns to every party what the others contribute; those with training data take I steps, and the server averages.

Payload bytes per round with w parameters (d·h + h·C with two layers). Every party: down 4·w, up 4·C + 2 + g; every training
party as well: down 4·w + 4·(C + 1) + g, up 4·w + 8. The gradient g is 4·C·w (`encoding=jacobian`), 4·(d + 1)·h (`factored`) or 0
(`compensation=none`); `propagation=gpr` adds what `learned` says. Deviation: the paper sends C_k and ∇C_k to all parties, and W̄
once; only those that train need the former, and they are sent W̄ again, so that no party has to remember it.
The server sees every ĥ_j and ∇ĥ_j (from which a party's vector can be read), who trains, and the sum of the trained models.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import torch
from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.gfl_appnp import deep
from atoll.algorithms.gfl_appnp.compensation import Mixture, Sources, Upload, mix, single, to_means, to_rows
from atoll.algorithms.gfl_appnp.convergence import theory as theory
from atoll.algorithms.gfl_appnp.forms import MODEL, PLACE, SUMS, VOTES, perceptron, place, representation, shape_of, trained_model
from atoll.algorithms.gfl_appnp.learned_propagation import Learned, slopes
from atoll.algorithms.gfl_appnp.local_steps import Explicit, Implicit, LocalModels, Trained
from atoll.algorithms.gfl_appnp.propagation import MAX_DENSE, Propagation, Toward, appnp, coefficients
from atoll.algorithms.gfl_appnp.settings import Settings
from atoll.algorithms.gfl_appnp.vectors import roles, training_vectors, votes
from atoll.errors import AtollError
from atoll.federation import metrics, transfer
from atoll.federation.cohort import PARTY, Fields, verb
from atoll.federation.declarations import COUNTS, Scalar
from atoll.federation.federation import Federation
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone
from atoll.models.mlp import MLP
from atoll.models.parameters import get_parameters, scale
from atoll.parties import Parties
from atoll.privacy.noise import Noise
from atoll.privacy.noise_settings import NoiseSettings
from atoll.random import SERVER, Draws, seed_of
from atoll.tasks.counting import training_counts
from atoll.tasks.task import ClassTask

SCENARIOS = ("node",)
TASKS = ("node-classification",)
STATE_AXES = {"hidden": PARTY}
FIRST, SECOND = "layers.0.weight", "layers.1.weight"  # W₁, W₂
SHORTCUT_LAYERS = 2  # depth for which `compensation` has the factors; `deep` is for any other
V1 = Noise(NoiseSettings(verb="represent", fields=("gradient",), clip=0.0, noise=1.0))  # ∇ĥ_j + ε_j, ε_j standard normal
Gradient = Tensor | Mixture | deep.DeepMixture | None  # ∇C_k: as it was sent, or described


class Cohort(atoll.federation.cohort.Cohort):
    """Parties with one node each; they remember nothing."""

    same_backbone = True
    settings: Settings
    task: ClassTask

    def setup(self) -> None:
        """The vectors that enter ĥ, and caches: an evaluation computes what the next round begins with."""
        if self.settings.experiment == "dnc" and self.schema.parties > MAX_DENSE and not single(self.graph):
            raise AtollError(
                f"experiment=dnc with over {MAX_DENSE:,} nodes is for one vector per node; use experiment=snc or sc."
            )
        self.shared = self.graph if self.settings.share == "all" else training_vectors(self.graph)
        self.couplings: dict[str, Tensor | Toward] = {}
        self.latest: tuple[Tensor, Tensor] | None = None

    @property
    def numbers(self) -> Tensor:
        """(P,) the parties' numbers, where they compute."""
        return torch.tensor(self.parties.numbers).to(self.device)

    @property
    def deep(self) -> bool:
        """Whether the MLP has another depth than the paper's."""
        return self.settings.layers != SHORTCUT_LAYERS

    def inner(self, model: Mapping[str, Tensor], graph: Graph) -> Tensor:
        """(rows, h) relu(x·W̄₁); kept for the whole graph."""
        if graph is not self.graph:
            return graph.merged.features.product(model[FIRST][None]).relu_()
        if self.latest is None or self.latest[0] is not model[FIRST]:
            self.latest = model[FIRST], graph.merged.features.product(model[FIRST][None]).relu_()
        return self.latest[1]

    @verb(takes={"model": MODEL, "gradient": Scalar()}, gives=representation)
    def represent(self, model: Fields, gradient: bool) -> Fields:
        """Upload ĥ_j = mean_s MLP(x_js; W̄) and, if asked for, ∇ĥ_j; whether the party trains, and whether it has any labels.

        The paper's mean is over all n_j vectors; in its experiments (`share=train`) it is over those that train.
        """
        graph = self.shared
        if self.deep:
            sent = deep.represent(graph, self.numbers, list(model.values()), self.couplings, gradient=gradient)
            return self.noised({**sent, **roles(self.graph)})
        inner = self.inner(model, graph)
        mean = to_means(inner, graph)  # r̄
        reply = {"hidden": mean @ model[SECOND], **roles(self.graph)}
        if gradient:
            sources = Sources(graph, self.numbers, (inner > 0).float(), mean, model[SECOND], self.couplings)
            reply["gradient"] = Upload(sources, self.settings.encoding)
        return self.noised(reply)

    def noised(self, reply: Fields) -> Fields:
        """V1, where every party draws its own ε_j; as settings: dp.verb=represent dp.fields=gradient dp.clip=0."""
        s = self.settings
        if s.compensation != "noisy" or (s.joint_noise and not self.deep and len(self.parties) == self.schema.parties):
            return reply
        assert self.message is not None
        noised: Fields = V1(self.message, transfer.to_cpu(reply, self.device), self.draws())
        return transfer.to_device(noised, self.device)  # type: ignore[no-any-return]

    @verb(takes=place, gives=trained_model, averaged={"model": "n", "slopes": "n"})
    def fit(
        self,
        model: Fields,
        weight: Tensor,
        context: Tensor,
        gradient: Gradient = None,
        loops: Tensor | None = None,
        arrived: Tensor | None = None,
    ) -> Fields:
        """I times W_k ← W_k − η·mean_s (ŷ_s − y_s)·(Ã_kk·∇h_s + ∇C_k) with ŷ_s = softmax(Ã_kk·h_s + C_k).

        Deviation: the paper prints y − ŷ for the descent direction's ŷ − y.
        """
        s, trained = self.settings, Trained.of(self.graph)
        local = self.start(trained, model, gradient)
        keys = self.keys(trained)
        weights = self.task.item_weights(trained.targets)  # of the classes
        reply: Fields = {"n": torch.ones_like(trained.counts)}
        for step in range(s.local_steps):
            outputs = local.outputs()
            logits = torch.addcmul(context[:, None], weight[:, None, None], outputs)
            shares = trained.shares(s.batch_size, None if keys is None else keys[:, :, step])
            shares = shares * weights if isinstance(weights, Tensor) else shares
            errors = logits.softmax(2).sub_(trained.targets).mul_(shares[:, :, None])
            if step == 0 and loops is not None and arrived is not None:
                reply["slopes"] = slopes(errors, outputs, loops, arrived)
            local.descend(errors, weight, s.lr, s.weight_decay)
        return {"model": dict(zip(model, local.weights(), strict=True)), **reply}

    def start(self, trained: Trained, model: Fields, gradient: Gradient) -> LocalModels:
        """W_k ← W̄; written out where ∇C_k is."""
        if self.deep:
            assert not isinstance(gradient, Mixture)
            return deep.local_models(trained, list(model.values()), gradient)
        assert not isinstance(gradient, deep.DeepMixture)
        if gradient is None:
            return Implicit(trained, model[FIRST], model[SECOND], None)
        if isinstance(gradient, Mixture):
            return Implicit(trained, model[FIRST], model[SECOND], gradient)
        return Explicit(trained, model[FIRST], model[SECOND], gradient, self.settings.encoding)

    def keys(self, trained: Trained) -> Tensor | None:
        """(K, n, I) random numbers that order each party's vectors for every step; None where a step takes them all."""
        size = self.settings.batch_size
        return self.draws().uniform(trained.most, self.settings.local_steps) if 0 < size < trained.most else None

    @verb(
        takes=PLACE,
        gives=lambda case: {**COUNTS, "training": SUMS, **({"votes": VOTES} if case.settings.experiment == "snc" else {})},
    )
    def evaluate(self, model: Fields, weight: Tensor, context: Tensor) -> Fields:
        """Counts of softmax(Ã_kk·h_ks + C_k), of its training loss and, for one label per node, of the parties' votes."""
        graph, logits = self.graph, self.predict(model, weight, context)
        counts = self.task.counts(logits, graph)
        if "training" not in counts:  # noise leaves it out; Figure 3 is made of it
            counts["training"] = training_counts(logits, graph)
        if self.settings.experiment == "snc":
            counts["votes"] = votes(logits, graph)
        return counts

    def predict(self, model: Fields, weight: Tensor, context: Tensor) -> Tensor:
        """Ã_kk·h_ks + C_k."""
        graph = self.graph
        states = deep.activations(graph, list(model.values())) if self.deep else [self.inner(model, graph) @ model[SECOND]]
        return to_rows(weight[:, None], graph) * states[-1] + to_rows(context, graph)

    def party_models(self, model: Fields, **place: Tensor) -> Backbone:
        """APPNP on the graph of all parties: with one vector per node, that is what Ã·h is."""
        s = self.settings
        if s.experiment != "dnc":
            raise AtollError("gfl_appnp cannot be exported: its nodes have several vectors each, and no backbone takes those.")
        if s.propagation != "ppr":
            raise AtollError("gfl_appnp with propagation=gpr cannot be exported: no backbone has learned propagation weights.")
        return appnp(model, self.graph.parties, s.teleport, s.steps)


def start(federation: Federation, settings: Settings) -> State:
    """A first model, by Glorot's rule or torch's (the paper does not say which); zeros stand for every ĥ."""
    schema, hidden = federation.schema, torch.zeros(federation.schema.parties, federation.schema.classes)
    if settings.init == "torch":
        draws = Draws(federation.seed, [0], "setup", "model")  # those of the one party of `centralized`
        drawn = get_parameters(MLP(shape_of(settings, schema), draws))
        return {"model": {name: value[0] for name, value in drawn.items()}, "hidden": hidden, **first_weights(settings)}
    draws, model = Draws(federation.seed, [SERVER], "model"), {}
    for name, value in perceptron(settings, schema).items():
        fan_in, fan_out = value.shape[1:]
        model[name] = draws.uniform(fan_in, fan_out, low=-1, high=1)[0] * sqrt(6 / (fan_in + fan_out))
    return {"model": model, "hidden": hidden, **first_weights(settings)}


def first_weights(settings: Settings) -> State:
    """γ as in personalized PageRank, where it is learned."""
    return {"gamma": coefficients(settings.teleport, settings.steps).float()} if settings.propagation == "gpr" else {}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """One round: ĥ and ∇ĥ up, C and ∇C down, I local steps, W̄ ← the mean of the W_k that trained.

    Where a party is missing, its last ĥ stands for it, and it has no gradient.
    """
    model, compensated = state["model"], settings.compensation != "none"
    replies = federation.ask("represent", model=model, gradient=compensated)
    present = replies.index
    hidden = state["hidden"].index_copy(0, present, replies.stack("hidden"))
    training = present[replies.stack("trains")]
    if not len(training):
        return state | {"hidden": hidden}
    graph, device = propagation_of(federation, state, settings), federation.device
    values, trainers = hidden.to(device), training.to(device)
    toward = graph.toward(trainers)
    each: Fields = {"weight": toward.diagonal, "context": toward.gather(values)}  # Ã_kk, C_k
    if isinstance(graph, Learned):
        each |= {"loops": graph.loops(trainers), "arrived": graph.arrived(values, trainers)}
    if compensated:
        noise = seed_of(federation.seed, SERVER, "noise", federation.round) if settings.compensation == "noisy" else None
        sent = transfer.to_device(replies.stack("gradient"), device)
        described = isinstance(sent, deep.DeepUpload)
        each["gradient"] = deep.DeepMixture(sent, toward) if described else mix(sent, present.to(device), toward, noise)  # ∇C_k
    each = transfer.to_cpu(each, device)
    total = federation.total("fit", to=Parties(training.numpy()), each=each, model=model)
    after = {"model": scale(total["model"], 1 / total["n"]), "hidden": hidden}
    if "gamma" in state:
        after["gamma"] = state["gamma"] - settings.propagation_lr * total["slopes"] / total["n"]
    return after


def propagation_of(federation: Federation, state: State, settings: Settings) -> Propagation:
    """Ã, computed once; with learned weights, all of it that they leave."""
    if "propagation" not in federation.derived:
        edges, nodes = federation.public["edge_index"], federation.schema.parties
        made = Propagation(edges, nodes, settings.teleport, settings.steps, device=federation.device)
        federation.derived["propagation"] = made
    graph: Propagation = federation.derived["propagation"]
    return Learned(graph, state["gamma"].to(federation.device)) if "gamma" in state else graph


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, Any]:
    """Metrics of the server's model; `majority_accuracy` is over nodes, each classified by the vote of its vectors."""
    replies = federation.ask("represent", model=state["model"], gradient=False)
    present = replies.index
    hidden = state["hidden"]
    if len(hidden) != federation.schema.parties:  # other users than those of training: nothing is known of them yet
        hidden = hidden.new_zeros(federation.schema.parties, hidden.shape[1])
    hidden = hidden.index_copy(0, present, replies.stack("hidden"))
    judged = present[replies.stack("labeled")]
    graph = propagation_of(federation, state, settings)
    one_vector = graph.large and settings.experiment == "dnc"  # then Ã_kk·h_k + C_k is (Ã·ĥ)_k, whatever Ã_kk is
    weight = torch.zeros(len(judged)) if one_vector else graph.diagonal(judged.to(federation.device)).cpu()
    propagated = (graph @ hidden.to(federation.device)).cpu()
    each = {"weight": weight, "context": propagated[judged] - weight[:, None] * hidden[judged]}
    judges = Parties(judged.numpy())
    if not federation.evaluate_at_server:
        sums = federation.total("evaluate", to=judges, each=each, model=state["model"])
        metrics.keep_counts(federation, sums)
        return _metrics(federation, sums)
    answers = federation.ask("evaluate", to=judges, each=each, model=state["model"])
    counts = {name: answers.stack(name) for name in answers.fields}
    sums = {name: value.sum(0) for name, value in counts.items()}
    sums |= {
        name: torch.stack([column.sum() for column in counts[name].unbind(1)]) for name in sums.keys() & {"training", "votes"}
    }
    metrics.keep_counts(federation, sums, answers.parties, counts)
    return _metrics(federation, sums) | metrics.by_party(federation, answers.parties, counts)


def _metrics(federation: Federation, sums: Fields) -> dict[str, Any]:
    """Metrics from summed counts."""
    values: dict[str, Any] = dict(federation.task.metrics(sums))
    values["train_loss"] = float(sums["training"][1] / sums["training"][0])
    if "votes" in sums:
        values["majority_accuracy"] = float(sums["votes"][1] / sums["votes"][0])
    return values
