"""What a report computes again from a configuration and a saved model, and when it refuses to."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll.federation.cohort import backbone
from atoll.graphs.graph import majority_class
from atoll.models.parameters import set_parameters
from atoll.reports import partitions, recompute
from atoll.reports.detail import RowDetail, is_detail, row_detail
from atoll.reports.figures.embeddings import embeddings
from atoll.reports.recompute import Predictions, predictions
from atoll.reports.runs import Row, StoredRun, grouped, read_run
from atoll.runs import runner
from atoll.runs.config import GIVEN, resolve
from atoll.runs.progress import Progress
from small import ALGORITHMS, small
from stored import DETAIL, rewrite_result


@pytest.fixture
def best_is_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the validation nodes say, round 1 is the best, so that the last checkpoint is another model."""
    update = Progress.update

    def first(self: Progress, metrics: dict[str, Any], *args: Any, **arguments: Any) -> None:
        update(self, {**metrics, "val_loss": float(self.round)}, *args, **arguments)

    monkeypatch.setattr(Progress, "update", first)


def predicted(folder: Path) -> Predictions:
    """The predictions of a run; the test fails where there are none."""
    found = predictions(read_run(folder))
    assert isinstance(found, Predictions), found
    return found


def test_majority_accuracy_is_that_of_the_nodes(tmp_path: Path) -> None:
    """Computed from overall and minority accuracy, it equals counting the majority's nodes."""
    config = small("fedavg", rounds=1)
    result = runner.run(config, out=tmp_path / "run")
    experiment = runner.prepare(config)
    graph = experiment.party_data.parts
    model = backbone(config.settings, experiment.federation.schema, graph.parties, None)
    set_parameters(model, result.state["model"])
    right = model(graph).argmax(1) == graph.y
    common = graph.test & (graph.y == majority_class(graph))
    found = partitions.majority(Row("fedavg", [read_run(tmp_path / "run")]))
    assert found is not None
    assert found[0] == pytest.approx(float(right[common].float().mean()))


def test_edges_between_parties_as_counted_one_by_one() -> None:
    """For every party, the edges from its nodes to each other's, and to nodes of no party."""
    config = small("local")
    divided = partitions.partition_of(config)
    assert isinstance(divided, partitions.Partition)
    data = runner.prepare(config).party_data
    owner = dict(zip(data.parts.ids.tolist(), data.parts.party.tolist(), strict=True))
    expected = np.zeros((3, 4))
    for a, b in data.source.edge_index.t().tolist():
        if a in owner:
            expected[owner[a], owner.get(b, 3)] += 1
    assert divided.flows is not None
    assert np.array_equal(divided.flows, expected)
    assert sum(divided.flows[p, p] for p in range(3)) == 2 * divided.facts.edges_kept


@pytest.mark.parametrize("placement", ["together", "apart"])
@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
@pytest.mark.usefixtures("best_is_first")
def test_predictions_are_the_best_rounds(algorithm: str, placement: str, tmp_path: Path) -> None:
    """The shared model of the server's state, or the parties' own from their memory, at the round that is reported."""
    config = small(algorithm, placement=placement)
    result = runner.run(config, out=tmp_path / "run")
    found = predicted(tmp_path / "run")
    assert found.round == result.best_round == 1 < result.rounds
    assert result.trained is not None
    graph = runner.prepare(config).party_data.parts
    model = backbone(config.settings, runner.prepare(config).federation.schema, 3, None)
    set_parameters(model, result.trained.memory["model"] if algorithm == "local" else result.trained.state["model"])
    hidden = recompute.hidden_of(found)
    assert hidden is not None
    assert np.allclose(hidden.values, model.embed(graph).detach().numpy(), atol=1e-5)
    drawn = recompute.embedding(read_run(tmp_path / "run"), "pca", 20)
    assert isinstance(drawn, recompute.Embedding)
    assert (drawn.points.shape, drawn.of, drawn.round) == ((20, 2), graph.num_nodes, 1)


@pytest.mark.usefixtures("best_is_first")
def test_a_run_without_a_kept_model_is_shown_at_its_last_round(tmp_path: Path) -> None:
    """Folders of earlier versions have only a checkpoint; the figure says which round it shows."""
    result = runner.run(small("fedavg"), out=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    rewrite_result(tmp_path / "run", detail={})
    assert predicted(tmp_path / "run").round == result.rounds > result.best_round
    detail = row_detail(Row("fedavg", [read_run(tmp_path / "run")]))
    assert isinstance(detail, RowDetail)
    assert (detail.where, detail.recomputed) == (f"round {result.rounds}, seed 3", True)
    assert np.trace(detail.confusion) / detail.confusion.sum() == pytest.approx(result.last["accuracy"])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_details_and_embeddings(algorithm: str, tmp_path: Path) -> None:
    """The confusion gives the reported accuracy; the points are finite, of hidden layers or else of class scores."""
    result = runner.run(small(algorithm, rounds=2), out=tmp_path / "run")
    run = read_run(tmp_path / "run")
    detail = row_detail(Row(algorithm, [run]))
    assert isinstance(detail, RowDetail)
    overlapping = result.scenario == "overlapping"
    share = np.trace(detail.confusion) / detail.confusion.sum()
    assert share == pytest.approx(result.metrics["local_accuracy" if overlapping else "accuracy"], abs=1e-6)
    assert detail.calibration is not None
    assert detail.calibration[:, 0].sum() == detail.confusion.sum()
    drawn = recompute.embedding(run, "pca", 30)
    assert isinstance(drawn, recompute.Embedding)
    assert drawn.points.shape == (30, 2)
    assert np.isfinite(drawn.points).all()
    assert len(np.unique(drawn.label)) == result.config.data.classes
    if "hidden layer" not in drawn.what:
        assert embeddings(grouped([run])[0], drawn, "pca", [], "")[0].caption.startswith("PCA of the class scores")


def test_details_equal_a_count_by_hand(tmp_path: Path) -> None:
    """Confusion, precision, recall and calibration, node by node."""
    config = small("fedavg", rounds=2)
    runner.run(config, out=tmp_path / "run")
    detail = row_detail(Row("fedavg", [read_run(tmp_path / "run")]))
    assert isinstance(detail, RowDetail)
    found = predicted(tmp_path / "run")
    confusion, bins = np.zeros((3, 3)), np.zeros((15, 3))
    for one in found.observations:
        for node in range(one.graph.num_nodes):
            if one.graph.test[node] and one.graph.y[node] >= 0:
                shares = torch.softmax(one.output[node].double(), 0)
                label, guess, confidence = int(one.graph.y[node]), int(shares.argmax()), float(shares.max())
                confusion[label, guess] += 1
                bins[min(int(np.ceil(confidence * 15)) - 1, 14)] += (1, label == guess, confidence)
    assert np.array_equal(detail.confusion, confusion)
    assert detail.calibration is not None
    assert np.allclose(detail.calibration, bins)
    for label in range(3):
        if confusion[label].sum():
            assert detail.by_class[label]["recall"] == [pytest.approx(confusion[label, label] / confusion[label].sum())]
    assert len(detail.parties) == 3
    error = np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum()
    assert detail.calibration_error == pytest.approx(error)


def test_details_of_all_seeds_come_from_their_results(runs: Path, tmp_path: Path) -> None:
    """Counts add up, metrics are kept seed by seed, and nothing is computed again."""
    found = []
    for seed in (0, 1):
        shutil.copytree(runs / f"fedavg-{seed}", tmp_path / str(seed))
        shutil.rmtree(tmp_path / str(seed) / "model")
        (tmp_path / str(seed) / "checkpoint.safetensors").unlink()
        rewrite_result(tmp_path / str(seed), detail=DETAIL)
        found.append(read_run(tmp_path / str(seed)))
    detail = row_detail(Row("fedavg", found))
    assert isinstance(detail, RowDetail)
    assert detail.classes == ["healthy", "sick"]
    assert detail.confusion.tolist() == [[16, 4], [2, 8]]
    assert detail.by_class[0]["recall"] == [0.8, 0.8]
    assert "average_precision" not in detail.by_class[1]
    assert (detail.items, detail.seeds, detail.recomputed) == ([10, 5], [0, 1], False)
    assert [sorted(party) for party in detail.parties] == [["accuracy", "auc", "macro_f1"], ["accuracy", "macro_f1"]]


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"classes": []},
        DETAIL | {"confusion": [[1, 2]]},
        DETAIL | {"confusion": [[1, 2], [1, "x"]]},
        DETAIL | {"by_class": None},
        DETAIL | {"classes": ["one"]},
    ],
)
def test_what_is_not_a_detail_is_not_shown(document: Any) -> None:
    """Another task's or a damaged one is not drawn as if it were a classification."""
    assert is_detail(DETAIL)
    assert not is_detail(document)


def changed_data(run: StoredRun) -> StoredRun:
    """The same model, but a graph drawn with another seed."""
    config = replace(run.config, seed=run.config.seed + 40)
    return StoredRun(run.path, run.text, replace(run.result, config=config))


def given_as_object(run: StoredRun) -> StoredRun:
    """The same model, but the data was an object in a program."""
    return StoredRun(run.path, run.text, replace(run.result, config=replace(run.config, dataset=GIVEN)))


def noised(run: StoredRun) -> StoredRun:
    """The same model, but its counts had noise."""
    config = replace(run.config, dp=replace(run.config.dp, evaluation_noise=1.0))
    return StoredRun(run.path, run.text, replace(run.result, config=config))


@pytest.mark.parametrize(
    ("change", "reason"),
    [(changed_data, "were reported"), (given_as_object, "the data is not here"), (noised, "counts are noised")],
)
def test_wrong_details_are_not_shown(change: Any, reason: str, runs: Path, tmp_path: Path) -> None:
    """Data that is elsewhere, data that is not the run's, counts that were meant to be noised: a reason instead of a figure."""
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    rewrite_result(tmp_path / "run", detail={})
    found = row_detail(Row("fedavg", [change(read_run(tmp_path / "run"))]))
    assert isinstance(found, str)
    assert reason in found


@pytest.mark.parametrize("name", ["model/model.safetensors", "model/model.json"])
def test_a_damaged_model_is_a_sentence(name: str, runs: Path, tmp_path: Path) -> None:
    """Not a traceback."""
    shutil.copytree(runs / "fedavg-0", tmp_path / "run")
    (tmp_path / "run" / name).write_bytes(b"{}")
    rewrite_result(tmp_path / "run", detail={})
    found = row_detail(Row("fedavg", [read_run(tmp_path / "run")]))
    assert isinstance(found, str)
    assert "damaged" in found


@pytest.mark.parametrize("algorithm", ["glasu", "fedlit_deep"])
def test_parties_of_evaluated_nodes_are_the_same_wherever_they_live(algorithm: str, tmp_path: Path) -> None:
    """One cohort or three sites: the same scores, classes and parties."""
    found = []
    for placement in ("together", "apart"):
        runner.run(small(algorithm, rounds=1, placement=placement), out=tmp_path / placement)
        found.append(recompute.hidden_of(predicted(tmp_path / placement)))
    one, three = ({(int(p), int(y), *np.round(v, 3)) for v, y, p in zip(*each[:3], strict=True)} for each in found if each)
    assert one == three
    assert {party for party, *_ in one} == {0, 1, 2}


def test_names_of_parties(runs: Path) -> None:
    """Those of the result; numbers are not names."""
    row = grouped([read_run(runs / "fedavg-0")])[0]
    assert partitions.party_names(row) == []
    named = StoredRun(row.runs[0].path, "", replace(row.runs[0].result, names=("a", "b", "c")))
    assert partitions.party_names(Row("x", [named])) == ["a", "b", "c"]
    assert json.loads((runs / "fedavg-0" / "result.json").read_text())["parties"] == 3


def test_maps_of_values_are_not_colored_by_class(tmp_path: Path) -> None:
    """A value is no class; the parties' map is there."""
    config = resolve("fedavg", dataset="csbm", parties=2, values={"nodes": 60, "rounds": 1, "hidden": 4, "target": "values"})
    runner.run(config, out=tmp_path / "run")
    stored = read_run(tmp_path / "run")
    drawn = recompute.embedding(stored, "pca", 20)
    assert not isinstance(drawn, str)
    assert [figure.name for figure in embeddings(grouped([stored])[0], drawn, "pca", ["income"], "")] == ["embedding-party"]
