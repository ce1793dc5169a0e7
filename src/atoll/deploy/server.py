"""The engine across machines, at the server: a process that sends messages through NVFlare's cell, and runs go round by round.

The parent process (`atoll.deploy.supervisor`) gives orders through its lifeline, one run at a time, and receives their outcome.
Nobody else gives orders: the sites are asked, and what they send without having been asked is refused (`lock`).
"""

from __future__ import annotations

import asyncio.sslproto
import logging
import queue
import ssl
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from atoll import algorithms, wire
from atoll.data.federated import FederatedData, federate
from atoll.deploy.carrier import ECHO_REQUEST, ECHO_SECONDS, POLL_SECONDS, NVFlareCarrier
from atoll.deploy.cell import close_silent_connections, configure_logging, open_cell
from atoll.deploy.child import commands, exit_now, report
from atoll.deploy.compatibility import IncompatibleSites, check_compatible
from atoll.deploy.kit import Kit
from atoll.deploy.signing import Signing
from atoll.engines.remote import LOST_REASONS, RemoteEngine, read_answer
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.parties import Parties
from atoll.runs import config
from atoll.runs.experiment import build_experiment, schema_of
from atoll.runs.folder import MODEL, Folder
from atoll.runs.loop import rounds
from atoll.version import __version__

log = logging.getLogger("atoll.server")
handshakes = logging.getLogger("atoll.lock.handshakes")
MAX_RETRIES = 5  # so often in a row a run is taken up again without having come one round further


def log_refused_handshakes() -> None:
    """Let the log say when a connection is refused for its certificate: asyncio closes it without a word."""
    complete = getattr(asyncio.sslproto.SSLProtocol, "_on_handshake_complete", None)
    if complete is None:
        return

    def tell(self: Any, error: BaseException | None) -> Any:
        if isinstance(error, ssl.SSLError):
            peer = self._transport.get_extra_info("peername") if self._transport else None
            handshakes.warning("refused a connection from %s: %s", peer[0] if peer else "somebody", error.reason or error)
        return complete(self, error)

    asyncio.sslproto.SSLProtocol._on_handshake_complete = tell  # type: ignore[method-assign, assignment]


class CommandLoop:
    """Takes orders from the parent process, one at a time, and ends when that does."""

    def __init__(self, carrier: NVFlareCarrier) -> None:
        self.carrier = carrier

    @staticmethod
    def _listen(todo: queue.Queue[dict[str, Any]]) -> None:
        for order in commands():
            todo.put(order)

    def work(self) -> None:
        """Do what the parent says until it lets go."""
        report(ready=True)
        todo: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, args=(todo,), daemon=True).start()
        while True:
            order = todo.get()
            number = order["number"]
            try:
                if "leave" in order:
                    self.carrier.send(dict.fromkeys(order["leave"], b"leave"), 10.0)
                elif "echo" in order:
                    report(number=number, seconds=echo(self.carrier, order["echo"], int(order["bytes"]), int(order["times"])))
                else:
                    ServerRun(self.carrier, order).go()
                report(number=number, done=True)
            except AtollError as error:
                log.error("%s", error)
                report(number=number, error=str(error))
            except Exception:
                report(number=number, crash=traceback.format_exc())


class ServerRun:
    """One run: wait for the sites, go round by round, and take up again from the last checkpoint when a site was lost."""

    def __init__(self, carrier: NVFlareCarrier, order: Mapping[str, Any]) -> None:
        self.carrier = carrier
        self.config = config.from_dict(order["config"], "The configuration")
        self.roster = {site: Parties(range(first, end)) for site, (first, end) in order["roster"].items()}
        self.simulated = bool(order["simulated"])
        self.patience = float(order["patience"])  # seconds to wait for sites
        self.folder = Folder(order["out"])
        self.resume = bool(order["resume"])
        self.kit = str(order.get("kit", ""))
        self.order: Mapping[str, torch.Tensor] = {}  # of columns and classes, as the sites agreed

    def go(self) -> None:
        """The whole run."""
        spreads = algorithms.find(self.config.algorithm).SCENARIOS
        data = federate(self.config, None, spreads) if self.simulated else None
        self._wait(everybody=not self.resume or self.config.run.missing == "stop")
        schema = self._schema(data)
        identities = Signing.open(Path(self.kit)).identities(schema.parties) if self.config.run.secure and self.kit else None
        tries, reached = 0, -1
        while True:
            checkpoint = self._checkpoint() if self.resume else None
            engine = self._engine(schema)
            engine.warn = lambda text: report(warn=text)
            scenario = data.scenario if data else self.config.partition
            names = tuple(self.roster)
            experiment = build_experiment(self.config, engine, schema, data, scenario, names, identities)
            try:
                result = rounds(experiment, self.folder, self._report_round, checkpoint)
                break
            except AtollError:
                saved = checkpoint["book"]["round"] if checkpoint else 0
                tries, reached = (tries + 1, reached) if saved <= reached else (1, saved)
                if engine.unrestored and self._step_back(engine.unrestored):
                    continue
                if not engine.lost or tries > MAX_RETRIES:
                    raise
                report(warn=f"{', '.join(engine.lost)} was lost; going on from the last checkpoint when all sites are there")
                self.resume = True
                self._wait(everybody=True)
        engine.finish()
        self.folder.keep(MODEL, result.state)

    def _checkpoint(self) -> dict[str, Any] | None:
        known = len(self.folder.warnings)
        checkpoint = self.folder.load()
        for text in self.folder.warnings[known:]:
            report(warn=text)
        return checkpoint

    def _step_back(self, unrestored: Mapping[str, str]) -> bool:
        """Go back to the checkpoint before: who cannot restore this one may have a save of that; False where there is none."""
        if not self.folder.step_back():
            return False
        reasons = "; ".join(f"{site} {reason.removesuffix('.')}" for site, reason in unrestored.items())
        self.folder.warnings.append(f"Gone back to the checkpoint before the last: {reasons}.")
        report(warn=self.folder.warnings[-1])
        self.resume = True
        return True

    def _report_round(self, row: Mapping[str, Any], rounds: int) -> None:
        """Pass a round on; who was left out of it for what it sent stands in the log (who sent nothing does already)."""
        for party, reason in row.get("missing", {}).items():
            site = next(site for site, parties in self.roster.items() if int(party) in parties)
            if not reason.startswith(f"{site} "):
                log.warning("round %d: left out %s: %s", row["round"], site, reason)
        report(row=row, rounds=rounds)

    def _engine(self, schema: Schema) -> RemoteEngine:
        run = self.config.run
        exact = run.missing == "stop"
        plain = self.config.to_dict()
        return RemoteEngine(self.carrier, self.roster, plain, schema, timeout=run.timeout, exact=exact, order=self.order)

    def _wait(self, *, everybody: bool) -> None:
        """Until every site is there; say who is not. Unless `everybody` is needed, those who came in time are enough."""
        began, told = time.monotonic(), None
        patience = self.patience if everybody else min(self.patience, self.config.run.timeout)
        while missing := self._missing():
            if missing != told:
                report(waiting=missing)
                told = missing
            if time.monotonic() - began > patience:
                if everybody or len(missing) == len(self.roster):
                    raise AtollError(f"{', '.join(missing)} did not join within {patience:g} seconds.")
                report(warn=f"going on without {', '.join(missing)}")
                return
            time.sleep(POLL_SECONDS)

    def _missing(self) -> list[str]:
        """The sites that are not connected or, where all seem to be, do not answer."""
        missing = [site for site in self.roster if self.carrier.session(site) is None]
        if missing:
            return missing
        replies = self.carrier.send(dict.fromkeys(self.roster, wire.encode(ECHO_REQUEST)), ECHO_SECONDS)
        return [site for site, reply in replies.items() if isinstance(reply, str)]

    def _schema(self, data: FederatedData | None) -> Schema:
        """What everybody must know: from the data in a simulation, else from what the sites say of theirs."""
        if data is not None:
            return schema_of(data)
        document = {"atoll": __version__, "run": "", "kind": "describe", "config": [self.config.to_dict()]}
        present = [site for site in self.roster if self.carrier.session(site) is not None]
        raw = self.carrier.send(dict.fromkeys(present, wire.encode(document)), self.config.run.timeout)
        about = {site: read_answer(answer) if isinstance(answer, bytes) else answer for site, answer in raw.items()}
        there = {site: told for site, told in about.items() if not isinstance(told, str) or not told.startswith(LOST_REASONS)}
        going_on = self.resume and self.config.run.missing == "continue"  # then those who are there are enough
        counted = there if going_on and there else about
        try:
            form = check_compatible(counted, self.config.partition)
        except IncompatibleSites as error:
            self._send_differences(error, counted)
            raise
        for note in form.notes:
            log.warning("%s", note)
            report(warn=note)
        self.order = form.order
        return Schema(form.features, form.classes, len(self.roster), form.nodes)

    def _send_differences(self, error: IncompatibleSites, about: Mapping[str, Any]) -> None:
        """Let two sites that differ name, in their own logs, what the other does not have."""
        if not error.field:
            return
        document = {"atoll": __version__, "run": "", "kind": "differ", "config": [self.config.to_dict()], "field": error.field}
        requests = {
            site: wire.encode({**document, "site": other, "digests": about[other][error.field]})
            for site, other in (error.sites, error.sites[::-1])
        }
        self.carrier.send(requests, self.config.run.timeout)


def echo(carrier: NVFlareCarrier, sites: Sequence[str], size: int, times: int) -> list[list[float]]:
    """How long it takes to send bytes to some sites and have them back: all of it, and how long our own part of it took."""
    seconds = []
    payload = ECHO_REQUEST | {"common": {"x": torch.zeros(size, dtype=torch.uint8)}}
    for _ in range(times):
        began = time.perf_counter()
        data = {site: wire.encode(payload) for site in sites}
        encoded = time.perf_counter()
        replies = carrier.send(data, 60.0)
        arrived = time.perf_counter()
        about = {site: read_answer(reply) if isinstance(reply, bytes) else reply for site, reply in replies.items()}
        if silent := [f"{site} {reply}" for site, reply in about.items() if isinstance(reply, str)]:
            raise AtollError(f"A site did not answer: {'; '.join(silent)}.")
        ended = time.perf_counter()
        own = encoded - began + ended - arrived
        seconds.append([ended - began, own])
    return seconds


def main(kit: Kit) -> None:
    """Be the server's process."""
    configure_logging(kit)
    log_refused_handshakes()
    try:
        cell = open_cell(kit)
    except AtollError as error:
        report(stop=str(error))
        exit_now(2)
    carrier = NVFlareCarrier(cell)
    cell.core_cell.set_cell_connected_cb(carrier.welcome)
    cell.core_cell.start()
    close_silent_connections(cell)
    CommandLoop(carrier).work()


if __name__ == "__main__":
    main(Kit.open(sys.argv[1], server=True))
