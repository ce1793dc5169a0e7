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
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from atoll import algorithms, wire
from atoll.data import files
from atoll.data.builder import row_normalize
from atoll.data.federated import federate
from atoll.data.splits import replaces_split, split
from atoll.deferred import dense
from atoll.deploy import description, requests
from atoll.deploy.journal import JOURNAL_FILE, Journal, RecordingGuard
from atoll.deploy.kit import participants
from atoll.deploy.policy import SitePolicy
from atoll.deploy.signing import Signing
from atoll.deploy.site_checkpoints import SiteCheckpoints
from atoll.deploy.site_metrics import SiteMetrics
from atoll.deploy.site_model import SiteModel, personal_models
from atoll.engines.remote import MAX_MESSAGE_BYTES, MISSING_SAVE
from atoll.errors import AtollError, PartyFailure, short
from atoll.federation.cohort import Cohort, Fields, Guard, Schema
from atoll.graphs.graph import Graph
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
from atoll.version import __version__

TOTALS_FILE = "totals.jsonl"  # in a run's folder: which secure totals were opened, and over which parties
MAX_REASON_CHARS = 1000  # of a refusal that is sent to the server
NEEDS_ENCODING = (
    "its columns need an encoding (categories, dates, missing values or a features.toml), which sites do not fit yet; "
    "give numbers without missing values."
)
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
    ) -> None:
        """`folder` is for the site's own files; `policy` is what it insists on; the journal is in `folder` unless given;
        `kit` holds the signing keys of all sites (None: the site is simulated)."""
        self.folder = folder
        self.data = data
        self._notify, self._last_note = notify, ""
        self.policy = policy or SitePolicy()
        self.journal = journal or Journal(folder / JOURNAL_FILE)
        self.kit = kit
        self.run = ""
        self.cohort: Cohort | None = None
        self.model: SiteModel | None = None  # of the run that the cohort is of
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
            return self._describe(self._config(request))
        if kind == "differ":
            return self._log_differences(request)
        if kind == "begin":
            return self._begin(request)
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

    def _ask(self, request: Fields, cohort: Cohort, model: SiteModel) -> Fields:
        message = requests.message(request)
        if not np.isin(message.parties.numbers, cohort.parties.numbers).all():
            raise AtollError("the message is for parties that do not live here.")
        if cohort.limits is not None:
            cohort.limits.arguments(message, MAX_MESSAGE_BYTES)
        fields: Fields = dense(cohort.answer(message))
        model.heard(message, cohort)
        return fields

    def _describe(self, config: Config) -> Fields:
        """The description by which the server compares graphs: numbers, and digests instead of names."""
        return description.describe(self._load_graph(config), config.partition, description.digest_key(self.kit))

    def _log_differences(self, request: Fields) -> Fields:
        """Log which columns or classes of this site another site does not have."""
        graph, others = self._load_graph(self._config(request)), request.get("digests")
        if not isinstance(others, Tensor) or others.dtype != torch.int64:
            raise AtollError("the message does not say what differs.")
        other = re.sub(r"[^a-z0-9-]", "?", str(request.get("site")))[:62]
        description.log_differences(
            graph, str(request.get("field")), others, other, description.digest_key(self.kit), self.notify
        )
        return {}

    def _begin(self, request: Fields) -> Fields:
        config, schema = self._config(request), requests.schema(request)
        parties, token = requests.parties(request), requests.integer(request, "token", -1)
        exact = requests.boolean(request, "exact")
        algorithm = algorithms.find(config.algorithm)
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", str(request["run"])):
            raise AtollError("the run's name has other characters than letters, digits, - and _.")
        self.cohort, self.run, self.releases = None, str(request["run"]), None
        if self.data is None:
            data = federate(config, None, algorithm.SCENARIOS)
            graph, scenario = data.parts.select(parties), data.scenario
            requests.check_schema(schema, graph, config, parties)
        else:
            graph = self._load_graph(config, requests.table(request, "order"))
            requests.check_schema(schema, graph, config, parties)
            graph, scenario = self._as_party(graph, config, schema, parties), config.partition
        checkpoints = SiteCheckpoints(self._run_folder(), self.notify)
        digest = run_digest(self.run, request["config"][0], schema.numbers)
        secrets = self._secrets(config, schema, parties, digest, checkpoints.known()) if config.run.secure else None
        checkpoints.check_data(graph.digest, str(self.data or config.dataset))
        saved = checkpoints.read(token, exact) if token >= 0 else None
        metrics = SiteMetrics(self._run_folder() / "metrics.jsonl", task_of(config, schema, graph.class_names))
        guards = [metrics, *self._noise(config)]
        cohort = build_cohort(config, graph, schema, parties, blank=saved is not None, secrets=secrets, guards=guards)
        names = participants(self.kit) if self.kit is not None and self.data is not None else ()
        self.model = SiteModel(config, schema, scenario, names, metrics, self.releases)
        if saved is not None:
            cohort.restore(saved[1])
            self.model.restore(saved[2], saved[0], cohort)
        self.cohort = cohort
        restored = saved[0] if saved is not None else -1
        if restored < token:
            began = f"round {restored}" if saved else "the beginning"
            self.notify(f"{MISSING_SAVE} {token} is not here or damaged; continuing from {began}")
        self.notify(f"{config.algorithm}: {f'continuing from round {restored}' if saved else 'ready'}, {graph.num_nodes} nodes")
        return {"restored": restored} if restored < token else {}

    def _secrets(self, config: Config, schema: Schema, parties: Parties, digest: str, known: bool) -> Secrets:
        """What the site's parties keep for secure totals: fresh with every `begin`, except for the record of opened totals.

        `digest` is that of the run as the server described it; if the run is `known` here, its record must exist."""
        signing = Signing.open(self.kit) if self.kit is not None else None
        identities = signing.identities(schema.parties) if signing is not None else simulated_identities(schema.parties)
        least = min_total_parties(config.run.secure_min, schema.parties)
        if self.data is not None:
            least = max(least, self.policy.min_total_parties(schema.parties))
            if signing is not None and (schema.parties != len(signing.sites) or set(identities.private) != set(parties)):
                raise AtollError("the server does not number the parties as this site's kit does.")
        return Secrets(
            identities, run=digest, min_parties=least, opened=OpenedTotals(self._run_folder() / TOTALS_FILE, known=known)
        )

    def _noise(self, config: Config) -> list[Guard]:
        """The guard that adds noise to a reply and counts it, after the site's own metrics were written."""
        if not config.dp.active:
            return []
        self.releases = Releases(self.folder / releases.RELEASES_FILE, self.run, self.policy.budget, delta=config.dp.delta)
        return [RecordingGuard(guard) for guard in noise(config, self.releases, strict=self.policy.budget is not None)]

    def _config(self, request: Fields) -> Config:
        given = request.get("config")
        document: Any = given[0] if isinstance(given, list) and len(given) == 1 else None
        self.policy.check_document(document, own_data=self.data is not None)  # before anything it names is looked up
        over = configuration.user_model(document)  # the policy admits only files that the site's own user gave
        config = configuration.from_dict(document, "The server's configuration", over)
        self.policy.check(config)
        if self.data is not None and config.dp.active and config.dp.noise_source == "seed":
            raise AtollError("noise from the run's seed is not secret from the server; set dp.noise_source to system.")
        return config

    def _load_graph(self, config: Config, order: Fields | None = None) -> Graph:
        if self.data is None:
            raise AtollError("this site has no data of its own.")
        try:
            graph = files.read(self.data, directed=config.data.directed)
        except AtollError as error:  # its text may hold data of the site
            self.notify(str(error))
            raise AtollError("its graph could not be read; its log says why.") from error
        if graph.table is not None:
            raise AtollError(NEEDS_ENCODING)
        if order:
            graph = description.reorder(graph, order, description.digest_key(self.kit), self.notify)
        return row_normalize(graph) if config.data.normalize_features else graph

    def _as_party(self, graph: Graph, config: Config, schema: Schema, parties: Parties) -> Graph:
        """The site's graph as its one party: split, and padded to the federation's columns."""
        if len(parties) != 1:
            raise AtollError("a site with its own data is exactly one party.")
        if config.partition == "vertical":
            graph = replace(graph, x=_pad_features(graph.x, schema.features), widths=(graph.num_features,))
        elif config.partition == "overlapping" and not bool((graph.train | graph.val | graph.test).any()):
            raise AtollError("parties that share nodes must agree on their roles: mark the split (train, val, test) in the data.")
        elif config.partition == "overlapping" and replaces_split(graph, config.split):
            raise AtollError(
                f"parties that share nodes must agree on their roles, so the data's own split is used: "
                f"leave split={config.split.split!r} out of the configuration."
            )
        if replaces_split(graph, config.split):
            self.notify(f"the data's own split is replaced: the server's configuration says split={config.split.split!r}")
        graph = split(graph, config.split, config.seed, parties)
        if config.partition != "vertical" and int(graph.train.sum()) == 0:
            raise AtollError("it has no training nodes; label some, or choose another split.")
        return graph

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
            chosen = requests.probability(request, "threshold")
            checkpoints.write_model(model.files(cohort, best, requests.integer(request, "round", best), chosen))
        return {}


def _pad_features(x: Any, columns: int) -> Any:
    """The features with zero columns appended, as many as the widest party of a vertical federation has."""
    if isinstance(x, Tensor):
        return nn.functional.pad(x, (0, columns - x.shape[1]))
    return sp.csr_array((x.data, x.indices, x.indptr), shape=(x.shape[0], columns))
