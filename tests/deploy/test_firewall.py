"""The lock without processes: which messages a cell is given, beside a list of all that are allowed; and that it is there."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from small import small

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

import nvflare
from nvflare.fuel.f3.cellnet.cell import Cell, SimpleWaiter
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey, MessageType
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.stats_pool import StatsPoolManager
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)

from atoll import wire
from atoll.deploy import cell as nvflare_cell
from atoll.deploy import firewall, kit, launch, site_process, supervisor
from atoll.deploy.connections import PEER_CN, PeerNames
from atoll.deploy.firewall import MessageFilter
from atoll.deploy.kit import SERVER_IDENTITY, Kit
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site import Site
from atoll.engines.remote import MAX_MESSAGE_BYTES, __version__, read_answer
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.config import resolve

PATIENCE = 240.0  # seconds for processes on a busy machine


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of two banks."""
    folder = tmp_path_factory.mktemp("kits")
    kit.provision(["bank-a", "bank-b"], "localhost", folder, port=supervisor.free_port())
    return folder


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """NVFlare keeps every cell of a process by its name: here, and afterwards, there may be another of that name."""
    cells, pools = dict(CoreCell.ALL_CELLS), dict(StatsPoolManager.pools)
    CoreCell.ALL_CELLS.clear()
    StatsPoolManager.pools.clear()
    try:
        yield
    finally:
        for kept, before in ((CoreCell.ALL_CELLS, cells), (StatsPoolManager.pools, pools)):
            kept.clear()
            kept.update(before)


@pytest.fixture
def cell(made: Path, request: pytest.FixtureRequest) -> Iterator[Cell]:
    """A locked cell that is not started, of the kit that the test names."""
    name = getattr(request, "param", "server")
    with forgotten():
        yield nvflare_cell.open_cell(Kit.open(made / name, server=name == "server"))


def push(gate: MessageFilter, peer: str | None, name: str, headers: dict[str, Any]) -> dict[str, Any] | None:
    """The headers with which a message gets through a gate, or None; by a connection with a certificate, under a name."""
    passed: list[Message] = []
    gate.receiver = SimpleNamespace(process_message=lambda endpoint, connection, app_id, message: passed.append(message))
    connection = SimpleNamespace(get_conn_properties=lambda: {PEER_CN: peer} if peer else {})
    gate.process_message(SimpleNamespace(name=name), connection, CoreCell.APP_ID, Message(headers, b""))
    return passed[0].headers if passed else None


def gate_of(cell: Cell) -> MessageFilter:
    """The gate that stands before a cell."""
    gate = cell.core_cell.communicator.conn_manager.receivers[CoreCell.APP_ID]
    assert isinstance(gate, MessageFilter)
    return gate


def headers(origin: str, destination: str, channel: str, topic: str, **more: Any) -> dict[str, Any]:
    """A message between two cells."""
    return {
        MessageHeaderKey.ORIGIN: origin,
        MessageHeaderKey.FROM_CELL: origin,
        MessageHeaderKey.DESTINATION: destination,
        MessageHeaderKey.TO_CELL: destination,
        MessageHeaderKey.MSG_TYPE: MessageType.REQ,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
        **more,
    }


def chunk(channel: str, topic: str, request: Any = "r", **more: Any) -> dict[str, Any]:
    """The headers of a stream's first part."""
    return {
        StreamHeaderKey.CHANNEL: channel,
        StreamHeaderKey.TOPIC: topic,
        StreamHeaderKey.STREAM_ID: 7,
        StreamHeaderKey.STREAM_REQ_ID: request,
        StreamHeaderKey.PAYLOAD_ENCODING: Encoding.BYTES,
        StreamHeaderKey.SIZE: 3,
        StreamHeaderKey.SEQUENCE: 0,
        **more,
    }


@pytest.mark.parametrize("cell", ["server", "bank-a"], indirect=True)
def test_what_gets_through_is_a_short_list(cell: Cell) -> None:
    """All certificates, names, destinations, kinds, channels and topics against the list of what is allowed, written out."""
    gate, me = gate_of(cell), cell.core_cell.my_info.fqcn
    peers, names = (SERVER_IDENTITY, "bank-a", "bank-b", "stranger", None), ("server", "bank-a", "bank-b", "bank-b.child")
    outer = [(STREAM_CHANNEL, topic) for topic in (STREAM_DATA_TOPIC, STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC, "other")]
    outer += [("admin", "sys.shell"), ("task", "register"), ("aux_communication", "atoll"), ("return_only", "*")]
    inner = (("aux_communication", "atoll"), ("return_only", "aux_communication:atoll"), ("aux_communication", "fed.event"))
    cell.requests_dict["r"] = SimpleWaiter("r", "bank-b", None)
    cell.requests_dict["s"] = SimpleWaiter("s", "bank-a", None)
    taken = set()
    for peer, name, origin, destination in itertools.product(peers, names, names, ("server", "bank-a")):
        for (channel, topic), (stream, about), kind in itertools.product(outer, inner, (MessageType.REQ, MessageType.REPLY)):
            about_stream = chunk(stream, about, "r") if channel == STREAM_CHANNEL else {}
            sent = headers(origin, destination, channel, topic, **about_stream) | {MessageHeaderKey.MSG_TYPE: kind}
            if push(gate, peer, name, sent) is not None:
                taken.add((peer, name, origin, destination, kind, topic, stream if topic == STREAM_DATA_TOPIC else ""))
    if me == "server":
        allowed = {
            (bank, bank, bank, "server", "req", topic, "")
            for bank in ("bank-a", "bank-b")
            for topic in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)
        }
        allowed |= {("bank-b", "bank-b", "bank-b", "server", "req", STREAM_DATA_TOPIC, "return_only")}  # it alone was asked
    else:
        allowed = {
            (
                SERVER_IDENTITY,
                "server",
                "server",
                "bank-a",
                "req",
                topic,
                "aux_communication" if topic == STREAM_DATA_TOPIC else "",
            )
            for topic in (STREAM_DATA_TOPIC, STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)
        }
    assert taken == allowed


def test_a_reply_is_its_own_sites_and_one(cell: Cell) -> None:
    """A reply is taken from the site that was asked, by one stream, as long as it is awaited."""
    gate, reply = gate_of(cell), ("return_only", "aux_communication:atoll")
    cell.requests_dict["r"] = SimpleWaiter("r", "bank-a", None)

    def try_reply(bank: str, **more: Any) -> bool:
        return (
            push(gate, bank, bank, headers(bank, "server", STREAM_CHANNEL, STREAM_DATA_TOPIC, **chunk(*reply, **more)))
            is not None
        )

    assert not try_reply("bank-b")
    assert not try_reply("bank-a", **{StreamHeaderKey.SIZE: MAX_MESSAGE_BYTES + 1})
    assert not try_reply("bank-a", **{StreamHeaderKey.SIZE: -1})
    assert not try_reply("bank-a", **{StreamHeaderKey.STREAM_ID: "7"})
    assert not try_reply("bank-a", **{StreamHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS})
    assert try_reply("bank-a")
    assert try_reply("bank-a", **{StreamHeaderKey.SEQUENCE: 1})
    assert not try_reply("bank-a", **{StreamHeaderKey.STREAM_ID: 8})
    del cell.requests_dict["r"]
    assert not try_reply("bank-a", **{StreamHeaderKey.STREAM_ID: 9})


def test_an_acknowledgement_is_for_ones_own_stream(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams are numbered in order, so anybody can name anybody's: a member speaks of its own only."""
    monkeypatch.setitem(ByteStreamer.tx_task_map, 5, SimpleNamespace(target="bank-a"))
    for bank in ("bank-a", "bank-b"):
        for topic in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC):
            sent = headers(bank, "server", STREAM_CHANNEL, topic, **{StreamHeaderKey.STREAM_ID: 5})
            assert (push(gate_of(cell), bank, bank, sent) is not None) == (bank == "bank-a")


@pytest.mark.parametrize("cell", ["bank-a"], indirect=True)
def test_headers_that_switch_something_on_are_left_out(cell: Cell) -> None:
    """Addresses to connect to, encryption, lazy downloads, retries, routes, other people's errors: no header but the listed."""
    keys = {
        value for each in (MessageHeaderKey, StreamHeaderKey) for name, value in vars(each).items() if not name.startswith("_")
    }
    good = headers("server", "bank-a", STREAM_CHANNEL, STREAM_DATA_TOPIC, **chunk("aux_communication", "atoll"))
    extra = {key: 1 for key in keys - good.keys() if key != MessageHeaderKey.REPLY_EXPECTED and key != StreamHeaderKey.ERROR_TYPE}
    passed = push(gate_of(cell), SERVER_IDENTITY, "server", {**extra, **good})
    assert passed is not None
    assert passed.keys() - good.keys() <= {StreamHeaderKey.DATA_TYPE, StreamHeaderKey.OFFSET, StreamHeaderKey.ERROR_MSG}
    assert {key: passed[key] for key in good} == good


@pytest.mark.parametrize(
    "junk", [None, [], {1: 2}, {MessageHeaderKey.ORIGIN: ["bank-a"]}, {MessageHeaderKey.ORIGIN: "x\x1b[2J\n"}]
)
def test_junk_is_refused_and_named(junk: Any, cell: Cell, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the headers are, nothing is raised; the log names the certificate, in one line without escapes."""
    assert push(gate_of(cell), "bank-b", "bank-b", junk) is None
    (record,) = caplog.records
    assert record.getMessage().startswith("refused a message of bank-b: ")
    assert record.getMessage().isprintable()


def test_a_flood_does_not_fill_the_log(cell: Cell, caplog: pytest.LogCaptureFixture) -> None:
    """Each of the first refusals is told, later ones as their number doubles; another's are told as well."""
    for _ in range(5000):
        push(gate_of(cell), "bank-b", "bank-b", {})
    push(gate_of(cell), "bank-a", "bank-a", {})
    assert len(caplog.records) == firewall.MAX_LOGGED_REFUSALS + 8 + 1  # 32, 64, ..., 4096
    assert "(4096 in all)" in caplog.records[-2].getMessage()


def test_a_name_belongs_to_its_certificate() -> None:
    """Nobody connects under another name, nor under one of no member."""
    peers = PeerNames({"bank-a": "bank-a", "server": SERVER_IDENTITY})
    peers.require_match("server", SERVER_IDENTITY, "connection")
    for name, certificate in (
        ("server", "bank-a"),
        ("bank-a", SERVER_IDENTITY),
        ("bank-a.x", "bank-a"),
        ("x", "x"),
        ("x", ""),
        ("x", None),
    ):
        with pytest.raises(ValueError, match="authenticated as"):
            peers.require_match(name, certificate, "connection")


def test_only_streams_can_be_asked_for(cell: Cell) -> None:
    """A locked cell keeps the callbacks of streams; one for atoll's own is added at a site."""
    assert cell.core_cell.req_reg.reg.keys() == firewall.ALLOWED_TOPICS.keys()
    assert cell.byte_receiver.registry.reg.keys() == {"return_only:*"}
    assert cell.core_cell.ext_listeners == {}
    assert not cell.core_cell.connector_manager.adhoc_allowed


def deaf(init: Any) -> Any:
    """Cells whose messages are given to somebody else."""

    def changed(self: Cell, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.core_cell.communicator.conn_manager.receivers.clear()

    return changed


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "version": (lambda patch: patch.setattr(nvflare, "__version__", "2.9.1"), "the version is 2.9.1, not 2.9.0"),
    "stranger": (
        lambda patch: patch.setattr(MessageFilter, "_wrong_sender", lambda *anything: ""),
        "under a false name was accepted",
    ),
    "unlisted": (
        lambda patch: patch.setattr(MessageFilter, "_wrong_topic", lambda *anything: ""),
        "an admin command was accepted",
    ),
    "unasked": (
        lambda patch: patch.setattr(MessageFilter, "_wrong_stream", lambda *anything: ""),
        "another auxiliary request was accepted",
    ),
    "deaf": (
        lambda patch: patch.setattr(MessageFilter, "_wrong_topic", lambda *anything: "no"),
        "an acknowledgement was refused",
    ),
    "receiver": (lambda patch: patch.setattr(Cell, "__init__", deaf(Cell.__init__)), "a cell's messages arrive in another way"),
    "streams": (
        lambda patch: patch.setattr(firewall, "ALLOWED_TOPICS", {"new:topic": ""}),
        "streams are received in another way",
    ),
}


@pytest.mark.parametrize("part", BROKEN)
def test_the_self_test_stops_what_is_not_locked(part: str, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another NVFlare, or a gate that lets something through: one sentence, and no cell is started."""
    break_it, sentence = BROKEN[part]
    break_it(monkeypatch)
    with forgotten(), pytest.raises(AtollError, match=sentence) as caught:
        nvflare_cell.open_cell(Kit.open(made / "bank-a", server=False))
    assert str(caught.value).endswith("install nvflare==2.9.0.")


def test_a_process_that_stops_says_why(tmp_path: Path) -> None:
    """`atoll join` ends with the sentence and code 2; it does not start the site again and again."""
    kit.provision(["bank-a"], "localhost", tmp_path / "kits", port=supervisor.free_port())
    from atoll.data import files
    from atoll.data.federated import federate

    files.save(federate(small("fedavg"), None, ("horizontal",)).parts.select([0]), tmp_path / "data")
    (tmp_path / "kits" / "bank-a" / "startup" / "client.key").write_text("nonsense")
    words = [sys.executable, "-m", "atoll.cli.main", "join", str(tmp_path / "kits" / "bank-a"), "--data", str(tmp_path / "data")]
    path = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        words, capture_output=True, text=True, timeout=PATIENCE, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
    )
    assert ended.returncode == 2
    assert "holds no usable key and certificates" in " ".join(ended.stderr.split())


def test_a_dead_connection_is_given_up() -> None:
    """One that never said a word gets as long as one that fell silent; whoever speaks, or is asked for it again, stays."""
    mute, talker = SimpleNamespace(last_activity=0), SimpleNamespace(last_activity=1000.0)
    seen: dict[str, float] = {}
    assert nvflare_cell.silent_connections({"a": mute, "b": talker}, seen, 1000.0) == []
    assert nvflare_cell.silent_connections({"a": mute, "b": talker}, seen, 1000.0 + nvflare_cell.MAX_SILENT_SECONDS) == []
    talker.last_activity = 1050.0
    assert nvflare_cell.silent_connections({"a": mute, "b": talker}, seen, 1001.0 + nvflare_cell.MAX_SILENT_SECONDS) == [mute]
    assert nvflare_cell.silent_connections({"b": talker}, seen, 1051.0 + nvflare_cell.MAX_SILENT_SECONDS) == [talker]
    assert seen.keys() == {"b"}


def test_only_the_parent_process_makes_a_site_a_simulated_one(tmp_path: Path) -> None:
    """Without data of its own a site loads what the server names: only where its own machine's user started it so."""
    given = {"ATOLL_SITE_FOLDER": str(tmp_path), "ATOLL_SITE_JOURNAL": str(tmp_path / "j"), "ATOLL_SITE_SERVER": "server"}
    with pytest.raises(AtollError, match="A site needs data of its own"):
        site_process.site_from_environment(given)
    assert site_process.site_from_environment(given | {"ATOLL_SITE_POLICY": SitePolicy(simulated=True).to_json()}).data is None
    assert site_process.site_from_environment(given | {"ATOLL_SITE_DATA": str(tmp_path)}).data == tmp_path


def ask(document: Any) -> bytes:
    """What a server asks of a site before a run."""
    return wire.encode({"atoll": __version__, "run": "", "kind": "describe", "config": [document]})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"algorithm": "{evil}"}, "is not installed at this site, and none is loaded from the server"),
        ({"algorithm": "fedspray"}, "takes part in fedavg only, not in fedspray"),
        ({"algorithm": "fedavg", "dataset": "{folder}"}, "has its own data and loads no other"),
        ({"algorithm": "fedavg", "dataset": "cora"}, "has its own data and loads no other"),
        ({"algorithm": 3}, "names no algorithm"),
        ({"settings": {"model": "{evil}"}}, "is not installed at this site, and none is loaded from the server"),
        ({"settings_settings": {"model": "{evil}:Net"}}, "is not installed at this site, and none is loaded from the server"),
        ({"settings": {"model": "os:system"}}, "is not installed at this site, and none is loaded from the server"),
    ],
)
def test_a_site_looks_nothing_up_that_it_did_not_agree_to(
    change: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names of algorithms, models and data are checked as they came, before anything is resolved, imported or read."""
    evil, mark = tmp_path / "evil.py", tmp_path / "mark"
    evil.write_text(f"open({str(mark)!r}, 'w').close()\n")
    document = launch.deployment_config({"algorithm": "fedavg"}, "run.toml", ["a"]).to_dict()
    for name, value in change.items():
        filled = json.loads(json.dumps(value).replace("{evil}", str(evil)).replace("{folder}", str(tmp_path)))
        document[name] = document.get(name, {}) | filled if isinstance(filled, dict) else filled
    only = ("fedavg", str(evil)) if "evil" in str(change) else ("fedavg",)
    monkeypatch.setattr("atoll.deploy.site.configuration.from_dict", lambda *anything: pytest.fail("the algorithm was resolved"))
    told = str(read_answer(Site(tmp_path / "saves", tmp_path, policy=SitePolicy(only=only)).handle(ask(document))))
    assert sentence in told
    assert not mark.exists()


def test_an_own_algorithm_of_a_simulation(tmp_path: Path) -> None:
    """The user's own file runs over processes as in one, because the parent process named it; a site is not told so by others."""
    source = Path(__file__).parents[2] / "src" / "atoll" / "algorithms" / "fedavg.py"
    own = tmp_path / "mine.py"
    own.write_text(source.read_text())
    config = resolve(
        str(own), dataset="csbm", partition="random", parties=2, seed=1, engine="nvflare", values={"rounds": 1, "nodes": 60}
    )
    here = runner.run(resolve(str(own), dataset="csbm", partition="random", parties=2, seed=1, values={"rounds": 1, "nodes": 60}))
    assert launch.launch(config).metrics == here.metrics
    document = config.to_dict()
    assert "none is loaded from the server" in str(read_answer(Site(tmp_path / "a").handle(ask(document))))
    assert "none is loaded" in str(read_answer(Site(tmp_path / "b", policy=SitePolicy(files=(str(own),))).handle(ask(document))))


MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels, dropout=0.0):
        super().__init__()
        self.linear, self.dropout = torch.nn.Linear(in_channels, out_channels), torch.nn.Dropout(dropout)

    def forward(self, x, edge_index):
        return self.linear(self.dropout(x))
"""


def test_a_users_model_in_a_simulation(tmp_path: Path) -> None:
    """The user's file runs over processes as in one, to the same bits; a class cannot, and a real federation takes neither."""
    path = tmp_path / "net.py"
    path.write_text(MODEL)
    values = {"rounds": 1, "nodes": 60, "model": str(path), "dropout": 0.5}
    here, there = (
        resolve("fedavg", dataset="csbm", partition="random", parties=2, seed=1, engine=engine, values=values)
        for engine in ("inprocess", "nvflare")
    )
    assert launch.launch(there).metrics == runner.run(here).metrics
    net = {}
    exec(MODEL, {"__name__": "nets"}, net)
    with pytest.raises(AtollError, match="The engine nvflare cannot take a model as an object; write it to a file"):
        launch.launch(resolve("fedavg", dataset="csbm", engine="nvflare", values=values | {"model": net["Net"]}))
    with pytest.raises(AtollError, match="sites run no code that the server names; install it as a package"):
        launch.deployment_config({"algorithm": "fedavg", "settings": {"model": str(path)}}, "run.toml", ["a", "b"])
