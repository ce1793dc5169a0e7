"""A member that attacks, over real NVFlare processes: it has a valid kit and runs whatever it likes.

It tries every channel and topic that NVFlare knows, as itself and under the names of others, on another member and on the server.
Each attack is also played where the lock is off, and works there: so the tests can fail.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sites import first_model, wait_until
from small import small

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

import plain_nvflare
from hostile import EVIL, Member, command
from nvflare.apis.fl_constant import AdminCommandNames, ServerCommandNames
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.private import defs

from atoll import wire
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import kit as kits
from atoll.deploy import launch, supervisor
from atoll.deploy.kit import Kit
from atoll.deploy.policy import SitePolicy
from atoll.engines import remote
from atoll.engines.remote import read_answer
from atoll.errors import AtollError

pytestmark = [pytest.mark.early, pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # NVFlare's own
VICTIM, OTHER, HOSTILE = "bank-a", "bank-b", "mallory"
ATOLL = (CellChannel.AUX_COMMUNICATION, "atoll")


class Federation:
    """A server and an honest site as processes, and the kits of all members; `program` is what starts an end."""

    def __init__(self, folder: Path, hostile: str, program: list[str] | None = None) -> None:
        self.folder = folder
        self.said: list[str] = []
        kits.provision([VICTIM, OTHER, hostile], "localhost", folder / "kits", port=supervisor.free_port())
        parts = federate(small("fedavg"), None, ("horizontal",)).parts
        files.save(parts.select([0]), folder / "data")
        self.kit = Kit.open(folder / "kits" / "server", server=True)
        self.hostile = Kit.open(folder / "kits" / hostile, server=False)
        self.victim = Kit.open(folder / "kits" / VICTIM, server=False)
        (self.victim.path / "nodes.csv").write_text("id,secret\n")
        with pytest.MonkeyPatch.context() as patch:
            if program:
                patch.setattr(
                    supervisor, "_command", lambda end, kit: [*program, end, str(kit.path), *([kit.site] if kit.site else [])]
                )
            self.server = supervisor.ServerProcess(self.kit, self.said.append, self.said.append)
            policy = {"ATOLL_SITE_POLICY": SitePolicy(only=("fedavg",)).to_json()}
            self.guest = supervisor.SiteProcess(
                self.victim, folder / "saves", folder / "data", self.said.append, self.said.append, policy
            )
        wait_until(self.joined, "the honest site")
        self.member = Member(self.hostile)

    def joined(self) -> bool:
        """Whether the honest site is there."""
        self.guest.poll()
        return self.guest.joined

    def ready(self) -> Federation:
        """Wait until everybody is there."""
        wait_until(lambda: self.member.connected() and self.member.asked, "the hostile member")
        return self

    def stop(self) -> None:
        """End everybody."""
        self.member.stop()
        for child in (self.server.child, self.guest.child):
            child.close_stdin()
        self.server.stop()
        self.guest.stop()

    def settle(self) -> None:
        """Let the server finish with everything it was sent: it asks both members, and both answer."""
        self.server.echo([VICTIM, str(self.hostile.site)], 10, 3)

    def log(self, kit: Kit) -> str:
        """What stands in an end's log."""
        return (kit.path / "log.txt").read_text() if (kit.path / "log.txt").exists() else ""

    def document(self, algorithm: str) -> dict[str, Any]:
        """A configuration as the server would send it."""
        sites = list(self.kit.sites)
        return launch.deployment_config({"algorithm": "fedavg"}, "run.toml", sites).to_dict() | {"algorithm": algorithm}

    def begin(self, algorithm: str, run: str) -> bytes:
        """The message with which a run begins."""
        return wire.encode(
            {
                "atoll": remote.__version__,
                "run": run,
                "kind": "begin",
                "config": [self.document(algorithm)],
                "schema": {"features": 12, "classes": 3, "parties": 3},
                "token": -1,
                "exact": False,
                "parties": torch.tensor([0]),
            }
        )

    def fit(self, run: str) -> bytes:
        """The message that asks a party for its update."""
        config = small("fedavg")
        about = {"atoll": remote.__version__, "run": run, "kind": "ask", "verb": "fit", "round": 1, "call": 0, "training": True}
        return wire.encode({**about, "parties": torch.tensor([0]), "common": {"model": first_model(config)}, "each": {}})


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """A federation as atoll starts it."""
    federation = Federation(tmp_path_factory.mktemp("locked"), HOSTILE)
    try:
        yield federation.ready()
    finally:
        federation.stop()


@pytest.fixture(scope="module")
def unlocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The same without the lock."""
    program = [sys.executable, "-u", str(Path(__file__).with_name("unlocked.py"))]
    federation = Federation(tmp_path_factory.mktemp("unlocked"), "eve", program)
    try:
        yield federation.ready()
    finally:
        federation.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """NVFlare's own programs: what they register, and what one client gets out of another."""
    folder = tmp_path_factory.mktemp("plain")
    made = plain_nvflare.workspaces([VICTIM, HOSTILE], supervisor.free_port(), folder)
    (made / VICTIM / "nodes.csv").write_text("id,secret\n")
    plain_nvflare.add_component(made / HOSTILE, "hostile.Component")
    loot = folder / "loot.json"
    processes = [
        plain_nvflare.start("server", made / kits.SERVER_IDENTITY, folder / "server.txt"),
        plain_nvflare.start("client", made / VICTIM, folder / "client.txt"),
        plain_nvflare.start("client", made / HOSTILE, folder / "hostile.txt", VICTIM=VICTIM, LOOT=str(loot)),
    ]
    try:
        wait_until(loot.exists, "the attack on plain NVFlare")
        registered = {
            tuple(json.loads(line)) for end in ("server", "client") for line in (folder / f"{end}.txt").read_text().splitlines()
        }
        yield SimpleNamespace(loot=json.loads(loot.read_text()), registered=registered, victim=made / VICTIM)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def names() -> tuple[set[str], set[str]]:
    """The channels and topics that NVFlare has names for."""
    holders = [CellChannelTopic, AdminCommandNames, ServerCommandNames, *vars(defs).values()]
    named = [vars(each) for each in holders if isinstance(each, type) and each.__module__.startswith("nvflare")]
    topics = {value for each in named for name, value in each.items() if not name.startswith("_") and isinstance(value, str)}
    return {value for name, value in vars(CellChannel).items() if not name.startswith("_")}, topics


def everything(registered: set[tuple[str, str]], *, product: bool) -> list[tuple[str, str]]:
    """All that NVFlare registers, every channel and every topic it knows; with `product`, each channel with each topic."""
    channels, topics = names()
    channels |= {channel for channel, _ in registered} | {""}
    topics |= {topic for _, topic in registered} | {"atoll", "*", ""}
    few = ("*", "atoll", "") if not product else topics
    some = (CellChannel.CLIENT_MAIN, CellChannel.SERVER_MAIN, CellChannel.HCI) if not product else channels
    return sorted(registered | {ATOLL} | set(itertools.product(channels, few)) | set(itertools.product(some, topics)))


def test_the_list_of_what_can_be_asked_is_not_stale(plain: SimpleNamespace) -> None:
    """What NVFlare's real processes register is in the list that is tried, and it is a long one."""
    tried = set(everything(plain.registered, product=False))
    assert {
        ("admin", "sys.shell"),
        ("admin", "train.deploy"),
        ("task", "quit"),
        ("_net_manager", "stop_cell"),
    } <= plain.registered
    assert plain.registered <= tried
    assert {("hci_channel", "submit_job"), ATOLL, ("cellnet.channel", "bye")} <= tried


def test_nvflares_own_commands(plain: SimpleNamespace, locked: Federation) -> None:
    """Reading the key and the data of another member with the shell and deploying an app there: works on NVFlare, not here."""
    assert "PRIVATE KEY" in plain.loot["key"]
    assert plain.loot["data"] == "id,secret\n"
    assert list(plain.victim.rglob(EVIL))
    before = sorted(path for path in locked.victim.path.rglob("*") if path.is_file())
    answers: dict[str, str] = {}

    def ask(what: str) -> None:
        answers[what] = command(locked.member.cell, VICTIM, what, locked.hostile.path / "startup", 2.0)

    threads = [threading.Thread(target=ask, args=(what,)) for what in ("key", "data", "app", "info")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == dict.fromkeys(("key", "data", "app", "info"), "")
    assert sorted(path for path in locked.victim.path.rglob("*") if path.is_file()) == before
    assert f"refused a message of {HOSTILE}: it is for {VICTIM}, and nothing is forwarded" in locked.log(locked.kit)


def unsolicited(member: Member) -> list[Any]:
    """What a member was sent that no honest server sends: all but requests of atoll's, acknowledgements and errors of streams."""
    strange = []
    for message in list(member.heard):
        headers = message.headers
        inner = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
        data = headers[MessageHeaderKey.TOPIC] == STREAM_DATA_TOPIC and inner == ATOLL
        other = headers[MessageHeaderKey.TOPIC] in (STREAM_ACK_TOPIC, STREAM_ERROR_TOPIC)
        good = headers[MessageHeaderKey.CHANNEL] == STREAM_CHANNEL and headers[MessageHeaderKey.ORIGIN] == "server"
        if not good or not (data or other):
            strange.append(headers)
    return strange


@pytest.mark.parametrize("target", [VICTIM, "server"])
def test_every_channel_and_topic(target: str, plain: SimpleNamespace, locked: Federation) -> None:
    """Each as a request and a stream, as itself, as the server and as another member: nothing is answered, nobody is reached."""
    sweep(locked, target, everything(plain.registered, product=False))


@pytest.mark.full
@pytest.mark.parametrize("target", [VICTIM, "server"])
def test_every_channel_with_every_topic(target: str, plain: SimpleNamespace, locked: Federation) -> None:
    """The same for all pairs."""
    sweep(locked, target, everything(plain.registered, product=True))


def sweep(locked: Federation, target: str, tried: list[tuple[str, str]]) -> None:
    """Send everything, and see that it came to nothing."""
    member, before = locked.member, locked.log(locked.victim)
    for channel, topic in tried:
        for origin in (HOSTILE, "server", VICTIM):
            member.send(target, channel, topic, origin=origin)
            member.stream(target, channel, topic, origin=origin, payload=b"leave")
    locked.settle()
    assert unsolicited(member) == []
    assert "refused" not in locked.log(locked.victim).removeprefix(before)  # it was not even reached
    assert locked.joined()
    assert not locked.guest.left


def test_the_sweep_reaches_where_nothing_is_locked(unlocked: Federation) -> None:
    """The same frames, without the lock: another member is reached, and it answers to the one who asked."""
    member, echo = unlocked.member, wire.encode({"atoll": remote.__version__, "run": "", "kind": "echo"})
    member.stream(VICTIM, *ATOLL, payload=echo)
    member.send(VICTIM, "admin", "sys.shell")
    member.send("server", "admin", "sys.shell")
    wait_until(lambda: {headers[MessageHeaderKey.ORIGIN] for headers in unsolicited(member)} == {VICTIM, "server"}, "answers")


@pytest.mark.parametrize("kind", ["locked", "unlocked"])
def test_an_update_of_a_single_party(kind: str, request: pytest.FixtureRequest) -> None:
    """`begin` and `fit` of a member get another's update where nothing is locked, and nothing here."""
    federation: Federation = request.getfixturevalue(kind)
    member = federation.member
    asked = [federation.begin("fedavg", "mine"), federation.fit("mine")]
    replies = [member.request(VICTIM, data, 2.0 if kind == "locked" else 60.0) for data in asked]
    if kind == "unlocked":
        update = read_answer(replies[1])
        assert isinstance(update, dict)
        assert "model" in update
    else:
        assert replies == [b"", b""]
        federation.settle()
        assert not (federation.folder / "saves" / "mine").exists()
        assert "fedavg" not in " ".join(federation.said)


@pytest.mark.parametrize("kind", ["locked", "unlocked"])
def test_code_in_the_place_of_an_algorithm(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """A path as the algorithm's name is imported where nothing is locked; here it is refused even when the server says it."""
    federation: Federation = request.getfixturevalue(kind)
    evil, mark = tmp_path / EVIL, tmp_path / "mark"
    evil.write_text(f"open({str(mark)!r}, 'w').close()\n")
    federation.member.request(VICTIM, federation.begin(str(evil), "evil"), 2.0 if kind == "locked" else 60.0)
    federation.settle()
    assert mark.exists() == (kind == "unlocked")


def test_replies_in_the_name_of_another(locked: Federation) -> None:
    """Streams that say they are another's reply, or answer what was never asked, or promise a gigabyte: none is taken."""
    member, reply = locked.member, ("return_only", "aux_communication:atoll")
    for origin in (VICTIM, OTHER, "server", HOSTILE):
        member.stream("server", *reply, origin=origin, payload=b"x")
        member.stream("server", *reply, origin=origin, payload=b"x", **{StreamHeaderKey.SIZE: 1 << 30})
        member.send("server", *reply, origin=origin, **{MessageHeaderKey.MSG_TYPE: MessageType.REPLY})
        member.send("server", *reply, origin=origin, **{MessageHeaderKey.MSG_TYPE: MessageType.RETURN})
    locked.settle()
    assert unsolicited(member) == []


@pytest.mark.parametrize("kind", ["locked", "unlocked"])
def test_ending_the_message_to_another(kind: str, request: pytest.FixtureRequest) -> None:
    """Streams are numbered one after the other: a member that has one can name, and break off, its neighbor's; not here."""
    federation: Federation = request.getfixturevalue(kind)
    member, stop = federation.member, threading.Event()
    federation.settle()
    last = max(message.headers[StreamHeaderKey.STREAM_ID] for message in member.asked)

    def spoil() -> None:
        while not stop.wait(0.001):
            for number in range(last + 1, last + 6):
                about = {
                    StreamHeaderKey.STREAM_ID: number,
                    StreamHeaderKey.ERROR_MSG: "over",
                    MessageHeaderKey.REPLY_EXPECTED: False,
                }
                member.send("server", STREAM_CHANNEL, STREAM_ACK_TOPIC, **about)

    thread = threading.Thread(target=spoil)
    thread.start()
    try:
        federation.server.echo([VICTIM], 30_000_000, 4)
        spoiled = ""
    except AtollError as error:
        spoiled = str(error)
    finally:
        stop.set()
        thread.join()
    assert (VICTIM in spoiled) == (kind == "unlocked"), spoiled


def test_under_another_name(locked: Federation) -> None:
    """A connection that gives itself another member's name, or that of a child or an administrator, is closed and named."""
    for name in (VICTIM, OTHER, f"{HOSTILE}.child", "_admin_0"):
        before = locked.log(locked.kit)
        posing = Member(locked.hostile, name, locked.folder / "posing")
        try:
            sentence = f"authenticated as '{HOSTILE}' but claimed endpoint '{name}'"
            wait_until(lambda: sentence in locked.log(locked.kit).removeprefix(before), sentence)  # noqa: B023
            assert not posing.asked
        finally:
            posing.stop()
    locked.settle()


def test_in_the_place_of_the_server(locked: Federation) -> None:
    """A member that stands where a site looks for the server, with its own certificate, gets no answer: the site names it."""
    port = supervisor.free_port()
    words = [sys.executable, "-u", str(Path(__file__).with_name("impostor.py")), str(locked.hostile.path), str(port)]
    impostor = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lost = locked.folder / "lost"
    kits.shutil.copytree(locked.victim.path, lost)
    (lost / "log.txt").unlink(missing_ok=True)
    (lost / "atoll.toml").write_text((lost / "atoll.toml").read_text().replace(f"port = {locked.kit.port}", f"port = {port}"))
    kit = replace(locked.victim, path=lost, port=port)
    site = supervisor.SiteProcess(kit, locked.folder / "lost-saves", locked.folder / "data", print, print)
    try:
        sentence = f"authenticated as '{HOSTILE}' but claimed endpoint 'server'"
        wait_until(lambda: sentence in locked.log(kit), sentence)
        site.poll()
        assert not site.joined
    finally:
        site.stop()
        impostor.kill()
        heard = impostor.communicate()[0]
    assert "answered" not in heard


def test_with_the_certificate_of_another_federation(locked: Federation, tmp_path: Path) -> None:
    """There is no connection at all, and the server's log says so."""
    kits.provision([VICTIM, "stranger"], "localhost", tmp_path, port=locked.kit.port)
    authorities = [folder / "startup" / "rootCA.pem" for folder in (tmp_path / "stranger", locked.kit.path)]
    authorities[0].write_bytes(b"".join(path.read_bytes() for path in authorities))  # it trusts the server, to come that far
    stranger = Member(Kit.open(tmp_path / "stranger", server=False))
    try:
        sentence = "refused a connection from 127.0.0.1: CERTIFICATE_VERIFY_FAILED"
        wait_until(lambda: sentence in locked.log(locked.kit), sentence)
        assert not stranger.heard
        assert not stranger.connected()
    finally:
        stranger.stop()
    locked.settle()


def test_leave(locked: Federation, unlocked: Federation) -> None:
    """A member sends another away where nothing is locked, and nobody here. (Last: one site is gone then.)"""
    for origin in (HOSTILE, "server", VICTIM):
        locked.member.stream(VICTIM, *ATOLL, origin=origin, payload=b"leave")
    locked.settle()
    locked.guest.poll()
    assert not locked.guest.left
    unlocked.member.stream(VICTIM, *ATOLL, payload=b"leave")

    def gone() -> bool:
        unlocked.guest.poll()
        return unlocked.guest.left

    wait_until(gone, "the site that was sent away")
