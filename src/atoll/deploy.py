"""Federations of processes: `serve` and `join` across machines, `simulate` with everybody on this one.

Our own process only minds its children: NVFlare's server runs in one, each site in another. A server that dies is started again
and takes the run up from its last checkpoint; so does a site.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll import config as configuration
from atoll.config import GIVEN, Config
from atoll.data import files
from atoll.data.partition import SETTING
from atoll.data.spread import spread
from atoll.errors import AtollError
from atoll.folder import Folder
from atoll.graph import Graph
from atoll.kits import Kit, need_nvflare, provision
from atoll.ledger import Ledger
from atoll.processes import Child
from atoll.runner import Book, Result, Watch

DEATHS = 5  # so often in a row a process is started again before we give up
JOINING = 180.0  # seconds for a site on this machine to stand
PUZZLED = 20.0  # seconds after which a site that could not join says so
RELEASE = 5.0  # seconds for the server of a killed `serve` to let go of its port
DEPLOYABLE = ("horizontal", "overlapping", "vertical")  # settings in which a site's own graph is its party
Say = Callable[[str], None]


class Servant:
    """NVFlare's server as a child: it is given runs, one at a time, and started again where it died."""

    def __init__(self, kit: Kit, say: Say, warn: Say) -> None:
        """`say` is told how it goes, `warn` what goes wrong."""
        kit.settle()
        self.kit = kit
        self.say = say
        self.warn = warn
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self.child = self._start()

    def _start(self) -> Child:
        return Child(_command("server", self.kit), self.kit.path / "console.txt", self.heard.put, {"PYTHONUNBUFFERED": "1"})

    def run(
        self,
        config: Config,
        out: Path,
        roster: Mapping[str, tuple[int, int]],
        *,
        simulated: bool,
        resume: bool,
        patience: float,
        watch: Watch | None,
        mind: Callable[[], None] = lambda: None,
    ) -> Result:
        """One run from beginning to end; `mind` is called again and again while it goes on."""
        order = {"config": config.to_dict(), "out": str(out.resolve()), "roster": dict(roster), "simulated": simulated}
        order |= {"patience": patience, "resume": resume}
        rows = {row["round"]: row for row in Folder(out).rows()} if resume else {}
        self.child.tell(order)
        deaths = 0
        while True:
            try:
                heard = self.heard.get(timeout=0.5)
            except queue.Empty:
                mind()
                continue
            if "row" in heard:
                rows[heard["row"]["round"]] = heard["row"]
                deaths = 0
                if watch:
                    watch(heard["row"], heard["rounds"])
            elif "warn" in heard:
                self.warn(heard["warn"])
            elif heard.get("waiting"):
                self.say(f"waiting for {', '.join(heard['waiting'])}")
            elif "done" in heard:
                return _result(config, Folder(out), rows)
            elif "error" in heard:
                raise AtollError(heard["error"])
            elif "crash" in heard:
                raise RuntimeError(f"The server failed; {self.kit.path}/log.txt says more.\n{heard['crash']}")
            elif "exit" in heard:
                deaths += 1
                if deaths > DEATHS:
                    raise AtollError(f"The server ended {deaths} times in a row; {self.child.log} says why.")
                self.warn("the server died; starting it again from the last checkpoint")
                self.child = self._start()
                self.child.tell(order | {"resume": True})

    def part(self, sites: Sequence[str]) -> None:
        """Tell the sites that the federation is over."""
        self.child.tell({"leave": list(sites)})
        with contextlib.suppress(queue.Empty):
            while "done" not in self.heard.get(timeout=15.0):
                pass

    def stop(self) -> None:
        """End the server."""
        self.child.stop()


class Guest:
    """A site as a child, started again where it died."""

    def __init__(self, kit: Kit, folder: Path, data: Path | None, say: Say, warn: Say, threads: int | None = None) -> None:
        """`folder` takes what the site saves, `data` is its graph; `say` is told how it goes, `warn` what goes wrong.

        A site with data of its own tries to join for ever; one of a simulation not more than a few times.
        """
        self.kit = kit
        self.patient = data is not None
        self.say = say
        self.warn = warn
        self.heard: queue.Queue[dict[str, Any]] = queue.Queue()
        self.env = {"ATOLL_SITE_FOLDER": str(folder.resolve()), "PYTHONUNBUFFERED": "1"}
        if data is not None:
            self.env["ATOLL_SITE_DATA"] = str(data.resolve())
        if threads is not None and "OMP_NUM_THREADS" not in os.environ:
            self.env["OMP_NUM_THREADS"] = str(threads)
        self.deaths = 0
        self.joined = self.left = False
        self.child = self._start()

    def _start(self) -> Child:
        return Child(_command("client", self.kit), self.kit.path / "console.txt", self.heard.put, self.env)

    def mind(self, timeout: float = 0.0) -> None:
        """Hear what the site reports, for at most so long; start it again if it is gone."""
        with contextlib.suppress(queue.Empty):
            heard = self.heard.get(timeout=timeout) if timeout else self.heard.get_nowait()
            if "say" in heard:
                self.say(heard["say"])
            elif "joined" in heard:
                self.deaths, self.joined = 0, True
                self.say("joined")
            elif "left" in heard:
                self.left = True
            elif "exit" in heard and not self.left:
                self.deaths += 1
                if self.deaths > DEATHS and not self.patient:
                    raise AtollError(f"The site {self.kit.site} ended {self.deaths} times in a row; {self.child.log} says why.")
                self.warn(f"the site's process ended ({self.kit.path / 'log.txt'} says why); starting it again")
                self.joined = False
                if self.deaths > 1:
                    time.sleep(min(self.deaths, 30))
                self.child = self._start()

    def stop(self) -> None:
        """End the site."""
        self.child.stop()


class Local:
    """A federation on this machine: a server and some sites, each a process of its own; for one run or several."""

    def __init__(self, sites: int, folder: Path, saves: Path, warn: Say) -> None:
        """`folder` takes the kits and logs, `saves` what the sites keep for themselves."""
        names = [f"site-{number}" for number in range(sites)]
        provision(names, "localhost", folder / "kits", port=free_port())
        threads = max(1, (os.cpu_count() or 1) // sites)
        self.guests: list[Guest] = []
        self.servant = Servant(Kit.open(folder / "kits" / "server", server=True), _silent, warn)
        try:
            for name in names:
                kit, told = Kit.open(folder / "kits" / name, server=False), _named(name, warn)
                self.guests.append(Guest(kit, saves / name, None, _silent, told, threads))
        except BaseException:
            self.stop()
            raise

    def run(self, config: Config, out: Path, parties: int, *, resume: bool = False, watch: Watch | None = None) -> Result:
        """One run of all parties, spread evenly over the sites."""
        names = [str(guest.kit.site) for guest in self.guests]
        cuts = [round(parties * place / len(names)) for place in range(len(names) + 1)]
        roster = {name: (first, end) for name, first, end in zip(names, cuts, cuts[1:], strict=False) if end > first}
        return self.servant.run(
            config, out, roster, simulated=True, resume=resume, patience=JOINING, watch=watch, mind=self._mind
        )

    def _mind(self) -> None:
        for guest in self.guests:
            guest.mind()

    def stop(self) -> None:
        """End everybody."""
        self.servant.stop()
        for guest in self.guests:
            guest.stop()


@contextlib.contextmanager
def local(sites: int, folder: Path, saves: Path, warn: Say) -> Iterator[Local]:
    """A federation on this machine that is gone when the block is left, however it is left."""
    federation = Local(sites, folder, saves, warn)
    try:
        yield federation
    finally:
        federation.stop()


def simulate(
    config: Config, graph: Graph | None = None, *, out: str | Path | None = None, watch: Watch | None = None, resume: bool = False
) -> Result:
    """A run with each site in a process of its own on this machine; the same numbers as in one process."""
    need_nvflare()
    if graph is not None:
        raise AtollError(
            "The engine nvflare cannot take a graph as an object; save it with atoll.data.files.save and name the folder."
        )
    data = spread(config, None, algorithms.find(config.algorithm).SPREADS)  # bad data is refused before anything starts
    parties = data.parts.parties
    with tempfile.TemporaryDirectory(prefix="atoll-") as scratch:
        target = Path(scratch) / "run" if out is None else Path(out)
        if not resume:
            Folder.create(target, config)
        with local(config.run.sites or min(parties, 8), Path(scratch), target / "sites", _warn) as federation:
            return federation.run(config, target, parties, resume=resume, watch=watch)


def serve(kit: Kit, config: Config, target: Path, *, watch: Watch | None = None) -> Result:
    """Be the server of a federation for one run; a run that the folder holds already is taken up."""
    need_nvflare()
    resume = (target / "config.toml").exists()
    if resume and Folder.open(target)[1].to_dict() != config.to_dict():
        raise AtollError(f"{target} holds another run; choose another --out, or delete it.")
    if resume and (target / "result.json").exists():
        return _result(config, Folder(target), {row["round"]: row for row in Folder(target).rows()})
    if not port_is_free(kit.port, RELEASE):
        raise AtollError(
            f"Port {kit.port} of this machine is taken; end the process that listens there (perhaps another `atoll serve`)."
        )
    if not resume:
        Folder.create(target, config)
    roster = {site: (place, place + 1) for place, site in enumerate(kit.sites)}
    servant = Servant(kit, _warn, _warn)
    try:
        result = servant.run(config, target, roster, simulated=False, resume=resume, patience=math.inf, watch=watch)
        servant.part(kit.sites)
    finally:
        servant.stop()
    return result


def deployed(document: Mapping[str, Any], where: str, sites: Sequence[str]) -> Config:
    """The configuration of a run over sites that bring their own data."""
    why = {"dataset": "the sites bring their own data", "parties": f"the kit's {len(sites)} sites are the parties"}
    for name in why.keys() & document.keys():
        raise AtollError(f"{where} says {name} = {document[name]!r}, but {why[name]}; remove the line.")
    config = configuration.from_dict({**document, "dataset": GIVEN}, where)
    spreads = algorithms.find(config.algorithm).SPREADS
    possible = [setting for setting in spreads if setting in DEPLOYABLE]
    if not possible:
        raise AtollError(
            f"{where}: {config.algorithm} cannot be run across sites with graphs of their own; choose another algorithm."
        )
    setting = SETTING.get(config.partition, config.partition) if "partition" in document else possible[0]
    if setting not in possible:
        options = " or ".join(kind for kind in SETTING if SETTING[kind] in possible)
        raise AtollError(
            f"{where}: {config.algorithm} is for {' or '.join(possible)} parties; let partition be {options}, or leave it out."
        )
    return replace(config, partition=setting, parties=len(sites), engine="nvflare")


def join(kit_path: str | Path, data: Path) -> None:
    """Be a site of a federation, until the server says that it is over."""
    need_nvflare()
    kit = Kit.open(kit_path, server=False)
    say = _named(str(kit.site), _warn)
    graph = files.read(data)  # what is wrong with it is said here and now
    place = f"{kit.host}:{kit.port}"
    say(f"{graph.num_nodes} nodes, {graph.num_features} features, {graph.num_classes} classes; joining {place}")
    guest, began, told = Guest(kit, kit.path / "runs", data, say, say), time.monotonic(), False
    try:
        while not guest.left:
            guest.mind(0.5)
            if not guest.joined and not told and time.monotonic() - began > PUZZLED:
                say(f"not joined yet: is `atoll serve` running at {place}? {kit.path / 'log.txt'} says more; still trying")
                told = True
    finally:
        guest.stop()
    say("the federation is over")


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def port_is_free(port: int, patience: float = 0.0) -> bool:
    """Whether a server can listen there, now or in so many seconds: one that was killed may be about to leave."""
    ends = time.monotonic() + patience
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("", port))
            return True
        if time.monotonic() >= ends:
            return False
        time.sleep(0.2)


def _silent(text: str) -> None:
    pass


def _warn(text: str) -> None:
    print(f"atoll: {text}", file=sys.stderr, flush=True)


def _named(name: str, say: Say) -> Say:
    return lambda text: say(f"{name}: {text}")


def _command(end: str, kit: Kit) -> list[str]:
    """How NVFlare's start scripts start the two ends."""
    settings = ["secure_train=true", "org=atoll", "config_folder=config"]
    if kit.site is not None:
        settings += [f"uid={kit.site}", "heart_beat_interval=2.0"]
    module = f"nvflare.private.fed.app.{end}.{end}_train"
    return [sys.executable, "-u", "-m", module, "-m", str(kit.path), "-s", f"fed_{end}.json", "--set", *settings]


def _result(config: Config, folder: Folder, rows: Mapping[int, dict[str, Any]]) -> Result:
    """What the server wrote down, as a result."""
    document = folder.load()
    if document is None:
        raise AtollError(f"{folder.path} holds no checkpoint of the finished run.")
    book, ledger = Book(**document["book"]), Ledger(len(document["ledger"]["by_party"]))
    ledger.restore(document["ledger"])
    written = json.loads(folder.result.read_text())
    return Result(
        config=config,
        setting=written["setting"],
        parties=ledger.parties,
        rounds=book.round,
        best_round=book.best_round,
        metrics=book.best,
        last=book.last,
        bytes=ledger.summary(),
        seconds={"total": book.seconds, "per_round": book.seconds / max(book.round, 1)},
        rows=[rows[number] for number in sorted(rows) if number <= book.round],
        state=document.get("state", {}),
        memory=document.get("memory", {}),
    )
