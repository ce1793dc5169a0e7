"""Stored runs for the tests of reports, made from a history or changed after the fact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atoll.reports.runs import StoredRun
from atoll.runs.config import Config
from atoll.runs.documents import checksum
from atoll.runs.progress import Progress
from atoll.runs.result import Result


def stored(name: str, config: Config, rows: list[dict[str, Any]], names: tuple[str, ...] = (), parties: int = 1) -> StoredRun:
    """A run that is still going, with this history."""
    progress = Progress.of(rows, config.run)
    result = Result(config, "", parties, progress.round, progress.best_round, progress.best, progress.last, {}, {}, rows, {}, {})
    result.names = names
    return StoredRun(Path(name), "", result)


def rewrite_result(folder: Path, **changes: Any) -> dict[str, Any]:
    """Change keys of result.json, with a checksum that fits."""
    document: dict[str, Any] = json.loads((folder / "result.json").read_text()) | changes
    document["sha256"] = checksum(document)
    (folder / "result.json").write_text(json.dumps(document))
    return document


DETAIL = {  # of a run with two classes and two parties, as result.json has it
    "classes": ["healthy", "sick"],
    "confusion": [[8, 2], [1, 4]],
    "by_class": {
        "healthy": {"items": 10, "precision": 8 / 9, "recall": 0.8, "f1": 16 / 19, "auc": 0.9, "average_precision": 0.95},
        "sick": {"items": 5, "precision": 4 / 6, "recall": 0.8, "f1": 8 / 11, "auc": 0.9, "average_precision": None},
    },
    "calibration": [[0, 0, 0.0]] * 10 + [[5, 3, 3.5], [10, 9, 9.0]] + [[0, 0, 0.0]] * 3,
    "threshold": None,
    "parties": {
        "north": {"accuracy": 0.75, "macro_f1": 0.7, "auc": 0.8, "confusion": [[4, 2], [0, 2]]},
        "south": {"accuracy": 6 / 7, "macro_f1": 0.8, "auc": None, "confusion": [[4, 0], [1, 2]]},
    },
}
