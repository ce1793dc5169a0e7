"""Downloads must be the published files, or those of the first download."""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from atoll.data import downloads, load
from atoll.data.catalog import RawDataset, catalog
from atoll.errors import AtollError

DATA = Path(os.environ.get("ATOLL_DATA", ""))
FILES = sorted(path for path in DATA.glob("*/raw/ind.*") if path.suffix != ".index") if os.environ.get("ATOLL_DATA") else []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no data."""
    monkeypatch.delenv("ATOLL_DATA", raising=False)
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def source(monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> None:
    """What every download gives."""

    def fetch(dataset: Any, folder: Path) -> None:
        for each, data in files.items():
            (folder / each).write_bytes(data)

    monkeypatch.setattr(RawDataset, "_fetch", fetch)


@pytest.mark.skipif(not FILES, reason="no Planetoid files")
def test_a_download_must_be_the_published_file(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte more and nothing lands in the cache; the real files do, and are checked again when they are read."""
    real = {path.name: path.read_bytes() for path in (DATA / "Cora" / "raw").iterdir()}
    source(monkeypatch, real | {"ind.cora.ty": real["ind.cora.ty"] + b"\x00"})
    with pytest.raises(
        AtollError, match=r"Cora/raw/ind\.cora\.ty has the SHA-256 [0-9a-f]{64}, but the file that was published has"
    ):
        load("cora")
    assert not [path for path in cache.rglob("*") if path.is_file()]
    source(monkeypatch, real)
    assert load("cora").num_nodes == 2708
    (cache / "data" / "Cora" / "raw" / "ind.cora.ty").write_bytes(real["ind.cora.ty"] + b"\x00")
    with pytest.raises(AtollError, match=r"ind\.cora\.ty has the SHA-256"):
        load("cora")


def wikics(classes: list[int]) -> dict[str, bytes]:
    """A small WikiCS."""
    document: dict[str, Any] = {"links": [[1], [0], [0]], "features": [[1, 2], [3, 4], [5, 6]], "labels": classes}
    document |= {"train_masks": [[1, 0, 0]], "val_masks": [[0, 1, 0]], "test_mask": [0, 0, 1]}
    return {"data.json": json.dumps(document).encode()}


def test_an_unknown_download_is_trusted_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest is recorded; another file under the same name is refused later, on its way and on the disk."""
    source(monkeypatch, wikics([0, 1, 0]))
    load("wikics")
    raw = cache / "data" / "WikiCS" / "raw" / "data.json"
    recorded = json.loads((cache / "data" / downloads.RECORD).read_text())
    assert recorded == {"WikiCS/raw/data.json": hashlib.sha256(raw.read_bytes()).hexdigest()}
    shutil.rmtree(raw.parent)
    source(monkeypatch, wikics([1, 1, 0]))
    with pytest.raises(AtollError, match=r"WikiCS/raw/data\.json has the SHA-256 .* downloaded first"):
        load("wikics")
    assert not raw.exists()
    raw.parent.mkdir(parents=True, exist_ok=True)
    raw.write_bytes(wikics([1, 1, 0])["data.json"])
    with pytest.raises(AtollError, match=r"WikiCS/raw/data\.json has the SHA-256"):
        load("wikics")
    (cache / "data" / downloads.RECORD).write_text("[")
    with pytest.raises(AtollError, match=r"digests\.json is damaged"):
        load("wikics")


@pytest.mark.skipif(not FILES, reason="no Planetoid files")
def test_the_pinned_digests_are_those_of_the_files() -> None:
    """Every pinned file that is here."""
    here = {name: DATA / name for name in downloads.pinned() if (DATA / name).is_file()}
    assert len(here) > 20
    downloads.check(DATA, here, new=False)
    pinned = {f"{each.folder}/{name}" for each in catalog().values() for name in each.files}
    assert downloads.pinned().keys() <= pinned
