"""The server's process: it executes runs, and sends messages to the sites through NVFlare's cell.

The parent process (`atoll.deploy.supervisor`) sends commands, one run at a time, and receives reports. Nobody else can send
commands: a site only answers requests, and whatever it sends unasked is refused (`firewall`).
"""

from __future__ import annotations

import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atoll import algorithms, wire
from atoll.child import commands, exit_now, report
from atoll.data.federated import federate
from atoll.data.federated_data import FederatedData
from atoll.data.links import predicts_links
from atoll.deploy.carrier import ECHO_REQUEST, ECHO_SECONDS, POLL_SECONDS, NVFlareCarrier
from atoll.deploy.cell import close_silent_connections, configure_logging, open_cell
from atoll.deploy.compatibility import CommonForm, IncompatibleSites, check_compatible
from atoll.deploy.kit import Kit
from atoll.deploy.server_tables import fit_over_sites, restored, schema_for, simulated_data, simulated_form
from atoll.deploy.signing import Signing
from atoll.deploy.tls import log_refused_handshakes
from atoll.engines.remote import LOST_REASONS, RemoteEngine, read_answer
from atoll.errors import AtollError
from atoll.federation.cohort import Fields, Schema
from atoll.graphs.pairs import CLASS_NAMES
from atoll.parties import Parties
from atoll.runs import config
from atoll.runs.experiment import Experiment, build_experiment
from atoll.runs.folder import MODEL, Folder
from atoll.runs.loop import rounds
from atoll.version import __version__

log = logging.getLogger("atoll.server")
MAX_RETRIES = 5  # resumptions of a run in a row without a new checkpoint


class CommandLoop:
    """Executes the parent process's commands, one at a time, and ends with it."""

    def __init__(self, carrier: NVFlareCarrier) -> None:
        self.carrier = carrier
        self.stopping = threading.Event()  # whether the run is to end with its present round

    def _listen(self, pending: queue.Queue[dict[str, Any]]) -> None:
        for command in commands():
            if "stop_run" in command:
                self.stopping.set()
            else:
                pending.put(command)

    def run(self) -> None:
        """Execute commands until the parent closes standard input."""
        report(ready=True)
        pending: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._listen, args=(pending,), daemon=True).start()
        while True:
            command = pending.get()
            number = command["number"]
            try:
                if "leave" in command:
                    self.carrier.send(dict.fromkeys(command["leave"], b"leave"), 10.0)
                elif "echo" in command:
                    seconds = echo(self.carrier, command["echo"], int(command["bytes"]), int(command["times"]))
                    report(number=number, seconds=seconds)
                else:
                    self.stopping.clear()
                    ServerRun(self.carrier, command, self.stopping).execute()
                report(number=number, done=True)
            except AtollError as error:
                log.error("%s", error)
                report(number=number, error=str(error))
            except Exception:
                report(number=number, crash=traceback.format_exc())


class ServerRun:
    """One run: wait for the sites, execute the rounds, and resume from the last checkpoint when a site was lost."""

    def __init__(self, carrier: NVFlareCarrier, command: Mapping[str, Any], stopping: threading.Event | None = None) -> None:
        self.carrier, self.stopping = carrier, stopping or threading.Event()
        document = command["config"]  # from the parent process, which is its user's own
        self.config = config.from_dict(document, "The configuration", config.user_model(document))
        self.roster = {site: Parties(range(first, end)) for site, (first, end) in command["roster"].items()}
        self.simulated = bool(command["simulated"])
        self.patience = float(command["patience"])  # seconds to wait for sites
        self.folder = Folder(command["out"])
        self.resume = bool(command["resume"])
        self.kit = str(command.get("kit", ""))
        self.engine: RemoteEngine | None = None  # the one in use
        self.prepared = restored(self.folder.look()) if self.resume else None  # where tables are encoded

    def execute(self) -> None:
        """The whole run."""
        scenarios = algorithms.find(self.config.algorithm).SCENARIOS
        unlabeled = algorithms.takes_unlabeled(self.config.algorithm)
        data = federate(self.config, None, scenarios, unlabeled=unlabeled, held=()) if self.simulated else None
        self._wait(everybody=not self.resume or not self._may_miss())
        form = self._common_form() if data is None else simulated_form(data)
        tries, reached = 0, -1
        while True:
            checkpoint = self._checkpoint() if self.resume else None
            try:
                experiment = self._experiment(form, data)
                result = rounds(experiment, self.folder, self._report_round, checkpoint)
                break
            except AtollError:
                saved = checkpoint["progress"]["round"] if checkpoint else 0
                tries, reached = (tries + 1, reached) if saved <= reached else (1, saved)
                unrestored, lost = (self.engine.unrestored, self.engine.lost) if self.engine else ({}, {})
                if unrestored and self._step_back(unrestored):
                    continue
                if not lost or tries > MAX_RETRIES:
                    raise
                report(warn=f"{', '.join(lost)} was lost; resuming from the last checkpoint once all sites are connected")
                self.resume = True
                self._wait(everybody=True)
        assert self.engine is not None
        self.engine.finish(result.trained.description["threshold"] if result.trained else None)
        self.folder.keep(MODEL, result.state)

    def _experiment(self, form: CommonForm, data: FederatedData | None) -> Experiment:
        """The run over the sites; where their tables need an encoding that is not known yet, it is fitted first."""
        parties = len(self.roster) if data is None else data.parts.parties
        scenario, names = (self.config.partition, tuple(self.roster)) if data is None else (data.scenario, data.names)
        identities = Signing.open(Path(self.kit)).identities(parties) if self.config.run.secure and self.kit else None
        fresh = bool(form.columns) and self.prepared is None
        if fresh:
            report(warn=f"fitting the encoding of {len(form.columns)} columns")
            connect = partial(self._engine, order=form.order)
            self.prepared = fit_over_sites(self.config, form, parties, connect, scenario, names, identities)
        prepared = self.prepared
        if data is not None:
            data = simulated_data(data, prepared, self.config.data.normalize_features if prepared else False)
        if predicts_links(self.config):
            form = replace(form, classes=len(CLASS_NAMES))
        schema = schema_for(form, data, prepared, parties)
        encoding = [] if prepared is None else [prepared.document]
        run = prepared.run if prepared is not None and fresh else ""
        engine = self._engine(schema, order=form.order, encoding=encoding, run=run)
        experiment = build_experiment(self.config, engine, schema, data, scenario, tuple(self.roster), identities)
        if prepared is not None and (ledger := prepared.sent_before(parties)) is not None:
            experiment.federation.ledger = ledger
        return experiment

    def _checkpoint(self) -> dict[str, Any] | None:
        known = len(self.folder.warnings)
        checkpoint = self.folder.load()
        for text in self.folder.warnings[known:]:
            report(warn=text)
        return checkpoint

    def _step_back(self, unrestored: Mapping[str, str]) -> bool:
        """Go back to the previous checkpoint, which a site that cannot restore this one may have; False if there is none."""
        if not self.folder.step_back():
            return False
        reasons = "; ".join(f"{site} {reason.removesuffix('.')}" for site, reason in unrestored.items())
        self.folder.warnings.append(f"Gone back to the checkpoint before the last: {reasons}.")
        report(warn=self.folder.warnings[-1])
        self.resume = True
        return True

    def _report_round(self, row: Mapping[str, Any], rounds: int) -> bool:
        """Report a round to the parent; log who was left out for an invalid reply (missing replies are logged already).

        False where the parent has asked to stop.
        """
        for party, reason in row.get("missing", {}).items():
            site = next(site for site, parties in self.roster.items() if int(party) in parties)
            if not reason.startswith(f"{site} "):
                log.warning("round %d: left out %s: %s", row["round"], site, reason)
        report(row=row, rounds=rounds)
        return not self.stopping.is_set()

    def _engine(self, schema: Schema, **agreed: Any) -> RemoteEngine:
        run = self.config.run
        exact, plain = run.on_missing == "stop", self.config.to_dict()
        self.engine = RemoteEngine(self.carrier, self.roster, plain, schema, timeout=run.timeout, exact=exact, **agreed)
        self.engine.warn = lambda text: report(warn=text)
        return self.engine

    def _wait(self, *, everybody: bool) -> None:
        """Wait until every site is connected; report which are not. Unless `everybody` is needed, time may run out for some."""
        began, reported = time.monotonic(), None
        patience = self.patience if everybody else min(self.patience, self.config.run.timeout)
        while missing := self._missing():
            if missing != reported:
                report(waiting=missing)
                reported = missing
            if time.monotonic() - began > patience:
                if everybody or len(missing) == len(self.roster):
                    raise AtollError(f"{', '.join(missing)} did not join within {patience:g} seconds.")
                report(warn=f"continuing without {', '.join(missing)}")
                return
            time.sleep(POLL_SECONDS)

    def _may_miss(self) -> bool:
        """Whether a run may be resumed without some sites; those that hold the same nodes are all needed to match them."""
        return self.config.run.on_missing == "continue" and self.config.partition != "vertical"

    def _missing(self) -> list[str]:
        """The sites that are not connected or, if all seem to be, do not answer."""
        missing = [site for site in self.roster if self.carrier.session(site) is None]
        if missing:
            return missing
        replies = self.carrier.send(dict.fromkeys(self.roster, wire.encode(ECHO_REQUEST)), ECHO_SECONDS)
        return [site for site, reply in replies.items() if isinstance(reply, str)]

    def _common_form(self) -> CommonForm:
        """What the sites' data has in common, by their descriptions."""
        connected = [site for site in self.roster if self.carrier.session(site) is not None]
        about = self._descriptions(connected, tables=self.prepared is not None)
        plain = [site for site, one in about.items() if not isinstance(one, str) and "table" not in one]
        if len(plain) < len(about) and any(not isinstance(one, str) and "table" in one for one in about.values()):
            about |= self._descriptions(plain, tables=True)  # numbers beside another site's columns that need an encoding
        present = {site: one for site, one in about.items() if not isinstance(one, str) or not one.startswith(LOST_REASONS)}
        resuming = self.resume and self._may_miss()  # then the sites that answered are enough
        counted = present if resuming and present else about
        try:
            form = check_compatible(counted, self.config.partition)
        except IncompatibleSites as error:
            self._send_differences(error, counted)
            raise
        for note in form.notes:
            log.warning("%s", note)
            report(warn=note)
        return form

    def _descriptions(self, sites: Sequence[str], *, tables: bool) -> dict[str, Fields | str]:
        """The sites' descriptions of their data, or why there is none; with `tables`, plain numbers are described as columns."""
        document = {"atoll": __version__, "run": "", "kind": "describe", "config": [self.config.to_dict()], "tables": tables}
        raw = self.carrier.send(dict.fromkeys(sites, wire.encode(document)), self.config.run.timeout) if sites else {}
        return {site: read_answer(answer) if isinstance(answer, bytes) else answer for site, answer in raw.items()}

    def _send_differences(self, error: IncompatibleSites, about: Mapping[str, Any]) -> None:
        """Have two sites that differ name, in their own logs, what the other does not have."""
        if not error.field:
            return
        digests = {site: about[site][error.field] for site in error.sites}
        if error.field == "table":
            digests = dict.fromkeys(error.sites, torch.tensor([int(error.column)]))
        document = {"atoll": __version__, "run": "", "kind": "differ", "config": [self.config.to_dict()], "field": error.field}
        requests = {
            site: wire.encode({**document, "site": other, "digests": digests[other]})
            for site, other in (error.sites, error.sites[::-1])
        }
        self.carrier.send(requests, self.config.run.timeout)


def echo(carrier: NVFlareCarrier, sites: Sequence[str], size: int, times: int) -> list[list[float]]:
    """Time sending bytes to some sites and back: per exchange, its seconds and those spent encoding and decoding here."""
    seconds = []
    payload = ECHO_REQUEST | {"common": {"x": torch.zeros(size, dtype=torch.uint8)}}
    for _ in range(times):
        began = time.perf_counter()
        data = {site: wire.encode(payload) for site in sites}
        encoded = time.perf_counter()
        replies = carrier.send(data, 60.0)
        arrived = time.perf_counter()
        about = {site: read_answer(reply) if isinstance(reply, bytes) else reply for site, reply in replies.items()}
        if failed := [f"{site} {reply}" for site, reply in about.items() if isinstance(reply, str)]:
            raise AtollError(f"A site did not answer: {'; '.join(failed)}.")
        ended = time.perf_counter()
        coding = encoded - began + ended - arrived
        seconds.append([ended - began, coding])
    return seconds


def main(kit: Kit) -> None:
    """Run the server's process."""
    configure_logging(kit)
    log_refused_handshakes()
    try:
        cell = open_cell(kit)
    except AtollError as error:
        report(stop=str(error))
        exit_now(2)
    carrier = NVFlareCarrier(cell)
    cell.core_cell.set_cell_connected_cb(carrier.greet)
    cell.core_cell.start()
    close_silent_connections(cell)
    CommandLoop(carrier).run()


if __name__ == "__main__":
    main(Kit.open(sys.argv[1], server=True))
