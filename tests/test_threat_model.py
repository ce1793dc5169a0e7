"""The page on who sees what is true of the code: every algorithm's messages, what secure totals refuse, what noise covers."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from atoll import algorithms, wire
from atoll.data.encoding_counts import PartyCounts
from atoll.errors import AtollError
from atoll.federation import agreements, class_counts, cohort, value_scale
from atoll.graphs.table import Column, Table
from atoll.runs import runner
from atoll.runs.preparation import TableCohort
from small import ALGORITHMS, GRAPH, parties_of, small

PAGE = Path(__file__).parents[1] / "docs" / "threat-model.md"
Settings = tuple[tuple[str, str], ...]  # of a line that is for them only


class Sight(NamedTuple):
    """What is said by one verb on one channel."""

    channel: str
    down: frozenset[str]
    up: frozenset[str]


@dataclass(frozen=True)
class Line:
    """One line of an algorithm's table."""

    verb: str
    public: bool
    phases: tuple[str, ...]
    settings: Settings
    unless: Settings  # it is not for a run with these
    channel: str
    secure: str  # the channel with --secure
    down: frozenset[str]
    up: frozenset[str]


@dataclass
class Seen:
    """What really passed, by (phase, verb); and why it ended early, if it did."""

    fields: dict[tuple[str, str], Sight] = field(default_factory=dict)
    error: str = ""


def named(cell: str) -> frozenset[str]:
    """The names in backticks of a cell."""
    return frozenset(re.findall(r"`([^`]+)`", cell))


def rows(text: str) -> list[list[str]]:
    """The cells of the lines of all tables in a text, without heads."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    heads = {place - 1 for place, line in enumerate(lines) if line.startswith("|---")}
    kept = [line for place, line in enumerate(lines) if place not in heads and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in kept]


def line(cells: list[str]) -> Line:
    """A line of a message table."""
    verb, when, channel, down, up = cells[:5]
    phases, _, settings = when.partition(";")
    channels = re.findall(r"`(ask|total|tell)`", channel)
    assert 1 <= len(channels) <= 2, cells
    pairs = (setting.split("=") for setting in re.findall(r"`([^`]+)`", settings))
    (name,) = named(verb)
    found = tuple(phase.strip() for phase in phases.split(","))
    chosen = tuple(sorted((name, value) for name, value in pairs))
    only, unless = ((), chosen) if settings.strip().startswith("not ") else (chosen, ())
    return Line(name, "(public)" in verb, found, only, unless, channels[0], channels[-1], named(down), named(up))


@cache
def details() -> dict[str, list[Line]]:
    """The lines of every algorithm."""
    text = PAGE.read_text().split("## Message by message")[1].split("\n## ")[0]
    _, *sections = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    found: dict[str, list[Line]] = {}
    for names, body in zip(sections[::2], sections[1::2], strict=True):
        for name in names.split(", "):
            assert name not in found, f"{name} stands on the page twice"
            found[name] = [line(cells) for cells in rows(body)]
    return found


@cache
def glance() -> dict[str, list[str]]:
    """The line of every algorithm in the table at the top."""
    text = PAGE.read_text().split("## At a glance")[1].split("\n## ")[0]
    return {name: rest for name, *rest in rows(text)}


def applying(algorithm: str, settings: Settings) -> list[Line]:
    """The lines for a run with these settings: theirs stand in the place of the usual ones of the same verb and phase."""
    own = [each for each in details()[algorithm] if each.settings and each.settings == settings]
    usual = [each for each in details()[algorithm] if not each.settings and not (each.unless and each.unless == settings)]
    taken = {(phase, each.verb) for each in own for phase in each.phases}
    return own + [each for each in usual if not {(phase, each.verb) for phase in each.phases} & taken]


def variants() -> list[tuple[str, Settings]]:
    """Every algorithm as it is, and with the settings that the page names."""
    return [
        (name, chosen) for name in ALGORITHMS for chosen in sorted({(), *(each.settings for each in details().get(name, []))})
    ]


def run(algorithm: str, settings: Settings = (), **values: Any) -> Seen:
    """What passes in two small rounds, as the algorithm's code asks for it."""
    seen = Seen()
    own = dict(settings) | ({"data.nodes": 9} if values.get("secure") and parties_of(algorithm) == GRAPH["data.nodes"] else {})
    experiment = runner.prepare(small(algorithm, rounds=2, **own, **values))
    federation = experiment.federation

    def listen(channel: str) -> None:
        called = getattr(federation, channel)

        def listening(verb: str, *, to: Any = None, each: Any = None, **common: Any) -> Any:
            reply = called(verb, to=to, each=each, **common)
            phase = "evaluation" if not federation.training else "round" if federation.round else "start"
            sent = {name for name, value in {**common, **(each or {})}.items() if value is not None}
            told = {} if reply is None else reply if isinstance(reply, dict) else reply.fields
            before = seen.fields.get((phase, verb), Sight(channel, frozenset(), frozenset()))
            assert before.channel == channel, f"{verb} is called both by {before.channel} and by {channel}"
            seen.fields[phase, verb] = Sight(channel, before.down | sent, before.up | set(told))
            return reply

        setattr(federation, channel, listening)

    for channel in ("ask", "total", "tell"):
        listen(channel)
    try:
        runner.rounds(experiment)
    except AtollError as error:
        seen.error = str(error)
    return seen


def test_every_algorithm_is_on_the_page_once() -> None:
    """A new algorithm needs a line at the top and a table of its messages."""
    assert sorted(glance()) == ALGORITHMS
    assert sorted(details()) == ALGORITHMS


@pytest.mark.parametrize(("algorithm", "settings"), variants())
def test_the_messages_are_those_of_the_page(algorithm: str, settings: Settings) -> None:
    """Verbs, when, channel, and the fields both ways: neither more nor fewer than the tables say."""
    seen = run(algorithm, settings)
    assert not seen.error
    compare(seen, applying(algorithm, settings), secure=False)


def compare(seen: Seen, lines: list[Line], *, secure: bool) -> None:
    """What passed is what the lines say."""
    said = {(phase, each.verb) for each in lines for phase in each.phases}
    assert said == seen.fields.keys()
    for each in lines:
        found = [seen.fields[phase, each.verb] for phase in each.phases]
        assert {sight.channel for sight in found} == {each.secure if secure else each.channel}, each.verb
        assert frozenset().union(*(sight.down for sight in found)) == each.down, each.verb
        assert frozenset().union(*(sight.up for sight in found)) == each.up, each.verb


@pytest.mark.parametrize(("algorithm", "settings"), variants())
def test_secure_totals_run_or_are_refused_as_the_page_says(algorithm: str, settings: Settings) -> None:
    """Private verbs that are asked for are refused, by name; all else is a total, or public."""
    lines = applying(algorithm, settings)
    asked = {each.verb for each in lines if each.secure == "ask" and not each.public and each.up}
    seen = run(algorithm, settings, secure=True)
    told = glance()[algorithm][3]
    if parties_of(algorithm) == 1:
        assert told == "one party"
        assert "needs 2 parties" in seen.error
    elif asked:
        (verb,) = re.findall(r"the verb '(\w+)' is private", seen.error)
        assert verb in asked
        assert settings or told == f"refused: `{verb}`"
    else:
        assert settings or told == "runs"
        assert not seen.error
        compare(seen, lines, secure=True)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_verb_and_argument_is_on_the_page(algorithm: str) -> None:
    """Also those that no small run calls; where an algorithm borrows another one's parties, that one's table counts."""
    verbs = algorithms.find(algorithm).Cohort.verbs()
    owner = algorithms.find(algorithm).Cohort.__module__.rsplit(".", 1)[-1]
    lines = details()[algorithm] + (details()[owner] if owner != algorithm else [])
    for verb in verbs.keys() - cohort.Cohort.verbs().keys():
        own = [each for each in lines if each.verb == verb]
        assert own, f"the page does not tell of {verb}"
        assert {each.public for each in own} == {verbs[verb] == "public"}
        arguments = set(inspect.signature(algorithms.find(algorithm).Cohort.verb_named(verb)).parameters) - {"self"}
        assert arguments == frozenset().union(*(each.down for each in own)), verb


def test_the_steps_of_a_secure_total_are_on_the_page() -> None:
    """The verbs that every party has, with their arguments."""
    text = PAGE.read_text().split("## Secure totals")[1].split("\n## ")[0]
    lines = {each.verb: each for each in map(line, rows(text))}
    assert lines.keys() == cohort.Cohort.verbs().keys() - set(agreements.VERBS)
    for verb, each in lines.items():
        assert each.public == (cohort.Cohort.verbs()[verb] == "public")
        assert each.down == set(list(inspect.signature(cohort.Cohort.verb_named(verb)).parameters)[1:])


def test_what_class_weights_take_is_on_the_page() -> None:
    """With `class_weight=balanced`, for every algorithm: two messages before the first round and no others."""
    text = PAGE.read_text().split("## Class weights")[1].split("\n## ")[0]
    lines = [line(cells) for cells in rows(text)]
    assert {each.verb for each in lines} == set(class_counts.VERBS)
    for secure in (False, True):
        seen = run("fedavg", class_weight="balanced", secure=secure)
        assert not seen.error
        compare(seen, [*lines, *applying("fedavg", ())], secure=secure)


def test_what_the_scale_of_values_takes_is_on_the_page() -> None:
    """With `value_scale=federation`: two messages before the first round and no others."""
    text = PAGE.read_text().split("## Scale of values")[1].split("\n## ")[0]
    lines = [line(cells) for cells in rows(text)]
    assert {each.verb for each in lines} == set(value_scale.VERBS)
    for secure in (False, True):
        seen = run("fedavg", target="values", secure=secure)
        assert not seen.error
        begun = {place: sight for place, sight in seen.fields.items() if place[0] == "start"}
        compare(dataclasses.replace(seen, fields=begun), lines, secure=secure)


def test_the_verbs_that_encode_tables_are_on_the_page() -> None:
    """Each with its arguments, and only as a total."""
    text = PAGE.read_text().split("## Encoding tables")[1].split("\n## ")[0]
    lines = {each.verb: each for each in map(line, rows(text))}
    own = TableCohort.verbs().keys() - cohort.Cohort.verbs().keys()
    assert lines.keys() == own
    table = Table((Column("a", "number"), Column("c", "category")), np.zeros((3, 2)), ((), ("x",)))
    counts = PartyCounts(table, np.zeros(3, np.int64), 1)
    ranges = {"low": torch.zeros(1).double(), "high": torch.ones(1).double()}
    whole = {"columns": torch.zeros(1, dtype=torch.int64), "buckets": torch.zeros(1, dtype=torch.int64)}
    whole["codes"] = whole["prefixes"] = whole["buckets"]
    for verb, each in lines.items():
        assert TableCohort.verbs()[verb] == "private"
        assert each.channel == each.secure == "total"
        assert each.down == set(inspect.signature(TableCohort.verb_named(verb)).parameters) - {"self"}
        reply = getattr(counts, verb)(**{name: value for name, value in (ranges | whole).items() if name in each.down})
        assert each.up == reply.keys()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_noise_is_put_where_the_page_says(algorithm: str) -> None:
    """The verb can be noised with a finite ε by that unit; a clip that cuts nothing and no noise change nothing."""
    cell = glance()[algorithm][4]
    if not cell:
        return
    verb, unit = re.fullmatch(r"`(\w+)` (party|row)", cell).groups()  # type: ignore[union-attr]
    noise = {"dp.verb": verb, "dp.protected_unit": unit}
    spent = runner.run(small(algorithm, rounds=1, **noise, **{"dp.noise": 4.0})).rows[-1]["epsilon"]
    assert 0 < spent < math.inf
    plain, same = (runner.run(small(algorithm, rounds=2, **values)) for values in ({}, {**noise, "dp.clip": 1e6, "dp.noise": 0}))
    assert same.last["val_loss"] == pytest.approx(plain.last["val_loss"], abs=1e-3)
    assert_close(plain.state, same.state, 1e-3)


UNTAUGHT: dict[str, dict[str, Any]] = {"fedtad": {"server_steps": 0}}  # without what the server itself does to its model


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_cut_of_a_model_is_its_update(algorithm: str) -> None:
    """Cut to nothing, the models that parties send back are those they were sent, however they are weighted."""
    cell = glance()[algorithm][4]
    lines = [each for each in applying(algorithm, ()) if f"`{each.verb}` party" == cell]
    values = {"dp.verb": lines[0].verb, "dp.clip": 1e-12, "dp.noise": 0} | UNTAUGHT.get(algorithm, {}) if lines else {}
    experiment = runner.prepare(small(algorithm, rounds=2, **values))
    first = experiment.algorithm.start(experiment.federation, experiment.config.settings)
    models = [name for name in first if lines and name in lines[0].down & lines[0].up and isinstance(first[name], dict)]
    if not models:
        pytest.skip(f"{algorithm} has no noise on models")
    last = runner.rounds(experiment).state
    assert_close({name: first[name] for name in models}, {name: last[name] for name in models}, 1e-5)


def assert_close(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> None:
    """The same tensors."""
    for (name, value), (_, same) in zip(wire.leaves(one), wire.leaves(other), strict=True):
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, same, atol=tolerance, rtol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.filterwarnings("ignore:.*encoded as inferred")
def test_what_a_site_says_of_its_data_is_on_the_page(tmp_path: Path) -> None:
    """The description that the server asks for before the first round."""
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")
    from atoll.data import files
    from atoll.data.csbm import csbm
    from atoll.deploy import launch
    from atoll.deploy.site import Site

    files.save(csbm(20, 3, 1, 1, 4), tmp_path)
    text = PAGE.read_text().split("## Across machines")[1]
    told = next(cells[1] for cells in rows(text) if cells[0] == "`describe`")
    usual, vertical = told.split("; if vertical also")
    usual, overlapping = usual.split("; if overlapping also")
    always, encoded = usual.split("; where columns need an encoding also")
    names, columns = named(always.split("and, unless vertical")[0]), named(always)
    for algorithm, expected in (
        ("fedavg", columns),
        ("fedgl", columns | named(overlapping)),
        ("glasu", names | named(vertical)),
    ):
        config = launch.deployment_config({"algorithm": algorithm}, "run.toml", ["a", "b"])
        assert Site(tmp_path, tmp_path)._describe(config).keys() == expected
    (tmp_path / "graph.npz").unlink()
    (tmp_path / "nodes.csv").write_text("id,ward,label\na,icu,0\nb,,1\n")
    (tmp_path / "edges.csv").write_text("source,target\na,b\n")
    config = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a", "b"])
    assert Site(tmp_path, tmp_path)._describe(config).keys() == columns | named(encoded) - {"features.toml"}
