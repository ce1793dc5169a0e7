"""The two ends of a federation as child processes: `Servant` is the server, `Guest` a site, `Local` a server with its sites here.

Our own process only minds them. A server that dies is started again and takes the run up from its last checkpoint; a site that
dies is started again and goes on from what it saved.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from atoll.deploy.child import Child
from atoll.deploy.journal import JOURNAL_FILE
from atoll.deploy.kit import SERVER_IDENTITY, Kit, provision
from atoll.deploy.policy import SitePolicy
from atoll.errors import AtollError
from atoll.parties import divide_evenly
from atoll.runs.config import Config
from atoll.runs.loop import Watch
from atoll.runs.reader import read
from atoll.runs.result import Result

POLL_SECONDS = 0.5  # seconds between looks at the sites
MAX_RESTARTS = 5  # so often in a row a process is started again before we give up
LOCAL_JOIN_SECONDS = 180.0  # seconds for a site on this machine to stand
Notify = Callable[[str], None]


class ServerProcess:
    """NVFlare's server as a child: it is given runs, one at a time, and started again where it died."""

    def __init__(self, kit: Kit, say: Notify, warn: Notify) -> None:
        """`say` is told how it goes, `warn` what goes wrong."""
        self.kit = kit
        self.say = say
        self.warn = warn
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.number = 0
        self.child = self._start()

    def _start(self) -> Child:
        return Child(_command("server", self.kit), self.kit.path / "console.txt", self.reports.put, {"PYTHONUNBUFFERED": "1"})

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
        poll: Callable[[], None] = lambda: None,
    ) -> Result:
        """One run from beginning to end; `mind` is called again and again while it goes on."""
        order = {"config": config.to_dict(), "out": str(out.resolve()), "roster": dict(roster), "simulated": simulated}
        order |= {"patience": patience, "resume": resume, "kit": str(self.kit.path)}
        self._send(order)
        restarts, looked = 0, time.monotonic()
        while True:
            report: dict[str, Any] = {}
            with contextlib.suppress(queue.Empty):
                report = self._hear(POLL_SECONDS)
            if time.monotonic() - looked >= POLL_SECONDS:
                poll()
                looked = time.monotonic()
            if "row" in report:
                restarts = 0
                if watch:
                    watch(report["row"], report["rounds"])
            elif "warn" in report:
                self.warn(report["warn"])
            elif report.get("waiting"):
                self.say(f"waiting for {', '.join(report['waiting'])}")
            elif "done" in report:
                return read(out, config)
            elif "error" in report or "stop" in report:
                raise AtollError(report.get("error") or report["stop"])
            elif "crash" in report:
                raise RuntimeError(f"The server failed; {self.kit.path}/log.txt says more.\n{report['crash']}")
            elif "exit" in report:
                restarts += 1
                if restarts > MAX_RESTARTS:
                    raise AtollError(f"The server ended {restarts} times in a row; {self.child.log} says why.")
                self.warn("the server died; starting it again from the last checkpoint")
                self.child = self._start()
                self._send(order | {"resume": True})

    def dismiss(self, sites: Sequence[str]) -> None:
        """Tell the sites that the federation is over."""
        self._send({"leave": list(sites)})
        with contextlib.suppress(queue.Empty):
            while not {"done", "error", "exit"} & self._hear(15.0).keys():
                pass

    def echo(self, sites: Sequence[str], size: int, times: int) -> list[list[float]]:
        """Send so many bytes to some sites, and have them back, several times: all seconds of each, and those of our own work."""
        self._send({"echo": list(sites), "bytes": size, "times": times})
        while not {"seconds", "error", "crash", "exit"} & (report := self._hear(600.0)).keys():
            pass
        if "seconds" not in report:
            raise AtollError(f"The sites could not be reached: {report}.")
        return [list(each) for each in report["seconds"]]

    def _send(self, order: Mapping[str, Any]) -> None:
        self.number += 1
        self.child.send({**order, "number": self.number})

    def _hear(self, timeout: float) -> dict[str, Any]:
        """The next report; the end of an earlier order is passed over."""
        while True:
            report = self.reports.get(timeout=timeout)
            if report.get("number", self.number) == self.number:
                return report

    def stop(self) -> None:
        """End the server."""
        self.child.stop()


class SiteProcess:
    """A site as a child, started again where it died."""

    def __init__(
        self, kit: Kit, folder: Path, data: Path | None, say: Notify, warn: Notify, env: Mapping[str, str] | None = None
    ) -> None:
        """`folder` takes what the site saves, `data` is its graph; `say` is told how it goes, `warn` what goes wrong.

        A site with data of its own tries to join for ever; one of a simulation not more than a few times.
        """
        self.kit = kit
        self.patient = data is not None
        self.say = say
        self.warn = warn
        self.reports: queue.Queue[dict[str, Any]] = queue.Queue()
        self.env = {"ATOLL_SITE_FOLDER": str(folder.resolve()), "PYTHONUNBUFFERED": "1", **(env or {})}
        self.env |= {
            "ATOLL_SITE_JOURNAL": str(kit.path / JOURNAL_FILE),
            "ATOLL_SITE_SERVER": f"{SERVER_IDENTITY} at {kit.host}:{kit.port}",
        }
        self.env["ATOLL_SITE_KIT"] = str(kit.path)
        if data is not None:
            self.env["ATOLL_SITE_DATA"] = str(data.resolve())
        self.restarts = 0
        self.joined = self.left = False
        self.child = self._start()

    def _start(self) -> Child:
        return Child(_command("site", self.kit), self.kit.path / "console.txt", self.reports.put, self.env)

    def poll(self, timeout: float = 0.0) -> None:
        """Hear what the site reports, waiting for at most so long; start it again if it is gone."""
        with contextlib.suppress(queue.Empty):
            report = self.reports.get(timeout=timeout) if timeout else self.reports.get_nowait()
            while True:
                self._hear(report)
                report = self.reports.get_nowait()

    def _hear(self, report: dict[str, Any]) -> None:
        if "say" in report:
            self.say(report["say"])
        elif "joined" in report:
            self.restarts, self.joined = 0, True
            self.say("joined")
        elif "left" in report:
            self.left = True
        elif "stop" in report:  # it would stop again
            raise AtollError(report["stop"])
        elif "exit" in report and not self.left:
            self.restarts, self.joined = self.restarts + 1, False
            if self.restarts > MAX_RESTARTS and not self.patient:
                raise AtollError(f"The site {self.kit.site} ended {self.restarts} times in a row; {self.child.log} says why.")
            self.warn(f"the site's process ended ({self.kit.path / 'log.txt'} says why); starting it again")
            if self.patient and self.restarts > 1:
                time.sleep(min(self.restarts, 30))
            self.child = self._start()

    def stop(self) -> None:
        """End the site."""
        self.child.stop()


class LocalFederation:
    """A federation on this machine: a server and some sites, each a process of its own; for one run or several."""

    def __init__(self, sites: int, folder: Path, saves: Path, warn: Notify, files: Sequence[str] = ()) -> None:
        """`folder` takes the kits and logs, `saves` what the sites keep for themselves; `files` are algorithms of one's own."""
        names = [f"site-{number}" for number in range(sites)]
        provision(names, "localhost", folder / "kits", port=free_port())
        threads = str(max(1, torch.get_num_threads() // sites))
        env = {"OMP_NUM_THREADS": threads, "ATOLL_SITE_POLICY": SitePolicy(simulated=True, files=tuple(files)).to_json()}
        self.sites: list[SiteProcess] = []
        self.server = ServerProcess(Kit.open(folder / "kits" / "server", server=True), silent, warn)
        try:
            for name in names:
                kit, told = Kit.open(folder / "kits" / name, server=False), with_prefix(name, warn)
                self.sites.append(SiteProcess(kit, saves / name, None, silent, told, env))
        except BaseException:
            self.stop()
            raise

    def run(self, config: Config, out: Path, parties: int, *, resume: bool = False, watch: Watch | None = None) -> Result:
        """One run of all parties, spread evenly over the sites."""
        names = [str(site.kit.site) for site in self.sites]
        seats = zip(names, divide_evenly(parties, len(names)), strict=True)
        roster = {name: (seat.start, seat.stop) for name, seat in seats if len(seat)}
        return self.server.run(
            config, out, roster, simulated=True, resume=resume, patience=LOCAL_JOIN_SECONDS, watch=watch, poll=self._poll_sites
        )

    def _poll_sites(self) -> None:
        for site in self.sites:
            site.poll()

    def stop(self) -> None:
        """End everybody."""
        ends = [self.server.child, *(site.child for site in self.sites)]
        for child in ends:
            child.close_stdin()
        for child in ends:
            child.stop()


@contextlib.contextmanager
def local_federation(sites: int, folder: Path, saves: Path, warn: Notify, files: Sequence[str] = ()) -> Iterator[LocalFederation]:
    """A federation on this machine that is gone when the block is left, however it is left."""
    federation = LocalFederation(sites, folder, saves, warn, files)
    try:
        yield federation
    finally:
        federation.stop()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def with_prefix(name: str, say: Notify) -> Notify:
    """Begin whatever is said with a name."""
    return lambda text: say(f"{name}: {text}")


def _command(end: str, kit: Kit) -> list[str]:
    """The program of an end: atoll's own, which locks NVFlare before it starts it; no code is taken from where it is started."""
    module = {"server": "atoll.deploy.server", "site": "atoll.deploy.site_process"}[end]
    return [sys.executable, "-P", "-u", "-m", module, str(kit.path), *([] if kit.site is None else [kit.site])]


def silent(text: str) -> None:
    """Tell nobody."""
