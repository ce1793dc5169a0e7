"""Runs that begin with a trained model (`atoll run … --from RUN`) instead of first values.

The server's state and the parties' memory are those of the earlier run's best round, as far as they fit the data: where it is
the same, all of it; else what is the same for all data, and per party what a party of that name (or number) had. Optimizers
always start fresh. The algorithm and the architecture must be the same, and the data must have the same columns and classes.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoll import wire
from atoll.engines import ENGINES, is_hosted
from atoll.engines.inprocess import InProcessEngine
from atoll.errors import AtollError, AtollWarning
from atoll.federation.adoption import adopt, check_form
from atoll.federation.cohort import Cohort
from atoll.federation.federation import Federation
from atoll.federation.fields import copied, put, take
from atoll.federation.memory import FRESH, NODE, PARTY, SHARED
from atoll.runs.config import Config
from atoll.runs.experiment import Experiment
from atoll.runs.model_card import architecture
from atoll.runs.model_files import ModelFiles, read_digest
from atoll.runs.resumed_config import describe, file_digests
from atoll.runs.simulation import simulation_of

MAX_LISTED = 5  # new parties that are named
State = dict[str, Any]
MIXED_SPLIT = (
    "The data is not the model's, so its split may be another one: nodes that the model was trained on may be test nodes now, "
    "and test metrics too high; give nodes a `split` of their own, or judge on nodes that arrived later."
)


def with_digest(config: Config) -> Config:
    """The configuration with the digest of the model that it begins with; one that names another digest is refused."""
    if config.start_from is None:
        return config
    if hasattr(ENGINES.find(config.engine), "launch"):
        raise AtollError(f"A run of the engine {config.engine} cannot begin with a trained model; leave --engine or --from out.")
    digest = read_digest(Path(config.start_from))
    if config.start_digest not in (None, digest):
        raise AtollError(
            f"{config.start_from} holds another model than the one that the run is to begin with (its SHA-256 was "
            f"{config.start_digest}); restore it, or give --from again."
        )
    return dataclasses.replace(config, start_digest=digest)


def begin(experiment: Experiment, first: State) -> State:
    """The server's state before the first round; the parties' memory is set. `first` is what `start` made."""
    config = experiment.config
    if config.start_from is None:
        return first
    files, (cohorts, twin) = _read(config), _cohorts(experiment)
    about, axes = files.description, getattr(experiment.algorithm, "STATE_AXES", {})
    if differences := _differences(about, experiment):
        raise _misfit(config, differences)
    same_data = bool(experiment.extent) and about.get("data", {}).get("digest") == experiment.extent["digest"]
    before = None if same_data else matching_parties(about, experiment.federation.names, experiment.federation.schema.parties)
    try:
        state = carried_state(first, files.state, axes, before)
        memory = adopt(cohorts, files.memory, before)
    except ValueError as error:
        raise _misfit(config, f"{error}{_differing_settings(about, config)}") from error
    if twin is not None:
        experiment.engine.restore(twin.state())
    names = [name for name in files.state if name in state and state[name] is not first.get(name)]
    if not names and not memory:
        raise AtollError(
            f"{config.start_from} has nothing that this run could begin with: what it holds belongs to its {about['parties']} "
            "parties, and these are others; leave --from out."
        )
    left = [f"the server's {name}" for name in files.state if axes.get(name) != FRESH and name not in names]
    kept = cohorts[0].trained() if cohorts else files.memory
    left += [f"the parties' {name}" for name in kept if name not in memory]
    new = _new(before, experiment.federation) if kept or PARTY in axes.values() else ""
    carried = _in_words(names, memory, left, new)
    privacy = _privacy(config, about)
    experiment.start = {
        "path": config.start_from,
        "digest": files.digest,
        "round": about["best_round"],
        "carried": carried,
        **({"privacy": privacy} if privacy else {}),
    }
    split = "" if same_data else MIXED_SPLIT
    for text in (f"Of {config.start_from} the run begins with {carried}." if left or new else "", split, privacy):
        if text:
            warnings.warn(text, AtollWarning, stacklevel=3)
    return state


def _cohorts(experiment: Experiment) -> tuple[Sequence[Cohort], InProcessEngine | None]:
    """The parties; where they are in other processes, the same ones made here, with the engine that holds them."""
    engine: Any = experiment.engine
    if hasattr(engine, "cohorts") or not is_hosted(experiment.config.engine):
        return getattr(engine, "cohorts", []), None
    if (simulation := simulation_of(experiment)) is None:
        raise AtollError("The parties' graphs are in shards, which this process does not read; leave --engine or --from out.")
    twin = InProcessEngine(simulation.make, simulation.sites)
    return twin.cohorts, twin


def matching_parties(about: Mapping[str, Any], names: Sequence[str], parties: int) -> Tensor:
    """(P,) for each of the parties here, its number in the trained model, −1 where it was not there.

    By name where both have names, else by number where there are as many.
    """
    if names and about["names"]:
        numbers = {str(name): number for number, name in enumerate(about["names"])}
        return torch.tensor([numbers.get(name, -1) for name in names])
    return torch.arange(parties) if parties == about["parties"] else torch.full((parties,), -1)


def carried_state(first: State, trained: Mapping[str, Any], axes: Mapping[str, str], before: Tensor | None) -> State:
    """The trained state as far as it fits: `before` are the parties' numbers in it, None where the data is the same.

    What is not in `axes` is the same for all data, and has the same shape. What `start` does not make is carried over to the same
    data only.
    """
    state = dict(first)
    for name, value in trained.items():
        axis = axes.get(name)
        if axis == SHARED or (before is None and axis != FRESH):
            if name in first and axis is None:
                check_form(f"the server's {name}", value, first[name])
            state[name] = value
        elif name not in first or axis in (FRESH, NODE):
            continue
        elif axis == PARTY and before is not None:
            check_form(f"the server's {name}", value, first[name], rows=True)
            known = (before >= 0).nonzero()[:, 0]
            state[name] = put(copied(first[name]), known, take(value, before[known])) if len(known) else first[name]
        else:
            check_form(f"the server's {name}", value, first[name])
            state[name] = value
    if lacking := [name for name in first if name not in trained and name not in axes and dict(wire.leaves({name: first[name]}))]:
        raise ValueError(f"it has no {lacking[0]} of the server")
    return state


def _read(config: Config) -> ModelFiles:
    try:
        with_digest(config)
        files = ModelFiles.read(Path(str(config.start_from)))
    except AtollError as error:
        raise AtollError(f"This run begins with the model in {config.start_from}, which cannot be used: {error}") from error
    if files.description.get("party_numbers") is not None:
        raise AtollError(f"{config.start_from} is the model of a site, which has only its own part; give the folder of a run.")
    return files


def _misfit(config: Config, reason: str) -> AtollError:
    return AtollError(f"The model in {config.start_from} does not fit this run: {reason}; change that, or leave --from out.")


def _differences(about: Mapping[str, Any], experiment: Experiment) -> str:
    """How the run differs from the trained model, in words; "" where nothing relevant does."""
    config, schema, data = experiment.config, experiment.federation.schema, experiment.data
    old, new = dict(about.get("architecture", {})), architecture(config)
    kept = {name: (about.get(f"{name}_sha256"), file_digests(config).get(f"{name}_sha256")) for name in ("algorithm", "model")}
    was = {"algorithm": about["algorithm"], "task": about["task"], **old.pop("settings", {}), **old}
    now = {"algorithm": config.algorithm, "task": config.run.task, **new.pop("settings"), **new}
    for name, (before, current) in kept.items():
        if before is not None and current is not None:  # files, wherever they are
            was[name], now[name] = (None, None) if before == current else (f"{was[name]} before a change", now[name])
    was |= {"the number of columns": about["features"], "the number of classes": about["num_classes"]}
    now |= {"the number of columns": schema.features, "the number of classes": schema.classes}
    changed = {name: (was.get(name), now.get(name)) for name in was | now if was.get(name) != now.get(name) and name != "dropout"}
    if changed:
        return describe(changed)
    source = None if data is None else data.source
    names = {"column": None, "class": None} if source is None else {"column": source.feature_names, "class": source.class_names}
    for (what, here), there in zip(names.items(), (about.get("columns"), about.get("classes")), strict=True):
        if here and there and list(here) != list(there):
            index, (name, before) = next(pair for pair in enumerate(zip_longest(here, there), 1) if pair[1][0] != pair[1][1])
            return f"{what} {index} is {name!r} and was {before!r}"
    widths = None if data is None or data.parts.widths is None else list(data.parts.widths)
    if widths and about.get("widths") and widths != about["widths"]:
        return f"the parties have {widths} columns and had {about['widths']}"
    return ""


def _differing_settings(about: Mapping[str, Any], config: Config) -> str:
    """The algorithm's settings that differ, in words: one of them is the reason for another shape."""
    was, now = about["config"].get("settings", {}), config.to_dict().get("settings", {})
    changed = {name: (was.get(name), now.get(name)) for name in was | now if was.get(name) != now.get(name)}
    return f" ({describe(changed)})" if changed else ""


def _in_words(state: Sequence[str], memory: Sequence[str], left: Sequence[str], new: str) -> str:
    """One line for people: what is carried over, and what is not."""
    parts = [f"the server's {', '.join(state)}"] if state else []
    parts += [f"the parties' {', '.join(memory)}"] if memory else []
    rest = [f"from first values: {', '.join(left)}"] if left else []
    return "; ".join([" and ".join(parts), *rest, *([new] if new else [])])


def _new(before: Tensor | None, federation: Federation) -> str:
    """The parties that the trained model does not know, in words."""
    new = [] if before is None else (before < 0).nonzero()[:, 0].tolist()
    shown = ", ".join(federation.name_of(party) for party in new[:MAX_LISTED])
    return f"new: party {shown}{f' and {len(new) - MAX_LISTED} more' if len(new) > MAX_LISTED else ''}" if new else ""


def _privacy(config: Config, about: Mapping[str, Any]) -> str:
    """What a privacy budget does not cover."""
    if about.get("epsilon") is not None:
        return f"{config.start_from} had spent ε = {about['epsilon']:.4g}, which is not in the ε of this run."
    if config.dp.active:
        return f"{config.start_from} was trained without noise: the ε of this run does not cover what its model reveals."
    return ""
