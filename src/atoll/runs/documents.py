"""The documents of a run folder: results and lines of a history as JSON, and checkpoints."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll import storage
from atoll.errors import AtollError

NUMBER = (int, float)
ROUND_KEYS = {"round": NUMBER, "up": NUMBER, "down": NUMBER}  # every line of a history has these
RESULT_KEYS = {"metrics": dict, "best_round": NUMBER, "rounds": NUMBER, "bytes": dict, "seconds": dict}  # every result.json
EARLIER_NAMES = {"book": "progress"}  # of a checkpoint's fields, before 0.2


def read_bytes(path: Path) -> bytes:
    """A file's bytes; one sentence where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise AtollError(f"{path} cannot be read ({error.strerror}); check the path and the rights to it.") from error


def parse(path: Path, data: bytes, keys: Mapping[str, Any], advice: str) -> dict[str, Any]:
    """A JSON object that has these keys, with values of these types."""
    try:
        document = json.loads(data)
    except ValueError as error:
        raise AtollError(f"{path} is damaged ({error}); {advice}.") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(name), kind) for name, kind in keys.items()):
        raise AtollError(f"{path} is damaged (it lacks one of {', '.join(keys)}); {advice}.")
    return document


def read_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint of a run, its fields under their present names; a DamagedError for anything else."""
    document = {EARLIER_NAMES.get(name, name): value for name, value in storage.read_document(path).items()}
    if not isinstance(document.get("progress"), dict) or not isinstance(document.get("ledger"), dict):
        raise storage.DamagedError(f"{path} is not a checkpoint of a run")
    return document


def checksum(result: dict[str, Any]) -> str:
    """SHA-256 of everything in a result.json but the checksum itself."""
    content = {name: value for name, value in result.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def is_whole(result: dict[str, Any]) -> bool:
    """Whether a result.json still matches its checksum; earlier versions wrote none."""
    return "sha256" not in result or result["sha256"] == checksum(result)


def finite(value: Any) -> Any:
    """The value with None for every number that JSON cannot hold (NaN, infinity)."""
    if isinstance(value, dict):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
