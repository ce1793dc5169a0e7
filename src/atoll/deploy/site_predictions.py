"""Predictions at a site: the model that a run left in its kit, used there alone, without the server and without NVFlare."""

from __future__ import annotations

from pathlib import Path

from atoll.deploy.kit import KIT_FILE, Kit, is_server
from atoll.errors import AtollError, suggest
from atoll.runs.model_files import DESCRIPTION, FOLDER
from atoll.runs.trained import TrainedModel, load_model

RUNS = "runs"  # the folder of the runs in a kit


def is_kit(path: Path) -> bool:
    """Whether a folder is a kit."""
    return (path.expanduser() / KIT_FILE).is_file()


def open_site_model(path: Path, name: str | None = None, *, device: str = "cpu") -> TrainedModel:
    """The model of a run at a site: of the newest finished one unless it is named."""
    if is_server(path):
        raise AtollError(f"{path} is the server's kit, which holds no model; give the server's run folder, or a site's kit.")
    kit = Kit.open(path, server=False)
    runs = {each.parents[1].name: each for each in (kit.path / RUNS).glob(f"*/{FOLDER}/{DESCRIPTION}")}
    if not runs:
        raise AtollError(f"{path} holds no trained model yet: no run has finished here.")
    if name is not None and name not in runs:
        raise AtollError(f"{path} holds no finished run {name!r}{suggest(name, list(runs))}")
    newest = max(runs.values(), key=lambda each: each.stat().st_mtime)
    return load_model((newest if name is None else runs[name]).parent, device=device)
