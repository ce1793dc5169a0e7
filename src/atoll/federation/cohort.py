"""Cohorts: the parties that live in one process, the verbs they answer and the memory they keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll import deferred
from atoll.device import CPU, wide
from atoll.errors import AtollError
from atoll.federation import agreements, class_counts, secure_steps, transfer, value_scale
from atoll.federation.bounds import Limits
from atoll.federation.fields import Fields, pick, put, take
from atoll.federation.first_model import MODEL, backbone, first_model
from atoll.federation.memory import (
    AXES,
    NODE,
    PARTY,
    PHASE,
    STORED_FEATURE,
    TRAIN_ITEM,
    axes_of,
    declared_memory,
    restore_attributes,
    rows_of,
    state_of,
)
from atoll.federation.messages import Guard, Message, Schema, verb
from atoll.federation.observation import Observation, graph_for
from atoll.federation.round_memory import enter_phase
from atoll.graphs.graph import Graph
from atoll.graphs.masks import only_own
from atoll.models.backbone import Backbone
from atoll.models.optim import Optimizer
from atoll.parties import Parties
from atoll.privacy.masking import SECURE_STEPS
from atoll.privacy.secrets import Secrets
from atoll.random import Draws, Word
from atoll.tasks import DEFAULT_TASK, TASKS, Task

__all__ = [
    "AXES",
    "MODEL",
    "NODE",
    "PARTY",
    "STORED_FEATURE",
    "TRAIN_ITEM",
    "Cohort",
    "Fields",
    "Guard",
    "Message",
    "Observation",
    "Schema",
    "backbone",
    "first_model",
    "pick",
    "verb",
]
MAX_SUBGRAPHS = 4  # graphs of some of a cohort's parties that are kept for the next message to the same ones


class Cohort:
    """The parties of one site: private graphs in one block-diagonal graph, a memory, the verbs they answer.

    Written once for any number of parties: parameters and replies carry a leading party axis; a party alone is P = 1.
    What is not declared in `memory` or `round_memory` must follow from what is: a cohort may be rebuilt before any message.

    Attributes:
        graph: The parties' graphs, block-diagonal.
        settings: The algorithm's settings.
        schema: What every party and the server may know of the data: features, classes, parties.
        parties: The parties' numbers.
        memory: Declared by a subclass: attribute → its first axis (`PARTY`, `NODE`, `TRAIN_ITEM`, `STORED_FEATURE`).
        round_memory: Likewise, for what lasts one round only.

    Examples:
        >>> import atoll
        >>> class Counting(atoll.Cohort):
        ...     @atoll.verb(public=True)
        ...     def count(self):
        ...         return {"nodes": self.graph.ptr.diff()}  # one number per party
        >>> "count" in Counting.verbs()
        True
    """

    memory: ClassVar[Mapping[str, str]] = {}  # attributes that survive between messages, restarts and resume → their first axis
    round_memory: ClassVar[Mapping[str, str]] = {}  # likewise, but within one round or one evaluation only
    training_memory: ClassVar[frozenset[str]] = frozenset()  # what of `memory` predictions do not need; optimizers never are
    graph_memory: ClassVar[frozenset[str]] = (
        frozenset()
    )  # what of it is about the graph that it was made on, and goes to no other
    no_backbone: ClassVar[str] = ""  # why the parties do not predict with a backbone each, in words; empty where they do
    one_graph: ClassVar[str] = ""  # why the parties cannot train on another graph than they predict on, in words; empty: they can
    about_nodes: ClassVar[Sequence[str]] = ()  # arguments of `evaluate` about the nodes of training, left out for new nodes
    whole_graph: ClassVar[str] = ""  # why the parties cannot train in mini-batches, in words; empty where that is not the reason
    same_backbone: ClassVar[bool] = False  # whether all parties predict with the same one, whatever else `evaluate` brings
    limits: Limits | None = None  # what the verbs declare, in this run
    clean_graph: Graph | None = None  # what evaluation uses in place of `graph`, where training uses a damaged one
    class_weights: Tensor  # (P, C) of the loss, where they follow from the federation's class counts
    scale_of_values: Tensor  # (P, T, 2) mean and deviation of each value, where they follow from the federation's sums

    def __init__(
        self,
        graph: Graph,
        settings: Any,
        schema: Schema,
        seed: int,
        parties: Sequence[int],
        guards: Sequence[Guard] = (),
        *,
        secrets: Secrets | None = None,
        blank: bool = False,
        task: Task | None = None,
        evaluation: str = "auto",
    ) -> None:
        """`secrets`: for secure totals; not part of the memory. `blank` skips the first random values: memory is about to be
        restored. `evaluation`: which models are judged, where there are several."""
        self.graph = graph
        self.settings = settings
        self.schema = schema
        self.task = task or TASKS.find(DEFAULT_TASK)
        self.seed = seed
        self.parties = Parties(parties)
        self.guards = tuple(guards)
        self.secrets = secrets
        self.blank, self.evaluation = blank, evaluation
        self.message: Message | None = None
        self.subgraphs: dict[bytes, tuple[Graph, Graph | None]] = {}  # and the clean ones
        unbegun = torch.full((len(self.parties),), -1, device=self.device)
        self.phase = unbegun  # 2·round + training that the round memory of each party belongs to
        self.entered: int | None = None  # the same, once it is known of all parties
        agreements.declare(self)
        self.setup()
        self.clear_round()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.memory = declared_memory(cls.__module__, cls.memory, cls.round_memory)

    @property
    def device(self) -> torch.device:
        """Where the parties compute: whatever they make is made there (`device=self.device`), or like what is there."""
        return self.graph.device

    def setup(self) -> None:
        """Make the things named in `memory`."""

    def clear_round(self) -> None:
        """Make the things named in `round_memory`, empty; called when a round or an evaluation begins."""

    def predict(self, *args: Any, **arguments: Any) -> Tensor:
        """(N, C) the output of every node here, from the arguments of the verb `evaluate`, which counts it.

        It is not a verb: only the process that holds the parties can call it, for instance to report on a run.
        """
        raise AtollError(f"{type(self).__module__} has no `predict`.")

    def embeddings(self, *args: Any, **arguments: Any) -> Tensor | None:
        """(N, h) the last hidden representation of every node here, from the arguments of the verb `evaluate`.

        None where no single model at the parties has one: split between parties and server, or in several channels.
        """
        return None

    def party_models(self, *args: Any, **arguments: Any) -> Backbone:
        """The backbones (P, …) that the parties predict with, from the arguments of the verb `evaluate`: what an export holds."""
        raise AtollError(f"{type(self).__module__} has no `party_models`, which says what its parties predict with.")

    def draws(self, *words: Word) -> Draws:
        """The parties' own randomness for this call: a function of seed, party, round, call and the words only."""
        call: tuple[Word, ...] = ("setup",)
        if self.message is not None:
            call = (self.message.verb, self.message.round, self.message.call)
        return Draws(self.seed, self.parties, *call, *words, device=self.device)

    def first_draws(self, *words: Word) -> Draws | None:
        """Randomness for first values, on the CPU; None where memory is about to be restored."""
        return None if self.blank else Draws(self.seed, self.parties, "setup", *words)

    def answer(self, message: Message) -> Fields:
        """Call a verb for the addressed parties, all of which live here."""
        method = self.verb_named(message.verb)
        if message.parties != self.parties and message.verb not in SECURE_STEPS:
            return self._answer_for_some(message)
        self._receive(message)
        sessions = secure_steps.enter_sessions(self, message, message.secure) if message.secure is not None else []
        device = CPU if message.verb in SECURE_STEPS else self.device
        with torch.set_grad_enabled(message.training), graph_for(self, message, judged=message.verb == "evaluate"):
            common, each = (transfer.to_device(part, device) for part in (message.common, message.each))
            fields: Fields = transfer.to_cpu(method(self, **common, **each) or {}, device)
        if wide(device) != torch.float64 and self.limits is not None:
            fields = transfer.widened(fields, self.limits.reply(replace(message, secure=None)) or {})
        for guard in self.guards:
            fields = guard(message, fields, Draws(self.seed, self.parties, "guard", message.verb, message.round, message.call))
        if message.secure is not None:
            fields = deferred.dense(fields)
            if self.limits is not None:
                self.limits.check_own(message, fields, len(self.parties))
            return secure_steps.secrets_of(self).mask(fields, message.parties, sessions)
        if self.secrets is not None and fields and self.verbs()[message.verb] == "private":
            raise AtollError(
                f"Secure aggregation is on and {message.verb!r} is private: its reply does not leave the party unmasked."
            )
        return fields

    def _receive(self, message: Message) -> None:
        self.message = message
        agreements.apply(self, message)
        if self.round_memory and message.verb not in SECURE_STEPS:
            enter_phase(self, 2 * message.round + message.training)

    count_classes = class_counts.count_classes
    set_class_weights = class_counts.set_class_weights
    sum_values = value_scale.sum_values
    set_value_scale = value_scale.set_value_scale
    secure_keys = secure_steps.secure_keys
    secure_shares = secure_steps.secure_shares
    secure_open = secure_steps.secure_open
    secure_confirm = secure_steps.secure_confirm
    secure_reveal = secure_steps.secure_reveal

    def _answer_for_some(self, message: Message) -> Fields:
        """Build a cohort of the addressed parties alone, let it answer, and take its memory back."""
        part, whole, rows = self._part(message.parties)
        fields = part.answer(message)
        for name, value in part.live().items():
            whole[name] = put(whole[name], rows[name], value)
        self.restore(whole)
        return fields

    def observe(self, message: Message, *, hidden: bool = True) -> Observation:
        """What the parties that an `evaluate` message addresses predict; nothing is counted or sent."""
        if message.parties != self.parties:
            return self._part(message.parties)[0].observe(message, hidden=hidden)
        self._receive(message)
        arguments = transfer.to_device({**message.common, **message.each}, self.device)
        with torch.no_grad(), graph_for(self, message):
            output, embeddings = self.predict(**arguments), self.embeddings(**arguments) if hidden else None
            output, embeddings = transfer.to_cpu([only_own(output, self.graph), embeddings], self.device)
            return Observation(self.parties, self.graph.host, output, embeddings, personal=bool(message.each))

    def _part(self, parties: Parties) -> tuple[Cohort, Fields, dict[str, Tensor]]:
        """A cohort of some of the parties; the memory of all, and the rows of theirs in each piece of it."""
        index = self.parties.indices(parties)
        key = index.tobytes()
        if key not in self.subgraphs:
            while len(self.subgraphs) >= MAX_SUBGRAPHS:
                self.subgraphs.pop(next(iter(self.subgraphs)))
            clean = None if self.clean_graph is None else self.clean_graph.slice(index)
            self.subgraphs[key] = self.graph.slice(index), clean
        graph, clean = self.subgraphs[key]
        part = type(self)(
            *(graph, self.settings, self.schema, self.seed, parties, self.guards),
            secrets=self.secrets,
            blank=True,
            task=self.task,
            evaluation=self.evaluation,
        )
        part.limits = self.limits
        part.clean_graph = clean
        whole = self.live()
        axes = axes_of(self.memory, self.round_memory)
        rows = {name: rows_of(index, axes[name], self.graph) for name in whole}
        part.restore({name: take(whole[name], rows[name]) for name in whole})
        return part, whole, rows

    @classmethod
    def verb_named(cls, name: str) -> Callable[..., Fields | None]:
        """The method behind a verb; nothing else of a cohort can be reached."""
        method: Any = getattr(cls, name, None)
        if getattr(method, "verb", None) is None:
            raise AtollError(f"{cls.__module__} has no verb {name!r}; its verbs are {', '.join(cls.verbs())}.")
        function: Callable[..., Fields | None] = method
        return function

    @classmethod
    def verbs(cls) -> dict[str, str]:
        """The verbs by name, each `public` or `private`."""
        methods = {name: getattr(cls, name) for name in dir(cls)}
        return {name: method.verb for name, method in methods.items() if callable(method) and hasattr(method, "verb")}

    @classmethod
    def averaged(cls) -> dict[str, dict[str, str]]:
        """The verbs whose replies are averaged: verb → field → the field that holds its weight."""
        declared = {name: getattr(cls, name).averaged for name in cls.verbs()}
        return {name: fields for name, fields in declared.items() if fields}

    def state(self) -> Fields:
        """The whole memory as tensors of the CPU, the round's included."""
        state: Fields = transfer.to_cpu(self.live(), self.device)
        return state

    def live(self) -> Fields:
        """The whole memory as the tensors that it is, on their device."""
        state = {name: state_of(getattr(self, name)) for name in (*self.memory, *self.round_memory)}
        return state | {PHASE: self.phase} if self.round_memory else state

    @property
    def predicting(self) -> list[str]:
        """The names of the memory that makes predictions: all but the round's and what only training needs."""
        names = [name for name in self.memory if name not in {*agreements.MEMORIES, *self.training_memory}]
        return [name for name in names if not isinstance(getattr(self, name), Optimizer)]

    def trained(self) -> Fields:
        """What of the memory makes predictions, as tensors of the CPU."""
        states = {name: state_of(getattr(self, name)) for name in self.predicting}
        kept = {name: state for name, state in states.items() if not (isinstance(state, Mapping) and not state)}  # nothing in it
        trained: Fields = transfer.to_cpu(kept, self.device)
        return trained

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Return to what `state` gave."""
        declared = {*self.memory, *self.round_memory, *([PHASE] if self.round_memory else [])}
        if unknown := sorted(memory.keys() - declared):
            raise AtollError(f"{type(self).__module__}: the saved memory holds {unknown[0]!r}, which is not declared.")
        self.entered = None
        restore_attributes(self, transfer.to_device(memory, self.device))

    def transfer(self, memory: Mapping[str, Any]) -> None:
        """Take what `trained` gave to predict other nodes than those it was trained on: what is kept per party.

        A method that keeps more overrides it: it says what it can do without, or computes it for the nodes here.
        """
        memory = {name: value for name, value in memory.items() if name not in self.graph_memory}
        if other := [name for name in memory if self.memory.get(name, PARTY) != PARTY]:
            method, axis = type(self).__module__.rpartition(".")[2], self.memory[other[0]].replace("_", " ")
            what = f"{other[0]!r} for each {axis}, and new ones have none."
            raise AtollError(f"{method} cannot predict nodes that it was not trained on: it keeps {what}")
        self.restore(memory)
