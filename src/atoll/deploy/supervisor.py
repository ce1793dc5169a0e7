"""Server and sites as supervised child processes; `LocalFederation` is a server with all of its sites on this machine.

A server that dies is restarted and resumes the run from its last checkpoint; so does a site, from its own.
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

from atoll.child import Child
from atoll.deploy.journal import JOURNAL_FILE
from atoll.deploy.kit import SERVER_IDENTITY, Kit, provision
from atoll.deploy.policy import SitePolicy
from atoll.errors import AtollError
from atoll.parties import divide_evenly
from atoll.runs.config import Config
from atoll.runs.loop import Watch
from atoll.runs.reader import read
from atoll.runs.result import Result

POLL_SECONDS = 0.5  # between checks of the sites
MAX_RESTARTS = 5  # of one process in a row, without progress in between
LOCAL_JOIN_SECONDS = 180.0  # for a site on this machine to join
Notify = Callable[[str], None]


class ServerProcess:
    """The server as a child process: it executes one run at a time, and is restarted if it dies."""

    def __init__(self, kit: Kit, inform: Notify, warn: Notify) -> None:
        """`inform` is called with progress messages, `warn` with warnings."""
        self.kit = kit
        self.inform = inform
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
        """Execute one run from beginning to end; `poll` is called regularly meanwhile."""
        command = {"config": config.to_dict(), "out": str(out.resolve()), "roster": dict(roster), "simulated": simulated}
        command |= {"patience": patience, "resume": resume, "kit": str(self.kit.path)}
        self._send(command)
        restarts, polled = 0, time.monotonic()
        while True:
            report: dict[str, Any] = {}
            with contextlib.suppress(queue.Empty):
                report = self._next_report(POLL_SECONDS)
            if time.monotonic() - polled >= POLL_SECONDS:
                poll()
                polled = time.monotonic()
            if "row" in report:
                restarts = 0
                if watch and watch(report["row"], report["rounds"]) is False:
                    self.child.send({"stop_run": True, "number": self.number})
            elif "warn" in report:
                self.warn(report["warn"])
            elif report.get("waiting"):
                self.inform(f"waiting for {', '.join(report['waiting'])}")
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
                self.warn("the server died; restarting it from the last checkpoint")
                self.child = self._start()
                self._send(command | {"resume": True})

    def dismiss(self, sites: Sequence[str]) -> None:
        """Tell the sites to leave: the federation is over."""
        self._send({"leave": list(sites)})
        with contextlib.suppress(queue.Empty):
            while not {"done", "error", "exit"} & self._next_report(15.0).keys():
                pass

    def echo(self, sites: Sequence[str], size: int, times: int) -> list[list[float]]:
        """Send `size` bytes to some sites and back, `times` times: per exchange, its seconds and those of coding here."""
        self._send({"echo": list(sites), "bytes": size, "times": times})
        while not {"seconds", "error", "crash", "exit"} & (report := self._next_report(600.0)).keys():
            pass
        if "seconds" not in report:
            raise AtollError(f"The sites could not be reached: {report}.")
        return [list(each) for each in report["seconds"]]

    def _send(self, command: Mapping[str, Any]) -> None:
        self.number += 1
        self.child.send({**command, "number": self.number})

    def _next_report(self, timeout: float) -> dict[str, Any]:
        """The next report on the current command; reports on earlier commands are skipped."""
        while True:
            report = self.reports.get(timeout=timeout)
            if report.get("number", self.number) == self.number:
                return report

    def stop(self) -> None:
        """Stop the server's process."""
        self.child.stop()


class SiteProcess:
    """A site as a child process, restarted if it dies."""

    def __init__(
        self, kit: Kit, folder: Path, data: Path | None, inform: Notify, warn: Notify, env: Mapping[str, str] | None = None
    ) -> None:
        """`folder` is for the site's checkpoints, `data` its graph; `inform` is called with progress, `warn` with warnings.

        A site with its own data keeps trying to join; a simulated one gives up after a few restarts.
        """
        self.kit = kit
        self.has_data = data is not None
        self.inform = inform
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
        """Process the site's reports, waiting at most `timeout` seconds for the first; restart the site if it has died."""
        with contextlib.suppress(queue.Empty):
            report = self.reports.get(timeout=timeout) if timeout else self.reports.get_nowait()
            while True:
                self._process(report)
                report = self.reports.get_nowait()

    def _process(self, report: dict[str, Any]) -> None:
        if "say" in report:
            self.inform(report["say"])
        elif "joined" in report:
            self.restarts, self.joined = 0, True
            self.inform("joined")
        elif "left" in report:
            self.left = True
        elif "stop" in report:  # a restart would not help
            raise AtollError(report["stop"])
        elif "exit" in report and not self.left:
            self.restarts, self.joined = self.restarts + 1, False
            if self.restarts > MAX_RESTARTS and not self.has_data:
                raise AtollError(f"The site {self.kit.site} ended {self.restarts} times in a row; {self.child.log} says why.")
            self.warn(f"the site's process ended ({self.kit.path / 'log.txt'} says why); restarting it")
            if self.has_data and self.restarts > 1:
                time.sleep(min(self.restarts, 30))
            self.child = self._start()

    def stop(self) -> None:
        """Stop the site's process."""
        self.child.stop()


class LocalFederation:
    """A federation on this machine, for one or more runs: a server and some sites, each in its own process."""

    def __init__(self, sites: int, folder: Path, checkpoints: Path, warn: Notify, files: Sequence[str] = ()) -> None:
        """`folder` is for kits and logs, `checkpoints` for the sites' own files; `files` are the user's own algorithms."""
        names = [f"site-{number}" for number in range(sites)]
        provision(names, "localhost", folder / "kits", port=free_port())
        threads = str(max(1, torch.get_num_threads() // sites))
        env = {"OMP_NUM_THREADS": threads, "ATOLL_SITE_POLICY": SitePolicy(simulated=True, files=tuple(files)).to_json()}
        self.sites: list[SiteProcess] = []
        self.server = ServerProcess(Kit.open(folder / "kits" / "server", server=True), ignore, warn)
        try:
            for name in names:
                kit = Kit.open(folder / "kits" / name, server=False)
                self.sites.append(SiteProcess(kit, checkpoints / name, None, ignore, with_prefix(name, warn), env))
        except BaseException:
            self.stop()
            raise

    def run(self, config: Config, out: Path, parties: int, *, resume: bool = False, watch: Watch | None = None) -> Result:
        """Execute one run with all parties, divided evenly among the sites."""
        names = [str(site.kit.site) for site in self.sites]
        ranges = zip(names, divide_evenly(parties, len(names)), strict=True)
        roster = {name: (numbers.start, numbers.stop) for name, numbers in ranges if len(numbers)}
        return self.server.run(
            config, out, roster, simulated=True, resume=resume, patience=LOCAL_JOIN_SECONDS, watch=watch, poll=self._poll_sites
        )

    def _poll_sites(self) -> None:
        for site in self.sites:
            site.poll()

    def stop(self) -> None:
        """Stop all processes."""
        children = [self.server.child, *(site.child for site in self.sites)]
        for child in children:
            child.close_stdin()
        for child in children:
            child.stop()


@contextlib.contextmanager
def local_federation(
    sites: int, folder: Path, checkpoints: Path, warn: Notify, files: Sequence[str] = ()
) -> Iterator[LocalFederation]:
    """A federation on this machine, stopped when the block is left for whatever reason."""
    federation = LocalFederation(sites, folder, checkpoints, warn, files)
    try:
        yield federation
    finally:
        federation.stop()


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def with_prefix(name: str, notify: Notify) -> Notify:
    """Put a name in front of each message."""
    return lambda text: notify(f"{name}: {text}")


def _command(role: str, kit: Kit) -> list[str]:
    """The command that starts a server or site: `-P` keeps it from importing code from the working directory."""
    module = {"server": "atoll.deploy.server", "site": "atoll.deploy.site_process"}[role]
    return [sys.executable, "-P", "-u", "-m", module, str(kit.path), *([] if kit.site is None else [kit.site])]


def ignore(text: str) -> None:
    """Discard a message."""
