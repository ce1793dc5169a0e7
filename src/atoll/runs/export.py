"""Export of a trained model: a folder with a file that another program loads without atoll, and the loader.

Every export is checked before it is written: what it computes for two random graphs must equal atoll's output to 1e-5.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import platform
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from atoll import storage
from atoll.errors import AtollError, suggest
from atoll.models.backbone import Backbone
from atoll.models.standalone import formats
from atoll.models.standalone.check import inputs_of, random_items
from atoll.models.standalone.convert import Standalone, standalone
from atoll.models.user import short_name
from atoll.runs.config import Config
from atoll.runs.data_task import target_of
from atoll.runs.described_config import described
from atoll.runs.documents import finite
from atoll.runs.export_texts import PACKAGES, loader, readme
from atoll.runs.model_files import ModelFiles
from atoll.runs.own_files import with_own_files
from atoll.runs.party_model import party_backbone
from atoll.tasks.targets import CLASS
from atoll.version import __version__

TARGETS = ("pyg", "safetensors", "torchscript", "pt2", "onnx")
TOLERANCE = 1e-5  # of the largest logit, at least of 1
Function = Callable[..., Tensor]
INPUTS = {"edge_index": [2, "edges"], "ptr": ["graphs + 1"], "pairs": [2, "pairs"]}  # and x
ROWS = {"ptr": "graphs", "pairs": "pairs"}  # of the outputs, where they are not nodes


def export_model(
    run: str | Path,
    to: str,
    out: str | Path,
    *,
    party: str | int | None = None,
    algorithm: str | Path | None = None,
    model: Any = None,
) -> list[Path]:
    """Write the best round's model of a run as a folder that another program loads without atoll.

    Parameters:
        run: The folder of a run, or a site's folder of one (`KIT/runs/NAME`).
        to: `pyg` (a module of PyG's layers), `safetensors` (the same in plain torch), `torchscript`, `pt2` (torch.export) or
            `onnx`.
        out: A folder that does not exist yet.
        party: The party whose model it is, by name or number, where each party has its own.
        algorithm: The file of an algorithm of your own again: a folder alone never makes atoll run a file.
        model: The file, class or function of a model of your own again.

    Returns:
        The files that were written: the model, `load.py`, which loads it, `model.json`, `README.md`, checksums.

    Examples:
        >>> import atoll, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = atoll.run("fedavg", dataset="csbm", parties=2, rounds=2, nodes=200, out=f"{folder}/run")
        ...     files = atoll.export_model(f"{folder}/run", "safetensors", f"{folder}/export")
        >>> sorted(file.name for file in files)[:4]
        ['README.md', 'SHA256SUMS', 'example.npz', 'load.py']
    """
    check_target(to)
    check_out(Path(out))
    files = ModelFiles.read(Path(run))
    config = described(files.description["config"], f"The configuration in {run}")
    given = {"algorithm": algorithm, "model": model}
    config = with_own_files(config, run, lambda: files.description, **given, command="export", function="export_model")
    return export_files(files, config, to, out, party=party)


def export_files(files: ModelFiles, config: Config, to: str, out: str | Path, *, party: str | int | None = None) -> list[Path]:
    """As `export_model`, of a model that was read already; `config` is its configuration, own files imported."""
    check_target(to)
    check_out(Path(out))
    about = files.description
    if about.get("edge_weights"):
        raise AtollError(
            "The model was trained on edges with weights, which an export does not take; predict with atoll, or train with "
            "edge_weights=false."
        )
    backbone, name = party_backbone(files, dataclasses.replace(config, device="cpu"), party)
    count = backbone.shape.classes if about.get("party_classes") else about["num_classes"]
    if backbone.shape.classes != count:
        raise AtollError(
            f"The task {about['task']} has {backbone.shape.classes} outputs for {count} classes, and an export "
            "describes one output per class; predict with atoll: model.outputs()."
        )
    classes = (about.get("classes") or list(map(str, range(count))))[:count]
    more = {
        "algorithm": Path(about["algorithm"]).stem,
        "task": about["task"],
        "party": name,
        "best_round": about["best_round"],
        "preprocessing": about.get("preprocessing"),
        "normalize_features": bool(about["config"].get("data", {}).get("normalize_features", False)),
        "threshold": about.get("threshold"),
    }
    if (predicts := target_of(about["task"])) != CLASS:
        more |= {"predicts": predicts, "value_scale": about.get("value_scale")}
    model = str(getattr(config.settings, "model", type(backbone).__name__.lower()))
    return write_export(backbone, to, Path(out), model=model, classes=classes, columns=about.get("columns"), about=more)


def write_export(
    backbone: Backbone,
    target: str,
    out: Path,
    *,
    model: str,
    classes: Sequence[str],
    columns: Sequence[str] | None = None,
    about: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write the backbone of one party (P = 1) as a folder for other programs; returns the files.

    Parameters:
        backbone: The trained backbone.
        target: One of `TARGETS`.
        out: A folder that does not exist yet, or is empty.
        model: The configuration's name of the model.
        classes: The classes' names, in the order of the logits.
        columns: The features' names, in the order of x.
        about: More for model.json: algorithm, dataset, party, preprocessing, threshold, …
    """
    check_target(target)
    check_out(out)
    shape = backbone.shape
    example, other = random_items(backbone, nodes=12, seed=0), random_items(backbone, nodes=29, seed=1)
    inputs = inputs_of(example)
    made = standalone(backbone, "pyg" if target == "pyg" else "torch", model)
    files, function = _files(target, made, *inputs.values())
    for graph in (example, other):
        _compare(backbone(graph).detach(), function(*inputs_of(graph).values()), target)
    arrays = io.BytesIO()
    known: dict[str, Any] = {name: each.numpy() for name, each in inputs.items()}
    np.savez(arrays, **known, logits=backbone(example).detach().numpy())
    document = {
        "target": target,
        "model": short_name(model),
        **(about or {}),
        "classes": list(classes),
        "columns": None if columns is None else list(columns),
        "inputs": {"x": ["nodes", shape.features], **{name: INPUTS[name] for name in inputs if name != "x"}},
        "outputs": {"logits": [ROWS.get(list(inputs)[-1], "nodes"), shape.classes]},
        "arguments": made.arguments,
        "parameters": {name: list(value.shape) for name, value in made.module.state_dict().items()},
        "versions": _versions(target),
    }
    loading = loader(target, made.class_name, document.get("predicts", CLASS), list(inputs)[-1])
    files |= {"load.py": loading.encode(), "example.npz": arrays.getvalue()}
    document["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())}
    files["model.json"] = (json.dumps(finite(document), indent=1, ensure_ascii=False) + "\n").encode()
    files["README.md"] = readme(target, list(files), document).encode()
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())]
    files["SHA256SUMS"] = "".join(sums).encode()
    return _write(out, files)


def check_target(target: str) -> None:
    """Refuse a format that there is not, and one whose packages are missing."""
    if target not in TARGETS:
        raise AtollError(f"--to is {target!r}, which is not a format of exports{suggest(target, TARGETS)}")
    if target == "onnx":
        formats.require("onnx", "onnxscript", "onnxruntime")


def check_out(out: Path) -> None:
    """Refuse to write over anything."""
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise AtollError(f"{out} is already there; choose another --out, or delete it.")


def _files(target: str, made: Standalone, *inputs: Tensor) -> tuple[dict[str, bytes], Function]:
    """The files that hold the model, and what they compute."""
    if target in ("pyg", "safetensors"):
        if made.source is None:
            raise AtollError(
                f"{made.class_name} was given as an object, so there is no file to export; give it as FILE.py, or export to "
                "torchscript or onnx."
            )
        weights = {name: value.contiguous().clone() for name, value in made.module.state_dict().items()}
        saved = save(weights)
        with torch.random.fork_rng(devices=[]):
            again = type(made.module)(
                **made.arguments
            ).eval()  # as the loader makes it: what the file does not hold is drawn again
        again.load_state_dict(load(saved))
        return {"model.py": made.source, "weights.safetensors": saved}, again.requires_grad_(False)
    if target == "torchscript":
        data = formats.torchscript(made.module, *inputs)
        return {"model.pt": data}, formats.load_torchscript(data)
    if target == "pt2":
        data = formats.exported_program(made.module, *inputs)
        return {"model.pt2": data}, formats.load_exported_program(data)
    data = formats.onnx(made.module, *inputs)
    return {"model.onnx": data}, formats.load_onnx(data)


def _compare(expected: Tensor, output: Tensor, target: str) -> None:
    """Refuse an export that computes something else than the model in atoll."""
    same = output.shape == expected.shape and output.dtype == expected.dtype
    limit = TOLERANCE * max(1.0, float(expected.abs().max()))
    difference = float((output - expected).abs().max()) if same else float("nan")
    if not difference <= limit:
        raise AtollError(
            f"As {target} this model gives other outputs than in atoll (difference {difference:.1e}), so it is not exported; "
            "try another format."
        )


def _versions(target: str) -> dict[str, str]:
    packages = {name: metadata.version(name) for name in PACKAGES[target] + (("onnx",) if target == "onnx" else ())}
    return {"atoll": __version__, "python": platform.python_version(), "torch": torch.__version__} | packages


def _write(out: Path, files: Mapping[str, bytes]) -> list[Path]:
    """All files or none: they are written beside the folder, which then takes its place."""
    partial = out.with_name(f".{out.name}.{secrets.token_hex(8)}.partial")
    with storage.writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        try:
            for name, content in files.items():
                storage.write_whole(partial / name, content)
            partial.rename(out)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return [out / name for name in files]
