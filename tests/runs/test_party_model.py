"""What a party predicts with, exported and used without atoll: the outputs of the run, for every algorithm and backbone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from atoll import algorithms
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.models.gcn import GCN
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.export import export_files, export_model
from atoll.runs.folder import Folder
from atoll.runs.model_files import ModelFiles
from atoll.runs.party_model import party_backbone, party_names
from atoll.runs.predictions import predict
from elsewhere import elsewhere, save_case
from small import ALGORITHMS, SAMPLES, small

PARTY = 1
EXPORTED = [name for name in ALGORITHMS if not algorithms.find(name).Cohort.no_backbone]
PERSONAL = (
    "apfl",
    "ditto",
    "fedala",
    "fedbn",
    "fedgta",
    "fedper",
    "fedproto",
    "fedpub",
    "fedrep",
    "fedspray",
    "gcfl",
    "local",
    "mlps",
)
MODELS = ("gcn", "gcn_head", "sgc", "sage", "gat", "gcnii", "appnp", "mlp")
FORMATS = dict(zip(MODELS, ("pyg", "pt2", "safetensors", "torchscript", "pt2", "pyg", "safetensors", "torchscript"), strict=True))
OWN = """
import torch
from torch_geometric.nn import GCNConv

class Own(torch.nn.Module):
    def __init__(self, in_channels, hidden_channels, out_channels, skip=0.5):
        super().__init__()
        self.first, self.last = GCNConv(in_channels, hidden_channels), GCNConv(hidden_channels, out_channels)
        self.linear, self.skip = torch.nn.Linear(in_channels, out_channels), skip

    def embed(self, x, edge_index):
        return self.first(x, edge_index).relu()

    def forward(self, x, edge_index):
        return self.last(self.embed(x, edge_index), edge_index) + self.skip * self.linear(x)
"""


def trained(config: Config, out: Path) -> tuple[Graph, Tensor]:
    """Run a configuration; the graph and the outputs of one of its parties, or of all where a party is a node of a graph."""
    experiment = runner.prepare(config)
    with Folder.begin(out, config) as folder:
        result = runner.rounds(experiment, folder)
    assert result.best_round == result.rounds  # the outputs are those of the model that is kept
    data, output = experiment.party_data, predict(experiment, result.state)
    if config.algorithm == "gfl_appnp":
        return data.whole, output
    party = min(PARTY, data.parts.parties - 1)
    start, end = data.parts.ptr[party : party + 2].tolist()
    return data.parts.select([party]), output[start:end]


@pytest.fixture(scope="module")
def differences(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """How far exports are from the run's own outputs: of every algorithm, of every backbone, of a user's own file."""
    folder = tmp_path_factory.mktemp("exports")
    own = folder / "own.py"
    own.write_text(OWN)
    configs = {name: (small(name, rounds=1, evaluate_every=1), "pyg", None) for name in EXPORTED}
    for name in MODELS:
        values = {"model.steps": 2} if name == "appnp" else {"model.heads": 4} if name == "gat" else {}
        configs[f"model-{name}"] = (small("fedavg", rounds=1, model=name, **values), FORMATS[name], None)
    configs["own"] = (small("fedper", rounds=1, model=str(own), **{"model.skip": 2.0}), "pyg", str(own))
    for name, (config, target, model) in configs.items():
        graph, output = trained(config, folder / f"run-{name}")
        party = PARTY if config.algorithm in PERSONAL else None
        export_model(folder / f"run-{name}", target, folder / name, party=party, model=model)
        save_case(folder / name, graph, output)
    found = elsewhere([folder / name for name in configs])
    return {Path(name).name: difference for name, difference in found.items()}


@pytest.mark.parametrize("name", [*EXPORTED, *(f"model-{name}" for name in MODELS), "own"])
def test_outputs_without_atoll(name: str, differences: dict[str, float]) -> None:
    """On the graph that it was trained on, the exported model gives the run's own outputs."""
    assert differences[name] < 1e-5


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in EXPORTED])
def test_what_is_not_one_model_says_so(algorithm: str, tmp_path: Path) -> None:
    """One sentence with the reason; nothing is written."""
    runner.run(small(algorithm, rounds=1), out=tmp_path / "run")
    with pytest.raises(AtollError, match=f"^{algorithm} has no model that can be exported: .*[^.]\\.$"):
        export_model(tmp_path / "run", "pyg", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def apfl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a model per party."""
    folder = tmp_path_factory.mktemp("apfl") / "run"
    runner.run(small("apfl", rounds=1), out=folder)
    return folder


def test_a_personal_model_needs_a_party(apfl: Path, tmp_path: Path) -> None:
    """The parties are listed; each has another model; the export says whose it is."""
    with pytest.raises(AtollError, match="a model of its own; say which one with --party: 0, 1, 2"):
        export_model(apfl, "safetensors", tmp_path / "out")
    with pytest.raises(AtollError, match="no party 'x' in this model; it has 0, 1, 2"):
        export_model(apfl, "safetensors", tmp_path / "out", party="x")
    for party in ("0", 2):
        export_model(apfl, "safetensors", tmp_path / str(party), party=party)
    assert (tmp_path / "0/weights.safetensors").read_bytes() != (tmp_path / "2/weights.safetensors").read_bytes()
    assert json.loads((tmp_path / "2/model.json").read_text())["party"] == "2"
    assert "the model of party 2" in (tmp_path / "2/README.md").read_text()
    assert not (tmp_path / "out").exists()


def test_parties_have_their_names(apfl: Path) -> None:
    """Where there are names, they are used, at a site only its own."""
    about = ModelFiles.read(apfl).description | {"names": ["a", "b", "c"]}
    assert party_names(about) == {"a": 0, "b": 1, "c": 2}
    assert party_names({**about, "party_numbers": [2]}) == {"c": 2}
    assert party_names({**about, "names": []}) == {"0": 0, "1": 1, "2": 2}


@pytest.mark.parametrize("algorithm", ["fedavg", "apfl", "fedspray", "gcfl"])
def test_at_a_site(algorithm: str, tmp_path: Path) -> None:
    """A site has its parties' memory and what they were sent: the same model as in the run's folder, and no party to choose."""
    from atoll.deploy.site import Site
    from sites import DirectCarrier, remote_engine, simulated_sites

    config = small(algorithm, rounds=2)
    runner.run(config, out=tmp_path / "run")
    sites: dict[str, Site] = simulated_sites(tmp_path / "sites")
    experiment = runner.prepare(config)
    engine = remote_engine(config, DirectCarrier(sites), exact=True)
    experiment.federation.engine = engine
    runner.rounds(experiment)
    engine.finish()
    (folder,) = (tmp_path / "sites" / "site-1").glob("*/model")
    export_model(folder.parent, "safetensors", tmp_path / "site")
    export_model(tmp_path / "run", "safetensors", tmp_path / "here", party=None if algorithm == "fedavg" else 1)
    for name in ("weights.safetensors", "example.npz"):
        assert (tmp_path / "site" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()


def test_clusters_that_were_never_parted_share_a_model(tmp_path: Path) -> None:
    """GCFL with one cluster needs no party."""
    runner.run(small("gcfl", rounds=1, rounds_before_split=9), out=tmp_path / "run")
    export_model(tmp_path / "run", "safetensors", tmp_path / "out")
    assert json.loads((tmp_path / "out/model.json").read_text())["party"] is None


def test_memory_that_is_at_the_sites(apfl: Path, tmp_path: Path) -> None:
    """The server's folder of a deployed run has no personal models."""
    files, config = ModelFiles.read(apfl), small("apfl", rounds=1)
    away = ModelFiles({**files.description, "memory_at_sites": True}, files.state)
    with pytest.raises(AtollError, match="without the parties' `mixture`, which is at the parties' sites; export it there"):
        party_backbone(away, config, 0)


def test_several_vectors_per_node_are_refused(tmp_path: Path) -> None:
    """GFL-APPNP is APPNP where every node has one vector; else there is no exported model that takes its nodes."""
    runner.run(small("gfl_appnp", rounds=1, **SAMPLES), out=tmp_path / "run")
    with pytest.raises(AtollError, match=r"60 nodes have 240 feature vectors"):
        export_model(tmp_path / "run", "pyg", tmp_path / "out")


ODD = """
from atoll.algorithms.fedavg import SCENARIOS, Settings, start, step, evaluate
from atoll.algorithms import fedavg

class Cohort(fedavg.Cohort):
    def output(self, graph, draws=None):
        return 2 * self.model(graph, draws)
"""


def test_an_algorithm_that_predicts_with_something_else_is_refused(tmp_path: Path) -> None:
    """What a cohort says it predicts with is compared with what it predicts; its file is not imported from a folder."""
    file = tmp_path / "odd.py"
    file.write_text(ODD)
    config = small("fedavg", rounds=1)
    runner.run(Config(**{**vars(config), "algorithm": str(file)}), out=tmp_path / "run")
    with pytest.raises(
        AtollError, match=r"is not run because a folder names it; if you trust it, say so: atoll export .* --algorithm"
    ):
        export_model(tmp_path / "run", "pyg", tmp_path / "out")
    with pytest.raises(AtollError, match=r"does not predict with the models that its `party_models` gives"):
        export_model(tmp_path / "run", "pyg", tmp_path / "out", algorithm=file)
    assert not (tmp_path / "out").exists()


def test_a_model_given_as_an_object(tmp_path: Path) -> None:
    """It has no file that could go along; whole networks can be exported."""

    class Given(torch.nn.Module):
        """One layer."""

        def __init__(self, in_channels: int, out_channels: int) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(in_channels, out_channels)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            """Logits."""
            return self.linear(x)

    runner.run(small("fedavg", rounds=1, model=Given), out=tmp_path / "run")
    with pytest.raises(AtollError, match=r"was given as an object; give it again: atoll.export_model\(.*, model=.*Given\)"):
        export_model(tmp_path / "run", "pt2", tmp_path / "out")
    with pytest.raises(AtollError, match="Given was given as an object, so there is no file to export"):
        export_model(tmp_path / "run", "pyg", tmp_path / "out", model=Given)
    export_model(tmp_path / "run", "pt2", tmp_path / "out", model=Given)


def test_a_models_file_must_be_named_and_unchanged(tmp_path: Path) -> None:
    """As for `resume`."""
    own = tmp_path / "own.py"
    own.write_text(OWN)
    runner.run(small("fedavg", rounds=1, model=str(own)), out=tmp_path / "run")
    with pytest.raises(AtollError, match=r"if you trust it, say so: atoll export .* --model"):
        export_model(tmp_path / "run", "pyg", tmp_path / "out")
    other = tmp_path / "other.py"
    other.write_text(OWN + "\n")
    with pytest.raises(AtollError, match="is not the file that"):
        export_model(tmp_path / "run", "pyg", tmp_path / "out", model=str(other))


def test_what_is_known_of_the_model_goes_along(tmp_path: Path) -> None:
    """Classes, columns and the preprocessing; without names, numbers."""
    config = small("fedavg", rounds=1)
    result = runner.rounds(runner.prepare(config))
    assert result.trained is not None
    assert isinstance(party_backbone(result.trained, config)[0], GCN)
    columns = [f"c{index}" for index in range(12)]
    known = {"classes": ["a", "b", "c"], "columns": columns, "preprocessing": {"version": 1}}
    files = ModelFiles({**result.trained.description, **known}, result.trained.state)
    export_files(files, config, "safetensors", tmp_path / "named")
    export_files(result.trained, config, "safetensors", tmp_path / "plain")
    named, plain = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("named", "plain"))
    assert {name: named[name] for name in known} == known
    assert (plain["classes"], plain["columns"], plain["preprocessing"]) == (["0", "1", "2"], None, None)
    assert "`preprocessing` in `model.json`" in (tmp_path / "named/README.md").read_text()


def test_a_damaged_or_missing_model(apfl: Path, tmp_path: Path) -> None:
    """The sentence of the model's files; nothing is written."""
    folder = tmp_path / "run"
    shutil.copytree(apfl, folder)
    (folder / "model/model.safetensors").write_bytes(b"x")
    for run, sentence in ((folder, "is damaged"), (tmp_path / "nothing", "holds no trained model")):
        with pytest.raises(AtollError, match=sentence):
            export_model(run, "pyg", tmp_path / "out")
    assert not (tmp_path / "out").exists()
