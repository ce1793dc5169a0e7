"""Kits: what the server and each site need to authenticate each other, made once by `atoll provision`.

A kit holds a private key, its certificate and that of the federation's own authority (`startup`), and the list of participants
(`atoll.toml`). What is accepted from the network is not configured here but in code (`deploy/firewall`). The authority's private
key is deleted once the kits are made.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import re
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from atoll import storage
from atoll.deploy import signing
from atoll.errors import AtollError
from atoll.version import __version__

PROJECT = "atoll"
SERVER_FOLDER = "server"  # the folder of the server's kit
SERVER_IDENTITY = "atoll-server"  # the name in the server's certificate
DEFAULT_PORT = 8102
LOOPBACK = ("localhost", "127.0.0.1")
ROOT_CERTIFICATE = "rootCA.pem"  # the certificate of the federation's authority
KIT_FILE = "atoll.toml"  # the sites, the server's address, and whose kit this is
NAMES_KEY = "names.secret"  # at every site: names of columns, classes and nodes are sent as digests under this key


@dataclass(frozen=True)
class Kit:
    """The kit of the server (`site` is None) or of a site: its folder, all sites in party order, and the server's address."""

    path: Path
    site: str | None
    sites: tuple[str, ...]
    host: str
    port: int

    @classmethod
    def open(cls, path: str | Path, *, server: bool) -> Kit:
        """Open the kit in a folder; refuse a site's kit where the server's is expected, and the other way round."""
        folder = Path(path).expanduser().resolve()
        try:
            document = _document(folder)
            kit = cls(folder, document.get("site"), tuple(document["sites"]), str(document["host"]), int(document["port"]))
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise _not_a_kit(path) from error
        if server and kit.site is not None:
            raise AtollError(
                f"{path} is the kit of the site {kit.site!r}; start it with `atoll join`, and the server's with `atoll serve`."
            )
        if not server and kit.site is None:
            raise AtollError(f"{path} is the server's kit; start it with `atoll serve`, and a site's with `atoll join`.")
        role = "server" if server else "client"
        for name in (f"startup/{role}.key", f"startup/{role}.crt", f"startup/{ROOT_CERTIFICATE}"):
            if not (folder / name).exists():
                raise AtollError(f"{path} is not a complete kit: {name} is missing; copy the kit again from where it was made.")
        return kit


def participants(path: Path) -> tuple[str, ...]:
    """The names of all sites in a kit's folder, in party order."""
    try:
        return tuple(_document(path)["sites"])
    except (OSError, KeyError, ValueError) as error:
        raise _not_a_kit(path) from error


def is_first(path: Path) -> bool:
    """Whether a kit is that of the first site, which is party 0."""
    try:
        document = _document(path)
        return bool(document["site"] == document["sites"][0])
    except (OSError, KeyError, ValueError) as error:
        raise _not_a_kit(path) from error


def is_server(path: Path) -> bool:
    """Whether a kit is the server's."""
    try:
        return _document(path.expanduser()).get("site") is None
    except (OSError, KeyError, ValueError) as error:
        raise _not_a_kit(path) from error


def _document(folder: Path) -> dict[str, Any]:
    document = tomllib.loads((folder / KIT_FILE).read_text())
    sites = document["sites"]
    if not isinstance(sites, list) or not sites or not all(isinstance(name, str) for name in sites):
        raise ValueError("sites")
    return document


def _not_a_kit(path: str | Path) -> AtollError:
    return AtollError(f"{path} is not a kit: it holds no readable {KIT_FILE}; give a folder that `atoll provision` made.")


def require_nvflare() -> None:
    """Refuse, with what to install, if NVFlare is missing."""
    if importlib.util.find_spec("nvflare") is None:
        raise AtollError("NVFlare is not installed; install it with `pip install 'atoll[deploy]'`.")


def provision(sites: Sequence[str], host: str, out: str | Path, *, port: int = DEFAULT_PORT) -> list[Path]:
    """Make one kit per site and one for the server under `out`; returns their folders, the server's first."""
    require_nvflare()
    _check_names(sites, host, port)
    folder = Path(out)
    for name in (SERVER_FOLDER, *sites):
        if (folder / name).exists():
            raise AtollError(f"{folder / name} already exists; choose another --out, or delete it to make new kits.")
    with tempfile.TemporaryDirectory(prefix="atoll-provision-") as scratch:
        workspaces = _make_workspaces(sites, host, port, Path(scratch))
        names_key = secrets.token_hex(32)
        signing_keys = signing.issue(sites, Path(scratch) / PROJECT / "state" / "cert.json")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (SERVER_FOLDER, *sites):
                shutil.copytree(workspaces / (SERVER_IDENTITY if name == SERVER_FOLDER else name), folder / name)
                signing.write(folder / name, None if name == SERVER_FOLDER else name, signing_keys)
                _reduce_workspace(folder / name, None if name == SERVER_FOLDER else name, sites, host, port)
                if name != SERVER_FOLDER:  # not for the server, so that it cannot look up the sites' column names
                    storage.write_whole(folder / name / NAMES_KEY, f"{names_key}\n".encode(), mode=0o600)
        except OSError as error:
            raise AtollError(f"{folder} cannot be written to ({error.strerror}); choose another --out.") from error
    return [folder / name for name in (SERVER_FOLDER, *sites)]


def _check_names(sites: Sequence[str], host: str, port: int) -> None:
    for name in sites:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?", name) or name in (SERVER_FOLDER, SERVER_IDENTITY):
            raise AtollError(
                f"{name!r} cannot be the name of a party; use lowercase letters, digits and hyphens, for instance bank-a."
            )
    if len(set(sites)) < len(sites) or not sites:
        raise AtollError("Name every party once, for instance --parties bank-a,bank-b,bank-c.")
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    if len(host) > 253 or not re.fullmatch(rf"{label}(\.{label})*", host):
        raise AtollError(f"{host!r} is not a host name; give the name or address at which the sites reach the server.")
    if not 1 <= port <= 65535:
        raise AtollError(f"The port is {port} but must be between 1 and 65535.")


def _make_workspaces(sites: Sequence[str], host: str, port: int, scratch: Path) -> Path:
    """Have NVFlare make the authority, keys and certificates; returns the folder with one workspace per participant."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    participants = [
        {
            "name": SERVER_IDENTITY,
            "type": "server",
            "org": PROJECT,
            "fed_learn_port": port,
            "admin_port": port,
            "default_host": host,
        }
    ]
    participants += [{"name": name, "type": "client", "org": PROJECT} for name in sites]
    project = {
        "api_version": 3,
        "name": PROJECT,
        "participants": participants,
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "http"}},
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }
    output = io.StringIO()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(output):
            Provisioner(str(scratch), prepare_builders(project)).provision(prepare_project(project))
    finally:
        logging.disable(level)
    workspaces = scratch / PROJECT / "prod_00"
    if not all((workspaces / name / "startup").is_dir() for name in (SERVER_IDENTITY, *sites)):
        raise AtollError(f"NVFlare could not make the kits: {output.getvalue().strip() or 'it gave no reason'}.")
    return workspaces


def _reduce_workspace(folder: Path, site: str | None, sites: Sequence[str], host: str, port: int) -> None:
    """Keep only the key and certificates of NVFlare's workspace; add the list of participants."""
    role = "server" if site is None else "client"
    for path in folder.iterdir():
        if path.name not in ("startup", signing.FOLDER):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / "startup").iterdir():
        if path.name not in (f"{role}.key", f"{role}.crt", ROOT_CERTIFICATE):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    document: dict[str, Any] = {"atoll": __version__, "host": host, "port": port, "sites": list(sites)}
    if site is not None:
        document["site"] = site
    storage.write_whole(folder / KIT_FILE, tomli_w.dumps(document).encode())
    for path in folder.rglob("*.key"):
        path.chmod(0o600)
    folder.chmod(0o700)
