"""GLASU: Zhang et al., "A Communication-Efficient Algorithm for Federated Learning with Vertically Distributed Graph Data".

M parties hold the same nodes with different features and different edges. Each has its own L-layer network; after K of the L
layers the server replaces the parties' representations by their mean or concatenation (lazy aggregation); between two such
rounds every party takes Q steps on the same batch with its own representations fresh and the others' stale. The server has no
parameters. Algorithms 1 to 4; Algorithms 5 to 7 where one party holds the labels (`label_holder`); exact gradients through the
server instead of Algorithm 4 with `backward=server`.

Payload bytes per round and party, h the hidden width, n_l the nodes of the level above a shared layer l (all nodes where nothing
is sampled), s_l ≤ n_l those the party sampled itself: up Σ_l 4·h·n_l, down the same (concatenation: M times as much), and for the
index sets of all shared levels but the last up Σ 4·s_l, down Σ 4·n_l. K exchanges for Q steps instead of L for each: QL/K fewer.
`backward=server` sends as much again for the gradients. With one label holder it sends the batch, 4·n, and the gradient, 4·h·n.

Derived from the run's seed and round, and so never sent: the batch S[L], drawn from the training nodes that all parties know.
In link prediction (`links`) the batch is of the label holder's pairs, and its ends are sent.
The server sees sums of hidden representations (with `concatenation` each party's) and which nodes each party sampled. The parties
see the aggregates and the united index sets. `theory` adds 4·(5 + 2Q) bytes up in every round that is measured.

Deviation: by default SGD has momentum and weight decay, and hidden units are dropped out, where Algorithm 4 is plain SGD and the
paper says nothing of dropout; `momentum=0`, `weight_decay=0` and `dropout=0` are the paper's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.glasu import theory
from atoll.algorithms.glasu.exchanges import (
    backpropagate_all,
    joint_inference,
    label_holders,
    require_all,
    sample,
    train_with_one_label_holder,
)
from atoll.algorithms.glasu.forward import ForwardPass
from atoll.algorithms.glasu.inbox import Inbox
from atoll.algorithms.glasu.links import PairForwardPass, PairSampler
from atoll.algorithms.glasu.sampling import Sampler
from atoll.algorithms.glasu.settings import Settings, rate, shared
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, verb
from atoll.federation.declarations import COUNTS, ROWS, Case, Numbers, Scalar, nodes, optional, ragged, real
from atoll.federation.federation import Federation
from atoll.graphs.features import unit_rows
from atoll.graphs.graph import Graph
from atoll.models import optim
from atoll.models.split import SPLITS, SplitShape
from atoll.random import SERVER, Draws
from atoll.tasks import LINK_TASK
from atoll.tasks.task import ClassTask

SCENARIOS = ("vertical",)
TASKS = ("node-classification", LINK_TASK)
LEVELS = ("node", "link")
YARDSTICKS = {"centralized": "centralized_vertical"}  # what `centralized` means in a comparison with this algorithm


def joined_width(case: Case) -> int:
    """Columns of an aggregate: those of one representation, or of all parties' side by side."""
    s: Settings = case.settings
    return s.hidden * (case.schema.parties if s.aggregation == "concatenation" else 1)


NODES = nodes(ROWS)  # S[l]
HIDDEN = real(ROWS, "hidden")  # H⁺_m[l], and its gradient
JOINED: Numbers = real(ROWS, joined_width)  # H[l + 1], and its gradient
METERS = {name: real() for name in theory.METERS} | {name: real("local_steps") for name in theory.STEPS}
LAYER = Scalar(0, lambda case: case.settings.layers - 1)


class Cohort(atoll.federation.cohort.Cohort):
    """Parties that hold different columns and edges of the same nodes."""

    no_backbone = "its parties hold different columns of the same nodes, and each has a network of a kind that no export knows"
    memory = {"model": PARTY, "optimizer": PARTY}
    round_memory = {"inbox": PARTY}
    settings: Settings
    task: ClassTask

    def setup(self) -> None:
        """One network per party; the classifiers are the same everywhere."""
        s, count = self.settings, len(self.parties)
        self.shared = shared(s)  # 𝓘
        self.links = self.task.name == LINK_TASK
        shape = SplitShape(
            parties=count,
            features=self.schema.features,
            classes=s.hidden if self.links else self.schema.classes,
            decoder=s.decoder if self.links else "",
            hidden=s.hidden,
            layers=s.layers,
            dropout=s.dropout,
            heads=s.heads,
            teleport=s.teleport,
            theta=s.theta,
            joined=tuple(layer + 1 for layer in self.shared) if s.aggregation == "concatenation" else (),
            everyone=self.schema.parties,
        )
        common = None if self.blank else Draws(self.seed, [SERVER] * count, "classifier")
        self.model = SPLITS[s.model](shape, self.first_draws("model"), common).to(self.device)
        self.optimizer = optim.make(s.optimizer, self.model, s.lr, s.weight_decay, s.momentum)
        self._unit: tuple[Graph, Graph] | None = None
        self.targets = torch.where(self.graph.train, self.graph.y, -1)
        if s.label_holder >= 0 and not self.links:  # pairs are at the label holder alone
            holder = torch.tensor([party == s.label_holder for party in self.parties]).to(self.device)
            self.targets = torch.where(holder[self.graph.party], self.targets, -1)
        if not self.links:
            self._check_labels()

    def clear_round(self) -> None:
        """An empty inbox, and nothing computed."""
        self.inbox = Inbox(self.shared, len(self.parties))
        self.forward: ForwardPass | None = None

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Restore the memory and discard what was computed from the previous one; checkpoints of 0.1 hold an empty `heard`."""
        super().restore({name: saved for name, saved in memory.items() if name != "heard"})
        self.forward = None

    def _check_labels(self) -> None:
        """Refuse a party that needs labels of training nodes and has none; where memory is restored, training has begun."""
        holder = self.settings.label_holder
        for party, targets in zip(self.parties, torch.split(self.targets, self.graph.sizes), strict=True):
            if not self.blank and holder in (-1, party) and not bool((targets >= 0).any()):
                advice = "name the one party that does with label_holder=PARTY"
                raise AtollError(f"Party {party} knows no label of a training node; {advice}.")

    # Algorithms 2 and 5: which nodes.

    @verb(public=True, takes={}, gives={"nodes": NODES})
    def draw(self) -> Fields:
        """Algorithm 5, line 3: the label holder draws S[L]."""
        return {"nodes": self._pass().sampler.top()[None].int()}

    @verb(public=True, takes={"level": LAYER, "nodes": optional(NODES)}, gives={"nodes": ragged(NODES)})
    def sample(self, level: int, nodes: Tensor | None = None) -> Fields:
        """Algorithm 2, lines 3-8: receive the united level above, sample down to this one, send the nodes it needs."""
        self.inbox.store("nodes", next(layer + 1 for layer in self.shared if layer + 1 > level), nodes)
        return {"nodes": [rows.int() for rows in self._pass().draw(level).nodes(self.graph)]}

    # Algorithms 3 and 6: joint inference.

    @verb(takes={"nodes": optional(NODES)}, gives={"hidden": HIDDEN})
    def embed(self, nodes: Tensor | None = None) -> Fields:
        """Algorithm 3, from the features to the first shared layer: what Appendix C puts noise on."""
        self.inbox.store("nodes", self.shared[0] + 1, nodes)
        return {"hidden": self._pass().local_output(self.shared[0]).detach()}

    @verb(takes={"layer": LAYER, "aggregate": JOINED}, gives={"hidden": HIDDEN})
    def infer(self, layer: int, aggregate: Tensor) -> Fields:
        """Algorithm 3: continue from the last aggregate to H⁺_m[layer]."""
        self.inbox.store("aggregate", self._shared_below(layer), aggregate)
        return {"hidden": self._pass().local_output(layer).detach()}

    @verb(takes={"aggregate": JOINED}, gives={"gradient": JOINED})
    def differentiate(self, aggregate: Tensor) -> Fields:
        """Algorithm 6, lines 15-16: ∇L_m with respect to H_m[L]."""
        self.inbox.store("aggregate", self.shared[-1], aggregate)
        top = self._pass().run()
        (gradient,) = torch.autograd.grad(self._pass().loss(top), top, retain_graph=True)
        return {"gradient": self._pass().per_party(gradient)}

    # Algorithms 4 and 7: local updates.

    @verb(takes={"aggregate": optional(JOINED), "gradient": optional(JOINED), "share": optional(HIDDEN)}, gives={})
    def train(self, aggregate: Tensor | None = None, gradient: Tensor | None = None, share: Tensor | None = None) -> None:
        """Q times Algorithm 4 (7 where another party holds the labels); or, the gradients known, one exact step."""
        s, forward = self.settings, self._pass()
        if self.shared:
            self.inbox.store("aggregate", self.shared[-1], aggregate)
            self.inbox.store("share", self.shared[0], share, each=s.aggregation == "concatenation")
        self.optimizer.lr = rate(s, forward.sampler.round, self.schema.parties)
        for _ in range(s.local_steps):
            optim.descend(self.optimizer, self._objective(forward, gradient))
            forward.next_step()
        self.clear_round()  # none of it is needed any more, not even in a checkpoint

    def _objective(self, forward: ForwardPass, gradient: Tensor | None) -> Tensor:
        """What a step descends: the party's own loss; ⟨∇L_1, H_m[L]⟩ (Eq. 3) where another holds the labels.

        With backward=server it is the sum over all shared layers.
        """
        top = forward.run()
        if self.settings.backward == "server":
            return torch.stack([forward.loss(top), *map(forward.through, self.shared)]).sum()
        return forward.loss(top) if gradient is None else (gradient * forward.per_party(top)).sum()

    # Exact gradients, through the server.

    @verb(takes={"layer": LAYER, "share": HIDDEN}, gives={"gradient": JOINED})
    def backpropagate(self, layer: int, share: Tensor) -> Fields:
        """From the party's share of a gradient, that of H⁺_m[layer], to the gradient of the aggregate below it."""
        self.inbox.store("share", layer, share, each=self.settings.aggregation == "concatenation")
        forward = self._pass()
        forward.run()
        below = forward.others[self._shared_below(layer)]
        (gradient,) = torch.autograd.grad(forward.through(layer), below, retain_graph=True)
        return {"gradient": forward.per_party(gradient)}

    # Theorem 1.

    @verb(takes={}, gives=METERS)
    def measure(self) -> Fields:
        """What Theorem 1 is about, in the coming round: see `theory`. Nothing changes by it."""
        assert self.message is not None
        if len(self.parties) < self.schema.parties:
            raise AtollError("theory needs all parties in one process: it looks at all of them at once; set theory=0.")
        return theory.measure(self, self.message.round)

    # Evaluation.

    @verb(takes={"aggregate": optional(JOINED)}, gives=COUNTS)
    def evaluate(self, aggregate: Tensor | None = None) -> Fields:
        """Counts of each party's predictions from the last aggregate."""
        logits = self.predict(aggregate)
        self.clear_round()
        return self.task.counts(logits, self.graph)

    def predict(self, aggregate: Tensor | None = None) -> Tensor:
        """(N, C) f_m(H_m[L]) of the nodes of the batch, NaN elsewhere; of pairs (M, 2)."""
        if self.shared:
            self.inbox.store("aggregate", self.shared[-1], aggregate)
        return self._pass().logits(self.graph)

    def _pass(self) -> ForwardPass:
        """The forward pass of this round; started from S[L] if there is none yet."""
        if self.forward is None:
            assert self.message is not None
            sampler = self.sampler(self.message.round, self.settings, training=self.message.training)
            self.forward = self.pass_over(PairForwardPass if self.links else ForwardPass, self.inbox, sampler)
        return self.forward

    @property
    def inputs(self) -> Graph:
        """The graph as it stands (training may see another than evaluation), with features of length 1 where asked for."""
        if not self.settings.unit_features:
            return self.graph
        if self._unit is None or self._unit[0] is not self.graph:
            self._unit = self.graph, replace(self.graph, x=unit_rows(self.graph.x))
        return self._unit[1]

    def sampler(self, round: int, settings: Settings, *, training: bool = True) -> Sampler:
        """The random choices of a round, or of an evaluation."""
        kind = PairSampler if self.links else Sampler
        return kind(self.inputs, self.targets, settings, self.seed, self.parties, round, training)

    def pass_over(self, kind: type[ForwardPass], inbox: Inbox, sampler: Sampler) -> ForwardPass:
        """A new forward pass on a round's batch."""
        return kind(self.model, inbox, sampler, self.settings, self.schema.parties, self.task)

    def _shared_below(self, layer: int) -> int:
        return self.shared[self.shared.index(layer) - 1]


def start(federation: Federation, settings: Settings) -> State:
    """The server keeps nothing from round to round but what `theory` measures."""
    last, count, links = federation.schema.parties - 1, settings.shared_layers, federation.task.name == LINK_TASK
    if federation.participation < 1:
        raise AtollError("Parties that hold the same nodes are all needed in every round; leave participation at 1.")
    if count > settings.layers:
        raise AtollError(f"shared_layers is {count}, but there are only {settings.layers} layers to share.")
    if settings.backward == "server" and (settings.local_steps != 1 or not count):
        raise AtollError("backward=server needs local_steps=1 and a shared layer; stale steps go with backward=local.")
    if links and settings.evaluation_neighbors == "sampled":
        raise AtollError("Link prediction is evaluated on the whole graph; leave evaluation_neighbors at full.")
    if not links and (settings.label_holder > last or (settings.label_holder >= 0 and not count)):
        raise AtollError(f"label_holder is {settings.label_holder}; it must be a party, 0 to {last}, and some layer shared.")
    if settings.label_holder >= 0 and last == 0 and count:
        raise AtollError("label_holder needs another party to tell; with one party leave it out.")
    if settings.theory and (settings.backward == "server" or settings.label_holder >= 0 or not count):
        raise AtollError("theory is about Algorithms 1 to 4: it needs a shared layer, backward=local and no label_holder.")
    return {"theory": theory.first()} if settings.theory else {}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Algorithm 1, round t: sample, infer together, take Q steps apart."""
    if settings.theory and (federation.round - 1) % settings.theory == 0:
        measured = require_all(federation, federation.ask("measure"))
        state = {"theory": theory.updated(state["theory"], {name: measured.stack(name) for name in METERS})}
    payload = joint_inference(federation, settings, sample(federation, settings))
    if settings.backward == "server":
        backpropagate_all(federation, settings, payload)
    elif settings.label_holder >= 0 and settings.shared_layers:
        train_with_one_label_holder(federation, settings.label_holder, payload)
    else:
        federation.tell("train", to=label_holders(federation, settings), **payload)
    return require_all(federation, state)


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Joint inference, then the mean over the parties that hold labels: they judge the same nodes, each by its own classifier."""
    payload = joint_inference(federation, settings, sample(federation, settings))
    to = label_holders(federation, settings)
    meters = theory.report(state["theory"], settings, federation.schema.parties, federation.round) if settings.theory else {}
    return metrics.evaluate(federation, to=to, **payload) | meters
