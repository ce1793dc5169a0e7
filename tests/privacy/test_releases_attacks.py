"""A server, a crash or a damaged file tries to get more out of the parties than ε says."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from atoll import wire
from atoll.data.federated import federate
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Message, Schema, first_model
from atoll.parties import Parties
from atoll.privacy.noise import Noise
from atoll.privacy.noise_settings import NoiseSettings
from atoll.privacy.releases import RELEASES_FILE, Releases, epsilon_of
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.folder import Folder
from atoll.version import __version__
from small import small

DP: dict[str, Any] = {"dp.verb": "fit", "dp.clip": 1.0, "dp.noise": 4.0}
SCHEMA = {"features": 12, "classes": 3, "parties": 3, "nodes": 0}


class BrokenError(Exception):
    """Stands for a process that dies."""


class Hostile:
    """A server that writes its messages to a site itself."""

    def __init__(self, site: Site, **values: Any) -> None:
        self.site = site
        self.config = small("fedavg", **DP, **{"dp.evaluation_noise": 50.0}, **values)
        self.model = first_model(self.config.settings, Schema(**SCHEMA), 0)

    def send(self, kind: str, parties: list[int], **rest: Any) -> dict[str, Any]:
        """The site's answer."""
        request = {"atoll": __version__, "kind": kind, "run": "run", "parties": torch.tensor(parties, dtype=torch.int64), **rest}
        return wire.decode(self.site.handle(wire.encode(request)))

    def begin(self, parties: list[int], **changes: Any) -> dict[str, Any]:
        """Begin a run."""
        document = copy.deepcopy(self.config.to_dict())
        return self.send("begin", parties, config=[document], schema=SCHEMA | changes, token=-1, exact=False)

    def fit(self, parties: list[int]) -> dict[str, Any]:
        """Ask for a model of each."""
        return self.send("ask", parties, verb="fit", round=1, call=1, training=True, common={"model": self.model}, each={})


@pytest.mark.parametrize("parties", [[0, 0], [0, 0, 0, 0], []])
def test_a_party_that_is_named_twice_does_not_answer_twice(parties: list[int], tmp_path: Path) -> None:
    """Each answer has noise of its own: many for the price of one would average it away."""
    server = Hostile(Site(tmp_path, policy=SitePolicy(dp_epsilon=8.0)))
    assert server.begin([0])["status"] == "ok"
    reply = server.fit([0])
    assert len(reply["fields"]["n"]) == 1
    before = (tmp_path / RELEASES_FILE).read_bytes()
    reply = server.fit(parties)
    assert reply["status"] == "failed"
    assert "for no party, or for one more than once" in reply["reason"]
    assert (tmp_path / RELEASES_FILE).read_bytes() == before
    assert server.fit([0])["status"] == "ok"


@pytest.mark.parametrize("parties", [[1, 1], [-1], [10**12], []])
def test_a_run_does_not_begin_with_a_party_twice(parties: list[int], tmp_path: Path) -> None:
    """Nor with one that cannot be."""
    assert Hostile(Site(tmp_path)).begin(parties)["status"] == "failed"


def test_the_count_refuses_a_party_that_is_named_twice() -> None:
    """Whoever asks."""
    for parties in ([3, 3], [1, 2, 1], []):
        with pytest.raises(AtollError, match="from no party, or from one more than once"):
            Releases().spend(Parties(parties), 0.5)


@pytest.mark.parametrize("shape", [(5, 1, 2), (2, 1), (4, 2)])
def test_a_model_sent_in_another_shape_makes_no_more_replies(shape: tuple[int, ...]) -> None:
    """The update from five models at once would be five replies, clipped and noised each for itself."""
    message = Message("fit", 1, 1, True, Parties([0]), {"model": {"w": torch.zeros(shape)}}, {})
    fields = {"model": {"w": torch.ones(1, 2)}, "n": torch.tensor([3])}
    with pytest.raises(AtollError, match="'model/w' was sent with a different shape"):
        Noise(NoiseSettings(verb="fit"))(message, fields, Draws(0, [0], "guard"))


@pytest.mark.parametrize("split", ["per_class", "stratified"])
def test_the_number_of_training_nodes_does_not_tell_the_classes(split: str, tmp_path: Path) -> None:
    """With k nodes of each class to train on, it is Σ min(k, size of the class): a few cheap runs would tell every size."""
    reply = Hostile(Site(tmp_path, policy=SitePolicy(dp_epsilon=8.0)), split=split).begin([0])
    assert "insists on differential privacy: split must be auto, public or random" in reply["reason"]


def test_only_one_number_a_party_leaves_as_its_weight() -> None:
    """Not a list of nodes or of classes that is called so."""
    guard = Noise(NoiseSettings(verb="fit"), strict=True)
    message = Message("fit", 1, 1, True, Parties([0]), {}, {})
    for name in ("n", "nodes"):
        with pytest.raises(AtollError, match=f"{name!r} in the replies to 'fit' has none"):
            guard(message, {"model": torch.ones(1, 2), name: torch.tensor([[3, 5, 8]])}, Draws(0, [0], "guard"))


def test_only_the_steps_of_a_secure_total_leave_without_noise() -> None:
    """A verb that merely sounds like one does not."""
    guard = Noise(NoiseSettings(verb="fit"), strict=True)
    fields = {"all": torch.ones(1, 2)}
    for name, free in (("secure_keys", True), ("secure_everything", False)):
        message = Message(name, 1, 1, True, Parties([0]), {}, {})
        if free:
            assert guard(message, fields, Draws(0, [0], "guard")) is fields
        else:
            with pytest.raises(AtollError, match="lets nothing leave without noise"):
                guard(message, fields, Draws(0, [0], "guard"))


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dp.verb": "secure_keys"}, "dp.verb is 'secure_keys', a step of secure totals"),
        ({**DP, "dp.noise": 1e160}, r"noise is 1e\+160 but must be at most"),
        ({**DP, "dp.clip": 1e300}, r"clip is 1e\+300 but must be at most"),
    ],
)
def test_noise_on_nothing_is_refused(values: dict[str, Any], sentence: str) -> None:
    """An ε of 0 would be told of a run in which all leaves as it is."""
    with pytest.raises(AtollError, match=sentence):
        small("fedavg", **values)


@pytest.mark.parametrize("delta", [0.5, 0.01, 1e-5, 1e-9])
def test_epsilon_is_above_the_exact_one_and_near_it(delta: float) -> None:
    """The exact one is that of a Gaussian mechanism (Balle and Wang, ICML 2018); near it is what the best Rényi order gives."""
    orders = 1 + np.logspace(-6, 8, 100_000)
    for rho in (1e-12, 1e-6, 1e-3, 0.1, 2.0, 30.0):
        shift = math.sqrt(2 * rho)

        def excess(epsilon: float, shift: float = shift) -> float:
            below = stats.norm.logcdf(-shift / 2 - epsilon / shift)
            return float(stats.norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon + below)) - delta

        exact = optimize.brentq(excess, 0, rho + 12 * shift) if excess(0.0) > 0 else 0.0
        best = (rho * orders + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)).min()
        assert exact <= epsilon_of(rho, delta) <= max(0.0, 1.02 * best), rho


# Files


def broken_run(folder: Path) -> Path:
    """A run that ended after the checkpoint of its third round; the file with its releases."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise BrokenError

    with pytest.raises(BrokenError):
        runner.run(small("fedavg", rounds=4, checkpoint_every=1, **DP), out=folder, watch=watch)
    return folder / RELEASES_FILE


def replaced(old: str, new: str) -> Callable[[Path], None]:
    """Damage to a file: one text for another."""

    def damage(path: Path) -> None:
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return damage


def cut(lines: int) -> Callable[[Path], None]:
    """Damage to a file: only its first lines are left."""
    return lambda path: (path.write_text("".join(path.read_text().splitlines(keepends=True)[:lines])), None)[1]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (Path.unlink, "has lost releases"),
        (cut(0), "has lost releases"),
        (cut(2), "has lost releases"),
        (lambda path: path.write_text("".join(path.read_text().splitlines(keepends=True)[1:])), "checksum of line 1"),
        (replaced("0.125", "0.025"), "checksum of line 1"),
        (replaced("0.125", "-0.125"), "checksum of line 1"),
        (replaced("0.125", '"x"'), "checksum of line 1"),
        (replaced('"round": 2', '"round": 3'), "checksum of line 2"),
        (replaced("[[0, 3]]", "[]"), "checksum of line 1"),
        (replaced("[[0, 3]]", "[[0, 100000000000]]"), "checksum of line 1"),
        (lambda path: path.write_text("[]\n"), "is damaged"),
        (lambda path: path.write_bytes(b"\xff\n"), "is damaged"),
    ],
)
def test_a_count_that_was_lost_or_changed_is_told(damage: Callable[[Path], None], sentence: str, tmp_path: Path) -> None:
    """The run does not go on with a smaller ε."""
    damage(broken_run(tmp_path / "run"))
    with pytest.raises(AtollError, match=sentence):
        runner.resume(tmp_path / "run")


def test_two_processes_do_not_share_a_budget(tmp_path: Path) -> None:
    """Each would spend all of it: who comes second is refused, and what was counted stays."""
    path = tmp_path / RELEASES_FILE
    one, other = Releases(path, "one"), Releases(path, "other")
    one.spend(Parties([0]), 0.5)
    with pytest.raises(AtollError, match="was changed by another program"):
        other.spend(Parties([0]), 0.5)
    one.spend(Parties([0]), 0.5)
    assert Releases(path).total == 1.0
    path.unlink()
    with pytest.raises(AtollError, match="was changed by another program"):
        one.spend(Parties([0]), 0.5)


class Direct:
    """A carrier that calls the sites it has."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites = sites

    def send(self, requests: Any, timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        return {site: self.sites[site].handle(data) for site, data in requests.items() if site in self.sites}


def test_a_site_that_is_away_after_a_resume_still_counts(tmp_path: Path) -> None:
    """It has released most, and told so before the server ended."""
    config = small("fedavg", rounds=3, checkpoint_every=1, **DP)
    folder = Folder.create(tmp_path / "run", config)

    def over(sites: dict[str, Site], watch: Any, checkpoint: Any) -> runner.Result:
        data = federate(config, None, ("horizontal", "overlapping"))
        parties = {f"site-{place}": Parties([place]) for place in range(3)}
        engine = RemoteEngine(Direct(sites), parties, config.to_dict(), Schema(12, 3, 3), timeout=5.0)
        return runner.rounds(
            runner.build_experiment(config, engine, Schema(12, 3, 3), data, data.scenario), folder, watch, checkpoint
        )

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            raise BrokenError

    sites = {f"site-{place}": Site(tmp_path / f"site-{place}") for place in range(3)}
    with pytest.raises(BrokenError):
        over(sites, watch, None)
    for place in (1, 2):  # as if these had begun only now
        (tmp_path / f"site-{place}" / RELEASES_FILE).unlink()
    left = {name: Site(tmp_path / name) for name in ("site-1", "site-2")}
    resumed = over(left, None, folder.load())
    assert resumed.rows[-1]["epsilon"] >= resumed.rows[1]["epsilon"] == pytest.approx(epsilon_of(2 * 0.125, 1e-5))
