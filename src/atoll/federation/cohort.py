"""Cohorts: the parties that live in one process, the verbs they answer and the memory they keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar, overload, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from atoll.errors import AtollError, AtollWarning, PartyFailure, short
from atoll.federation.bounds import Limits
from atoll.federation.declarations import Declared, flag, secret
from atoll.federation.declarations import Model as ModelForm
from atoll.graphs.graph import Graph, spans
from atoll.models.backbone import Backbone
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.registry import build
from atoll.parties import Parties
from atoll.privacy import masking
from atoll.privacy.identities import SIGNATURE_BYTES
from atoll.privacy.masking import ADVERT_PARTS, SECURE_STEPS, SEED_BYTES, SHARE_BYTES, Call
from atoll.privacy.secrets import Secrets, Session
from atoll.random import SERVER, Draws, Word
from atoll.settings import Training
from atoll.wire import rows_are_shared

Fields = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])
PARTY, NODE, TRAIN_ITEM, STORED_FEATURE = AXES = ("party", "node", "train_item", "stored_feature")  # first axes of memory
SIGNATURE = secret(SIGNATURE_BYTES)


@dataclass(frozen=True)
class Schema:
    """What everybody knows of the data: how many features and classes, and how many parties there are."""

    features: int
    classes: int
    parties: int
    nodes: int = 0  # where all parties hold the same nodes (vertical), how many; else 0


@dataclass(frozen=True)
class Message:
    """One call of a verb: `common` goes to every addressed party, the first axis of each tensor in `each` is the party."""

    verb: str
    round: int
    call: int  # the how-manieth `ask` or `total` of this round
    training: bool  # False while evaluating: then no gradient is kept
    parties: Parties
    common: Mapping[str, Any]
    each: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", Parties(self.parties))

    def select(self, parties: Sequence[int]) -> Message:
        """The same message to some of its parties."""
        chosen = Parties(parties)
        if chosen == self.parties:
            return self
        return replace(self, parties=chosen, each=pick(self.each, self.parties.indices(chosen)))


class Guard(Protocol):
    """What stands between a verb's reply and the channel, at the party (clipping, noise); `fields` have a party axis."""

    def __call__(self, message: Message, fields: Fields, draws: Draws) -> Fields:
        """The fields as they may leave the party."""
        ...


@runtime_checkable
class Stateful(Protocol):
    """Something whose whole state is a dict of tensors with a leading party axis: an optimiser."""

    def state(self) -> dict[str, Tensor]:
        """The state as it stands."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take the state back."""
        ...


@overload
def verb(function: Function, /) -> Function: ...
@overload
def verb(
    *,
    public: bool = False,
    averaged: Mapping[str, str] | None = None,
    apart: Sequence[str] = (),
    takes: Declared | None = None,
    gives: Declared | None = None,
) -> Callable[[Function], Function]: ...
def verb(
    function: Function | None = None,
    /,
    *,
    public: bool = False,
    averaged: Mapping[str, str] | None = None,
    apart: Sequence[str] = (),
    takes: Declared | None = None,
    gives: Declared | None = None,
) -> Function | Callable[[Function], Function]:
    """Mark a method of a cohort as one the server may call; `public` ones may be asked under secure aggregation.

    `averaged` names the fields of the reply that are multiplied by a weight, and the field that holds the weight: the server
    divides one's total by the other's. Those are the fields that robust totals are about.
    `apart` names the arguments that may differ from party to party in a secure total: nobody can check them, and a server that
    lies can choose them so that it knows all replies but one. All others must have been told to everybody alike.
    `takes` and `gives` declare its arguments and its reply (see `atoll.federation.declarations`): what does not fit is refused.
    """

    def mark(method: Function) -> Function:
        method.__dict__["verb"] = "public" if public else "private"
        method.__dict__["averaged"] = dict(averaged or {})
        method.__dict__["apart"] = tuple(apart)
        method.__dict__["takes"], method.__dict__["gives"] = takes, gives
        return method

    return mark if function is None else mark(function)


class Cohort:
    """The parties of one site: private graphs in one block-diagonal graph, a memory, the verbs they answer.

    Written once for any number of parties: parameters and replies carry a leading party axis; a party alone is P = 1.
    """

    memory: ClassVar[Mapping[str, str]] = {}  # attributes that survive between messages, restarts and resume → their first axis
    limits: Limits | None = None  # what its verbs declare, in this run

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
    ) -> None:
        """`secrets`: the host's, for secure totals; no part of the memory. `blank` leaves out first random values: the memory
        is about to come."""
        self.graph = graph
        self.settings = settings
        self.schema = schema
        self.seed = seed
        self.parties = Parties(parties)
        self.guards = tuple(guards)
        self.secrets = secrets
        self.blank = blank
        self.message: Message | None = None
        self.parts: dict[bytes, Graph] = {}
        self.setup()

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
        if unknown := set(cls.memory.values()) - set(AXES):
            raise AtollError(f"{cls.__module__}: memory has an unknown axis {min(unknown)!r}; there is {', '.join(AXES)}.")

    def setup(self) -> None:
        """Make the things named in `memory`."""

    def draws(self, *words: Word) -> Draws:
        """The parties' own randomness for this call: a function of seed, party, round, call and the words alone."""
        call: tuple[Word, ...] = ("setup",)
        if self.message is not None:
            call = (self.message.verb, self.message.round, self.message.call)
        return Draws(self.seed, self.parties, *call, *words)

    def first_draws(self, *words: Word) -> Draws | None:
        """Randomness for first values; None where they are about to be replaced by what is remembered."""
        return None if self.blank else Draws(self.seed, self.parties, "setup", *words)

    def answer(self, message: Message) -> Fields:
        """Call a verb for the addressed parties, all of which live here."""
        method = self.verb_named(message.verb)
        if message.parties != self.parties and message.verb not in SECURE_STEPS:
            return self._answer_for_some(message)
        self.message = message
        common = dict(message.common)
        agreed = common.pop("secure", None)
        sessions = self._enter(message, common, agreed) if agreed is not None else []
        with torch.set_grad_enabled(message.training):
            fields = method(self, **common, **message.each) or {}
        for guard in self.guards:
            fields = guard(message, fields, Draws(self.seed, self.parties, "guard", message.verb, message.round, message.call))
        if agreed is not None:
            if self.limits is not None:
                self.limits.own(message, fields, len(self.parties))
            return self._secrets().mask(fields, message.parties, sessions)
        if self.secrets is not None and fields and self.verbs()[message.verb] == "private":
            raise AtollError(
                f"Secure aggregation is on and {message.verb!r} is private: its reply does not leave the party unmasked."
            )
        return fields

    def _enter(self, message: Message, common: Fields, agreed: Mapping[str, Any]) -> list[Session]:
        """Whether a masked reply may be given: as part of a session, to arguments that all parties were given alike."""
        secrets, method = self._secrets(), self.verb_named(message.verb)
        if message.verb in SECURE_STEPS:
            raise PartyFailure("refuses a total of the steps of secure totals")
        if odd := sorted(set(message.each) - set(getattr(method, "apart", ()))):
            raise PartyFailure(f"refuses {short(odd[0])!r} told to it apart: in a secure total all must be told the same")
        told = masking.arguments_digest(common, message.training, message.each)
        return secrets.enter(message.parties, self._call(message.verb), told, **agreed)

    @verb(public=True, gives={"keys": secret(ADVERT_PARTS, 32), "signature": SIGNATURE, "settled": flag("parties")})
    def secure_keys(self, session: Tensor, total: str) -> Fields:
        """The first step of a secure total of the verb `total`; the fourth is the verb itself, masked."""
        return self._secrets().keys(self._addressed(), self._call(total), session)

    @verb(public=True, gives=lambda case: {"shares": secret(case.length("users"), SHARE_BYTES)})
    def secure_shares(self, session: Tensor, users: Tensor, keys: Tensor, signatures: Tensor) -> Fields:
        """The second step: shares of the secrets for everybody."""
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
        """The last step: one share of everybody's secrets."""
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
        """Stand up a cohort of the addressed parties alone, let it answer, and take its memory back."""
        places = self.parties.indices(message.parties)
        key = places.tobytes()
        if key not in self.parts:
            while len(self.parts) >= 4:
                self.parts.pop(next(iter(self.parts)))
            self.parts[key] = self.graph.select(places)
        graph = self.parts[key]
        part = type(self)(
            graph, self.settings, self.schema, self.seed, message.parties, self.guards, secrets=self.secrets, blank=True
        )
        part.limits = self.limits
        whole = self.state()
        places_of = {name: self._places(name, places) for name in whole}
        part.restore({name: _take(whole[name], places_of[name]) for name in whole})
        fields = part.answer(message)
        for name, value in part.state().items():
            whole[name] = _put(whole[name], places_of[name], value)
        self.restore(whole)
        return fields

    def _places(self, name: str, parties: NDArray[np.int64]) -> Tensor:
        """The rows of some parties in a piece of memory, along its first axis."""
        index = torch.from_numpy(parties)
        axis = self.memory[name]
        if axis == PARTY:
            return index
        if axis == STORED_FEATURE:
            starts = torch.from_numpy(self.graph.nonzero_features.indptr.astype(np.int64))[self.graph.ptr]
        else:
            sizes = self.graph.ptr.diff() if axis == NODE else self.graph.num_train
            starts = nn.functional.pad(sizes.cumsum(0), (1, 0))
        return spans(starts[index], starts[index + 1])

    @classmethod
    def verb_named(cls, name: str) -> Callable[..., Fields | None]:
        """The method behind a verb; nothing else of a cohort can be reached."""
        method: Any = getattr(cls, name, None)
        if getattr(method, "verb", None) is None:
            raise AtollError(f"{cls.__module__} has no verb {name!r}; its verbs are {', '.join(cls.verbs())}.")
        found: Callable[..., Fields | None] = method
        return found

    @classmethod
    def verbs(cls) -> dict[str, str]:
        """The verbs by name, each `public` or `private`."""
        methods = {name: getattr(cls, name) for name in dir(cls)}
        return {name: method.verb for name, method in methods.items() if callable(method) and hasattr(method, "verb")}

    @classmethod
    def averaged(cls) -> dict[str, dict[str, str]]:
        """Of the verbs whose replies are averaged: field → the field that holds its weight."""
        declared = {name: getattr(cls, name).averaged for name in cls.verbs()}
        return {name: fields for name, fields in declared.items() if fields}

    def state(self) -> Fields:
        """The whole memory as tensors."""
        kept = {}
        for name in self.memory:
            value = getattr(self, name)
            kept[name] = (
                get_parameters(value) if isinstance(value, nn.Module) else value.state() if isinstance(value, Stateful) else value
            )
        return kept

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Take back what `recall` gave."""
        for name, kept in memory.items():
            value = getattr(self, name)
            if isinstance(value, nn.Module):
                set_parameters(value, kept)
            elif isinstance(value, Stateful):
                value.restore(kept)
            else:
                setattr(self, name, kept)


def backbone(settings: Training, schema: Schema, parties: int, draws: Draws | None) -> Backbone:
    """The graph neural network the settings name, for so many parties; its first values are drawn, or zero without draws."""
    return build(
        settings.model,
        parties=parties,
        features=schema.features,
        classes=schema.classes,
        hidden=settings.hidden,
        layers=settings.layers,
        dropout=settings.dropout,
        input_dropout=settings.input_dropout,
        bias=settings.bias,
        draws=draws,
    )


MODEL = ModelForm(lambda settings, schema: backbone(settings, schema, 1, None))  # the backbone's parameters, for declarations


def first_model(settings: Training, schema: Schema, seed: int) -> dict[str, Tensor]:
    """The model the server starts with, without a party axis."""
    return {
        name: value[0] for name, value in get_parameters(backbone(settings, schema, 1, Draws(seed, [SERVER], "model"))).items()
    }


def pick(fields: Mapping[str, Any], places: Sequence[int] | NDArray[np.int64]) -> Fields:
    """The rows of some parties from fields with a party axis."""
    index = torch.from_numpy(np.array(places, dtype=np.int64))
    return {name: _take(value, index) for name, value in fields.items()}


def _take(value: Any, index: Tensor) -> Any:
    if isinstance(value, Mapping):
        return {name: _take(item, index) for name, item in value.items()}
    if isinstance(value, list):
        return [value[i] for i in index.tolist()]
    return value[:1].expand(len(index), *value.shape[1:]) if rows_are_shared(value) else value[index]


def _put(value: Any, index: Tensor, new: Any) -> Any:
    """The value with the rows of some parties replaced: in place, unless its rows are one."""
    if isinstance(value, Mapping):
        return {name: _put(value[name], index, new[name]) for name in value}
    if isinstance(value, list):
        for place, item in zip(index.tolist(), new, strict=True):
            value[place] = item
        return value
    if rows_are_shared(value):
        value = value.clone(memory_format=torch.contiguous_format)
    value[index] = new
    return value
