"""A trained model as files: `model/` in the folder of a run, or at a site.

- `model.safetensors`: the tensors: the server's `state` and the parties' `memory` (what predictions need of it).
- `model.json`: what they are: algorithm, settings, architecture, input columns, classes, parties, metrics, versions, checksums.
- `README.md`: the model card, for people.

Reading them runs no code: an algorithm or a model that is a file is named, not imported.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from atoll import storage
from atoll.errors import AtollError, short
from atoll.federation.fields import concatenate
from atoll.federation.messages import MAX_SCHEMA, MIN_SCHEMA
from atoll.runs.documents import checksum, finite
from atoll.wire import leaves

FOLDER = "model"
TENSORS, DESCRIPTION, CARD = "model.safetensors", "model.json", "README.md"
FORMAT = 1  # of model.json; a later atoll reads earlier ones
KEYS = {  # every model.json has these
    "format": int,
    "algorithm": str,
    "config": dict,
    "scenario": str,
    "task": str,
    "parties": int,
    "names": list,
    "features": int,
    "num_classes": int,
    "best_round": int,
    "metrics": dict,
    "files": dict,
}


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """What `model/` holds: the description (model.json without its checksums) and the tensors."""

    description: dict[str, Any]
    state: dict[str, Any] = field(default_factory=dict)  # the server's, at the best round
    memory: dict[str, Any] = field(default_factory=dict)  # the parties', by name; rows in the order of `parties`
    arguments: dict[str, Any] = field(default_factory=dict)  # at a site, which has no state: what its parties are sent
    digest: str = ""  # SHA-256 of the tensors' file, where it was read

    def write(self, folder: Path, card: str) -> None:
        """Write `model/` into a folder. model.json is removed first and written last: what it is beside is whole."""
        target = folder / FOLDER
        with storage.writing(target):
            target.mkdir(parents=True, exist_ok=True)
            (target / DESCRIPTION).unlink(missing_ok=True)
            storage.sync_folder(target)
        payload = {name: value for name in ("state", "memory", "arguments") if (value := getattr(self, name))}
        storage.write_document(target / TENSORS, payload, compact=True)
        storage.write_whole(target / CARD, card.encode())
        document = json.loads(json.dumps(finite(self.description)))
        document["files"] = {name: _file(target / name) for name in (TENSORS, CARD)}
        document["sha256"] = checksum(document)
        storage.write_whole(target / DESCRIPTION, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> ModelFiles:
        """Read `model/` of a folder, or the folder `model/` itself; whatever is wrong with it is one sentence."""
        target = folder_of(folder)
        document = read_description(target)
        path, expected = target / TENSORS, document["files"].get(TENSORS, {})
        try:
            if not path.is_file() or _file(path) != expected:
                raise AtollError(f"{path} is damaged: it is not the file that {DESCRIPTION} describes; {ADVICE}.")
            payload = storage.read_document(path)
        except storage.DamagedError as error:
            raise AtollError(f"{str(error).rstrip('.')}; {ADVICE}.") from error
        parts = {name: payload.get(name, {}) for name in ("state", "memory", "arguments")}
        if not all(isinstance(part, dict) for part in parts.values()) or not _has_rows(parts["memory"]):
            raise AtollError(f"{path} is damaged: it does not hold a model; {ADVICE}.")
        about = {name: value for name, value in document.items() if name not in ("files", "sha256")}
        return cls(about, **parts, digest=str(expected.get("sha256", "")))


def _has_rows(memory: dict[str, Any]) -> bool:
    """Whether all of it is tensors with an axis of parties, nodes or features."""
    return all((isinstance(value, Tensor) and value.ndim > 0) or value == [] for _, value in leaves(memory))


def with_memory_of_sites(files: ModelFiles, folder: Path) -> ModelFiles:
    """The model of a run whose sites were processes on this machine, with the memory that each site wrote in `sites/`."""
    if not files.description.get("memory_at_sites") or files.memory:
        return files
    sites = [ModelFiles.read(path.parent) for path in sorted((folder / "sites").glob(f"*/*/{FOLDER}/{DESCRIPTION}"))]
    sites = [site for site in sites if site.description["best_round"] == files.description["best_round"]]
    sites.sort(key=lambda site: site.description["party_numbers"])
    numbers = [number for site in sites for number in site.description["party_numbers"]]
    if numbers != list(range(files.description["parties"])):
        return files  # what is missing is said when it is needed
    return replace(files, memory=concatenate([site.memory for site in sites]))


ADVICE = "restore it, or let `atoll resume` of the run write it again"


def folder_of(folder: Path) -> Path:
    """`model/` of a folder, or the folder itself where it is that."""
    return folder if (folder / DESCRIPTION).is_file() or not (folder / FOLDER).is_dir() else folder / FOLDER


def read_digest(folder: Path) -> str:
    """SHA-256 of the tensors' file of a trained model, as its description has it."""
    return str(read_description(folder_of(folder))["files"].get(TENSORS, {}).get("sha256", ""))


def read_description(target: Path) -> dict[str, Any]:
    """model.json of a folder `model/`, undamaged and of a format that this version knows."""
    path = target / DESCRIPTION
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        if target.name != FOLDER and not (target / "config.toml").is_file():
            sentence = f"{target} holds no trained model: it is not a run; give the folder that --out named."
            raise AtollError(sentence) from None
        raise AtollError(f"{target} holds no trained model: there is no {DESCRIPTION}; {ADVICE}.") from None
    except OSError as error:
        raise AtollError(f"{path} cannot be read ({error.strerror}); check the path and the rights to it.") from error
    except (ValueError, RecursionError) as error:
        raise AtollError(f"{path} is damaged ({str(error).splitlines()[0]}); {ADVICE}.") from error
    if not isinstance(document, dict):
        raise AtollError(f"{path} is damaged (it does not describe a model); {ADVICE}.")
    version = document.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise AtollError(f"{path} has format {version}, which a later atoll wrote; this one reads up to {FORMAT}: upgrade it.")
    if document.get("sha256") != checksum(document):
        raise AtollError(f"{path} is damaged (its checksum does not match); {ADVICE}.")
    if missing := [name for name, kind in KEYS.items() if not isinstance(document.get(name), kind)]:
        raise AtollError(f"{path} is damaged (it lacks {missing[0]}); {ADVICE}.")
    if wrong := _impossible(document):
        raise AtollError(f"{path} is damaged ({wrong}); {ADVICE}.")
    return document


def _impossible(document: dict[str, Any]) -> str:
    """What cannot be true of any model; empty if nothing is."""
    sizes = (("parties", "parties"), ("features", "features"), ("num_classes", "classes"), ("nodes", "nodes"))
    for name, entry in sizes:
        value = document.get(name) or 0 if name == "nodes" else document[name]
        if type(value) is not int or not MIN_SCHEMA[entry] <= value <= MAX_SCHEMA[entry]:
            return f"{name} is {short(repr(value), 50)}, not a whole number from {MIN_SCHEMA[entry]} to {MAX_SCHEMA[entry]}"
    for name in ("names", "columns", "classes"):
        value = document.get(name)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            return f"{name} is not a list of texts"
    if document.get("classes") is not None and len(document["classes"]) < document["num_classes"]:
        return f"it names {len(document['classes'])} of {document['num_classes']} classes"
    numbers = document.get("party_numbers")
    if numbers is None:
        return ""
    if not isinstance(numbers, list) or not all(type(one) is int and 0 <= one < document["parties"] for one in numbers):
        return "party_numbers is not a list of numbers of parties"
    return "" if numbers and len({*numbers}) == len(numbers) else "party_numbers is empty or names a party twice"


def is_whole(folder: Path, best_round: int) -> bool:
    """Whether a run's `model/` is there, undamaged, and of this round."""
    try:
        document = read_description(folder / FOLDER)
        return document["best_round"] == best_round and all(
            _file(folder / FOLDER / name) == expected for name, expected in document["files"].items()
        )
    except (AtollError, OSError):
        return False


def _file(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
            return {"bytes": file.tell(), "sha256": digest.hexdigest()}
    except OSError as error:
        raise AtollError(f"{path} cannot be read ({error.strerror}); {ADVICE}.") from error
