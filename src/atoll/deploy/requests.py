"""Parsing the server's requests at a site: every number is within bounds before it is used."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.errors import AtollError, short
from atoll.federation.cohort import Message, Schema
from atoll.federation.messages import MAX_SCHEMA, MIN_SCHEMA
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.runs.config import Config

MAX_ROUND = 10**12
MAX_PARAMETERS = 1 << 28  # of a model: a larger one would not fit into a message


def integer(request: Mapping[str, Any], name: str, low: int = 0, high: int = MAX_ROUND) -> int:
    """An integer field of a request."""
    value = request.get(name)
    if type(value) is not int or not low <= value <= high:
        raise AtollError(f"{name} is {short(repr(value), 50)}, not a whole number from {low} to {high}.")
    return value


def boolean(request: Mapping[str, Any], name: str) -> bool:
    """A boolean field of a request."""
    value = request.get(name)
    if not isinstance(value, bool):
        raise AtollError(f"{name} is {short(repr(value), 50)}, not true or false.")
    return value


def table(request: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A table in a request; empty if it is missing."""
    value = request.get(name, {})
    if not isinstance(value, dict):
        raise AtollError(f"{name} is not a table of fields.")
    return value


def best_round(request: Mapping[str, Any], name: str) -> int:
    """The best round that a request names; 0 if it names none."""
    return integer(request, name) if name in request else 0


def parties(request: Mapping[str, Any]) -> Parties:
    """The parties that a request addresses."""
    numbers = request.get("parties")
    if not isinstance(numbers, Tensor) or numbers.dtype != torch.int64 or numbers.dim() != 1:
        raise AtollError("the message does not say for which parties it is.")
    listed = numbers.numpy()
    if len(np.unique(listed)) < max(len(listed), 1) or int(listed.min()) < 0:  # a party named twice would answer twice
        raise AtollError("the message is for no party, or for one more than once.")
    if int(listed.max()) >= MAX_SCHEMA["parties"]:
        raise AtollError(f"the message is for party {int(listed.max())}, of at most {MAX_SCHEMA['parties']}.")
    return Parties(listed)


def threshold(request: Mapping[str, Any]) -> tuple[int | None, float | None]:
    """Which of two classes is decided from which probability on; None where a request does not say."""
    if "value" not in request:
        return None, None
    value = request["value"]
    if not (isinstance(value, float) and 0 < value < 1):
        raise AtollError(f"value is {short(repr(value), 50)}, not a number between 0 and 1.")
    return integer(request, "index", 0, 1), value


def message(request: Mapping[str, Any]) -> Message:
    """The message that calls a verb."""
    verb = request.get("verb")
    if not isinstance(verb, str) or len(verb) > 100:
        raise AtollError("the message names no verb.")
    return Message(
        verb,
        integer(request, "round"),
        integer(request, "call"),
        boolean(request, "training"),
        parties(request),
        table(request, "common"),
        table(request, "each"),
        table(request, "secure") if "secure" in request else None,
    )


def only(request: Mapping[str, Any], name: str) -> Any:
    """The one item of a list in a request: a nested table that the wire format does not flatten."""
    value = request.get(name)
    if not isinstance(value, list) or len(value) != 1:
        raise AtollError(f"{name} is not a list of one item.")
    return value[0]


def schema(request: Mapping[str, Any]) -> Schema:
    """The schema in a request."""
    numbers = table(request, "schema")
    if unknown := sorted(numbers.keys() - MAX_SCHEMA.keys()):
        raise AtollError(f"the schema holds an unknown entry, {short(unknown[0])!r}.")
    complete = {"nodes": 0, **numbers}
    checked = {name: integer(complete, name, MIN_SCHEMA[name], high) for name, high in MAX_SCHEMA.items()}
    return Schema(checked["features"], checked["classes"], checked["parties"], checked["nodes"])


def invalid_description(description: Mapping[str, Any]) -> str:
    """What is wrong with the numbers in a site's description of its data; empty if nothing is."""
    for name in ("features", "classes", "nodes"):
        value = description.get(name, MIN_SCHEMA[name])
        if type(value) is not int or not MIN_SCHEMA[name] <= value <= MAX_SCHEMA[name]:
            return f"says that it has {short(repr(value), 50)} {name}, of at most {MAX_SCHEMA[name]}"
    return ""


def check_schema(given: Schema, graph: Graph, config: Config, addressed: Parties) -> None:
    """Refuse a schema that does not match the site's data, or settings that need more memory than the site has."""
    vertical = config.partition == "vertical"
    same = {"classes": graph.num_classes} | ({} if vertical else {"features": graph.num_features})
    same |= {"nodes": graph.num_nodes // max(graph.parties, 1)} if vertical and given.nodes else {}
    for name, local in same.items():
        if getattr(given, name) != local:
            raise AtollError(f"the server expects {getattr(given, name)} {name}, but this site's data has {local}.")
    if vertical and given.features < graph.num_features:
        raise AtollError(f"the server expects {given.features} features, but this site's data has {graph.num_features}.")
    if int(addressed.numbers.max()) >= given.parties:
        raise AtollError(f"the server calls this site party {int(addressed.numbers.max())} of {given.parties}.")
    check_memory(config.settings, given, graph.num_nodes, len(addressed), dense=vertical)


def check_memory(settings: Any, given: Schema, nodes: int, count: int, *, dense: bool = False) -> None:
    """Refuse settings whose models or node representations would not fit in memory, before anything is allocated."""
    parameters, numbers = estimated_size(settings, given, nodes)
    if parameters > MAX_PARAMETERS:
        raise AtollError(
            f"the settings ask for some {parameters:.1e} parameters, of at most {MAX_PARAMETERS:.1e}; lower hidden or layers."
        )
    needed = 4 * (4 * parameters * count + numbers + (nodes * given.features if dense else 0))
    if needed > (available := machine_memory()):
        raise AtollError(
            f"the settings need some {needed / 2**30:.0f} GB, and this site has {available / 2**30:.0f}; lower hidden or layers."
        )


def estimated_size(settings: Any, given: Schema, nodes: int) -> tuple[int, int]:
    """Roughly how many parameters a party's model has, and how many numbers at least its nodes' representations take."""

    def number(name: str, default: int) -> int:
        value = getattr(settings, name, default)
        return value if type(value) is int else default

    structure = number("walk_steps", 0) + number("max_degree", 0)
    width = max(number("hidden", 1), number("proxy_dim", 1), number("embedding_width", 1), structure)
    layers, types = number("layers", 1), number("link_types", 1)
    inputs = given.parties if getattr(settings, "aggregation", "") == "concatenation" else 1
    parameters = types * width * (given.features + (layers - 1) * width * inputs + given.classes)
    return parameters, nodes * types * layers * width


def machine_memory() -> int:
    """Bytes of memory of this machine; unlimited if it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 1 << 62
