"""The tutorial runs from raw tables to the journal and prints what it shows; federated is as good as centralized."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")
pytest.importorskip("plotly", reason="plotly is not installed: pip install 'atoll[report]'")

import atoll
from atoll.deploy import audit
from atoll.deploy.site_predictions import open_site_model
from atoll.deploy.supervisor import free_port
from page_shell import DEADLINE, blocks, page_shell, script, unseen

pytestmark = pytest.mark.early
HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "tutorial.md"
WORSE = 0.02  # the AUC that federated training may lose against tables in one place
FEWER = {"0,1,2": "0,", "10,11,12,13,14": "10,11"}  # seeds


class Walk:
    """The folder of the tutorial after the page was run, and what it shows beside what was printed."""

    def __init__(self, folder: Path, shown: list[tuple[str, str]]) -> None:
        self.folder = folder
        self.shown = shown


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """The whole page with fewer seeds in its comparisons."""
    folder = tmp_path_factory.mktemp("walk")
    (folder / "examples").symlink_to(HOME / "examples")

    def change(words: list[str]) -> list[str]:
        words = [FEWER.get(word, word) for word in words]
        more = {"provision": ["--port", str(free_port())], "report": ["--embeddings", "none"]}
        return [*words, *more.get(words[1], [])] if words[0] == "atoll" else words

    with page_shell(folder, change) as shell:
        shown = shell.run(PAGE)
    return Walk(folder / "tutorial", shown)


def loss_of_auc(compared: Path) -> float:
    """How much lower the rare class's AUC of fedavg is than that of centralized, the mean over the seeds."""
    auc = {path.name: atoll.read(path).detail["by_class"]["infected"]["auc"] for path in compared.iterdir() if path.is_dir()}
    seeds = [name.split("-")[1] for name in auc if name.startswith("fedavg-")]
    assert seeds
    return mean(auc[f"centralized-{seed}"] - auc[f"fedavg-{seed}"] for seed in seeds)


def test_the_page_shows_what_is_printed(walk: Walk) -> None:
    """Every output on the page but those of the comparisons, which have fewer seeds here."""
    assert len(walk.shown) > 8
    for shown, printed in walk.shown[1:]:  # the first is a row of a table
        assert "±" in shown or unseen(shown, printed) == []


def test_federated_is_as_good_as_centralized(walk: Walk) -> None:
    """On test nodes, with seeds that chose nothing; the five of the page: `test_the_page_in_a_shell`."""
    assert loss_of_auc(walk.folder / "runs" / "compared") <= WORSE


def test_the_site_predicts_what_the_simulation_predicts(walk: Walk) -> None:
    """Next week's patients, with their contacts of before, to the last bit; and they are in the file."""
    there = open_site_model(walk.folder / "kits" / "north")
    found = there.predict(walk.folder / "next_week", known=walk.folder / "hospitals" / "north")
    simulated = atoll.load_model(walk.folder / "runs" / "simulated")
    simulated.config = replace(simulated.config, dataset=str(walk.folder / "hospitals"))  # the run was started inside the folder
    pd.testing.assert_frame_equal(found, simulated.predict(walk.folder / "next_week", party="north"))
    written = pd.read_csv(walk.folder / "predictions.csv", dtype={"id": str})
    assert written["id"].tolist() == found["id"].tolist()
    assert written["class"].tolist() == found["class"].tolist()


def test_what_left_was_masked(walk: Walk) -> None:
    """Every answer of the north that is made of its patients; and no name or id of theirs is in the journal."""
    path = walk.folder / "kits" / "north" / "journal.jsonl"
    entries = [line.entry for line in audit.read(path) if line.entry]
    made_of_patients = [
        one for one in entries if one.get("verb") and not str(one["verb"]).startswith("secure_") and one["fields"]
    ]
    assert {"fit", "evaluate", "count_columns", "count_classes"} <= {one["verb"] for one in made_of_patients}
    assert all(one["masked"] for one in made_of_patients)
    text = path.read_text()
    assert not [word for word in ("N00000", "oncology", "catheter", "infected") if word in text]


@pytest.mark.full
def test_the_page_in_a_shell(tmp_path: Path) -> None:
    """Pasted into bash as it stands, all seeds, a free port: it prints what it shows, and federated is as good as centralized."""
    (tmp_path / "examples").symlink_to(HOME / "examples")
    text = script(PAGE).replace("--server localhost", f"--server localhost --port {free_port()}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    ended = subprocess.run(
        ["bash", "-e"],
        input=text,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * DEADLINE,
        check=False,
    )
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, printed
    shown = [block.text for block in blocks(PAGE) if block.language == "text"]
    assert [line for block in shown[1:] for line in unseen(block, printed)] == []
    compared = tmp_path / "tutorial" / "runs" / "compared"
    assert loss_of_auc(compared) <= WORSE
    rows = {row["row"]: row for row in json.loads((compared / "comparison.json").read_text())}
    assert rows["fedavg"]["seeds"] == 5
    assert rows["fedavg"]["auc"] > rows["local"]["auc"]
