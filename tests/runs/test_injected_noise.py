"""Runs with injected noise, for every algorithm: training uses the damaged graph, evaluation the clean one, or it is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import algorithms
from atoll.errors import AtollError
from atoll.federation.memory import TRAIN_ITEM
from atoll.papers.execute import folder_of
from atoll.runs import runner
from atoll.runs.comparison import Comparison
from atoll.runs.config import Config, from_dict, resolve
from atoll.runs.predictions import predict
from atoll.runs.resumed_config import changes, record
from atoll.runs.terms import check_same_data
from small import ALGORITHMS, small

NOISE = {"noise.feature_noise": 1.0, "noise.feature_sparsity": 0.2, "noise.edge_noise": 0.5, "noise.label_noise": 0.2}
DIVIDED = ("horizontal", "overlapping", "whole")
TRAINS = [
    name for name in ALGORITHMS if algorithms.find(name).SCENARIOS[0] in DIVIDED and not algorithms.find(name).Cohort.one_graph
]


def noisy(algorithm: str, **values: Any) -> Config:
    """The small run with noise, with dropped training nodes where the method can do without them."""
    sparsity = {} if TRAIN_ITEM in algorithms.find(algorithm).Cohort.memory.values() else {"noise.label_sparsity": 0.2}
    return small(algorithm, rounds=2, **{**NOISE, **sparsity, **values})


@pytest.mark.parametrize("algorithm", TRAINS)
def test_training_is_damaged_and_evaluation_is_not(algorithm: str) -> None:
    """Placement does not matter; training differs; parties with the same memory that never saw the damage predict the same."""
    experiment = runner.prepare(noisy(algorithm))
    result = runner.rounds(experiment)
    apart = runner.rounds(runner.prepare(noisy(algorithm, placement="apart", amnesia="true")))
    assert result.last["loss"] == pytest.approx(apart.last["loss"], abs=1e-5)
    clean = runner.prepare(small(algorithm, rounds=2))
    assert runner.rounds(clean).last["loss"] != result.last["loss"]
    clean.engine.restore(experiment.engine.state())  # type: ignore[attr-defined]
    assert torch.equal(predict(experiment, result.state), predict(clean, result.state))


def test_the_saved_model_gives_the_reported_metrics(tmp_path: Path) -> None:
    """On the clean data; the folder knows of the noise."""
    result = runner.run(noisy("fedper"), out=tmp_path / "run")
    model = atoll.load_model(tmp_path / "run")
    assert model.config.noise.active
    assert model.evaluate().overall["accuracy"] == pytest.approx(result.metrics["accuracy"], abs=1e-9)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in TRAINS])
def test_others_refuse(algorithm: str) -> None:
    """In one sentence, before anything is trained."""
    with pytest.raises(AtollError, match=r"cannot train on a damaged graph|Injected noise"):
        runner.prepare(small(algorithm, **NOISE))


def test_training_and_evaluation_see_different_graphs() -> None:
    """A cohort's graph is the damaged one but while it evaluates; the data of the experiment stays clean."""
    experiment = runner.prepare(noisy("fedavg"))
    (cohort,) = experiment.engine.cohorts  # type: ignore[attr-defined]
    clean = experiment.party_data.parts
    assert cohort.clean_graph is clean
    assert not torch.equal(cohort.graph.edge_index, clean.edge_index)
    runner.rounds(experiment)
    assert cohort.graph is not clean


def test_noise_is_part_of_the_data() -> None:
    """Digests of runs without it stay; with it they differ; written and read back; runs that differ in it are not compared."""
    plain, damaged = small("fedavg"), small("fedavg", **{"noise.edge_noise": 0.1})
    assert "noise" not in plain.to_dict()
    assert from_dict(damaged.to_dict(), "config.toml") == damaged
    assert folder_of(plain, Path()) != folder_of(damaged, Path())
    with pytest.raises(AtollError, match=r"different data \(edge_noise is 0.0 and 0.1\)"):
        check_same_data({"a": plain, "b": damaged})
    comparison = Comparison(["local", "fedavg"], dataset="csbm", values={"noise.label_noise": 0.1})
    assert {trial.config.noise.label_noise for trial in comparison.trials()} == {0.1}
    with pytest.raises(ValueError, match=r"noise\.edge_noise is 0\.1 and was 0"):
        changes(record(plain), damaged)


def test_a_checkpoint_with_the_old_name_of_a_partition_is_resumed() -> None:
    """louvain in the record is louvain_largest now."""
    config = resolve("fedavg", dataset="csbm", partition="louvain_largest", parties=3)
    before = record(config)
    before[0]["partition"] = "louvain"
    assert changes(before, config) == []


def test_bad_values() -> None:
    """Shares are between 0 and 1, names need their group, and a method that keeps something per training node loses none."""
    with pytest.raises(AtollError, match=r"edge_noise is 1\.5 but must be at most 1"):
        small("fedavg", **{"noise.edge_noise": 1.5})
    with pytest.raises(AtollError, match=r"did you mean 'noise\.edge_noise'"):
        small("fedavg", edge_noise=0.5)
    with pytest.raises(AtollError, match="fedspray keeps something for each training node"):
        small("fedspray", **{"noise.label_sparsity": 0.1})
