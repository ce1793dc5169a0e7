"""Several labels or values per node: losses and metrics beside scikit-learn and a plain loop, and what every method promises."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn_metrics
from torch import Tensor

import atoll
from atoll import algorithms, wire
from atoll.data.graph_fields import from_fields, to_fields
from atoll.data.target_columns import with_targets
from atoll.errors import AtollError
from atoll.federation.fields import concatenate, sum_over_parties
from atoll.graphs.graph import Graph, stack
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.preparation import load_parties
from atoll.runs.runner import Result
from atoll.tasks import OF_TARGETS, TASKS, Task
from atoll.tasks.multilabel import NODES as LABELS
from atoll.tasks.regression import NodeRegression, given_scale
from small_targets import small_targets
from test_promises import partial

TARGETS = ("labels", "values")
USUAL = ("apfl", "centralized", "fedavg", "fedper", "gcfl", "moon", "scaffold")  # the others are tried in the wide sweep
METHODS = [
    name if name in USUAL else pytest.param(name, marks=pytest.mark.full)
    for name in algorithms.names()
    if "labels" in getattr(algorithms.find(name), "TARGETS", ())
]
EXTRA: dict[str, dict[str, Any]] = {"gcfl": {"mean_update_threshold": 1e9, "longest_update_threshold": 0.0}}
WHOLE = ("centralized",)


def task_of(target: str) -> Task:
    """The task of nodes."""
    return TASKS.find(OF_TARGETS[target]["node"])


def parts_of(config: Config) -> Graph:
    """The parties' graphs."""
    return load_parties(config)[0].parts


def results(config: Config, **change: Any) -> Result:
    """A run without files."""
    return runner.rounds(runner.prepare(config), **change)


def memory_of(result: Result) -> dict[str, Any]:
    """The memory of all parties, in party order."""
    return concatenate(list(result.memory.values()))


def ring(y_columns: Any, split: str = "t") -> Graph:
    """One party with these targets, all of its nodes test nodes (or those with a `t`)."""
    columns = torch.tensor(np.array(y_columns, np.float32))
    graph = atoll.load("csbm", nodes=max(len(columns), 2), features=2)
    graph = with_targets(graph.rows(torch.arange(len(columns))), columns)
    tested = torch.tensor([letter == "t" for letter in (split * len(columns))[: len(columns)]])
    return Graph(**{**{name: getattr(graph, name) for name in Graph.__dataclass_fields__}, "test": tested})


def judged(task: Task, out: Tensor, graph: Graph) -> dict[str, float]:
    """The pooled metrics."""
    return task.metrics({name: sum_over_parties(value) for name, value in task.counts(out, graph).items()})


LABELED = {
    "plain": [[1, 0], [0, 1], [1, 1], [0, 0], [1, 0]],
    "unknown": [[1, math.nan], [math.nan, 1], [1, 0], [0, math.nan], [0, 0]],
    "one class": [[1, 0], [1, 1], [1, 0], [1, 1], [1, 0]],
    "one item": [[1, 0]],
    "never": [[0, 0], [0, 0], [0, 0]],
}
SCORES = torch.tensor([[0.5, -1.0], [0.5, -1.0], [-2.0, 3.0], [0.0, 0.1], [-0.5, 0.1]])  # with ties


@pytest.mark.parametrize("name", LABELED)
def test_metrics_of_labels_are_those_of_scikit_learn(name: str) -> None:
    """Micro and macro F1, AUC, average precision and loss, with ties, unknown entries, one class, one item."""
    y = np.array(LABELED[name], float)
    graph, out = ring(y), SCORES[: len(y)]
    found, scores = judged(LABELS, out, graph), out.double().numpy()
    known = ~np.isnan(y)
    truth, decided = y[known], (scores >= 0)[known]
    if truth.any() or decided.any():
        assert found["micro_f1"] == pytest.approx(sklearn_metrics.f1_score(truth, decided))
    else:
        assert "micro_f1" not in found
    columns = [(y[rows, t], scores[rows, t]) for t, rows in enumerate(known.T)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f1 = [sklearn_metrics.f1_score(a, b >= 0, zero_division=np.nan) for a, b in columns]
    if not np.isnan(f1).all():
        assert found["macro_f1"] == pytest.approx(np.nanmean(f1))
    both = [(a, b) for a, b in columns if len(np.unique(a)) == 2]
    for metric, measure in (
        ("auc", sklearn_metrics.roc_auc_score),
        ("average_precision", sklearn_metrics.average_precision_score),
    ):
        assert (metric in found) == bool(both)  # left out where no label has both kinds, not ½
        if both:
            assert found[metric] == pytest.approx(np.mean([measure(a, b) for a, b in both]))
    shares = 1 / (1 + np.exp(-scores[known]))
    assert found["loss"] == pytest.approx(-np.mean(truth * np.log(shares) + (1 - truth) * np.log(1 - shares)), rel=1e-5)
    assert found["label_accuracy"] == pytest.approx((truth == decided).mean())


VALUED = {
    "plain": [[1.5, -3], [2, 4], [0, 5], [-2, 8], [1, 0]],
    "unknown": [[1.5, math.nan], [math.nan, 4], [0, 5], [-2, math.nan], [1, 1]],
    "alike": [[7, 1], [7, 2], [7, 3]],
    "one item": [[3, -1]],
}


@pytest.mark.parametrize("scale", ["none", "2:3", "2:3,-1:0.5"])
@pytest.mark.parametrize("name", VALUED)
def test_metrics_of_values_are_those_of_scikit_learn(name: str, scale: str) -> None:
    """RMSE, MAE and R² in the units of the data, means over the values; R² is left out where it cannot be said."""
    y = np.array(VALUED[name], float)
    task = NodeRegression(scale=given_scale(scale, 2))
    predicted = np.array([[0.5, -1], [2, 3], [1, 5], [-3, 6], [1, 1]])[: len(y)]
    out = torch.tensor(predicted).float()
    if task.scale:
        mean, deviation = np.array(task.scale).T
        out = torch.tensor((predicted - mean) / deviation).float()
    assert torch.allclose(task.predicted(out), torch.tensor(predicted).float(), atol=1e-5)
    found = judged(task, out, ring(y))
    columns = [(y[rows, t], predicted[rows, t]) for t, rows in enumerate(~np.isnan(y).T)]
    rmse = np.mean([math.sqrt(sklearn_metrics.mean_squared_error(a, b)) for a, b in columns])
    assert found["rmse"] == pytest.approx(rmse, rel=1e-5)
    assert found["mae"] == pytest.approx(np.mean([sklearn_metrics.mean_absolute_error(a, b) for a, b in columns]), rel=1e-5)
    varied = [(a, b) for a, b in columns if len(a) > 1 and np.ptp(a) > 0]
    assert ("r2" in found) == bool(varied)
    if varied:
        assert found["r2"] == pytest.approx(np.mean([sklearn_metrics.r2_score(a, b) for a, b in varied]), rel=1e-4)


@pytest.mark.parametrize("kind", ["labels", "squared", "huber"])
def test_the_loss_is_a_loop_over_parties_and_known_entries(kind: str) -> None:
    """Σ over parties of the mean over known entries; an unknown one has no gradient, and no NaN comes of it."""
    graph = parts_of(small_targets("fedavg", "labels" if kind == "labels" else "values"))
    task: Any = LABELS if kind == "labels" else NodeRegression(kind=kind, scale=((1.0, 2.0),) * 3)
    assert graph.y_columns is not None
    unknown = graph.y_columns.isnan()
    out = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scores = out.detach()
    loss = task.loss(out, graph)
    expected = 0.0
    for party in range(graph.parties):
        terms = []
        for row in (graph.train & (graph.party == party)).nonzero()[:, 0].tolist():
            for column in range(3):
                t, s = float(graph.y_columns[row, column]), float(scores[row, column])
                if math.isnan(t):
                    continue
                error = abs(s - (t - 1) / 2)
                share = 1 / (1 + math.exp(-s))
                terms.append(
                    {
                        "labels": -math.log(share if t else 1 - share),
                        "squared": error**2,
                        "huber": error**2 / 2 if error <= 1 else error - 0.5,
                    }[kind]
                )
        expected += sum(terms) / len(terms)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert out.grad is not None
    assert bool(unknown.any())
    assert not bool(out.grad[unknown | ~graph.train[:, None]].any())
    assert bool(torch.isfinite(out.grad).all())


def test_a_party_without_known_entries_counts_nothing() -> None:
    """Neither a loss nor a metric, and no NaN."""
    graph = parts_of(small_targets("fedavg", "labels"))
    assert graph.y_columns is not None
    bare = with_targets(graph, torch.where((graph.party == 1)[:, None], torch.nan, graph.y_columns))
    out = torch.randn(graph.num_nodes, 3)
    others = sum(float(LABELS.loss(out[graph.party == p], bare.select([p]))) for p in (0, 2))
    assert float(LABELS.loss(out, bare)) == pytest.approx(others, rel=1e-5)
    counts = LABELS.counts(out, bare)
    assert not bool(counts["labels"][1].any())
    assert LABELS.by_party(counts)["party_auc"][1] is None
    yes = with_targets(graph, torch.where((graph.party == 1)[:, None], 1.0, graph.y_columns))  # one kind only
    ranking = LABELS.counts(out, yes)["ranking"]
    assert not bool(ranking[1].any())  # (0, 0): left out, not ½
    assert bool((ranking[[0, 2]][..., 1] == 1).all())


@pytest.mark.parametrize("partition", ["metis", "random", "overlap", "whole"])
def test_targets_stay_with_their_nodes(partition: str) -> None:
    """However the graph is cut, and as it travels to another process."""
    algorithm, parties = ("centralized", None) if partition == "whole" else ("fedavg", 6)
    parts = parts_of(replace(small_targets(algorithm, "values"), partition=partition, parties=parties))
    source = load_parties(small_targets("fedavg", "values"))[0].source
    assert source.y_columns is not None
    for same in (parts, from_fields(to_fields(parts)), stack([parts.select([p]) for p in range(parts.parties)])):
        assert same.y_columns is not None
        assert torch.equal(same.y_columns.nan_to_num(-9), source.y_columns[same.ids].nan_to_num(-9))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("algorithm", METHODS)
def test_promises_hold_for_labels_and_values(algorithm: str, target: str) -> None:
    """Placement and amnesia change nothing; every round is finite and judged by the task's own score."""
    values = EXTRA.get(algorithm, {}) | ({"participation": 0.5} if partial(algorithm) else {})
    usual = results(small_targets(algorithm, target, **values))
    changes = [{"amnesia": "true"}] + ([] if algorithm in WHOLE else [{"placement": "apart"}])
    for change in changes:
        other = results(small_targets(algorithm, target, **values, **change))
        for (name, value), (_, same) in zip(wire.leaves(memory_of(usual)), wire.leaves(memory_of(other)), strict=True):
            torch.testing.assert_close(value, same, atol=1e-5, rtol=1e-5, msg=name)
        assert usual.bytes == other.bytes
        for row, same in zip(usual.rows, other.rows, strict=True):
            for name in ("val_loss", task_of(target).score):  # ranks, too: of few pairs a single flip would show
                assert row[name] == pytest.approx(same[name], rel=1e-4, abs=1e-6), name
    score = task_of(target).score
    assert all(math.isfinite(row[score]) and math.isfinite(row["val_loss"]) for row in usual.rows)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("algorithm", ["fedavg", "apfl", "scaffold"])
def test_resume_is_exact(algorithm: str, target: str, tmp_path: Path) -> None:
    """Broken off and resumed, a run has the same bits."""
    values = {**vars(small_targets(algorithm, target).run)}
    assert values["task"] == OF_TARGETS[target]["node"]
    config = small_targets(algorithm, target, rounds=4, checkpoint_every=1)
    whole = runner.run(config, out=tmp_path / "whole")
    runner.run(small_targets(algorithm, target, rounds=2, checkpoint_every=1), out=tmp_path / "cut")
    again = runner.resume(tmp_path / "cut", ending={"rounds": 4})
    for (name, value), (_, same) in zip(wire.leaves(whole.state), wire.leaves(again.state), strict=True):
        assert not isinstance(value, Tensor) or torch.equal(value, same), name
    assert whole.metrics == again.metrics


@pytest.mark.parametrize("target", TARGETS)
def test_secure_totals_give_the_same_metrics(target: str) -> None:
    """All that an evaluation sends are sums and (value, 1) pairs."""
    plain, secure = (results(small_targets("fedavg", target, secure=secure)) for secure in ("false", "true"))
    for row, same in zip(plain.rows, secure.rows, strict=True):
        for name in task_of(target).headings:
            assert row[name] == pytest.approx(same[name], rel=1e-3, abs=1e-4), name


@pytest.mark.parametrize("target", TARGETS)
def test_noised_evaluations_have_metrics(target: str) -> None:
    """Counts are clipped and noised within their declared bounds; shares stay shares."""
    noise = {"dp.verb": "fit", "dp.clip": 1, "dp.noise": 0.5, "dp.evaluation_noise": 0.5, "dp.evaluation_clip": 100}
    values = {"value_scale": "1:2"} if target == "values" else {}
    if target == "values":
        with pytest.raises(AtollError, match="needs exact sums, which noise"):
            small_targets("fedavg", target, **noise)
    result = results(small_targets("fedavg", target, **values, **noise))
    for row in result.rows:
        assert all(math.isfinite(value) for name, value in row.items() if isinstance(value, float)), row
        for name in ("auc", "micro_f1", "macro_f1", "label_accuracy"):
            assert 0 <= row.get(name, 0) <= 1


def test_values_are_scaled_by_the_federation() -> None:
    """Mean and deviation of all training values, whether totals are masked or not; 24·T bytes up, 16·T down, once."""
    graph = parts_of(small_targets("fedavg", "values"))
    assert graph.y_columns is not None
    known = graph.y_columns[graph.train].double().numpy()
    expected = np.stack([np.nanmean(known, 0), np.nanstd(known, 0)], 1)
    for secure in ("false", "true"):
        experiment = runner.prepare(small_targets("fedavg", "values", secure=secure))
        result = runner.rounds(experiment)
        np.testing.assert_allclose(np.array(experiment.federation.task.scale), expected, rtol=1e-4)  # type: ignore[attr-defined]
        assert "scale_of_values" not in result.trained.memory  # type: ignore[union-attr]
    sent = results(small_targets("fedavg", "values")).bytes["by_verb"]
    assert (sent["sum_values"]["up"], sent["set_value_scale"]["down"]) == (3 * 24 * 3, 3 * 16 * 3)
    assert not results(small_targets("fedavg", "values", value_scale="none")).bytes["by_verb"].keys() & {"sum_values"}


def test_methods_about_classes_refuse_in_one_sentence() -> None:
    """With what to do, before anything is read."""
    for algorithm in ("fedproto", "fedspray", "fedtad", "fedgta"):
        with pytest.raises(AtollError, match="about classes, not values; choose another algorithm"):
            small_targets(algorithm, "values")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target": "labels", "class_weight": "balanced"}, "class_weight is about classes"),
        ({"target": "labels", "threshold": "f1"}, "threshold is about classes"),
        ({"target": "labels", "value_scale": "0:1"}, "value_scale is about values"),
        ({"target": "class", "value_loss": "huber"}, "value_loss is about values"),
        ({"target": "values", "value_scale": "0:1,2"}, "not MEAN:DEVIATION"),
        ({"target": "values", "value_scale": "0:1,2:1"}, "2 pairs for 3 values"),
        ({"target": "values", "select_by": "auc"}, "not a metric of node-regression"),
        ({"target": "values", "task": "node-multilabel"}, "target is values"),
        ({"target": "numbers"}, "must be one of class, labels, values"),
        ({"target": "labels", "noise.label_noise": 0.2}, "changes classes"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], words: str) -> None:
    """One sentence each."""
    with pytest.raises(AtollError, match=words):
        results(small_targets("fedavg", **values))


def test_a_task_names_its_target() -> None:
    """`task=` alone is enough."""
    made = atoll.runs.config.resolve("fedavg", dataset="csbm", parties=3, values={"task": "node-regression"})
    assert made.data.target == "values"


@pytest.mark.parametrize("target", TARGETS)
def test_models_learn(target: str) -> None:
    """Better than the constant, on nodes that did not train."""
    values = {"nodes": 400, "unknown": 0.1, "hidden": 32, "lr": 0.02}
    result = results(small_targets("fedavg", target, rounds=40, **values))
    assert result.metrics[task_of(target).score] > (0.7 if target == "labels" else 0.3)


PEOPLE = """id,age,visits,label:smokes,label:drives,value:income,split
ann,0.3,2,1,0,31.5,train
bob,0.4,1,0,1,,train
cem,0.9,0,0,,54,train
dee,0.8,3,1,1,48.5,val
eva,0.2,2,0,0,12,test
fay,0.5,1,,1,40,test
gus,0.6,4,1,1,,test
hal,0.1,2,0,0,20.5,train
"""
NAMES = ("ann", "bob", "cem", "dee", "eva", "fay", "gus", "hal")
EDGES = "source,target\n" + "".join(f"{a},{b}\n" for a, b in itertools.pairwise(NAMES))


def people(folder: Path, nodes: str = PEOPLE) -> Path:
    """A folder of tables with labels and a value."""
    folder.mkdir()
    (folder / "nodes.csv").write_text(nodes)
    (folder / "edges.csv").write_text(EDGES)
    return folder


def own(folder: Path, target: str = "", **values: Any) -> Config:
    """A run on one's own folder."""
    chosen = {"rounds": 2, "hidden": 4, **({"target": target} if target else {}), **values}
    return atoll.runs.config.resolve("fedavg", dataset=str(folder), partition="whole", values=chosen)


def test_own_tables_name_labels_and_values(tmp_path: Path) -> None:
    """By their columns, which are no features; without a setting the labels are read, where there is no class."""
    folder = people(tmp_path / "people")
    labels, values = own(folder), own(folder, "values")
    assert (labels.run.task, values.run.task) == ("node-multilabel", "node-regression")
    graph = parts_of(labels)
    assert graph.class_names == ("smokes", "drives")
    assert graph.feature_names == ("age", "visits")
    assert graph.y_columns is not None
    assert graph.y_columns[2].isnan().tolist() == [False, True]
    income = parts_of(values)
    assert income.y_columns is not None
    assert income.y.tolist() == [0, -1, 0, 0, 0, 0, -1, 0]
    saved = tmp_path / "saved"
    for form in ("csv", "npz"):
        atoll.data.files.save(income, saved / form, form)
        again = parts_of(own(saved / form, "values", split="auto"))
        assert again.y_columns is not None
        assert torch.equal(again.y_columns.nan_to_num(-1), income.y_columns.nan_to_num(-1))


@pytest.mark.parametrize(
    ("change", "target", "words"),
    [
        (("0,1,,train", "0,maybe,,train"), "labels", "line 3 of .*is 'maybe', but a label is 1, 0 or empty"),
        (("48.5", "high"), "values", "line 5 of .*is 'high', but a value is a finite number or empty"),
        (("48.5", "inf"), "values", "is 'inf', but a value"),
        (("value:income", "income"), "values", "has no column `value:NAME`, which target=values needs"),
        (("value:income", "value:"), "values", "without a name"),
    ],
)
def test_wrong_columns_are_one_sentence(change: tuple[str, str], target: str, words: str, tmp_path: Path) -> None:
    """With the line, and what to write."""
    with pytest.raises(AtollError, match=words):
        results(own(people(tmp_path / "people", PEOPLE.replace(*change)), target))


@pytest.mark.parametrize("word", ["NA", "nan", "null"])
def test_missing_targets_are_written_as_missing_features_are(word: str, tmp_path: Path) -> None:
    """As an empty field, in labels and in values."""
    written = PEOPLE.replace("0,,54,", f"0,{word},54,").replace("0,1,,train", f"0,1,{word},train")
    assert written.count(word) == 2
    for target in ("labels", "values"):
        empty = parts_of(own(people(tmp_path / f"empty-{target}"), target, split="auto"))
        named = parts_of(own(people(tmp_path / f"named-{target}", written), target, split="auto"))
        assert empty.y_columns is not None
        assert named.y_columns is not None
        torch.testing.assert_close(named.y_columns, empty.y_columns, rtol=0, atol=0, equal_nan=True)


def test_values_may_have_decimal_commas(tmp_path: Path) -> None:
    """In tables that are separated by semicolons, as features may."""
    folder, points = people(tmp_path / "commas"), people(tmp_path / "points")
    for name in ("nodes.csv", "edges.csv"):
        written = (points / name).read_text().replace(",", ";")
        (folder / name).write_text(written.replace("31.5", "31,5").replace("48.5", "48,5").replace("20.5", "20,5"))
    read, expected = (parts_of(own(place, "values", split="auto")) for place in (folder, points))
    assert read.y_columns is not None
    assert expected.y_columns is not None
    torch.testing.assert_close(read.y_columns, expected.y_columns, rtol=0, atol=0, equal_nan=True)


def test_an_evaluation_without_test_items_says_so(tmp_path: Path) -> None:
    """What is judged then are items that the model was trained on."""
    for name, nodes in (("tested", PEOPLE), ("untested", PEOPLE.replace(",test", ",train"))):
        runner.run(own(people(tmp_path / name, nodes), "values", split="auto"), out=tmp_path / f"run-{name}")
        judged = atoll.load_model(tmp_path / f"run-{name}").evaluate()
        assert judged.tested == (name == "tested")
        assert ("no test nodes" in str(judged)) == (name == "untested")


def test_a_node_without_known_values_does_not_count_in_a_partys_weight() -> None:
    """Though a mask of PyG's `Data` says that it trains, as a row of a table that has a split."""
    from torch_geometric.data import Data

    y = torch.tensor([[1.0], [math.nan], [2.0], [math.nan]])
    train = torch.tensor([True, True, False, False])
    data = Data(x=torch.rand(4, 2), edge_index=torch.tensor([[0, 1], [1, 0]]), y=y, train_mask=train, test_mask=~train)
    graph = atoll.load(data, target="values")
    assert graph.train.tolist() == [True, False, False, False]
    assert graph.test.tolist() == [False, False, True, False]


def test_a_list_of_graphs_of_which_one_has_no_target_is_refused_with_its_number() -> None:
    """It is not taken for one graph per party."""
    from torch_geometric.data import Data

    edge = torch.tensor([[0], [1]])
    several = [Data(x=torch.rand(2, 3), edge_index=edge, y=torch.tensor([0.5 * number])) for number in range(4)]
    several[2].y = None
    with pytest.raises(AtollError, match=r"graph 2 has no `y`; set data.y, NaN where it is not known"):
        atoll.run("fedavg", dataset=several, parties=2, rounds=1)


@pytest.mark.parametrize("target", TARGETS)
def test_predictions_give_the_reported_metrics(target: str, tmp_path: Path) -> None:
    """Of the training data and of new nodes, in the units of the data; exports compute the same."""
    folder = people(tmp_path / "people", PEOPLE.replace("0,1,,train", "0,1,30,train").replace("1,1,,test", "1,1,7,test"))
    result = runner.run(own(folder, target, rounds=4), out=tmp_path / "run")
    model = atoll.load_model(tmp_path / "run")
    table = model.predict()
    assert tuple(table["id"]) == NAMES
    judged = model.evaluate()
    for name, value in judged.overall.items():
        assert value == pytest.approx(result.metrics[name], rel=1e-5), name
    tested = table[table["split"] == "test"]
    if target == "values":
        error = (tested["value[income]"] - tested["predicted[income]"]).dropna()
        assert math.sqrt((error**2).mean()) == pytest.approx(result.metrics["rmse"], rel=1e-5)
        assert table[["value[income]"]].to_csv(index=False).splitlines()[1] == "31.5"  # as the user wrote it
    else:
        assert ((tested["p[drives]"] >= 0) & (tested["p[drives]"] <= 1)).all()
        assert table["label[drives]"].isna().tolist() == [False, False, True, *[False] * 5]
    assert str(judged).startswith(f"{judged.items} nodes, node-")
    new = people(tmp_path / "new")
    again = model.predict(new).set_index("id")
    column = "predicted[income]" if target == "values" else "p[smokes]"
    assert again[column].to_numpy() == pytest.approx(table.set_index("id").loc[again.index, column].to_numpy(), rel=1e-5)
    bare = people(tmp_path / "bare", "id,age,visits\n" + "".join(f"{name},0.5,1\n" for name in NAMES))
    assert len(model.predict(bare)) == 8
    model.export("safetensors", tmp_path / "export")
    graph = parts_of(own(folder, target))
    code = "import numpy, load; x, e = (numpy.load(f'{n}.npy') for n in 'xe'); "
    code += f"print(load.{'predicted' if target == 'values' else 'probabilities'}(x, e)[:, 0].tolist())"
    np.save(tmp_path / "export" / "x.npy", graph.dense_features(torch.arange(8)).numpy())
    np.save(tmp_path / "export" / "e.npy", graph.edge_index.numpy())
    shown = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "export", capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == pytest.approx(table[column].tolist(), rel=1e-4)


def test_folders_of_parties_need_the_same_labels(tmp_path: Path) -> None:
    """In any order; what one of them lacks is said."""
    (tmp_path / "all").mkdir()
    people(tmp_path / "all" / "a")
    other = PEOPLE.replace("label:smokes,label:drives", "label:drives,label:smokes")
    people(tmp_path / "all" / "b", other.replace("\n", "\n2").rstrip("2"))
    (tmp_path / "all" / "b" / "edges.csv").write_text("source,target\n2ann,2bob\n")
    made = atoll.runs.config.resolve("fedavg", dataset=str(tmp_path / "all"), partition="files", values={"rounds": 1})
    assert made.run.task == "node-multilabel"
    graph = parts_of(made)
    assert graph.y_columns is not None
    assert torch.equal(graph.y_columns[:8].nan_to_num(-1), graph.y_columns[8:].flip(1).nan_to_num(-1))
    renamed = other.replace("\n", "\n2").rstrip("2").replace("label:drives", "label:rides")
    (tmp_path / "all" / "b" / "nodes.csv").write_text(renamed)
    with pytest.raises(AtollError, match=r"has the label or value 'rides', which .*; give both the same columns"):
        parts_of(made)


def test_a_data_of_pyg_has_labels_or_values() -> None:
    """`y` with one row per node, as float."""
    pyg = pytest.importorskip("torch_geometric.data")
    y = torch.tensor([[1.0, 0], [math.nan, 1], [0, 0], [1, 1], [0, 1], [1, 0]])
    data = pyg.Data(x=torch.rand(6, 3), edge_index=torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]), y=y)
    labels = atoll.run("fedavg", dataset=data, partition="whole", rounds=1, target="labels", hidden=4)
    assert "micro_f1" in labels.metrics or "label_accuracy" in labels.metrics
    data.y = torch.rand(6)
    values = atoll.run("fedavg", dataset=data, partition="whole", rounds=1, target="values", hidden=4)
    assert values.metrics["rmse"] > 0
    with pytest.raises(AtollError, match=r"a label is 0\.\d+; give 1, 0, or NaN"):
        atoll.run("fedavg", dataset=data, partition="whole", rounds=1, target="labels")
