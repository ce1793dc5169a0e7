"""Where the server's first model is from: the run's seed, another one, or a PyG script's."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.nn import GCNConv

import atoll
from atoll import algorithms
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.runs import config
from atoll.runs.experiment import prepare

SCHEMA = Schema(features=6, classes=3, parties=2)
TINY = {"dataset": "csbm", "partition": "random", "parties": 2, "values": {"nodes": 60, "rounds": 1, "hidden": 4}}
TAKERS = [name for name in algorithms.names() if hasattr(algorithms.find(name).Settings, "first_model")]


class PlainGCN(torch.nn.Module):
    """Two convolutions, as scripts have them."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = GCNConv(6, 4), GCNConv(4, 3)


@pytest.mark.parametrize("before", [0, 3])
def test_it_is_the_model_of_a_script(before: int) -> None:
    """Bit for bit that of PyG's layers after `torch.manual_seed`, with models made before it."""
    settings = algorithms.find("fedavg").Settings(model="gcn", hidden=4, first_model=f"pyg:2024:{before}")
    before_drawing = torch.get_rng_state()
    ours = atoll.first_model(settings, SCHEMA, seed=5)
    assert torch.equal(torch.get_rng_state(), before_drawing)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2024)
        theirs = [PlainGCN() for _ in range(before + 1)][-1]
    assert torch.equal(ours["layers.0.weight"], theirs.one.lin.weight.T)
    assert torch.equal(ours["layers.1.weight"], theirs.two.lin.weight.T)
    assert not ours["layers.0.bias"].any()
    assert not ours["layers.1.bias"].any()


@pytest.mark.parametrize("name", TAKERS)
def test_every_algorithm_with_the_setting_begins_with_that_model(name: str) -> None:
    """With `seed:7`, the state that a run of seed 1 begins with has the model of a run of seed 7."""
    models = []
    for seed, values in ((1, {"first_model": "seed:7"}), (7, {}), (1, {})):
        chosen = config.resolve(name, **{**TINY, "values": TINY["values"] | values}, seed=seed, optional=True)
        with prepare(chosen) as experiment:
            experiment.federation.begin(0)
            models.append(experiment.algorithm.start(experiment.federation, chosen.settings)["model"])
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][key], models[1][key]) for key in models[0])
    assert any(not torch.equal(models[0][key], models[2][key]) for key in models[0])


def test_the_seed_alone_decides_the_rest() -> None:
    """With one first model, other seeds draw other dropout; naming the run's own seed changes nothing."""
    values = {"nodes": 60, "rounds": 2, "hidden": 4, "dropout": 0.5, "partition_seed": 0, "split_seed": 0, "graph_seed": 0}
    runs = {
        (seed, origin): atoll.run("fedavg", dataset="csbm", parties=2, seed=seed, first_model=origin, **values).metrics["loss"]
        for seed, origin in ((0, "run"), (0, "seed:0"), (1, "seed:0"), (1, "run"))
    }
    assert runs[0, "run"] == runs[0, "seed:0"]
    assert len({runs[0, "seed:0"], runs[1, "seed:0"], runs[1, "run"]}) == 3


@pytest.mark.parametrize("text", ["", "mine", "seed:x", "seed:1:2", "pyg:1", "pyg:-1:2", "run:1", "seed:9999999", "seed:٣"])
def test_what_is_not_an_origin_is_refused(text: str) -> None:
    """Before anything is loaded, in one sentence."""
    with pytest.raises(AtollError, match="first_model is"):
        config.resolve("fedavg", dataset="csbm", values={"first_model": text})


@pytest.mark.parametrize("other", [{"model": "sage"}, {"norm": "batch"}, {"task": "link-prediction"}])
def test_a_script_has_only_this_model(other: dict[str, str]) -> None:
    """Other layers draw otherwise."""
    with pytest.raises(AtollError, match="first_model=pyg"):
        config.resolve("fedavg", dataset="csbm", values={"first_model": "pyg:1:0", "model": "gcn"} | other)
