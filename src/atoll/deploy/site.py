"""A site: the server's bytes in, an answer's bytes out. The graph and the parties' memory never leave.

Independent of NVFlare: `site_process` hands it the server's messages.
"""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.deferred import dense
from atoll.deploy import description, requests
from atoll.deploy.digests import digest_key
from atoll.deploy.journal import JOURNAL_FILE, Journal, RecordingGuard
from atoll.deploy.kit import is_first, participants
from atoll.deploy.policy import SitePolicy
from atoll.deploy.signing import Signing
from atoll.deploy.site_checkpoints import SiteCheckpoints
from atoll.deploy.site_data import load_run, load_tables, read_graph
from atoll.deploy.site_metrics import SiteMetrics
from atoll.deploy.site_model import SiteModel, personal_models
from atoll.deploy.site_tables import RECORD_FILE, TablePreparation, keep_encoding
from atoll.deploy.table_forms import read_columns, read_encoding
from atoll.engines.remote import MAX_MESSAGE_BYTES, MISSING_SAVE
from atoll.errors import AtollError, PartyFailure, short
from atoll.federation.cohort import Cohort, Fields, Guard, Message, Schema
from atoll.parties import Parties
from atoll.privacy import releases
from atoll.privacy.identities import simulated_identities
from atoll.privacy.masking import min_total_parties, run_digest
from atoll.privacy.opened_totals import OpenedTotals
from atoll.privacy.releases import Releases
from atoll.privacy.secrets import Secrets
from atoll.runs import config as configuration
from atoll.runs.config import Config
from atoll.runs.experiment import build_cohort, noise, task_of
from atoll.runs.preparation import TableSettings, refuse_noise, table_cohort
from atoll.tasks import Task
from atoll.version import __version__

TOTALS_FILE = "totals.jsonl"  # in a run's folder: which secure totals were opened, and over which parties
PREPARATION_TOTALS_FILE = "preparation-totals.jsonl"  # likewise, of those before the first round
MAX_REASON_CHARS = 1000  # of a refusal that is sent to the server
log = logging.getLogger("atoll.site")


class Site:
    """The parties of one site and their memory on disk. It answers every message and never raises.

    `data` is the site's own graph folder; a site without one is simulated and loads its part of the configured dataset.
    """

    def __init__(
        self,
        folder: Path,
        data: Path | None = None,
        notify: Callable[[str], None] = log.info,
        policy: SitePolicy | None = None,
        journal: Journal | None = None,
        kit: Path | None = None,
        *,
        device: str = "cpu",
    ) -> None:
        """`folder` is for the site's own files; `policy` is what it insists on; the journal is in `folder` unless given;
        `kit` holds the signing keys of all sites (None: the site is simulated); `device` is where a site with its own data
        computes, whatever the server's configuration says."""
        self.folder = folder
        self.data = data
        self._notify, self._last_note = notify, ""
        self.policy = policy or SitePolicy()
        self.journal = journal or Journal(folder / JOURNAL_FILE)
        self.kit, self.device = kit, device
        self.run = ""
        self.cohort: Cohort | None = None
        self.model: SiteModel | None = None  # of the run that the cohort is of
        self.preparation: TablePreparation | None = None  # before the first round, while the encoding of tables is fitted
        self.releases: Releases | None = None  # of a run with noise
        self.lock = threading.Lock()

    def notify(self, text: str) -> None:
        """Tell the site's owner, without repeating: a site that cannot take part is asked again in every round."""
        if text != self._last_note:
            self._last_note = text
            self._notify(text)

    def handle(self, data: bytes) -> bytes:
        """The answer to the server's bytes; empty if it cannot be recorded: nothing leaves that is not in the journal."""
        with self.lock:
            request: Fields = {}
            try:
                if len(data) > MAX_MESSAGE_BYTES:
                    raise AtollError(f"the message has {len(data)} bytes, more than the {MAX_MESSAGE_BYTES} that are accepted.")
                request = wire.decode_message(data)
                answer: Fields = {"status": "ok", "fields": self._answer(request)}
                if self.releases is not None:
                    spent = self.releases.most()
                    answer["spent"] = spent if math.isfinite(spent) else "unbounded"
            except (PartyFailure, AtollError) as error:
                reason = f"refused: {error}" if isinstance(error, AtollError) else error.reason
                log.warning("%s", short(reason, MAX_REASON_CHARS))  # it may quote the server's own text
                answer = {"status": "failed", "reason": short(reason, MAX_REASON_CHARS)}
            except Exception as error:  # its text may hold data of the site: only its type is sent
                log.exception("a message could not be answered")
                answer = {"status": "failed", "reason": f"failed ({type(error).__name__}; its log says more)"}
            return self._recorded(request, answer, wire.encode({"atoll": __version__, **answer}))

    def _recorded(self, request: Fields, answer: Fields, data: bytes) -> bytes:
        """The answer's bytes, once they are in the journal."""
        guards = self.cohort.guards if self.cohort is not None and answer["status"] == "ok" and request["kind"] == "ask" else ()
        noised = [name for guard in guards if isinstance(guard, RecordingGuard) for name in guard.changed]
        try:
            epsilon = self.releases.epsilon() if self.releases is not None else None
            self.journal.record(request, answer, data, noised=noised, epsilon=epsilon)
        except Exception as error:  # whatever the reason, the answer must not leave
            log.exception("the journal could not be written")
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            self.notify(f"{self.journal.path} cannot be written ({reason}); no message is answered until it can")
            return b""
        return data

    def _answer(self, request: Fields) -> Fields:
        if (version := request.get("atoll")) != __version__:
            raise AtollError(
                f"this site runs atoll {__version__}, the server {short(version, 50)}; use the same version everywhere."
            )
        kind = request.get("kind")
        if kind == "echo":
            return requests.table(request, "common")
        if kind == "describe":
            return self._describe(self._config(request), tables=requests.boolean({"tables": False, **request}, "tables"))
        if kind == "differ":
            return self._log_differences(request)
        if kind == "prepare":
            return self._prepare(request)
        if kind == "begin":
            return self._begin(request)
        if kind == "ask" and request.get("run") == self.run and self.preparation is not None:
            return self.preparation.answer(self._message(request, self.preparation.cohort))
        if request.get("run") != self.run or self.cohort is None:
            raise PartyFailure("does not know the run")
        assert self.model is not None
        self.model.keep(requests.best_round(request, "keep"), self.cohort)
        if kind == "ask":
            return self._ask(request, self.cohort, self.model)
        if kind == "save":
            return self._save(requests.integer(request, "round"), self.cohort, self.model)
        if kind == "finish":
            return self._finish(request, self.cohort, self.model)
        raise AtollError(f"there is no message {short(kind, 50)!r}.")

    def _message(self, request: Fields, cohort: Cohort) -> Message:
        """The call of a verb in a request, whose arguments are as the verb declares them."""
        message = requests.message(request)
        if not np.isin(message.parties.numbers, cohort.parties.numbers).all():
            raise AtollError("the message is for parties that do not live here.")
        if cohort.limits is not None:
            cohort.limits.arguments(message, MAX_MESSAGE_BYTES)
        return message

    def _ask(self, request: Fields, cohort: Cohort, model: SiteModel) -> Fields:
        message = self._message(request, cohort)
        fields: Fields = dense(cohort.answer(message))
        model.note_model(message, cohort)
        return fields

    def _describe(self, config: Config, *, tables: bool = False) -> Fields:
        """The description by which the server compares graphs: numbers, and digests instead of names."""
        graph, _ = read_graph(self.data, config, self.notify, encode="always" if tables else "")
        if graph.table is not None:
            refuse_noise(config)
        return description.describe(graph, config.partition, self._key(), first=self.kit is None or is_first(self.kit))

    def _log_differences(self, request: Fields) -> Fields:
        """Log which columns or classes of this site another site does not have."""
        config, others, field = self._config(request), request.get("digests"), str(request.get("field"))
        graph, _ = read_graph(self.data, config, self.notify, encode="always" if field == "table" else "")
        if not isinstance(others, Tensor) or others.dtype != torch.int64:
            raise AtollError("the message does not say what differs.")
        other = re.sub(r"[^a-z0-9-]", "?", str(request.get("site")))[:62]
        description.log_differences(graph, field, others, other, self._key(), self.notify)
        return {}

    def _key(self) -> bytes:
        """The key of the digests of names; in a simulation there is nothing to hide."""
        return b"" if self.data is None else digest_key(self.kit)

    def _open(self, request: Fields) -> tuple[Config, Schema, Parties]:
        """The run that a request opens, in place of the one before."""
        config, schema, parties = self._config(request), requests.schema(request), requests.parties(request)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", str(request.get("run"))):
            raise AtollError("the run's name has other characters than letters, digits, - and _.")
        self.cohort, self.preparation, self.run, self.releases = None, None, str(request["run"]), None
        return config, schema, parties

    def _prepare(self, request: Fields) -> Fields:
        """Before the first round: be ready to count for the encoding of tables."""
        config, schema, parties = self._open(request)
        refuse_noise(config)
        columns = read_columns(request.get("columns"))
        graph = load_tables(self.data, config, schema, parties, columns, self._key(), self.notify)
        secrets = None
        if config.run.secure:
            digest = run_digest(self.run, request["config"][0], schema.numbers)
            known = (self._run_folder() / RECORD_FILE).exists()
            secrets = self._secrets(config, schema, parties, digest, known, PREPARATION_TOTALS_FILE)
        assert graph.table is not None
        settings = TableSettings.of(graph.table.columns, self._key())
        cohort = table_cohort(config, graph, settings, schema, parties, secrets=secrets)
        self.preparation = TablePreparation(cohort, self._run_folder(), self.notify, own_data=self.data is not None)
        self.notify(f"{config.algorithm}, run {self.run}: counting to encode {settings.columns} columns, {graph.num_nodes} nodes")
        return {}

    def _begin(self, request: Fields) -> Fields:
        config, schema, parties = self._open(request)
        token, exact = requests.integer(request, "token", -1), requests.boolean(request, "exact")
        fitted = read_encoding(requests.only(request, "encoding")) if "encoding" in request else None
        order, key = requests.table(request, "order"), self._key()
        graph, scenario, encoding = load_run(self.data, config, schema, parties, order, fitted, key, self.notify)
        checkpoints = SiteCheckpoints(self._run_folder(), self.notify)
        digest = run_digest(self.run, request["config"][0], schema.numbers, request.get("encoding", ()), order.get("nodes"))
        secrets = self._secrets(config, schema, parties, digest, checkpoints.known()) if config.run.secure else None
        if encoding is not None:
            keep_encoding(self._run_folder(), encoding.to_dict(), self.notify)
        checkpoints.check_data(graph.digest, str(self.data or config.dataset))
        saved = checkpoints.read(token, exact) if token >= 0 else None
        metrics = SiteMetrics(self._run_folder() / "metrics.jsonl", task_of(config, schema, graph.class_names))
        guards = [metrics, *self._noise(config, metrics.task)]
        cohort = build_cohort(config, graph, schema, parties, blank=saved is not None, secrets=secrets, guards=guards)
        names = participants(self.kit) if self.kit is not None and self.data is not None else ()
        self.model = SiteModel(config, schema, scenario, names, metrics, self.releases, encoding)
        if saved is not None:
            cohort.restore(saved[1])
            self.model.restore(saved[2], saved[0], cohort)
        self.cohort = cohort
        restored = saved[0] if saved is not None else -1
        if restored < token:
            start = f"round {restored}" if saved else "the beginning"
            self.notify(f"{MISSING_SAVE} {token} is not here or damaged; continuing from {start}")
        began = f"continuing from round {restored}" if saved else "ready"
        self.notify(f"{config.algorithm}, run {self.run}: {began}, {graph.num_nodes} nodes")
        return {"restored": restored} if restored < token else {}

    def _secrets(
        self, config: Config, schema: Schema, parties: Parties, digest: str, known: bool, totals: str = TOTALS_FILE
    ) -> Secrets:
        """What the site's parties keep for secure totals: fresh with every `begin`, except for the record of opened totals.

        `digest` is that of the run as the server described it; if the run is `known` here, its record must exist."""
        signing = Signing.open(self.kit) if self.kit is not None else None
        identities = signing.identities(schema.parties) if signing is not None else simulated_identities(schema.parties)
        least = min_total_parties(config.run.secure_min, schema.parties)
        if self.data is not None:
            least = max(least, self.policy.min_total_parties(schema.parties))
            if signing is not None and (schema.parties != len(signing.sites) or set(identities.private) != set(parties)):
                raise AtollError("the server does not number the parties as this site's kit does.")
        return Secrets(identities, run=digest, min_parties=least, opened=OpenedTotals(self._run_folder() / totals, known=known))

    def _noise(self, config: Config, task: Task) -> list[Guard]:
        """The guard that adds noise to a reply and counts it, after the site's own metrics were written."""
        if not config.dp.active:
            return []
        self.releases = Releases(self.folder / releases.RELEASES_FILE, self.run, self.policy.budget, delta=config.dp.delta)
        strict = self.policy.budget is not None
        return [RecordingGuard(guard) for guard in noise(config, self.releases, task, strict=strict)]

    def _config(self, request: Fields) -> Config:
        given = request.get("config")
        document: Any = given[0] if isinstance(given, list) and len(given) == 1 else None
        self.policy.check_document(document, own_data=self.data is not None)  # before anything it names is looked up
        over = configuration.user_model(document)  # the policy admits only files that the site's own user gave
        config = configuration.from_dict(document, "The server's configuration", over)
        self.policy.check(config)
        if self.data is not None and config.dp.active and config.dp.noise_source == "seed":
            raise AtollError("noise from the run's seed is not secret from the server; set dp.noise_source to system.")
        return config if self.data is None else replace(config, device=self.device)

    def _save(self, round: int, cohort: Cohort, model: SiteModel) -> Fields:
        SiteCheckpoints(self._run_folder(), self.notify).write(round, cohort.state(), model.document(round))
        return {}

    def _run_folder(self) -> Path:
        return self.folder / self.run

    def _finish(self, request: Fields, cohort: Cohort, model: SiteModel) -> Fields:
        """Write the model of the best round, if there is one, and the last round's personal models and numbers, if the
        algorithm has any; only the last checkpoint is kept."""
        checkpoints = SiteCheckpoints(self._run_folder(), self.notify)
        checkpoints.finish(personal_models(cohort))
        if best := requests.best_round(request, "best"):
            rounds, threshold = requests.integer(request, "round", best), requests.threshold(request)
            checkpoints.write_model(model.files(cohort, best, rounds, *threshold))
        return {}
