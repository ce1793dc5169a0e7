"""`atoll data inspect`: what each column is taken for, what is missing, and a features.toml that says the same."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from messy import patients, write

from atoll.cli import main
from atoll.data.encoding_fit import fit_locally
from atoll.data.files import read
from atoll.data.inspection import disagreement, inspect, write_features
from atoll.errors import AtollError

pytestmark = pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str, str]:
    """The command line's exit code, output and errors."""
    monkeypatch.setattr("sys.argv", ["atoll", "data", "inspect", *words])
    code: Any = 0
    try:
        main.main()
    except SystemExit as error:
        code = error.code
    text = capsys.readouterr()
    return code, text.out, text.err


def test_a_folder_column_by_column(tmp_path: Path) -> None:
    """Kinds, missing shares and ranges are those of the table; text, label and leaks are said."""
    frame = patients()
    frame["copy"] = frame["label"]
    frame["note"] = [f"text {row}" for row in range(len(frame))]
    (found,) = inspect(write(frame, tmp_path / "north"))
    columns = {column.name: column for column in found.columns}
    kinds = {name: column.kind for name, column in columns.items()}
    assert kinds == {
        "id": "id",
        "age": "number",
        "charge": "number",
        "year": "number",
        "ward": "category",
        "smoker": "boolean",
        "admitted": "date",
        "label": "label",
        "copy": "category",
        "note": "text",
    }
    for name in ("age", "ward", "smoker", "admitted"):
        assert columns[name].missing == pytest.approx(frame[name].isna().mean())
    assert columns["year"].values == f"{frame['year'].min()} to {frame['year'].max()}"
    assert columns["ward"].values.startswith(f"4: {frame['ward'].value_counts().index[0]} {frame['ward'].value_counts().iloc[0]}")
    assert columns["admitted"].values == f"{frame['admitted'].dropna().min()} to {frame['admitted'].dropna().max()}"
    assert "it is text" in columns["note"].note
    assert any("`copy` reveals the label" in sentence for sentence in found.warnings)


def test_the_written_file_says_what_was_inferred(tmp_path: Path) -> None:
    """With it the encoding is the same; it is not replaced unasked; what it says is kept when it is written again."""
    frame = patients()
    frame["none"], frame["odd [name]"] = None, range(len(frame))
    folder = write(frame, tmp_path / "north")
    before = read(folder).table
    (path,) = write_features(inspect(folder))
    after = read(folder).table
    assert before is not None
    assert after is not None
    assert fit_locally(after) == fit_locally(before)
    with pytest.raises(AtollError, match=r"features.toml is there already; --force replaces it"):
        write_features(inspect(folder))
    path.write_text('[age]\nkind = "number"\nclip = [0.1, 0.9]\n[smoker]\nkind = "label"\n')
    frame.drop(columns="label").to_csv(folder / "nodes.csv", index=False)
    write_features(inspect(folder), force=True)
    assert tomllib.loads(path.read_text())["smoker"] == {"kind": "label"}
    assert tomllib.loads(path.read_text())["age"] == {"kind": "number", "clip": [0.1, 0.9]}


def test_parties_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether they agree is one sentence; a column that one has no values for is written as it is elsewhere."""
    for seed, name in enumerate(("north", "south")):
        frame = patients(seed=seed)
        write(frame.assign(age=None) if seed else frame, tmp_path / "all" / name)
    code, out, _ = command(monkeypatch, capsys, str(tmp_path / "all"), "--write")
    assert code == 0
    assert "The 2 folders agree on their columns." in out
    assert "north (400 nodes)" in out
    texts = [tomllib.loads((tmp_path / "all" / name / "features.toml").read_text()) for name in ("north", "south")]
    assert texts[0] == texts[1]
    frame = pd.read_csv(tmp_path / "all" / "south" / "nodes.csv").assign(charge="much")
    (tmp_path / "all" / "south" / "features.toml").unlink()
    (tmp_path / "all" / "north" / "features.toml").unlink()
    write(frame, tmp_path / "all" / "south")
    assert "Column `charge` is a number at north and a category at south" in disagreement(inspect(tmp_path / "all"))
    code, out, err = command(monkeypatch, capsys, str(tmp_path / "all"), "--write")
    assert code == 2
    assert "The folders do not agree" in out
    assert "nothing was written" in err
    assert not (tmp_path / "all" / "north" / "features.toml").exists()


@pytest.mark.parametrize(
    ("nodes", "sentence"),
    [("id,age\na,1\na,2\n", "already used"), ("id,age\na,1,2\n", "fields where the header has"), ("", "is empty")],
)
def test_broken_files_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], nodes: str, sentence: str
) -> None:
    """With the exit code of a mistake, and nothing written."""
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "edges.csv").write_text("source,target\n")
    code, _, err = command(monkeypatch, capsys, str(tmp_path), "--write")
    assert code == 2
    assert sentence in err
    assert not (tmp_path / "features.toml").exists()
    assert command(monkeypatch, capsys, str(tmp_path / "nowhere"))[0] == 2


def test_names_cannot_paint_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Markup and control characters of a file are shown as they are."""
    frame = patients().rename(columns={"ward": "[red]ward\x1b[31m"})
    code, out, _ = command(monkeypatch, capsys, str(write(frame, tmp_path / "north")))
    assert code == 0
    assert "\x1b[31m" not in out
    assert json.dumps("[red]")[1:-1] in out
