"""The texts of an export: the loader that uses it without atoll, and its README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.errors import listed
from atoll.runs.markdown import cell

MAX_LISTED = 20  # classes and columns in the README; model.json has all

PACKAGES = {  # what the loader needs
    "pyg": ("torch", "torch_geometric", "safetensors", "numpy"),
    "safetensors": ("torch", "safetensors", "numpy"),
    "torchscript": ("torch", "numpy"),
    "pt2": ("torch", "numpy"),
    "onnx": ("onnxruntime", "numpy"),
}

_IMPORTS = {
    "pyg": "import torch\nfrom model import {name} as Model\nfrom safetensors.torch import load_file",
    "safetensors": "import torch\nfrom model import {name} as Model\nfrom safetensors.torch import load_file",
    "torchscript": "import torch",
    "pt2": "import torch",
    "onnx": "import onnxruntime",
}

_WEIGHTS = """model = Model(**about["arguments"]).eval()
model.load_state_dict(load_file(here / "weights.safetensors"))"""

_LOAD = {
    "pyg": _WEIGHTS,
    "safetensors": _WEIGHTS,
    "torchscript": 'model = torch.jit.load(here / "model.pt")',
    "pt2": 'model = torch.export.load(here / "model.pt2").module()',
    "onnx": 'session = onnxruntime.InferenceSession(here / "model.onnx", providers=["CPUExecutionProvider"])',
}

_TORCH = """    with torch.no_grad():
        return model(torch.as_tensor(x), torch.as_tensor(edge_index)).numpy()"""

_ONNX = '    return session.run(["logits"], {"x": x, "edge_index": edge_index})[0]'

_LOADER = '''"""Use the model without atoll: `python load.py` tries it; `from load import classes, probabilities` uses it."""

import json
from pathlib import Path

import numpy as np
{imports}

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text(encoding="utf-8"))
classes = about["classes"]
{load}


def logits(x, edge_index):
    """(N, C) from float32 features (N, d) and int64 edges (2, E), source to target."""
{call}


def probabilities(x, edge_index):
    """(N, C) each node's classes, in the order of `classes`."""
    exp = np.exp((z := logits(x, edge_index)) - z.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


if __name__ == "__main__":
    example = np.load(here / "example.npz")
    for row in probabilities(example["x"], example["edge_index"]):
        print(f"{{classes[row.argmax()]!r}}: {{row.max():.3f}}")
    difference = np.abs(logits(example["x"], example["edge_index"]) - example["logits"]).max()
    print(f"{{len(classes)}} classes: {{', '.join(map(repr, classes))}}; difference from atoll: {{difference:.1e}}")
'''


def loader(target: str, class_name: str) -> str:
    """load.py of an export."""
    return _LOADER.format(
        imports=_IMPORTS[target].format(name=class_name),
        load=_LOAD[target],
        call=_ONNX if target == "onnx" else _TORCH,
    )


_FILES = {
    "model.py": "the network",
    "weights.safetensors": "its parameters",
    "model.pt": "network and parameters, TorchScript",
    "model.pt2": "network and parameters, torch.export",
    "model.onnx": "network and parameters, ONNX",
    "model.json": "classes, columns, architecture, versions, checksums",
    "load.py": "loads and tries the model; import it, or copy from it",
    "example.npz": "random features and edges with the logits that atoll computes for them; none of it is training data",
}


def readme(target: str, files: list[str], about: Mapping[str, Any]) -> str:
    """README.md of an export."""
    of = f", the model of party {cell(about['party'])}" if about.get("party") is not None else ""
    columns = about.get("columns")
    versions = about["versions"]
    lines = [
        f"# {cell(about['model'])} trained by {cell(about.get('algorithm', 'atoll'))}{of}",
        "",
        "Exported by atoll; atoll is not needed to use it.",
        "",
        "```sh",
        f"pip install {' '.join(PACKAGES[target])}",
        "sha256sum -c SHA256SUMS",
        "python load.py",
        "```",
        "",
        "| file | content |",
        "|---|---|",
        *(f"| `{name}` | {_FILES[name]} |" for name in sorted(files) if name in _FILES),
        "",
        "## Input and output",
        "",
        f"- `x`: float32, (nodes, {about['inputs']['x'][1]}), one row per node"
        + (f"; columns: {_listed(columns)}." if columns else "; columns in the order of the training data."),
        "- `edge_index`: int64, (2, edges), source and target row of each edge, each edge once; both directions where the "
        "graph is undirected. Loops are ignored.",
        f"- `logits`: float32, (nodes, {len(about['classes'])}); their softmax is the probability of each class: "
        f"{_listed(about['classes'])}.",
        "",
    ]
    if about.get("preprocessing"):
        lines += ["`x` is what `preprocessing` in `model.json` makes of the raw columns.", ""]
    if about.get("normalize_features"):
        lines += ["Each row of `x` is divided by the sum of its absolute values (`normalize_features`).", ""]
    if about.get("threshold") is not None:
        lines += [f"The decision threshold chosen on validation nodes is {_in_line(about['threshold'])}.", ""]
    if target in ("torchscript", "pt2"):
        lines += [
            "torch deprecates TorchScript in favor of torch.export: `--to pt2` is the same model in that format."
            if target == "torchscript"
            else "Load it with the version of torch below or a later one.",
            "",
        ]
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    return "\n".join([*lines, f"Made with {made}.", ""])


def _in_line(value: Any) -> str:
    return ", ".join(f"{cell(name)} {cell(item)}" for name, item in value.items()) if isinstance(value, Mapping) else cell(value)


def _listed(names: list[str]) -> str:
    return listed(map(cell, names), MAX_LISTED) + (" (see `model.json`)" if len(names) > MAX_LISTED else "")
