"""A lying server: whatever it asks of a site that the verb did not declare is refused by name, before anything is made of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import algorithms, wire
from atoll.data.federated import federate
from atoll.deploy import requests
from atoll.deploy.compatibility import check_compatible
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine, read_answer
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.version import __version__
from invalid import invalid_messages
from small import ALGORITHMS, small
from test_promises import tensors
from test_threat_model import Settings, variants


class Doubting:
    """A carrier: of every kind of question, site 0 hears every lie first, and must refuse each of them by name."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = sites
        self.seen: set[tuple[str, bool, frozenset[str]]] = set()
        self.wrong: list[str] = []
        self.told = 0

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        return {site: self._ask(site, data) for site, data in requests.items()}

    def _ask(self, site: str, data: bytes) -> bytes:
        request = wire.decode(data)
        if request["kind"] == "ask" and site == "site-0":
            given = frozenset([*request.get("common", {}), *request.get("each", {})])
            kind = (request["verb"], request["training"], given)
            if kind not in self.seen and not request["verb"].startswith("secure_"):
                self.seen.add(kind)
                for group in ("common", "each"):
                    self._lie(site, request, group)
        return self.sites[site].handle(data)

    def _lie(self, site: str, request: dict[str, Any], group: str) -> None:
        for word, path, fields in invalid_messages(request.get(group, {})):
            if (word == "missing" and (request["verb"], path) in MAY_BE_MISSING) or (word, path) == ("negative", "share"):
                continue  # GLASU's share is of a gradient
            self.told += 1
            answer = read_answer(self.sites[site].handle(wire.encode({**request, group: fields})))
            named = path.split("/")[0]
            if not isinstance(answer, str) or not answer.startswith("refused") or named not in answer:
                self.wrong.append(f"{request['verb']} {group} {path} {word}: {answer}")


MAY_BE_MISSING = {  # optional arguments: without one it is another question
    *(("train", name) for name in ("aggregate", "gradient", "share")),
    *(("sample", "nodes"), ("embed", "nodes"), ("evaluate", "aggregate"), ("fit", "gradient")),
    *(("fit", "labels"), ("fit", "nodes"), ("evaluate", "nodes")),
}


def doubted(config: Config, folder: Path) -> tuple[Doubting, runner.Result]:
    """A run over sites that hear lies."""
    from atoll import algorithms

    data = federate(config, None, algorithms.find(config.algorithm).SCENARIOS)
    schema = runner.schema_of(data)
    together = bool(getattr(config.settings, "theory", 0))  # what is measured takes all parties in one process
    count = 1 if together else min(3, schema.parties)
    roster = {f"site-{place}": part.tolist() for place, part in enumerate(np.array_split(np.arange(schema.parties), count))}
    carrier = Doubting({site: Site(folder / site) for site in roster})
    engine = RemoteEngine(carrier, roster, config.to_dict(), schema, timeout=5.0)  # type: ignore[arg-type]
    return carrier, runner.rounds(runner.build_experiment(config, engine, schema, data, data.scenario))


@pytest.mark.parametrize(("algorithm", "settings"), variants())
def test_a_site_refuses_what_a_verb_does_not_take(algorithm: str, settings: Settings, tmp_path: Path) -> None:
    """Every argument of every verb: more, missing, of another type or shape, huge, not a number; then the run goes on as ever."""
    config = small(algorithm, rounds=2, **dict(settings))
    carrier, result = doubted(config, tmp_path)
    assert carrier.seen
    assert carrier.wrong == []
    alone = runner.rounds(runner.prepare(config))
    assert result.bytes == alone.bytes
    assert result.last.get("val_loss") == pytest.approx(alone.last.get("val_loss"), abs=1e-5)
    for name, value in tensors(alone).items():
        torch.testing.assert_close(tensors(result)[name], value, atol=1e-5, rtol=1e-5)


def begun(tmp_path: Path, algorithm: str = "fedavg") -> tuple[Site, dict[str, Any], dict[str, Any]]:
    """A site of a run, the request it began with, and a question it answers."""
    kept: dict[str, dict[str, Any]] = {}
    site = Site(tmp_path)

    class Keep:
        """A carrier for one site that keeps what it carries."""

        def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
            """Pass on."""
            for data in requests.values():
                kept.setdefault(wire.decode(data)["kind"], wire.decode(data))
            return {name: site.handle(data) for name, data in requests.items()}

    config = small(algorithm, rounds=1)
    data = federate(config, None, ("horizontal",))
    schema = runner.schema_of(data)
    engine = RemoteEngine(Keep(), {"site-0": [0, 1, 2]}, config.to_dict(), schema, timeout=5.0)
    runner.rounds(runner.build_experiment(config, engine, schema, data, data.scenario))
    return site, kept["begin"], kept["ask"]


def refusal(site: Site, request: dict[str, Any]) -> str:
    """Why a site refuses."""
    answer = read_answer(site.handle(wire.encode(request)))
    assert isinstance(answer, str), answer
    return answer


SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "epochs": ({"epochs": 10**12}, "epochs is 1000000000000 but must be at most 100000"),
    "layers": ({"layers": 10**7}, "layers is 10000000 but must be at most 1000"),
    "hidden": ({"hidden": 10**12}, "hidden is 1000000000000 but must be at most 1000000"),
    "room": ({"hidden": 10**6, "layers": 1000}, "parameters"),
    "negative": ({"hidden": -5}, "hidden is -5 but must be at least 1"),
    "text": ({"hidden": "x" * 9000}, "hidden is 'xxx"),
    "unknown": ({"x" * 5000: 1}, "no setting"),
}


@pytest.mark.parametrize("attack", SETTINGS)
def test_a_configuration_cannot_exhaust_a_site(attack: str, tmp_path: Path) -> None:
    """epochs = 10¹², layers = 10⁷, a model of 10¹⁵ parameters: refused with the bound, and nothing is allocated."""
    site, begin, _ = begun(tmp_path)
    values, expected = SETTINGS[attack]
    document = begin["config"][0]
    lied = {**begin, "config": [{**document, "settings": {**document["settings"], **values}}]}
    reason = refusal(site, lied)
    assert expected in reason
    assert len(reason) <= 300
    assert isinstance(read_answer(site.handle(wire.encode(begin))), dict)  # an honest one is still taken


@pytest.mark.parametrize(
    "attack", ["epochs", "local_steps", "em_steps", "link_types", "walk_steps", "proxy_dim", "heads", "neighbors"]
)
def test_every_algorithm_bounds_its_own_settings(attack: str) -> None:
    """Wherever a setting of that name is, 10¹² of it is too many."""
    bounded = 0
    for algorithm in ALGORITHMS:
        with pytest.raises(AtollError, match=r"must be at most|no setting") as refused:
            small(algorithm, **{attack: 10**12})
        bounded += "must be at most" in str(refused.value)
    assert bounded


SCHEMAS: dict[str, tuple[Any, str]] = {
    "features": ({"features": 10**12}, "features is 1000000000000, not a whole number from 0 to"),
    "other features": ({"features": 13}, "expects 13 features, but this site's data has 12"),
    "classes": ({"classes": 4}, "expects 4 classes, but this site's data has 3"),
    "no parties": ({"parties": 0}, "parties is 0"),
    "few parties": ({"parties": 2}, "calls this site party 2 of 2"),
    "negative": ({"nodes": -1}, "nodes is -1"),
    "text": ({"classes": "3"}, "classes is '3'"),
    "float": ({"classes": 3.0}, "classes is 3.0"),
    "extra": ({"extra": 1}, "holds an unknown entry, 'extra'"),
}


@pytest.mark.parametrize("attack", SCHEMAS)
def test_the_schema_is_that_of_the_sites_own_data(attack: str, tmp_path: Path) -> None:
    """What the server says of the data is compared with the data."""
    site, begin, _ = begun(tmp_path)
    values, expected = SCHEMAS[attack]
    assert expected in refusal(site, {**begin, "schema": {**begin["schema"], **values}})


ENVELOPES: dict[str, tuple[dict[str, Any], str]] = {
    "round": ({"round": -1}, "round is -1"),
    "huge round": ({"round": 10**15}, "round is 1000000000000000"),
    "call": ({"call": "0"}, "call is '0'"),
    "training": ({"training": 1}, "training is 1, not true or false"),
    "verb": ({"verb": "v" * 200}, "names no verb"),
    "no verb": ({"verb": "recall"}, "no verb 'recall'"),
    "common": ({"common": 3}, "common is not a table"),
    "twice": ({"parties": torch.tensor([0, 0])}, "for one more than once"),
    "nobody": ({"parties": torch.tensor([], dtype=torch.int64)}, "for no party"),
    "negative party": ({"parties": torch.tensor([-1])}, "for no party"),
    "huge party": ({"parties": torch.tensor([10**12])}, "for party 1000000000000, of at most"),
    "foreign party": ({"parties": torch.tensor([7])}, "do not live here"),
    "no parties": ({"parties": 3}, "for which parties"),
}


@pytest.mark.parametrize("attack", ENVELOPES)
def test_the_envelope_of_a_question_is_checked(attack: str, tmp_path: Path) -> None:
    """Round, call, parties, verb: of the right type and within bounds."""
    site, _, ask = begun(tmp_path)
    values, expected = ENVELOPES[attack]
    reason = refusal(site, {**ask, **values})
    assert reason.startswith("refused")
    assert expected in reason


def test_the_other_messages_are_checked_too(tmp_path: Path) -> None:
    """`save` and `begin` with impossible rounds, `echo` of what is not a table, an unknown kind."""
    site, begin, ask = begun(tmp_path)
    about = {"atoll": __version__, "run": ask["run"]}
    assert "round is -3" in refusal(site, {**about, "kind": "save", "round": -3})
    assert "round is 'a'" in refusal(site, {**about, "kind": "save", "round": "a"})
    assert "token is -2" in refusal(site, {**begin, "token": -2})
    assert "exact is 1" in refusal(site, {**begin, "exact": 1})
    assert "not a table" in refusal(site, {**begin, "config": []})
    assert "common is not a table" in refusal(site, {**about, "kind": "echo", "common": 3})
    assert len(refusal(site, {**about, "kind": "k" * 9000})) < 100


def test_a_reply_that_would_not_fit_into_a_message_is_not_begun(tmp_path: Path) -> None:
    """FedGL: rows for 10⁹ nodes are refused before they are made, whatever the server's configuration allows."""
    from atoll.algorithms import fedgl
    from atoll.federation.bounds import Limits, Rules
    from atoll.federation.cohort import Message

    config = small("fedgl")
    limits = Limits(fedgl.Cohort, config.settings, Schema(12, 3, 3), Rules(max_nodes=10**9))
    model = fedgl.start(runner.prepare(config).federation, config.settings)["model"]
    limits.arguments(Message("fit", 1, 0, True, (0,), {"model": model, "nodes": 60}, {}), 1 << 30)
    with pytest.raises(AtollError, match=r"would have \d+ bytes, more than the 1073741824"):
        limits.arguments(Message("fit", 1, 0, True, (0,), {"model": model, "nodes": 10**9}, {}), 1 << 30)


def test_room_is_counted_before_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and representations against this machine's memory; what fits is never refused."""
    config = small("fedavg", hidden=1000, layers=3)
    requests.check_memory(config.settings, Schema(12, 3, 3), 60, 3)
    monkeypatch.setattr(requests, "machine_memory", lambda: 10**6)
    with pytest.raises(AtollError, match="and this site has 0; lower hidden or layers"):
        requests.check_memory(config.settings, Schema(12, 3, 3), 60, 3)


def test_every_setting_that_the_estimate_reads_is_one() -> None:
    """A setting that was renamed would count as its default, and the estimate would be too low without a word."""

    class Asked:
        """Settings that note what is read of them."""

        names: set[str] = set()

        def __getattr__(self, name: str) -> Any:
            self.names.add(name)
            raise AttributeError(name)

    requests.estimated_size(Asked(), Schema(12, 3, 3), 60)
    settings = [algorithms.find(name).Settings for name in algorithms.names()]
    assert Asked.names <= {field.name for each in settings for field in dataclasses.fields(each)}


def test_what_a_site_says_of_its_data_is_bounded() -> None:
    """One site's absurd description is refused by its name; the others are not made to pad their columns to it."""
    honest = {"features": 12, "classes": 3, "names": torch.zeros(0, dtype=torch.int64), "nodes": 60}
    honest |= {"named": True, "ids": torch.arange(60)}
    for field, value in (("features", 10**12), ("features", -1), ("classes", 0), ("nodes", True), ("nodes", 10**18)):
        with pytest.raises(AtollError, match=rf"The site b cannot take part: it says that it has .* {field}"):
            check_compatible({"a": honest, "b": {**honest, field: value}}, "vertical")
