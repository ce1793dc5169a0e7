"""Integrity of downloaded raw files: their digests are pinned, or recorded at the first download and compared later."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from atoll import storage
from atoll.errors import AtollError

RECORD = "digests.json"  # in the cache, beside the datasets' folders: file → SHA-256 of files without a pinned digest


@cache
def pinned() -> Mapping[str, str]:
    """SHA-256 by path under the data folder."""
    text = importlib.resources.files("atoll.data").joinpath("digests.toml").read_text()
    return {str(name): str(digest) for name, digest in tomllib.loads(text).items()}


def check(root: Path, files: Mapping[str, Path], *, new: bool) -> None:
    """Refuse files (by path under `root`) whose digest is not the expected one; of `new` files an unknown digest is recorded."""
    recorded = _recorded(root)
    unknown: dict[str, str] = {}
    for name, path in files.items():
        expected = pinned().get(name) or recorded.get(name)
        if expected is None and not new:
            continue
        digest = _digest(path)
        if expected is None:
            unknown[name] = digest
        elif digest != expected:
            source = "published" if name in pinned() else f"downloaded first ({root / RECORD})"
            raise AtollError(
                f"{name} has the SHA-256 {digest}, but the file that was {source} has {expected}: "
                f"it was changed in transit or on this disk; delete {root / Path(name).parent} to download it again, "
                "or put files that you trust under ATOLL_DATA."
            )
    if unknown:
        storage.write_whole(root / RECORD, json.dumps(recorded | unknown, indent=1, sort_keys=True).encode() + b"\n")


def _recorded(root: Path) -> dict[str, str]:
    try:
        document = json.loads((root / RECORD).read_text(encoding="utf-8"))
        return {str(name): str(digest) for name, digest in document.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise AtollError(f"{root / RECORD} is damaged; restore it, or delete it to trust the next download.") from error


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
