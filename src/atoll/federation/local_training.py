"""Local training: what every method does that trains a model at the parties. An algorithm is its difference from this."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any

import torch
from torch import Tensor

from atoll.errors import AtollError
from atoll.federation.cohort import MODEL, PARTY, Cohort, Fields, backbone, verb
from atoll.federation.declarations import COUNTS, WEIGHT, optional
from atoll.federation.first_model import LAYERS, require_alike, shared_part
from atoll.federation.metrics import KEPT
from atoll.graphs import minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.inference import Stage, in_blocks
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.batching import fan_outs
from atoll.models.optim import Optimizer
from atoll.models.parameters import Parameters, get_parameters, set_parameters, weighted
from atoll.models.pull import Pull
from atoll.random import Draws
from atoll.settings import BatchedTraining, Training

DECAY_LAYERS = "Which layers the weight decay is for: all, or the first alone, as in the code of Kipf and Welling's GCN."
PROPAGATE_FIRST = (
    "Dense features, model=gcn: multiply Â·X, made once, by W in place of Â·(X·W) in every step: the same network, faster on "
    "whole graphs, rounded otherwise."
)
EVALUATION_DROPOUT = "Apply dropout in evaluation, too, as FedTAD's released code does; outputs are then random."


class LocalTraining(Cohort):
    """Parties that train the server's model on their own graphs: w_k ← w, E epochs down the objective, n_k·w_k back.

    Override `objective` to train on something other than the task's loss, `pulls` to add quadratic penalties to its gradient;
    `load`, `output`, `hidden` and `party_models` where there is more than one model; `fit` and `evaluate` where something else
    arrives or goes back. Settings that are read where an algorithm has them: `local_steps` (instead of `epochs`), `batch_size`,
    `keep_optimizer`, `weighting`, `evaluation_dropout`, `decay_layers`. With settings that extend `BatchedTraining` and a
    `batch_size`, parties train in mini-batches, and evaluate in blocks of rows: `stages` is then what `output` and `hidden`
    are in blocks.

    Attributes:
        model: the parties' models, (P, …); each party's own where `memory` names it.
        optimizer: its optimizer, with a state per party.
        weights: (P,) how much each party counts in the mean.

    Examples:
        >>> import atoll
        >>> class Cohort(atoll.LocalTraining):
        ...     def objective(self, batch, draws, model):
        ...         size = sum(w.square().sum() for w in self.model.parameters())
        ...         return self.task.loss(self.output(batch, draws), batch) + 0.1 * size
        >>> sorted(Cohort.verbs().keys() - atoll.Cohort.verbs().keys())
        ['evaluate', 'fit']
    """

    memory = {"optimizer": PARTY}  # the model arrives with every message
    settings: Training

    def setup(self) -> None:
        """The model and its optimizer; parties draw first values where `memory` names the model, else load the server's.

        Where the models are judged that local training leaves, they are memory, too; before its first training a party's is zero.
        """
        s = self.settings
        require_alike(self.schema, self.share)
        if getattr(s, "propagate_first", False) and not isinstance(self.graph.x, Tensor):
            raise AtollError("propagate_first is for dense features, but these are sparse; leave it out.")
        if self.share in LAYERS:  # the rest of the model is personal
            self.memory = {**self.memory, "model": PARTY}  # type: ignore[misc]
        draws = self.first_draws("model") if "model" in self.memory else None
        if self.evaluation in KEPT:
            self.memory = {**self.memory, "model": PARTY}  # type: ignore[misc]
        self.model = backbone(s, self.schema, self.graph.parties, draws, self.graph, device=self.device)
        self.optimizer = optim.of_settings(s, self.model)

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """w_k ← w, then local training; n_k·w_k and n_k."""
        self.load(model)
        self.train(model=model)
        return {"model": weighted(self.shared(), self.weights), "n": self.weights}

    @verb(takes={"model": optional(MODEL)}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of the server's model at each party; without one, of the model that each party keeps."""
        return self.task.counts(self.predict(model), self.graph)

    def objective(self, batch: Graph, draws: Draws, *args: Any, **arguments: Any) -> Tensor:
        """What one step descends: Σ_k of each party's loss. The arguments are those that `train` was called with."""
        return self.task.loss(self.output(batch, draws), batch)

    def pulls(self, *args: Any, **arguments: Any) -> Sequence[Pull]:
        """Penalties that `objective` lacks, added to gradients: the first to those of the first optimizer's parameters."""
        return ()

    def train(self, *args: Any, **arguments: Any) -> Tensor:
        """`epochs` passes over the party's own training items, or `local_steps` steps; how many steps each party took (P,)."""
        if not getattr(self.settings, "keep_optimizer", True):
            for optimizer in self.optimizers:
                optimizer.reset()
        return self.descend(self.optimizers, self.draws(), *args, **arguments)

    def descend(self, optimizers: Sequence[Optimizer], draws: Draws, *args: Any, **arguments: Any) -> Tensor:
        """The steps of local training, and how many of them each party took (P,)."""
        steps = torch.zeros(self.graph.parties, dtype=torch.int64, device=self.device)
        pulls = self.pulls(*args, **arguments)
        for batch in self.batches(draws):
            loss = self.objective(batch, draws, *args, **arguments)
            self.stepped(optim.descend(optimizers, loss, batch.active, pulls), batch)
            steps += 1 if batch.active is None else batch.active.long()
        return steps

    def stepped(self, gradients: Sequence[Tensor], batch: Graph) -> None:
        """Called after every step, with the gradients that it went down, in the order of the optimizers' parameters."""

    def batches(self, draws: Draws, epochs: int | None = None) -> Iterator[Graph]:
        """The graphs of this round's steps, in order; those of that many `epochs` where they are given."""
        steps = getattr(self.settings, "local_steps", None)
        endless = self._endless(draws)
        if steps is None or epochs is not None:
            for _ in range(self.settings.epochs if epochs is None else epochs):
                yield from next(endless)
        else:
            yield from islice(chain.from_iterable(endless), steps)

    def _endless(self, draws: Draws) -> Iterator[Iterator[Graph]]:
        """One epoch after the other. What is sampled does not depend on what dropout draws."""
        sampling = self.draws("batches") if self.batched else draws
        while True:
            yield self.epoch(sampling)

    def epoch(self, draws: Draws) -> Iterator[Graph]:
        """One pass over the parties' training items: the whole graph, once, or its mini-batches."""
        s = self.settings
        if not (self.batched and isinstance(s, BatchedTraining)):
            return self.task.batches(self.graph, getattr(s, "batch_size", 0), draws)
        return minibatch.epoch(self.graph, s.batch_size, fan_outs(s, self.hops), s.sampler, draws)

    @property
    def batched(self) -> bool:
        """Whether the parties train in mini-batches of nodes; batches of graphs are the task's."""
        nodes = self.graph.of_nodes
        return nodes and isinstance(self.settings, BatchedTraining) and self.settings.batch_size > 0

    @property
    def hops(self) -> int | None:
        """Over how many edges the parties' network reads; None where it cannot be trained on sampled neighbors."""
        return self.model.hops

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """The parties' network as it stands, one propagation at a time; None where it cannot be computed in blocks.

        Override it along with `output` and `hidden`.
        """
        overridden = type(self).output is not LocalTraining.output or type(self).hidden is not LocalTraining.hidden
        return None if overridden else self.model.stages(embed=embed)

    @property
    def share(self) -> str:
        """Which parameters travel: all, those of some layers (see `shared_part`), or none."""
        return str(getattr(self.settings, "share", "all"))

    def shared(self) -> Parameters:
        """The parameters that travel, (P, …), as live views."""
        return shared_part(self.model, self.settings)

    @property
    def optimizers(self) -> Sequence[Optimizer]:
        """What takes a step down the objective."""
        return [self.optimizer]

    @property
    def weights(self) -> Tensor:
        """(P,) n_k, how much each party counts: its training items; with the setting `weighting`, perhaps all nodes, or 1."""
        weighting = getattr(self.settings, "weighting", "train")
        if weighting == "parties":
            return torch.ones(self.graph.parties, dtype=torch.int64, device=self.device)
        return self.graph.item_ptr.diff() if weighting == "nodes" else self.graph.num_train

    def load(self, model: Fields | None = None) -> None:
        """w_k ← w; without an argument the model stays as it is."""
        if model is not None:
            personal = get_parameters(self.model) if self.share in LAYERS else {}
            set_parameters(self.model, {**personal, **model})

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, C) the output of the model as it stands, in training with draws."""
        out: Tensor = self.model(graph, draws)
        return out

    def hidden(self, graph: Graph) -> Tensor | None:
        """(N, h) the last hidden representation of the model as it stands; None where there is no single one."""
        return self.model.embed(graph)

    def predict(self, *args: Any, **arguments: Any) -> Tensor:
        """(N, C) the output of what `load` makes of the arguments."""
        self.load(*args, **arguments)
        if self.batched and (stages := self.stages()) is not None:
            return in_blocks(stages, self.graph)
        return self.output(self.graph, self.evaluation_draws())

    def evaluation_draws(self) -> Draws | None:
        """Draws of an evaluation, the same for every call in a round; none unless dropout is applied in evaluation."""
        if not getattr(self.settings, "evaluation_dropout", False):
            return None
        round = 0 if self.message is None else self.message.round
        return Draws(self.seed, self.parties, "evaluation", round, device=self.device)

    def embeddings(self, *args: Any, **arguments: Any) -> Tensor | None:
        """(N, h) the last hidden representation of what `load` makes of the arguments."""
        self.load(*args, **arguments)
        if self.batched and (stages := self.stages(embed=True)) is not None:
            return in_blocks(stages, self.graph)
        return self.hidden(self.graph)

    def party_models(self, *args: Any, **arguments: Any) -> Backbone:
        """The model that `load` makes of the arguments."""
        self.load(*args, **arguments)
        return self.model
