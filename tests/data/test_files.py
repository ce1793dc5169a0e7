"""Own graphs: what is written is read back, what people write is understood, what is wrong is said with its line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from atoll.data import files, load, partition, save
from atoll.data.partition_settings import PartitionSettings
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from graphs import dense, edge_set, make_graph, same

NODES = "id,age,label,split,score\nann,30,bank,train,0.5\nbob,41,,,1e-3\n007,5,shop,test,-2\neve,77,bank,val,0\n"
EDGES = "source,target\nann,bob\nbob,ann\n007,ann\n"


def folder(path: Path, nodes: str | None = NODES, edges: str | None = EDGES) -> str:
    """A folder of CSV tables."""
    for name, text in (("nodes.csv", nodes), ("edges.csv", edges)):
        if text is not None:
            (path / name).write_text(text)
    return str(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(4, 30),
    form=st.sampled_from(["npz", "parquet", "csv"]),
    names=st.none() | st.lists(st.from_regex(r"[a-z][a-z ]{0,6}[a-z]|ü", fullmatch=True), min_size=3, max_size=3, unique=True),
)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, seed: int, nodes: int, form: str, names: list[str] | None) -> None:
    """Any party's graph saved and read is the same graph: features, edges, labels, splits, global ids and names of classes."""
    from dataclasses import replace

    whole = replace(make_graph(nodes, 2 * nodes, seed), class_names=tuple(names) if names else None)
    party = partition(whole, "random", 2, PartitionSettings(), seed).select([1])
    place = tmp_path_factory.mktemp("graph")
    save(party, place, form)
    assert same(load(str(place)), party)


def test_round_trip_of_sparse_features(tmp_path: Path) -> None:
    """CSR features stay CSR."""
    graph = make_graph(20, 30, 0)
    wide = sp.csr_array((np.array([1, 2], np.float32), ([3, 7], [5, 90])), shape=(20, 100))
    from dataclasses import replace

    graph = replace(graph, x=wide)
    for form in ("npz", "parquet"):
        save(graph, tmp_path / form, form)
        assert same(load(str(tmp_path / form)), graph)


def test_saving_needs_one_party_and_a_known_form(graph: Graph, tmp_path: Path) -> None:
    """A folder is one party's."""
    with pytest.raises(AtollError, match="one party, not 2"):
        save(partition(graph, "random", 2, PartitionSettings(), 0), tmp_path)
    with pytest.raises(AtollError, match="choose npz, parquet or csv"):
        save(graph, tmp_path, "xlsx")


def test_tables_as_people_write_them(tmp_path: Path) -> None:
    """Text ids ('007' stays '007'), missing labels, isolated nodes, named classes in sorted order, a split, features in order."""
    graph = load(folder(tmp_path))
    assert graph.class_names == ("bank", "shop")
    assert graph.y.tolist() == [0, -1, 1, 0]
    assert edge_set(graph) == {(0, 1), (1, 0), (2, 0), (0, 2)}
    assert (graph.train.tolist(), graph.val.tolist()) == ([True, False, False, False], [False, False, False, True])
    torch.testing.assert_close(dense(graph), torch.tensor([[30, 0.5], [41, 0.001], [5, -2], [77, 0]]))
    assert edge_set(load(folder(tmp_path), directed=True)) == {(0, 1), (1, 0), (2, 0)}
    assert load(folder(tmp_path), normalize_features=True).num_nodes == 4


def test_parquet_with_numbers(tmp_path: Path) -> None:
    """Integer ids, integer labels that became floats beside missing ones, booleans as features."""
    pd.DataFrame({"id": [10, 20, 30], "label": [1.0, None, 0.0], "on": [True, False, True], "x": [1, 2, 3]}).to_parquet(
        tmp_path / "nodes.parquet"
    )
    pd.DataFrame({"source": [10, 30], "target": [30, 10]}).to_parquet(tmp_path / "edges.parquet")
    graph = load(str(tmp_path))
    assert graph.y.tolist() == [1, -1, 0]
    assert edge_set(graph) == {(0, 2), (2, 0)}
    assert dense(graph).tolist() == [[1, 1], [0, 2], [1, 3]]
    assert graph.class_names is None


def test_blank_lines_spaces_and_a_byte_order_mark(tmp_path: Path) -> None:
    """What spreadsheets leave behind does no harm, and lines are still counted right."""
    (tmp_path / "nodes.csv").write_text("\ufeffid, x , label\na, 1, 0\n\nb, 2, 1\n\n", encoding="utf-8")
    (tmp_path / "edges.csv").write_text("source,target\r\na,b\r\n\r\n")
    graph = load(str(tmp_path))
    assert graph.y.tolist() == [0, 1]
    assert edge_set(graph) == {(0, 1), (1, 0)}
    (tmp_path / "nodes.csv").write_text("id,x,label\na,1,0\n\nb,?,1\n")
    with pytest.raises(AtollError, match=r"line 4 of .*nodes\.csv is '\?'"):
        load(str(tmp_path), encode="never")


def test_classes_file_fixes_the_order(tmp_path: Path) -> None:
    """A party that has not seen every class still numbers them as the others do."""
    (tmp_path / "classes.txt").write_text("shop\npost\nbank\n")
    graph = load(folder(tmp_path))
    assert (graph.num_classes, graph.class_names) == (3, ("shop", "post", "bank"))
    assert graph.y.tolist() == [2, -1, 0, 2]
    (tmp_path / "classes.txt").write_text("shop\n")
    with pytest.raises(AtollError, match=r"Label 'bank' in line 2 of .* is not among the classes"):
        load(str(tmp_path))


def test_other_edge_columns_are_ignored_aloud(tmp_path: Path) -> None:
    """Types and features are not used, and the user hears of it; weights are."""
    with pytest.warns(UserWarning, match="is not used") as told:
        graph = load(folder(tmp_path, edges="source,target,weight,type,since\nann,bob,2,room,2026\n"))
    sentences = [str(each.message) for each in told if "edges.csv" in str(each.message)]
    assert [each.partition(": ")[2] for each in sentences] == [
        "column `type` is not used: edges have no types here, all are of one kind.",
        "column `since` is not used: edges have no features here; name a weight `weight`.",
    ]
    assert graph.edge_weight is not None
    assert graph.edge_weight.tolist() == [2, 2]


def test_no_labels_at_all(tmp_path: Path) -> None:
    """A party may hold only unlabeled nodes."""
    graph = load(folder(tmp_path, nodes="id,x\na,1\nb,2\n", edges="source,target\n"))
    assert graph.y.tolist() == [-1, -1]
    assert graph.num_classes == 0


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ("id,x,label\na,1,0\nb,2,-1\n", r"Label '-1' in line 3 of .*nodes\.csv is not a class"),
        ("id,x,label\na,1,0\nb,2,1.5\n", "Label '1.5' in line 3"),
        ("id,x,label\na,1,0\nb,2,nan\n", "Label 'nan' in line 3"),
        ("id,x,label\na,1,0\nb,2,NA\n", "Label 'NA' in line 3"),
        ("id,x,label\na,1,0\nb,2,x1\n", "Label 'x1' in line 3"),
        ("id,x,label\na,1,0\nb,2,1234567\n", "Label '1234567' in line 3"),
        ("id,x,label\na,1,0\na,2,1\n", "Node id 'a' in line 3 .* already used in line 2"),
        ("id,x,label\na,1,0\n,2,1\n", "line 3 .* has no id"),
        ("id,x,label\na,1,0\nb,nan,1\n", "Feature `x` in line 3 .* is 'nan'"),
        ("id,x,label\na,1,0\nb,inf,1\n", "Feature `x` in line 3 .* is 'inf'"),
        ("id,x,label\na,1,0\nb,,1\n", "Feature `x` in line 3 .* is empty"),
        ("id,x,label\na,red,0\nb,1,1\n", "Feature `x` in line 2 .* is 'red'"),
        ("x,label\n1,0\n", r"no column `id` \(it has x, label\)"),
        ("id,label\na,0\n", "no feature column"),
        ("", r"nodes\.csv is empty"),
        ("id,x,label\n", "has no nodes"),
        ("id,x,split,label\na,1,trian,0\nb,1,test,0\n", "Split 'trian' in line 2"),
        ("id,x,split,label\na,1,train,\nb,1,test,0\n", "line 2 .* has split 'train' but no label"),
        ("id,x,label\na,1,0,9\nb,1,0\n", "Line 2 of .* has 4 fields where the header has 3"),
        ("id,x,label\na,1,0\nb,1,0,7\n", "Line 3 of .* has 4 fields"),
        ("id,x,label\na,1,0\nb,1\n", "Line 3 of .* has 2 fields"),
        ("id,x,x,label\na,1,2,0\n", "two columns named `x`"),
        ("id,x,index,label\na,1,first,0\n", "Index 'first' in line 2"),
        ("id,x,index,label\na,1,99999999999999999999,0\n", "Index '9+' in line 2 .* is not the number of a node"),
        ("id,x,label\na,1,0\nb,1e300,1\n", "Feature `x` in line 3 .* is '1e\\+300'"),
    ],
)
def test_bad_nodes(tmp_path: Path, nodes: str, said: str) -> None:
    """Each mistake is one sentence with the line as an editor counts it."""
    with pytest.raises(AtollError, match=said) as caught:
        load(folder(tmp_path, nodes, "source,target\n"), encode="never")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("edges", "said"),
    [
        ("source,target\nann,bob\nann,zoe\n", r"target 'zoe' in line 3 of .*edges\.csv is not a node of nodes\.csv"),
        ("source,target\n7,ann\n", "source '7' in line 2"),
        ("source,target\nann\n", "Line 2 of .* has 1 fields"),
        ("source,target\nann,\n", "target '' in line 2"),
        ("from,to\nann,bob\n", r"no column `source` \(it has from, to\)"),
        ("", r"edges\.csv is empty"),
        (None, r"has no edges\.parquet or edges\.csv"),
    ],
)
def test_bad_edges(tmp_path: Path, edges: str | None, said: str) -> None:
    """An edge to nowhere is named with its line."""
    with pytest.raises(AtollError, match=said):
        load(folder(tmp_path, edges=edges))


def test_unreadable_tables(tmp_path: Path) -> None:
    """Bytes that are not text, parquet that is not parquet, both forms at once, a path to nowhere."""
    (tmp_path / "nodes.csv").write_bytes(b"id,x\n\xff\xfe\x00,1\n")
    with pytest.raises(AtollError, match="cannot be read as CSV"):
        load(folder(tmp_path, nodes=None))
    folder(tmp_path)
    (tmp_path / "edges.parquet").write_bytes(b"rubbish")
    with pytest.raises(AtollError, match="both edges"):
        load(str(tmp_path))
    (tmp_path / "edges.csv").unlink()
    with pytest.raises(AtollError, match="cannot be read as parquet"):
        load(str(tmp_path))
    with pytest.raises(AtollError, match="no folder or file"):
        load(str(tmp_path / "nowhere"))


def test_classes_file_that_is_no_text(tmp_path: Path) -> None:
    """Bytes that are not text are refused, a byte order mark does no harm."""
    (tmp_path / "classes.txt").write_bytes(b"\xff\xfe0\n")
    with pytest.raises(AtollError, match=r"classes\.txt cannot be read .* UTF-8"):
        load(folder(tmp_path))
    (tmp_path / "classes.txt").write_bytes(b"\xef\xbb\xbfbank\nshop\n")
    assert load(folder(tmp_path)).class_names == ("bank", "shop")


def test_a_table_in_place_of_its_folder(tmp_path: Path) -> None:
    """The folder is asked for."""
    folder(tmp_path)
    with pytest.raises(AtollError, match="single table; give the folder"):
        load(str(tmp_path / "nodes.csv"))


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("x", [[1, 2], [3, 4]], r"Feature `x` in row 0 of .* is '\[1 2\]'"),
        ("x", pd.date_range("2020", periods=2), "Feature `x` in row 0 of .* is '2020"),
        ("label", [0.0, float("inf")], "Label 'inf' in row 1 of .* is not a class"),
        ("id", [1e300, 2.0], "source 'a' in row 0"),
    ],
)
def test_bad_parquet(tmp_path: Path, column: str, values: object, said: str) -> None:
    """Types that CSV does not have: lists, dates, infinite labels, floats too large to be numbers of anything."""
    columns: dict[str, object] = {"id": ["a", "b"], "x": [1.0, 2.0], "label": [0, 1]}
    pd.DataFrame(columns | {column: values}).to_parquet(tmp_path / "nodes.parquet")
    pd.DataFrame({"source": ["a"], "target": ["b"]}).to_parquet(tmp_path / "edges.parquet")
    with pytest.raises(AtollError, match=said):
        load(str(tmp_path), encode="never")


def npz(path: Path, **changes: object) -> str:
    """A small .npz graph with changes; None leaves an array out."""
    arrays: dict[str, object] = {"x": np.ones((3, 2)), "edge_index": np.array([[0], [2]]), "y": np.array([1, -1, 0])} | changes
    np.savez(path / "g.npz", **{name: value for name, value in arrays.items() if value is not None})  # type: ignore[arg-type]
    return str(path / "g.npz")


def test_npz(tmp_path: Path) -> None:
    """Dense or CSR features, PyG's or short names of masks, whole float labels with NaN for unlabeled."""
    graph = load(npz(tmp_path, train_mask=np.array([True, False, False]), y=np.array([1.0, np.nan, 0.0])))
    assert graph.y.tolist() == [1, -1, 0]
    assert graph.train.tolist() == [True, False, False]
    csr = {"x": None, "x_data": [5.0], "x_indices": [1], "x_indptr": [0, 0, 1, 1], "x_shape": [3, 8]}
    assert dense(load(npz(tmp_path, **csr)))[1, 1] == 5
    assert load(npz(tmp_path, y=np.array([1, 255, 0], np.uint8))).num_classes == 256


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": None}, "no features"),
        ({"y": None}, "no array `y`"),
        ({"edge_index": None}, "no array `edge_index`"),
        ({"x": np.full((3, 2), np.nan)}, "feature 0 of node 0 is NaN"),
        ({"x": np.array([["a"]] * 3)}, "give real numbers"),
        ({"y": np.array([0, -7, 1])}, "label -7 of node 1"),
        ({"y": np.array([0, 0.5, 1])}, "label 0.5 of node 1"),
        ({"y": np.array([0, 1])}, "shape"),
        ({"edge_index": np.array([[0], [3]])}, "edge 0 goes from 0 to 3"),
        ({"train": np.array([0, 1, 2])}, "mask `train`"),
        ({"class_names": np.array(["a", "b"]), "y": np.array([0, 1, 2])}, "label 2 of node 2"),
        ({"class_names": np.array(["a", "b"]), "num_classes": 3}, "make them agree"),
        ({"ids": np.array([0.5, 1, 2])}, "`ids`"),
        ({"x": None, "x_data": [1.0], "x_indices": [9], "x_indptr": [0, 1, 1, 1], "x_shape": [3, 2]}, "do not fit together"),
        ({"y": np.array([0, {}, 1], dtype=object)}, "plain arrays"),
        ({"x": np.zeros((3, 0))}, "no column"),
        ({"x": np.full((3, 2), 1e300)}, "feature 0 of node 0 is NaN, infinite or too large"),
        ({"x": np.zeros((3, 2), "m8[s]")}, "give real numbers"),
        ({"y": np.array(1)}, "one whole number per node"),
        ({"y": np.array([0, np.inf, 1])}, "label inf of node 1"),
        ({"y": np.array([0, 10**6, 1])}, "label 1000000 of node 1"),
        ({"num_classes": np.array([2, 2])}, "give one whole number"),
        ({"num_classes": np.nan}, "give one whole number"),
        ({"num_classes": -1}, "must be between 0 and"),
        ({"num_classes": 10**9}, "must be between 0 and"),
        ({"class_names": np.array("a")}, "names each class once"),
        ({"class_names": np.array(["a", "a"])}, "names each class once"),
        ({"ids": np.array([0, -1, 2])}, "numbers node 1 with -1"),
        ({"ids": np.array([0, 1, 2**64 - 1], np.uint64)}, "numbers node 2 with 18446744073709551615"),
        ({"x": None, "x_data": ["a"], "x_indices": [1], "x_indptr": [0, 1, 1, 1], "x_shape": [3, 2]}, "give real numbers"),
        ({"x": None, "x_data": [1.0], "x_indices": [0.5], "x_indptr": [0, 1, 1, 1], "x_shape": [3, 2]}, "must be whole numbers"),
    ],
)
def test_bad_npz(tmp_path: Path, changes: dict[str, object], said: str) -> None:
    """Each mistake names the file; objects (pickles) are never loaded."""
    with pytest.raises(AtollError, match=r"g\.npz") as caught:
        load(npz(tmp_path, **changes))
    assert said in str(caught.value)


def test_rubbish_npz(tmp_path: Path) -> None:
    """A cut-off file, an empty one, a lone array."""
    path = Path(npz(tmp_path))
    path.write_bytes(path.read_bytes()[:100])
    for content in (None, b""):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(AtollError, match="cannot be read"):
            load(str(path))
    np.save(tmp_path / "one.npy", np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    for name in ("one.npy", "text.npz"):
        with pytest.raises(AtollError, match=r"cannot be read as an \.npz of plain arrays \(it is not a zip archive\)"):
            load(str(tmp_path / name))


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_ids_of_nodes_survive(form: str, tmp_path: Path) -> None:
    """Text ids of tables are the graph's names, through partitions and every form that it is saved in."""
    from atoll.data.subgraphs import induced_subgraphs

    (tmp_path / "own").mkdir()
    (tmp_path / "own/nodes.csv").write_text("id,x,label\n007,1,a\nann,2,b\nbob,3,a\n")
    (tmp_path / "own/edges.csv").write_text("source,target\n007,ann\nann,bob\n")
    graph = files.read(tmp_path / "own")
    part = induced_subgraphs(graph, [np.array([2, 1]), np.array([0])]).select([0])
    files.save(part, tmp_path / "saved", form)
    again = files.read(tmp_path / "saved")
    assert again.node_names is not None
    assert again.node_names.tolist() == ["bob", "ann"]
    assert again.edge_index.tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("names", [["a", "a"], ["a"], [1, 2]])
def test_an_archive_names_each_node_once(names: list[object], tmp_path: Path) -> None:
    """Anything else is one sentence."""
    x, edges, y = np.ones((2, 1), np.float32), np.array([[0], [1]]), np.zeros(2, np.int64)
    np.savez(tmp_path / "own.npz", x=x, edge_index=edges, y=y, node_names=np.array(names))
    with pytest.raises(AtollError, match=r"`node_names` in .*own.npz has shape .* give each node a text of its own"):
        files.read(tmp_path / "own.npz")
