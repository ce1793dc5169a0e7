"""Predictions at a site alone: new nodes beside those of before, as in the simulation; sentences where something is missing."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll import load_model
from atoll.deploy import server
from atoll.deploy.site_predictions import open_site_model
from atoll.errors import AtollError
from atoll.runs import runner
from clinics import CLINICS, Clinics, clinics, configs, table

pytestmark = pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Clinics:
    """Clinics after a run, and `new`: a later table of the first one, whose patients met some of before."""
    tmp_path = tmp_path_factory.mktemp("clinics")
    found = clinics(tmp_path, signed=True)
    here, there = configs(tmp_path, model="sage")
    runner.run(here, out=tmp_path / "here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "report", lambda **what: None)
        found.serve(there)
    frame = table(0, 20).drop(columns="label")
    frame["id"] = [f"new-{row}" for row in range(len(frame))]
    (tmp_path / "new").mkdir()
    frame.to_csv(tmp_path / "new" / "nodes.csv", index=False)
    edges = {"source": ["new-0", "0-7", "0-8"], "target": ["new-1", "new-1", "new-2"]}
    pd.DataFrame(edges).to_csv(tmp_path / "new" / "edges.csv", index=False)
    return found


def test_new_nodes_beside_those_of_before(trained: Clinics, tmp_path: Path) -> None:
    """The site, alone, predicts what the simulation's model predicts; the known nodes matter, and are not in the table."""
    folder, name = trained.folder, CLINICS[0]
    site = open_site_model(folder / "kits" / name)
    found = site.predict(folder / "new", known=folder / "data" / name)
    pd.testing.assert_frame_equal(found, load_model(folder / "here").predict(folder / "new", party=name))
    assert list(found["id"]) == [f"new-{row}" for row in range(20)]
    shutil.copytree(folder / "new", tmp_path / "alone")
    pd.DataFrame({"source": ["new-0"], "target": ["new-1"]}).to_csv(tmp_path / "alone" / "edges.csv", index=False)
    alone = site.predict(tmp_path / "alone")
    changed = (alone.filter(like="p[") != found.filter(like="p[")).any(axis=1)
    assert changed[[1, 2]].all()
    assert not changed[3:].any()


@pytest.mark.parametrize(
    ("known", "data", "sentence"),
    [
        (None, "new", "An edge names '0-7', which is not among the new nodes; give the data that holds it: --known FOLDER."),
        (CLINICS[1], "new", "An edge names '0-7', which is neither a new node nor a node of "),
        (CLINICS[0], None, "--known is the graph that new nodes have edges to; give the new nodes too: --data FOLDER."),
    ],
)
def test_what_is_missing_is_said(trained: Clinics, known: str | None, data: str | None, sentence: str) -> None:
    """No known graph, another one, or nothing to predict."""
    site, folder = open_site_model(trained.folder / "kits" / CLINICS[0]), trained.folder
    chosen: dict[str, Any] = {"known": None if known is None else folder / "data" / known}
    with pytest.raises(AtollError) as error:
        site.predict(None if data is None else folder / data, **chosen)
    assert str(error.value).startswith(sentence)


def test_a_run_knows_its_training_data(trained: Clinics) -> None:
    """`known` is for sites, which keep no copy of their data."""
    with pytest.raises(AtollError, match="leave --known out"):
        load_model(trained.folder / "here").predict(trained.folder / "new", known=trained.folder / "data" / CLINICS[0])
