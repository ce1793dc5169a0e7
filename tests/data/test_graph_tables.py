"""The user's own small graphs, with a class, labels or values: tables, PyG's lists, sites, predictions of new graphs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import algorithms, wire
from atoll.deploy.site_data import load_run
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.federation.fields import concatenate
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.runs import config as configurations
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.preparation import load_parties
from atoll.runs.stored_shards import cut

KINDS = ("class", "labels", "values")
TASKS = {"class": "graph-classification", "labels": "graph-multilabel", "values": "graph-regression"}
USUAL = ("apfl", "centralized", "fedavg", "gcfl")  # the others are tried in the wide sweep
METHODS = [
    name if name in USUAL else pytest.param(name, marks=pytest.mark.full)
    for name in algorithms.names()
    if "labels" in getattr(algorithms.find(name), "TARGETS", ()) and "graph" in getattr(algorithms.find(name), "LEVELS", ())
]


def write(folder: Path, graphs: int = 30, seed: int = 0, columns: str = "label,value:weight,label:toxic,label:soluble") -> Path:
    """Molecules: the first column of their nodes says the class; nodes stand in another order than graphs."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    lines: dict[str, list[str]] = {"graphs": [f"id,{columns}"], "nodes": ["id,graph,a,b"], "edges": ["source,target"]}
    nodes, count = [], 0
    for graph in range(graphs):
        size, known = int(rng.integers(1, 6)), graph % 3 > 0
        values = {
            "label": "yes" if graph % 2 else "no",
            "value:weight": f"{size + rng.random():.3f}" if known else "",
            "label:toxic": str(graph % 2),
            "label:soluble": str(int(rng.integers(0, 2))) if known else "",
            "split": ("train", "train", "val", "test")[graph % 4],
        }
        lines["graphs"].append(",".join([f"m{graph}", *(values[name] for name in columns.split(","))]))
        for node in range(size):
            nodes.append(f"n{seed}.{count + node},m{graph},{graph % 2 + rng.random():.3f},{rng.random():.3f}")
            if node:
                lines["edges"].append(f"n{seed}.{count + node - 1},n{seed}.{count + node}")
        count += size
    lines["nodes"] += [nodes[index] for index in rng.permutation(len(nodes))]
    for name, rows in lines.items():
        (folder / f"{name}.csv").write_text("\n".join(rows) + "\n")
    return folder


def own(folder: Any, target: str = "", algorithm: str = "fedavg", parties: int | None = 3, **values: Any) -> Config:
    """A small run."""
    chosen = {"rounds": 3, "hidden": 8, "layers": 2, "batch_size": 4, **({"target": target} if target else {}), **values}
    return configurations.resolve(algorithm, dataset=str(folder), parties=parties, values=chosen)


def parts_of(made: Config) -> Graph:
    """The parties' graphs."""
    return load_parties(made)[0].parts


def memory_of(result: Any) -> dict[str, Any]:
    """The memory of all parties, in party order."""
    return concatenate(list(result.memory.values()))


@pytest.mark.parametrize("target", KINDS)
def test_a_folder_of_graphs(target: str, tmp_path: Path) -> None:
    """Every node is in its graph, every graph has what its row says."""
    folder = write(tmp_path / "all")
    made = own(folder, target)
    assert made.run.task == TASKS[target]
    assert own(folder).run.task == "graph-classification"
    graph = parts_of(made)
    assert graph.graph_names is not None
    assert graph.graph_ptr is not None
    assert graph.feature_names == ("a", "b")
    first = graph.dense_features(torch.arange(graph.num_nodes))[:, 0]
    for row, name in enumerate(graph.graph_names):
        number = int(name[1:])
        mine = first[graph.graph_ptr[row] : graph.graph_ptr[row + 1]]
        assert bool(((mine >= number % 2) & (mine <= number % 2 + 1)).all())
        if target == "class":
            assert graph.y[row] == number % 2
        elif target == "labels":
            assert graph.y_columns is not None
            assert float(graph.y_columns[row, 0]) == number % 2
            assert bool(graph.y_columns[row, 1].isnan()) == (number % 3 == 0)
        else:
            assert graph.y_columns is not None
            assert bool(graph.y_columns[row, 0].isnan()) == (number % 3 == 0)
            assert not bool(graph.train[row] and graph.y_columns[row, 0].isnan())
    assert runner.rounds(runner.prepare(made)).metrics


def test_the_data_keeps_its_own_split(tmp_path: Path) -> None:
    """A column `split` of `graphs`."""
    graph = parts_of(own(write(tmp_path / "all", columns="label,split"), parties=2))
    assert graph.graph_names is not None
    roles = torch.stack([graph.train, graph.val, graph.test]).int().argmax(0)
    assert roles.tolist() == [(0, 0, 1, 2)[int(name[1:]) % 4] for name in graph.graph_names]


@pytest.mark.parametrize("target", ["labels", "values"])
@pytest.mark.parametrize("algorithm", METHODS)
def test_promises_hold_for_labels_and_values_of_graphs(algorithm: str, target: str, tmp_path: Path) -> None:
    """Placement and amnesia, with batches and uneven parties."""
    folder, slow = write(tmp_path / "all"), {"lr": 0.001}  # of SGD, which some of them take, a larger one diverges
    parties, changes = (3, ("amnesia", "placement")) if algorithm != "centralized" else (3, ("amnesia",))
    usual = runner.rounds(runner.prepare(own(folder, target, algorithm, parties, **slow)))
    for change in changes:
        value = {"amnesia": "true", "placement": "apart"}[change]
        other = runner.rounds(runner.prepare(own(folder, target, algorithm, parties, **slow, **{change: value})))
        for (name, one), (_, two) in zip(wire.leaves(memory_of(usual)), wire.leaves(memory_of(other)), strict=True):
            torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5, msg=name)
        assert usual.bytes == other.bytes
    assert all(math.isfinite(row["val_loss"]) for row in usual.rows)


@pytest.mark.parametrize("target", KINDS)
def test_predictions_of_new_graphs(target: str, tmp_path: Path) -> None:
    """Those of training again give the same outputs; what is predicted need not be known."""
    folder = write(tmp_path / "all")
    result = runner.run(own(folder, target), out=tmp_path / "run")
    model = atoll.load_model(tmp_path / "run")
    table = model.predict().set_index("id")
    column = {"class": "p[yes]", "labels": "p[toxic]", "values": "predicted[weight]"}[target]
    new = model.predict(folder, 0).set_index("id")  # whose layers around the convolutions are its own
    mine = table[table["party"] == 0]
    assert new.loc[mine.index, column].to_numpy() == pytest.approx(mine[column].to_numpy(), rel=1e-4)
    known = new[{"class": "label", "labels": "label[soluble]", "values": "value[weight]"}[target]]
    assert bool(known.notna().any())
    (folder / "graphs.csv").write_text("id\n" + "".join(f"m{number}\n" for number in range(30)))
    bare = model.predict(folder, 0).set_index("id")
    assert bare[column].to_numpy() == pytest.approx(new[column].to_numpy())
    with pytest.raises(AtollError, match=r"holds no graphs\.csv"):
        model.predict(tmp_path, 0)
    assert result.metrics


def test_shards_keep_graphs_with_values_and_names(tmp_path: Path) -> None:
    """Cut, then run: the same history, and the graphs' names."""
    folder = write(tmp_path / "all")
    made = replace(own(folder, "values"), partition="random", parties=2)
    cut(made, load_parties(made)[0], tmp_path / "shards")
    stored = configurations.resolve("fedavg", dataset=str(tmp_path / "shards"), values={"rounds": made.run.rounds, "patience": 0})
    stored = replace(stored, settings=made.settings, run=made.run)
    assert stored.run.task == "graph-regression"
    data = load_parties(made)[0].parts
    assert load_parties(stored)[0].parts.graph_names.tolist() == data.graph_names.tolist()
    one, other = (runner.rounds(runner.prepare(each)) for each in (made, stored))
    assert one.metrics == other.metrics


def test_personal_models_ask_whose_graphs_are_new(tmp_path: Path) -> None:
    """A party's name or number."""
    folder = write(tmp_path / "all")
    runner.run(own(folder, "values", "local"), out=tmp_path / "run")
    model = atoll.load_model(tmp_path / "run")
    with pytest.raises(AtollError, match="say whose the new graphs are: --party"):
        model.predict(folder)
    assert not np.allclose(model.predict(folder, 0)["predicted[weight]"], model.predict(folder, 1)["predicted[weight]"])


BROKEN = {
    "graphs": [("m3,", "m2,", "Graph id 'm2' in line 5 of .* was already used")],
    "nodes": [(",m4,", ",m99,", "The graph 'm99' in line .* is not a graph of graphs.csv")],
    "edges": [("n0.0,n0.1", "n0.0,n0.60", "joins nodes of two graphs"), ("n0.0,", "zoe,", "is not a node of nodes.csv")],
}


@pytest.mark.parametrize("name", BROKEN)
def test_mistakes_in_tables_are_one_sentence(name: str, tmp_path: Path) -> None:
    """With the line."""
    for index, (old, fresh, words) in enumerate(BROKEN[name]):
        folder = write(tmp_path / f"{index}")
        path = folder / f"{name}.csv"
        path.write_text(path.read_text().replace(old, fresh))
        with pytest.raises(AtollError, match=words):
            parts_of(own(folder))


def test_a_graph_without_nodes_and_labels_by_class_are_refused(tmp_path: Path) -> None:
    """And a task of nodes."""
    folder = write(tmp_path / "all")
    with pytest.raises(AtollError, match="goes by class, and these graphs have labels or values"):
        parts_of(replace(own(folder, "labels"), partition="dirichlet"))
    with pytest.raises(AtollError, match="holds many small graphs, for graph-multilabel"):
        own(folder, task="node-multilabel")
    path = folder / "graphs.csv"
    path.write_text(path.read_text() + "empty,yes,1,0,1\n")
    with pytest.raises(AtollError, match=r"The graph 'empty' of .* has no nodes"):
        parts_of(own(folder))


@pytest.mark.parametrize("target", KINDS)
def test_a_site_has_the_graphs_of_the_simulation(target: str, tmp_path: Path) -> None:
    """From its own folder: the same items, targets and split."""
    for number, name in enumerate("ab"):
        write(tmp_path / "all" / name, seed=number)
    simulated = configurations.resolve("fedavg", dataset=str(tmp_path / "all"), partition="files", values={"target": target})
    parts = parts_of(simulated)
    at_site = replace(simulated, partition="horizontal")
    classes = parts.num_classes
    graph, scenario, _ = load_run(tmp_path / "all" / "b", at_site, Schema(2, classes, 2), Parties([1]), {}, None, b"", print)
    there = parts.select([1])
    assert scenario == "horizontal"
    for field in ("edge_index", "y", "train", "val", "test", "graph_ptr", "y_columns", "majority"):
        here, other = getattr(graph, field), getattr(there, field)
        assert (here is None and other is None) or torch.equal(here.nan_to_num(-1), other.nan_to_num(-1)), field


@pytest.mark.parametrize("target", KINDS)
def test_a_list_of_pygs_graphs(target: str) -> None:
    """With one `y` each: the task follows from what it is; a list of graphs of nodes is still one graph per party."""
    pyg = pytest.importorskip("torch_geometric.data")
    rng = np.random.default_rng(0)
    several = []
    for number in range(24):
        size = int(rng.integers(2, 6))
        y = {
            "class": torch.tensor([number % 2]),
            "labels": torch.tensor([[number % 2, math.nan if number % 5 == 0 else 1.0]]),
            "values": torch.tensor(number / 7),
        }[target]
        edges = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        several.append(pyg.Data(x=torch.rand(size, 3) + number % 2, edge_index=edges, y=y))
    values: dict[str, Any] = {"rounds": 2, "hidden": 4, "layers": 1}
    result = atoll.run("fedavg", dataset=several, parties=2, **values)
    assert result.config.run.task == TASKS[target]
    assert len(result.model().predict()) == 24
    assert len(result.model().predict(several[:3], 1)) == 3
    bare = [pyg.Data(x=each.x, edge_index=each.edge_index) for each in several[:2]]
    assert len(result.model().predict(bare, 1)) == 2
    with pytest.raises(AtollError, match="graph 1 has 2 features and graph 0 has 3"):
        atoll.run(
            "fedavg", dataset=[several[0], pyg.Data(x=torch.rand(4, 2), edge_index=several[1].edge_index[:, :0], y=several[1].y)]
        )


ODD = {  # what is odd about graph 5 of a list → its field, and words of the sentence; None: it is taken
    "y is text": ({"y": "yes"}, "`y` of graph 5 is a str that is not numbers"),
    "y is a Python number": ({"y": 1}, None),
    "y has more entries": ({"y": torch.tensor([[1, 0]])}, "`y` has 1 entries at graph 0 and others elsewhere"),
    "a class below -1": ({"y": torch.tensor([-2])}, "`y` holds numbers that are not classes"),
    "edges between rows": ({"edge_index": torch.tensor([[0.5], [1.0]])}, "graph 5 has an edge_index that is not two rows"),
    "an edge to no node": ({"edge_index": torch.tensor([[0], [2]])}, "graph 5 has an edge_index that is not two rows"),
    "an edge per row": ({"edge_index": torch.tensor([[0, 1], [1, 0], [0, 0]])}, "graph 5 has an edge_index that is not two"),
    "no edges": ({"edge_index": torch.empty(2, 0, dtype=torch.long)}, None),
    "loops and repeats": ({"edge_index": torch.tensor([[0, 0, 0], [0, 1, 1]])}, None),
    "one node": ({"x": torch.ones(1, 3), "edge_index": torch.empty(2, 0, dtype=torch.long)}, None),
    "no node": ({"x": torch.ones(0, 3), "edge_index": torch.empty(2, 0, dtype=torch.long)}, "graph 5 has no nodes"),
    "features in one row": ({"x": torch.ones(2)}, "graph 5: the features have shape"),
    "a feature is NaN": ({"x": torch.full((2, 3), math.nan)}, "graph 5: feature 0 of node 0 is NaN"),
    "whole features": ({"x": torch.ones(2, 3, dtype=torch.long)}, None),
}


@pytest.mark.parametrize("name", ODD)
def test_a_list_with_an_odd_graph_is_taken_or_refused_with_its_number(name: str) -> None:
    """In one sentence."""
    pyg = pytest.importorskip("torch_geometric.data")
    usual = {"x": torch.ones(2, 3), "edge_index": torch.tensor([[0], [1]])}
    several = [
        pyg.Data(**{**usual, "y": torch.tensor([number % 2]), **(ODD[name][0] if number == 5 else {})}) for number in range(12)
    ]
    words = ODD[name][1]
    if words is None:
        assert atoll.run("fedavg", dataset=several, parties=2, rounds=1, hidden=4, layers=1).rounds == 1
    else:
        with pytest.raises(AtollError, match=words):
            atoll.run("fedavg", dataset=several, parties=2, rounds=1, hidden=4, layers=1)


def test_graphs_that_nobody_has_labeled_are_refused_by_that(tmp_path: Path) -> None:
    """Fewer parties would not help; and who brings a folder is told to label some there."""
    pyg = pytest.importorskip("torch_geometric.data")
    for unknown in (torch.tensor([-1]), torch.tensor([math.nan])):
        several = [pyg.Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]), y=unknown) for _ in range(12)]
        with pytest.raises(AtollError, match=r"None of the 12 graphs has a known label or value; give some of them one\."):
            atoll.run("fedavg", dataset=several, parties=2, rounds=1)
    labeled = "id,label\n" + "".join(f"g{number},{'ab'[number % 2]}\n" for number in range(6))
    for name, graphs in (("north", labeled), ("south", labeled.replace(",a", ",").replace(",b", ","))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "graphs.csv").write_text(graphs)
        (tmp_path / name / "classes.txt").write_text("a\nb\n")
        (tmp_path / name / "nodes.csv").write_text("id,graph,x\n" + "".join(f"n{k},g{k},1\n" for k in range(6)))
        (tmp_path / name / "edges.csv").write_text("source,target\n")
    with pytest.raises(AtollError, match=r"Party south has 6 graphs but no known label or value of one; label some there or"):
        atoll.run("fedavg", dataset=str(tmp_path), partition="files", rounds=1)


@pytest.mark.parametrize("target", KINDS)
def test_sites_with_graphs_of_their_own(target: str, tmp_path: Path) -> None:
    """The numbers of the simulation, and afterwards predictions of graphs at each site with its own layers."""
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")
    from atoll.deploy import launch
    from atoll.deploy.site import Site
    from atoll.engines.remote import RemoteEngine
    from sites import DirectCarrier

    columns = {"class": "label", "labels": "label:toxic,label:soluble", "values": "value:weight"}[target]
    for number, name in enumerate("abc"):
        write(tmp_path / "all" / name, 16, seed=number, columns=columns)
        if target == "class":
            (tmp_path / "all" / name / "classes.txt").write_text("no\nyes\n")
    values = {"target": target, "rounds": 2, "hidden": 8, "layers": 2, "average": "pooled"}
    simulated = configurations.resolve("fedavg", dataset=str(tmp_path / "all"), partition="files", values=values)
    result = runner.run(simulated, out=tmp_path / "run")
    names = {"algorithm": "fedavg", "run": {"task": TASKS[target], "rounds": 2}}
    deployed = launch.deployment_config(names, "run.toml", ["a", "b", "c"])
    deployed = replace(deployed, settings=simulated.settings, run=simulated.run, split=simulated.split)
    sites = {f"site-{n}": Site(tmp_path / f"site-{n}", tmp_path / "all" / name) for n, name in enumerate("abc")}
    schema = Schema(2, parts_of(simulated).num_classes, 3, alike=True)
    roster = {f"site-{n}": [n] for n in range(3)}
    engine = RemoteEngine(DirectCarrier(sites), roster, deployed.to_dict(), schema, timeout=5.0, exact=False)
    there = runner.rounds(runner.build_experiment(deployed, engine, schema, None, "horizontal"))
    engine.finish()
    for name in ("val_loss", "loss"):
        assert there.metrics[name] == pytest.approx(result.metrics[name], rel=1e-5)
    (folder,) = (tmp_path / "site-1").glob("*/model")
    here = atoll.load_model(folder).predict(tmp_path / "all" / "b")
    whole = atoll.load_model(tmp_path / "run").predict(party="b")
    column = {"class": "p[yes]", "labels": "p[toxic]", "values": "predicted[weight]"}[target]
    assert list(here["id"]) == list(whole["id"])
    np.testing.assert_allclose(here[column].to_numpy(), whole[column].to_numpy(), rtol=1e-4)


@pytest.mark.parametrize("target", ["labels", "values"])
def test_secure_and_noised_graphs(target: str, tmp_path: Path) -> None:
    """Masked totals give the same metrics; noised counts give finite ones."""
    folder, pooled = write(tmp_path / "all"), {"average": "pooled"}
    plain, secure = (runner.rounds(runner.prepare(own(folder, target, secure=value, **pooled))) for value in ("false", "true"))
    for name in ("val_loss", "loss"):
        assert [row[name] for row in plain.rows] == pytest.approx([row[name] for row in secure.rows], rel=1e-3)
    noise = {"dp.verb": "fit", "dp.clip": 1, "dp.noise": 0.5, "dp.evaluation_noise": 0.5, "dp.evaluation_clip": 100}
    scale = {"value_scale": "3:2"} if target == "values" else {}
    noised = runner.rounds(runner.prepare(own(folder, target, **pooled, **noise, **scale)))
    assert all(math.isfinite(value) for row in noised.rows for value in row.values() if isinstance(value, float))
