"""Own vertical data: parties that list the same nodes in other orders, with other columns and edges."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import atoll
from atoll.data.party_graphs import party_folders
from atoll.data.vertical_files import joined, read_parties
from atoll.errors import AtollError

BANK = {
    "nodes.csv": "id,age,label,split\nann,31,yes,train\nbob,44,no,test\ncem,27,yes,val\n",
    "edges.csv": "source,target\nann,bob\n",
}
SHOP = {
    "nodes.csv": "id,spent,visits\ncem,3,30\nann,1,10\nbob,2,20\n",
    "edges.csv": "source,target\nbob,cem\ncem,ann\n",
}


def write(root: Path, **parties: dict[str, str]) -> Path:
    """A folder of party folders."""
    for party, files in parties.items():
        (root / party).mkdir()
        for name, text in files.items():
            (root / party / name).write_text(text)
    return root


def test_nodes_are_matched_by_id_not_by_order(tmp_path: Path) -> None:
    """Row i is the same person at both parties; features, edges and padding follow."""
    graph = read_parties(write(tmp_path, bank=BANK, shop=SHOP))
    assert graph.parties == 2
    assert graph.widths == (1, 2)
    x = torch.as_tensor(graph.x)
    assert x[:3].tolist() == [[31, 0], [44, 0], [27, 0]]
    assert x[3:].tolist() == [[1, 10], [2, 20], [3, 30]]
    edges = {tuple(edge) for edge in graph.edge_index.t().tolist()}
    assert edges == {(0, 1), (1, 0), (4, 5), (5, 4), (5, 3), (3, 5)}
    assert graph.ids.tolist() == [0, 1, 2, 0, 1, 2]


def test_labels_may_stand_at_one_party(tmp_path: Path) -> None:
    """The bank's labels and splits are the bank's alone."""
    graph = read_parties(write(tmp_path, bank=BANK, shop=SHOP))
    assert graph.class_names == ("no", "yes")
    assert graph.y.tolist() == [1, 0, 1, -1, -1, -1]
    assert graph.train.tolist() == [True, False, False, False, False, False]
    assert graph.val.tolist() == [False, False, True, False, False, False]


def test_nodes_that_not_all_hold_are_reported_and_left_out(tmp_path: Path) -> None:
    """One warning a party, with their number and names; edges to them go with them."""
    shop = {"nodes.csv": "id,spent\ncem,3\ndan,9\nann,1\n", "edges.csv": "source,target\ncem,dan\ncem,ann\n"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = read_parties(write(tmp_path, bank=BANK, shop=shop))
    texts = [str(warning.message) for warning in caught]
    assert any("bank: 1 of 3 nodes" in text and "(bob)" in text for text in texts)
    assert any("shop: 1 of 3 nodes" in text and "(dan)" in text for text in texts)
    assert graph.sizes == [2, 2]
    assert {tuple(edge) for edge in graph.edge_index.t().tolist()} == {(2, 3), (3, 2)}


def test_all_together_is_all_columns_and_all_edges(tmp_path: Path) -> None:
    """The union that no party has, for the centralized yardstick."""
    whole = joined(read_parties(write(tmp_path, bank=BANK, shop=SHOP)))
    assert torch.as_tensor(whole.x).tolist() == [[31, 1, 10], [44, 2, 20], [27, 3, 30]]
    assert {tuple(edge) for edge in whole.edge_index.t().tolist()} == {(0, 1), (1, 0), (1, 2), (2, 1), (0, 2), (2, 0)}
    assert whole.y.tolist() == [1, 0, 1]
    assert whole.train.tolist() == [True, False, False]


def test_an_npz_matches_by_its_ids(tmp_path: Path) -> None:
    """`ids` of the arrays are the ids of the tables."""
    bank = {"nodes.csv": "id,age,label\n7,31,1\n9,44,0\n", "edges.csv": "source,target\n7,9\n"}
    write(tmp_path, bank=bank)
    (tmp_path / "shop").mkdir()
    arrays = {"x": np.array([[2.0], [1.0]]), "edge_index": np.array([[0], [1]]), "y": np.array([-1, -1]), "ids": np.array([9, 7])}
    np.savez(tmp_path / "shop" / "graph.npz", **arrays)
    assert torch.as_tensor(read_parties(tmp_path).x).tolist() == [[31], [44], [1], [2]]


def test_folders_are_numbered_in_the_order_of_their_names(tmp_path: Path) -> None:
    """party_2 before party_10; hidden folders and files do not count."""
    for name in ("party_10", "party_2", ".git", "party_1"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [place.name for place in party_folders(tmp_path)] == ["party_1", "party_2", "party_10"]


@pytest.mark.parametrize(
    ("shop", "sentence"),
    [
        ({"nodes.csv": "id,spent\neve,1\n", "edges.csv": "source,target\n"}, "no node in common"),
        (
            {"nodes.csv": "id,spent,label\nann,1,yes\nbob,1,yes\n", "edges.csv": "source,target\n"},
            "name their classes differently",
        ),
        (
            {"nodes.csv": "id,spent,label\nann,1,no\nbob,1,no\ncem,2,yes\n", "edges.csv": "source,target\n"},
            "'ann' another label",
        ),
        (
            {"nodes.csv": "id,spent,label,split\nann,1,yes,test\nbob,1,no,\ncem,2,yes,\n", "edges.csv": "source,target\n"},
            "'ann' another split",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*left out")
def test_contradictions_are_refused(tmp_path: Path, shop: dict[str, str], sentence: str) -> None:
    """One sentence that names the party and the node."""
    with pytest.raises(AtollError, match=sentence):
        read_parties(write(tmp_path, bank=BANK, shop=shop))


def test_a_folder_without_parties_is_refused(tmp_path: Path) -> None:
    """Neither nothing nor a folder of files."""
    with pytest.raises(AtollError, match="holds no folders"):
        read_parties(tmp_path)
    with pytest.raises(AtollError, match="There is no folder"):
        read_parties(tmp_path / "nowhere")


def test_without_any_label_nothing_can_be_learned(tmp_path: Path) -> None:
    """The sentence says what to do."""
    with pytest.raises(AtollError, match="label some nodes"):
        read_parties(write(tmp_path, left=SHOP, right=SHOP))


PEOPLE = [(f"p{n}", n % 2) for n in range(12)]
LEDGER = "id,age,label,split\n" + "".join(
    f"{name},{30 + c},{c},{'train' if k < 6 else 'test'}\n" for k, (name, c) in enumerate(PEOPLE)
)
VISITS = "id,spent,visits\n" + "".join(f"{name},{c},{1 - c}\n" for name, c in reversed(PEOPLE))
EDGES = "source,target\n" + "".join(f"p{n},p{(n + 2) % 12}\n" for n in range(12))


def test_glasu_runs_on_own_vertical_data(tmp_path: Path) -> None:
    """From folders to a result: the bank alone holds labels; without saying so there is one sentence."""
    write(tmp_path, bank={"nodes.csv": LEDGER, "edges.csv": EDGES}, shop={"nodes.csv": VISITS, "edges.csv": EDGES})
    values = {"dataset": str(tmp_path), "partition": "files", "rounds": 3, "hidden": 8, "batch_size": 4, "split": "auto"}
    result = atoll.run("glasu", **values, label_holder=0)
    assert (result.scenario, result.parties) == ("vertical", 2)
    assert "accuracy" in result.metrics
    with pytest.raises(AtollError, match=r"Party 1 knows no label.*label_holder"):
        atoll.run("glasu", **values)
    with pytest.raises(AtollError, match="holds 2 parties, not 3"):
        atoll.run("glasu", **values, parties=3)
    with pytest.raises(AtollError, match="horizontal"):
        atoll.run("fedavg", **{name: values[name] for name in ("dataset", "partition", "rounds")})
    assert atoll.run("centralized_vertical", **values).parties == 1
