"""One folder per party: which scenario it is, what is ordered and what refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

import atoll
from atoll.data import build_graph, files, load
from atoll.data.federated import federate
from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.data.party_graphs import PartyGraph, parts_of, pooled, read_folders, read_party, scenario_of_parties
from atoll.data.splits import SplitSettings, split
from atoll.errors import AtollError, AtollWarning
from atoll.runs.config import resolve

BOTH = ("horizontal", "overlapping")
NORTH = "id,age,cost,label\nn1,31,2,yes\nn2,44,1,no\nn3,27,5,yes\n"
SOUTH = "id,cost,age,label\ns1,3,30,no\ns2,1,52,yes\n"
EDGES = {"north": "source,target\nn1,n2\n", "south": "source,target\ns1,s2\n"}


def write(root: Path, **nodes: str) -> Path:
    """A folder of party folders; the edges join the first two nodes."""
    for party, table in nodes.items():
        (root / party).mkdir(parents=True)
        (root / party / "nodes.csv").write_text(table)
        first = [line.split(",")[0] for line in table.splitlines()[1:3]]
        (root / party / "edges.csv").write_text("source,target\n" + ",".join(first) + "\n")
    return root


def test_columns_and_classes_take_the_first_partys_order(tmp_path: Path) -> None:
    """Each party's own nodes, edges and labels, in one form; party names are folder names."""
    folder = write(tmp_path, north=NORTH, south=SOUTH)
    (folder / "south" / "classes.txt").write_text("yes\nno\n")
    config = resolve("fedavg", dataset=str(folder), partition="files", values={"train": 1.0, "val": 0.0, "test": 0.0})
    data = federate(config, None, BOTH)
    assert (data.scenario, data.names, data.parts.sizes) == ("horizontal", ("north", "south"), [3, 2])
    assert data.parts.feature_names == ("age", "cost")
    assert torch.as_tensor(data.parts.x).tolist() == [[31, 2], [44, 1], [27, 5], [30, 3], [52, 1]]
    assert data.parts.class_names == ("no", "yes")
    assert data.parts.y.tolist() == [1, 0, 1, 0, 1]
    assert {tuple(edge) for edge in data.parts.edge_index.t().tolist()} == {(0, 1), (1, 0), (3, 4), (4, 3)}
    assert torch.equal(data.whole.edge_index.sort().values, data.parts.edge_index.sort().values)
    assert data.parts.train.all()


@pytest.mark.parametrize(
    ("south", "sentence"),
    [
        (SOUTH.replace("cost", "price"), "south has the column 'price', which .*north does not have"),
        ("id,cost,label\ns1,3,no\ns2,1,yes\n", "north has the column 'age', which .*south does not have"),
        (SOUTH.replace("no", "maybe"), "south has the class 'maybe', which .*north does not have; put the same classes.txt"),
        (SOUTH.replace("yes", "1").replace("no", "0"), "north names its classes and .*south does not"),
        (SOUTH.replace("s1", "n1"), r"north and .*south both have a node 'n1': .*scenario=overlapping\), and to horizontal"),
        (SOUTH.replace("s1", "n1").replace("cost", "price"), "'n1' and their columns differ, which is vertical"),
        ("id,age,cost,label\ns1,1,1,\ns2,1,2,\n", "names its classes"),
        (SOUTH.replace("30", "old").replace("52", "young"), r"Column `age` is a number at .*north and a category at .*south"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*encoded as inferred")
def test_folders_that_do_not_fit_together(tmp_path: Path, south: str, sentence: str) -> None:
    """One sentence that names the folders and says what to do."""
    with pytest.raises(AtollError, match=sentence):
        atoll.run("fedavg", dataset=write(tmp_path, north=NORTH, south=south), partition="files")


def test_numbers_of_classes_must_agree_as_at_sites(tmp_path: Path) -> None:
    """Classes by number only: a party without the last class says so with classes.txt."""
    one, other = "id,age,label\na,1,0\nb,2,1\n", "id,age,label\nc,1,0\nd,2,0\n"
    with pytest.raises(AtollError, match=r"north has 2 classes and .*south has 1; put the same classes.txt"):
        atoll.run("fedavg", dataset=write(tmp_path, north=one, south=other), partition="files")


def test_ids_that_only_count_the_rows_are_each_partys_own(tmp_path: Path) -> None:
    """1, 2, 3 everywhere does not mean the same nodes."""
    counted = "id,age,label\n1,31,yes\n2,44,no\n3,30,yes\n"
    folder = write(tmp_path, north=counted, south=counted)
    assert scenario_of_parties(read_folders(folder), "fedavg", BOTH) == "horizontal"
    data = federate(resolve("fedavg", dataset=str(folder), partition="files"), None, BOTH)
    assert data.parts.ids.tolist() == list(range(6)) == data.whole.ids.tolist()


def party(
    ids: list[int] | None = None, names: tuple[str, ...] | None = None, columns: tuple[str, ...] | None = None
) -> PartyGraph:
    """A party of three nodes."""
    graph = dataclasses.replace(
        build_graph(np.arange(1.0, 7.0).reshape(3, 2), np.array([[0], [1]]), np.array([0, 1, 0]), where="test"),
        feature_names=columns,
    )
    graph = graph if ids is None else dataclasses.replace(graph, ids=torch.tensor(ids))
    return PartyGraph("", "a party", graph, numbered=ids is not None, node_ids=names)


@pytest.mark.parametrize(
    ("parties", "scenarios", "wanted", "scenario"),
    [
        ([party([0, 1, 2]), party([3, 4, 5])], BOTH, "auto", "horizontal"),
        ([party([0, 1, 2]), party([2, 3, 4])], BOTH, "overlapping", "overlapping"),
        ([party([0, 1, 2]), party([2, 3, 4])], BOTH, "horizontal", "horizontal"),
        ([party([0, 1, 2]), party([2, 3, 4])], ("overlapping", "horizontal"), "auto", "overlapping"),
        ([party([0, 1, 2]), party([5, 3, 4])], ("overlapping", "horizontal"), "auto", "overlapping"),
        ([party([0, 1, 2], columns=("a", "b")), party([2, 3, 4], columns=("a", "b"))], ("whole",), "auto", "overlapping"),
        ([party([0, 1, 2], columns=("a", "b")), party([2, 3, 4], columns=("a", "c"))], ("whole",), "auto", "vertical"),
        ([party([0, 1, 2]), party([3, 4, 5])], ("whole",), "auto", "horizontal"),
        ([party(), party()], ("whole",), "auto", "horizontal"),
        ([party(names=("a", "b", "c")), party(names=("c", "d", "e"))], ("vertical",), "auto", "vertical"),
    ],
)
def test_the_scenario(parties: list[PartyGraph], scenarios: tuple[str, ...], wanted: str, scenario: str) -> None:
    """What is set, or else what the algorithm and the nodes' numbers and names leave."""
    assert scenario_of_parties(parties, "x", scenarios, wanted) == scenario


@pytest.mark.parametrize(
    ("parties", "scenarios", "wanted", "sentence"),
    [
        ([party([0, 1, 2]), party([2, 3, 4])], BOTH, "auto", "both have a node '2'"),
        ([party([0, 1, 2]), party([0, 1, 2])], ("whole",), "auto", "overlapping or vertical"),
        ([party(names=("a", "b", "c"), columns=("x", "y"))] * 2, ("whole",), "auto", "both have a node 'a'"),
        ([party()], ("node",), "auto", "one node per party, for which folders make no sense"),
        ([party()], ("vertical",), "horizontal", "x is for vertical parties, but the scenario is set to horizontal"),
    ],
)
def test_a_scenario_that_cannot_be_told(
    parties: list[PartyGraph], scenarios: tuple[str, ...], wanted: str, sentence: str
) -> None:
    """One sentence."""
    with pytest.raises(AtollError, match=sentence):
        scenario_of_parties(parties, "x", scenarios, wanted)


def overlapping_folders(root: Path, form: str = "npz") -> Path:
    """Three parties that share nodes, with a split."""
    graph = load("csbm", nodes=60, features=12, degree=4, classes=3)
    parts = split(partition(graph, "overlap", 3, PartitionSettings(proportions="0.5"), 0), SplitSettings("random"), 0)
    for number in range(3):
        files.save(parts.select([number]), root / f"site-{number}", form)
    return root


@pytest.mark.parametrize("form", ["npz", "csv"])
def test_overlapping_folders_are_the_partition_they_came_from(tmp_path: Path, form: str) -> None:
    """The nodes' numbers say which are the same; the union holds each once."""
    folder = overlapping_folders(tmp_path, form)
    config = resolve("fedgl", dataset=str(folder), partition="files", values={"normalize_features": False})
    data = federate(config, None, ("overlapping", "horizontal"))
    graph = load("csbm", nodes=60, features=12, degree=4, classes=3)
    expected = partition(graph, "overlap", 3, PartitionSettings(proportions="0.5"), 0)
    assert data.scenario == "overlapping"
    assert torch.equal(data.parts.ids, expected.ids)
    assert torch.equal(data.parts.edge_index, expected.edge_index)
    torch.testing.assert_close(torch.as_tensor(data.parts.x), torch.as_tensor(expected.x), rtol=1e-6, atol=0)
    assert data.whole.ids.tolist() == sorted(set(expected.ids.tolist()))
    assert torch.equal(data.whole.y, graph.y[data.whole.ids])
    held = {tuple(edge) for edge in expected.ids[expected.edge_index].t().tolist()}
    assert {tuple(edge) for edge in data.whole.ids[data.whole.edge_index].t().tolist()} == held


def test_overlapping_nodes_may_be_matched_by_id(tmp_path: Path) -> None:
    """Without numbers the ids match, with a sentence about deployment; roles and labels must agree."""
    one = "id,age,label,split\nann,31,yes,train\nbob,44,no,test\ncem,27,yes,val\n"
    other = "id,age,label,split\nbob,44,no,test\ndee,52,yes,train\n"
    folder = write(tmp_path / "fine", a=one, b=other)
    config = resolve("fedavg", dataset=str(folder), partition="files", values={"scenario": "overlapping"})
    with pytest.warns(AtollWarning, match="matched by id; a deployed federation needs their numbers"):
        data = federate(config, None, BOTH)
    assert data.parts.ids.tolist() == [0, 1, 2, 1, 3]
    for name, table, sentence in (
        ("roles", other.replace("no,test", "no,train"), "Node 'bob' of .*a has other roles|Node 'bob' of .*b has other roles"),
        (
            "labels",
            other.replace("bob,44,no", "bob,44,yes").replace("52,yes", "52,no"),
            "Node 'bob' .* has other labels at another party",
        ),
        ("none", other.replace("test", "").replace("train", ""), "b has no split, but parties that share nodes must agree"),
    ):
        config = dataclasses.replace(config, dataset=str(write(tmp_path / name, a=one, b=table)))
        with pytest.raises(AtollError, match=sentence), pytest.warns(AtollWarning):
            federate(config, None, BOTH)
    config = dataclasses.replace(config, dataset=str(folder), split=SplitSettings("random"))
    with pytest.raises(AtollError, match="leave split='random' out"), pytest.warns(AtollWarning):
        federate(config, None, BOTH)


def test_a_number_twice_and_a_party_without_numbers(tmp_path: Path) -> None:
    """Numbers are of all parties or of none, each once."""
    write(tmp_path, a="id,index,age,label\nx,1,2,0\ny,1,3,1\n")
    with pytest.raises(AtollError, match=r"`index` of `nodes` in .*a has a number twice"):
        read_party(tmp_path / "a")
    with pytest.raises(AtollError, match="does not number its nodes"):
        parts_of([party([0, 1, 2]), party()], "overlapping", SplitSettings(), 0)


def test_dense_and_sparse_parties_stand_in_one_graph() -> None:
    """One party's features are mostly zeros, the other's are not."""
    dense = party()
    sparse = dataclasses.replace(dense, graph=dataclasses.replace(dense.graph, x=load("csbm", nodes=3).nonzero_features[:, :2]))
    parts = parts_of([dense, sparse], "horizontal", SplitSettings("random", train=1.0, val=0, test=0), 0)
    assert isinstance(parts.x, torch.Tensor)
    assert parts.x.shape == (6, 2)


def test_pooled_labels_are_those_that_some_party_knows() -> None:
    """A node that one party labels and another does not."""
    first, second = party([4, 7, 9]), party([7, 5, 3])
    second.graph.y[0] = -1
    parts = parts_of([first, second], "overlapping", SplitSettings("random", train=1.0, val=0, test=0), 0)
    whole = pooled(parts)
    assert whole.ids.tolist() == [3, 4, 5, 7, 9]
    assert whole.y[3] == first.graph.y[1]


def test_a_party_without_training_nodes_is_named(tmp_path: Path) -> None:
    """By its folder."""
    lone = "id,age,cost,label,split\ns1,3,30,no,test\ns2,1,52,yes,test\n"
    folder = write(tmp_path, north=NORTH, south=lone)
    with pytest.raises(AtollError, match="Party south has 2 nodes but no training nodes; label some there or"):
        atoll.run("fedavg", dataset=folder, partition="files")


def test_baselines_run_on_the_same_folders(tmp_path: Path) -> None:
    """compare: local and centralized beside fedavg; everything that the parties hold is in one graph for the latter."""
    graph = load("csbm", nodes=60, features=12, degree=4, classes=3)
    parts = partition(graph, "random", 3, PartitionSettings(), 0)
    for number in range(3):
        files.save(parts.select([number]), tmp_path / f"site-{number}", "csv" if number else "parquet")
    compared = atoll.compare(
        "local,fedavg,centralized", dataset=tmp_path, partition="files", seeds=1, rounds=2, hidden=8, epochs=1
    )
    results = {name: runs[0] for name, runs in compared.results.items()}
    assert {name: result.scenario for name, result in results.items()} == {
        "local": "horizontal",
        "fedavg": "horizontal",
        "centralized": "whole",
    }
    assert results["fedavg"].names == ("site-0", "site-1", "site-2")
    tested = {name: int(federate(result.config, None, find_scenarios(name)).parts.test.sum()) for name, result in results.items()}
    assert len(set(tested.values())) == 1


def find_scenarios(algorithm: str) -> tuple[str, ...]:
    """Of an algorithm."""
    return atoll.ALGORITHMS.find(algorithm).SCENARIOS
