"""Secure totals at sites: keys from the kits, the minimum cohort, and a record of opened totals that no resume rolls back."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import wire
from atoll.cli import main
from atoll.data import files
from atoll.data.federated import federate
from atoll.deploy import kit as kits
from atoll.deploy import launch
from atoll.deploy.policy import SitePolicy
from atoll.deploy.signing import FOLDER, KEY, Signing
from atoll.deploy.site import TOTALS_FILE, Site
from atoll.engines.remote import RemoteEngine, read_answer
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.parties import divide_evenly
from atoll.privacy.masking import Call
from atoll.privacy.opened_totals import OpenedTotals
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.runner import Result
from atoll.version import __version__
from sites import DirectCarrier
from small import small

BANKS = ("bank-a", "bank-b", "bank-c")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kits of three banks and those of another federation with the same names."""
    folder = tmp_path_factory.mktemp("kits")
    kits.provision(BANKS, "localhost", folder / "kits")
    kits.provision(BANKS, "localhost", folder / "other")
    return folder


def test_a_site_signs_for_its_own_parties_alone(made: Path) -> None:
    """Every end knows everybody's public key; a private one is where it belongs, and signs for the site's own parties."""
    ends = {name: Signing.open(made / "kits" / name) for name in (*BANKS, "server")}
    assert ends["server"].private is None
    assert all(end.public == ends["server"].public for end in ends.values())
    for place, bank in enumerate(BANKS):
        own = ends[bank].identities(3)
        assert list(own.private) == [place]
        signature = own.sign(place, b"statement")
        for end in ends.values():
            assert [end.identities(3).signed(party, signature, b"statement") for party in range(3)] == [
                party == place for party in range(3)
            ]
    assert [list(seat) for seat in divide_evenly(5, 3)] == [[0, 1], [2], [3, 4]]
    assert sorted(ends["bank-c"].identities(5).private) == [3, 4]
    with pytest.raises(AtollError, match="party 0 is not local"):
        ends["bank-c"].identities(5).sign(0, b"statement")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda kit, other: shutil.copy(other / "bank-b.crt", kit / "bank-b.crt"), "bank-b was not made by this federation's"),
        (lambda kit, other: shutil.copy(kit / "bank-a.crt", kit / "bank-b.crt"), "bank-b is not for bank-b"),
        (lambda kit, other: shutil.copy(kit.parent / "startup/client.crt", kit / "bank-a.crt"), "bank-a is not for bank-a"),
        (lambda kit, other: shutil.copy(other / KEY, kit / KEY), "signing key is not that of bank-a"),
        (lambda kit, other: (kit / "bank-c.crt").write_text("nonsense"), "signing keys cannot be read"),
        (lambda kit, other: shutil.rmtree(kit), "signing keys cannot be read; make new kits"),
    ],
)
def test_other_keys_in_a_kit_are_refused(change: Any, sentence: str, made: Path, tmp_path: Path) -> None:
    """Another federation's certificate, somebody else's, the one of TLS, a foreign key, damage: one sentence."""
    shutil.copytree(made / "kits" / "bank-a", tmp_path / "kit")
    change(tmp_path / "kit" / FOLDER, made / "other" / "bank-a" / FOLDER)
    with pytest.raises(AtollError, match=sentence):
        Signing.open(tmp_path / "kit")


def config_of(parties: int, **values: Any) -> Config:
    """FedAvg with secure totals."""
    return replace(small("fedavg", secure=True, checkpoint_every=1, **values), parties=parties)


def begin(site: Site, config: Config, party: int, parties: int) -> str:
    """What a site says to `begin`."""
    request: dict[str, Any] = {"kind": "begin", "config": [config.to_dict()], "token": -1, "exact": False, "run": "run"}
    request |= {"schema": Schema(12, 3, parties).numbers, "parties": wire.torch.tensor([party])}
    said = read_answer(site.handle(wire.encode({"atoll": __version__, **request})))
    return said if isinstance(said, str) else ""


def test_a_site_decides_how_few_parties_are_too_few(made: Path, tmp_path: Path) -> None:
    """Three by default: in a federation of two, `--secure-min 2` must be said. And who is which party stands in the kit."""
    parts = federate(small("fedavg"), None, ("horizontal",)).parts
    files.save(parts.select([0]), tmp_path / "data")

    def site(**values: Any) -> Site:
        return Site(tmp_path / "site", tmp_path / "data", print, **values)

    document = {"algorithm": "fedavg", "run": {"secure": True}}
    two, three = (launch.deployment_config(document, "run.toml", BANKS[:count]) for count in (2, 3))
    sentence = "secure totals of at least 3 parties, but the federation has 2; `atoll join --secure-min 2` lowers that"
    assert sentence in begin(site(), two, 0, 2)
    assert begin(site(policy=SitePolicy(secure_min=2)), two, 0, 2) == ""
    kit = made / "kits" / "bank-b"
    assert begin(site(kit=kit), three, 1, 3) == ""
    for party, parties in ((0, 3), (1, 4), (1, 6)):
        assert "does not number the parties as this site's kit does" in begin(site(kit=kit), three, party, parties)
    again = site(kit=kit, policy=SitePolicy(secure_min=5))
    assert "at least 5 parties" in begin(again, three, 1, 3)


def test_join_says_at_once_what_would_be_refused_later(made: Path, tmp_path: Path) -> None:
    """A site that insists on secure totals looks into its kit before it joins."""
    with pytest.raises(AtollError, match="at least 4 parties, but the federation has 3; `atoll join --secure-min 3` lowers that"):
        launch.join(made / "kits" / "bank-a", tmp_path, SitePolicy(secure=True, secure_min=4))
    shutil.copytree(made / "kits" / "bank-a", tmp_path / "kit")
    shutil.rmtree(tmp_path / "kit" / FOLDER)
    with pytest.raises(AtollError, match="signing keys cannot be read; make new kits"):
        launch.join(tmp_path / "kit", tmp_path, SitePolicy(secure=True))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["join", "kit", "--data", "data", "--secure-min", "1"],
            "--secure-min is 1 but must be at least 2: the sum of one party",
        ),
        (["run", "fedavg", "--secure", "--set", "secure_min=1"], "secure_min is 1 but must be at least 2: the sum of one party"),
    ],
)
def test_one_party_is_no_cohort(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at a site nor in a simulation."""
    monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    assert stopped.value.code == 2
    assert sentence in capsys.readouterr().err


def over(config: Config, carrier: DirectCarrier, folder: Folder | None = None, checkpoint: Any = None) -> Result:
    """A run of four sites."""
    data = federate(config, None, ("horizontal",))
    exact = config.run.on_missing == "stop"
    server = RemoteEngine(
        carrier, {f"site-{party}": [party] for party in range(4)}, config.to_dict(), Schema(12, 3, 4), timeout=5.0, exact=exact
    )
    return runner.rounds(runner.build_experiment(config, server, Schema(12, 3, 4), data, data.scenario), folder, None, checkpoint)


class Died(Exception):
    """Stands for the server's process."""


class Crashing(DirectCarrier):
    """The server dies when it has heard the shares of a round's first total; some sites may be silent in a round."""

    def __init__(self, folder: Path, at: int = 0, silent: int | None = None) -> None:
        super().__init__({f"site-{party}": Site(folder / f"site-{party}") for party in range(4)})
        self.at, self.silent = at, silent

    def send(self, requests: Any, timeout: float) -> Any:
        """Carry, or die."""
        first = wire.decode(next(iter(requests.values())))
        if self.silent is not None and first.get("kind") == "ask" and first["round"] == 2:
            requests = {site: data for site, data in requests.items() if site != f"site-{self.silent}"}
        replies = super().send(requests, timeout)
        if first.get("verb") == "secure_reveal" and first["round"] == self.at:
            raise Died
        return replies


def crashed(tmp_path: Path, config: Config, silent: int | None) -> Folder:
    """A run whose server died in round 2, after all shares of its first total were revealed."""
    folder = Folder.create(tmp_path / "run", config)
    with pytest.raises(Died):
        over(config, Crashing(tmp_path / "sites", 2, silent), folder)
    return folder


def test_resumed_with_everybody_the_run_is_the_same(tmp_path: Path) -> None:
    """Over the same parties a total may be opened again: it is the same sum, and the run ends with the same bits."""
    config = config_of(4)
    whole = over(config, Crashing(tmp_path / "whole"))
    folder = crashed(tmp_path, config, None)
    resumed = over(config, Crashing(tmp_path / "sites"), folder, folder.load())
    for name, value in wire.leaves(whole.state):
        assert wire.torch.equal(value, dict(wire.leaves(resumed.state))[name]), name


def test_a_total_that_was_opened_with_a_party_is_not_without_it(tmp_path: Path) -> None:
    """One sentence says who must come back; the parties would refuse whatever the server says."""
    config = config_of(4)
    folder = crashed(tmp_path, config, None)
    with pytest.raises(AtollError, match=r"Round 2: 'fit' was totaled with party 3 before the run was resumed.*when it is back"):
        over(config, Crashing(tmp_path / "sites", silent=3), folder, folder.load())
    assert over(config, Crashing(tmp_path / "sites"), folder, folder.load()).rounds == 3


def test_a_total_that_was_opened_without_a_party_stays_without_it(tmp_path: Path) -> None:
    """A party that was away then is left out of the very same total, by name, and takes part in everything after it."""
    config = config_of(4)
    folder = crashed(tmp_path, config, 3)
    resumed = over(config, Crashing(tmp_path / "sites"), folder, folder.load())
    reasons = [row.get("missing") for row in resumed.rows]
    assert reasons == [None, {"3": "was not in this total before the run was resumed"}, None]


def test_the_record_is_on_the_disk_before_a_share_leaves(tmp_path: Path) -> None:
    """A site that dies right after its answer knows what it opened; of a line that was cut off it never answered."""
    config = config_of(4)
    crashed(tmp_path, config, 3)
    (path,) = (tmp_path / "sites" / "site-1").glob(f"*/{TOTALS_FILE}")
    _, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["round"], line["verb"], line["answered"]) for line in lines] == [
        (1, "fit", [0, 1, 2, 3]),
        (1, "evaluate", [0, 1, 2, 3]),
        (2, "fit", [0, 1, 2]),
    ]
    assert (
        not list((tmp_path / "sites" / "site-3").glob(f"*/{TOTALS_FILE}"))
        or '"round":2' not in next((tmp_path / "sites" / "site-3").glob(f"*/{TOTALS_FILE}")).read_text()
    )
    call = Call(2, lines[-1]["call"], "fit")
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"round":3,"ca')
    record = OpenedTotals(path)
    assert record.find(1, call) == (0, 1, 2)
    assert record.find(0, call) is None
    record.add([1], Call(3, 1, "fit"), (0, 1, 2))
    assert OpenedTotals(path).find(1, Call(3, 1, "fit")) == (0, 1, 2)
    path.write_bytes(whole.replace(b'"answered"', b'"answer'))
    with pytest.raises(
        AtollError, match=r"totals\.jsonl, cannot be read, and without it totals of this run could be opened twice"
    ):
        OpenedTotals(path)


def test_no_secret_of_a_session_is_saved(tmp_path: Path) -> None:
    """Neither a site's saves nor the server's checkpoint hold anything of `Secrets`."""
    config = config_of(4)
    folder = crashed(tmp_path, config, None)
    site = Crashing(tmp_path / "sites").sites["site-0"]
    names = [name for path in site.folder.rglob("*.safetensors") for name, _ in wire.leaves(wire.decode(path.read_bytes()))]
    assert not [name for name in names if "secret" in name or "session" in name]
    checkpoint = folder.load()
    assert checkpoint is not None
    assert set(checkpoint["memory"]) == {"run", "round", "best"}
    assert not [name for name, _ in wire.leaves(runner.run(small("fedspray", secure=True)).memory) if "secret" in name]
