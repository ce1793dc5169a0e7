"""A member that holds the server up: it connects again and again, begins replies and does not end them, drips, fills the log.

And who may be the server: nobody but the holder of a certificate of the federation's own authority.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from nvflare.fuel.f3.cellnet.cell import Cell, SimpleWaiter
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import ReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.drivers import net_utils
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.endpoint import EndpointState
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import STREAM_CHANNEL, STREAM_DATA_TOPIC, StreamHeaderKey
from test_firewall import cell, chunk, gate_of, headers, made, push

from atoll.deploy import cell as nvflare_cell
from atoll.deploy import connections, supervisor
from atoll.deploy.carrier import NVFlareCarrier
from atoll.deploy.connections import MAX_CONNECTIONS, PEER_CN
from atoll.deploy.kit import SERVER_IDENTITY, Kit

__all__ = ["cell", "made"]  # fixtures
PATIENCE = 60.0  # seconds on a busy machine for what takes none
REPLY = ("return_only", "aux_communication:atoll")


def standing(send_request: Callable[..., Message], *sites: str) -> Any:
    """A cell to which some sites are connected; what it does when it asks them."""
    ready = SimpleNamespace(
        endpoint=SimpleNamespace(state=EndpointState.READY), connections=[SimpleNamespace(get_name=lambda: "CN1")]
    )
    manager = SimpleNamespace(sfm_endpoints=dict.fromkeys(sites, ready))
    core = SimpleNamespace(communicator=SimpleNamespace(conn_manager=manager))
    return SimpleNamespace(send_request=send_request, requests_dict={}, core_cell=core)


def silent(over: threading.Event) -> Callable[..., Message]:
    """Requests that `mallory` never answers, as NVFlare waits for them: until it is told to stop; the others answer at once."""

    def send_request(target: str, abort_signal: Any, **anything: Any) -> Message:
        while target == "mallory" and not abort_signal.triggered and not over.is_set():
            over.wait(0.01)
        return make_reply(ReturnCode.TIMEOUT) if target == "mallory" else Message({}, b"here")

    return send_request


def within(done: Callable[[], Any], over: threading.Event) -> Any:
    """What something comes to, if it comes to an end."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(done).result(PATIENCE)
        finally:
            over.set()


def test_connecting_again_and_again_keeps_nobody_waiting() -> None:
    """A site is greeted when it connects; one that does not answer takes one thread, however often it comes."""
    over = threading.Event()
    carrier = NVFlareCarrier(standing(silent(over), "mallory", "bank-a"))
    for _ in range(200):
        carrier.greet(SimpleNamespace(get_fqcn=lambda: "mallory"))
    assert within(lambda: carrier.send({"bank-a": b"?"}, 600.0), over) == {"bank-a": b"here"}


def test_a_drip_does_not_hold_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVFlare waits for as long as a reply moves; here a byte now and then is not enough."""
    over = threading.Event()
    carrier = NVFlareCarrier(standing(silent(over), "mallory", "bank-a"))
    monkeypatch.setitem(RxTask.rx_task_map, ("mallory", 1), SimpleNamespace(received_offset=100, headers={}))
    monkeypatch.setattr("atoll.deploy.streams.drop_unawaited", lambda *anything: None)
    replies = within(lambda: carrier.send({"mallory": b"?", "bank-a": b"?"}, 0.1), over)
    assert replies == {"mallory": "timed out after 0.1 seconds", "bank-a": b"here"}


def test_a_large_reply_has_the_time_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves at the pace of a slow line is waited for beyond the timeout."""
    looked = threading.Semaphore(0)

    def send_request(abort_signal: Any, **anything: Any) -> Message:
        for _ in range(4):  # looks at the connection, each later than the timeout
            assert looked.acquire(timeout=PATIENCE)
        return make_reply(ReturnCode.TIMEOUT) if abort_signal.triggered else Message({}, b"large")

    monkeypatch.setitem(RxTask.rx_task_map, ("bank-a", 1), SimpleNamespace(received_offset=10**9, headers={}))
    monkeypatch.setattr("atoll.deploy.streams.drop_unawaited", lambda *anything: None)
    carrier = NVFlareCarrier(standing(send_request, "bank-a"))
    carrier.session = lambda site: looked.release() or "CN1"  # type: ignore[method-assign, func-returns-value]
    assert carrier.send({"bank-a": b"?"}, 0.01) == {"bank-a": b"large"}


@pytest.mark.parametrize("first", [0, 1])
def test_a_reply_that_is_begun_and_not_ended_is_let_go(first: int, cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its beginning it would keep a thread of those that read replies, without it its parts, for ever."""
    gate, carrier = gate_of(cell), NVFlareCarrier(cell)
    carrier.session = lambda site: "CN1"  # type: ignore[method-assign]
    number = iter(range(100))
    seen = []

    def send_request(**anything: Any) -> Message:
        request = f"request {next(number)}"
        cell.requests_dict[request] = SimpleWaiter(request, "bank-b", None)
        more = {StreamHeaderKey.STREAM_ID: 70 + len(request), StreamHeaderKey.SEQUENCE: first, StreamHeaderKey.SIZE: 9}
        sent = headers("bank-b", "server", STREAM_CHANNEL, STREAM_DATA_TOPIC, **chunk(*REPLY, request, **more))
        connection = SimpleNamespace(get_conn_properties=lambda: {PEER_CN: "bank-b"})
        gate.process_message(SimpleNamespace(name="bank-b"), connection, CoreCell.APP_ID, Message(sent, b"abc"))
        seen.extend(task for (origin, _), task in RxTask.rx_task_map.items() if origin == "bank-b")
        del cell.requests_dict[request]
        return make_reply(ReturnCode.TIMEOUT)

    monkeypatch.setattr(cell, "send_request", send_request, raising=False)
    for _ in range(3):
        assert carrier.send({"bank-b": b"?"}, 600.0) == {"bank-b": "timed out after 600 seconds"}
    assert len(seen) == 3
    assert all(task.failed and not task.chunks and not task.out_seq_chunks for task in seen)
    assert not [origin for origin, _ in RxTask.rx_task_map if origin == "bank-b"]


def test_a_stream_answers_the_request_that_it_began_with(cell: Cell) -> None:
    """NVFlare goes by part 0, also where it comes late: it cannot name the request of another site."""
    gate = gate_of(cell)
    for request, site in (("own", "bank-b"), ("another's", "bank-a")):
        cell.requests_dict[request] = SimpleWaiter(request, site, None)

    def part(request: str, sequence: int) -> dict[str, Any]:
        more = {StreamHeaderKey.SEQUENCE: sequence}
        return headers("bank-b", "server", STREAM_CHANNEL, STREAM_DATA_TOPIC, **chunk(*REPLY, request, **more))

    passed = push(gate, "bank-b", "bank-b", part("own", 1))
    assert passed is not None
    try:
        assert RxTask.find_or_create_task(Message(passed, b"x"), cell.core_cell) is not None
        assert push(gate, "bank-b", "bank-b", part("another's", 0)) is None
        assert push(gate, "bank-b", "bank-b", part("own", 0)) is not None
    finally:
        RxTask.rx_task_map.clear()


def test_a_member_has_a_few_connections(cell: Cell) -> None:
    """Whether they have said their name or not; the oldest go, and nobody else's."""
    manager = cell.core_cell.communicator.conn_manager
    closed: list[str] = []

    def connect(peer: str, number: int) -> None:
        name = f"{peer} {number}"
        manager.handle_new_connection(
            SimpleNamespace(
                name=name,
                connector=SimpleNamespace(mode=Mode.PASSIVE),
                get_conn_properties=lambda: {PEER_CN: peer},
                register_frame_receiver=lambda receiver: None,
                close=lambda: (closed.append(name), manager.sfm_conns.pop(name)),
            )
        )

    connect("bank-a", 0)
    for number in range(50):
        connect("bank-b", number)
    assert closed == [f"bank-b {number}" for number in range(50 - MAX_CONNECTIONS)]
    assert "bank-a 0" in manager.sfm_conns


def brought(manager: Any, frames: int, frame: bytes) -> tuple[list[str], list[bytes]]:
    """Bring frames over a connection while NVFlare's threads are busy; which were closed, and what is sent when they are not."""
    closed: list[str] = []
    sent: list[bytes] = []
    conn = SimpleNamespace(get_conn_properties=lambda: {PEER_CN: "bank-b"}, close=lambda: closed.append("bank-b"))
    connection: Any = SimpleNamespace(conn=conn, get_name=lambda: "CN7", sfm_endpoint=None, send_heartbeat=sent.append)
    held: list[tuple[Any, ...]] = []
    manager.frame_mgr_executor = SimpleNamespace(submit=lambda *call: held.append(call))
    for _ in range(frames):
        manager.process_frame(connection, frame)
    for work, *arguments in held:
        work(*arguments)
    return closed, sent


def test_frames_that_nobody_can_look_at_do_not_pile_up(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVFlare takes what comes and lets it wait in memory; here a connection has its share, and is closed beyond it."""
    manager = cell.core_cell.communicator.conn_manager
    junk = bytes(4 << 20)
    assert brought(manager, 60, junk)[0] == []  # what an honest site has on its way
    assert brought(manager, 60, junk)[0] == []  # they have been looked at
    assert brought(manager, 64, junk)[0] == ["bank-b"]
    monkeypatch.setattr(connections, "MAX_QUEUED_BYTES", 10 * connections.FRAME_OVERHEAD)
    assert brought(manager, 10, b"")[0] == []  # empty ones cost as well
    assert brought(manager, 11, b"")[0] == ["bank-b"]


def test_pings_are_answered_one_a_second(cell: Cell) -> None:
    """An answer that the peer does not fetch stays in memory, so a flood of pings gets few."""
    ping = bytearray(PREFIX_LEN)
    Prefix(length=PREFIX_LEN, type=Types.PING).to_buffer(ping, 0)
    closed, sent = brought(cell.core_cell.communicator.conn_manager, 1000, bytes(ping))
    assert closed == []
    assert 1 <= len(sent) < 100


def test_a_flood_leaves_the_rest_of_the_log() -> None:
    """What strangers bring about has so many lines a minute for each of them; what atoll says of a run is all written."""
    limit = nvflare_cell.LogRateLimit()

    def written(name: str, minute: int) -> int:
        records = [logging.LogRecord(name, logging.WARNING, "", 0, "text", None, None) for _ in range(1000)]
        for record in records:
            record.created = 60.0 * minute
        return sum(map(limit.filter, records))

    lines = nvflare_cell.MAX_LOG_LINES_PER_MINUTE
    assert [written("nvflare.fuel.f3.sfm", 1), written("atoll.firewall.mallory", 1), written("atoll.firewall.bank-a", 1)] == [
        lines
    ] * 3
    assert written("atoll.server", 1) == 1000
    assert written("nvflare.fuel.f3.sfm", 1) == 0
    assert written("nvflare.fuel.f3.sfm", 2) == lines


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """A TLS handshake in memory; raises where an end refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [server.wrap_bio(to_server, to_client, server_side=True), client.wrap_bio(to_client, to_server)]
    waiting = list(ends)
    for _ in range(20):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting


def test_only_the_federations_own_authority_is_believed(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An authority that the machine believes, a company's proxy say, cannot make itself the server of a site."""
    from atoll.deploy import kit as kits

    kits.provision(["bank-a"], "localhost", tmp_path / "other", port=supervisor.free_port())  # its server has the same name
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "other" / "server" / "startup" / "rootCA.pem"))

    def context(kit: Path, end: str) -> ssl.SSLContext:
        startup = kit / "startup"
        params = {"scheme": "https", "ca_cert": str(startup / "rootCA.pem")}
        params |= {f"{end}_cert": str(startup / f"{end}.crt"), f"{end}_key": str(startup / f"{end}.key")}
        made = net_utils.get_ssl_context(params, end == "server")
        assert isinstance(made, ssl.SSLContext)
        return made

    proxy = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # asks for no certificate
    proxy.load_cert_chain(*(tmp_path / "other" / "server" / "startup" / name for name in ("server.crt", "server.key")))
    nvflare_cell.tls.install()
    site = context(made / "bank-a", "client")
    shake(context(made / "server", "server"), site)
    old = context(made / "bank-a", "client")
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2  # shows the certificates' names
    with pytest.raises(ssl.SSLError):
        shake(context(made / "server", "server"), old)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake(proxy, site)
    with pytest.raises(ssl.SSLError):
        shake(context(made / "server", "server"), context(tmp_path / "other" / "bank-a", "client"))


def test_a_member_is_no_authority(made: Path, tmp_path: Path) -> None:
    """A certificate in the server's name that a member signed with its own key is refused."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    startup = made / "bank-b" / "startup"
    member = x509.load_pem_x509_certificate((startup / "client.crt").read_bytes())
    signer: Any = serialization.load_pem_private_key((startup / "client.key").read_bytes(), None)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    forged = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_IDENTITY)]))
        .issuer_name(member.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(signer, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (tmp_path / "chain.crt").write_bytes(forged.public_bytes(pem) + member.public_bytes(pem))
    (tmp_path / "key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(tmp_path / "chain.crt", tmp_path / "key")
    own = made / "bank-a" / "startup"
    params = {"ca_cert": own / "rootCA.pem", "client_cert": own / "client.crt", "client_key": own / "client.key"}
    with pytest.raises(ssl.SSLCertVerificationError, match=r"invalid CA certificate|unable to get local issuer"):
        shake(impostor, nvflare_cell.tls.make_context(params, False))


def test_no_code_is_taken_from_the_folder_where_it_is_started(made: Path, tmp_path: Path) -> None:
    """Python would look there first, and it may be a kit or data that others made."""
    (tmp_path / "atoll").mkdir()
    (tmp_path / "atoll" / "__init__.py").write_text("print('from the folder'); raise SystemExit")
    kit = Kit(tmp_path / "no-kit", "bank-a", ("bank-a",), "localhost", 1)
    path = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        supervisor._command("site", kit),
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "from the folder" not in ended.stdout
    assert "is not a kit" in ended.stderr
