"""The backbone that a party of a trained model predicts with, from the model's files alone: no data is needed.

What a party is sent to predict with is what the server's `evaluate` sends, which is called here over random graphs. The cohort
makes the party's backbone of that and of the party's memory; on those graphs it must predict what the party predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll import algorithms, wire
from atoll.errors import AtollError, listed
from atoll.federation.adoption import check_form
from atoll.federation.cohort import PARTY, Cohort, Fields, Schema
from atoll.federation.fields import pick
from atoll.federation.messages import Answer, Failure, Message
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone
from atoll.models.graph_level import GraphNetwork
from atoll.models.mlp import MLP
from atoll.models.standalone.convert import one_party
from atoll.privacy.noise_settings import EVALUATE
from atoll.runs.config import Config
from atoll.runs.data_task import level_of
from atoll.runs.experiment import build_cohort, build_experiment
from atoll.runs.model_files import ModelFiles
from atoll.runs.predictions import without_finetuning

MAX_LISTED = 20  # parties that an error lists
NODES = 12  # of a party's random graph
TOLERANCE = 1e-5  # of the largest output, at least of 1


def party_backbone(files: ModelFiles, config: Config, party: str | int | None = None) -> tuple[Backbone, str | None]:
    """The backbone (P = 1) that a party predicts with, and the party's name; None where all parties have the same model.

    Parameters:
        files: The trained model, of a run or of a site.
        config: Its configuration; an algorithm or a model that is a file is imported.
        party: A party's name, or its number where they have none; may be left out where all have the same model.
    """
    about, kind = files.description, algorithms.find(config.algorithm).Cohort
    if kind.no_backbone:
        raise AtollError(f"{Path(config.algorithm).stem} has no model that can be exported: {kind.no_backbone}.")
    names = party_names(about)
    if party is not None and str(party) not in names:
        raise AtollError(f"There is no party {str(party)!r} in this model; it has {listed(names, MAX_LISTED)}.")
    number = next(iter(names.values())) if party is None else names[str(party)]
    inputs = _Inputs.of(files, config, kind, number)
    if party is None and not inputs.shared:
        raise AtollError(f"Every party has a model of its own; say which one with --party: {listed(names, MAX_LISTED)}.")
    cohort = _cohort(config, about, inputs.parties)
    if missing := sorted(name for name in cohort.trained() if cohort.memory[name] == PARTY and name not in inputs.memory):
        where = (
            "is at the parties' sites; export it there, from KIT/runs/NAME" if about.get("memory_at_sites") else "is not in it"
        )
        raise AtollError(f"This model cannot be exported without the parties' `{missing[0]}`, which {where}.")
    _check_memory(cohort, inputs)
    cohort.restore(inputs.memory)
    models = _checked(cohort, inputs.arguments, about)
    alone = about["parties"] == 1 or (inputs.shared and about.get("party_numbers") is None)
    backbone = one_party(models, inputs.parties.index(number))
    if isinstance(backbone, GraphNetwork):
        widths, classes = about.get("widths"), about.get("party_classes")
        shape = backbone.shape
        own = (widths[number] if widths else shape.features, classes[number] if classes else shape.classes)
        backbone = backbone if own == (shape.features, shape.classes) else backbone.narrowed(*own)
    return backbone, None if alone else _name(names, number)


def _check_memory(cohort: Cohort, inputs: _Inputs) -> None:
    """Refuse memory of another form than the cohort's."""
    here = cohort.trained()
    try:
        for name in inputs.memory.keys() & here.keys():
            check_form(f"the parties' {name}", inputs.memory[name], here[name])
    except ValueError as error:
        raise AtollError(f"The model's memory does not fit its description ({error}); restore the folder.") from error


def party_names(about: Mapping[str, Any]) -> dict[str, int]:
    """The parties that a model is of, by name or, where they have none, by number; at a site, its own."""
    numbers = about.get("party_numbers")
    names = about["names"]
    held = range(about["parties"]) if numbers is None else map(int, numbers)
    return {str(names[number]) if number < len(names) else str(number): number for number in held}


@dataclass(frozen=True)
class _Inputs:
    """What some parties predict with: what they are sent, and what they remember (rows in the order of `parties`)."""

    parties: list[int]
    arguments: Fields
    memory: Fields
    shared: bool  # whether no party has to be chosen

    @classmethod
    def of(cls, files: ModelFiles, config: Config, kind: type[Cohort], number: int) -> _Inputs:
        """Of one party of a run, or of the parties of a site."""
        about = files.description
        memory = {name: value for name, value in files.memory.items() if kind.memory.get(name, PARTY) == PARTY}
        if (local := about.get("party_numbers")) is not None:
            held = list(map(int, local))
            return cls(held, dict(files.arguments), memory, len(held) == 1)
        message = _sent(files, config, number)
        shared = kind.same_backbone or (_rows_are_equal(message.each) and _rows_are_equal(memory))
        arguments = {**message.common, **message.select([number]).each}
        return cls([number], arguments, pick(memory, [number]), shared)


def _rows_are_equal(fields: Mapping[str, Any]) -> bool:
    return all(bool((value == value[:1]).all()) for _, value in wire.leaves(fields) if isinstance(value, Tensor))


class _Sent(Exception):
    """The message that `evaluate` sends."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.verb)
        self.message = message


class _OneParty:
    """An engine that reaches one party, up to the message that it is to be evaluated with."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Answer for the party; the others are not here."""
        if message.verb == EVALUATE:
            raise _Sent(message)
        (number,) = self.cohort.parties
        others: list[Answer | Failure] = [Failure(party, "is not here") for party in message.parties if party != number]
        return [*others, Answer(self.cohort.parties, self.cohort.answer(message.select([number])))]

    def state(self) -> Fields:
        """Nothing is kept."""
        return {}

    def restore(self, memory: Fields) -> None:
        """Nothing is kept."""


def _sent(files: ModelFiles, config: Config, number: int) -> Message:
    """What the server sends with `evaluate`."""
    about = files.description
    plain = replace(config, run=replace(config.run, on_missing="continue", secure=False, robust="none", latency=(), bandwidth=()))
    engine = _OneParty(_cohort(config, about, [number]))
    experiment = build_experiment(plain, engine, _schema(about), None, about["scenario"])
    federation, nodes = experiment.federation, about["parties"]
    if about["scenario"] == "node":
        federation.public = {"edge_index": torch.zeros(2, 0, dtype=torch.int64), "y_train": torch.zeros(nodes, dtype=torch.int64)}
    federation.begin(about["best_round"])
    federation.evaluation = without_finetuning(federation.evaluation)
    try:
        with torch.no_grad(), federation.evaluating():
            experiment.algorithm.evaluate(federation, files.state, config.settings)
    except _Sent as sent:
        return sent.message
    raise AtollError(
        f"{Path(config.algorithm).stem} does not ask its parties to evaluate, so what they predict with is not known."
    )


def _schema(about: Mapping[str, Any]) -> Schema:
    return Schema(about["features"], about["num_classes"], about["parties"], about.get("nodes") or 0)


def _cohort(config: Config, about: Mapping[str, Any], parties: Sequence[int]) -> Cohort:
    """The parties with random graphs, without memory."""
    level = level_of(about["task"])
    graph = _random_graphs(_schema(about), len(parties), 1 if about["scenario"] == "node" else NODES, level)
    return build_cohort(config, graph, _schema(about), parties, blank=True)


def _random_graphs(schema: Schema, parties: int, nodes: int, level: str = "node") -> Graph:
    """A graph of `nodes` nodes for each party: a path, normal features, one class, all of them training nodes.

    Where items are graphs, it is a graph; where they are pairs, the edges are the pairs.
    """
    every = torch.ones(parties * nodes, dtype=torch.bool)
    before = torch.arange(parties * nodes).view(parties, nodes)[:, :-1].reshape(-1)
    path = torch.stack([before, before + 1])
    x = torch.randn(parties * nodes, schema.features, generator=torch.Generator().manual_seed(0))
    items: dict[str, Any] = {}
    if level != "node":
        count = parties if level == "graph" else path.shape[1]
        every = torch.ones(count, dtype=torch.bool)
        items = {"graph_ptr": nodes * torch.arange(parties + 1)} if level == "graph" else {"pairs": path}
    return Graph(
        *(x, torch.cat([path, path.flip(0)], 1), torch.zeros(len(every), dtype=torch.int64), every, every, every),
        num_classes=schema.classes,
        ids=torch.arange(parties * nodes),
        ptr=nodes * torch.arange(parties + 1),
        **items,
    )


def _checked(cohort: Cohort, arguments: Fields, about: Mapping[str, Any]) -> Backbone:
    """What the cohort says its parties predict with, if it is that."""
    with torch.no_grad():
        models = cohort.party_models(**arguments)
        expected, outputs = cohort.predict(**arguments), models(cohort.graph)
    rows = about.get("data", {}).get("nodes", about["parties"])
    if about["scenario"] == "node" and rows != about["parties"] and type(models) is not MLP:
        raise AtollError(
            f"Its {about['parties']} nodes have {rows} feature vectors, and no exported model takes several per node."
        )
    if not bool((outputs - expected).abs().max() <= TOLERANCE * max(1.0, float(expected.abs().max()))):
        raise AtollError(
            f"{type(cohort).__module__} does not predict with the models that its `party_models` gives, so they are not "
            "exported; let it give what `predict` uses."
        )
    return models


def _name(names: Mapping[str, int], number: int) -> str:
    return next(name for name, each in names.items() if each == number)
