"""What a checkpoint of a run holds, and how a run is restored from one."""

from __future__ import annotations

from typing import Any

from atoll.errors import AtollError
from atoll.federation import agreements
from atoll.runs import resumed_config
from atoll.runs.best import BestRound
from atoll.runs.experiment import Experiment, data_changes
from atoll.runs.progress import Progress


def capture(experiment: Experiment, progress: Progress, state: dict[str, Any], best: BestRound) -> dict[str, Any]:
    """Everything a run needs to continue exactly."""
    return {
        "progress": vars(progress),
        "state": state,
        "holds": sorted(state),
        "memory": experiment.engine.state(),
        "best": best.document(progress.round),
        "ledger": experiment.federation.ledger.state(),
        "data": experiment.extent,
        "spent": experiment.spent,
        **agreements.state(experiment.federation),
        **_start(experiment),
        "config": resumed_config.record(experiment.config),
    } | resumed_config.file_digests(experiment.config)


def _start(experiment: Experiment) -> dict[str, Any]:
    """What a run that began with a trained model needs of it to continue: nothing but the encoding of its columns."""
    if not experiment.start:
        return {}
    encoding = experiment.data.encoding if experiment.data is not None else None
    return {"start": experiment.start, **({} if encoding is None else {"encoding": [encoding.to_dict()]})}


def encoding_of(checkpoint: dict[str, Any] | None) -> dict[str, Any] | None:
    """The encoding of columns in a checkpoint, if any."""
    kept: list[dict[str, Any]] = (checkpoint or {}).get("encoding", [])
    return kept[0] if kept else None


def restore(experiment: Experiment, checkpoint: dict[str, Any]) -> tuple[Progress, BestRound]:
    """Restore ledger and parties from a checkpoint, which must belong to this configuration and data."""
    try:
        if changes := data_changes(checkpoint.get("data", {}), experiment.extent):
            raise ValueError(changes)
        resumed_config.changes(checkpoint.get("config"), experiment.config)
        if lost := set(checkpoint.get("holds", ())) - checkpoint.get("state", {}).keys():
            raise ValueError(f"its state has lost {', '.join(sorted(lost))}")
        experiment.federation.ledger.restore(checkpoint["ledger"])
        experiment.engine.restore(checkpoint.get("memory", {}))
        experiment.start = checkpoint.get("start", {})
        return Progress(**checkpoint["progress"]), BestRound.restored(experiment, checkpoint)
    except (AtollError, KeyError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise AtollError(
            f"The checkpoint does not fit the run's config.toml or data ({str(error).rstrip('.')}); "
            "restore what was changed, or start a new run."
        ) from error
