"""Vertical sites list the same nodes in any order, and some that others lack: matched by digests that the server cannot try."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.data import files
from atoll.data.csbm import csbm
from atoll.deploy import description, server
from atoll.deploy.compatibility import check_compatible
from atoll.deploy.digests import digests
from atoll.deploy.node_matching import MIN_COMMON_NODES, common_nodes, node_digests, with_common_nodes
from atoll.deploy.site import Site
from atoll.engines.remote import read_answer
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.graphs.graph import Graph
from atoll.runs import runner
from clinics import CLINICS, KEY, Clinics, clinics, configs
from test_promises import assert_same

PATIENTS = [f"patient-{row}" for row in range(40)]


def frames(*, ordered: bool = False) -> dict[str, pd.DataFrame]:
    """Three clinics with the same patients; unless `ordered`, each in another order, the second without five, the third with
    three of its own."""
    rng = np.random.default_rng(0)
    result = {}
    for place, name in enumerate(CLINICS):
        frame = pd.DataFrame({"id": PATIENTS, f"a{place}": rng.normal(size=40), f"b{place}": rng.normal(size=40)})
        frame["label"] = np.resize(["home", "ward", "ward"], 40)
        frame["split"] = np.resize(["train", "val", "test", "train"], 40)
        order = rng.permutation(40)
        result[name] = frame if ordered else frame.iloc[order].reset_index(drop=True)
    if not ordered:
        lacking = [f"patient-{row}" for row in (3, 8, 21, 22, 39)]
        result["clinic-b"] = result["clinic-b"][~result["clinic-b"]["id"].isin(lacking)]
        alone = result["clinic-c"].iloc[:3].assign(id=["stranger-1", "stranger-2", "stranger-3"])
        result["clinic-c"] = pd.concat([alone, result["clinic-c"]])
    return result


def naive(found: Clinics) -> dict[str, pd.DataFrame]:
    """The tables that a person would write who knew all of them: common patients only, in the first clinic's order."""
    tables = {name: pd.read_csv(found.folder / "data" / name / "nodes.csv") for name in CLINICS}
    common = [who for who in tables["clinic-a"]["id"] if all(who in set(table["id"]) for table in tables.values())]
    return {name: table.set_index("id").loc[common].reset_index() for name, table in tables.items()}


def write_again(folder: Path, found: Clinics) -> Clinics:
    """The naive tables with the edges that remain of each clinic's."""
    again = clinics(folder, naive(found))
    for name in CLINICS:
        edges = pd.read_csv(found.folder / "data" / name / "edges.csv")
        held = set(pd.read_csv(folder / "data" / name / "nodes.csv")["id"])
        edges[edges["source"].isin(held) & edges["target"].isin(held)].to_csv(folder / "data" / name / "edges.csv", index=False)
    return again


VALUES: dict[str, Any] = {"split": "auto", "hidden": 4, "scenario": "vertical", "on_missing": "stop"}


@pytest.mark.filterwarnings("ignore:.*not held by every party")
def test_any_order_gives_the_numbers_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other orders, patients that one lacks or has alone: the bits of tables in one order; the numbers of `--partition files`."""
    warned: list[str] = []
    monkeypatch.setattr(server, "report", lambda **what: warned.append(str(what.get("warn", ""))))
    found = clinics(tmp_path / "mixed", frames())
    here, there = configs(found.folder, "glasu", **VALUES)
    result = found.serve(there)
    again = write_again(tmp_path / "naive", found)
    assert_same(again.serve(configs(again.folder, "glasu", **VALUES)[1]), result, 0.0)
    assert_same(runner.run(here), result, 1e-5)
    assert [text for text in warned if "left out" in text] == [
        "clinic-a: 5 of 40 nodes are not held by every site and left out.",
        "clinic-c: 8 of 43 nodes are not held by every site and left out.",
    ]
    assert any("left out (stranger-1, stranger-2, stranger-3, …)" in text for text in found.said["clinic-c"])
    assert not any("left out" in text for text in found.said["clinic-b"])


def test_without_matching_the_numbers_are_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tables read row by row: patients are mixed up."""
    mixed = {name: table.iloc[:: -1 if name == "clinic-b" else 1] for name, table in frames(ordered=True).items()}
    found = clinics(tmp_path, mixed)
    there = configs(tmp_path, "glasu", **VALUES)[1]
    right = found.serve(there)
    monkeypatch.setattr("atoll.deploy.site_data.with_common_nodes", lambda graph, *rest: replace(graph, ids=torch.arange(40)))
    wrong = found.serve(there, "wrong")
    assert wrong.last["val_loss"] != right.last["val_loss"]


def test_the_server_cannot_try_ids(tmp_path: Path) -> None:
    """The attack: a server that knows every patient of the country. No id is in a byte it gets, nor a digest it can compute."""
    found = clinics(tmp_path, frames(), signed=True)
    found.serve(configs(tmp_path, "glasu", **VALUES, rounds=1)[1])
    everything = b"".join(found.wire.bytes)
    assert not any(name.encode() in everything for name in (*PATIENTS, "stranger-1"))
    held = [path.read_bytes() for path in (tmp_path / "kits" / "server").rglob("*") if path.is_file()]
    keys = [b"", *(data[:64] for data in held), *(data[-64:] for data in held)]
    sent = _sent_digests(found.wire.bytes)
    for key, kind in itertools.product(keys, ("node", "nodes", "column")):
        guesses = digests(PATIENTS, kind, key)
        assert not sent & {int(one).to_bytes(8, "little", signed=True) for one in guesses}
    real = (tmp_path / "kits" / "clinic-a" / "names.secret").read_text().strip()
    known = {int(one).to_bytes(8, "little", signed=True) for one in digests(PATIENTS, "node", bytes.fromhex(real))}
    assert sent & known  # with the key the attack works: it is the key that protects


def _sent_digests(messages: list[bytes]) -> set[bytes]:
    """Every digest in the descriptions and orders that passed."""
    found: set[bytes] = set()
    for data in messages:
        document = wire.decode(data)
        for value in (document.get("fields", {}).get("ids"), document.get("order", {}).get("nodes")):
            if isinstance(value, torch.Tensor):
                found |= {int(one).to_bytes(8, "little", signed=True) for one in value}
    return found


def test_only_the_first_site_shows_its_order(tmp_path: Path) -> None:
    """The others' lists are sorted by digest: the same bytes, however the site's table is sorted."""
    backwards = {name: table.iloc[::-1] for name, table in frames(ordered=True).items()}
    about = {}
    for number, tables in enumerate((frames(ordered=True), backwards)):
        found = clinics(tmp_path / str(number), tables)
        config = configs(found.folder, "glasu", **VALUES)[1]
        about[number] = {name: site._describe(config)["ids"] for name, site in found.wire.sites.items()}
    assert torch.equal(about[0]["clinic-b"], about[1]["clinic-b"])
    assert torch.equal(about[0]["clinic-a"], about[1]["clinic-a"].flip(0))
    assert not torch.equal(about[0]["clinic-a"], about[1]["clinic-a"])


def graph(nodes: int = 30, names: tuple[str, ...] | None = None) -> Graph:
    """A graph whose nodes have names."""
    named = np.array(names or [f"n{row}" for row in range(nodes)], dtype=object)
    return replace(csbm(nodes, 3, 1, 1, 4), node_names=named)


def about(one: Graph) -> Fields:
    """A site's description."""
    return description.describe(one, "vertical", KEY)


def test_a_site_that_lies_about_its_nodes_is_named() -> None:
    """Nodes twice, another number than it lists, something that is not a list of digests."""
    honest = about(graph())
    ids = honest["ids"]
    twice = ids.clone()
    twice[3] = twice[7]
    for lie, sentence in (
        ({"ids": twice}, "it lists a node twice"),
        ({"nodes": 31}, "it does not list its nodes as a digest each"),
        ({"ids": ids.float()}, "it does not list its nodes as a digest each"),
        ({"ids": "all"}, "it does not list its nodes as a digest each"),
        ({"named": 1}, "it does not say whether its nodes have ids"),
    ):
        with pytest.raises(AtollError, match=f"^The site b cannot take part: {sentence}"):
            check_compatible({"a": honest, "b": {**honest, **lie}}, "vertical")


def test_a_site_that_claims_nodes_learns_of_no_others() -> None:
    """Made-up digests are common to nobody; whatever a site claims, all it is sent are digests that it listed itself."""
    honest, other = about(graph(30)), about(graph(20))
    made_up = {**honest, "ids": torch.arange(30)}
    with pytest.raises(AtollError, match="a, liar hold no node in common; their ids must be the same"):
        check_compatible({"a": honest, "liar": made_up}, "vertical")
    guess = digests(["n3", "n25", "nobody"], "node", KEY)
    liar = {**honest, "ids": guess, "nodes": 3}
    form = check_compatible({"a": honest, "b": other, "liar": liar}, "vertical")
    assert form.order["nodes"].tolist() == guess[:1].tolist()  # n25 is not at b, and the liar does not learn that a has it
    assert set(form.order["nodes"].tolist()) <= set(guess.tolist())


def test_rows_are_ids_where_nobody_has_any() -> None:
    """As in one process: equal numbers of nodes are matched row by row, and different ones refused."""
    unnamed = [replace(graph(nodes), node_names=None) for nodes in (30, 30, 31)]
    form = check_compatible({"a": about(unnamed[0]), "b": about(unnamed[1])}, "vertical")
    assert torch.equal(form.order["nodes"], node_digests(unnamed[0], KEY))
    assert not form.notes
    with pytest.raises(AtollError, match="a has 30 nodes and b has 31; give ids by which they can be matched"):
        check_compatible({"a": about(unnamed[0]), "b": about(unnamed[2])}, "vertical")


def test_common_nodes_against_python_sets() -> None:
    """Any lists: the intersection in the first one's order."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        lists = [rng.permutation(40)[: rng.integers(20, 40)] for _ in range(rng.integers(1, 5))]
        known = {str(place): {"nodes": len(one), "named": True, "ids": torch.from_numpy(one)} for place, one in enumerate(lists)}
        expected = [node for node in lists[0].tolist() if all(node in other.tolist() for other in lists)]
        if expected:
            assert common_nodes(known)[0].tolist() == expected


@pytest.mark.parametrize(
    ("choose", "sentence"),
    [
        (lambda ids: None, "does not say which nodes all sites hold"),
        (lambda ids: ids.float(), "does not say which nodes all sites hold"),
        (lambda ids: torch.cat([ids[:-1], ids[:1]]), "not all among this site's"),
        (lambda ids: torch.cat([ids[:-1], ids[-1:] + 1]), "not all among this site's"),
        (lambda ids: ids[: MIN_COMMON_NODES - 1], "too few to train on"),
        (lambda ids: ids[:0], "too few to train on"),
    ],
)
def test_a_server_cannot_name_other_nodes_or_a_few(choose: Callable[[Any], Any], sentence: str) -> None:
    """Nothing, nodes that the site does not hold, one twice, or so few that a count is about one of them."""
    one = graph()
    with pytest.raises(AtollError, match=sentence):
        with_common_nodes(one, choose(node_digests(one, KEY)), KEY, lambda text: None)


def test_a_permutation_is_undone_by_naming() -> None:
    """Rows, features, labels and edges follow their nodes."""
    one = graph()
    order = torch.randperm(30, generator=torch.Generator().manual_seed(3))
    there = with_common_nodes(one, node_digests(one, KEY)[order], KEY, pytest.fail)
    assert there.node_names is not None
    assert one.node_names is not None
    assert there.node_names.tolist() == one.node_names[order.numpy()].tolist()
    assert torch.equal(there.y, one.y[order])
    pairs = [{(g.node_names[a], g.node_names[b]) for a, b in g.edge_index.T.tolist()} for g in (one, there)]  # type: ignore[index]
    assert pairs[0] == pairs[1]


def test_secure_totals_need_one_order_everywhere(tmp_path: Path) -> None:
    """The attack: one site is sent its rows in another order, so that they are added to other patients'. No total opens."""
    found = clinics(tmp_path, frames(ordered=True), signed=True)
    site = found.wire.sites["clinic-b"]
    honest: Callable[[bytes], bytes] = site.handle
    heard: list[tuple[Any, Any]] = []

    def handle(data: bytes) -> bytes:
        request = wire.decode(data)
        if request["kind"] == "begin":
            request["order"]["nodes"] = request["order"]["nodes"].flip(0)
            data = wire.encode(request)
        answer = honest(data)
        heard.append((request.get("verb"), read_answer(answer)))
        return answer

    site.handle = handle  # type: ignore[method-assign]
    with pytest.raises(AtollError):
        found.serve(configs(tmp_path, "glasu", **VALUES, rounds=1, secure="True", secure_min=3, batch_size=0)[1])
    assert not [verb for verb, answer in heard if verb in ("embed", "evaluate") and not isinstance(answer, str)]


def test_ids_of_an_archive(tmp_path: Path) -> None:
    """`ids` of an .npz are what a table's `id` is."""
    config = configs(clinics(tmp_path / "x", frames(ordered=True)).folder, "glasu", **VALUES)[1]
    one = replace(csbm(30, 3, 1, 1, 4), ids=torch.arange(100, 130))
    files.save(one, tmp_path / "archive")
    about = Site(tmp_path / "site", tmp_path / "archive", kit=tmp_path / "x" / "kits" / "clinic-a")._describe(config)
    assert torch.equal(about["ids"], digests(map(str, range(100, 130)), "node", KEY))
    assert about["named"]
