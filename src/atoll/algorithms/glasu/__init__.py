"""GLASU: a communication-efficient algorithm for federated learning with vertically distributed graph data. Zhang et al.

M parties hold the same nodes, other features and other edges. Each has its own L-layer network; after K of the L layers the
server replaces the parties' representations by their mean or concatenation (lazy aggregation); between two such rounds every
party takes Q steps on the same batch, its own representations fresh, the others' stale. The server has no parameters.

Payload bytes a round and party, h the hidden width, n_l the nodes of the level above a shared layer l (all nodes where nothing is
sampled), s_l ≤ n_l those the party sampled itself: up Σ_l 4·h·n_l, down the same (concatenation: M times as much), and for the
index sets of all shared levels but the last up Σ 4·s_l, down Σ 4·n_l. K exchanges for Q steps instead of L for each: QL/K fewer.
`backward=server` sends as much again for the gradients. With one label holder it sends the batch, 4·n, and the gradient, 4·h·n.

Derived from the run's seed and round, and so never sent: the batch S[L], drawn from the training nodes that all parties know.
The server sees sums of hidden representations (with `concatenation` each party's) and which nodes each party sampled. The parties
see the aggregates and the united index sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.glasu.settings import Settings, sampled, shared
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, Message, verb
from atoll.federation.declarations import COUNTS, ROWS, Case, Numbers, Scalar, nodes, optional, ragged, real
from atoll.federation.federation import Federation
from atoll.graphs.blocks import broadcast_to_rows
from atoll.graphs.sampling import Batch, Level, below
from atoll.models import optim
from atoll.models.split import SPLITS, SplitShape
from atoll.random import SERVER, Draws, generator

SCENARIOS = ("vertical",)
Reply = TypeVar("Reply")
YARDSTICKS = {"centralized": "centralized_vertical"}  # what `centralized` means in a comparison with this algorithm


def wide(case: Case) -> int:
    """Columns of what the server joins: of one representation, or of all parties' side by side."""
    s: Settings = case.settings
    return s.hidden * (case.schema.parties if s.aggregation == "concatenation" else 1)


NODES = nodes(ROWS)  # S[l]
HIDDEN = real(ROWS, "hidden")  # H⁺_m[l], and its gradient
JOINED: Numbers = real(ROWS, wide)  # H[l + 1], and its gradient
LAYER = Scalar(0, lambda case: case.settings.layers - 1)


@dataclass
class Work:
    """What a party has computed in this round; all of it follows from its memory and can be computed again."""

    batch: Batch
    step: int = 0  # q
    hidden: list[Tensor] = field(default_factory=list)  # H_m[0], H_m[1], …
    local: dict[int, Tensor] = field(default_factory=dict)  # H⁺_m[l]
    others: dict[int, Tensor] = field(default_factory=dict)  # H_−m[l + 1], l ∈ 𝓘

    def again(self) -> None:
        """The next step q on the same batch."""
        self.step, self.hidden, self.local = self.step + 1, [], {}


class Cohort(atoll.federation.cohort.Cohort):
    """Parties that hold other columns and edges of the same nodes."""

    memory = {"model": PARTY, "optimizer": PARTY, "heard": PARTY}
    settings: Settings

    def setup(self) -> None:
        """A network for each party, and an empty notebook."""
        s, count = self.settings, len(self.parties)
        self.shared = shared(s)
        shape = SplitShape(
            parties=count,
            features=self.schema.features,
            classes=self.schema.classes,
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
        self.model = SPLITS[s.model](shape, self.first_draws("model"), common)
        self.optimizer = optim.make(s.optimizer, self.model, s.lr, s.weight_decay, s.momentum)
        self.targets = torch.where(self.graph.train, self.graph.y, -1)
        if s.label_holder >= 0:
            holder = torch.tensor([party == s.label_holder for party in self.parties])
            self.targets = torch.where(holder[self.graph.party], self.targets, -1)
        self._check_labels()
        self.forget()

    def _check_labels(self) -> None:
        """Refuse a party that has to know labels of training nodes and knows none."""
        holder = self.settings.label_holder
        for party, own in zip(self.parties, torch.split(self.targets, self.graph.sizes), strict=True):
            if holder in (-1, party) and not bool((own >= 0).any()):
                raise AtollError(
                    f"Party {party} knows no label of a training node; name the one party that does with label_holder=PARTY."
                )

    # The notebook: index sets by level, aggregates and gradients by layer as the server said them in this round.

    def answer(self, message: Message) -> Fields:
        """Every round, and every evaluation, begins with an empty notebook."""
        if message.parties == self.parties:
            self.round, self.training = message.round, message.training
            page = 2 * self.round + self.training
            if not bool((self.heard["page"] == page).all()):
                self.forget(page)
        return super().answer(message)

    def forget(self, page: int = -1) -> None:
        """An empty notebook, opened at that page."""
        kinds = [f"nodes.{layer + 1}" for layer in self.shared]
        kinds += [f"{kind}.{layer}" for kind in ("aggregate", "share") for layer in self.shared]
        self.heard: Fields = {kind: [torch.empty(0)] * len(self.parties) for kind in kinds}
        self.heard["page"] = torch.full((len(self.parties),), page)
        self.work: Work | None = None

    def hear(self, kind: str, place: int, value: Tensor | None, *, each: bool = False) -> None:
        """Note what arrived: the same for every party, or with `each` a row a party."""
        if value is not None:
            self.heard[f"{kind}.{place}"] = list(value) if each else [value] * len(self.parties)

    def noted(self, kind: str, place: int) -> Tensor | None:
        """(P, …) what was heard; None where nothing was."""
        values = self.heard.get(f"{kind}.{place}", [torch.empty(0)])
        if values[0].numel() == 0:
            return None
        alike = all(value is values[0] for value in values)
        return values[0].expand(len(values), *values[0].shape) if alike else torch.stack(values)

    # Algorithm 2: which nodes.

    @property
    def progress(self) -> Work:
        """The round's work; begun where there is none, when only S[L] is known."""
        if self.work is None:
            self.work = Work(self._batch())
        return self.work

    def _batch(self) -> Batch:
        s, graph = self.settings, self.graph
        if not sampled(s, self.training):
            return Batch.everything(graph, s.layers)
        nodes = self.noted("nodes", s.layers)
        top = Level.alike(graph, list(self._top().expand(len(self.parties), -1) if nodes is None else nodes))
        return Batch.of(graph, s.layers, top) if self.model.edges else Batch(graph, [top] * (s.layers + 1))

    def _top(self) -> Tensor:
        """S[L]: uniformly chosen training nodes, the same at every party; in a sampled evaluation the nodes that are judged."""
        size = self.graph.sizes[0]
        if not self.training:
            return (self.graph.val | self.graph.test)[:size].nonzero()[:, 0]
        choice = (self.targets >= 0).view(-1, size).any(0).nonzero()[:, 0]
        order = torch.randperm(len(choice), generator=generator(self.seed, "batch", self.round))
        return choice[order[: self.settings.batch_size]]

    def _fill(self, lowest: int) -> Batch:
        """The levels down to `lowest`: united ones as they were heard, the others drawn."""
        batch = self.progress.batch
        for level in reversed(range(lowest, self.settings.layers)):
            if batch.levels[level] is None:
                united = self.noted("nodes", level)
                batch.levels[level] = self._drawn(level) if united is None else Level.alike(self.graph, list(united))
        return batch

    def _drawn(self, level: int) -> Level:
        """S_m[l] from the neighbours of S_m[l + 1]."""
        draws = Draws(self.seed, self.parties, "sample", self.round, int(self.training), level)
        return below(self.graph, self.progress.batch.level(level + 1), self.settings.fan_out, draws.generators)

    @verb(public=True, takes={}, gives={"nodes": NODES})
    def draw(self) -> Fields:
        """Algorithm 5, line 3: the label holder chooses S[L]."""
        return {"nodes": self._top()[None].int()}

    @verb(public=True, takes={"level": LAYER, "nodes": optional(NODES)}, gives={"nodes": ragged(NODES)})
    def sample(self, level: int, nodes: Tensor | None = None) -> Fields:
        """Lines 3-8: take the united level above, sample down to this one, say which nodes it needs."""
        self.hear("nodes", next(layer + 1 for layer in self.shared if layer + 1 > level), nodes)
        self._fill(level + 1)
        return {"nodes": [own.int() for own in self._drawn(level).nodes(self.graph)]}

    # Algorithms 3 and 4: representations and steps.

    @verb(takes={"nodes": optional(NODES)}, gives={"hidden": HIDDEN})
    def embed(self, nodes: Tensor | None = None) -> Fields:
        """Algorithm 3, from the features to the first shared layer: what Appendix C puts noise on."""
        self.hear("nodes", self.shared[0] + 1, nodes)
        return {"hidden": self._apart(self._run(self.shared[0]).detach())}

    @verb(takes={"layer": LAYER, "aggregate": JOINED}, gives={"hidden": HIDDEN})
    def infer(self, layer: int, aggregate: Tensor) -> Fields:
        """Algorithm 3: go on from the last aggregate to H⁺_m[layer]."""
        self.hear("aggregate", self.shared[self.shared.index(layer) - 1], aggregate)
        return {"hidden": self._apart(self._run(layer).detach())}

    @verb(takes={"aggregate": optional(JOINED), "gradient": optional(JOINED), "share": optional(HIDDEN)}, gives={})
    def train(self, aggregate: Tensor | None = None, gradient: Tensor | None = None, share: Tensor | None = None) -> None:
        """Q times Algorithm 4 (7 where another party holds the labels); or, the gradients known, one exact step."""
        s = self.settings
        if self.shared:
            self.hear("aggregate", self.shared[-1], aggregate)
            self.hear("share", self.shared[0], share, each=s.aggregation == "concatenation")
        self.optimizer.lr = s.lr * s.lr_decay ** ((self.round - 1) // s.lr_every if s.lr_every else 0)
        for _ in range(s.local_steps):
            optim.descend(self.optimizer, self._objective(self._run(), gradient))
            self.progress.again()
        self.forget()

    @verb(takes={"aggregate": JOINED}, gives={"gradient": JOINED})
    def differentiate(self, aggregate: Tensor) -> Fields:
        """∇L_m with respect to H_m[L]: where the way back begins (Algorithm 6, lines 15-16)."""
        self.hear("aggregate", self.shared[-1], aggregate)
        top = self._run()
        (found,) = torch.autograd.grad(self._loss(top), top, retain_graph=True)
        return {"gradient": self._apart(found)}

    @verb(takes={"layer": LAYER, "share": HIDDEN}, gives={"gradient": JOINED})
    def backpropagate(self, layer: int, share: Tensor) -> Fields:
        """From the party's share of a gradient, that of H⁺_m[layer], to the gradient of the aggregate below it."""
        self.hear("share", layer, share, each=self.settings.aggregation == "concatenation")
        self._run()
        aggregate = self.progress.others[self.shared[self.shared.index(layer) - 1]]
        (found,) = torch.autograd.grad(self._pull(layer), aggregate, retain_graph=True)
        return {"gradient": self._apart(found)}

    @verb(takes={"aggregate": optional(JOINED)}, gives=COUNTS)
    def evaluate(self, aggregate: Tensor | None = None) -> Fields:
        """Counts of each party's predictions from the last aggregate."""
        if self.shared:
            self.hear("aggregate", self.shared[-1], aggregate)
        logits = self.model.classify(self._run(), self.progress.batch, None)
        if len(logits) < self.graph.num_nodes:
            rows = torch.from_numpy(self.progress.batch.level(self.settings.layers).rows)
            logits = logits.new_zeros(self.graph.num_nodes, logits.shape[1]).index_copy_(0, rows, logits)
        self.forget()
        return metrics.local_counts(logits, self.graph)

    def _run(self, target: int | None = None) -> Tensor:
        """Lines 2-10 of Algorithm 4, on from where the work stands: to H⁺_m[target], or to H_m[L]."""
        work, model, layers = self.progress, self.model, self.settings.layers
        batch = self._fill(0)
        if not work.hidden:
            work.hidden.append(model.encode(batch))
        for layer in range(len(work.hidden) - 1, layers):
            if layer not in work.local:
                work.local[layer] = model.layer(layer, work.hidden, batch, self._dropout(layer))
            if layer == target:
                return work.local[layer]
            passed = self._aggregate(layer, work.local[layer]) if layer in self.shared else work.local[layer]
            work.hidden.append(model.merge(layer + 1, passed, batch))
        return work.hidden[layers]

    def _dropout(self, layer: int) -> Draws | None:
        """Fresh masks for every step and layer; the first step's are those of the joint inference, which it continues."""
        if not self.training or not self.settings.dropout:
            return None
        return Draws(self.seed, self.parties, "dropout", self.round, self.progress.step, layer)

    def _aggregate(self, layer: int, local: Tensor) -> Tensor:
        """H_m[l + 1] = Agg(H_−m[l + 1], H⁺_m[l]); in evaluation, and where the server differentiates, what the server said."""
        work, s = self.progress, self.settings
        heard = self.noted("aggregate", layer)
        assert heard is not None
        if not self.training:
            return heard.flatten(0, 1)
        if s.backward == "server":
            work.others[layer] = heard.flatten(0, 1).clone().requires_grad_()
            return work.others[layer]
        own, width = self._apart(local), s.hidden
        if s.aggregation == "concatenation":
            rows = zip(heard, own, self.parties, strict=True)
            return torch.cat([torch.cat([x[:, : p * width], h, x[:, (p + 1) * width :]], 1) for x, h, p in rows])
        share = own / self.schema.parties
        if layer not in work.others:
            work.others[layer] = heard - share.detach()  # Extract
        return (work.others[layer] + share).flatten(0, 1)

    def _objective(self, top: Tensor, gradient: Tensor | None) -> Tensor:
        """What a step goes down: the party's own loss; ⟨∇L_1, H_m[L]⟩ where another holds the labels; or all ways back."""
        if self.settings.backward == "server":
            return torch.stack([self._loss(top), *map(self._pull, self.shared)]).sum()
        return self._loss(top) if gradient is None else (gradient * self._apart(top)).sum()

    def _pull(self, layer: int) -> Tensor:
        """⟨∇, H⁺_m[l]⟩: its gradient is the loss's by way of this layer."""
        heard = self.noted("share", layer)
        assert heard is not None
        return (heard * self._apart(self.progress.local[layer])).sum()

    def _loss(self, top: Tensor) -> Tensor:
        """Σ_m mean over S[L] of ℓ(y, f_m(H_m[L])), over the parties that hold labels."""
        batch, layers = self.progress.batch, self.settings.layers
        y = self.targets[torch.from_numpy(batch.level(layers).rows)]
        losses = F.cross_entropy(self.model.classify(top, batch, self._dropout(layers)), y, ignore_index=-1, reduction="none")
        counts = batch.blocks(layers).sum((y >= 0).float()).clamp(min=1)
        return (losses / broadcast_to_rows(counts, batch.blocks(layers))).sum()

    def _apart(self, rows: Tensor) -> Tensor:
        """(P·n, h) → (P, n, h)."""
        return rows.view(len(self.parties), -1, rows.shape[1])


def start(federation: Federation, settings: Settings) -> State:
    """The server keeps nothing from round to round."""
    last, count = federation.schema.parties - 1, settings.shared_layers
    if federation.participation < 1:
        raise AtollError("Parties that hold the same nodes are all needed in every round; leave participation at 1.")
    if count > settings.layers:
        raise AtollError(f"shared_layers is {count}, but there are only {settings.layers} layers to share.")
    if settings.backward == "server" and (settings.local_steps != 1 or not count):
        raise AtollError("backward=server needs local_steps=1 and a shared layer; stale steps go with backward=local.")
    if settings.label_holder > last or (settings.label_holder >= 0 and not count):
        raise AtollError(f"label_holder is {settings.label_holder}; it must be a party, 0 to {last}, and some layer shared.")
    if settings.label_holder >= 0 and last == 0:
        raise AtollError("label_holder needs another party to tell; with one party leave it out.")
    return {}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Algorithm 1, round t: sample, infer together, take Q steps apart."""
    news = infer(federation, settings, sample(federation, settings))
    holder = settings.label_holder
    if settings.backward == "server":
        go_back(federation, settings, news)
    elif holder >= 0:
        gradient = complete(federation, federation.ask("differentiate", to=[holder], **news)).stack("gradient")[0]  # ∇L_1
        federation.tell("train", to=[holder])
        federation.tell("train", to=[p for p in federation.parties if p != holder], gradient=gradient, **news)
    else:
        federation.tell("train", **news)
    return complete(federation, state)


def sample(federation: Federation, settings: Settings) -> Fields:
    """Algorithm 2, the server: unite the parties' index sets level by level; what is left to be said is the lowest."""
    news: Fields = {}
    if not sampled(settings, federation.training):
        return news
    if settings.label_holder >= 0 and federation.training:
        news = {
            "nodes": complete(federation, federation.ask("draw", to=[settings.label_holder])).stack("nodes")[0]
        }  # Algorithm 5
    for layer in reversed(shared(settings)[:-1] if SPLITS[settings.model].edges else []):
        replies = complete(federation, federation.ask("sample", level=layer + 1, **news))
        news = {"nodes": torch.unique(torch.cat(replies.stack("nodes")))}  # ⋃_m S_m[l]
    return news


def infer(federation: Federation, settings: Settings, news: Fields) -> Fields:
    """Algorithm 3, the server: aggregate layer after layer; what is left to be said is the last aggregate."""
    for place, layer in enumerate(shared(settings)):
        asked: Fields = {"verb": "infer", "layer": layer} if place else {"verb": "embed"}
        if settings.aggregation == "mean":
            total = complete(federation, federation.total(**asked, **news))["hidden"]
            news = {"aggregate": total / federation.schema.parties}
        else:
            replies = complete(federation, federation.ask(**asked, **news))
            news = {"aggregate": replies.stack("hidden").transpose(0, 1).flatten(1)}
    return news


def go_back(federation: Federation, settings: Settings, news: Fields) -> None:
    """Exact gradients: the sum over the parties of an aggregate's goes on to the representations it was made of."""
    total = complete(federation, federation.total("differentiate", **news))["gradient"]
    for layer in reversed(shared(settings)):
        if settings.aggregation == "mean":
            shares: Fields = {"share": total / federation.schema.parties}
        else:
            shares = {"each": {"share": total.view(len(total), -1, settings.hidden).transpose(0, 1).contiguous()}}
        if layer == shared(settings)[0]:
            federation.tell("train", **shares)
        else:
            total = complete(federation, federation.total("backpropagate", layer=layer, **shares))["gradient"]


def complete(federation: Federation, replies: Reply) -> Reply:
    """The replies, if all parties are there: what the others hold cannot make up for a missing one."""
    if federation.missing:
        missing = federation.reasons(federation.missing)
        raise AtollError(
            f"Round {federation.round}: parties that hold the same nodes are all needed, and some are missing ({missing})."
        )
    return replies


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Joint inference, then the mean over the parties that hold labels: they judge the same nodes, each by its own classifier."""
    news = infer(federation, settings, sample(federation, settings))
    to = federation.parties if settings.label_holder < 0 else [settings.label_holder]
    return metrics.evaluate(federation, to=to, **news)
