"""Server and sites as processes on loopback: the same numbers, whoever is killed; strangers are refused."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

import clinics
from atoll.deploy import audit, supervisor
from atoll.deploy import kit as kits
from atoll.deploy.policy import SitePolicy
from atoll.runs import config as configuration
from atoll.runs import runner
from sites import DEADLINE, kill_after, run_across, wait_until
from small import ALGORITHMS, small
from test_promises import assert_same, numbers

pytestmark = pytest.mark.early
ACROSS = [name for name in ("fedavg", "fedspray", "fedgl", "glasu", "gfl_appnp", "nfedgnn") if name in ALGORITHMS]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[supervisor.LocalFederation]:
    """A server and three sites, shared by the tests below: starting them takes seconds."""
    folder = tmp_path_factory.mktemp("federation")
    with supervisor.local_federation(3, folder, folder / "sites", print) as standing:
        yield standing
    assert all(child.poll() is not None for child in [standing.server.child.process, *(g.child.process for g in standing.sites)])


@pytest.mark.parametrize("algorithm", ACROSS)
def test_processes_give_the_same_numbers(algorithm: str, federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """Every site in a process of its own: the same states, metrics and bytes; at node level each site has twenty nodes."""
    config = small(algorithm, rounds=2)
    assert_same(runner.run(config), run_across(federation, config, tmp_path / "run"), 1e-5)


def test_secure_totals_and_noise_across_processes(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """What is done at the parties is done at the sites: masks that cancel, and noise drawn by the seed."""
    config = small("fedavg", rounds=2, secure="true", **{"dp.verb": "fit", "dp.clip": 1, "dp.noise": 0.1})
    assert_same(runner.run(config), run_across(federation, config, tmp_path / "run"), 1e-5)


@pytest.mark.parametrize("end", ["site", "server"])
def test_killed_and_taken_up_again(end: str, federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """SIGKILL to a site or to the server in the middle: the run goes on from the last checkpoint and ends with the same bits."""
    config = small("fedspray", rounds=60, checkpoint_every=3, on_missing="stop")
    whole = runner.run(config)
    child = federation.sites[1] if end == "site" else federation.server
    before = child.child.process.pid
    result = run_across(federation, config, tmp_path / "run", kill_after(4, lambda: child.child.process))
    assert child.child.process.pid != before
    assert_same(whole, result, 0.0)
    assert numbers(whole) == numbers(result)


@pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")
def test_tables_are_encoded_over_processes(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """Fitted before the first round, and restored after SIGKILLs of a site and of the server: the bits of one process."""
    values = {"rounds": 16, "patience": 0, "split": "random", "checkpoint_every": 3, "on_missing": "stop"}
    folder = str(clinics.write(tmp_path / "data"))
    config = configuration.resolve("fedavg", dataset=folder, partition="files", values=values)
    first = kill_after(4, lambda: federation.sites[1].child.process)
    second = kill_after(9, lambda: federation.server.child.process)

    def watch(row: dict[str, Any], rounds: int) -> None:
        first(row, rounds)
        second(row, rounds)

    result = run_across(federation, config, tmp_path / "run", watch)
    assert_same(runner.run(config), result, 0.0)
    assert result.bytes["by_verb"]["count_columns"]["messages"] == 3


def test_every_site_keeps_its_journal_in_its_kit(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """After a run whose site is killed in the middle: every chain is whole, and what the server counted is in the journals."""
    config = small("fedavg", rounds=30, checkpoint_every=3, on_missing="stop")
    result = run_across(federation, config, tmp_path / "run", kill_after(4, lambda: federation.sites[1].child.process))
    run = result.memory["run"]
    for guest in federation.sites:
        path = guest.kit.path / "journal.jsonl"
        assert audit.verify(path).broken == ()
        lines = [line.entry for line in audit.read(path) if line.entry and line.entry["run"] == run]
        rounds = [entry["round"] for entry in lines if entry.get("verb") == "fit" and entry["status"] == "ok"]
        assert sorted(set(rounds)) == list(range(1, 31))
        assert {entry["to"] for entry in lines} == {f"atoll-server at localhost:{guest.kit.port}"}


def test_the_others_go_on_and_the_lost_site_comes_back(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """With on_missing=continue a killed site is named and the rounds go on without it; in the next run it is there again."""
    config = small("fedavg", rounds=40)
    result = run_across(federation, config, tmp_path / "run", kill_after(3, lambda: federation.sites[2].child.process))
    missing = [row["missing"] for row in result.rows if "missing" in row]
    assert missing
    assert all(who.keys() == {"2"} and who["2"].startswith("site-2 ") for who in missing)
    assert result.rounds == 40
    again = run_across(federation, config, tmp_path / "again")
    assert not any("missing" in row for row in again.rows)


def test_a_site_that_does_not_answer_is_named(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """A site that hangs times out; the round goes on without it, and it is heard again as soon as it answers."""
    config = small("fedavg", rounds=40, timeout=10)
    stopped: list[int] = []

    def watch(row: dict[str, Any], rounds: int) -> None:
        if not stopped:
            stopped.append(federation.sites[0].child.process.pid)
            os.kill(stopped[0], signal.SIGSTOP)
        elif "missing" in row:
            os.kill(stopped[0], signal.SIGCONT)

    try:
        result = run_across(federation, config, tmp_path / "run", watch)
    finally:
        os.kill(stopped[0], signal.SIGCONT)
    missing = [row["missing"] for row in result.rows if "missing" in row]
    assert {"0": "site-0 timed out after 10 seconds"} in missing
    assert "missing" not in result.rows[-1]


def test_strangers_are_refused(federation: supervisor.LocalFederation, tmp_path: Path) -> None:
    """A known certificate under another name, another authority's, none at all: refused, and the federation goes on."""
    place, known = federation.server.kit, federation.sites[0].kit
    shutil.copytree(known.path, tmp_path / "renamed")
    renamed = dataclasses.replace(known, path=tmp_path / "renamed", site="site-9")
    policy = {"ATOLL_SITE_POLICY": SitePolicy(simulated=True).to_json()}
    stranger = supervisor.SiteProcess(renamed, tmp_path / "saves", None, print, print, policy)
    try:
        config = small("fedavg", rounds=2)
        assert_same(runner.run(config), run_across(federation, config, tmp_path / "run"), 1e-5)
        kits.provision(["site-0"], "localhost", tmp_path / "foreign", port=place.port)
        assert first_byte_with(place.port, tmp_path / "foreign" / "site-0" / "startup") == b""
        assert first_byte_with(place.port, None) == b""
        assert first_byte_with(place.port, known.path / "startup") == b"H"
        told = (place.path / "log.txt").read_text()
        assert "refused a connection from 127.0.0.1: CERTIFICATE_VERIFY_FAILED" in told
        assert "refused a connection from 127.0.0.1: PEER_DID_NOT_RETURN_A_CERTIFICATE" in told
        sentence = "authenticated as 'site-0' but claimed endpoint 'site-9'"
        wait_until(lambda: sentence in (place.path / "log.txt").read_text(), "the renamed site to be refused")
        stranger.poll()
        assert not stranger.joined
    finally:
        stranger.stop()
    assert_same(runner.run(config), run_across(federation, config, tmp_path / "again"), 1e-5)


def first_byte_with(port: int, certificate: Path | None) -> bytes:
    """The first byte that somebody with this certificate, or none, gets out of the server; nothing where it is refused."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if certificate is not None:
        context.load_cert_chain(certificate / "client.crt", certificate / "client.key")
    with (
        socket.create_connection(("127.0.0.1", port), timeout=DEADLINE) as plain,
        contextlib.suppress(ssl.SSLError, ConnectionError),
        context.wrap_socket(plain) as secured,
    ):
        secured.sendall(b"GET / HTTP/1.1\r\n\r\n")
        return secured.recv(1)
    return b""
