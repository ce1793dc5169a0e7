"""Runs: data, parties and algorithm put together, then rounds until the end; checkpoints, best round, early stopping."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll import algorithms, allocator
from atoll.data.federated import FederatedData, federate
from atoll.engines import ENGINES
from atoll.errors import AtollError, AtollWarning
from atoll.federation import robust
from atoll.federation.bounds import Limits, Rules
from atoll.federation.cohort import Cohort, Guard, Schema
from atoll.federation.federation import Engine, Federation
from atoll.federation.network import Link
from atoll.graphs.graph import Graph
from atoll.privacy.identities import Identities, simulated
from atoll.privacy.masking import fewest
from atoll.privacy.noise import EVALUATE, Noise
from atoll.privacy.releases import FILE, Releases, epsilon_of, need_accountant
from atoll.privacy.secrets import Secrets
from atoll.runs import absence, unchanged
from atoll.runs import config as configuration
from atoll.runs.config import GIVEN, Config, Described
from atoll.runs.folder import Folder
from atoll.version import __version__

if TYPE_CHECKING:
    import pandas as pd

Watch = Callable[[dict[str, Any], int], None]  # called with each round's history row and the number of rounds
SECONDS_BETWEEN_CHECKPOINTS = 5.0  # or more:
TIMES_ITS_COST = 20.0  # a large one waits this many times as long as it took


@dataclass
class Result:
    """What came out of a run."""

    config: Config
    scenario: str
    parties: int
    rounds: int
    best_round: int
    metrics: dict[str, Any]  # test metrics at the round with the best validation score
    last: dict[str, Any]  # those of the last round
    bytes: dict[str, Any]
    seconds: dict[str, float]
    rows: list[dict[str, Any]] = field(repr=False)
    state: dict[str, Any] = field(repr=False)  # the server's state after the last round
    memory: dict[str, Any] = field(repr=False)  # what the parties keep, as far as this process holds them
    names: tuple[str, ...] = ()  # what the parties are called, in party order; empty where they have only numbers
    missing: dict[str, int] = field(default_factory=dict)  # party → rounds in which it was missing
    partial: bool = False  # whether `metrics` leave out a party that was missing
    last_partial: bool = False  # whether `last` does
    warnings: list[str] = field(default_factory=list)  # what went wrong with files and was mended

    @property
    def history(self) -> pd.DataFrame:
        """A table with a row a round."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def to_dict(self) -> dict[str, Any]:
        """What result.json holds."""
        plain = self.config.to_dict()
        return {
            "atoll": __version__,
            **{name: plain[name] for name in ("algorithm", "dataset", "partition", "seed")},
            "scenario": self.scenario,
            "setting": self.scenario,  # its name before 0.2
            "parties": self.parties,
            **({"names": list(self.names)} if self.names else {}),
            "settings": plain.get("settings", {}),
            "rounds": self.rounds,
            "best_round": self.best_round,
            "metrics": self.metrics,
            "last": self.last,
            "missing": self.missing,
            "partial": self.partial,
            "last_partial": self.last_partial,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "warnings": self.warnings,
        } | ({"algorithm_sha256": digest} if (digest := algorithms.digest(self.config.algorithm)) else {})


@dataclass
class Progress:
    """What the loop knows of itself; with the state, the memory and the ledger it is all a run consists of."""

    round: int = 0
    best_round: int = 0
    best_score: float = math.inf
    best: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    partial: bool = False  # whether a party was missing in the best round
    last_partial: bool = False  # and in the last evaluated one
    comparable: bool = True  # whether the last evaluated round can be compared with others
    evaluated: int = 0  # the last evaluated round
    skipped: int = 0  # rounds since the best that do not count for `patience`

    def update(self, metrics: dict[str, Any], select: str, *, partial: bool = False, count_missing: bool = False) -> None:
        """Keep the metrics of the round with the best validation score; without validation nodes, of the last.

        A `partial` round (a party was missing) is the best only while there is no complete one, unless `count_missing`.
        """
        self.last, self.last_partial = metrics, partial
        self.comparable = not partial or count_missing
        passed, self.evaluated = self.round - self.evaluated, self.round
        score = metrics.get("val_loss", -math.inf) if select == "loss" else -metrics.get("val_accuracy", math.inf)
        better = score < self.best_score or score == -math.inf
        if self.comparable != (not self.partial or count_missing):
            better = self.comparable
        if better or not self.best:
            self.best_round, self.best_score, self.best = self.round, score, metrics
            self.partial, self.skipped = partial, 0
        elif not self.comparable and not self.partial:
            self.skipped += passed

    def finished(self, rounds: int, patience: int, target: float = 0.0) -> bool:
        """Whether the last round has been. A round that cannot be compared neither reaches the target nor uses up patience."""
        reached = target > 0 and self.comparable and self.last.get("val_accuracy", 0.0) >= target
        waited = self.round - self.best_round - self.skipped
        return self.round >= rounds or reached or bool(patience and self.best and waited >= patience)


@dataclass
class Experiment:
    """A configuration brought to life."""

    config: Config
    algorithm: algorithms.Algorithm
    data: FederatedData | None  # None where the parties' data is not here
    federation: Federation
    releases: Releases = field(default_factory=Releases)  # of the parties in this process
    spent_before: float = 0.0  # what `spent` was in the checkpoint: a site that is away now may have told it

    @property
    def spent(self) -> float:
        """ρ of the party that has released most, by the parties' own count."""
        return max(self.releases.most(), getattr(self.engine, "spent", 0.0), self.spent_before)

    def recall_spent(self, spent: float) -> None:
        """Take back what a checkpoint says was released: the file of the parties in this process holds at least as much."""
        if self.releases.path is not None and not hasattr(self.engine, "spent") and self.releases.most() < spent * (1 - 1e-9):
            raise AtollError(f"{self.releases.path} has lost releases: what was released cannot be told; restore it.")
        self.spent_before = spent

    @property
    def engine(self) -> Engine:
        """What carries the messages."""
        return self.federation.engine

    @property
    def spread(self) -> FederatedData:
        """The parties' data, where it is here."""
        if self.data is None:
            raise AtollError("The parties' data is not here: it is at their sites.")
        return self.data

    @cached_property
    def extent(self) -> dict[str, int]:
        """The size and a digest of the parties' data, to tell on resume whether it is the same; nothing where it is not here."""
        if self.data is None:
            return {}
        parts = self.data.parts
        return {
            "parties": parts.parties,
            "nodes": parts.num_nodes,
            "edges": parts.edge_index.shape[1],
            "features": parts.num_features,
            "classes": parts.num_classes,
            "digest": parts.digest,
        }


def prepare(config: Config, graph: Graph | None = None, *, engine: Callable[[Engine], Engine] | None = None) -> Experiment:
    """Load, partition and split the data and stand up the parties; `engine` may wrap the engine (tests inject faults)."""
    if isinstance(config.settings, Described):
        raise AtollError(f"Its algorithm is the file {config.algorithm}, which is not run because a folder names it.")
    data = federate(config, graph, algorithms.find(config.algorithm).SCENARIOS)
    schema = schema_of(data)

    identities = simulated(schema.parties) if config.run.secure else None
    least = fewest(config.run.secure_min, schema.parties)
    secrets = Secrets(identities, least=least) if identities is not None else None  # this process hosts all parties
    releases = Releases()

    def make(parties: Sequence[int], blank: bool) -> Cohort:
        part = data.parts.select(parties)
        return build_cohort(config, part, schema, parties, blank=blank, secrets=secrets, guards=noise(config, releases))

    kind = ENGINES.find("inprocess" if hasattr(ENGINES.find(config.engine), "launch") else config.engine)
    carrier: Engine = kind.connect(make, schema.parties, config.run)
    door = engine(carrier) if engine else carrier
    return build_experiment(config, door, schema, data, data.scenario, identities=identities, releases=releases)


def noise(config: Config, releases: Releases, *, strict: bool = False) -> list[Guard]:
    """The guard that noises replies and counts them, where the configuration asks for noise."""
    return [Noise(config.dp, releases, strict=strict)] if config.dp.active else []


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
    """Some parties at one place; `blank` where their memory is about to be remembered; `secrets` for secure totals."""
    allocator.keep_freed_blocks()
    cohort = algorithms.find(config.algorithm).Cohort
    made = cohort(graph, config.settings, schema, config.seed, parties, guards, secrets=secrets, blank=blank)
    made.limits = limits_of(config, schema)
    return made


def schema_of(data: FederatedData) -> Schema:
    """What everybody may know of the parties' data."""
    parts = data.parts
    nodes = parts.num_nodes // parts.parties if data.scenario == "vertical" else 0
    return Schema(parts.num_features, parts.num_classes, parts.parties, nodes)


def limits_of(config: Config, schema: Schema) -> Limits:
    """What the verbs of a run take and give."""
    run = config.run
    fractions = EVALUATE if config.dp.evaluation else ""
    rules = Rules(run.max_weight, run.max_share, run.max_nodes)
    return Limits(
        algorithms.find(config.algorithm).Cohort, config.settings, schema, rules, noised=config.dp.verb, fractions=fractions
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
    """The server's side of a run, over an engine that stands; `names` are the parties', unless the data says them;
    `identities` are their signing keys, where the server knows them."""
    algorithm = algorithms.find(config.algorithm)
    federation = Federation(
        engine,
        schema,
        verbs=algorithm.Cohort.verbs(),
        seed=config.seed,
        participation=config.run.participation,
        missing_is_fatal=config.run.missing == "stop",
        secure=config.run.secure,
        secure_min=fewest(config.run.secure_min, schema.parties),
        identities=identities,
        robust=robust.make(config.run, algorithm.Cohort.averaged(), schema.parties),
        evaluate_at_server=config.run.evaluate_at_server and not config.dp.evaluation,
        public=data.public if data else None,
        whole=data.whole if data else None,
        scenario=scenario,
        link=Link.of(schema.parties, config.run.latency, config.run.bandwidth),
        names=data.names if data else names,
        limits=limits_of(config, schema),
    )
    return Experiment(config, algorithm, data, federation, releases or Releases())


def run(config: Config, graph: Graph | None = None, *, out: str | Path | None = None, watch: Watch | None = None) -> Result:
    """Run a configuration from its first round to its last."""
    if launch := getattr(ENGINES.find(config.engine), "launch", None):
        result: Result = launch(config, graph, out=out, watch=watch)
        return result
    experiment = prepare(config, graph)
    if out is None:
        return rounds(experiment, None, watch)
    with Folder.begin(out, config) as folder:
        return rounds(experiment, folder, watch)


def resume(
    path: str | Path, graph: Graph | None = None, *, algorithm: str | Path | None = None, watch: Watch | None = None
) -> Result:
    """Go on with a run from its last checkpoint; one that was finished gives its result again.

    An algorithm that is a file is not imported because a folder names it: whoever resumes gives it as `algorithm`.
    """
    folder, config = Folder.open(path)
    if config.dataset == GIVEN and config.engine == "nvflare":
        raise AtollError(f"{path} is the run of a federation; start `atoll serve` again with the same --config and --out.")
    if config.dataset == GIVEN and graph is None:
        raise AtollError(f"The dataset of {path} was given as an object; give it again: atoll.resume({str(path)!r}, dataset=…).")
    config = _named(folder, config, algorithm)
    if launch := getattr(ENGINES.find(config.engine), "launch", None):
        result: Result = launch(config, graph, out=path, watch=watch, resume=True)
        return result
    with folder.in_use():
        return rounds(prepare(config, graph), folder, watch, folder.load())


def _named(folder: Folder, config: Config, algorithm: str | Path | None) -> Config:
    """The configuration of a run that is resumed, its algorithm imported only where it is atoll's or was given by name."""
    own = config.algorithm.endswith(".py")
    if algorithm is None and own:
        raise AtollError(
            f"The algorithm of {folder.path} is the file {config.algorithm}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll resume {folder.path} --algorithm {config.algorithm}"
        )
    if algorithm is None:
        return config
    if not own and str(algorithm) != config.algorithm:
        raise AtollError(f"{folder.path} is a run of {config.algorithm}, not of {algorithm}; leave --algorithm out.")
    known = (folder.look() or {}).get("algorithm_sha256")
    if known is not None and known != algorithms.digest(str(algorithm), read=True):
        raise AtollError(
            f"{algorithm} is not the file that {folder.path} was begun with (its SHA-256 was {known}); "
            "restore it, or start a new run."
        )
    return configuration.from_dict(config.to_dict() | {"algorithm": str(algorithm)}, f"{folder.path / 'config.toml'}")


def read(path: str | Path) -> Result:
    """The result of a run that is over, from its folder; nothing is run and nothing written."""
    folder, config = Folder.open(path)
    checkpoint = folder.look() if folder.finished() else None
    if checkpoint is None:
        raise AtollError(f"{path} is not over; finish it with `atoll resume {path}`.")
    told = json.loads(folder.result.read_text())
    told["scenario"] = told["setting"]
    names = ("scenario", "parties", "rounds", "best_round", "metrics", "last", "bytes", "seconds")
    return Result(
        config,
        **{name: told[name] for name in names},
        rows=folder.rows(),
        state=checkpoint.get("state", {}),
        memory=checkpoint.get("memory", {}),
        names=tuple(told.get("names", ())),
        missing=told.get("missing", {}),
        partial=told.get("partial", False),
        last_partial=told.get("last_partial", False),
        warnings=told.get("warnings", []),
    )


def rounds(
    experiment: Experiment, folder: Folder | None = None, watch: Watch | None = None, checkpoint: dict[str, Any] | None = None
) -> Result:
    """The loop: start, then step, evaluate, write down and perhaps checkpoint, round after round."""
    algorithm, federation, settings, run = (
        experiment.algorithm,
        experiment.federation,
        experiment.config.settings,
        experiment.config.run,
    )
    rows = folder.rows() if folder else []
    warned = list((checkpoint or {}).get("warnings", []))
    dp = experiment.config.dp
    if dp.active:
        need_accountant()
        if folder:
            experiment.releases.keep(folder.path / FILE)
    if checkpoint is None:
        book = Progress()
        federation.begin(0)
        state = algorithm.start(federation, settings)
    else:
        book, state = _restored(experiment, checkpoint), checkpoint.get("state", {})
        for text in unchanged.changes(checkpoint.get("config"), experiment.config):
            warned.append(text)
            warnings.warn(text, AtollWarning, stacklevel=2)
        experiment.recall_spent(checkpoint.get("spent", 0.0))
    began, first = time.perf_counter() - book.seconds, book.round
    wait = time.perf_counter() + SECONDS_BETWEEN_CHECKPOINTS
    while not book.finished(run.rounds, run.patience, run.target):
        book.round += 1
        federation.begin(book.round)
        state = algorithm.step(federation, state, settings)
        metrics = {}
        if book.round % run.evaluate_every == 0 or book.round == run.rounds:
            with federation.evaluating():
                metrics = algorithm.evaluate(federation, state, settings)
            if dp.active:
                metrics["epsilon"] = epsilon_of(experiment.spent, dp.delta)
            book.update(metrics, run.select, partial=bool(federation.missing), count_missing=run.count_missing)
        book.seconds = time.perf_counter() - began
        row = _row(book, federation, metrics)
        rows.append(row)
        if folder:
            folder.append(row)
            now = time.perf_counter()
            due = book.round % run.checkpoint_every == 0 if run.checkpoint_every else now > wait
            if due or book.finished(run.rounds, run.patience, run.target):
                folder.save(_checkpoint(book, state, experiment) | {"warnings": _warnings(warned, folder, experiment)})
                saved = time.perf_counter()
                wait = saved + max(SECONDS_BETWEEN_CHECKPOINTS, TIMES_ITS_COST * (saved - now))
        if watch:
            watch(row, run.rounds)
    result = _result(experiment, book, rows, state)
    result.warnings = _warnings(warned, folder, experiment)
    if folder and (book.round > first or not folder.finished()):
        folder.finish(result.to_dict())
    return result


def _warnings(before: list[str], folder: Folder | None, experiment: Experiment) -> list[str]:
    """What went wrong and was mended, in this process and in those whose checkpoint it took up."""
    now = [*(folder.warnings if folder else []), *getattr(experiment.engine, "warnings", [])]
    return list(dict.fromkeys([*before, *now]))


def _restored(experiment: Experiment, checkpoint: dict[str, Any]) -> Progress:
    """Give the ledger and the parties back what a checkpoint kept; it must be one of this very run."""
    try:
        _same_data(checkpoint.get("data", {}), experiment.extent)
        unchanged.changes(checkpoint.get("config"), experiment.config)
        if lost := set(checkpoint.get("holds", ())) - checkpoint.get("state", {}).keys():
            raise ValueError(f"its state has lost {', '.join(sorted(lost))}")
        experiment.federation.ledger.restore(checkpoint["ledger"])
        experiment.engine.restore(checkpoint.get("memory", {}))
        return Progress(**checkpoint["book"])
    except (AtollError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise AtollError(
            f"The checkpoint does not fit the run's config.toml or data ({str(error).rstrip('.')}); "
            "restore what was changed, or start a new run."
        ) from error


def _same_data(before: dict[str, int], now: dict[str, int]) -> None:
    """Refuse data that is not what it was; where it is not here, before or now, nobody can tell."""
    differing = {name: count for name, count in before.items() if now and now[name] != count}
    if differing.pop("digest", None) is not None or differing:
        words = [f"{now[name]} {name} where there were {count}" for name, count in differing.items()]
        raise ValueError(f"the data has {', '.join(words) or 'as many nodes and edges as before, but other values'}")


def _row(book: Progress, federation: Federation, metrics: dict[str, Any]) -> dict[str, Any]:
    traffic = federation.ledger.total(round=book.round)
    row = {"round": book.round, **metrics, "up": traffic["up"], "down": traffic["down"]}
    if federation.missing:
        row["missing"] = {str(party): reason for party, reason in federation.missing.items()}
        if federation.names:
            row["missing_names"] = {str(party): federation.name_of(party) for party in federation.missing}
        if metrics:
            row["partial"] = True  # the metrics leave those parties out
    if federation.dominant:
        row["dominant"] = {str(party): share for party, share in federation.dominant.items()}
    if federation.link is not None:
        row["simulated_seconds"] = federation.ledger.seconds.get(book.round, 0.0)
    return row | {"seconds": round(book.seconds, 6)}


def _seconds(book: Progress, federation: Federation) -> dict[str, float]:
    """The clock's, and with a link model those the messages of training would take."""
    seconds = {"total": book.seconds, "per_round": book.seconds / max(book.round, 1)}
    return seconds if federation.link is None else seconds | {"simulated": sum(federation.ledger.seconds.values())}


def _checkpoint(book: Progress, state: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    return {
        "book": vars(book),
        "state": state,
        "holds": sorted(state),
        "memory": experiment.engine.state(),
        "ledger": experiment.federation.ledger.state(),
        "data": experiment.extent,
        "spent": experiment.spent,
        "config": unchanged.record(experiment.config),
    } | ({"algorithm_sha256": digest} if (digest := algorithms.digest(experiment.config.algorithm)) else {})


def _result(experiment: Experiment, book: Progress, rows: list[dict[str, Any]], state: dict[str, Any]) -> Result:
    return Result(
        config=experiment.config,
        scenario=experiment.federation.scenario,
        parties=experiment.federation.schema.parties,
        rounds=book.round,
        best_round=book.best_round,
        metrics=book.best,
        last=book.last,
        bytes=experiment.federation.ledger.summary(),
        seconds=_seconds(book, experiment.federation),
        rows=rows,
        state=state,
        memory=experiment.engine.state(),
        names=experiment.federation.names,
        missing=absence.rounds_missed(rows),
        partial=book.partial,
        last_partial=book.last_partial,
    )
