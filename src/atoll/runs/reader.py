"""The one reader of run folders: the run of a folder, finished or still going, as a `Result`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.data.partition import SCENARIO_OF
from atoll.errors import AtollError
from atoll.federation.ledger import Ledger
from atoll.runs import absence
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.progress import Progress
from atoll.runs.result import Result


def read(path: str | Path, config: Config | None = None, *, history: bool = True, state: bool = True) -> Result:
    """Read the run of a folder; nothing is run and nothing is written.

    Parameters:
        path: The folder that `out` or `--out` named.
        config: Its configuration, where the caller has it already; otherwise it is read as well.
        history: Whether to read `rows`, one per round. A run that is still going is always read with its history.
        state: Whether to read `state` and `memory` from the checkpoint, which may be large.

    Returns:
        The result or, with `finished=False`, what the run has come to so far.

    Examples:
        >>> import atoll, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = atoll.run("fedavg", dataset="csbm", parties=2, rounds=2, nodes=200, out=f"{folder}/a")
        ...     again = atoll.read(f"{folder}/a")
        >>> again.metrics == result.metrics, again.finished
        (True, True)
    """
    folder = Folder(path)
    if config is None:
        folder, config = Folder.open(path)
    written = folder.read_result()
    if written is None:
        return _unfinished(folder, config, state=state)
    saved = folder.look() if state else {}
    if saved is None:
        raise AtollError(f"{path} has no checkpoint that can be read; finish it with `atoll resume {path}`.")
    return Result(
        config=config,
        scenario=written.get("scenario", written.get("setting", "")),  # `setting` before 0.2
        parties=written.get("parties", config.parties or 0),
        rounds=written["rounds"],
        best_round=written["best_round"],
        metrics=written["metrics"],
        last=written.get("last", {}),
        averages=written.get("averages") or {},
        detail=written.get("detail") or {},
        bytes=written["bytes"],
        seconds=written["seconds"],
        rows=folder.rows(written.get("history_sha256")) if history else [],
        state=saved.get("state", {}),
        memory=saved.get("memory", {}),
        names=tuple(map(str, written.get("names") or ())),
        missing=written.get("missing", {}),
        partial=bool(written.get("partial", False)),
        last_partial=bool(written.get("last_partial", False)),
        warnings=list(map(str, written.get("warnings") or ())),
        folder=folder.path,
        start=dict(written.get("start_from") or {}),
    )


def _unfinished(folder: Folder, config: Config, *, state: bool) -> Result:
    """What a run without a result has come to, from its history and its last checkpoint."""
    rows, saved = folder.rows(), folder.look() or {}
    progress = Progress.of(rows, config.run)
    traffic, ledger = _traffic(rows), None
    if "ledger" in saved:
        ledger = Ledger(int(saved["ledger"]["by_party"].shape[0]))
        ledger.restore(saved["ledger"])
        traffic = ledger.summary()
    seconds = {"total": progress.seconds, "per_round": progress.seconds / max(progress.round, 1)}
    if rows and all("simulated_seconds" in row for row in rows):
        seconds["simulated"] = sum(row["simulated_seconds"] for row in rows)
    return Result(
        config=config,
        scenario=SCENARIO_OF.get(config.partition, ""),
        parties=ledger.parties if ledger is not None else config.parties or 0,
        rounds=progress.round,
        best_round=progress.best_round,
        metrics=progress.best,
        last=progress.last,
        bytes=traffic,
        seconds=seconds,
        rows=rows,
        state=saved.get("state", {}) if state else {},
        memory=saved.get("memory", {}) if state else {},
        missing=absence.rounds_missed(rows),
        partial=progress.partial,
        last_partial=progress.last_partial,
        warnings=list(map(str, saved.get("warnings") or ())),
        start=dict(saved.get("start") or {}),
        finished=False,
        folder=folder.path,
    )


def _traffic(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Bytes by direction before the first checkpoint, when verbs are not known yet."""
    sums = {way: sum(row[way] for row in rows) for way in ("up", "down")}
    return {**sums, "by_verb": {"all verbs": dict(sums)} if rows else {}}
