"""Exports of networks whose items are graphs or pairs of nodes: the same outputs in a process without atoll."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from atoll import load_model
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.graph_level import GraphNetwork, GraphNetworkSettings
from atoll.models.link_level import LinkNetwork, LinkNetworkSettings
from atoll.models.registry import build
from atoll.models.standalone.check import random_items
from atoll.models.standalone.convert import one_party
from atoll.random import Draws
from atoll.runs import config, runner
from atoll.runs.export import write_export
from elsewhere import elsewhere, save_case
from small_graphs import write
from small_links import small_links

GRAPHS = [("gin", "sum"), ("gin", "max"), ("gcn", "mean"), ("sage", "sum"), ("gat", "mean")]
DECODERS = ("dot", "bilinear", "mlp")
FEW = {"gin-max", "bilinear"}  # what the compiled formats are tried on: they take seconds


def networks() -> Iterator[tuple[str, Backbone]]:
    """Three parties' networks of every kind; the middle one's."""

    def draws() -> Draws:
        return Draws(0, [0, 1, 2], "first")

    for model, readout in GRAPHS:
        shape, settings = ModelShape(3, 6, 3, 8, 2), GraphNetworkSettings(model, readout)
        yield f"{model}-{readout}", one_party(GraphNetwork(shape, draws(), settings), 1)
    for decoder in DECODERS:
        encoder = build("gcn", parties=3, features=6, classes=8, hidden=8, draws=draws())
        network = LinkNetwork(ModelShape(3, 6, 2, 8, 2), encoder, draws(), LinkNetworkSettings(decoder))
        yield decoder, one_party(network, 1)


@pytest.mark.parametrize("target", ["pyg", "safetensors", "torchscript", "pt2", "onnx"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_network_without_atoll(target: str, tmp_path: Path) -> None:
    """On graphs of other sizes than those in the export, the last with a graph of a single node."""
    if target == "onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    folders = []
    for name, backbone in networks():
        if target in ("pt2", "onnx") and name not in FEW:
            continue
        classes = ["no edge", "edge"] if name in DECODERS else ["a", "b", "c"]
        write_export(backbone, target, tmp_path / name, model=name, classes=classes)
        graph = random_items(backbone, 57, seed=9)
        save_case(tmp_path / name, graph, backbone(graph))
        folders.append(tmp_path / name)
    differences = elsewhere(folders)
    assert len(differences) == (len(FEW) if target in ("pt2", "onnx") else len(GRAPHS) + len(DECODERS))
    assert max(differences.values()) < 1e-5


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_run_predicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of links, and of a party whose graphs have fewer columns than others': the logits of the run's own predictions."""
    write(tmp_path / "data")
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path / "data"))
    chem = config.resolve("fedavg", dataset="chem", values={"rounds": 1, "hidden": 8, "patience": 0})
    runs = {"chem": chem, "links": small_links("fedavg", rounds=2, decoder="mlp")}
    folders = []
    for name, chosen in runs.items():
        runner.run(chosen, out=tmp_path / name)
        model, folder = load_model(tmp_path / name), tmp_path / f"{name}-export"
        model.export("safetensors", folder, party="DHFR" if name == "chem" else None)
        party = 3 if name == "chem" else 0
        outputs = model.outputs(party=party)
        graph = runner.prepare(chosen).party_data.parts.select([party])
        columns, classes = (4, 2) if name == "chem" else (12, 2)  # as DHFR has; others have seven and three
        x = graph.dense_features(torch.arange(graph.num_nodes))
        save_case(folder, replace(graph, x=x[:, :columns]), outputs.logits[:, :classes])
        folders.append(folder)
    assert max(elsewhere(folders).values()) < 1e-5
