"""Use exports in a process that cannot import atoll."""

from __future__ import annotations

import json
import site
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from atoll.graphs.graph import Graph

PROGRAM = """
import importlib.util, json, sys
sys.path[:0] = json.loads(sys.argv[1])
try:
    import atoll
    raise SystemExit("atoll is here")
except ImportError:
    pass
import numpy as np
differences = {}
for folder in sys.argv[2:]:
    sys.path.insert(0, folder)
    sys.modules.pop("model", None)
    spec = importlib.util.spec_from_file_location("load", folder + "/load.py")
    load = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(load)
    case = np.load(folder + ".npz")
    inputs = [case[name] for name in case.files if name != "logits"]
    differences[folder] = float(np.abs(load.logits(*inputs) - case["logits"]).max())
    rows = load.probabilities(*inputs)
    assert np.allclose(rows.sum(1), 1, atol=1e-5) and len(load.classes) == rows.shape[1]
    sys.path.pop(0)
assert "atoll" not in sys.modules
print(json.dumps(differences))
"""


def save_case(folder: Path, graph: Graph, logits: Tensor) -> None:
    """What the export in a folder is to give for a graph."""
    inputs: dict[str, Any] = {"x": graph.x, "edge_index": graph.edge_index, "ptr": graph.graph_ptr, "pairs": graph.pairs}
    inputs["x"] = graph.x if isinstance(graph.x, Tensor) else graph.x.toarray()
    known = {name: np.asarray(value) for name, value in inputs.items() if value is not None}
    np.savez(f"{folder}.npz", **known, logits=logits.detach().numpy())


def elsewhere(folders: list[Path]) -> dict[str, float]:
    """Difference from the saved case of each export, in a process without atoll: no editable installs, no PYTHONPATH."""
    packages = [path for path in sys.path if path.endswith("site-packages")] or site.getsitepackages()
    command = [sys.executable, "-I", "-S", "-W", "ignore", "-c", PROGRAM, json.dumps(packages), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))
