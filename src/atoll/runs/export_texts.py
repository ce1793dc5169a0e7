"""The texts of an export: the loader that uses it without atoll, and its README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll.errors import listed
from atoll.runs.markdown import cell
from atoll.tasks.targets import CLASS, LABELS, VALUES

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

_LOADER = '''"""Use the model without atoll: `python load.py` tries it; `from load import {names}` uses it."""

import json
from pathlib import Path

import numpy as np
{imports}

here = Path(__file__).parent
about = json.loads((here / "model.json").read_text(encoding="utf-8"))
{listed} = about["classes"]
{load}


def logits(x, edge_index):
    """(N, C) from float32 features (N, d) and int64 edges (2, E), source to target."""
{call}


{function}

if __name__ == "__main__":
    example = np.load(here / "example.npz")
{shown}
    difference = np.abs(logits(example["x"], example["edge_index"]) - example["logits"]).max()
    print(f"{{len({listed})}} {listed}: {{', '.join(map(repr, {listed}))}}; difference from atoll: {{difference:.1e}}")
'''

_FUNCTION = {  # what an export predicts → what the loader makes of the logits
    CLASS: '''def probabilities(x, edge_index):
    """(N, C) each node's classes, in the order of `classes`."""
    exp = np.exp((z := logits(x, edge_index)) - z.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)
''',
    LABELS: '''def probabilities(x, edge_index):
    """(N, T) of each node's labels, one by one, in the order of `labels`."""
    return 1 / (1 + np.exp(-logits(x, edge_index)))
''',
    VALUES: '''def predicted(x, edge_index):
    """(N, T) each node's values, in the order of `values` and in the units of the training data."""
    scale = np.array(about.get("value_scale") or [[0, 1]] * len(values))
    return logits(x, edge_index) * scale[:, 1] + scale[:, 0]
''',
}

_SHOWN = {
    CLASS: """    for row in probabilities(example["x"], example["edge_index"]):
        print(f"{classes[row.argmax()]!r}: {row.max():.3f}")""",
    LABELS: """    for row in probabilities(example["x"], example["edge_index"]):
        print(", ".join(f"{label}: {share:.3f}" for label, share in zip(labels, row)))""",
    VALUES: """    for row in predicted(example["x"], example["edge_index"]):
        print(", ".join(f"{value}: {number:.4g}" for value, number in zip(values, row)))""",
}
_LISTED = {CLASS: "classes", LABELS: "labels", VALUES: "values"}


def loader(target: str, class_name: str, predicts: str = CLASS, last: str = "edge_index") -> str:
    """load.py of an export of a model that predicts a class, labels or values; `last` is the model's last input."""
    made = "predicted" if predicts == VALUES else "probabilities"
    text = _LOADER.format(
        names=f"{_LISTED[predicts]}, {made}",
        listed=_LISTED[predicts],
        function=_FUNCTION[predicts],
        shown=_SHOWN[predicts],
        imports=_IMPORTS[target].format(name=class_name),
        load=_LOAD[target],
        call=_ONNX if target == "onnx" else _TORCH,
    )
    return text if last == "edge_index" else _with_input(text, last)


def _with_input(text: str, name: str) -> str:
    """The loader of a model with a third input."""
    for old, new in {
        "(x, edge_index)": f"(x, edge_index, {name})",
        "torch.as_tensor(edge_index))": f"torch.as_tensor(edge_index), torch.as_tensor({name}))",
        '"edge_index": edge_index}': f'"edge_index": edge_index, "{name}": {name}}}',
        'example["edge_index"])': f'example["edge_index"], example["{name}"])',
        "source to target.": f"source to target, and {_THIRD[name][0]}.",
        "each node's": f"each {_THIRD[name][1]}'s",
    }.items():
        text = text.replace(old, new)
    return text


_THIRD = {  # an input beside features and edges → what it holds, what the items are, and words for the README
    "ptr": (
        "int64 `ptr` (G + 1,), where each graph's rows begin, and N",
        "graph",
        "graph g has the rows ptr[g] to ptr[g + 1] - 1 (as in a batch of PyG); with torch.export at least two graphs",
    ),
    "pairs": ("int64 `pairs` (2, M) of rows", "pair", "the two rows of each pair that is scored, in any order"),
}

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
        *(f"- `{name}`: int64; {_THIRD[name][2]}." for name in about["inputs"] if name in _THIRD),
        f"- `logits`: float32, ({about['outputs']['logits'][0]}, {len(about['classes'])}); {_meaning(about)}: "
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


def _meaning(about: Mapping[str, Any]) -> str:
    """What the outputs are."""
    if about.get("predicts") == LABELS:
        return "the sigmoid of each is the probability of a label"
    if about.get("predicts") == VALUES:
        return "times the deviation, plus the mean (`value_scale` in `model.json`), they are the values"
    return "their softmax is the probability of each class"


def _in_line(value: Any) -> str:
    return ", ".join(f"{cell(name)} {cell(item)}" for name, item in value.items()) if isinstance(value, Mapping) else cell(value)


def _listed(names: list[str]) -> str:
    return listed(map(cell, names), MAX_LISTED) + (" (see `model.json`)" if len(names) > MAX_LISTED else "")
