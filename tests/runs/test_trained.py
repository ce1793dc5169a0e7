"""What was trained can be used: on the training data it reproduces the metrics, and nodes that came later are predicted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll.algorithms import fedavg
from atoll.data.federated_data import FederatedData
from atoll.errors import AtollError, AtollWarning
from atoll.federation.cohort import backbone
from atoll.federation.messages import Schema
from atoll.graphs.graph import Graph
from atoll.models.parameters import set_parameters
from atoll.runs import runner
from atoll.runs.documents import checksum
from atoll.runs.outputs import Outputs
from atoll.runs.result import Result
from atoll.runs.trained import TrainedModel
from small import ALGORITHMS, small

OF_ITS_OWN = ("mlps",)  # every node is a party with weights of its own
JOINING = ("nfedgnn", "cnfgnn")  # likewise, but they say what a new one begins with
MORE = {"train_loss", "majority_accuracy"}  # metrics that an algorithm may define itself
OWN_LOSS = ("nfedgnn", "cnfgnn", "gfl_appnp")  # their training loss is not that of the predictions


def tail(nodes: int = 25, seed: int = 9) -> Graph:
    """A graph that no run has seen; some nodes have no label."""
    new = atoll.load("csbm", nodes=nodes, features=12, degree=4, classes=3, graph_seed=seed)
    return replace(new, y=torch.where(torch.arange(nodes) < 5, -1, new.y))


def metrics_of(found: Outputs, model: TrainedModel, scenario: str) -> dict[str, Any]:
    """Everything that the task makes of the outputs, by the names that a run reports."""
    counts = model.task.counts(found.logits, found.graph)
    local = "local_" if scenario == "overlapping" else ""
    metrics = found.metrics(model.task)
    if model.config.algorithm in OWN_LOSS:
        metrics.pop("train_loss", None)
    renamed = {name if name.startswith(("val_", "train_")) else f"{local}{name}": value for name, value in metrics.items()}
    return renamed | model.task.by_party(counts)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_predictions_reproduce_the_metrics_exactly(algorithm: str, tmp_path: Path) -> None:
    """In memory and from the folder, to the last digit of result.json; every node has a row."""
    result = runner.run(small(algorithm, rounds=4), out=tmp_path / "run")
    written = json.loads((tmp_path / "run/result.json").read_text())["metrics"]
    for model in (result.model(), atoll.load_model(tmp_path / "run"), atoll.load_model(tmp_path / "run/model")):
        found = model.outputs()
        assert len(found.logits) == found.graph.num_nodes == model.training_data.parts.num_nodes
        recomputed = metrics_of(found, model, result.scenario)
        assert {name: result.metrics[name] for name in recomputed} == recomputed
        assert {name: written[name] for name in recomputed} == recomputed
        rest = result.metrics.keys() - recomputed.keys() - MORE
        if result.scenario == "overlapping":  # the global goal: the model on the union of the parties' graphs
            whole = model.training_data.whole
            union = replace(model.outputs(whole), graph=whole).metrics(model.task)
            assert {name: union[name] for name in rest} == {name: result.metrics[name] for name in rest}
        else:
            assert rest == set()
        table = model.predict()
        tested = table[(table["split"] == "test") & table["label"].notna()]
        score = result.metrics["local_accuracy" if result.scenario == "overlapping" else "accuracy"]
        assert float((tested["class"] == tested["label"]).mean()) == pytest.approx(score, abs=1e-12)
        assert table.filter(like="p[").sum(axis=1).to_numpy() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedspray", "fedstar", "glasu", "gfl_appnp"])
def test_parties_apart_reproduce_theirs(algorithm: str) -> None:
    """Memory in rows of parties, nodes and training nodes finds the cohort it belongs to."""
    result = runner.run(small(algorithm, placement="apart"))
    model = result.model()
    recomputed = metrics_of(model.outputs(), model, result.scenario)
    assert {name: result.metrics[name] for name in recomputed} == recomputed


@pytest.mark.parametrize("values", [{"secure": True}, {"dp.verb": "fit", "dp.noise": 1.0, "dp.clip": 1.0}, {"robust": "median"}])
def test_what_concerns_messages_does_not_concern_predictions(values: dict[str, Any]) -> None:
    """A model trained with masks, noise or a robust rule predicts as any other; the accuracy is the reported one."""
    result = runner.run(small("fedavg", **values))
    model = result.model()
    assert model.outputs().metrics(model.task)["accuracy"] == result.metrics["accuracy"]


def given(**values: Any) -> Graph:
    """A graph as an object, a third of its nodes unlabeled."""
    graph = atoll.load("csbm", nodes=60, features=12, degree=4, classes=3, **values)
    return replace(
        graph, y=torch.where(torch.arange(60) % 3 == 0, -1, graph.y), node_names=np.array([f"n{i}" for i in range(60)], object)
    )


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("fedavg", {"partition": "random", "parties": 3}),
        ("gfl_appnp", {"partition": "node"}),
        ("glasu", {"partition": "vertical", "parties": 3, "evaluation_neighbors": "sampled"}),
        ("glasu", {"partition": "vertical", "parties": 3, "label_holder": 1}),
    ],
)
def test_nodes_without_a_label_are_predicted_too(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Also where an evaluation leaves them out; what was evaluated is as reported. The dataset is given again, as an object."""
    result = atoll.run(algorithm, dataset=given(), rounds=3, split="random", out=tmp_path / "run", **settings)
    with pytest.raises(AtollError, match=r"given as an object; give it again: atoll.load_model\(…, dataset=…\)"):
        atoll.load_model(tmp_path / "run").predict()
    for model in (result.model(), atoll.load_model(tmp_path / "run", dataset=given())):
        table, found = model.predict(), model.outputs()
        assert set(table["id"]) == {f"n{i}" for i in range(60)}
        assert table["label"].isna().sum() == 20 * table["party"].nunique() if algorithm == "glasu" else 20
        assert not table["class"].isna().any()
        recomputed = {name: value for name, value in found.metrics(model.task).items() if name in result.metrics}
        assert recomputed == {name: result.metrics[name] for name in recomputed}
        assert "accuracy" in recomputed
        if settings.get("label_holder") == 1:
            assert set(table["party"]) == {1}
            with pytest.raises(AtollError, match="The party 0 does not predict: 1 holds the labels"):
                model.predict(party=0)


def sources(data: FederatedData) -> list[tuple[int | None, Graph, torch.Tensor]]:
    """The training data as if it were new: (party, graph, rows of the outputs for the training data)."""
    everything = torch.ones(data.parts.num_nodes, dtype=torch.bool)
    if data.scenario in ("horizontal", "overlapping"):
        return [(party, data.parts.select([party]), data.parts.party == party) for party in range(data.parts.parties)]
    return [(None, data.source if data.scenario == "vertical" else data.whole, everything)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_known_nodes_as_new_ones_are_predicted_as_in_training(algorithm: str) -> None:
    """New nodes pass through the same code; a method that has nothing for them says so."""
    model = runner.run(small(algorithm)).model()
    trained = model.outputs().logits
    for party, graph, rows in sources(model.training_data):
        if algorithm in JOINING:
            assert torch.isfinite(model.outputs(graph).logits).all()  # strangers; `test_nfedgnn_joining` has more
            continue
        if algorithm in OF_ITS_OWN:
            with pytest.raises(
                AtollError, match=f"{algorithm} cannot predict nodes that it was not trained on: every node is a party"
            ):
                model.outputs(graph)
            continue
        found = model.outputs(graph, party)
        if algorithm in ("fedgcn", "feddep"):  # new nodes have exchanged nothing, or have no generated neighbors
            assert torch.isfinite(found.logits).all()
            continue
        torch.testing.assert_close(found.logits, trained[rows], atol=1e-5, rtol=1e-5)


def test_a_model_for_all_predicts_a_graph_as_the_plain_network_does() -> None:
    """Against the backbone alone, and without a label anywhere."""
    result = runner.run(small("fedavg"))
    new = replace(tail(), y=torch.full((25,), -1))
    network = backbone(result.config.settings, Schema(12, 3, 1), 1, None)
    assert result.trained is not None
    set_parameters(network, result.trained.state["model"])
    with torch.no_grad():
        expected = network(new)
    torch.testing.assert_close(result.model().outputs(new).logits, expected)
    table = result.model().predict(new)
    assert table["class"].tolist() == expected.argmax(1).tolist()
    assert table["label"].isna().all()
    assert table["party"].isna().all()
    assert table[["p[0]", "p[1]", "p[2]"]].to_numpy() == pytest.approx(expected.softmax(1).numpy(), abs=1e-6)


@pytest.mark.parametrize("algorithm", ["local", "fedper", "apfl", "gcfl", "fedspray", "fedstar"])
def test_personal_models_need_a_party(algorithm: str) -> None:
    """Whose the new nodes are must be said, where it matters; parties differ."""
    model = runner.run(small(algorithm)).model()
    with pytest.raises(AtollError, match=f"Every party of {algorithm} has a model of its own; say whose.*--party NAME"):
        model.predict(tail())
    with pytest.raises(AtollError, match="has no party '7'; it has 3, numbered from 0"):
        model.predict(tail(), party=7)
    first, second = (model.predict(tail(), party=party) for party in (0, "1"))
    assert set(first["party"]) == {0}
    if algorithm != "gcfl":  # one cluster so far
        assert not np.allclose(first["p[0]"], second["p[0]"])


def test_one_graph_per_party() -> None:
    """A dict gives each party its own nodes, which its own model predicts."""
    model = runner.run(small("local")).model()
    several = {"2": tail(25), "0": tail(10, seed=4)}
    table = model.predict(several)
    assert table["party"].tolist() == [2] * 25 + [0] * 10
    assert table["p[0]"][25:].to_numpy() == pytest.approx(model.predict(tail(10, seed=4), party=0)["p[0]"].to_numpy())
    assert len(model.predict(several, party=2)) == 25
    with pytest.raises(AtollError, match="has no folder for the party 1; it has 2, 0"):
        model.predict(several, party=1)


def test_the_nodes_of_one_party() -> None:
    """On the training data a party selects rows."""
    model = runner.run(small("fedavg")).model()
    everything, one = model.predict(), model.predict(party=1)
    assert one.reset_index(drop=True).equals(everything[everything["party"] == 1].reset_index(drop=True))


def test_changed_data_is_predicted_with_a_warning(tmp_path: Path) -> None:
    """The metrics are not its own then; data of another form is refused."""
    graph, settings = given(), {"partition": "random", "parties": 3, "split": "random", "rounds": 2}
    atoll.run("fedstar", dataset=graph, out=tmp_path / "run", **settings)
    changed = replace(graph, x=graph.x + 1)
    with pytest.warns(AtollWarning, match="given has changed since the model was trained .60 nodes and"):
        assert len(atoll.load_model(tmp_path / "run", dataset=changed).predict()) == 60
    with pytest.raises(AtollError, match="has 13 features, but the model was trained with 12"):
        atoll.load_model(tmp_path / "run", dataset=replace(graph, x=torch.ones(60, 13))).predict()


def test_a_result_that_was_read_has_its_model(tmp_path: Path) -> None:
    """`atoll.read` and a run in memory give the same."""
    result = runner.run(small("fedper"), out=tmp_path / "run")
    assert atoll.read(tmp_path / "run").model().predict().equals(result.model().predict())


def test_a_folder_runs_no_code(tmp_path: Path) -> None:
    """Files of one's own have to be named again, and be the same."""
    own, other = tmp_path / "own.py", tmp_path / "other.py"
    own.write_text(Path(fedavg.__file__).read_text())
    other.write_text(own.read_text() + "# changed\n")
    result = atoll.run(str(own), dataset="csbm", partition="random", parties=2, nodes=100, rounds=1, out=tmp_path / "run")
    with pytest.raises(AtollError, match=r"is not run because a folder names it; if you trust it.*atoll predict .*--algorithm"):
        atoll.load_model(tmp_path / "run")
    model = atoll.load_model(tmp_path / "run", algorithm=own)
    assert model.outputs().metrics(model.task)["accuracy"] == result.metrics["accuracy"]
    with pytest.raises(AtollError, match=r"other.py is not the file that"):
        atoll.load_model(tmp_path / "run", algorithm=other)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (5, "data is a int; give a folder, an .npz, a torch_geometric Data, a NetworkX graph"),
        ("nowhere", "There is no folder or file nowhere"),
        (replace(tail(), x=torch.ones(25, 3)), "has 3 columns, but the model was trained with 12"),
        (replace(tail(), y=torch.full((25,), 3), num_classes=4), "has the label 3, but the model knows the classes 0 to 2"),
    ],
)
def test_data_that_does_not_fit(data: Any, sentence: str) -> None:
    """One sentence each."""
    with pytest.raises(AtollError, match=sentence):
        runner.run(small("fedavg", rounds=1)).model().predict(data)


def test_pyg_data_without_labels() -> None:
    """A `Data` with features and edges is enough."""
    torch_geometric = pytest.importorskip("torch_geometric")
    new = tail()
    data = torch_geometric.data.Data(x=new.x, edge_index=new.edge_index)
    model = runner.run(small("fedavg")).model()
    torch.testing.assert_close(model.outputs(data).logits, model.outputs(new).logits)
    assert data.y is None


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    """Nothing is there, or what is there is damaged."""
    runner.run(small("fedavg", rounds=1), out=tmp_path / "run")
    with pytest.raises(AtollError, match="There is no folder"):
        atoll.load_model(tmp_path / "nowhere")
    path = tmp_path / "run/model/model.json"
    document = json.loads(path.read_text())
    document["preprocessing"] = {"version": 1, "columns": [{"column": {"name": "age"}}]}
    document["sha256"] = checksum(document)
    path.write_text(json.dumps(document))
    with pytest.raises(AtollError, match="The stored encoding of the columns cannot be read"):
        atoll.load_model(tmp_path / "run").predict()
    shutil.rmtree(tmp_path / "run/model")
    with pytest.raises(AtollError, match="holds no trained model"):
        atoll.load_model(tmp_path / "run")


def test_personal_models_that_are_at_sites_are_not_guessed() -> None:
    """The server of a deployed run has no memory of the parties."""
    result: Result = runner.run(small("fedper"))
    assert result.trained is not None
    model = TrainedModel(replace(result.trained, memory={}), result.config)
    with pytest.raises(AtollError, match="not in this folder but at its site; predict there"):
        model.predict()
