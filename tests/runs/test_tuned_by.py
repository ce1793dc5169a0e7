"""A tuned run says so wherever it is read back: config.toml, result.json, reports."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

import atoll
from atoll.errors import AtollError
from atoll.papers.execute import folder_of
from atoll.reports import partitions, table
from atoll.reports.runs import Row, gather, grouped
from atoll.runs import config
from atoll.runs.tuned import Tuned, still_tuned, tuned_by
from atoll.runs.tuned_by import TunedBy

SMALL: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 2}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    """`tuned` has two tuned rows, `plain` one that was not, `longer` one with another number of rounds than it was tuned with."""
    home = tmp_path_factory.mktemp("tuned")
    space = {"lr": [0.003, 0.1], "dropout": [0.0, 0.5]}
    compared = atoll.compare("local,fedavg", tune=3, tune_seeds=2, space=space, seeds=2, out=home / "tuned", **SMALL)
    atoll.compare("fedprox", seeds=2, out=home / "plain", **SMALL)
    tuned = compared.tuned["fedavg"]
    with pytest.warns(match="fedavg was tuned with rounds=2 "):
        atoll.run("fedavg", tuned=tuned, out=home / "longer", **(SMALL | {"rounds": 3}))
    return home, tuned


def test_folders_say_what_their_settings_were_tuned_by(made: tuple[Path, Tuned]) -> None:
    """The space, the trials, the seeds, and the digest of the file that has all trials."""
    home, tuned = made
    written = json.loads((home / "tuned" / "tuning" / "fedavg" / "tuned.json").read_text())
    for folder in ("tuned/fedavg-0", "tuned/fedavg-1", "longer"):
        mark = atoll.read(home / folder).config.tuned
        assert isinstance(mark, TunedBy)
        assert mark == tuned.mark()
        result = json.loads((home / folder / "result.json").read_text())["tuned"]
        assert (result["trials"], result["seeds"], result["sha256"]) == (3, [1000, 1001], written["sha256"])
        assert (result["space"], result["values"]) == (written["space"], written["values"])
    assert atoll.read(home / "plain" / "fedprox-0").config.tuned is None
    assert "tuned" not in json.loads((home / "plain" / "fedprox-0" / "result.json").read_text())
    assert "3 trials on the seeds 1000, 1001" in str(atoll.read(home / "longer"))


def test_the_mark_outlives_a_resume(made: tuple[Path, Tuned]) -> None:
    """And a comparison that is run again takes its folders as its own."""
    home, tuned = made
    assert atoll.resume(home / "longer", rounds=4).to_dict()["tuned"] == tuned.mark().brief()
    space = {"lr": [0.003, 0.1], "dropout": [0.0, 0.5]}
    again = atoll.compare("local,fedavg", tune=3, tune_seeds=2, space=space, seeds=2, out=home / "tuned", **SMALL)
    assert again.results["fedavg"][0].config.tuned == tuned.mark()


def rows_of(home: Path, *names: str) -> list[Row]:
    """The rows of some of the folders."""
    return grouped(gather([home / name for name in names]))


def test_report_tables_mark_tuned_rows(made: tuple[Path, Tuned]) -> None:
    """Their labels and captions, and where rows of one table were not tuned alike or with another budget."""
    home, _ = made
    rows = rows_of(home, "tuned")
    assert [row.label for row in rows] == ["fedavg tuned", "local tuned"]
    caption = table.table(rows, partitions.majority).caption
    assert "Tuned rows were tuned with 3 trials on the seeds 1000, 1001 by validation loss." in caption
    assert "Not tuned alike" not in caption
    mixed = table.markdown(table.table(rows_of(home, "tuned", "plain"), partitions.majority))
    assert "Tuned rows (fedavg tuned and local tuned) were tuned with 3 trials" in mixed
    assert "Not tuned alike: fedavg tuned 3 trials on the seeds 1000, 1001, local tuned 3 trials" in mixed
    assert "fedprox not at all." in mixed
    assert "was tuned with rounds=2 (here " in table.table(rows_of(home, "longer"), partitions.majority).caption
    assert "uned" not in table.table(rows_of(home, "plain"), partitions.majority).caption


def test_changed_values_are_not_tuned(made: tuple[Path, Tuned]) -> None:
    """A file of a tuned run with another learning rate; its seed may not be one of tuning."""
    home, tuned = made
    document = tomllib.loads((home / "tuned" / "fedavg-0" / "config.toml").read_text())
    same = still_tuned(config.from_dict(document, "here"))
    assert same.tuned == tuned.mark()
    assert still_tuned(config.from_dict(document, "here", {"rounds": 9})).tuned == tuned.mark()
    other = config.from_dict(document, "here", {"lr": 0.77})
    assert tuned_by(other) is None
    assert still_tuned(other).tuned is None
    with pytest.raises(AtollError, match="Seed 1000 was used to tune fedavg"):
        still_tuned(config.from_dict(document | {"seed": 1000}, "here"))
    edited = home / "edited"
    edited.mkdir()
    (edited / "config.toml").write_text(tomli_w.dumps(document | {"settings": document["settings"] | {"lr": 0.77}}))
    assert [row.label for row in rows_of(home, "edited")] == ["fedavg"]


@pytest.mark.parametrize(
    "change", [{"seeds": []}, {"seeds": ["a"]}, {"seeds": 3}, {"trials": "many"}, {"values": 1}, {"sha256": None}, {"data": []}]
)
def test_damaged_tables(change: dict[str, Any], made: tuple[Path, Tuned]) -> None:
    """One sentence."""
    table_ = made[1].mark().to_dict() | change
    with pytest.raises(AtollError, match=r"^here.*\[tuned\].*restore it, or delete the table"):
        config.from_dict({"algorithm": "fedavg", "tuned": table_}, "here")


def test_a_digest_of_settings_does_not_count_the_mark(made: tuple[Path, Tuned]) -> None:
    """What numbers a run gives does not depend on how its settings were chosen."""
    chosen = atoll.read(made[0] / "tuned" / "fedavg-0").config
    assert folder_of(chosen, Path()) == folder_of(replace(chosen, tuned=None), Path())
