"""Kits: one for each end, readable by its owner alone; what cannot be made is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll.deploy import kit as kits
from atoll.errors import AtollError


def test_kits(tmp_path: Path) -> None:
    """A kit for every end, with keys only its owner may read; the authority's own key is nowhere; the wrong end is refused."""
    made = kits.provision(["bank-a", "bank-b"], "server.example", tmp_path, port=9000)
    assert [path.name for path in made] == ["server", "bank-a", "bank-b"]
    kit = kits.Kit.open(tmp_path / "bank-b", server=False)
    assert (kit.site, kit.sites, kit.host, kit.port) == ("bank-b", ("bank-a", "bank-b"), "server.example", 9000)
    keys = sorted(tmp_path.rglob("*.key"))
    assert [path.parent.parent.name for path in keys] == ["bank-a", "bank-a", "bank-b", "bank-b", "server"]  # TLS and signing
    assert all(path.stat().st_mode & 0o077 == 0 for path in keys)
    assert len([path for path in tmp_path.rglob("*") if path.is_file() and b"PRIVATE KEY" in path.read_bytes()]) == len(keys)
    with pytest.raises(AtollError, match="is the server's kit"):
        kits.Kit.open(tmp_path / "server", server=False)
    with pytest.raises(AtollError, match="is the kit of the site 'bank-a'"):
        kits.Kit.open(tmp_path / "bank-a", server=True)
    with pytest.raises(AtollError, match="is not a kit"):
        kits.Kit.open(tmp_path, server=True)
    (tmp_path / "bank-a" / "startup" / "client.key").unlink()
    with pytest.raises(AtollError, match=r"bank-a is not a complete kit: startup/client\.key is missing"):
        kits.Kit.open(tmp_path / "bank-a", server=False)
    (tmp_path / "server" / "atoll.toml").write_text("sites = 'bank-a'\nhost = 'localhost'\nport = 1\n")
    with pytest.raises(AtollError, match="server is not a kit"):
        kits.Kit.open(tmp_path / "server", server=True)
    with pytest.raises(AtollError, match="already exists"):
        kits.provision(["bank-a"], "server.example", tmp_path)


@pytest.mark.parametrize(
    ("names", "host", "port", "sentence"),
    [
        (["Bank A"], "localhost", 9000, "cannot be the name of a party"),
        (["server"], "localhost", 9000, "cannot be the name of a party"),
        (["a", "a"], "localhost", 9000, "every party once"),
        ([], "localhost", 9000, "every party once"),
        (["a"], "not a host", 9000, "is not a host name"),
        (["a"], "a..b", 9000, "is not a host name"),
        (["a"], "h" * 300, 9000, "is not a host name"),
        (["a"], "localhost", 70000, "between 1 and 65535"),
    ],
)
def test_kits_that_cannot_be_made(names: list[str], host: str, port: int, sentence: str, tmp_path: Path) -> None:
    """One sentence, and nothing is written."""
    with pytest.raises(AtollError, match=sentence):
        kits.provision(names, host, tmp_path / "kits", port=port)
    assert not (tmp_path / "kits").exists()
