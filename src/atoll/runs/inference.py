"""What a trained model predicts for the nodes of a graph: its parties are built again with what they had at the best round, and
asked as in an evaluation. Nothing is trained, noised, masked or billed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from atoll.data.damage import DamageSettings
from atoll.data.federated_data import FederatedData, always
from atoll.engines.inprocess import InProcessEngine
from atoll.errors import AtollError
from atoll.federation.cohort import PARTY, Cohort, Message, Observation, Schema
from atoll.federation.fields import Fields, put, take
from atoll.federation.memory import NODE, rows_of
from atoll.federation.metrics import UNION
from atoll.graphs.blocks import spans
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.privacy.noise_settings import EVALUATE, NoiseSettings
from atoll.runs.config import Config
from atoll.runs.experiment import build_cohort, build_experiment
from atoll.runs.model_files import ModelFiles
from atoll.runs.predictions import observe

NOT_GIVEN = "no data of it is given"


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes to predict, and whose they are."""

    parts: Graph  # block-diagonal, with the model's columns and classes
    parties: Parties  # the blocks' numbers in the federation
    scenario: str
    schema: Schema
    public: Mapping[str, Any] = field(default_factory=dict)  # what the server knows in this scenario
    trained_on: bool = False  # whether the model was trained on exactly these
    known: Tensor | None = None  # (P,) where parties join a trained federation: their numbers in it, −1 for those who join
    before: Graph | None = None  # and the graph of the trained ones


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the parties predict."""

    logits: Tensor  # (N, C)
    asked: Tensor  # (N,) whether the node's party predicts at all: in a vertical federation perhaps only the label holder
    personal: bool  # whether the server sends each party something else


def infer(files: ModelFiles, config: Config, nodes: Nodes) -> Predicted:
    """The outputs of a model for some nodes, labeled or not.

    Nodes that an evaluation leaves out, for they have no label, are asked for again as if they were test nodes.
    """
    everything = torch.ones(len(nodes.parts.y), dtype=torch.bool)
    seen = _ask(files, config, nodes, nodes.parts if nodes.trained_on else _marked(nodes.parts, everything))
    logits, asked = _assembled(seen, nodes)
    left = logits.isnan().any(1)
    if nodes.trained_on and bool(left.any()):
        again, reached = _assembled(_ask(files, config, nodes, _marked(nodes.parts, left)), nodes)
        logits, asked = torch.where(left[:, None], again, logits), asked | reached
    if not bool(torch.isfinite(logits[asked]).all()):
        raise AtollError("The model's outputs are not finite numbers: its training diverged; train it again, with a smaller lr.")
    return Predicted(logits, asked, any(one.personal for one in seen))


def plain(config: Config) -> Config:
    """The configuration without what concerns training and its messages."""
    run = replace(
        config.run,
        secure=False,
        robust="none",
        participation=1.0,
        latency=(),
        bandwidth=(),
        evaluate_at_server=True,
        amnesia=False,
        evaluation="auto" if config.run.evaluation == UNION else config.run.evaluation,
        average="pooled",
    )
    return replace(config, engine="inprocess", dp=NoiseSettings(), noise=DamageSettings(), run=run)


def _ask(files: ModelFiles, config: Config, nodes: Nodes, parts: Graph) -> list[Observation]:
    """What the parties predict; `parts` are those of `nodes`, perhaps with other labels and splits."""
    config, best = plain(config), files.description["best_round"]

    def make(site: Sequence[int], blank: bool) -> Cohort:
        index = nodes.parties.indices(site)
        cohort = build_cohort(config, parts.select(index), nodes.schema, site, blank=nodes.known is None)
        if nodes.known is not None:
            _give_memory(cohort, files.memory, nodes.known[index], nodes)
            return cohort
        memory = _memory(files, cohort, nodes)
        cohort.restore(memory) if nodes.trained_on else cohort.transfer(memory)
        return cohort

    if files.description.get("party_numbers") is not None:  # of a site, which has no server's state
        cohort = make(nodes.parties, True)
        left_out = () if nodes.trained_on else cohort.about_nodes
        arguments = {name: value for name, value in files.arguments.items() if name not in left_out}
        return [cohort.observe(Message(EVALUATE, best, 1, False, nodes.parties, arguments, {}), hidden=False)]
    apart = config.run.placement == "apart"
    engine = InProcessEngine(make, [[party] for party in nodes.parties] if apart else [nodes.parties])
    scenario = "horizontal" if nodes.scenario == "overlapping" else nodes.scenario  # the union of their graphs is not asked for
    data = FederatedData(scenario, parts, always(parts), always(parts), nodes.public)
    experiment = build_experiment(config, engine, nodes.schema, data, scenario)
    experiment.federation.begin(best)
    experiment.federation.missing = dict.fromkeys(experiment.federation.parties.without(set(nodes.parties)), NOT_GIVEN)
    axes = {} if nodes.trained_on else getattr(experiment.algorithm, "STATE_AXES", {})
    state = {name: value for name, value in files.state.items() if axes.get(name) != NODE}  # rows of other nodes than these
    return observe(experiment, state, hidden=False)


def _memory(files: ModelFiles, cohort: Cohort, nodes: Nodes) -> Fields:
    """The rows of a cohort's parties in the memory of the model's."""
    if lacking := sorted(cohort.trained().keys() - files.memory.keys()):
        raise AtollError(
            f"Each party predicts with {lacking[0]!r} of its own, which is not in this folder but at its site; predict there: "
            "atoll predict KIT --data FOLDER."
        )
    numbers = files.description.get("party_numbers")
    held = Parties(range(files.description["parties"]) if numbers is None else numbers)
    if not files.memory or held == cohort.parties:
        return files.memory
    index = held.indices(cohort.parties)
    memory: Fields = {}
    for name, value in files.memory.items():
        axis = cohort.memory.get(name, PARTY)  # rows of nodes are found only where the nodes are the same
        memory[name] = take(value, rows_of(index, axis, nodes.parts)) if axis == PARTY or nodes.trained_on else value
    return memory


def _give_memory(cohort: Cohort, memory: Fields, known: Tensor, nodes: Nodes) -> None:
    """Give trained parties what they remember; those who join, whose number in `known` is −1, begin as every party did."""
    assert nodes.before is not None
    here, held = (known >= 0).nonzero()[:, 0], cohort.trained()
    for name, value in memory.items():
        axis = cohort.memory.get(name, PARTY)
        rows, source = rows_of(here.numpy(), axis, cohort.graph.host), rows_of(known[here].numpy(), axis, nodes.before)
        with torch.no_grad():
            held[name] = put(held[name], rows, take(value, source))
    cohort.restore(held)


def _marked(graph: Graph, rows: Tensor) -> Graph:
    """The graph with these rows as labeled test nodes, so that they are predicted; nobody looks at the label."""
    y = torch.where(rows & (graph.y < 0), 0, graph.y)
    return replace(graph, y=y, test=graph.test | rows)


def _assembled(seen: Sequence[Observation], nodes: Nodes) -> tuple[Tensor, Tensor]:
    """The outputs of all nodes, NaN where nobody predicts, and which rows are of parties that were asked."""
    if len(seen) == 1 and seen[0].parties == nodes.parties:
        return seen[0].output, torch.ones(len(nodes.parts.y), dtype=torch.bool)
    if not seen:
        raise AtollError("Its parties are not asked for predictions.")
    ptr = nodes.parts.item_ptr
    logits = seen[0].output.new_full((len(nodes.parts.y), seen[0].output.shape[1]), torch.nan)
    asked = torch.zeros(len(nodes.parts.y), dtype=torch.bool)
    for one in seen:
        index = torch.from_numpy(nodes.parties.indices(one.parties))
        rows = spans(ptr[index], ptr[index + 1])
        logits[rows], asked[rows] = one.output, True
    return logits, asked


def require_shared_model(files: ModelFiles, config: Config) -> None:
    """Refuse new nodes where every node is a party and has something of its own."""
    if files.memory:
        raise AtollError(
            f"{config.algorithm} cannot predict nodes that it was not trained on: every node is a party with weights of its own, "
            "and a new one has none."
        )
