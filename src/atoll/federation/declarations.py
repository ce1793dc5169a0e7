"""What a verb's arguments and reply look like, declared beside it in one line: names, shapes, types and ranges.

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})

Shapes are those of one party. A dimension is a number, the name of a setting or of a number in the `Schema` (`"hidden"`,
`"classes"`), a function of the `Case`, or `ROWS`: any number that all fields of the reply share. `bounds` does the checking.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from atoll.tasks import DEFAULT_TASK, TASKS, Task

if TYPE_CHECKING:
    from atoll.federation.messages import Schema

MAX_PARAMETER = 1e6  # a model's weight, in absolute value
MAX_REAL = 1e30  # any other number: sums over a million parties stay finite in float32
MAX_COUNT = 10**12  # things counted, at one party
ROUNDING = 1e-3  # by how much a share of 1 may exceed 1


@dataclass(frozen=True)
class Case:
    """What a declaration may depend on: settings, schema, the run's limits and, as a function, the message's arguments."""

    settings: Any
    schema: Schema
    max_weight: int = 10**8
    max_nodes: int = 10**6
    task: Task = field(default_factory=lambda: TASKS.find(DEFAULT_TASK))
    arguments: Mapping[str, Any] = field(default_factory=dict)
    models: dict[Any, dict[str, tuple[int, ...]]] = field(default_factory=dict, compare=False)

    @property
    def nodes(self) -> int:
        """The number of nodes: known in a vertical federation, else the most that are allowed."""
        return self.schema.nodes or self.max_nodes

    def argument(self, name: str) -> int:
        """A whole number among the arguments; 0 where there is none."""
        value = self.arguments.get(name)
        return value if type(value) is int else 0

    def length(self, name: str) -> int:
        """Rows of a tensor among the arguments; 0 where there is none."""
        value = self.arguments.get(name)
        return len(value) if isinstance(value, Tensor) and value.ndim else 0

    def number(self, what: Any) -> Any:
        """A dimension or a bound as a number."""
        if isinstance(what, str):
            return next(getattr(source, what) for source in (self.schema, self.settings, self) if hasattr(source, what))
        if callable(what):
            return what(self)
        return tuple(map(self.number, what)) if isinstance(what, tuple) else what


@dataclass(frozen=True)
class Free:
    """A dimension of any size up to the number of nodes; fields of one reply that name the same one have the same size."""

    name: str


ROWS = Free("rows")
Dimension = int | str | Free | Callable[[Case], int]
Bound = float | str | Callable[[Case], float] | tuple[Any, ...]  # a tuple has one bound per index of the last dimension


@dataclass(frozen=True)
class Leaf:
    """One tensor as expected in one case."""

    shape: tuple[int | Free, ...]
    dtype: torch.dtype
    low: Any
    high: Any
    times: str = ""  # the field with the number that each party has multiplied this one by: the range is for one unit of it
    ragged: bool = False
    weight: bool = False
    group: str = ""  # the first part of its name
    optional: bool = False


@dataclass(frozen=True)
class Numbers:
    """A tensor."""

    shape: tuple[Dimension, ...]
    dtype: torch.dtype
    low: Bound = -MAX_REAL
    high: Bound = MAX_REAL
    ragged: bool = False  # a list with one tensor per party
    weight: bool = False  # how much the party counts
    optional: bool = False

    def leaves(self, name: str, case: Case, optional: bool) -> dict[str, Leaf]:
        """The tensor in this case."""
        shape = tuple(part if isinstance(part, Free) else case.number(part) for part in self.shape)
        low, high = case.number(self.low), case.number(self.high)
        group = name.partition("/")[0]
        return {name: Leaf(shape, self.dtype, low, high, "", self.ragged, self.weight, group, optional or self.optional)}


@dataclass(frozen=True)
class Model:
    """Parameters by name: those of the module that `build` makes for one party (a dict of tensors serves as well)."""

    build: Callable[[Any, Schema], nn.Module | Mapping[str, Tensor]]
    axes: tuple[Dimension, ...] = ()
    optional: bool = False

    def stacked(self, *axes: Dimension) -> Model:
        """The same model with more axes in front."""
        return replace(self, axes=axes)

    def leaves(self, name: str, case: Case, optional: bool) -> dict[str, Leaf]:
        """The parameters in this case; nothing is allocated to know their shapes."""
        if self.build not in case.models:
            with torch.device("meta"):
                built = self.build(case.settings, case.schema)
            parameters = dict(built.named_parameters()) if isinstance(built, nn.Module) else built
            case.models[self.build] = {key: tuple(value.shape[1:]) for key, value in parameters.items()}
        axes = tuple(case.number(axis) for axis in self.axes)
        return {
            f"{name}/{key}": Leaf(
                (*axes, *shape),
                torch.float32,
                -MAX_PARAMETER,
                MAX_PARAMETER,
                group=name.partition("/")[0],
                optional=optional or self.optional,
            )
            for key, shape in case.models[self.build].items()
        }


@dataclass(frozen=True)
class Scalar:
    """A whole number, or (without bounds) true or false; among the arguments only."""

    low: Any = None
    high: Any = None
    optional: bool = False


@dataclass(frozen=True)
class TaskCounts:
    """The fields of the task's counts, each under its own name."""

    def leaves(self, name: str, case: Case, optional: bool) -> dict[str, Leaf]:
        """The fields as the run's task declares them; `name` is not used."""
        limits: dict[str, Bound] = {"items": "max_weight", "sum": MAX_REAL, "real": MAX_REAL}
        leaves: dict[str, Leaf] = {}
        for field_name, counted in case.task.fields.items():
            most = counted.most
            high = limits[most] if isinstance(most, str) else tuple(limits[one] for one in most)
            low: Bound = 0 if isinstance(most, str) else tuple(-MAX_REAL if one == "real" else 0 for one in most)
            low = 0 if low == (0,) * len(most) else low
            form = Numbers(counted.shape, torch.int64 if counted.whole else torch.float64, low, high)
            leaves |= form.leaves(field_name, case, optional or counted.optional)
        return leaves


Form = Numbers | Model | Scalar | TaskCounts | Mapping[str, Any]
Forms = Mapping[str, Form]
Declared = Forms | Callable[[Case], Forms]  # a function where it depends on the message


def real(*shape: Dimension, low: Bound = -MAX_REAL, high: Bound = MAX_REAL, double: bool = False) -> Numbers:
    """Finite numbers."""
    return Numbers(shape, torch.float64 if double else torch.float32, low, high)


def share(*shape: Dimension) -> Numbers:
    """Numbers from 0 to 1."""
    return real(*shape, low=0.0, high=1.0 + ROUNDING)


def whole(*shape: Dimension, low: Bound = 0, high: Bound = MAX_COUNT, dtype: torch.dtype = torch.int64) -> Numbers:
    """Whole numbers; counts unless `low` and `high` say otherwise."""
    return Numbers(shape, dtype, low, high)


def nodes(*shape: Dimension, below: Bound = "nodes") -> Numbers:
    """Node numbers."""
    return whole(*shape, high=lambda case: case.number(below) - 1, dtype=torch.int32)


def flag(*shape: Dimension) -> Numbers:
    """True or false."""
    return Numbers(shape, torch.bool)


def secret(*shape: Dimension) -> Numbers:
    """Opaque bytes: keys, shares, ciphertexts."""
    return whole(*shape, high=255, dtype=torch.uint8)


def optional(form: Any) -> Any:
    """An argument that may be missing."""
    return {"": form} if isinstance(form, Mapping) else replace(form, optional=True)


def ragged(form: Numbers) -> Numbers:
    """A field with one tensor per party; their numbers of rows may differ."""
    return replace(form, ragged=True)


WEIGHT = replace(whole(high="max_weight"), weight=True)  # how much a party counts in a mean
COUNTS: Forms = {"counts": TaskCounts()}  # what `task.counts` replies: field by field, not under "counts"


def flat(declared: Declared, case: Case) -> dict[str, Leaf | Scalar]:
    """All declared fields by their full names, as expected in this case."""
    forms = declared(case) if callable(declared) else declared
    return _flat(forms, case, "", optional=False)


def _flat(forms: Forms, case: Case, prefix: str, *, optional: bool) -> dict[str, Leaf | Scalar]:
    expected: dict[str, Leaf | Scalar] = {}
    for name, form in forms.items():
        if isinstance(form, Scalar):
            low, high = (None if bound is None else case.number(bound) for bound in (form.low, form.high))
            expected[prefix + name] = Scalar(low, high, optional or form.optional)
        elif isinstance(form, Mapping):
            inner = form.get("", form)  # see `optional`
            expected |= _flat(inner, case, f"{prefix}{name}/", optional=optional or "" in form)
        else:
            expected |= form.leaves(prefix + name, case, optional)
    return expected
