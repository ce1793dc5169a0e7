"""The result of a run: what `atoll.run` returns and result.json holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.data.script_data import ScriptData
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import protocol, summary
from atoll.runs.config import Config
from atoll.runs.model_files import ModelFiles
from atoll.runs.resumed_config import file_digests
from atoll.version import __version__

if TYPE_CHECKING:
    import pandas as pd

    from atoll.runs.trained import TrainedModel


@dataclass(repr=False)
class Result:
    """The result of a run, as `run`, `resume` and `read` return it.

    Attributes:
        config: The complete configuration.
        scenario: How the graph was divided: `horizontal`, `overlapping`, `vertical`, `node` or `whole`.
        parties: The number of parties.
        rounds: Rounds done.
        best_round: The round with the best validation score.
        metrics: Test metrics at the best round.
        last: Test metrics at the last evaluated round.
        averages: The best round's metrics in every average that the parties' counts tell: `pooled`, `mean`, `nodes`, `worst`.
        detail: Of the best round's test nodes: metrics overall, by class and by party, confusion matrix, calibration, threshold.
        bytes: Payload of training by direction (`up`, `down`) and verb, and of evaluation apart.
        seconds: `total` and `per_round`; with a network model also `simulated`.
        rows: The history, one dict per round, as history.jsonl has it.
        history: The same as a pandas table with clear names: `test_accuracy`, `bytes_up`, `bytes_up_total` and so on.
        state: The server's state after the last round.
        memory: The parties' memory, as far as this process holds them.
        names: The parties' names, in party order; empty where they only have numbers.
        missing: Party → number of rounds in which it was missing.
        partial: Whether `metrics` leave out a missing party; `last_partial` says it of `last`.
        warnings: What went wrong with files and was repaired.
        finished: False where it was read from the folder of a run that is still going.
        folder: Where it is written; None where it is not.
        start: The model that the run began with (`path`, `digest`, `round`) and what was `carried` over; empty where it began
            with first values.
        trained: The best round's model as `model/` holds it; None where it was read from a folder, which has it.
        given: The data, where it was given as an object.

    Examples:
        >>> import atoll
        >>> result = atoll.run("fedavg", dataset="csbm", parties=2, rounds=3, nodes=200)
        >>> len(result.rows), sorted(result.seconds)
        (3, ['per_round', 'total'])
        >>> list(result.history.columns)[:4]
        ['round', 'train_loss', 'val_loss', 'val_accuracy']
        >>> print(result)  # doctest: +ELLIPSIS
        fedavg on csbm: 2 parties, horizontal, seed 0
        test accuracy ...
        >>> [result.to_dict()[word] for word in ("evaluation", "average", "select")]
        ['global', 'pooled', 'loss']
    """

    config: Config
    scenario: str
    parties: int
    rounds: int
    best_round: int
    metrics: dict[str, Any]  # test metrics at the round with the best validation score
    last: dict[str, Any]  # those of the last round
    bytes: dict[str, Any]
    seconds: dict[str, float]
    rows: list[dict[str, Any]]
    state: dict[str, Any]  # the server's state after the last round
    memory: dict[str, Any]  # what the parties keep, as far as this process holds them
    averages: dict[str, dict[str, float]] = field(default_factory=dict)  # metrics at the best round by kind of average
    detail: dict[str, Any] = field(default_factory=dict)  # of the best round: `Evaluation.to_dict`
    names: tuple[str, ...] = ()  # what the parties are called, in party order; empty where they have only numbers
    missing: dict[str, int] = field(default_factory=dict)  # party → rounds in which it was missing
    partial: bool = False  # whether `metrics` leave out a party that was missing
    last_partial: bool = False  # whether `last` does
    warnings: list[str] = field(default_factory=list)  # what went wrong with files and was repaired
    finished: bool = True  # False where it was read from the folder of a run that is still going
    folder: Path | None = None  # where it is written
    start: dict[str, Any] = field(default_factory=dict)  # the model that the run began with, if any
    trained: ModelFiles | None = None  # the best round's model, where this process has it
    given: Graph | ScriptData | None = None  # the data, where it was given as an object

    def __repr__(self) -> str:
        return summary.short(self)

    def __str__(self) -> str:
        return summary.text(self)

    @property
    def history(self) -> pd.DataFrame:
        """The history as a pandas table, one row per round; docs/runs.md says what each column is."""
        from atoll.runs.history import HistoryTable

        return HistoryTable.of(self.rows)

    @property
    def protocol(self) -> dict[str, str]:
        """What the numbers mean: `evaluation` (whose model), `average`, `select` (the best round) and `select_on` (where)."""
        return protocol.words_of(self.config.algorithm, self.scenario, self.config.run)

    def model(self) -> TrainedModel:
        """The model of the best round, to predict with.

        Examples:
            >>> import atoll
            >>> result = atoll.run("fedavg", dataset="csbm", parties=2, rounds=2, nodes=200)
            >>> result.model().predict().shape[0]
            200
        """
        from atoll.runs.trained import TrainedModel, load_model

        if self.trained is not None:
            return TrainedModel(self.trained, self.config, given=self.given)
        if self.folder is None:
            raise AtollError("This result has no model of its best round: its engine does not keep one.")
        return load_model(self.folder, dataset=self.given)

    def to_dict(self) -> dict[str, Any]:
        """What result.json holds."""
        plain = self.config.to_dict()
        return {
            "atoll": __version__,
            **{name: plain[name] for name in ("algorithm", "dataset", "partition", "seed")},
            "scenario": self.scenario,
            "setting": self.scenario,  # its name before 0.2
            "task": self.config.run.task,
            "parties": self.parties,
            **({"names": list(self.names)} if self.names else {}),
            "settings": plain.get("settings", {}),
            **({"device": plain["device"]} if "device" in plain else {}),
            **({"start_from": self.start} if self.start else {}),
            **({} if self.config.tuned is None else {"tuned": self.config.tuned.brief()}),
            "rounds": self.rounds,
            "best_round": self.best_round,
            **self.protocol,
            "metrics": self.metrics,
            "last": self.last,
            "averages": self.averages,
            "detail": self.detail,
            "missing": self.missing,
            "partial": self.partial,
            "last_partial": self.last_partial,
            "bytes": self.bytes,
            "seconds": self.seconds,
            "warnings": self.warnings,
        } | file_digests(self.config)
