"""Connecting to a Ray cluster, or starting one of our own on this machine that leaves nothing behind.

Its own cluster collects no statistics, has no dashboard, keeps its files in one folder, which is removed with it, and has a token
of its own, so that no other user of the machine can join.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from atoll.errors import AtollError, short

AUTO = "auto"
CONNECT_SECONDS = 10.0  # for a first answer of an address
MAX_PORT = 65535
MAX_FOLDER_CHARS = 40  # Ray puts sockets into it, and the system limits their paths to 107
PREFIX = "atoll-ray-"
LOCK = "in-use"
REMOVAL_SECONDS = 10.0
TOKEN = secrets.token_hex(32)  # of this process's own clusters


def load() -> Any:
    """Ray itself; refused, with what to install, where it is not there."""
    if find_spec("ray") is None:
        raise AtollError("The engine ray needs the package ray; install atoll[ray].")
    return importlib.import_module("ray")


class RayCluster:
    """A connection to a Ray cluster; `close` ends it, and with it a cluster that was started for it.

    Parameters:
        address: HOST:PORT, `auto`, or empty for RAY_ADDRESS or else a cluster of our own.
    """

    def __init__(self, address: str) -> None:
        self.ray = load()
        self.stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            if not self.ray.is_initialized():  # else the program that runs this has connected already
                stack.enter_context(_signals())
                stack.enter_context(_quiet(self.ray))
                chosen = address or os.environ.get("RAY_ADDRESS", "")
                stack.enter_context(join(self.ray, chosen) if chosen else start(self.ray))
            elif address not in ("", AUTO, self.ray.get_runtime_context().gcs_address):
                here = self.ray.get_runtime_context().gcs_address
                raise AtollError(f"This program is connected to the Ray cluster at {here} already; leave address={address} out.")
            self.stack = stack.pop_all()

    def close(self) -> None:
        """Disconnect; a cluster of our own is ended."""
        self.stack.close()

    def room(self, cpus: float, gpus: float) -> int:
        """How many sites that need these CPUs and GPUs each fit on the nodes."""
        return sum(_fitting(node, cpus, gpus) for node in self._nodes())

    @property
    def here_alone(self) -> bool:
        """Whether the sites can only be on this machine."""
        return len(self._nodes()) == 1

    @property
    def cpus(self) -> float:
        """All CPUs of the nodes."""
        return sum(node.get("CPU", 0.0) for node in self._nodes())

    def described(self) -> str:
        """The nodes and what they have, in words."""
        nodes = self._nodes()
        gpus = sum(node.get("GPU", 0.0) for node in nodes)
        return f"{_count(len(nodes), 'node')} with {_count(self.cpus, 'CPU')} and {_count(gpus, 'GPU')}"

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self.ray.nodes() if node["Alive"]]


def _fitting(node: dict[str, float], cpus: float, gpus: float) -> int:
    room = math.floor(node.get("CPU", 0.0) / cpus + 1e-6)
    return min(room, math.floor(node.get("GPU", 0.0) / gpus + 1e-6)) if gpus else room


def _count(number: float, word: str) -> str:
    return f"{number:g} {word}{'' if number == 1 else 's'}"


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """Inside, SIGTERM ends the run as Ctrl-C does; Ray replaces the handler for good."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Inside, Ray prints nothing: a site that is lost is reported in our own words."""
    worker = importlib.import_module("ray._private.worker")
    before = getattr(worker, "_worker_logs_enabled", True)
    worker._worker_logs_enabled = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        worker._worker_logs_enabled = before  # type: ignore[attr-defined]


@contextlib.contextmanager
def join(ray: Any, address: str) -> Iterator[None]:
    """A connection to a cluster that is there."""
    if "://" in address:
        raise AtollError(f"address={address} is that of a Ray client; run atoll on a node of the cluster, with --address auto.")
    if address != AUTO:
        _probe(address)
    try:
        _init(ray, address=address)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _unreachable(address, short(error, 200)) from error
    try:
        yield
    finally:
        ray.shutdown()


def _probe(address: str) -> None:
    """Refuse an address that nothing listens at: Ray itself would try for a minute."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        raise AtollError(f"address is {address!r} but must be HOST:PORT, or auto.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS):
            pass
    except (OSError, OverflowError) as error:
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error


def _unreachable(address: str, reason: str) -> AtollError:
    return AtollError(f"There is no Ray cluster at address={address} ({reason.rstrip('.')}); start one, or leave it out.")


@contextlib.contextmanager
def start(ray: Any) -> Iterator[None]:
    """A cluster of our own, on this machine."""
    with _folder() as folder, _environment():
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        if not {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys():
            os.environ["RAY_AUTH_TOKEN"] = TOKEN  # else Ray would leave one in the user's home
        try:
            _init(ray, address="local", include_dashboard=False, _temp_dir=str(folder))
            yield
        finally:
            ray.shutdown(wait_for_processes=True)


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Afterwards, Ray's variables of this process are what they were, and Ray knows it."""
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(before)
        with contextlib.suppress(Exception):  # it has no public way to forget what it was configured with
            internals = importlib.import_module("ray._raylet")
            internals.Config.initialize("")
            internals.AuthenticationTokenLoader.instance().reset_cache()


def _init(ray: Any, **options: Any) -> None:
    ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """A folder for Ray's files; those of programs that were killed are removed on the way."""
    parent = Path(tempfile.gettempdir())
    if len(str(parent)) > MAX_FOLDER_CHARS - len(PREFIX) - 8:
        parent = Path("/tmp")
    for left in parent.glob(f"{PREFIX}*"):
        remove_unused(left)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        with (folder / LOCK).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove a folder that processes which are about to end may still write to."""
    deadline = time.monotonic() + REMOVAL_SECONDS
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            return
        time.sleep(0.05)


def remove_unused(folder: Path) -> None:
    """Remove a folder whose program has ended."""
    with contextlib.suppress(OSError), (folder / LOCK).open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        remove(folder)
