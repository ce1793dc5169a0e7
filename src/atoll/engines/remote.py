"""The engine across machines, at the server: messages go to the sites as bytes, and their answers are checked.

A `Carrier` moves the bytes (`deploy.carrier` through NVFlare, anything in a test), and `deploy.site` answers them. Memory stays
at the sites: a checkpoint of the server holds only the round under which every site has saved its own.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError, short
from atoll.federation.cohort import Fields, Message, Schema
from atoll.federation.federation import Answer, Failure
from atoll.parties import Parties
from atoll.privacy.masking import run_digest
from atoll.version import __version__

TOPIC = "atoll"
MISSING_SAVE = "the save of round"  # the beginning of a site's refusal if it lacks the checkpoint that the server resumes from
MAX_WARNINGS = 100  # in a checkpoint and the result
MAX_MESSAGE_BYTES = 1 << 30  # that server and sites accept
LOST_REASONS = (
    "timed out",
    "lost the connection",
    "is not connected",
    "does not know the session",
)  # the beginnings of failures after which a site may come back

log = logging.getLogger("atoll.engine")
Roster = Mapping[str, Parties]  # site → its parties


class Carrier(Protocol):
    """Moves bytes to the sites and back."""

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Every site's answer, or a short reason why there is none."""
        ...


class RemoteEngine:
    """Sites in their own processes, perhaps at other organizations.

    A site learns of the run by `begin`, before its first message and again after a restart; it then loads its own save of the
    last checkpoint. With `exact`, a site refuses to continue from an older one.
    """

    memory_at_sites = True

    def __init__(
        self,
        carrier: Carrier,
        roster: Roster,
        config: Mapping[str, Any],
        schema: Schema,
        *,
        timeout: float,
        exact: bool = False,
        order: Mapping[str, Tensor] | None = None,
        columns: Sequence[Any] = (),
        encoding: Sequence[Any] = (),
        run: str = "",
    ) -> None:
        """`order`: digests of columns, classes and vertical sites' nodes in the agreed order, that of each site's graph.

        `columns`: documents of the columns of tables, for an engine that only fits their encoding, before the first round;
        `encoding`: its document as the only item, for the rounds. `run`: the run's name, of its own unless given.
        """
        self.carrier = carrier
        self.roster = {site: Parties(parties) for site, parties in roster.items()}
        self.config = config
        self.schema = schema
        self.timeout = timeout
        self.exact = exact
        self.order = dict(order or {})
        self.columns = list(columns)
        self.encoding = list(encoding)
        self.run = run or f"{Path(config['algorithm']).stem}-{uuid.uuid4().hex[:12]}"
        self.token = -1  # the round of the last checkpoint; −1 before the first
        self.round = 0
        self.best = 0  # the best round, whose model every site keeps; 0 before the first
        self.unheard: set[str] = set()  # sites that do not know the best round yet
        self.begun: set[str] = set()
        self.spent = 0.0  # the largest ρ that a party has spent, as reported by the sites
        self.lost: dict[str, str] = {}  # sites that did not answer but may come back, and why
        self.unrestored: dict[str, str] = {}  # sites that lack the save to resume from, and why
        self.unsaved = ""  # which sites could not save at the last checkpoint
        self.warnings: list[str] = []  # for the user: which sites continued from another save than the server
        self.warn: Callable[[str], None] = log.warning

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Send each site its part of the message, and check the answers."""
        self.round = message.round
        addressed = np.zeros(self.schema.parties, dtype=bool)
        addressed[message.parties.numbers] = True
        addressed_at = {site: Parties(parties.numbers[addressed[parties.numbers]]) for site, parties in self.roster.items()}
        requests = {site: _ask(message.select(parties)) for site, parties in addressed_at.items() if len(parties)}
        replies = self._request(requests)
        results: list[Answer | Failure] = []
        for site, reply in replies.items():
            reason = reply if isinstance(reply, str) else invalid_fields(reply, len(addressed_at[site]))
            if reason:
                log.warning("round %d, %r: %s %s", message.round, message.verb, site, reason)
                results += [Failure(party, f"{site} {reason}") for party in addressed_at[site]]
            else:
                assert not isinstance(reply, str)
                results.append(Answer(addressed_at[site], reply))
        return results

    @property
    def run_digest(self) -> str:
        """Identifies the run as all sites must see it."""
        return run_digest(self.run, self.config, self.schema.numbers, self.encoding, self.order.get("nodes"))

    def state(self) -> Fields:
        """Have every site save its memory; the round under which it did."""
        requests = {site: {"kind": "save", "round": self.round} for site in self.begun}
        failed = self._failures(dict(sorted(self._request(requests).items())), "save its memory")
        if failed and self.exact:
            raise AtollError(f"Round {self.round}: no exact checkpoint is possible ({failed}).")
        if failed and failed != self.unsaved:  # once, rather than at every checkpoint
            self._warn(f"From the checkpoint of round {self.round} on, {failed}.")
        self.unsaved = failed
        self.token = self.round
        agreed = {name: value for name, value in (("order", self.order), ("encoding", self.encoding)) if value}
        return {"run": self.run, "round": self.round, "best": self.best, **agreed}

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Have every site restore what it saved."""
        if not memory:
            return
        self.run, self.token = str(memory["run"]), int(memory["round"])
        self.round, self.best, self.unheard = self.token, int(memory.get("best", 0)), set()
        self.order = dict(memory.get("order", self.order))  # the model's columns stay as they are, whoever is present now
        self.encoding = list(memory.get("encoding", self.encoding))
        failed = self._failures(self._begin(list(self.roster)), "resume")
        if failed and self.exact:
            raise AtollError(f"The run cannot be resumed exactly ({failed}).")

    def snapshot(self, into: Fields | None = None) -> Fields:
        """Nothing: the parties' memory is at their sites, each of which keeps this round when the next message names it."""
        self.best, self.unheard = self.round, set(self.roster)
        return {}

    def finish(self, threshold: Mapping[str, Any] | None = None) -> None:
        """Have every site write its models: that of the best round and, where there are any, personal ones.

        `threshold`: the one that was chosen on the validation nodes of all parties.
        """
        request = {"kind": "finish", **({"best": self.best, "round": self.round} if self.best else {})}
        request |= {} if threshold is None else {name: threshold[name] for name in ("index", "value")}
        if failed := self._failures(self._request(dict.fromkeys(sorted(self.begun), request)), "write its models"):
            self.warn(f"Not every site has the model now: {failed}.")

    def _request(self, requests: Mapping[str, Fields]) -> dict[str, Fields | str]:
        """Send requests to the sites; one that does not know the run (yet, or after a restart) is sent `begin` first."""
        replies: dict[str, Fields | str] = {}
        new = [site for site in requests if site not in self.begun]
        refused = {site: reply for site, reply in self._begin(new).items() if isinstance(reply, str)} if new else {}
        replies = self._exchange({site: request for site, request in requests.items() if site not in refused})
        restarted = [site for site, reply in replies.items() if reply == "does not know the run"]
        if restarted:
            log.warning("%s came back; continuing from what it saved", ", ".join(restarted))
            again = self._begin(restarted)
            replies |= again
            replies |= self._exchange({site: requests[site] for site in restarted if not isinstance(again[site], str)})
        return {site: refused.get(site) or replies[site] for site in requests}

    def _begin(self, sites: list[str]) -> dict[str, Fields | str]:
        run: Fields = {"kind": "begin", "config": _jsonable(self.config), "schema": self.schema.numbers}
        if self.columns:
            run |= {"kind": "prepare", "columns": self.columns}
        else:
            run |= {"token": self.token, "exact": self.exact}
        run |= {name: value for name, value in (("order", self.order), ("encoding", self.encoding)) if value}
        requests = {site: {**run, "parties": torch.tensor(self.roster[site].numbers)} for site in sites}
        replies = self._exchange(requests)
        for site, reply in replies.items():
            if isinstance(reply, str):
                if reply.startswith(f"refused: {MISSING_SAVE}"):
                    self.unrestored[site] = reply
                continue
            self.begun.add(site)
            restored = reply.get("restored", self.token)
            if isinstance(restored, int) and restored < self.token:
                began = f"from its save of round {restored}" if restored >= 0 else "without a memory of the run"
                self._warn(f"{site} could not restore what it saved at round {self.token}: it continued {began}.")
        return replies

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS and text not in self.warnings:
            self.warnings.append(text)
        self.warn(text)

    def _exchange(self, requests: Mapping[str, Fields]) -> dict[str, Fields | str]:
        """One request to each site; its answer's fields, or why there are none."""
        if not requests:
            return {}
        envelope = {"atoll": __version__, "run": self.run}
        keep = {
            site: {"keep": self.best}
            for site, request in requests.items()
            if site in self.unheard and request["kind"] not in ("begin", "prepare")
        }
        data = {site: wire.encode(envelope | request | keep.get(site, {})) for site, request in requests.items()}
        raw = self.carrier.send(data, self.timeout)
        replies: dict[str, Fields | str] = {}
        for site in requests:
            answer = raw.get(site, "did not answer")
            reply = answer if isinstance(answer, str) else read_answer(answer, self._count)
            if isinstance(reply, str) and reply.startswith(LOST_REASONS):
                self.lost[site] = reply
            if site in keep and not isinstance(reply, str):
                self.unheard.discard(site)
            replies[site] = reply
        return replies

    def _count(self, spent: Any) -> None:
        """Record the ρ that a site reports to have spent; anything else is ignored."""
        if spent == "unbounded" or (isinstance(spent, float) and spent >= 0):
            self.spent = max(self.spent, math.inf if spent == "unbounded" else spent)

    def _failures(self, replies: Mapping[str, Fields | str], what: str) -> str:
        """Log which sites failed, and return them with their reasons."""
        failed = {site: reply for site, reply in replies.items() if isinstance(reply, str)}
        for site, reason in failed.items():
            log.warning("%s could not %s: it %s", site, what, reason)
        return "; ".join(f"{site} {reason.removesuffix('.')}" for site, reason in failed.items())


def read_answer(data: bytes, count: Callable[[Any], None] | None = None) -> Fields | str:
    """The fields of a site's answer, or what is wrong with it; `count` is called with the ρ that the site reports."""
    if len(data) > MAX_MESSAGE_BYTES:
        return f"sent {len(data)} bytes, more than the {MAX_MESSAGE_BYTES} that are accepted"
    if not data:
        return "sent an empty answer, which could not be read; its log says why"
    try:
        answer = wire.decode_message(data)
    except Exception:  # whatever the bytes cause, the answer is the same
        return "sent an answer that could not be read"
    version, status = answer.get("atoll"), answer.get("status")
    if version != __version__:
        return f"runs atoll {short(version)}, the server {__version__}; use the same version everywhere"
    if status != "ok":
        return short(answer.get("reason")) or "failed without a reason"
    if count is not None:
        count(answer.get("spent"))
    fields = answer.get("fields", {})
    return fields if isinstance(fields, dict) else "sent an answer that could not be read"


def invalid_fields(fields: Fields, parties: int) -> str:
    """Why a reply does not have one row per party; empty if it does."""
    for name, value in fields.items():
        if isinstance(value, dict):
            inner = invalid_fields(value, parties)
            if inner:
                return inner
        elif isinstance(value, list):
            if len(value) != parties or not all(isinstance(item, Tensor) for item in value):
                return f"sent a field {short(name)!r} that does not hold a tensor for each of its {parties} parties"
        elif not isinstance(value, Tensor) or value.dim() == 0 or len(value) != parties:
            return f"sent a field {short(name)!r} that does not hold a row for each of its {parties} parties"
    return ""


def _ask(message: Message) -> Fields:
    return {
        "kind": "ask",
        "verb": message.verb,
        "round": message.round,
        "call": message.call,
        "training": message.training,
        "parties": torch.tensor(message.parties.numbers),
        "common": message.common,
        "each": message.each,
        **({} if message.secure is None else {"secure": message.secure}),
    }


def _jsonable(config: Mapping[str, Any]) -> list[Any]:
    """A nested table as one scalar of the wire format: inside a list it is not flattened."""
    return [dict(config)]
