"""What passes between the server and the parties: messages, answers, and the verbs that may be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, overload

from atoll.federation.declarations import Declared
from atoll.federation.fields import Fields, pick
from atoll.parties import Parties
from atoll.random import Draws

Function = TypeVar("Function", bound=Callable[..., Any])


MAX_SCHEMA = {"features": 10**7, "classes": 10**5, "parties": 10**7, "nodes": 10**9}  # the bounds of a schema's entries
MIN_SCHEMA = {"features": 0, "classes": 1, "parties": 1, "nodes": 0}

FOLLOWING = ("outputs", "level", "alike")  # entries of a schema that follow from the task and the data


@dataclass(frozen=True)
class Schema:
    """What all parties and the server know of the data: the number of features, classes and parties."""

    features: int
    classes: int
    parties: int
    nodes: int = 0  # of a vertical federation, where all parties hold the same nodes; else 0
    outputs: int = 0  # columns of a model's output where the task has another number than the classes
    level: str = "node"  # what the task's items are: nodes, or graphs
    alike: bool = True  # whether all parties have the same columns and classes; if not, the numbers above are the largest

    @property
    def numbers(self) -> dict[str, int]:
        """What is sent to the sites: everything that does not follow from the task."""
        return {name: number for name, number in vars(self).items() if name not in FOLLOWING}


@dataclass(frozen=True)
class Message:
    """One call of a verb: `common` goes to every addressed party, the first axis of each tensor in `each` is the party."""

    verb: str
    round: int
    call: int  # index of this call within the round
    training: bool  # False while evaluating: then no gradient is kept
    parties: Parties
    common: Mapping[str, Any]
    each: Mapping[str, Any]
    secure: Mapping[str, Any] | None = None  # of a secure total: its session and users. The reply is masked

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", Parties(self.parties))

    def select(self, parties: Sequence[int]) -> Message:
        """The same message to some of its parties."""
        selected = Parties(parties)
        if selected == self.parties:
            return self
        return replace(self, parties=selected, each=pick(self.each, self.parties.indices(selected)))


@dataclass(frozen=True)
class Answer:
    """The reply of the parties of one site; every field has a party axis, or is a list with one tensor per party."""

    parties: Parties
    fields: Fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", Parties(self.parties))


@dataclass(frozen=True)
class Failure:
    """A party that did not answer, and why."""

    party: int
    reason: str


class Engine(Protocol):
    """What carries messages to the parties and their answers back.

    A module or object in the registry `ENGINES` has a function `connect(make, parties, settings)` that returns one, or a
    function `launch` that runs the whole federation elsewhere. One with a method `snapshot(into)` lets a run keep its best round:
    it gives a copy of what the parties' predictions need of their memory (`Cohort.trained`), the parties' rows in party order;
    `into` is an earlier copy, which may be overwritten.

    Examples:
        >>> import atoll
        >>> "inprocess" in atoll.ENGINES
        True
    """

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Send one message to the parties it names; every one of them is in an answer or a failure."""
        ...

    def state(self) -> Fields:
        """The memory of all parties, for a checkpoint."""
        ...

    def restore(self, memory: Fields) -> None:
        """Give all parties their memory back."""
        ...


class Guard(Protocol):
    """What a party does to a reply before it leaves (clipping, noise); `fields` have a party axis."""

    def __call__(self, message: Message, fields: Fields, draws: Draws) -> Fields:
        """The fields as they may leave the party."""
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
    """Mark a method of a cohort as one the server may call.

    Parameters:
        public: Whether it may be asked, and so seen party by party, under secure aggregation.
        averaged: Field of the reply → the field that holds its weight; the server divides one's total by the other's. Robust
            totals are about these fields.
        apart: Arguments that may differ between parties in a secure total. No party can check them, and a lying server can
            choose them so that it knows all replies but one; all other arguments must be the same for every party.
        takes, gives: Declarations of its arguments and its reply (see `atoll.federation.declarations`); whatever does not fit
            is refused.

    Examples:
        >>> import atoll
        >>> class Averaging(atoll.Cohort):
        ...     @atoll.verb(averaged={"model": "n"})
        ...     def fit(self, model):
        ...         return {"model": model, "n": self.graph.num_train}
        >>> Averaging.averaged()
        {'fit': {'model': 'n'}}
    """

    def mark(method: Function) -> Function:
        method.__dict__["verb"] = "public" if public else "private"
        method.__dict__["averaged"] = dict(averaged or {})
        method.__dict__["apart"] = tuple(apart)
        method.__dict__["takes"], method.__dict__["gives"] = takes, gives
        return method

    return mark if function is None else mark(function)
