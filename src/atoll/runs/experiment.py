"""A resolved run: its data, parties and federation built from a configuration, before the first round."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from atoll import algorithms, allocator
from atoll import device as devices
from atoll.data.damage import damaged
from atoll.data.federated_data import FederatedData
from atoll.data.script_data import ScriptData
from atoll.engines import close, connecting, is_hosted, server_device
from atoll.errors import AtollError, AtollWarning
from atoll.federation import robust
from atoll.federation.bounds import Limits, Rules
from atoll.federation.cohort import Cohort, Guard, Schema
from atoll.federation.federation import Engine, Federation
from atoll.federation.network import NetworkModel
from atoll.graphs.graph import Graph
from atoll.models.registry import MODELS, find_model
from atoll.parties import Parties
from atoll.privacy.identities import Identities, simulated_identities
from atoll.privacy.masking import min_total_parties
from atoll.privacy.noise import Noise
from atoll.privacy.noise_settings import EVALUATE
from atoll.privacy.releases import Releases
from atoll.privacy.secrets import Secrets
from atoll.runs.config import GIVEN, Config
from atoll.runs.described_config import Described
from atoll.runs.preparation import load_parties, read_preprocessing
from atoll.runs.run_settings import evaluated_share
from atoll.tasks import TASKS, Task, TaskOptions

MAX_KEPT_NODES = 4_000_000  # with more, memory is short, and kept blocks that nothing else fits into cost too much of it


@dataclass
class Experiment:
    """A resolved run: algorithm, data, federation."""

    config: Config
    algorithm: algorithms.Algorithm
    data: FederatedData | None  # None where the parties' data is not here
    federation: Federation
    releases: Releases = field(default_factory=Releases)  # of the parties in this process
    spent_before: float = 0.0  # `spent` of the checkpoint: a site that is away now may have reported it
    start: dict[str, Any] = field(default_factory=dict)  # the model that the run began with, and what was carried over
    close: Callable[[], None] = lambda: None  # ends the engine's processes, where it has any

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close()

    @property
    def spent(self) -> float:
        """ρ of the party that has released most, by the parties' own accounts."""
        return max(self.releases.most(), getattr(self.engine, "spent", 0.0), self.spent_before)

    def restore_spent(self, spent: float) -> None:
        """Restore what a checkpoint says was released; the file of the parties in this process must hold at least as much."""
        if self.releases.path is not None and not hasattr(self.engine, "spent") and self.releases.most() < spent * (1 - 1e-9):
            raise AtollError(f"{self.releases.path} has lost releases, so the budget spent is not known; restore it.")
        self.spent_before = spent

    @property
    def engine(self) -> Engine:
        """What carries the messages."""
        return self.federation.engine

    @property
    def party_data(self) -> FederatedData:
        """The parties' data; an error where it is at their sites."""
        if self.data is None:
            raise AtollError("The parties' data is not here: it is at their sites.")
        return self.data

    @cached_property
    def extent(self) -> dict[str, int]:
        """The size and a digest of the parties' data, to compare on resume; empty where the data is not here."""
        return {} if self.data is None else dict(self.data.extent or extent_of(self.data.parts))


def extent_of(parts: Graph) -> dict[str, int]:
    """The size and a digest of the parties' data."""
    return {
        "parties": parts.parties,
        "nodes": parts.num_nodes,
        "edges": parts.edge_index.shape[1],
        "features": parts.num_features,
        "classes": parts.num_classes,
        "digest": parts.digest,
    }


def data_extent(config: Config, given: ScriptData | None = None) -> dict[str, int]:
    """The extent of the data that a run would have, without running it.

    Empty where the data is an object that is not here, or the partition a function, which may draw another one every time.
    """
    if (given is None and GIVEN in (config.dataset, config.partition)) or (given is not None and callable(given.partition)):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtollWarning)  # the run says it
        return extent_of(load_parties(replace(config, start_from=None), given)[0].parts)


def data_changes(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """What has changed in the data, in words; empty where nothing has, or the data was or is elsewhere."""
    differing = {name: count for name, count in before.items() if now and now[name] != count}
    if not differing:
        return ""
    words = [f"{now[name]} {name} where there were {count}" for name, count in differing.items() if name != "digest"]
    return f"the data has {', '.join(words) or 'as many nodes and edges as before, but other values'}"


def prepare(
    config: Config,
    given: Graph | ScriptData | None = None,
    *,
    engine: Callable[[Engine], Engine] | None = None,
    encoding: Mapping[str, Any] | None = None,
) -> Experiment:
    """Load, partition and split the data and build the parties; `engine` may wrap the engine (tests inject faults).

    `encoding` of the tables' columns, where it is not to be fitted.
    """
    if isinstance(config.settings, Described):
        raise AtollError(f"Its algorithm is the file {config.algorithm}, which is not run because a folder names it.")
    held = () if is_hosted(config.engine) else None
    data, preparation = load_parties(config, given, read_preprocessing(encoding)[0], held=held)
    _warn_unused_weights(config, data.parts)
    schema = schema_of(data)

    identities = simulated_identities(schema.parties) if config.run.secure else None
    least = min_total_parties(config.run.secure_min, schema.parties)
    secrets = Secrets(identities, min_parties=least) if identities is not None else None  # this process hosts all parties
    releases = Releases()

    def make(parties: Sequence[int], blank: bool) -> Cohort:
        part = data.parts.select(parties)
        guards = noise(config, releases, task_of(config, schema, part.class_names))
        here = replace(config, device=devices.name(server_device(config.engine, config.device)))
        return build_cohort(here, part, schema, parties, blank=blank, secrets=secrets, guards=guards)

    maker: Any = make
    if is_hosted(config.engine):
        from atoll.runs.portable import PortableCohorts  # it imports this module

        maker = PortableCohorts(make, config, data, schema, releases)
    carrier: Engine = connecting(config.engine).connect(maker, schema.parties, config.run)
    door = engine(carrier) if engine else carrier
    try:
        experiment = build_experiment(config, door, schema, data, data.scenario, identities=identities, releases=releases)
    except BaseException:
        close(carrier)
        raise
    experiment.close = partial(close, carrier)
    if preparation is not None:
        experiment.federation.ledger = preparation  # what was sent before the first round counts
    return experiment


def _warn_unused_weights(config: Config, graph: Graph) -> None:
    """Warn where edges have weights that the model does not use."""
    model = getattr(config.settings, "model", "")
    if graph.edge_weight is not None and model in MODELS and find_model(model).ignores_edge_weight:
        sentence = (
            f"Edge weights are not used: {model} weighs edges by attention alone; cheb, gamlp, gcn, gcn_head, gin, sgc, appnp, "
            "gcnii and sage use them."
        )
        warnings.warn(sentence, AtollWarning, stacklevel=3)


def noise(config: Config, releases: Releases, task: Task, *, strict: bool = False) -> list[Guard]:
    """The guard that adds noise to replies and accounts for them, where the configuration asks for noise."""
    return [Noise(config.dp, releases, task.fields, strict=strict)] if config.dp.active else []


def build_cohort(
    config: Config,
    graph: Graph,
    schema: Schema,
    parties: Sequence[int],
    *,
    blank: bool,
    secrets: Secrets | None = None,
    guards: Sequence[Guard] = (),
) -> Cohort:
    """The cohort of some parties; `blank` where their memory is about to be restored; `secrets` for secure totals."""
    if graph.num_nodes <= MAX_KEPT_NODES:
        allocator.keep_freed_blocks()
    cohort, task = algorithms.find(config.algorithm).Cohort, task_of(config, schema, graph.class_names)
    schema, clean, device = _for_task(schema, task), graph, devices.find(config.device)
    graph = damaged(graph, config.noise, config.seed, Parties(parties)).to(device)
    made = cohort(
        *(graph, config.settings, schema, config.seed, parties, guards),
        secrets=secrets,
        blank=blank,
        task=task,
        evaluation=config.run.evaluation,
    )
    made.limits = limits_of(config, schema, graph.class_names)
    made.clean_graph = clean.to(device) if config.noise.active else None
    return made


def schema_of(data: FederatedData) -> Schema:
    """What every party and the server may know of the data."""
    parts = data.parts
    nodes = parts.num_nodes // parts.parties if data.scenario == "vertical" else 0
    alike = parts.classes is None and (parts.widths is None or data.scenario == "vertical")
    return Schema(parts.num_features, parts.num_classes, parts.parties, nodes, alike=alike)


def task_of(config: Config, schema: Schema, class_names: Sequence[str] | None = None) -> Task:
    """The run's task, as its settings want it; a class is known by its name only where the data is."""
    run, noised, training = config.run, bool(config.dp.evaluation_noise), not config.dp.active
    options = TaskOptions(run.select_by, class_names=tuple(class_names or ()), classes=schema.classes, parties=schema.parties)
    options = replace(options, noised=noised, training=training, class_weight=run.class_weight, threshold=run.threshold)
    options = replace(options, track=run.track, value_loss=run.value_loss, value_scale=run.value_scale)
    return TASKS.find(run.task).configured(options)


def _evaluated(config: Config, scenario: str) -> float:
    """The share of the parties that evaluate; all of them where they hold the same nodes."""
    share = evaluated_share(config.run.evaluated)
    if share != 1 and scenario == "vertical":
        raise AtollError("Parties that hold the same nodes are all needed to evaluate; leave evaluated at all.")
    return share


def _for_task(schema: Schema, task: Task) -> Schema:
    """The schema with the width of the task's outputs."""
    return replace(schema, outputs=task.outputs(schema.classes), level=task.level)


def limits_of(config: Config, schema: Schema, class_names: Sequence[str] | None = None) -> Limits:
    """What the verbs of a run accept and reply."""
    run, task = config.run, task_of(config, schema, class_names)
    fractions = EVALUATE if config.dp.evaluation_noise else ""
    rules = Rules(run.max_weight, run.max_share, run.max_nodes)
    return Limits(
        algorithms.find(config.algorithm).Cohort,
        config.settings,
        _for_task(schema, task),
        rules,
        noised=config.dp.verb,
        fractions=fractions,
        task=task,
    )


def build_experiment(
    config: Config,
    engine: Engine,
    schema: Schema,
    data: FederatedData | None,
    scenario: str,
    names: Sequence[str] = (),
    identities: Identities | None = None,
    releases: Releases | None = None,
) -> Experiment:
    """The server's side of a run, over an engine.

    `names` are the parties', unless the data has them; `identities` are their signing keys, where the server has them.
    """
    names_of_classes = data.parts.class_names if data else None
    algorithm, task = algorithms.find(config.algorithm), task_of(config, schema, names_of_classes)
    schema = _for_task(schema, task)
    federation = Federation(
        engine,
        schema,
        verbs=algorithm.Cohort.verbs(),
        seed=config.seed,
        participation=config.run.participation,
        evaluated=_evaluated(config, scenario),
        missing_is_fatal=config.run.on_missing == "stop",
        secure=config.run.secure,
        secure_min=min_total_parties(config.run.secure_min, schema.parties),
        identities=identities,
        robust=robust.make(config.run, algorithm.Cohort.averaged(), schema.parties),
        evaluate_at_server=config.run.evaluate_at_server and not config.dp.evaluation_noise,
        public=data.public if data else None,
        whole=(lambda: data.whole) if data else None,
        scenario=scenario,
        network=NetworkModel.of(schema.parties, config.run.latency, config.run.bandwidth),
        names=data.names if data else names,
        limits=limits_of(config, schema, names_of_classes),
        task=task,
        evaluation=config.run.evaluation,
        average=config.run.average,
        device=server_device(config.engine, config.device),
    )
    return Experiment(config, algorithm, data, federation, releases or Releases())
