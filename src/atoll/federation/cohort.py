"""Cohorts: the parties that live in one process, the verbs they answer and the memory they keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll import deferred
from atoll.errors import AtollError, AtollWarning, PartyFailure, short
from atoll.federation.bounds import Limits
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.declarations import flag, secret
from atoll.federation.fields import Fields, pick, put, take
from atoll.federation.memory import AXES, NODE, PARTY, STORED_FEATURE, TRAIN_ITEM, restore_attributes, rows_of, state_of
from atoll.federation.messages import Guard, Message, Schema, verb
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone
from atoll.models.parameters import get_parameters
from atoll.models.registry import build
from atoll.parties import Parties
from atoll.privacy import masking
from atoll.privacy.identities import SIGNATURE_BYTES
from atoll.privacy.masking import ADVERT_PARTS, SECURE_STEPS, SEED_BYTES, SHARE_BYTES, Call
from atoll.privacy.secrets import Secrets, Session
from atoll.random import SERVER, Draws, Word
from atoll.settings import Training
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
PHASE = "phase"  # the name in a cohort's state of what its round memory belongs to
MAX_SUBGRAPHS = 4  # graphs of some of a cohort's parties that are kept for the next message to the same ones
SIGNATURE = secret(SIGNATURE_BYTES)


@dataclass(frozen=True, eq=False)
class Observation:
    """What some parties predict."""

    parties: Parties
    graph: Graph
    output: Tensor  # (N, C)
    hidden: Tensor | None  # (N, h) the last hidden representation, where a single model has one


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
    limits: Limits | None = None  # what the verbs declare, in this run

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
    ) -> None:
        """`secrets`: for secure totals; not part of the memory. `blank` skips the first random values: memory is about to be
        restored."""
        self.graph = graph
        self.settings = settings
        self.schema = schema
        self.task = task or TASKS.find(DEFAULT_TASK)
        self.seed = seed
        self.parties = Parties(parties)
        self.guards = tuple(guards)
        self.secrets = secrets
        self.blank = blank
        self.message: Message | None = None
        self.subgraphs: dict[bytes, Graph] = {}
        self.phase = torch.full((len(self.parties),), -1)  # 2·round + training that the round memory of each party belongs to
        self.setup()
        self.clear_round()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declared: Any = cls.memory
        if isinstance(declared, tuple):  # as it was before 0.2
            warnings.warn(
                f"{cls.__module__}: memory is a mapping now: {{{', '.join(f'{name!r}: PARTY' for name in declared)}}}.",
                AtollWarning,
                stacklevel=2,
            )
            cls.memory = dict.fromkeys(declared, PARTY)
        if unknown := {*cls.memory.values(), *cls.round_memory.values()} - set(AXES):
            raise AtollError(f"{cls.__module__}: memory has an unknown axis {min(unknown)!r}; there is {', '.join(AXES)}.")
        if twice := (cls.memory.keys() & cls.round_memory.keys()) | ({*cls.memory, *cls.round_memory} & {PHASE}):
            raise AtollError(f"{cls.__module__}: {min(twice)!r} cannot be memory; rename it, or declare it once.")

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

    def draws(self, *words: Word) -> Draws:
        """The parties' own randomness for this call: a function of seed, party, round, call and the words only."""
        call: tuple[Word, ...] = ("setup",)
        if self.message is not None:
            call = (self.message.verb, self.message.round, self.message.call)
        return Draws(self.seed, self.parties, *call, *words)

    def first_draws(self, *words: Word) -> Draws | None:
        """Randomness for first values; None where memory is about to be restored."""
        return None if self.blank else Draws(self.seed, self.parties, "setup", *words)

    def answer(self, message: Message) -> Fields:
        """Call a verb for the addressed parties, all of which live here."""
        method = self.verb_named(message.verb)
        if message.parties != self.parties and message.verb not in SECURE_STEPS:
            return self._answer_for_some(message)
        self._receive(message)
        sessions = self._enter_sessions(message, message.secure) if message.secure is not None else []
        with torch.set_grad_enabled(message.training):
            fields = method(self, **message.common, **message.each) or {}
        for guard in self.guards:
            fields = guard(message, fields, Draws(self.seed, self.parties, "guard", message.verb, message.round, message.call))
        if message.secure is not None:
            fields = deferred.dense(fields)
            if self.limits is not None:
                self.limits.check_own(message, fields, len(self.parties))
            return self._secrets().mask(fields, message.parties, sessions)
        if self.secrets is not None and fields and self.verbs()[message.verb] == "private":
            raise AtollError(
                f"Secure aggregation is on and {message.verb!r} is private: its reply does not leave the party unmasked."
            )
        return fields

    def _receive(self, message: Message) -> None:
        self.message = message
        if self.round_memory and message.verb not in SECURE_STEPS:
            self._enter_phase(2 * message.round + message.training)

    def _enter_phase(self, phase: int) -> None:
        """Clear the round memory of the parties for which another round, or an evaluation, begins."""
        current = self.phase == phase
        if bool(current.all()):
            return
        kept = {name: state_of(getattr(self, name)) for name in self.round_memory} if bool(current.any()) else {}
        self.clear_round()
        if kept:
            parties = current.nonzero()[:, 0].numpy()
            rows = {name: rows_of(parties, self.round_memory[name], self.graph) for name in kept}
            cleared = {name: state_of(getattr(self, name)) for name in kept}
            restore_attributes(self, {name: put(cleared[name], rows[name], take(kept[name], rows[name])) for name in kept})
        self.phase = torch.full_like(self.phase, phase)

    def _enter_sessions(self, message: Message, agreed: Mapping[str, Any]) -> list[Session]:
        """The sessions of a masked reply; refused unless all parties were sent the same arguments."""
        secrets, method = self._secrets(), self.verb_named(message.verb)
        if message.verb in SECURE_STEPS:
            raise PartyFailure("refuses a total of the steps of secure totals")
        if odd := sorted(set(message.each) - set(getattr(method, "apart", ()))):
            raise PartyFailure(f"refuses {short(odd[0])!r} sent to it apart: in a secure total all parties must be sent the same")
        arguments = masking.arguments_digest(message.common, message.training, message.each)
        return secrets.enter(message.parties, self._call(message.verb), arguments, **agreed)

    @verb(public=True, gives={"keys": secret(ADVERT_PARTS, 32), "signature": SIGNATURE, "settled": flag("parties")})
    def secure_keys(self, session: Tensor, total: str) -> Fields:
        """The first step of a secure total of the verb `total`; the fourth is the verb itself, masked."""
        return self._secrets().keys(self._addressed(), self._call(total), session)

    @verb(public=True, gives=lambda case: {"shares": secret(case.length("users"), SHARE_BYTES)})
    def secure_shares(self, session: Tensor, users: Tensor, keys: Tensor, signatures: Tensor) -> Fields:
        """The second step: shares of the secrets, one for each party."""
        return self._secrets().shares(self._addressed(), self._call(), session, users, keys, signatures)

    @verb(public=True, gives=lambda case: {"opened": flag(case.length("dealers"))})
    def secure_open(self, session: Tensor, dealers: Tensor, shares: Tensor) -> Fields:
        """The third step: take the others' shares."""
        return self._secrets().open(self._addressed(), self._call(), session, dealers, shares)

    @verb(public=True, gives={"signature": SIGNATURE})
    def secure_confirm(self, session: Tensor, answered: Tensor) -> Fields:
        """The fifth step: sign who answered."""
        return self._secrets().confirm(self._addressed(), self._call(), session, answered)

    @verb(public=True, gives=lambda case: {"shares": secret(case.length("answered"), SEED_BYTES)})
    def secure_reveal(self, session: Tensor, answered: Tensor, signatures: Tensor) -> Fields:
        """The last step: one share of each party's secrets."""
        return self._secrets().reveal(self._addressed(), self._call(), session, answered, signatures)

    def _secrets(self) -> Secrets:
        if self.secrets is None:
            raise AtollError("The server asks for a secure total, but this party was started without secure aggregation.")
        return self.secrets

    def _addressed(self) -> Parties:
        return self.message.parties if self.message is not None else self.parties

    def _call(self, total: str = "") -> Call:
        """Where in the run we are; the verb that is totalled is named in the first and in the fourth step only."""
        assert self.message is not None
        return Call(self.message.round, self.message.call, str(total))

    def _answer_for_some(self, message: Message) -> Fields:
        """Build a cohort of the addressed parties alone, let it answer, and take its memory back."""
        part, whole, rows = self._part(message.parties)
        fields = part.answer(message)
        for name, value in part.state().items():
            whole[name] = put(whole[name], rows[name], value)
        self.restore(whole)
        return fields

    def observe(self, message: Message) -> Observation:
        """What the parties that an `evaluate` message addresses predict; nothing is counted or sent."""
        if message.parties != self.parties:
            return self._part(message.parties)[0].observe(message)
        self._receive(message)
        arguments = {**message.common, **message.each}
        with torch.no_grad():
            return Observation(self.parties, self.graph, self.predict(**arguments), self.embeddings(**arguments))

    def _part(self, parties: Parties) -> tuple[Cohort, Fields, dict[str, Tensor]]:
        """A cohort of some of the parties; the memory of all, and the rows of theirs in each piece of it."""
        index = self.parties.indices(parties)
        key = index.tobytes()
        if key not in self.subgraphs:
            while len(self.subgraphs) >= MAX_SUBGRAPHS:
                self.subgraphs.pop(next(iter(self.subgraphs)))
            self.subgraphs[key] = self.graph.select(index)
        part = type(self)(
            *(self.subgraphs[key], self.settings, self.schema, self.seed, parties, self.guards),
            secrets=self.secrets,
            blank=True,
            task=self.task,
        )
        part.limits = self.limits
        whole = self.state()
        axes = {PHASE: PARTY, **self.round_memory, **self.memory}
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
        """The whole memory as tensors, the round's included."""
        state = {name: state_of(getattr(self, name)) for name in (*self.memory, *self.round_memory)}
        return state | {PHASE: self.phase} if self.round_memory else state

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Return to what `state` gave."""
        declared = {*self.memory, *self.round_memory, *([PHASE] if self.round_memory else [])}
        if unknown := sorted(memory.keys() - declared):
            raise AtollError(f"{type(self).__module__}: the saved memory holds {unknown[0]!r}, which is not declared.")
        restore_attributes(self, memory)


def backbone(settings: Training, schema: Schema, parties: int, draws: Draws | None) -> Backbone:
    """The graph neural network that the settings name; its first values are drawn, or zero without draws."""
    return build(
        settings.model,
        parties=parties,
        features=schema.features,
        classes=schema.outputs or schema.classes,
        hidden=settings.hidden,
        layers=settings.layers,
        dropout=settings.dropout,
        input_dropout=settings.input_dropout,
        bias=settings.bias,
        settings=settings.architecture,
        draws=draws,
    )


MODEL = ModelForm(lambda settings, schema: backbone(settings, schema, 1, None))  # the backbone's parameters, for declarations


def first_model(settings: Training, schema: Schema, seed: int) -> dict[str, Tensor]:
    """The model the server starts with, without a party axis.

    Parameters:
        settings: The algorithm's settings, which name the backbone and its size.
        schema: The numbers of features, classes and parties (`federation.schema`).
        seed: The run's seed (`federation.seed`).

    Examples:
        >>> import atoll
        >>> from atoll.federation.cohort import Schema
        >>> model = atoll.first_model(atoll.Training(hidden=8), Schema(features=5, classes=3, parties=2), seed=0)
        >>> sorted(tuple(value.shape) for value in model.values())
        [(3,), (5, 8), (8,), (8, 3)]
    """
    return {
        name: value[0] for name, value in get_parameters(backbone(settings, schema, 1, Draws(seed, [SERVER], "model"))).items()
    }
