"""Datasets as objects: what people have in Python becomes the graph that the same data in a file would be."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import atoll
from atoll.data import files
from atoll.data.federated import federate
from atoll.data.script_data import ScriptData
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph
from atoll.runs.config import resolve
from graphs import dense, edge_set, make_graph, same

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData, InMemoryDataset

GRAPH = make_graph(40, 120, seed=0)


def data_of(graph: Graph, **more: Any) -> Data:
    """The graph as PyG has it, with its split."""
    masks = {"train_mask": graph.train, "val_mask": graph.val, "test_mask": graph.test}
    return Data(x=dense(graph), edge_index=graph.edge_index, y=graph.y, **masks, **more)


def party(rows: range, **more: Any) -> Data:
    """Some of the nodes as PyG has them, with their numbers."""
    part = GRAPH.rows(torch.arange(rows.start, rows.stop))
    return data_of(part, n_id=part.ids, **more)


def parts_of(dataset: Any, algorithm: str = "fedavg", **values: Any) -> Any:
    """The federated data of a list of graphs."""
    scenarios = {"fedavg": ("horizontal", "overlapping"), "fedgl": ("overlapping", "horizontal"), "glasu": ("vertical",)}
    config = resolve(algorithm, dataset="given", partition="files", values=values)
    return federate(config, ScriptData(dataset), scenarios[algorithm])


class Listed(InMemoryDataset):
    """A dataset of PyG that is in memory alone."""

    def __init__(self, graphs: list[Data]) -> None:
        super().__init__(None)
        self.data, self.slices = self.collate(graphs)


def test_one_graph_of_pyg() -> None:
    """A Data, and a dataset that holds one; its numbers of nodes stay rows."""
    assert same(atoll.load(data_of(GRAPH)), GRAPH)
    assert same(atoll.load(data_of(GRAPH, n_id=torch.arange(40) + 7)), GRAPH)
    assert same(atoll.load(Listed([data_of(GRAPH)])), GRAPH)
    with pytest.raises(AtollError, match=r"has 2 graphs, .* dataset\[0\], or list\(dataset\)"):
        atoll.load(Listed([data_of(GRAPH)] * 2))


def test_settings_of_data_hold_for_objects(recwarn: pytest.WarningsRecorder) -> None:
    """`directed`, `normalize_features` and names of columns and classes."""
    data = data_of(GRAPH, feature_names=[f"c{number}" for number in range(7)], class_names=["a", "b", "c"])
    data.edge_index = torch.tensor([[0, 1], [1, 2]])
    assert edge_set(atoll.load(data, directed=True)) == {(0, 1), (1, 2)}
    graph = atoll.load(data, normalize_features=True)
    assert graph.feature_names == tuple(data.feature_names)
    assert graph.class_names == ("a", "b", "c")
    assert torch.allclose(dense(graph).abs().sum(1).clamp(max=1).round(), (data.x.abs().sum(1) > 0).float())
    config = resolve("fedavg", dataset="given", partition="whole", values={"directed": True})
    assert federate(config, ScriptData(data), ("horizontal",)).parts.edge_index.shape[1] == 2
    assert not recwarn.list


@pytest.mark.parametrize("fold", [0, 1, 2])
def test_folds_are_honored_everywhere(tmp_path: Path, fold: int) -> None:
    """A Data, a list of parties, an .npz, folders of parties: column `fold` of (N, k) masks; another fold is refused."""
    part = torch.arange(40) % 3
    masks = {name: torch.stack([(part + shift + k) % 3 == 0 for k in range(3)], 1) for shift, name in enumerate(("a", "b", "c"))}
    train, val, test = masks.values()
    data = Data(x=torch.randn(40, 2), edge_index=torch.tensor([[0], [1]]), y=part, train_mask=train, val_mask=val, test_mask=test)
    arrays = {"x": data.x.numpy(), "edge_index": data.edge_index.numpy(), "y": part.numpy()}
    for name in ("one", "parties/north", "parties/south"):
        (tmp_path / name).mkdir(parents=True)
        stored = {"train": train.numpy(), "val_mask": val.numpy(), "test": test.numpy()}
        np.savez(tmp_path / name / "graph.npz", **arrays, **stored)
    whole = [atoll.load(data, fold=fold), atoll.load(tmp_path / "one", fold=fold)]
    folders = resolve("fedavg", dataset=str(tmp_path / "parties"), partition="files", values={"fold": fold})
    listed = [parts_of([data, data], fold=fold).parts, federate(folders, None, ("horizontal",)).parts]
    for graph in whole + [parts.select([number]) for parts in listed for number in range(2)]:
        assert torch.equal(graph.train, train[:, fold])
        assert torch.equal(graph.val, val[:, fold])
        assert torch.equal(graph.test, test[:, fold])
    for dataset in (data, [data, data], tmp_path / "one"):
        with pytest.raises(AtollError, match="3 splits, numbered from 0; there is no fold 3"):
            atoll.load(dataset, fold=3)


def test_a_fold_that_the_data_does_not_have(tmp_path: Path) -> None:
    """One split, or none, is fold 0."""
    files.save(GRAPH, tmp_path / "csv", "csv")
    for dataset in (data_of(GRAPH), GRAPH, tmp_path / "csv", nx.Graph([(0, 1)])):
        with pytest.raises(AtollError, match="1 split, numbered from 0; there is no fold 1"):
            atoll.load(dataset, fold=1)


def test_own_masks_of_parties_are_used() -> None:
    """One graph per party: each keeps its split; a party without one gets a random one."""
    data = parts_of([party(range(20)), party(range(20, 40))])
    assert (data.scenario, data.parts.sizes, data.names) == ("horizontal", [20, 20], ())
    for name in ("train", "val", "test"):
        assert torch.equal(getattr(data.parts, name), getattr(GRAPH, name))
    assert torch.equal(data.parts.ids, GRAPH.ids)
    bare = party(range(20, 40))
    del bare.train_mask, bare.val_mask, bare.test_mask
    parts = parts_of([party(range(20)), bare]).parts
    assert torch.equal(parts.train[:20], GRAPH.train[:20])
    assert bool(parts.train[20:].any())
    with pytest.warns(AtollWarning, match="Party [01] has a split of its own, which split='random' replaces"):
        parts_of({"0": party(range(20)), "1": party(range(20, 40))}, split="random")


def test_shared_nodes_are_recognized() -> None:
    """`n_id` says that parties share nodes; without it, or with names, too."""
    shared = [party(range(25)), party(range(15, 40))]
    data = parts_of(shared, "fedgl")
    assert data.scenario == "overlapping"
    assert data.parts.ids.tolist() == [*range(25), *range(15, 40)]
    with pytest.raises(AtollError, match="Party 0 and Party 1 both have a node '15'"):
        parts_of(shared)
    assert parts_of(shared, scenario="horizontal").parts.ids.tolist() == list(range(50))
    for one in shared:
        one.name = [f"node {number}" for number in one.n_id.tolist()]
        del one.n_id
    with pytest.warns(AtollWarning, match="matched by id"):
        assert parts_of(shared, "fedgl").parts.ids.tolist() == [*range(25), *range(15, 40)]


def test_vertical_parties_are_matched_by_name_or_row() -> None:
    """Each party's own columns of the same nodes."""
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    first, second = data_of(GRAPH, n_id=GRAPH.ids), data_of(GRAPH.rows(order), n_id=order)
    first.x, second.x = first.x[:, :4], second.x[:, 4:]
    data = parts_of([first, second], "glasu")
    assert (data.scenario, data.parts.widths) == ("vertical", (4, 3))
    assert torch.equal(data.parts.x[40:, :3], dense(GRAPH)[:, 4:])


def test_paths_and_graphs_and_names(tmp_path: Path) -> None:
    """A list of paths is the folder of these folders; a dict names the parties; a Graph of several parties is a list."""
    for name, rows in (("north", range(20)), ("south", range(20, 40))):
        files.save(GRAPH.rows(torch.arange(rows.start, rows.stop)), tmp_path / name)
    config = resolve("fedavg", dataset=str(tmp_path), partition="files")
    expected = federate(config, None, ("horizontal",))
    listed = parts_of([tmp_path / "north", str(tmp_path / "south")])
    named = parts_of({"north": party(range(20)), "south": party(range(20, 40))})
    blocks = parts_of(expected.parts)
    for data in (listed, named, blocks):
        assert same(data.parts, expected.parts)
    assert expected.names == listed.names == named.names
    assert blocks.names == ()
    assert same(atoll.load([tmp_path / "north", tmp_path / "south"]), expected.parts)
    with pytest.raises(AtollError, match="Party 1 already holds 2 parties"):
        parts_of([GRAPH, expected.parts])


def test_graphs_that_only_count_their_rows_share_no_nodes() -> None:
    """Two Graphs with ids 0, 1, 2, … are two graphs."""
    assert parts_of([GRAPH, GRAPH]).parts.ids.tolist() == list(range(80))


def test_classes_of_several_graphs() -> None:
    """Of one script's graphs the classes are put together; a graph without labels has them, too."""
    first, second = party(range(20), class_names=["a", "b", "c"]), party(range(20, 40), class_names=["c", "b", "d"])
    parts = parts_of([first, second]).parts
    assert parts.class_names == ("a", "b", "c", "d")
    assert parts.num_classes == 4
    names = [parts.class_names[label] if label >= 0 else "" for label in parts.y.tolist()]
    wanted = [("abc"[label] if label >= 0 else "") for label in first.y] + [
        ("cbd"[label] if label >= 0 else "") for label in second.y
    ]
    assert names == wanted


FRAMES = (
    pd.DataFrame(
        {
            "id": ["ann", "bob", "cem", "dee"],
            "age": [31, 44, None, 52],
            "ward": ["icu", "icu", "hall", "hall"],
            "label": ["yes", "no", "yes", None],
            "split": ["train", "val", "test", ""],
        }
    ),
    pd.DataFrame({"source": ["ann", "bob", "cem"], "target": ["bob", "cem", "dee"]}),
)


@pytest.mark.filterwarnings("ignore:.*encoded as inferred")
def test_frames_are_read_as_the_same_tables_in_a_folder(tmp_path: Path) -> None:
    """Two DataFrames, in either order, or a dict, or a NetworkX graph: the graph of nodes.csv and edges.csv, table and all."""
    nodes, edges = FRAMES
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    net = nx.Graph(zip(edges.source, edges.target, strict=True))
    attributes = nodes.set_index("id").astype(object).where(nodes.set_index("id").notna(), None)
    nx.set_node_attributes(net, attributes.to_dict("index"))
    wanted = files.read(tmp_path)
    indexed = nodes.set_index("id")
    for given in (FRAMES, [edges, nodes], {"nodes": nodes, "edges": edges}, (indexed, edges), net):
        config = resolve("fedavg", dataset="given", partition="whole")
        found = federate(config, ScriptData(given), ("horizontal",)).parts
        assert same(found, wanted)
        assert found.table is not None
        assert wanted.table is not None
        assert found.table.columns == wanted.table.columns
        assert found.table.names == wanted.table.names
        assert np.array_equal(found.table.values, wanted.table.values, equal_nan=True)
        assert same(atoll.load(given), atoll.load(tmp_path))


def test_what_a_dict_says_of_columns_and_classes() -> None:
    """`features` is features.toml, `classes` classes.txt; pandas' type category says the same."""
    nodes, edges = FRAMES
    nodes = nodes.drop(columns="ward").assign(age=[1.0, 2.0, 2.0, 1.0]).rename(columns={"label": "outcome"})
    features = {"age": {"kind": "category", "min_count": 1}, "outcome": {"kind": "label"}}
    graph = atoll.load({"nodes": nodes, "edges": edges, "features": features, "classes": ["yes", "no"]})
    assert set(graph.feature_names or ()) == {"age=1", "age=2"}
    assert graph.class_names == ("yes", "no")
    assert graph.y.tolist() == [0, 1, 0, -1]
    typed = atoll.load((nodes.drop(columns="outcome").assign(age=pd.Categorical([1, 2, 2, 1] * 1), split=""), edges))
    assert typed.feature_names == ("age=other",)
    with pytest.raises(AtollError, match="must be a table with a kind"):
        atoll.load({"nodes": nodes, "edges": edges, "features": {"age": 3}})
    with pytest.raises(AtollError, match=r"has a part 'feature'; a graph is a dict of nodes, edges, features, classes"):
        atoll.load({"nodes": nodes, "edges": edges, "feature": {}})


@pytest.mark.filterwarnings("ignore:.*encoded as inferred")
def test_parties_as_frames_are_encoded_together() -> None:
    """One encoding for all, also where one party's columns are plain numbers."""
    plain = pd.DataFrame({"id": ["x", "y"], "age": [1.0, 3.0], "ward": ["icu", "icu"], "label": ["no", "no"]})
    other = (plain, pd.DataFrame({"source": ["x"], "target": ["y"]}))
    result = atoll.run("fedavg", dataset={"north": FRAMES, "south": other}, rounds=1, train=1.0, val=0.0, test=0.0)
    assert result.parties == 2
    together = atoll.load([FRAMES, other])
    assert together.feature_names is not None
    assert "age=missing" in together.feature_names
    assert together.class_names == ("no", "yes")
    assert together.y.tolist() == [1, 0, 1, -1, 0, 0]


def test_an_edge_list_alone() -> None:
    """Its nodes have a degree, and no labels."""
    edges = FRAMES[1]
    with pytest.warns(AtollWarning, match="they have no labels, and their degree is the only feature"):
        graph = atoll.load(edges)
    assert dense(graph)[:, 0].tolist() == [1, 2, 2, 1]
    assert graph.feature_names == ("degree",)
    with (
        pytest.warns(AtollWarning),
        pytest.raises(AtollError, match=r"^No node has a class to learn .*--set task=link-prediction\.$"),
    ):
        atoll.run("fedavg", dataset=edges, partition="whole")


def test_networkx_attributes_of_pyg() -> None:
    """Vectors, `y` and masks, as PyG's to_networkx writes them; directions where they are asked for."""
    net = nx.DiGraph()
    for node in range(4):
        roles = {"train_mask": node == 0, "val_mask": node == 1, "test_mask": node == 2}
        net.add_node(f"n{node}", x=[float(node), 1.0], y=node % 2, **roles)
    net.add_edge("n0", "n3")
    graph = atoll.load(net)
    assert graph.feature_names == ("x_0", "x_1")
    assert dense(graph)[:, 0].tolist() == [0, 1, 2, 3]
    assert graph.y.tolist() == [0, 1, 0, 1]
    assert [mask.tolist().index(True) for mask in (graph.train, graph.val, graph.test)] == [0, 1, 2]
    assert edge_set(graph) == {(0, 3), (3, 0)}
    assert edge_set(atoll.load(net, directed=True)) == {(0, 3)}
    assert edge_set(atoll.load(net.to_undirected(), directed=True)) == {(0, 3), (3, 0)}
    net.nodes["n0"]["x"] = [1.0]
    with pytest.raises(AtollError, match="the node attribute `x` is a list whose length differs"):
        atoll.load(net)


def hetero() -> HeteroData:
    """Papers with classes, authors with other columns, and venues without any."""
    data = HeteroData()
    data["paper"].x, data["paper"].y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0, 1])
    data["paper"].train_mask = torch.tensor([True, False])
    data["author"].x, data["venue"].num_nodes = torch.tensor([[5.0], [6.0], [7.0]]), 1
    data["author", "writes", "paper"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["paper", "in", "venue"].edge_index = torch.tensor([[0], [0]])
    return data


def test_several_types_of_nodes() -> None:
    """One graph: a block of columns per type, the labeled type is predicted, and one sentence says what is lost."""
    with pytest.warns(
        AtollWarning, match=r"3 types of nodes \(paper, author, venue\) and 2 types of edges .* 'paper' is predicted"
    ):
        graph = atoll.load(hetero())
    blocks = [[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 0], [0, 0, 6, 0], [0, 0, 7, 0], [0, 0, 0, 1]]
    assert dense(graph).tolist() == blocks
    assert graph.feature_names == ("paper.0", "paper.1", "author.0", "venue")
    assert graph.y.tolist() == [0, 1, -1, -1, -1, -1]
    assert graph.train.tolist() == [True, *[False] * 5]
    assert edge_set(graph) == {(2, 1), (1, 2), (4, 0), (0, 4), (0, 5), (5, 0)}
    two = hetero()
    two["author"].y = torch.tensor([0, 1, 0])
    with pytest.raises(AtollError, match="paper, author have labels `y`; exactly one type"):
        atoll.load(two)


@pytest.mark.parametrize(
    ("dataset", "sentence"),
    [
        (5, "dataset is a int; give a name, a path"),
        ([], "dataset is empty"),
        ([5], "Party 0 is a int"),
        ({"north": None}, "Party north is a NoneType"),
        (np.zeros((3, 3)), "dataset is a ndarray"),
        (["/nowhere"], "There is no folder or file /nowhere"),
        (pd.DataFrame({"a": [1]}), "no column `source`"),
        (nx.Graph(), "has no nodes"),
        ({"edges": FRAMES[1]}, "has no DataFrame `nodes`"),
        ([data_of(GRAPH), data_of(GRAPH, n_id=torch.zeros(40, dtype=torch.int64))], "`n_id` of party 1 names a node twice"),
        ([data_of(GRAPH, node_id=[1, 2])], "`node_id` of party 0 must hold one whole number"),
        (
            [data_of(GRAPH), Data(x=torch.ones(2, 2), edge_index=torch.tensor([[0], [1]]), y=torch.tensor([0, 1]))],
            "has 2; parties",
        ),
    ],
)
def test_what_is_refused(dataset: Any, sentence: str) -> None:
    """One sentence."""
    with pytest.raises(AtollError, match=sentence):
        atoll.run("fedavg", dataset=dataset)


def test_one_graph_per_party_is_not_divided() -> None:
    """Another partition, a number of parties that is not theirs, one object where a folder is expected."""
    parties = [party(range(20)), party(range(20, 40))]
    with pytest.raises(AtollError, match="one graph per party, which the partition 'metis' cannot divide"):
        atoll.run("fedavg", dataset=parties, partition="metis")
    with pytest.raises(AtollError, match="The dataset holds 2 parties, not 3"):
        atoll.run("fedavg", dataset=parties, parties=3)
    with pytest.raises(AtollError, match="but the dataset is one graph; give a list"):
        atoll.run("fedavg", dataset=GRAPH, partition="files")
