"""New nodes get the form that the model was trained with: its columns by name, its encoding, its classes, known neighbors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from messy import patients, write

from atoll.data import files
from atoll.data.encoding import Encoding
from atoll.data.encoding_fit import fit_locally
from atoll.data.new_nodes import InputForm, party_sources, read_new
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph

pytestmark = pytest.mark.filterwarnings("ignore:.*encoded as inferred", "ignore:.*unseen or rare in training")
TOML = (
    '[admitted]\nkind = "date"\nformat = "%d/%m/%Y"\nmissing = ["unknown"]\n[patient]\nkind = "id"\n[outcome]\nkind = "label"\n'
)


def trained(folder: Path, features: str = "") -> tuple[Graph, InputForm]:
    """The training data, encoded, and what a model of it expects."""
    frame = patients(200)
    if features:
        frame = frame.rename(columns={"id": "patient", "label": "outcome"})
        frame["admitted"] = pd.to_datetime(frame["admitted"]).dt.strftime("%d/%m/%Y").fillna("unknown")
        folder.mkdir()
        frame.to_csv(folder / "nodes.csv", index=False)
        (folder / "edges.csv").write_text("source,target\np-0000,p-0001\np-0001,p-0002\n")
        (folder / "features.toml").write_text(features)
    else:
        write(frame, folder)
    graph = files.read(folder)
    assert graph.table is not None
    encoding = Encoding.from_dict(fit_locally(graph.table).to_dict())  # as it is stored
    encoded = encoding.encode(graph)
    return encoded, InputForm(encoded.num_features, 2, encoded.feature_names, encoded.class_names, encoding)


def test_rows_of_the_training_table_have_the_same_features(tmp_path: Path) -> None:
    """Three of them, in another order of columns, without labels: nothing is inferred or fitted again."""
    graph, form = trained(tmp_path / "clinic")
    few = patients(200).iloc[[7, 3, 150]].drop(columns="label")[["ward", "admitted", "id", "year", "smoker", "charge", "age"]]
    new = read_new(write(few, tmp_path / "new"), form)
    assert new.count == 3
    assert torch.equal(torch.as_tensor(new.graph.x), torch.as_tensor(graph.x)[[7, 3, 150]])
    assert new.graph.node_names is not None
    assert new.graph.node_names.tolist() == ["p-0007", "p-0003", "p-0150"]
    assert new.graph.feature_names == graph.feature_names
    assert (new.graph.num_classes, new.graph.class_names, new.graph.y.tolist()) == (2, ("home", "ward"), [-1, -1, -1])


def test_what_features_toml_said_is_remembered(tmp_path: Path) -> None:
    """Formats of dates, texts for missing values, columns that are id and label: the new folder needs no features.toml."""
    graph, form = trained(tmp_path / "clinic", TOML)
    new = read_new(tmp_path / "clinic", form)
    (tmp_path / "clinic/features.toml").unlink()
    again = read_new(tmp_path / "clinic", form)
    for one in (new, again):
        assert torch.equal(torch.as_tensor(one.graph.x), torch.as_tensor(graph.x))
        assert torch.equal(one.graph.y, graph.y)
        assert torch.equal(one.graph.edge_index, graph.edge_index)


def test_unknown_categories_are_other(tmp_path: Path) -> None:
    """A value that training did not see has no column of its own."""
    _, form = trained(tmp_path / "clinic")
    assert form.columns is not None
    few = patients(200).iloc[:2].assign(ward=["moon base", "icu"])
    sentence = r"nodes\.csv: column `ward`: 1 row has a value unseen or rare in training \(moon base\); counted as other"
    with pytest.warns(AtollWarning, match=sentence):
        x = torch.as_tensor(read_new(write(few, tmp_path / "new"), form).graph.x)
    wards = [place for place, name in enumerate(form.columns) if name.startswith("ward=")]
    assert form.columns[int(x[1, wards].argmax()) + wards[0]] == "ward=icu"
    assert "ward=other" in form.columns
    assert x[0, list(form.columns).index("ward=other")] == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda frame: frame.drop(columns="age"), "has no column `age`, which the model was trained with; add it"),
        (lambda frame: frame.drop(columns=["age", "ward"]), r"has no column `age` \(and 1 more\)"),
        (lambda frame: frame.assign(age="old"), "Column `age` in line 2 of .* is 'old', which is not a finite number"),
        (
            lambda frame: frame.assign(label="dead"),
            "Label 'dead' in line 2 of .* is not a class of the model, which knows home, ward",
        ),
        (lambda frame: frame.assign(id="same"), "Node id 'same'"),
        (lambda frame: frame.iloc[:0], "has no nodes"),
    ],
)
def test_tables_that_do_not_fit(change: Any, sentence: str, tmp_path: Path) -> None:
    """Each is one sentence that says where."""
    _, form = trained(tmp_path / "clinic")
    folder = tmp_path / "new"
    folder.mkdir()
    change(patients(200).iloc[:3]).to_csv(folder / "nodes.csv", index=False)
    with pytest.raises(AtollError, match=sentence):
        read_new(folder, form)


def test_further_columns_and_missing_edges_are_told(tmp_path: Path) -> None:
    """They are not used; nodes without edges are predicted by themselves."""
    _, form = trained(tmp_path / "clinic")
    folder = tmp_path / "new"
    folder.mkdir()
    patients(200).iloc[:3].assign(height=1.8, weight=70).to_csv(folder / "nodes.csv", index=False)
    with pytest.warns(AtollWarning) as told:
        new = read_new(folder, form)
    assert new.graph.edge_index.shape == (2, 0)
    texts = [str(each.message) for each in told]
    assert any("the model was not trained with `height`, `weight`, which is not used" in text for text in texts)
    assert any("has no table `edges`: its nodes are predicted by themselves" in text for text in texts)


NUMBERS = pd.DataFrame(
    {"id": ["a", "b", "c", "d"], "x": [1.0, 2, 3, 4], "y2": [5.0, 6, 7, 8], "label": ["no", "yes", "no", "yes"]}
)
KNOWN = InputForm(2, 2, ("x", "y2"), ("no", "yes"))


def numbers(folder: Path, frame: pd.DataFrame = NUMBERS, edges: str = "source,target\na,b\nb,c\n") -> Path:
    """A folder of plain numbers."""
    folder.mkdir(parents=True)
    frame.to_csv(folder / "nodes.csv", index=False)
    (folder / "edges.csv").write_text(edges)
    return folder


def test_plain_columns_are_matched_by_name(tmp_path: Path) -> None:
    """In any order, from tables and from an .npz with names; classes as well."""
    frame = NUMBERS[["y2", "label", "x", "id"]].assign(label=["yes", "", "yes", "yes"])
    new = read_new(numbers(tmp_path / "new", frame), KNOWN).graph
    assert torch.as_tensor(new.x).tolist() == [[1, 5], [2, 6], [3, 7], [4, 8]]
    assert new.y.tolist() == [1, -1, 1, 1]
    files.save(replace(new, x=torch.as_tensor(new.x)[:, [1, 0]], feature_names=("y2", "x")), tmp_path / "archive")
    again = read_new(tmp_path / "archive", KNOWN).graph
    assert torch.as_tensor(again.x).tolist() == torch.as_tensor(new.x).tolist()
    assert again.node_names is not None
    assert again.node_names.tolist() == ["a", "b", "c", "d"]


def test_an_archive_needs_no_labels(tmp_path: Path) -> None:
    """x and edges are enough; a wrong number of columns is told."""
    np.savez(tmp_path / "new.npz", x=np.ones((3, 2), np.float32), edge_index=np.array([[0], [1]]))
    assert read_new(tmp_path / "new.npz", KNOWN).graph.y.tolist() == [-1, -1, -1]
    np.savez(tmp_path / "wide.npz", x=np.ones((3, 5), np.float32), edge_index=np.array([[0], [1]]))
    with pytest.raises(AtollError, match=r"wide.npz has 5 columns, but the model was trained with 2"):
        read_new(tmp_path / "wide.npz", KNOWN)


def test_features_are_normalized_as_in_training(tmp_path: Path) -> None:
    """Each row is divided by its sum."""
    new = read_new(numbers(tmp_path / "new"), replace(KNOWN, normalize=True)).graph
    assert torch.as_tensor(new.x).sum(1).tolist() == pytest.approx([1] * 4)


def grown() -> tuple[pd.DataFrame, str]:
    """Two new nodes, one of them connected to known ones, and one known node that is listed again."""
    frame = pd.DataFrame({"id": ["new", "alone", "c"], "x": [9.0, 8, 30], "y2": [1.0, 1, 1]})
    return frame, "source,target\nnew,a\nd,new\nnew,c\n"


def test_edges_to_known_nodes_bring_their_graph(tmp_path: Path) -> None:
    """The new nodes come first; the rest of the known graph follows, with its edges, those of the repeated node included."""
    known = files.read(numbers(tmp_path / "old"))
    asked: list[Any] = []

    def context(names: Any) -> Graph:
        asked.append(tuple(names))
        return known

    new = read_new(numbers(tmp_path / "new", *grown()), KNOWN, context)
    assert asked == [("a", "d")]
    names = new.graph.node_names
    assert names is not None
    assert (new.count, names.tolist()) == (3, ["new", "alone", "c", "a", "b", "d"])
    edges = {frozenset(names[list(edge)]) for edge in new.graph.edge_index.T.tolist()}
    assert edges == {frozenset(pair) for pair in (("new", "a"), ("d", "new"), ("new", "c"), ("a", "b"), ("b", "c"))}
    assert torch.as_tensor(new.graph.x)[:, 0].tolist() == [9, 8, 30, 1, 2, 4]
    assert (new.graph.parties, len(torch.unique(new.graph.ids))) == (1, 6)


def test_without_known_data_an_unknown_end_is_told(tmp_path: Path) -> None:
    """As at a site, which keeps no copy of its data."""
    with pytest.raises(AtollError, match=r"The source 'd' in line 3 of .* is not a node of nodes.csv"):
        read_new(numbers(tmp_path / "new", *grown()), KNOWN)


def test_one_folder_per_party(tmp_path: Path) -> None:
    """A folder that holds graphs in folders; a graph's own folder is one."""
    numbers(tmp_path / "all/bank")
    numbers(tmp_path / "all/shop")
    (tmp_path / "all/notes").mkdir()
    found = party_sources(tmp_path / "all")
    assert found is not None
    assert sorted(found) == ["bank", "shop"]
    assert party_sources(tmp_path / "all/bank") is None
    assert party_sources({"bank": 1}) == {"bank": 1}


@pytest.mark.parametrize(
    "change",
    [
        lambda each: each["column"].update(kind="riddle"),
        lambda each: each["column"].update(color="red"),
        lambda each: each["column"].update(name=7),
        lambda each: each.update(std=0.0),
        lambda each: each.update(low="low"),
        lambda each: each.update(mean=float("nan")),
        lambda each: each.update(missing="yes"),
        lambda each: each.update(buckets=[-1]),
        lambda each: each.pop("labels"),
    ],
)
def test_a_stored_encoding_is_checked(change: Any, tmp_path: Path) -> None:
    """Whatever is wrong is one sentence, before anything is encoded."""
    _, form = trained(tmp_path / "clinic")
    assert form.encoding is not None
    document = form.encoding.to_dict()
    change(next(each for each in document["columns"] if each["column"]["name"] == "ward"))
    with pytest.raises(AtollError, match="The stored encoding of the columns cannot be read"):
        Encoding.from_dict(document)


@pytest.mark.parametrize(
    ("edges", "weight"),
    [
        ("z,a,2\nz,a,3\n", 5.0),  # parallel: added
        ("z,a,2\na,z,3\n", 3.0),  # both directions: the larger
        ("z,a,2\nz,a,3\na,z,4\n", 5.0),
    ],
)
@pytest.mark.filterwarnings("ignore:.*another weight in the other direction", "ignore:.*repeated edge")
def test_weights_of_edges_to_known_nodes_are_those_of_training(edges: str, weight: float, tmp_path: Path) -> None:
    """As if the whole graph had been read at once."""
    header, old = "source,target,weight\n", "a,b,2\nb,c,0.5\n"
    known = files.read(numbers(tmp_path / "old", edges=header + old))
    new = NUMBERS.iloc[:1].assign(id="z")
    form = replace(KNOWN, edge_weights=True)
    found = read_new(numbers(tmp_path / "new", new, header + edges), form, lambda names: known).graph
    whole = files.read(numbers(tmp_path / "whole", pd.concat([new, NUMBERS]), header + old + edges))
    assert whole.edge_weight is not None
    assert found.edge_weight is not None
    assert found.edge_index.tolist() == whole.edge_index.tolist()
    assert found.edge_weight.tolist() == whole.edge_weight.tolist()
    assert weight in found.edge_weight.tolist()


def test_dataframes_and_networkx_are_read_like_folders(tmp_path: Path) -> None:
    """The same columns, encoding, names and edges, also to known nodes; no features.toml is needed again."""
    networkx = pytest.importorskip("networkx")
    graph, form = trained(tmp_path / "clinic", TOML)
    nodes = pd.read_csv(tmp_path / "clinic/nodes.csv").iloc[[7, 3, 150]]
    edges = pd.DataFrame({"source": ["p-0007", "p-0003"], "target": ["p-0003", "p-0001"]})
    folder = tmp_path / "new"
    folder.mkdir()
    nodes.to_csv(folder / "nodes.csv", index=False)
    edges.to_csv(folder / "edges.csv", index=False)
    drawn = networkx.Graph()
    for row in nodes.rename(columns={"patient": "id", "outcome": "label"}).to_dict("records"):
        drawn.add_node(row.pop("id"), **row)
    expected = read_new(folder, form, lambda names: graph)
    inner = edges.iloc[:1]
    drawn.add_edges_from(inner.to_numpy().tolist())
    for data in ((nodes, edges), (edges, nodes), {"nodes": nodes, "edges": edges}):
        found = read_new(data, form, lambda names: graph)
        assert party_sources(data) is None
        assert (found.count, found.graph.edge_index.tolist()) == (3, expected.graph.edge_index.tolist())
        assert torch.equal(torch.as_tensor(found.graph.x), torch.as_tensor(expected.graph.x))
    alone = read_new(drawn, form)
    assert alone.graph.edge_index.tolist() == [[0, 1], [1, 0]]
    for each in (alone, read_new(nodes, form)):
        assert torch.equal(torch.as_tensor(each.graph.x), torch.as_tensor(graph.x)[[7, 3, 150]])
        assert each.graph.node_names is not None
        assert each.graph.node_names.tolist() == ["p-0007", "p-0003", "p-0150"]
    with pytest.raises(AtollError, match="target 'p-0001' in row 1 of DataFrames/edges is not a node of nodes, and"):
        read_new((nodes, edges), form)
    with pytest.raises(AtollError, match=r"data is a int; give a folder, .*NetworkX"):
        read_new(5, form)


def test_columns_that_only_the_sites_know(tmp_path: Path) -> None:
    """Numbers are taken in their order; anything else says where the encoding is."""
    form = InputForm(2, 2, None, ("no", "yes"), at_sites=True)
    with pytest.warns(AtollWarning, match="does not know the names of its columns"):
        assert read_new(numbers(tmp_path / "plain"), form).count == 4
    for name, frame in (("text", NUMBERS.assign(x="icu")), ("more", NUMBERS.assign(z=1.0))):
        with pytest.raises(AtollError, match=r"the server's folder does not hold how the sites encode theirs; predict at a site"):
            read_new(numbers(tmp_path / name, frame), form)
