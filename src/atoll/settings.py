"""Settings: frozen dataclasses with one sentence per field; values from the command line and files are checked against them."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from atoll.errors import AtollError, AtollWarning, closest, suggest


def setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    was: str | Iterable[str] = (),
    since: str = "",
) -> Any:
    """A field of a settings dataclass.

    Parameters:
        default: Its default.
        help: One sentence for `atoll algorithms NAME`.
        choices: The values it accepts, where they are few.
        low, high: The smallest and largest number it accepts.
        above: A number that it must be larger than.
        was: Earlier names, oldest first; they are still accepted.
        since: The version that added a setting after results had been recorded: at its default it is left out of digests, so
            that recorded results are still found.

    Examples:
        >>> from dataclasses import dataclass
        >>> import atoll
        >>> @dataclass(frozen=True)
        ... class Settings:
        ...     width: int = atoll.setting(64, "Width of the hidden layer.", low=1)
        >>> Settings().width
        64
    """
    names = (was,) if isinstance(was, str) else tuple(was)
    about = {"help": help, "choices": tuple(choices), "low": low, "high": high, "above": above, "was": names, "since": since}
    return dataclasses.field(default=default, metadata=about)


@dataclasses.dataclass(frozen=True)
class Training:
    """Settings that every method has that trains a graph neural network at the parties; an algorithm's own extend it.

    Examples:
        >>> from dataclasses import dataclass
        >>> import atoll
        >>> @dataclass(frozen=True)
        ... class Settings(atoll.Training):
        ...     proximal: float = atoll.setting(0.01, "Weight of the proximal term.", low=0)
        >>> Settings(hidden=16).proximal
        0.01
    """

    model: str = setting("gcn", "Backbone of the parties: one of `atoll models`, or a FILE.py with a torch.nn.Module.")
    hidden: int = setting(64, "Width of the hidden layers.", low=1, high=10**6)
    layers: int = setting(2, "Number of layers.", low=1, high=1000)
    dropout: float = setting(0.0, "Dropout rate of the hidden units.", low=0, high=0.99)
    input_dropout: float = setting(0.0, "Dropout rate of the input features.", low=0, high=0.99)
    bias: bool = setting(True, "Whether the layers have biases.")
    lr: float = setting(0.003, "Learning rate.", low=0)
    weight_decay: float = setting(0.0, "L2 penalty on the weights.", low=0)
    optimizer: str = setting("adam", "Optimizer of the parties.", choices=("adam", "adamw", "sgd"))
    epochs: int = setting(5, "Local epochs per round.", low=0, high=10**5)
    momentum: float = setting(0.0, "Momentum of optimizer=sgd.", low=0, high=0.999, since="0.2")
    clip: float = setting(
        0.0, "Largest norm of a party's gradient; a longer one is scaled to it. 0 does not clip.", low=0, since="0.2"
    )
    readout: str = setting("sum", "Graph tasks: how a graph's nodes become one row.", choices=("sum", "mean", "max"), since="0.2")
    decoder: str = setting(
        "dot", "Link tasks: how two nodes' representations become a score.", choices=("dot", "bilinear", "mlp"), since="0.2"
    )
    architecture: Any = dataclasses.field(default=None, kw_only=True, metadata={"internal": True})  # the model's own settings


@dataclasses.dataclass(frozen=True)
class BatchedTraining(Training):
    """The shared training settings of methods whose parties can train in mini-batches.

    With a `batch_size`, `LocalTraining` samples the batches and evaluates in blocks of rows; without one nothing changes.

    Examples:
        >>> import atoll
        >>> atoll.BatchedTraining(batch_size=512, fan_out=(10, 5)).sampler
        'neighbors'
    """

    batch_size: int = setting(
        0, "Training nodes (graph tasks: graphs) of a party per step, each once per epoch; 0 takes one step per epoch on all.",
        low=0, high=10**9, since="0.2",
    )  # fmt: skip
    fan_out: tuple[int, ...] = setting(
        (10,), "Neighbors sampled per node, one number for all layers or one per layer, outermost last; 0 takes all.",
        low=0, high=10**6, since="0.2",
    )  # fmt: skip
    sampler: str = setting(
        "neighbors",
        "What a batch reads: some neighbors of every node, some neighbors of every layer together, or clusters of the graph.",
        choices=("neighbors", "layers", "clusters"),
        since="0.2",
    )


def known(group: type) -> dict[str, dataclasses.Field[Any]]:
    """The settings of a dataclass by name: its fields without the internal ones."""
    return {field.name: field for field in dataclasses.fields(group) if not field.metadata.get("internal")}


def renamed(group: type) -> dict[str, str]:
    """Earlier name → present name, of the settings of a dataclass."""
    return {old: field.name for field in dataclasses.fields(group) for old in field.metadata.get("was", ())}


def warn_renamed(changed: Mapping[str, str]) -> None:
    """One warning that gives the new names (earlier name → present name); nothing where no name has changed."""
    if changed:
        names = ", ".join(f"{old} is now {new}" for old, new in changed.items())
        warnings.warn(f"Settings have new names: {names}. The old names still work.", AtollWarning, stacklevel=3)


def first_named(settings: Any) -> dict[str, Any]:
    """The values by the names their settings had first, without those added since at their defaults: equal across versions."""
    values = {}
    for field in known(type(settings)).values():
        value = getattr(settings, field.name)
        if not field.metadata.get("since") or value != field.default:
            values[(field.metadata.get("was") or (field.name,))[0]] = value
    return values


def build(group: type, values: Mapping[str, Any], where: str) -> Any:
    """An instance of a settings dataclass from values of any origin; `where` begins the error message."""
    fields, hints, present = known(group), _hints(group), renamed(group)
    values = {present.get(name, name): value for name, value in values.items()}
    for name in values:
        if name not in fields:
            raise AtollError(f"{where} has no setting {name!r}{suggest(name, fields)}")
    return group(**{name: coerce(value, hints[name], fields[name], f"{where}: {name}") for name, value in values.items()})


def value_of(group: type, name: str, value: Any, where: str) -> Any:
    """One value as the type of its setting, within the setting's bounds; `where` begins the error message."""
    return coerce(value, _hints(group)[name], known(group)[name], where)


_hints = cache(typing.get_type_hints)


def coerce(value: Any, kind: Any, field: dataclasses.Field[Any], where: str) -> Any:
    """The value as its field's type, within the field's bounds."""
    typed = _typed(value, kind, where)
    choices, low, high, above = (field.metadata.get(key) for key in ("choices", "low", "high", "above"))
    if choices and typed is not None and typed not in choices:
        near = closest(str(value).lower(), choices) or "."
        raise AtollError(f"{where} is {value!r} but must be one of {', '.join(choices)}{near}")
    if isinstance(typed, (int, float)) and not isinstance(typed, bool):
        if low is not None and not typed >= low:
            raise AtollError(f"{where} is {value} but must be at least {low}.")
        if above is not None and not typed > above:
            raise AtollError(f"{where} is {value} but must be more than {above}.")
        if high is not None and not typed <= high:
            raise AtollError(f"{where} is {value} but must be at most {high}.")
        if not math.isfinite(typed):
            raise AtollError(f"{where} is {value} but must be a finite number.")
    return typed


def _typed(value: Any, kind: Any, where: str) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union else (kind,)
    if type(None) in options and (value is None or value in ("none", "None", "")):
        return None
    target = next(option for option in options if option is not type(None))
    if typing.get_origin(target) is tuple:
        inner = typing.get_args(target)[0]
        items = [item for item in value.split(",") if item.strip()] if isinstance(value, str) else value
        if not isinstance(items, (list, tuple)):
            items = [items]
        return tuple(_typed(item.strip() if isinstance(item, str) else item, inner, where) for item in items)
    try:
        if target is bool:
            return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}[str(value).lower()]
        if target is int:
            if isinstance(value, bool) or float(value) != int(float(value)):
                raise ValueError
            return int(float(value)) if isinstance(value, float) else int(value)
        if target is float:
            if isinstance(value, bool):
                raise ValueError
            return float(value)
        return _text(value)
    except (ValueError, KeyError, TypeError, OverflowError):
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise AtollError(f"{where} is {value!r} but must be {names.get(target, str(target))}.") from None


def _text(value: Any) -> str:
    """A value as text: a list as `a,b`, a dict as `a:1,b:2`."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}:{item}" for name, item in value.items())
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
