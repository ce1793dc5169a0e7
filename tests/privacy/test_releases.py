"""Releases are counted at the party and never taken back, by a crash, a resume or another run; a site may set an end to them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from atoll import wire
from atoll.cli import deploy
from atoll.data.federated import federate
from atoll.deploy.policy import SitePolicy
from atoll.deploy.site import Site
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Message, Schema
from atoll.federation.federation import Answer, Failure
from atoll.parties import Parties
from atoll.privacy import noise, sampling
from atoll.privacy.noise_settings import NoiseSettings, cost_of
from atoll.privacy.releases import RELEASES_FILE, Budget, Releases, epsilon_of
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.runner import Result
from privacy.accounting import epsilon_after
from small import ALGORITHMS, Wrapper, small

DP: dict[str, Any] = {"dp.verb": "fit", "dp.clip": 1.0, "dp.noise": 4.0}
SETTINGS = NoiseSettings(verb="fit", noise=4.0)


class BrokenError(Exception):
    """Stands for a process that dies."""


def test_costs_add_up_by_party_and_run(tmp_path: Path) -> None:
    """In memory as in a file; another run's count toward the budget, not toward this run's ε."""
    path = tmp_path / "runs" / RELEASES_FILE
    for releases in (Releases(), Releases(path, "a")):
        releases.spend(Parties([0, 1, 2, 5]), 0.5)
        releases.spend(Parties([1, 5]), 0.25)
        assert releases.costs.tolist() == [0.5, 0.75, 0.5, 0.0, 0.0, 0.75]
        assert releases.most() == 0.75
    again, other = Releases(path, "a"), Releases(path, "b")
    assert again.costs.tolist() == [0.5, 0.75, 0.5, 0.0, 0.0, 0.75]
    assert (other.most(), other.total) == (0.0, 0.75)
    other.spend(Parties([0]), math.inf)
    assert Releases(path, "b").epsilon() == math.inf
    assert Releases(path, "a").most() == 0.75


def test_a_line_that_a_crash_cut_off_does_not_count(tmp_path: Path) -> None:
    """Its reply never left; but any other damage is told: nobody knows what was released."""
    path = tmp_path / RELEASES_FILE
    Releases(path).spend(Parties([0]), 0.5)
    with path.open("a") as file:
        file.write('{"run": "", "rho"')
    releases = Releases(path)
    assert releases.most() == 0.5
    releases.spend(Parties([0]), 0.5)
    assert Releases(path).most() == 1.0
    path.write_text('{"run": ""}\n' + path.read_text())
    with pytest.raises(AtollError, match="is damaged"):
        Releases(path)


def test_a_budget_ends_it_before_anything_is_written(tmp_path: Path) -> None:
    """The release that would pass ε is refused, and does not count."""
    path = tmp_path / RELEASES_FILE
    releases = Releases(path, budget=Budget(epsilon_of(1.2, 1e-6), 1e-6))
    releases.spend(Parties([0]), 0.5)
    releases.spend(Parties([0]), 0.5)
    before = path.read_bytes()
    with pytest.raises(AtollError, match="another reply to 'fit' would make it"):
        releases.spend(Parties([0]), 0.5, "fit")
    assert path.read_bytes() == before
    with pytest.raises(AtollError, match="over all its runs"):
        Releases(path, "another", budget=releases.budget).spend(Parties([0]), 0.5)


def test_a_resume_does_not_take_releases_back(tmp_path: Path) -> None:
    """Rounds after the last checkpoint are run again: their replies left twice, so ε is higher; all else is the same."""
    values = {**DP, "checkpoint_every": 2}
    whole = runner.run(small("fedavg", rounds=4, **values))

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise BrokenError

    with pytest.raises(BrokenError):
        runner.run(small("fedavg", rounds=4, **values), out=tmp_path / "run", watch=watch)
    resumed = runner.resume(tmp_path / "run")
    assert whole.rows[-1]["epsilon"] == pytest.approx(epsilon_after(SETTINGS, 4))
    assert resumed.rows[-1]["epsilon"] == pytest.approx(epsilon_after(SETTINGS, 5))
    for (name, value), (_, same) in zip(wire.leaves(whole.state), wire.leaves(resumed.state), strict=True):
        assert torch.equal(value, same), name


class Dying(Wrapper):
    """The process dies when the replies to a call are there, before anybody could use them."""

    def __init__(self, engine: Any, verb: str, round: int) -> None:
        super().__init__(engine)
        self.verb, self.round = verb, round

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Pass on, then die."""
        answers = super().deliver(message)
        if (message.verb, message.round) == (self.verb, self.round):
            raise BrokenError
        return answers


def test_a_release_counts_before_its_reply_is_used(tmp_path: Path) -> None:
    """In the first round, before there is any checkpoint, too."""
    config = small("fedavg", rounds=2, **DP)
    folder = Folder.create(tmp_path / "run", config)
    with pytest.raises(BrokenError):
        runner.rounds(runner.prepare(config, engine=lambda engine: Dying(engine, "fit", 1)), folder)
    resumed = runner.rounds(runner.prepare(config), folder, None, folder.load())
    assert resumed.rows[-1]["epsilon"] == pytest.approx(epsilon_after(SETTINGS, 3))


def test_a_run_that_could_not_begin_leaves_nothing(tmp_path: Path) -> None:
    """Not even a count."""
    with pytest.raises(AtollError):
        runner.run(small("fedavg", **{**DP, "dp.fields": "modle"}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# At sites


class Direct:
    """A carrier that calls the sites; `after` may break the connection when they have answered."""

    def __init__(self, sites: dict[str, Site], after: Callable[[dict[str, Any]], None] = lambda request: None) -> None:
        self.sites, self.after = sites, after

    def send(self, requests: Any, timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        answers: dict[str, bytes | str] = {site: self.sites[site].handle(data) for site, data in requests.items()}
        self.after(wire.decode(next(iter(requests.values()))))
        return answers


def sites(folder: Path, policy: SitePolicy | None = None) -> dict[str, Site]:
    """Three simulated sites."""
    return {f"site-{place}": Site(folder / f"site-{place}", policy=policy) for place in range(3)}


def over(config: Config, carrier: Direct, folder: Folder | None = None, checkpoint: Any = None) -> Result:
    """A run over a carrier."""
    data = federate(config, None, ("horizontal", "overlapping"))
    schema = Schema(12, 3, 3)
    engine = RemoteEngine(
        carrier, {f"site-{place}": Parties([place]) for place in range(3)}, config.to_dict(), schema, timeout=5.0
    )
    return runner.rounds(runner.build_experiment(config, engine, schema, data, data.scenario), folder, None, checkpoint)


@pytest.mark.parametrize("secure", [False, True])
def test_sites_count_for_themselves(tmp_path: Path, secure: bool) -> None:
    """The history's ε is what they say: also of a reply that the server never used, and after all of them were restarted."""
    config = small("fedavg", rounds=3, checkpoint_every=1, secure=secure, **DP)
    folder = Folder.create(tmp_path / "run", config)

    def die(request: dict[str, Any]) -> None:
        if request.get("verb") == "fit" and request["round"] == 3:
            raise BrokenError

    with pytest.raises(BrokenError):
        over(config, Direct(sites(tmp_path), die), folder)
    assert [row["epsilon"] for row in folder.rows()] == pytest.approx([epsilon_after(SETTINGS, 1), epsilon_after(SETTINGS, 2)])
    resumed = over(config, Direct(sites(tmp_path)), folder, folder.load())
    assert resumed.rows[-1]["epsilon"] == pytest.approx(epsilon_after(SETTINGS, 4))
    lines = (tmp_path / "site-0" / RELEASES_FILE).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 3]
    journal = [json.loads(line) for line in (tmp_path / "site-0" / "journal.jsonl").read_text().splitlines()]
    assert journal[-1]["epsilon"] == pytest.approx(epsilon_after(SETTINGS, 4))


def test_what_a_site_says_of_itself_is_checked() -> None:
    """A count that is not a number changes nothing; one that is too high is only that site's own word."""
    engine = RemoteEngine(Direct({}), {}, {"algorithm": "fedavg"}, Schema(1, 1, 1), timeout=1.0)
    for word in (None, "many", -1.0, math.nan, True, [1.0]):
        engine._count(word)
    assert engine.spent == 0.0
    engine._count(2.5)
    assert engine.spent == 2.5


ENOUGH: dict[str, Any] = {**DP, "dp.evaluation_noise": 50.0}


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({}, "dp.verb, dp.clip and dp.noise must be set"),
        ({**ENOUGH, "dp.clip": 0.0}, "dp.verb, dp.clip and dp.noise must be set"),
        ({**ENOUGH, "dp.noise": 0.0}, "dp.verb, dp.clip and dp.noise must be set"),
        ({"dp.evaluation_noise": 1.0}, "dp.verb, dp.clip and dp.noise must be set"),
        ({**ENOUGH, "dp.protected_unit": "row"}, "dp.protected_unit must be party"),
        ({**ENOUGH, "dp.fields": "model"}, "dp.fields must be left out"),
        (DP, "dp.evaluation_noise must be set"),
    ],
)
def test_a_site_that_insists_refuses_what_is_not_private(values: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    """Before the first round; nothing of its data has left."""
    with pytest.raises(AtollError, match=f"site-0 refused: this site insists on differential privacy: {sentence}"):
        over(small("fedavg", **values), Direct(sites(tmp_path, SitePolicy(dp_epsilon=100.0))))


@pytest.mark.parametrize(
    ("algorithm", "verb", "sentence"),
    [
        ("fedavg", "fit", ""),
        ("fedspray", "update", ""),
        ("gcfl", "fit", ""),
        ("fedgl", "fit", "the replies to 'count' have none"),
        ("fedlit", "fit", "the replies to 'cluster' have none"),
    ],
)
def test_a_site_that_insists_lets_nothing_out_without_noise(algorithm: str, verb: str, sentence: str, tmp_path: Path) -> None:
    """Algorithms that need other replies, or other fields beside the weight, are refused by the verb's name."""
    config = small(algorithm, rounds=1, **{**ENOUGH, "dp.verb": verb})
    carrier = Direct(sites(tmp_path, SitePolicy(dp_epsilon=100.0)))
    if sentence:
        with pytest.raises(AtollError, match=f"this site lets nothing leave without noise, and {sentence}"):
            over(config, carrier)
    else:
        assert 0 < over(config, carrier).rows[-1]["epsilon"] < 100


def test_fields_in_clear_beside_noised_ones_are_refused() -> None:
    """Under the policy of a site that insists: whole numbers other than the weight."""
    guard = noise.Noise(NoiseSettings(verb="fit"), strict=True)
    message = Message("fit", 1, 1, True, Parties([0]), {}, {})
    draws = runner.prepare(small("fedavg")).engine.cohorts[0].draws()  # type: ignore[attr-defined]
    fields = {"model": torch.ones(1, 2), "n": torch.tensor([3])}
    assert guard(message, fields, draws)["n"].tolist() == [3]
    with pytest.raises(AtollError, match="'links' in the replies to 'fit' has none"):
        guard(message, fields | {"links": torch.tensor([7])}, draws)


def test_a_site_stops_at_its_epsilon_over_all_runs(tmp_path: Path) -> None:
    """It answers as long as its ε allows, and not in the next run with the same kit either."""
    each = NoiseSettings(noise=4.0).cost + cost_of(50.0)
    policy = SitePolicy(dp_epsilon=epsilon_of(3.5 * each, 1e-6), dp_delta=1e-6)
    config = small("fedavg", rounds=10, **ENOUGH)
    with pytest.raises(AtollError, match=r"Round 4: no party answered 'fit' .*site-0 refused: this site insists on ε ≤"):
        over(config, Direct(sites(tmp_path, policy)))
    spent = Releases(tmp_path / "site-0" / RELEASES_FILE)
    assert epsilon_of(spent.total, 1e-6) <= policy.dp_epsilon
    assert spent.total == pytest.approx(3 * each)
    with pytest.raises(AtollError, match=r"Round 1: no party answered 'fit' .*over all its runs"):
        over(config, Direct(sites(tmp_path, policy)))


def test_terms_travel_as_text() -> None:
    """From `atoll join` to the site's process."""
    policy = SitePolicy(("fedavg",), secure=True, dp_epsilon=2.0, dp_delta=1e-6)
    assert SitePolicy.from_json(policy.to_json()) == policy
    assert policy.budget == Budget(2.0, 1e-6)
    assert SitePolicy().budget is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dp_epsilon": -1.0}, "--dp-epsilon is -1 but must be a number above 0"),
        ({"dp_epsilon": math.inf}, "--dp-epsilon is inf but must be a number above 0"),
        ({"dp_epsilon": 1.0, "dp_delta": 0.0}, "--dp-delta is 0 but must be above 0 and below 1"),
    ],
)
def test_terms_that_mean_nothing_get_one_sentence(values: dict[str, float], sentence: str, tmp_path: Path) -> None:
    """Before anything is read."""
    with pytest.raises(AtollError, match=sentence):
        deploy.join(tmp_path, tmp_path, **values)


# Evaluation


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_server_can_do_without_each_partys_counts(algorithm: str) -> None:
    """With evaluate_at_server=false the sums are all it asks for: the same metrics, without those of each party."""
    plain = runner.run(small(algorithm, rounds=1)).last
    experiment = runner.prepare(small(algorithm, rounds=1, evaluate_at_server=False))
    asked: list[str] = []
    ask = experiment.federation.ask
    experiment.federation.ask = lambda verb, **rest: asked.append(verb) or ask(verb, **rest)  # type: ignore[func-returns-value,method-assign]
    sums = runner.rounds(experiment).last
    assert "evaluate" not in asked
    assert not any(name.startswith("party_") for name in sums)
    assert sums == pytest.approx({name: value for name, value in plain.items() if not name.startswith("party_")})


@pytest.mark.parametrize("at_server", [True, False])
def test_each_site_keeps_its_own_metrics(at_server: bool, tmp_path: Path) -> None:
    """In `metrics.jsonl` of the run, whatever the server gets: here under noise that hides them from it."""
    plain = runner.run(small("fedavg", rounds=2))
    over(small("fedavg", rounds=2, evaluate_at_server=at_server, **{"dp.evaluation_noise": 9.0}), Direct(sites(tmp_path)))
    for party in range(3):
        (path,) = (tmp_path / f"site-{party}").glob("*/metrics.jsonl")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["round"] for line in lines] == [1, 2]
        assert [line["accuracy"] for line in lines] == [row["party_accuracy"][party] for row in plain.rows]


def test_counts_are_noised_and_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """ε is of both; the metrics stay between 0 and 1; without noise and with a wide clip they are the exact ones."""
    values: dict[str, Any] = {"dp.evaluation_noise": 2.0, "dp.evaluation_clip": 1e3}
    exact = runner.run(small("fedavg")).last
    noised = runner.run(small("fedavg", **values)).last
    assert noised["accuracy"] != exact["accuracy"]
    assert 0 <= noised["accuracy"] <= 1
    assert noised["epsilon"] == pytest.approx(epsilon_of(3 * 2 / 2.0**2, 1e-5))
    both = runner.run(small("fedavg", **DP, **values)).last
    assert both["epsilon"] == pytest.approx(epsilon_of(3 * (2 / 2.0**2 + 2 / 4.0**2), 1e-5))
    monkeypatch.setattr(sampling, "discrete_gaussian", lambda owners, lanes: np.zeros(len(owners), np.int64))
    silent = runner.run(small("fedavg", **values)).last
    for name in ("accuracy", "val_accuracy", "macro_f1", "minority_accuracy"):
        assert silent[name] == pytest.approx(exact[name], abs=0.05), name


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dp.evaluation_noise": 1e-4}, "dp.evaluation_noise is 0.0001, which hides nothing"),
        ({**DP, "dp.noise": 1e-4}, "dp.noise is 0.0001, which hides nothing"),
        ({**DP, "dp.clip": 1e-40}, "dp.clip is 1e-40, which leaves nothing"),
        ({"dp.evaluation_noise": 1.0, "dp.verb": "evaluate"}, "let dp.verb name another verb"),
    ],
)
def test_noise_that_is_none_is_refused(values: dict[str, Any], sentence: str) -> None:
    """One sentence."""
    with pytest.raises(AtollError, match=sentence):
        small("fedavg", **values)
