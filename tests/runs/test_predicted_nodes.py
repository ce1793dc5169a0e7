"""From folders: nodes that arrive next week, with edges to known ones, in one folder per party, in vertical columns."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import atoll
from atoll.data import files
from atoll.errors import AtollError, AtollWarning
from atoll.runs.trained import TrainedModel

NAMES = ("bank", "hospital", "shop")


def graph_of(seed: int, prefix: str, nodes: int = 40) -> Any:
    """A graph with named nodes, columns and classes."""
    graph = atoll.load("csbm", nodes=nodes, features=6, degree=4, classes=3, graph_seed=seed)
    names = np.array([f"{prefix}{row}" for row in range(nodes)], object)
    return replace(graph, node_names=names, feature_names=tuple("abcdef"), class_names=("low", "mid", "high"))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per party, as tables."""
    root = tmp_path_factory.mktemp("parties")
    for seed, name in enumerate(NAMES):
        files.save(graph_of(seed, f"{name}-"), root / name, "csv")
        nodes = pd.read_csv(root / name / "nodes.csv").drop(columns=["index", "split"])
        nodes.to_csv(root / name / "nodes.csv", index=False)
    return root


def trained(folders: Path, out: Path, algorithm: str, **settings: Any) -> TrainedModel:
    """A model of these folders, read from its run's folder."""
    atoll.run(algorithm, dataset=str(folders), partition="files", rounds=2, out=out, **settings)
    return atoll.load_model(out)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_names_survive(algorithm: str, folders: Path, tmp_path: Path) -> None:
    """Of parties, nodes and classes, on the training data and on the folders as new data; the probabilities are the same."""
    model = trained(folders, tmp_path / "run", algorithm)
    known, new = model.predict(), model.predict(folders)
    for table in (known, new):
        assert table["id"].tolist() == [f"{name}-{row}" for name in NAMES for row in range(40)]
        assert table["party"].tolist() == [name for name in NAMES for _ in range(40)]
        assert list(table.columns[5:]) == ["p[low]", "p[mid]", "p[high]"]
        assert set(table["class"]) <= {"low", "mid", "high"}
    assert new["label"].tolist() == known["label"].tolist()
    assert new["split"].isna().all()
    assert new.filter(like="p[").to_numpy() == pytest.approx(known.filter(like="p[").to_numpy(), abs=1e-5)
    one = model.predict(folders / "shop", party="shop")
    assert one.filter(like="p[").to_numpy() == pytest.approx(known[80:].filter(like="p[").to_numpy(), abs=1e-5)
    with pytest.raises(AtollError, match=r"has no party 'stop'.*shop"):
        model.predict(folders / "shop", party="stop")


def test_a_party_that_joined_later(folders: Path, tmp_path: Path) -> None:
    """A model for all predicts it, whatever its name; personal ones have none for it."""
    files.save(graph_of(7, "museum-"), tmp_path / "new/museum", "parquet")
    table = trained(folders, tmp_path / "a", "fedavg").predict(tmp_path / "new")
    assert (set(table["party"]), len(table)) == ({"museum"}, 40)
    with pytest.raises(AtollError, match="has no party 'museum'"):
        trained(folders, tmp_path / "b", "local").predict(tmp_path / "new")


def arrivals(folder: Path, edges: list[tuple[str, str]]) -> Path:
    """Two new nodes."""
    new = graph_of(11, "new-", 2)
    files.save(replace(new, edge_index=torch.zeros(2, 0, dtype=torch.int64), y=torch.full((2,), -1)), folder, "csv")
    pd.read_csv(folder / "nodes.csv").drop(columns=["index", "split", "label"]).to_csv(folder / "nodes.csv", index=False)
    pd.DataFrame(edges, columns=["source", "target"]).to_csv(folder / "edges.csv", index=False)
    return folder


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "fedstar", "centralized"])
def test_edges_to_known_nodes(algorithm: str, folders: Path, tmp_path: Path) -> None:
    """As the whole grown graph of the party, written out by hand; its known nodes are not in the table."""
    model = trained(folders, tmp_path / "run", algorithm)
    edges = [("new-0", "hospital-3"), ("hospital-5", "new-1"), ("new-0", "new-1")]
    data, party = arrivals(tmp_path / "new", edges), None if algorithm == "centralized" else "hospital"
    grown = tmp_path / "grown"
    grown.mkdir()
    for table in ("nodes", "edges"):
        both = [pd.read_csv(folder / f"{table}.csv") for folder in (data, folders / "hospital")]
        pd.concat(both).to_csv(grown / f"{table}.csv", index=False)
    expected = model.predict(grown, party=party).iloc[:2]
    found = model.predict(data, party=party)
    assert found["id"].tolist() == ["new-0", "new-1"]
    assert found["label"].isna().all()
    assert found.filter(like="p[").to_numpy() == pytest.approx(expected.filter(like="p[").to_numpy(), abs=1e-5)
    alone = model.predict(arrivals(tmp_path / "alone", []), party=party)
    assert not np.allclose(alone["p[low]"], found["p[low]"])
    if algorithm == "fedavg":
        assert model.predict(data).filter(like="p[").to_numpy() == pytest.approx(found.filter(like="p[").to_numpy(), abs=1e-5)


def test_edges_to_nodes_that_nobody_knows(folders: Path, tmp_path: Path) -> None:
    """Or that another party has."""
    model = trained(folders, tmp_path / "run", "fedavg")
    data = arrivals(tmp_path / "new", [("new-0", "hospital-3"), ("new-1", "nobody")])
    with pytest.raises(AtollError, match=r"'nobody' in line 3 of .* is neither a new node nor a node of the training data"):
        model.predict(data)
    with pytest.raises(AtollError, match=r"'hospital-3' in line 2 of .* is neither a new node nor a node of the party bank"):
        model.predict(arrivals(tmp_path / "other", [("new-0", "hospital-3")]), party="bank")


def test_a_known_node_of_several_parties(tmp_path: Path) -> None:
    """It has to be said whose graph is meant."""
    for seed, name in enumerate(NAMES):
        files.save(graph_of(seed, "n-"), tmp_path / "parties" / name, "csv")
        nodes = pd.read_csv(tmp_path / "parties" / name / "nodes.csv").drop(columns=["index", "split"])
        nodes.to_csv(tmp_path / "parties" / name / "nodes.csv", index=False)
    model = trained(tmp_path / "parties", tmp_path / "run", "fedavg", scenario="horizontal")
    data = arrivals(tmp_path / "new", [("new-0", "n-1")])
    with pytest.raises(AtollError, match=r"'n-1' in line 2 of .* is a node of several parties; say with --party whose"):
        model.predict(data)
    assert len(model.predict(data, party="shop")) == 2


def test_edges_to_nodes_of_parties_that_share_others(tmp_path: Path) -> None:
    """Each named node is of one party, but the graphs around them have nodes in common: whose is meant has to be said."""
    for name, start in (("left", 0), ("right", 20)):
        graph = graph_of(0, "n-")
        graph = replace(graph, node_names=np.array([f"n-{start + row}" for row in range(40)], object))
        files.save(graph, tmp_path / "parties" / name, "csv")
        nodes = pd.read_csv(tmp_path / "parties" / name / "nodes.csv").drop(columns=["index", "split", "label"])
        nodes["label"] = ["low", "mid", "high", "low"] * 10
        nodes.to_csv(tmp_path / "parties" / name / "nodes.csv", index=False)
    model = trained(tmp_path / "parties", tmp_path / "run", "fedavg", scenario="horizontal")
    data = arrivals(tmp_path / "new", [("new-0", "n-1"), ("new-1", "n-59")])
    with pytest.raises(AtollError, match=r"nodes of several parties, which share nodes \('n-20' is one.*--party"):
        model.predict(data)
    assert len(model.predict(arrivals(tmp_path / "one", [("new-0", "n-1")]))) == 2


def test_users_that_joined_later(tmp_path: Path) -> None:
    """One node per party: the server's model and the new edges are enough for GFL-APPNP."""
    files.save(graph_of(0, "u-"), tmp_path / "users", "csv")
    atoll.run("gfl_appnp", dataset=str(tmp_path / "users"), partition="node", split="random", rounds=2, out=tmp_path / "run")
    model = atoll.load_model(tmp_path / "run")
    near = model.predict(arrivals(tmp_path / "near", [("new-0", "u-1"), ("u-2", "new-1")]))
    alone = model.predict(arrivals(tmp_path / "alone", []))
    assert near["id"].tolist() == alone["id"].tolist() == ["new-0", "new-1"]
    assert not np.allclose(near["p[low]"], alone["p[low]"])


@pytest.fixture(scope="module")
def columns(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Vertical folders: the same customers, other columns, one of which needs an encoding."""
    root = tmp_path_factory.mktemp("columns")
    rng = np.random.default_rng(0)
    ids = [f"c{row}" for row in range(60)]
    bank = pd.DataFrame({"id": ids, "income": rng.normal(size=60), "job": rng.choice(["clerk", "nurse"], 60)})
    bank["label"] = np.where(bank["income"] > 0, "yes", "no")
    shop = pd.DataFrame({"id": ids[::-1], "visits": rng.integers(0, 9, 60), "basket": rng.normal(size=60)})
    shop["label"] = bank["label"].to_numpy()[::-1]
    for name, frame in (("bank", bank), ("shop", shop)):
        (root / name).mkdir()
        frame.to_csv(root / name / "nodes.csv", index=False)
        pd.DataFrame({"source": ids[:-1], "target": ids[1:]}).to_csv(root / name / "edges.csv", index=False)
    return root


@pytest.mark.filterwarnings("ignore:.*encoded as inferred", "ignore:.*reveals the label", "ignore:.*the label")
@pytest.mark.parametrize("algorithm", ["glasu", "standalone", "centralized_vertical"])
def test_vertical_folders(algorithm: str, columns: Path, tmp_path: Path) -> None:
    """Each party's columns are encoded as its own were; who cannot do without the others says so."""
    settings = {"label_holder": 0} if algorithm == "glasu" else {}
    atoll.run(algorithm, dataset=str(columns), partition="files", scenario="vertical", split="random", rounds=2, hidden=8,
              out=tmp_path / "run", **settings)  # fmt: skip
    model = atoll.load_model(tmp_path / "run")
    documents = json.loads((tmp_path / "run/model/model.json").read_text())["preprocessing"]["parties"]
    assert [document is None for document in documents] == [False, True]
    known, again = model.predict(), model.predict(columns)
    assert set(known["id"]) == {f"c{row}" for row in range(60)}
    assert again["id"].tolist() == known["id"].tolist()
    assert again.filter(like="p[").to_numpy() == pytest.approx(known.filter(like="p[").to_numpy(), abs=1e-5)
    if algorithm == "glasu":
        assert set(known["party"]) == {"bank"}
        with pytest.raises(AtollError, match=r"one folder per party \(bank, shop\)"):
            model.predict(columns / "bank")
        with pytest.raises(AtollError, match=r"are all needed, and some are missing \(party 1: no data of it is given\)"):
            model.predict({"bank": columns / "bank"})
    if algorithm == "standalone":
        alone = model.predict(columns / "shop", party="shop")
        here = known[known["party"] == "shop"].set_index("id").loc[alone["id"]]
        assert alone.filter(like="p[").to_numpy() == pytest.approx(here.filter(like="p[").to_numpy(), abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*encoded as inferred")
def test_a_model_that_does_not_know_its_columns_says_so(folders: Path) -> None:
    """Trained on numbers without names, it takes columns in the order of the file."""
    model = atoll.run("fedavg", dataset="csbm", nodes=60, features=6, classes=3, partition="random", parties=2, rounds=1).model()
    bare = replace(graph_of(0, "n-"), class_names=None)
    with pytest.warns(AtollWarning, match="does not know the names of its columns; they are taken in the order of the file"):
        assert len(model.predict(bare)) == 40
