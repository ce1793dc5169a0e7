"""Link prediction at a site: the model in its kit scores there alone, as in a simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_site_predictions import BANKS, make_kit

import atoll
from atoll.data import files
from atoll.deploy.site import Site
from atoll.deploy.site_predictions import open_site_model
from atoll.engines.remote import RemoteEngine
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.runs import config, runner
from sites import DirectCarrier

VALUES = {"task": "link-prediction", "rounds": 2, "patience": 0, "hidden": 8, "ranking": 3}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three banks with folders and kits, after a run."""
    root = tmp_path_factory.mktemp("banks")
    for seed, name in enumerate(BANKS):
        graph = atoll.load("csbm", nodes=40, features=6, degree=6, classes=3, graph_seed=seed)
        names = np.array([f"{name}-{row}" for row in range(40)], object)
        files.save(replace(graph, node_names=names, feature_names=tuple("abcdef")), root / "data" / name, "csv")
        nodes = pd.read_csv(root / "data" / name / "nodes.csv").drop(columns=["index", "split"])
        nodes.to_csv(root / "data" / name / "nodes.csv", index=False)
        make_kit(root / name, name)
    for algorithm in ("fedavg", "fedper"):
        chosen = config.resolve(algorithm, dataset="given", partition="random", parties=3, seed=3, values=VALUES)
        chosen = replace(chosen, partition="horizontal")
        carrier = DirectCarrier({name: Site(root / name / "runs", root / "data" / name, kit=root / name) for name in BANKS})
        schema = Schema(6, 2, 3)
        engine = RemoteEngine(carrier, {name: [party] for party, name in enumerate(BANKS)}, chosen.to_dict(), schema, timeout=5.0)
        runner.rounds(runner.build_experiment(chosen, engine, schema, None, "horizontal", names=BANKS))
        engine.finish()
    return root


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper"])
def test_the_numbers_are_those_of_the_simulation(algorithm: str, deployed: Path) -> None:
    """On the site's own data: every pair, split and probability; the metrics are those of model.json."""
    simulated = atoll.run(
        algorithm, dataset=str(deployed / "data"), partition="files", scenario="horizontal", seed=3, **VALUES
    ).model()
    for name in BANKS:
        run = next(path.name for path in (deployed / name / "runs").iterdir() if path.name.startswith(f"{algorithm}-"))
        model, folder = open_site_model(deployed / name, run), deployed / "data" / name
        table, expected = model.predict(folder), simulated.predict(party=name).reset_index(drop=True)
        assert list(table.columns) == list(expected.columns)
        for column in ("source", "target", "split"):
            assert table[column].fillna("").tolist() == expected[column].fillna("").tolist()
        assert table["p[edge]"].to_numpy() == pytest.approx(expected["p[edge]"].to_numpy(), abs=1e-6)
        found = model.outputs(folder).metrics(model.task)
        assert {each: model.description["metrics"][each] for each in found} == pytest.approx(found)
        assert "pairs" in str(model.evaluate(folder))


def test_given_pairs_and_other_data(deployed: Path, tmp_path: Path) -> None:
    """Pairs of the training data get the score that they have there; other data needs pairs, which it scores."""
    model, folder = open_site_model(deployed / "bank-a"), deployed / "data" / "bank-a"
    table = model.predict(folder)
    some = table[table["split"] == "test"].head(5)
    scored = model.predict(folder, pairs=some[["source", "target"]])
    assert scored["p[edge]"].to_numpy() == pytest.approx(some["p[edge]"].to_numpy(), abs=1e-6)
    other = deployed / "data" / "bank-b"
    with pytest.raises(AtollError, match="name pairs: --pairs FILE"):
        model.predict(other)
    assert len(model.predict(other, pairs=pd.DataFrame({"source": ["bank-b-1"], "target": ["bank-b-2"]}))) == 1
