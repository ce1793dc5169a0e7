"""Sites whose data does not fit: who differs in what is one sentence, other orders are put in order, names stay at home."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import tomli_w
import torch

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import description, digests, launch, server
from atoll.deploy import kit as kits
from atoll.deploy.compatibility import CommonForm, IncompatibleSites, check_compatible
from atoll.deploy.server import ServerRun
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine, read_answer
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.version import __version__
from sites import sites_with_data
from small import small
from test_promises import assert_same

COLUMNS = tuple(f"secret-column-{number}" for number in range(12))
CLASSES = ("secret-class-b", "secret-class-a", "secret-class-c")
SITES = ("bank-a", "bank-b", "bank-c")
KEY = b"k" * 32


class Wire:
    """A carrier that calls the sites directly and keeps every byte."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.bytes: list[bytes] = []

    def session(self, site: str) -> str:
        """Everybody is connected."""
        return site

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        replies: dict[str, bytes | str] = {site: self.sites[site].handle(data) for site, data in requests.items()}
        self.bytes += [*requests.values(), *(reply for reply in replies.values() if isinstance(reply, bytes))]
        return replies


@dataclasses.dataclass
class Bank:
    """A federation of three banks: their sites, what each has said, and the run."""

    config: Config
    wire: Wire
    said: dict[str, list[str]]
    warned: list[str]
    run: ServerRun


def graphs(config: Config) -> list[Graph]:
    """Three parties whose columns and classes have names."""
    parts = federate(config, None, ("horizontal", "overlapping")).parts
    return [replace(parts.select([party]), feature_names=COLUMNS, class_names=CLASSES) for party in range(3)]


@pytest.fixture
def bank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Bank]:
    """A function that starts the banks over these graphs."""

    def make(parts: Sequence[Graph], algorithm: str = "fedavg", form: str = "npz", resume: bool = False, **document: Any) -> Bank:
        small_config = small(algorithm)
        deployed = launch.deployment_config({"algorithm": algorithm, "seed": 3, **document}, "run.toml", SITES)
        deployed = replace(deployed, settings=small_config.settings, run=small_config.run)
        said: dict[str, list[str]] = {site: [] for site in SITES}
        sites = {}
        for site, graph in zip(SITES, parts, strict=True):
            files.save(graph, tmp_path / "data" / site, form)
            kit = tmp_path / "kits" / site
            kit.mkdir(parents=True, exist_ok=True)
            (kit / kits.NAMES_KEY).write_text(KEY.hex())
            (kit / kits.KIT_FILE).write_text(tomli_w.dumps({"site": site, "sites": list(SITES)}))
            sites[site] = Site(tmp_path / site, tmp_path / "data" / site, said[site].append, kit=kit)
        carrier, warned = Wire(sites), []
        monkeypatch.setattr(server, "report", lambda **what: warned.append(str(what.get("warn", ""))))
        roster = {site: (place, place + 1) for place, site in enumerate(SITES)}
        order = {"config": deployed.to_dict(), "roster": roster, "simulated": False, "patience": 1.0}
        order |= {"out": str(tmp_path / "run"), "resume": resume}
        return Bank(deployed, carrier, said, warned, ServerRun(carrier, order))  # type: ignore[arg-type]

    return make


def rounds(bank: Bank) -> runner.Result:
    """The run, without a folder."""
    return runner.rounds(bank.run._experiment(bank.run._common_form(), None))


def shuffled(graph: Graph, seed: int) -> Graph:
    """The same graph with its columns and classes written down in another order; the naive way, column by column."""
    rng = np.random.default_rng(seed)
    columns, classes = rng.permutation(graph.num_features).tolist(), rng.permutation(graph.num_classes).tolist()
    dense = graph.x.toarray() if sp.issparse(graph.x) else graph.x.numpy()
    x: Any = np.zeros_like(dense)
    for place, column in enumerate(columns):
        x[:, place] = dense[:, column]
    y = torch.tensor([-1 if label < 0 else classes.index(label) for label in graph.y.tolist()])
    names = tuple((graph.feature_names or ())[column] for column in columns)
    class_names = tuple((graph.class_names or ())[label] for label in classes)
    kept = sp.csr_array(x) if sp.issparse(graph.x) else torch.from_numpy(x)
    return replace(graph, x=kept, y=y, feature_names=names, class_names=class_names)


@pytest.mark.parametrize("form", ["npz", "csv"])
@pytest.mark.parametrize("normalize", [False, True])
def test_another_order_is_put_in_order(bank: Callable[..., Bank], form: str, normalize: bool) -> None:
    """Columns and classes in another order at two sites: bit for bit the run over data in one order, the simulation's."""
    parts = graphs(small("fedavg"))
    data = {"normalize_features": normalize}
    banks = bank([parts[0], shuffled(parts[1], 1), shuffled(parts[2], 2)], form=form, data=data)
    result = rounds(banks)
    assert [text for text in banks.warned if "put in bank-a's order" in text] == [
        "each of bank-b, bank-c has the classes of bank-a in another order; they are put in bank-a's order.",
        "each of bank-b, bank-c has the features of bank-a in another order; they are put in bank-a's order.",
    ]
    ordered = bank(parts, form=form, data=data)
    assert_same(rounds(ordered), result, 0.0)
    assert not ordered.warned
    if not normalize:
        assert_same(runner.run(small("fedavg")), result, 0.0)


def test_without_putting_in_order_the_numbers_are_others(bank: Callable[..., Bank], monkeypatch: pytest.MonkeyPatch) -> None:
    """What happened before: columns were mixed up and nobody said so."""
    parts = graphs(small("fedavg"))
    right = rounds(bank(parts))
    monkeypatch.setattr("atoll.deploy.site.description.reorder", lambda graph, *rest: graph)
    wrong = rounds(bank([parts[0], shuffled(parts[1], 1), shuffled(parts[2], 2)]))
    assert wrong.last["val_loss"] != right.last["val_loss"]


@pytest.mark.parametrize("sparse", [False, True])
def test_arrange_is_undone_by_naming(sparse: bool) -> None:
    """Every column and label is under its own name, dense and sparse."""
    graph = graphs(small("fedavg"))[0]
    graph = replace(graph, x=sp.csr_array(graph.x.numpy())) if sparse else graph  # type: ignore[union-attr]
    other = shuffled(graph, 5)
    order = {"columns": digests.digests(COLUMNS, "column", KEY), "names": digests.digests(CLASSES, "class", KEY)}
    back = description.reorder(other, order, KEY, pytest.fail)
    for one, same in ((back.nonzero_features, graph.nonzero_features), (back.y, graph.y)):
        assert (abs(one - same).max()) == 0
    assert back.feature_names == COLUMNS
    assert back.class_names == CLASSES
    assert back.digest == graph.digest


MISFITS: dict[str, tuple[Callable[[Graph], Graph], str, list[str]]] = {
    "a column": (
        lambda graph: replace(graph, feature_names=(*COLUMNS[:3], "secret-other", *COLUMNS[4:])),
        "feature 4 of bank-b (counted from 1) is not among the features of bank-a",
        ["columns here and not at bank-a: 'secret-other'; columns there and not here: 1"],
    ),
    "a class": (
        lambda graph: replace(graph, class_names=("secret-class-b", "secret-other", "secret-class-c")),
        "class 2 of bank-b (counted from 1) is not among the classes of bank-a",
        ["classes here and not at bank-a: 'secret-other'; classes there and not here: 1"],
    ),
    "one more": (
        lambda graph: replace(
            graph,
            x=torch.cat([graph.x, graph.x[:, :1]], 1),
            feature_names=(*COLUMNS, "secret-other"),  # type: ignore[list-item, index]
        ),
        "bank-a has 12 features and bank-b has 13",
        ["columns here and not at bank-a: 'secret-other'; columns there and not here: 0"],
    ),
    "no class names": (lambda graph: replace(graph, class_names=None), "bank-a names its classes and bank-b does not", []),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_who_differs_in_what(kind: str, bank: Callable[..., Bank]) -> None:
    """One sentence at the server without a name; the site's own log names it; the bytes hold no name."""
    change, sentence, said = MISFITS[kind]
    parts = graphs(small("fedavg"))
    banks = bank([parts[0], change(parts[1]), parts[2]])
    with pytest.raises(AtollError) as refused:
        banks.run._common_form()
    assert sentence in str(refused.value)
    assert "secret" not in str(refused.value)
    assert banks.said["bank-b"] == said
    assert not any(b"secret" in data for data in banks.wire.bytes)


def test_names_never_leave_the_site(bank: Callable[..., Bank]) -> None:
    """A whole run: no column and no class by name in any message; another key gives other digests."""
    banks = bank(graphs(small("fedavg")))
    rounds(banks)
    assert banks.wire.bytes
    assert not any(b"secret" in data for data in banks.wire.bytes)
    one, other = digests.digests(COLUMNS, "column", KEY), digests.digests(COLUMNS, "column", b"x" * 32)
    assert not torch.isin(one, other).any()
    assert not torch.isin(one, digests.digests(COLUMNS, "class", KEY)).any()


def test_the_server_cannot_look_names_up(tmp_path: Path) -> None:
    """The attack: the server digests a list of likely names. The key is in every site's kit, the same, and not in its own."""
    kits.provision(["bank-a", "bank-b"], "localhost", tmp_path)
    keys = [digests.digest_key(tmp_path / site) for site in ("bank-a", "bank-b")]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 32
    with pytest.raises(AtollError, match=r"names\.secret"):
        digests.digest_key(tmp_path / "server")
    held = [path.read_bytes() for path in (tmp_path / "server").rglob("*") if path.is_file()]
    assert not any(keys[0].hex().encode() in data or keys[0] in data for data in held)
    assert (tmp_path / "bank-a" / kits.NAMES_KEY).stat().st_mode & 0o077 == 0
    told = digests.digests(["income"], "column", keys[0])
    guesses = [digests.digests(["age", "income"], "column", key) for key in (b"", b"income", *(data[:64] for data in held))]
    assert not any(torch.isin(told, guess).any() for guess in guesses)


def test_sites_without_names_are_counted(bank: Callable[..., Bank]) -> None:
    """Where one names no columns the others are compared, and the user hears of it; where none does, nothing is said."""
    parts = graphs(small("fedavg"))
    unnamed = [replace(graph, feature_names=None) for graph in parts]
    banks = bank([parts[0], unnamed[1], parts[2]])
    assert banks.run._common_form().features == 12
    assert banks.warned == ["bank-b does not name its features, so their order could not be compared with bank-a's."]
    assert_same(rounds(banks), rounds(bank(parts)), 0.0)
    silent = bank(unnamed)
    silent.run._common_form()
    assert silent.warned == []


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (lambda x: x / x.abs().sum(1, keepdim=True), "add up to 1 at every node"),
        (lambda x: (x - x.mean(0)) / x.std(0), "have mean 0 and deviation 1 in every column"),
        (lambda x: (x - x.min()) / (x.max() - x.min()), "lie between 0 and 1"),
    ],
)
def test_scaling_is_compared(bank: Callable[..., Bank], scale: Callable[[Any], Any], words: str) -> None:
    """A site that scaled its features is named beside one that did not; the run goes on, and may be meant."""
    parts = graphs(small("fedavg"))
    banks = bank([parts[0], parts[1], replace(parts[2], x=scale(parts[2].x))])
    banks.run._common_form()
    (told,) = banks.warned
    assert told.startswith("The features of bank-a are not scaled in any of the usual ways, those of bank-c")
    assert words in told
    alike = bank([replace(graph, x=scale(graph.x)) for graph in parts])
    alike.run._common_form()
    assert not alike.warned


def overlapping() -> list[Graph]:
    """Three parties that share nodes, with the same roles everywhere."""
    return graphs(small("fedgl"))


def test_roles_of_shared_nodes(bank: Callable[..., Bank]) -> None:
    """A node that trains at one site and tests at another leaks its label into training; one without a role does not."""
    parts = overlapping()
    banks = bank(parts, "fedgl", partition="overlap")
    assert banks.run._common_form().classes == 3
    shared = torch.isin(parts[1].ids, parts[0].ids)
    moved = parts[1].train & shared
    assert int(moved.sum()) > 0
    trained = parts[1].train & ~moved
    other = replace(parts[1], train=trained, test=parts[1].test | moved)
    with pytest.raises(AtollError) as refused:
        bank([parts[0], other, parts[2]], "fedgl", partition="overlap").run._common_form()
    count = len({int(node) for node in parts[1].ids[moved]} & {int(node) for node in parts[0].ids[parts[0].train]})
    assert f"{count} nodes that bank-a and bank-b share have different roles" in str(refused.value)
    bank([parts[0], replace(parts[1], train=trained), parts[2]], "fedgl", partition="overlap").run._common_form()


def test_overlapping_sites_keep_the_roles_of_their_data(bank: Callable[..., Bank]) -> None:
    """A split that each site drew for itself would give shared nodes several roles: it is refused."""
    banks = bank(overlapping(), "fedgl", partition="overlap", split={"split": "random"})
    form = banks.run._common_form()
    with pytest.raises(AtollError, match="must agree on their roles, so the data's own split is used"):
        runner.rounds(banks.run._experiment(form, None))


def test_overlapping_columns_are_put_in_order(bank: Callable[..., Bank]) -> None:
    """FedGL over sites in several orders: the bits of the run in one order."""
    parts = overlapping()
    right = rounds(bank(parts, "fedgl", partition="overlap"))
    other = rounds(bank([parts[0], shuffled(parts[1], 1), shuffled(parts[2], 2)], "fedgl", partition="overlap"))
    assert_same(right, other, 0.0)


def test_a_replaced_split_is_said_at_the_site(bank: Callable[..., Bank]) -> None:
    """And nowhere else."""
    banks = bank(graphs(small("fedavg")), split={"split": "random"})
    rounds(banks)
    for said in banks.said.values():
        assert "the data's own split is replaced: the server's configuration says split='random'" in said


def test_the_order_outlives_the_first_site(bank: Callable[..., Bank]) -> None:
    """Resumed without the site that gave the order: the model's columns stay where they were."""
    parts = graphs(small("fedavg"))
    banks = bank([parts[0], shuffled(parts[1], 1), parts[2]])
    engine = banks.run._experiment(banks.run._common_form(), None).engine
    assert isinstance(engine, RemoteEngine)
    engine.round = 1
    saved = wire.decode(wire.encode(engine.state()))
    later = {site: parties for site, parties in banks.run.roster.items() if site != "bank-a"}
    alone = description.describe(shuffled(parts[1], 1), "horizontal", KEY)
    other = RemoteEngine(
        banks.wire,
        later,
        banks.config.to_dict(),
        engine.schema,
        timeout=5.0,
        order=check_compatible({"bank-b": alone}, "horizontal").order,
    )
    assert not torch.equal(other.order["columns"], engine.order["columns"])
    other.restore(saved)
    assert torch.equal(other.order["columns"], engine.order["columns"])
    cohort = banks.wire.sites["bank-b"].cohort
    assert cohort is not None
    assert cohort.graph.feature_names == COLUMNS


def test_a_site_that_comes_late_with_other_columns_is_refused(bank: Callable[..., Bank]) -> None:
    """Where it was not there to be compared, `begin` does it; its log names the column."""
    parts = graphs(small("fedavg"))
    banks = bank(parts)
    form = banks.run._common_form()
    files.save(replace(parts[1], feature_names=(*COLUMNS[:-1], "secret-other")), banks.wire.sites["bank-b"].data)  # type: ignore[arg-type]
    engine = banks.run._experiment(form, None).engine
    assert isinstance(engine, RemoteEngine)
    reply = engine._begin(["bank-b"])["bank-b"]
    assert reply == "refused: its columns are not those of the federation; its log lists them."
    assert "'secret-other'" in banks.said["bank-b"][0]


NONSENSE: dict[str, dict[str, Any]] = {
    "text": {"columns": "abc"},
    "too few": {"columns": torch.arange(3)},
    "floats": {"columns": torch.zeros(12)},
    "a square": {"names": torch.zeros(3, 3, dtype=torch.int64)},
    "true": {"features": True},
    "negative": {"classes": -1},
    "a new scaling": {"scaling": "secret"},
}


CLAIMS = {"true": "it says that it has True features, of at most ", "negative": "it says that it has -1 classes, of at most "}


@pytest.mark.parametrize("kind", NONSENSE)
def test_nonsense_is_the_fault_of_its_site(kind: str) -> None:
    """Whatever a site says of its graph: it is named, in one sentence; a number that cannot be is named too."""
    good = description.describe(graphs(small("fedavg"))[0], "horizontal", KEY)
    sentence = CLAIMS.get(kind, "its description of its graph could not be read.")
    with pytest.raises(AtollError, match="^The site bank-b cannot take part: " + re.escape(sentence)):
        check_compatible({"bank-a": good, "bank-b": {**good, **NONSENSE[kind]}}, "horizontal")


def test_a_name_twice_is_a_disagreement() -> None:
    """Digests of the same set, one of them twice."""
    good = description.describe(graphs(small("fedavg"))[0], "horizontal", KEY)
    twice = good["columns"].clone()
    twice[0] = twice[1]
    with pytest.raises(IncompatibleSites, match="the features of bank-a and bank-b differ"):
        check_compatible({"bank-a": good, "bank-b": {**good, "columns": twice}}, "horizontal")


@pytest.mark.parametrize(
    "order", [{"columns": torch.zeros(12)}, {"columns": "abc"}, {"columns": torch.zeros(12, dtype=torch.int64)}]
)
def test_a_site_takes_no_nonsense_for_an_order(order: dict[str, Any]) -> None:
    """The server's order must be one of the site's own columns, each once."""
    with pytest.raises(AtollError):
        description.reorder(graphs(small("fedavg"))[0], order, KEY, lambda text: None)


def test_the_message_that_tells_of_a_difference_tells_nothing_back(bank: Callable[..., Bank]) -> None:
    """Whatever the server asks by it, the answer is empty; the name it gives is shown without escapes."""
    banks = bank(graphs(small("fedavg")))
    site = banks.wire.sites["bank-b"]
    request = {"atoll": form_version(), "run": "", "kind": "differ", "config": [banks.config.to_dict()], "field": "columns"}
    reply = site.handle(
        wire.encode({**request, "site": "bank-a\x1b[31m", "digests": digests.digests(COLUMNS[:1], "column", KEY)})
    )
    assert read_answer(reply) == {}
    assert banks.said["bank-b"][0].startswith("columns here and not at bank-a??31m: 'secret-column-1'")
    assert "refused" in str(read_answer(site.handle(wire.encode({**request, "site": "x"}))))


def form_version() -> str:
    """The version that both ends say."""
    from atoll import __version__

    return __version__


def test_column_names_are_kept_by_every_form(tmp_path: Path) -> None:
    """Tables and .npz; names that would be taken for something else are left out of tables."""
    graph = graphs(small("fedavg"))[0]
    for kind in ("npz", "csv", "parquet"):
        files.save(graph, tmp_path / kind, kind)
        assert files.read(tmp_path / kind).feature_names == COLUMNS
    files.save(replace(graph, feature_names=("label", *COLUMNS[1:])), tmp_path / "reserved", "csv")
    assert files.read(tmp_path / "reserved").feature_names == tuple(f"x{column}" for column in range(12))
    arrays = files.arrays(graph) | {"feature_names": np.array(COLUMNS[:3])}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(AtollError, match="must be a list that names each of the 12 features once"):
        files.read(tmp_path / "bad.npz")
    assert json.dumps(graph.rows(torch.arange(3)).feature_names) == json.dumps(COLUMNS)


@pytest.mark.filterwarnings("default")
def test_what_is_odd_in_a_sites_data_is_said_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`atoll join` prints the warnings of its own data, and the description that it sends holds none of them."""
    import sys

    from atoll.cli import main

    kits.provision(["bank-a"], "localhost", tmp_path / "kits")
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{node},{node % 2},{node * node % 7},{('secret-yes', 'secret-no')[node % 2]}" for node in range(80)]
    (folder / "nodes.csv").write_text("id,target,age,label\n" + "\n".join(rows) + "\n")
    (folder / "edges.csv").write_text("source,target,weight\n1,1,0.5\n1,2,0.5\n1,2,0.5\n")
    ended = type("Ended", (), {"left": True, "stop": lambda self: None})
    monkeypatch.setattr(launch, "SiteProcess", lambda *arguments, **named: ended())
    monkeypatch.setattr(sys, "argv", ["atoll", "join", str(tmp_path / "kits" / "bank-a"), "--data", str(folder)])
    said = []
    monkeypatch.setattr(
        sys, "stderr", type("Ear", (), {"write": lambda self, text: said.append(text), "flush": lambda self: None})()
    )
    with pytest.raises(SystemExit) as ended_with:
        main.main()
    assert ended_with.value.code == 0
    told = "".join(said)
    for words in (
        "`target` is named like a label",
        "1 edge from a node to itself",
        "1 repeated edge: the weights of parallel edges are added",
    ):
        assert told.count(words) == 1
    config = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["bank-a"])
    about = Site(tmp_path / "runs", folder, kit=tmp_path / "kits" / "bank-a")._describe(config)
    assert b"secret" not in wire.encode(about)


def test_a_site_that_stays_unfit_says_it_once(tmp_path: Path) -> None:
    """It is asked again in every round; its owner reads one line."""
    said: list[str] = []
    site = Site(tmp_path, tmp_path / "nowhere", notify=said.append)
    config = {"algorithm": "fedavg", "dataset": "given", "partition": "horizontal"}
    document = {"kind": "describe", "config": [config]}
    for _ in range(3):
        site.handle(wire.encode({"atoll": __version__, "run": "", **document}))
    assert len(said) == 1


def test_sites_must_agree_on_the_form_of_the_data(tmp_path: Path) -> None:
    """What sites say of their graphs, and the sentence that says who differs in what."""
    sites = sites_with_data(tmp_path, small("fedavg"))
    deployed = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a", "b", "c"])
    ask = wire.encode({"atoll": __version__, "run": "", "kind": "describe", "config": [deployed.to_dict()]})
    about = {site: read_answer(host.handle(ask)) for site, host in sites.items()}
    assert check_compatible(about, "horizontal") == CommonForm(12, 3)
    wider = about | {"site-1": {**about["site-1"], "features": 13}}  # type: ignore[dict-item]
    with pytest.raises(AtollError, match="site-0 has 12 features and site-1 has 13"):
        check_compatible(wider, "horizontal")
    with pytest.raises(AtollError, match="site-2 names its classes and site-0 does not"):
        check_compatible(about | {"site-2": {**about["site-2"], "names": torch.tensor([7, 8, 9])}}, "horizontal")  # type: ignore[dict-item]
    with pytest.raises(AtollError, match="site site-1 cannot take part: it timed out"):
        check_compatible(about | {"site-1": "timed out"}, "horizontal")
    assert "no data of its own" in str(read_answer(Site(tmp_path).handle(ask)))
