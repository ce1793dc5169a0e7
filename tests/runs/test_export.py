"""Exports are used by processes that have no atoll, and give atoll's outputs there."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.errors import AtollError
from atoll.models import user
from atoll.models.backbone import Backbone
from atoll.models.registry import build
from atoll.models.standalone import formats
from atoll.models.standalone.check import random_graph
from atoll.random import Draws
from atoll.runs import export
from atoll.runs.export import TARGETS, write_export
from elsewhere import elsewhere, save_case

MODELS = ("gcn", "gcn_head", "gin", "sgc", "sage", "gat", "gcnii", "appnp", "mlp")
COMPILED = ("pt2", "onnx")  # they take seconds per backbone
FEW = ("sage", "gat", "appnp")  # a mean of neighbors, attention, and steps of propagation with the normalized adjacency
CASES = [
    *((target, FEW if target in COMPILED else MODELS) for target in TARGETS),
    *(pytest.param(target, tuple(name for name in MODELS if name not in FEW), marks=pytest.mark.full) for target in COMPILED),
]
CLASSES = ["healthy", "ill", "unknown"]


def trained(name: str, **options: Any) -> Backbone:
    """A small backbone of one party."""
    settings = {"appnp": {"steps": 2}, "gat": {"heads": 4}}.get(name, {})
    sizes = {"features": 6, "classes": 3, "hidden": 8}
    return build(name, parties=1, draws=Draws(0, [0], "first"), settings=settings, **sizes, **options)


@pytest.mark.parametrize(("target", "names"), CASES, ids=lambda value: value if isinstance(value, str) else str(len(value)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_backbone_without_atoll(target: str, names: tuple[str, ...], tmp_path: Path) -> None:
    """On a graph of another size than the one in the export."""
    if target == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    folders = []
    for name in names:
        backbone = trained(name)
        write_export(backbone, target, tmp_path / name, model=name, classes=CLASSES, columns=list("abcdef"))
        graph = random_graph(backbone.shape, 57, seed=9)
        save_case(tmp_path / name, graph, backbone(graph))
        folders.append(tmp_path / name)
    differences = elsewhere(folders)
    assert len(differences) == len(names)
    assert max(differences.values()) < 1e-5


def test_what_the_folder_holds(tmp_path: Path) -> None:
    """Classes, columns, architecture, versions; checksums of every file; a loader that prints the classes."""
    out = tmp_path / "new" / "export"
    about = {"algorithm": "fedavg", "preprocessing": {"age": "standardize"}, "threshold": 0.3}
    written = write_export(trained("gcn"), "safetensors", out, model="gcn", classes=CLASSES, columns=list("abcdef"), about=about)
    assert {path.name for path in written} == {path.name for path in out.iterdir()}
    document = json.loads((out / "model.json").read_text())
    assert (document["classes"], document["columns"], document["threshold"]) == (CLASSES, list("abcdef"), 0.3)
    assert document["preprocessing"] == {"age": "standardize"}
    assert document["parameters"]["layers.0.linear.weight"] == [8, 6]
    assert {"atoll", "python", "torch", "safetensors"} <= document["versions"].keys()
    for line in (out / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((out / name).read_bytes()).hexdigest() == digest
    code = [line for line in (out / "load.py").read_text().split("if __name__")[0].splitlines() if line.strip()]
    assert len(code) <= 24
    done = subprocess.run([sys.executable, str(out / "load.py")], capture_output=True, text=True, check=True)
    assert "3 classes: 'healthy', 'ill', 'unknown'" in done.stdout
    assert "0.3" in (out / "README.md").read_text()


def test_a_users_file(tmp_path: Path) -> None:
    """The file goes along, with its class and arguments."""
    source = tmp_path / "own.py"
    source.write_text(
        "import torch\n\n\nclass Own(torch.nn.Module):\n"
        "    def __init__(self, in_channels, out_channels, scale: float = 2.0):\n"
        "        super().__init__()\n        self.linear, self.scale = torch.nn.Linear(in_channels, out_channels), scale\n\n"
        "    def forward(self, x, edge_index):\n        return self.scale * self.linear(x)\n"
    )
    name = user.load(str(source))
    backbone = build(name, parties=1, features=6, classes=3, settings={"scale": 3.0}, draws=Draws(0, [0], "first"))
    graph = random_graph(backbone.shape, 8, seed=2)
    write_export(backbone, "safetensors", tmp_path / "out", model=name, classes=CLASSES)
    save_case(tmp_path / "out", graph, backbone(graph))
    assert elsewhere([tmp_path / "out"])[str(tmp_path / "out")] < 1e-6
    source.write_text(source.read_text() + "# changed\n")
    with pytest.raises(AtollError, match="was changed after it was imported"):
        write_export(backbone, "safetensors", tmp_path / "again", model=name, classes=CLASSES)
    assert not (tmp_path / "again").exists()


def test_a_users_file_with_drawn_numbers(tmp_path: Path) -> None:
    """A drawn buffer goes along; a drawn attribute is in no file of weights, so that only a whole network can be exported."""
    source = "import torch\n\nclass Own(torch.nn.Module):\n    def __init__(self, in_channels, out_channels):\n"
    source += "        super().__init__()\n        self.linear = torch.nn.Linear(in_channels, out_channels)\n        {drawn}\n\n"
    source += "    def forward(self, x, edge_index):\n        return self.linear(x) * self.scale\n"
    for kind, drawn in (
        ("buffer", "self.register_buffer('scale', torch.randn(()))"),
        ("attribute", "self.scale = torch.randn(())"),
    ):
        file = tmp_path / f"{kind}.py"
        file.write_text(source.format(drawn=drawn))
        name = user.load(str(file))
        backbone = build(name, parties=1, features=6, classes=3, draws=Draws(0, [0], "first"))
        if kind == "buffer":
            write_export(backbone, "safetensors", tmp_path / "weights", model=name, classes=CLASSES)
        else:
            with pytest.raises(AtollError, match="other outputs than in atoll"):
                write_export(backbone, "safetensors", tmp_path / "no", model=name, classes=CLASSES)
            assert not (tmp_path / "no").exists()
        write_export(backbone, "pt2", tmp_path / f"{kind}-whole", model=name, classes=CLASSES)


def test_bad_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence each, and nothing is written."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(AtollError, match="full is already there"):
        write_export(trained("gcn"), "pyg", tmp_path / "full", model="gcn", classes=CLASSES)
    with pytest.raises(AtollError, match="'onxx', which is not a format of exports"):
        write_export(trained("gcn"), "onxx", tmp_path / "out", model="gcn", classes=CLASSES)
    monkeypatch.setattr(formats.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(AtollError, match=r"needs onnx, which is not installed; run `pip install 'atoll\[export\]'`"):
        write_export(trained("gcn"), "onnx", tmp_path / "out", model="gcn", classes=CLASSES)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_an_export_with_other_outputs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every export is compared with atoll before it is written."""
    wrong = export.standalone

    def changed(*arguments: Any) -> Any:
        made = wrong(*arguments)
        with torch.no_grad():
            next(iter(made.module.parameters())).add_(0.01)
        return made

    monkeypatch.setattr(export, "standalone", changed)
    with pytest.raises(AtollError, match=r"other outputs than in atoll \(difference"):
        write_export(trained("gcn"), "torchscript", tmp_path / "out", model="gcn", classes=CLASSES)
    assert list(tmp_path.iterdir()) == []
