"""Kits: what the server and every site of a federation need to know each other, made once by `atoll provision`.

A kit holds a private key, a certificate and that of the federation's own authority (`startup`), and who takes part
(`atoll.toml`). What an end allows is not in it but in the program (`deploy/firewall`). The authority's private key is
thrown away when the kits are made.
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
SERVER = "server"  # the folder of the server's kit
SERVER_IDENTITY = "atoll-server"  # the name in the server's certificate
PORT = 8102
LOOPBACK = ("localhost", "127.0.0.1")
ROOT = "rootCA.pem"  # the certificate of the federation's authority
NAMES_KEY = "names.secret"  # of every site: what columns, classes and nodes are called is told as digests under this key


@dataclass(frozen=True)
class Kit:
    """One end of a federation: the folder, which site it is (None: the server), all sites in party order, where the server is."""

    path: Path
    site: str | None
    sites: tuple[str, ...]
    host: str
    port: int

    @classmethod
    def open(cls, path: str | Path, *, server: bool) -> Kit:
        """The kit in a folder; one for the other end is refused."""
        folder = Path(path).expanduser().resolve()
        try:
            plain = tomllib.loads((folder / "atoll.toml").read_text())
            sites = plain["sites"]
            if not isinstance(sites, list) or not sites or not all(isinstance(name, str) for name in sites):
                raise ValueError("sites")
            kit = cls(folder, plain.get("site"), tuple(sites), str(plain["host"]), int(plain["port"]))
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise AtollError(
                f"{path} is no kit: it holds no readable atoll.toml; give a folder that `atoll provision` made."
            ) from error
        if server and kit.site is not None:
            raise AtollError(
                f"{path} is the kit of the site {kit.site!r}; start it with `atoll join`, and the server's with `atoll serve`."
            )
        if not server and kit.site is None:
            raise AtollError(f"{path} is the server's kit; start it with `atoll serve`, and a site's with `atoll join`.")
        end = "server" if server else "client"
        for name in (f"startup/{end}.key", f"startup/{end}.crt", f"startup/{ROOT}"):
            if not (folder / name).exists():
                raise AtollError(f"{path} is no whole kit: {name} is missing; bring the kit anew from where it was made.")
        return kit


def require_nvflare() -> None:
    """Say what to install where NVFlare is not."""
    if importlib.util.find_spec("nvflare") is None:
        raise AtollError("NVFlare is not installed; install it with `pip install 'atoll[deploy]'`.")


def provision(sites: Sequence[str], host: str, out: str | Path, *, port: int = PORT) -> list[Path]:
    """Make one kit a site and one for the server under `out`; the folders made, the server's first."""
    require_nvflare()
    _check(sites, host, port)
    folder = Path(out)
    for name in (SERVER, *sites):
        if (folder / name).exists():
            raise AtollError(f"{folder / name} already exists; choose another --out, or delete it to make new kits.")
    with tempfile.TemporaryDirectory(prefix="atoll-provision-") as scratch:
        made = _certify(sites, host, port, Path(scratch))
        names_key = secrets.token_hex(32)
        signing_keys = signing.issue(sites, Path(scratch) / PROJECT / "state" / "cert.json")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name in (SERVER, *sites):
                shutil.copytree(made / (SERVER_IDENTITY if name == SERVER else name), folder / name)
                signing.write(folder / name, None if name == SERVER else name, signing_keys)
                _furnish(folder / name, None if name == SERVER else name, sites, host, port)
                if name != SERVER:  # so that the server cannot look up what the sites' columns are called
                    storage.write_whole(folder / name / NAMES_KEY, f"{names_key}\n".encode(), mode=0o600)
        except OSError as error:
            raise AtollError(f"{folder} cannot be written to ({error.strerror}); choose another --out.") from error
    return [folder / name for name in (SERVER, *sites)]


def _check(sites: Sequence[str], host: str, port: int) -> None:
    for name in sites:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,60}[a-z0-9])?", name) or name in (SERVER, SERVER_IDENTITY):
            raise AtollError(
                f"{name!r} cannot be the name of a party; use small letters, digits and hyphens, for instance bank-a."
            )
    if len(set(sites)) < len(sites) or not sites:
        raise AtollError("Give every party once, for instance --parties bank-a,bank-b,bank-c.")
    label = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    if len(host) > 253 or not re.fullmatch(rf"{label}(\.{label})*", host):
        raise AtollError(f"{host!r} is no host name; give the name or address under which the sites reach the server.")
    if not 1 <= port <= 65535:
        raise AtollError(f"The port is {port} but must be between 1 and 65535.")


def _certify(sites: Sequence[str], host: str, port: int, scratch: Path) -> Path:
    """Let NVFlare make the authority, keys and certificates; the folder with a workspace for each end."""
    from nvflare.lighter.prov_utils import prepare_builders
    from nvflare.lighter.provision import prepare_project
    from nvflare.lighter.provisioner import Provisioner

    ends = [
        {
            "name": SERVER_IDENTITY,
            "type": "server",
            "org": PROJECT,
            "fed_learn_port": port,
            "admin_port": port,
            "default_host": host,
        }
    ]
    ends += [{"name": name, "type": "client", "org": PROJECT} for name in sites]
    project = {
        "api_version": 3,
        "name": PROJECT,
        "participants": ends,
        "builders": [
            {"path": "nvflare.lighter.impl.workspace.WorkspaceBuilder", "args": {"template_file": ["master_template.yml"]}},
            {"path": "nvflare.lighter.impl.static_file.StaticFileBuilder", "args": {"config_folder": "config", "scheme": "http"}},
            {"path": "nvflare.lighter.impl.cert.CertBuilder"},
            {"path": "nvflare.lighter.impl.signature.SignatureBuilder"},
        ],
    }
    said = io.StringIO()
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(said):
            Provisioner(str(scratch), prepare_builders(project)).provision(prepare_project(project))
    finally:
        logging.disable(level)
    made = scratch / PROJECT / "prod_00"
    if not all((made / name / "startup").is_dir() for name in (SERVER_IDENTITY, *sites)):
        raise AtollError(f"NVFlare could not make the kits: {said.getvalue().strip() or 'it gave no reason'}.")
    return made


def _furnish(folder: Path, site: str | None, sites: Sequence[str], host: str, port: int) -> None:
    """Of NVFlare's workspace keep the key and the certificates; say who takes part."""
    end = "server" if site is None else "client"
    for path in folder.iterdir():
        if path.name not in ("startup", signing.FOLDER):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (folder / "startup").iterdir():
        if path.name not in (f"{end}.key", f"{end}.crt", ROOT):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    about: dict[str, Any] = {"atoll": __version__, "host": host, "port": port, "sites": list(sites)}
    if site is not None:
        about["site"] = site
    storage.write_whole(folder / "atoll.toml", tomli_w.dumps(about).encode())
    for path in folder.rglob("*.key"):
        path.chmod(0o600)
    folder.chmod(0o700)
