"""Three clinics with messy tables, for tests of sites: their folders, sites in this process, and the server's side of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from atoll import wire
from atoll.deploy import kit as kits
from atoll.deploy import launch
from atoll.deploy.policy import SitePolicy
from atoll.deploy.server import ServerRun
from atoll.deploy.site import Site
from atoll.runs import config as configuration
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.reader import read
from atoll.runs.result import Result

CLINICS = ("clinic-a", "clinic-b", "clinic-c")
SECRETS = ("blood_sugar", "secret-ward", "smoker")  # names that must not leave a site
KEY = b"k" * 32


def table(place: int, rows: int = 60) -> pd.DataFrame:
    """The patients of one clinic: other orders of columns, a ward of its own, a column that is empty in one place."""
    rng = np.random.default_rng(place)
    wards = ["icu", "surgery", "general"] if place < 2 else ["icu", "general", "secret-ward"]
    frame = pd.DataFrame(
        {
            "id": [f"{place}-{row}" for row in range(rows)],
            "blood_sugar": np.exp(rng.normal(4 + place, 1, rows)).round(2),
            "ward": rng.permutation(np.resize(wards, rows)),
            "seen": (pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 90, rows), unit="D")).strftime("%Y-%m-%d"),
            "smoker": rng.choice(["yes", "no"] if place else ["True", "False"], rows),
            "dose": rng.normal(0, 1e-7, rows),
            "score": rng.integers(0, 9, rows) if place else [None] * rows,
            "label": rng.choice(["home", "ward"], rows),
        }
    ).astype(object)
    for column in ("blood_sugar", "ward", "smoker"):
        frame.loc[rng.random(rows) < 0.1, column] = None
    return frame[[*reversed(frame.columns)]] if place == 1 else frame


def write(folder: Path, frames: Mapping[str, pd.DataFrame] | None = None) -> Path:
    """One folder per clinic; their patients form rings."""
    for name, frame in (frames or {name: table(place) for place, name in enumerate(CLINICS)}).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        frame.to_csv(folder / name / "nodes.csv", index=False)
        ids = frame["id"].tolist()
        pd.DataFrame({"source": ids, "target": [*ids[1:], ids[0]]}).to_csv(folder / name / "edges.csv", index=False)
    return folder


class Wire:
    """A carrier that calls the sites directly and keeps every byte; `before` is called with each request."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.sites = dict(sites)
        self.bytes: list[bytes] = []
        self.before: Callable[[str, dict[str, Any]], Any] = lambda site, request: None

    def session(self, site: str) -> str:
        """Everybody is connected."""
        return site

    def send(self, requests: Mapping[str, bytes], timeout: float) -> dict[str, bytes | str]:
        """Ask every site in turn."""
        replies: dict[str, bytes | str] = {}
        for site, data in requests.items():
            instead = self.before(site, wire.decode(data))
            replies[site] = instead if isinstance(instead, str) else self.sites[site].handle(data)
            self.bytes += [data, *(reply for reply in [replies[site]] if isinstance(reply, bytes))]
        return replies


@dataclass
class Clinics:
    """The sites of the clinics, what each has told its owner, and runs over them."""

    folder: Path
    wire: Wire
    said: dict[str, list[str]] = field(default_factory=dict)

    def restart(self, name: str, policy: SitePolicy | None = None) -> Site:
        """A new process of a site, which knows only what is on its disk."""
        kit = self.folder / "kits" / name
        site = Site(kit / "runs", self.folder / "data" / name, self.said.setdefault(name, []).append, policy, kit=kit)
        self.wire.sites[name] = site
        return site

    def serve(self, config: Config, out: str = "out", *, resume: bool = False) -> Result:
        """The server's side of a run, as inside NVFlare's server process."""
        target = self.folder / out
        if not resume:
            Folder.create(target, config)
        roster = {name: (place, place + 1) for place, name in enumerate(self.wire.sites)}
        command = {"config": config.to_dict(), "roster": roster, "simulated": False, "patience": 1.0, "out": str(target)}
        command |= {"kit": str(kit)} if (kit := self.folder / "kits" / "server").exists() else {}
        ServerRun(self.wire, {**command, "resume": resume}).execute()  # type: ignore[arg-type]
        return read(target, config)


def clinics(folder: Path, frames: Mapping[str, pd.DataFrame] | None = None, *, signed: bool = False) -> Clinics:
    """Sites with kits that share a key of names; whole kits, with keys to sign with, take longer to make."""
    write(folder / "data", frames)
    names = sorted(path.name for path in (folder / "data").iterdir())
    found = Clinics(folder, Wire({}))
    if signed:
        kits.provision(names, "localhost", folder / "kits")
    for name in names:
        kit = folder / "kits" / name
        if not signed:
            kit.mkdir(parents=True, exist_ok=True)
            (kit / kits.NAMES_KEY).write_text(KEY.hex())
            (kit / kits.KIT_FILE).write_text(tomli_w.dumps({"site": name, "sites": names}))
        found.restart(name)
    return found


def configs(folder: Path, algorithm: str = "fedavg", **values: Any) -> tuple[Config, Config]:
    """The same run twice: of the folders in one process, and of sites that bring them."""
    chosen = {"rounds": 2, "patience": 0, "split": "random", **values}
    here = configuration.resolve(algorithm, dataset=str(folder / "data"), partition="files", seed=3, values=chosen)
    names = sorted(path.name for path in (folder / "data").iterdir())
    there = launch.deployment_config({"algorithm": algorithm, "seed": 3}, "run.toml", names)
    return here, replace(there, settings=here.settings, run=here.run, split=here.split, data=here.data, dp=here.dp)
