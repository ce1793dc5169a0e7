"""The engine across machines, at the server: messages go to the sites as bytes, and what comes back is checked.

A `Carrier` moves the bytes (NVFlare's auxiliary requests in `deploy.server`, anything in a test); `deploy.site_process`
answers them. Memory stays at the sites: a checkpoint holds the number of the round under which every site has saved its own.
"""

from __future__ import annotations

import logging
import math
import uuid
from collections.abc import Callable, Mapping
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
MISSING_SAVE = "the save of round"  # how the refusal begins of a site that cannot go on from exactly where the server does
MAX_WARNINGS = 100  # that a checkpoint and the result keep
MAX_MESSAGE_BYTES = 1 << 30  # bytes of the largest message that either end takes
LOST_REASONS = (
    "timed out",
    "lost the connection",
    "is not connected",
    "does not know the session",
)  # how the reasons of a site that may come back begin

log = logging.getLogger("atoll.engine")
Roster = Mapping[str, Parties]  # site → its parties


class Carrier(Protocol):
    """What moves bytes to the sites and back."""

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Every site's answer, or a few words on why there is none."""
        ...


class RemoteEngine:
    """Sites in processes of their own, perhaps at other organisations.

    A site learns of the run by `begin`, before its first message and again after it was restarted; it then loads its own save of
    the last checkpoint. `exact` makes a site refuse to go on from an older one.
    """

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
    ) -> None:
        """`order`: digests of columns and classes in the order that the sites agreed on; each puts its own graph in it."""
        self.carrier = carrier
        self.roster = {site: Parties(parties) for site, parties in roster.items()}
        self.config = config
        self.schema = schema
        self.timeout = timeout
        self.exact = exact
        self.order = dict(order or {})
        self.run = f"{Path(config['algorithm']).stem}-{uuid.uuid4().hex[:12]}"
        self.token = -1  # the round of the last save; −1 before the first
        self.round = 0
        self.begun: set[str] = set()
        self.spent = 0.0  # ρ of the party that has released most, by the sites' own count
        self.lost: dict[str, str] = {}  # sites that did not answer, and why: they may come back
        self.unrestored: dict[str, str] = {}  # sites that have not what they saved, and why
        self.unsaved = ""  # who could not save at the last checkpoint
        self.warnings: list[str] = []  # for the user: who went on from another save than the server
        self.warn: Callable[[str], None] = log.warning

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Send every site its part, and check what comes back."""
        self.round = message.round
        addressed = np.zeros(self.schema.parties, dtype=bool)
        addressed[message.parties.numbers] = True
        here = {site: Parties(parties.numbers[addressed[parties.numbers]]) for site, parties in self.roster.items()}
        asked = {site: _request(message.select(parties)) for site, parties in here.items() if len(parties)}
        replies = self._converse(asked)
        results: list[Answer | Failure] = []
        for site, reply in replies.items():
            reason = reply if isinstance(reply, str) else invalid_fields(reply, len(here[site]))
            if reason:
                log.warning("round %d, %r: %s %s", message.round, message.verb, site, reason)
                results += [Failure(party, f"{site} {reason}") for party in here[site]]
            else:
                assert not isinstance(reply, str)
                results.append(Answer(here[site], reply))
        return results

    @property
    def run_digest(self) -> str:
        """What all sites must have been told of the run alike."""
        return run_digest(self.run, self.config, vars(self.schema))

    def state(self) -> Fields:
        """Let every site save its memory, and say under which number."""
        asked = {site: {"kind": "save", "round": self.round} for site in self.begun}
        failed = self._told(dict(sorted(self._converse(asked).items())), "save its memory")
        if failed and self.exact:
            raise AtollError(f"Round {self.round}: no exact checkpoint is possible ({failed}).")
        if failed and failed != self.unsaved:  # once, not at every checkpoint
            self._warn(f"From the checkpoint of round {self.round} on, {failed}.")
        self.unsaved = failed
        self.token = self.round
        return {"run": self.run, "round": self.round, **({"order": self.order} if self.order else {})}

    def restore(self, memory: Mapping[str, Any]) -> None:
        """Let every site go back to what it saved."""
        if not memory:
            return
        self.run, self.token = str(memory["run"]), int(memory["round"])
        self.order = dict(memory.get("order", self.order))  # whoever is there now, the model's columns stay where they were
        failed = self._told(self._begin(list(self.roster)), "resume")
        if failed and self.exact:
            raise AtollError(f"The run cannot be resumed exactly ({failed}).")

    def finish(self) -> None:
        """Let every site write its personal models."""
        self._told(self._converse({site: {"kind": "finish"} for site in self.begun}), "write its models")

    def _converse(self, asked: Mapping[str, Fields]) -> dict[str, Fields | str]:
        """Ask the sites; one that does not know the run (yet, or any more) is told of it first."""
        replies: dict[str, Fields | str] = {}
        new = [site for site in asked if site not in self.begun]
        refused = {site: reply for site, reply in self._begin(new).items() if isinstance(reply, str)} if new else {}
        replies = self._exchange({site: request for site, request in asked.items() if site not in refused})
        restarted = [site for site, reply in replies.items() if reply == "does not know the run"]
        if restarted:
            log.warning("%s came back; going on from what it saved", ", ".join(restarted))
            again = self._begin(restarted)
            replies |= again
            replies |= self._exchange({site: asked[site] for site in restarted if not isinstance(again[site], str)})
        return {site: refused.get(site) or replies[site] for site in asked}

    def _begin(self, sites: list[str]) -> dict[str, Fields | str]:
        about = {"config": _jsonable(self.config), "schema": vars(self.schema), "token": self.token, "exact": self.exact}
        about |= {"order": self.order} if self.order else {}
        requests = {site: {"kind": "begin", **about, "parties": torch.tensor(self.roster[site].numbers)} for site in sites}
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
                self._warn(f"{site} could not restore what it saved at round {self.token}: it went on {began}.")
        return replies

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS and text not in self.warnings:
            self.warnings.append(text)
        self.warn(text)

    def _exchange(self, requests: Mapping[str, Fields]) -> dict[str, Fields | str]:
        """One request to each site; what came back as fields, or why nothing did."""
        if not requests:
            return {}
        envelope = {"atoll": __version__, "run": self.run}
        data = {site: wire.encode(envelope | request) for site, request in requests.items()}
        raw = self.carrier.send(data, self.timeout)
        replies: dict[str, Fields | str] = {}
        for site in requests:
            answer = raw.get(site, "did not answer")
            reply = answer if isinstance(answer, str) else read_answer(answer, self._count)
            if isinstance(reply, str) and reply.startswith(LOST_REASONS):
                self.lost[site] = reply
            replies[site] = reply
        return replies

    def _count(self, spent: Any) -> None:
        """Note what a site says it has released; what is no such number is passed over."""
        if spent == "unbounded" or (isinstance(spent, float) and spent >= 0):
            self.spent = max(self.spent, math.inf if spent == "unbounded" else spent)

    def _told(self, replies: Mapping[str, Fields | str], what: str) -> str:
        """Note in the log who could not do something; all of them in a few words."""
        failed = {site: reply for site, reply in replies.items() if isinstance(reply, str)}
        for site, reason in failed.items():
            log.warning("%s could not %s: it %s", site, what, reason)
        return "; ".join(f"{site} {reason.removesuffix('.')}" for site, reason in failed.items())


def read_answer(data: bytes, count: Callable[[Any], None] | None = None) -> Fields | str:
    """The fields of a site's answer, or a few words on what is wrong with it; `count` hears what the site has released."""
    if len(data) > MAX_MESSAGE_BYTES:
        return f"sent {len(data)} bytes, more than the {MAX_MESSAGE_BYTES} that are taken"
    if not data:
        return "sent an empty answer, which could not be read; its log says why"
    try:
        answer = wire.decode_message(data)
    except Exception:  # whatever a stranger's bytes bring about, the answer is the same
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
    """What keeps a reply from being one row a party; empty where nothing does."""
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


def _request(message: Message) -> Fields:
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
    """A nested table as a scalar of the wire: in a list it is not taken apart."""
    return [dict(config)]
