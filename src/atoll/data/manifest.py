"""The manifest of a folder of shards: what they hold, what they were cut from, and a digest of every file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atoll import storage
from atoll.data.partition import SCENARIO_OF
from atoll.errors import AtollError
from atoll.version import __version__

MANIFEST = "manifest.json"
FORMAT = "atoll shards 1"
COUNTS = ("parties", "nodes", "edges", "features", "classes", "digest")


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards says of itself.

    Attributes:
        scenario: How the graph is spread over the parties.
        parties, nodes, edges, features, classes, digest: The extent of all parties' data.
        cuts: Shard s holds the parties cuts[s] to cuts[s + 1].
        origin: The part of the configuration that made the data: dataset, partition, split and their settings.
        files: The size in bytes and the SHA-256 of every other file, by path in the folder.
        shared_rows: Whether the whole graph's features are rows of the parties' (`whole-rows.npy`) and not stored again.
        lost_nodes: Whether the original graph has nodes that no party holds, so that it is stored besides the whole one.
        names: The parties' names, where they have any.
        widths: Vertical: each party's columns.
        encoding, party_encodings, party_columns: As in `FederatedData`, as plain values.
    """

    scenario: str
    parties: int
    nodes: int
    edges: int
    features: int
    classes: int
    digest: int
    cuts: tuple[int, ...]
    origin: Mapping[str, Any]
    files: Mapping[str, tuple[int, str]]
    shared_rows: bool
    lost_nodes: bool
    names: tuple[str, ...] = ()
    widths: tuple[int, ...] | None = None
    encoding: Mapping[str, Any] | None = None
    party_encodings: tuple[Mapping[str, Any] | None, ...] = ()
    party_columns: tuple[tuple[str, ...] | None, ...] = ()

    @property
    def extent(self) -> dict[str, int]:
        """The size and a digest of all parties' data."""
        return {name: getattr(self, name) for name in COUNTS}

    def shard(self, index: int) -> str:
        """The folder of a shard."""
        first, end = self.cuts[index : index + 2]
        return f"party-{first}" if end == first + 1 else f"parties-{first}-{end - 1}"

    def write(self, folder: Path) -> None:
        """Write it into the folder; it comes last, so that a folder without one is not complete."""
        content = {"format": FORMAT, "atoll": __version__, **asdict(self)}
        document = {"sha256": _digest(content), **content}
        storage.write_whole(folder / MANIFEST, json.dumps(document, indent=1).encode() + b"\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest in a folder; whatever is wrong with it is one sentence."""
        path = folder / MANIFEST
        try:
            document = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise AtollError(
                f"{folder} holds no shards ({MANIFEST} is missing); `atoll partition --out {folder}` writes them."
            ) from error
        except (OSError, ValueError) as error:
            raise _damaged(path, str(error).splitlines()[0]) from error
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            kind = document.get("format") if isinstance(document, dict) else None
            raise AtollError(f"{path} is not a manifest that this version of atoll can read (format {kind!r}); {AGAIN}")
        content = {name: value for name, value in document.items() if name != "sha256"}
        if document.get("sha256") != _digest(content):
            raise _damaged(path, "its checksum does not match its content")
        try:
            return _parsed(cls, content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise _damaged(path, f"{type(error).__name__}: {error}") from error


AGAIN = "cut the graph again with `atoll partition --out`."


def is_sharded(dataset: str) -> bool:
    """Whether a dataset is a folder of shards."""
    try:
        return (Path(dataset).expanduser() / MANIFEST).is_file()
    except (OSError, RuntimeError, ValueError):  # not a path
        return False


def _damaged(path: Path, reason: str) -> AtollError:
    return AtollError(f"{path} is damaged ({reason}); {AGAIN}")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _parsed(kind: type[Manifest], content: Mapping[str, Any]) -> Manifest:
    """The manifest of its document; a KeyError, TypeError or ValueError where it is not one."""
    values = {name: content[name] for name in kind.__dataclass_fields__}
    if values["scenario"] not in SCENARIO_OF.values() or not isinstance(values["origin"]["dataset"], str):
        raise ValueError("it does not say what the shards hold")
    if not all(type(values[name]) is int and values[name] >= 0 for name in COUNTS):
        raise ValueError("it does not say how large the shards are")
    cuts = tuple(map(int, values["cuts"]))
    if len(cuts) < 2 or cuts[0] != 0 or cuts[-1] != values["parties"] or list(cuts) != sorted(set(cuts)):
        raise ValueError("its shards do not hold every party once")
    values |= {"cuts": cuts, "files": {str(name): (int(size), str(sha)) for name, (size, sha) in values["files"].items()}}
    values |= {"names": tuple(map(str, values["names"])), "party_encodings": tuple(values["party_encodings"])}
    values["widths"] = None if values["widths"] is None else tuple(map(int, values["widths"]))
    values["party_columns"] = tuple(None if each is None else tuple(map(str, each)) for each in values["party_columns"])
    return kind(**values)
