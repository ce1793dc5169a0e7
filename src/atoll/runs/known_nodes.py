"""Known nodes: the graph that holds those which the edges of new nodes name, from the training data or given again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.data.new_edges import Context
from atoll.data.new_nodes import read_new
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph

if TYPE_CHECKING:
    from atoll.runs.trained import TrainedModel


def site_context(model: TrainedModel, known: Any) -> Context:
    """At a site, which keeps no copy of its data: the graph that holds the nodes which new edges name, given again."""

    def find(names: Mapping[str, str]) -> Graph:
        if known is None:
            first = next(iter(names))
            raise AtollError(
                f"An edge names '{first}', which is not among the new nodes; give the data that holds it: --known FOLDER."
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AtollWarning)  # it was said when the model was trained
            graph = read_new(known, model.form()).graph
        held = set() if graph.node_names is None else set(graph.node_names)
        if unknown := [name for name in names if name not in held]:
            where = known if isinstance(known, str | Path) else "the known graph"
            raise AtollError(f"An edge names '{unknown[0]}', which is neither a new node nor a node of {where}; correct it.")
        return graph

    return find


def training_context(model: TrainedModel, party: int | None) -> Context:
    """Finds the part of the training data that holds the nodes which new edges name."""

    def find(names: Mapping[str, str]) -> Graph:
        data = model.training_data
        parts = data.whole if data.scenario in ("node", "whole") else data.parts
        held = parts.ids.numpy().astype(str).astype(object) if parts.node_names is None else parts.node_names
        rows = np.flatnonzero(np.isin(held.astype(str), np.array(list(names))))
        owners = parts.party.numpy()[rows]
        if party is not None and parts.parties > 1:
            rows, owners = rows[owners == party], owners[owners == party]
        ids = held[rows].astype(str)
        if unknown := sorted(set(names) - set(ids)):
            whose = "the training data" if party is None else f"the party {party_name(model, party)}"
            raise AtollError(f"{names[unknown[0]]} is neither a new node nor a node of {whose}; correct it.")
        if twice := _repeated(ids):
            raise AtollError(f"{names[twice]} is a node of several parties; say with --party whose the new nodes are.")
        graph = replace(parts, node_names=held).select(np.unique(owners))
        assert graph.node_names is not None
        if graph.parties > 1 and (twice := _repeated(graph.node_names.astype(str))):
            raise AtollError(
                f"The edges name nodes of several parties, which share nodes ('{twice}' is one of them); say with --party whose "
                "the new nodes are."
            )
        return replace(graph, ptr=graph.ptr[[0, -1]], widths=None, majority=None)

    return find


def _repeated(names: NDArray[np.str_]) -> str:
    """A name that is there several times; empty where there is none."""
    different, counts = np.unique(names, return_counts=True)
    return str(different[counts > 1][0]) if (counts > 1).any() else ""


def own_party(model: TrainedModel, party: str | int | None) -> int:
    """The number of the one party that a site's model is of, which `party` may name."""
    numbers = list(model.own_numbers or ())
    if len(numbers) != 1:
        raise AtollError(
            f"This is the model of a simulated site with {len(numbers)} parties; predict with the folder of the run."
        )
    (number,) = numbers
    if party is not None and model.party_number(party) != number:
        raise AtollError(f"This is the model of the party {party_name(model, number)}, not of {party}; predict at its own site.")
    return number


def party_name(model: TrainedModel, number: int) -> str:
    """What a party is called: its name, or its number as text."""
    return model.names[number] if number < len(model.names) else str(number)
