"""`detail` in result.json: that of the best round's model, for every algorithm; thresholds never see a test node."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll.runs import detail, runner
from atoll.runs.config import Config
from atoll.tasks import decisions
from atoll.tasks.counting import evaluated_rows
from atoll.tasks.histograms import bin_edges
from deciding import SCORES
from small import ALGORITHMS, Absent, Wrapper, small

TWO = {"data.classes": 2, "data.nodes": 90}


def overtrained(algorithm: str, **values: Any) -> Config:
    """A run whose best round is usually not its last."""
    own = {"lr": 0.2} if algorithm not in ("fedspray", "gfl_appnp") else {}
    return small(algorithm, rounds=4, **(own | values))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_detail_is_of_the_best_round(algorithm: str) -> None:
    """Accuracy and F1 to the last digit, the loss to single precision; where parties overlap, those at the parties."""
    result = runner.run(overtrained(algorithm))
    prefix = "local_" if result.scenario == "overlapping" else ""
    overall = result.detail["overall"]
    for name in ("accuracy", "macro_f1"):
        assert overall[name] == result.metrics[prefix + name], name
    assert overall["log_loss"] == pytest.approx(result.metrics[f"{prefix}loss"], rel=1e-5)
    listed = {name: party["accuracy"] for name, party in result.detail["parties"].items()}
    if "party_accuracy" in result.metrics and result.parties > 1:
        assert list(listed.values()) == [value for value in result.metrics["party_accuracy"] if value is not None]
    assert result.detail["ranking"] == "exact"


def test_sites_of_one_party_each_have_the_same_detail() -> None:
    """The best round's memory is cut into that of each site."""
    for algorithm in ("fedper", "fedspray", "glasu"):
        together, apart = (runner.run(overtrained(algorithm, placement=placement)) for placement in ("together", "apart"))
        assert together.detail == apart.detail


def test_it_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics, bytes, state and history are those of a run without it."""
    for algorithm in ("fedavg", "glasu"):
        found = runner.run(overtrained(algorithm))
        with monkeypatch.context() as patched:
            patched.setattr(detail, "of_best", lambda *_: {})
            plain = runner.run(overtrained(algorithm))
        one, other = found.to_dict(), plain.to_dict()
        assert one.pop("detail") != other.pop("detail") == {}
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_resume_writes_the_same(tmp_path: Path) -> None:
    """From the checkpoint's best round; a finished run keeps its own, and the reader reads it."""
    whole = runner.run(overtrained("fedper"), out=tmp_path / "whole")
    runner.run(small("fedper", rounds=2, lr=0.2), out=tmp_path / "a")
    assert runner.resume(tmp_path / "a", ending={"rounds": 4}).detail == whole.detail
    assert atoll.read(tmp_path / "whole").detail == json.loads(json.dumps(whole.detail))
    assert json.loads((tmp_path / "whole/model/model.json").read_text())["detail"] == json.loads(json.dumps(whole.detail))


@pytest.mark.parametrize("secure", [False, True])
def test_parties_elsewhere_are_judged_by_their_counts(secure: bool) -> None:
    """What the server got: the same confusion matrix; by party only what it may see; nothing that was not counted."""
    config = overtrained("fedavg", secure=secure)
    here = runner.run(config).detail
    experiment = runner.prepare(config, engine=Wrapper)  # as a remote engine: without cohorts
    there = runner.rounds(experiment).detail
    assert there["confusion"] == here["confusion"]
    assert there["overall"]["weighted_f1"] == here["overall"]["weighted_f1"]
    assert there["overall"]["auc"] is None
    assert {name: party["confusion"] for name, party in there["parties"].items()} == {
        name: party["confusion"] for name, party in here["parties"].items()
    }
    assert len(here["parties"]) == (0 if secure else 3)


def test_a_predict_that_fails_does_not_cost_the_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm of one's own may have one that was never called; the counts tell what they can, with a warning."""
    experiment = runner.prepare(small("fedper", rounds=2))
    monkeypatch.setattr(detail, "observe", lambda *_, **__: 1 / 0)
    with pytest.warns(atoll.AtollWarning, match=r"could not be had \(ZeroDivisionError"):
        result = runner.rounds(experiment)
    assert result.detail["overall"]["accuracy"] == result.metrics["accuracy"]
    assert result.detail["ranking"] == ""


def test_a_missing_party_is_not_judged() -> None:
    """In the best round, if that is all there is."""
    experiment = runner.prepare(small("fedavg", rounds=2), engine=lambda engine: Absent(engine, {1, 2}, {1}))
    assert list(runner.rounds(experiment).detail["parties"]) == ["0", "2"]


def test_noised_counts_stay_noised() -> None:
    """The detail must not say exactly what the metrics hide."""
    noisy = runner.run(small("fedavg", rounds=2, **{"dp.evaluation_noise": 0.01, "dp.evaluation_clip": 1000.0}))
    plain = runner.run(small("fedavg", rounds=2))
    assert noisy.detail["confusion"] != plain.detail["confusion"]
    assert noisy.detail["parties"] == {}
    assert all(value >= 0 for row in noisy.detail["confusion"] for value in row)


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "nfedgnn", "glasu", "fedgl"])
@pytest.mark.parametrize("by", ["f1", "youden", "accuracy", "f1[0]"])
def test_the_threshold_is_the_best_on_validation_nodes(algorithm: str, by: str) -> None:
    """Federation-wide, at the best round: no other edge decides its validation nodes better; stored with result and model."""
    experiment = runner.prepare(overtrained(algorithm, **TWO, threshold=by, select_by="loss"))
    result = runner.rounds(experiment)
    found = result.detail["threshold"]
    assert found == result.trained.description["threshold"]  # type: ignore[union-attr]
    assert found["value"] == result.metrics["val_threshold"]
    seen = detail._outputs(experiment, _best(result), {})
    rows = [evaluated_rows(one.graph) for one in seen]
    rows = [these[one.graph.val[these]] for one, these in zip(seen, rows, strict=True)]
    y = torch.cat([one.graph.y[these] for one, these in zip(seen, rows, strict=True)])
    shares = torch.cat([one.output[these] for one, these in zip(seen, rows, strict=True)]).double().softmax(1)
    index, score = found["index"], SCORES[by.partition("[")[0]]

    def decided(value: float) -> torch.Tensor:
        return decisions.decide(shares, {"index": index, "value": value}) == index

    different = torch.stack([decided(float(edge)) for edge in bin_edges()]).unique(dim=0)  # of most edges it is the same
    best = max(float(score(y == index, positive)) for positive in different)
    assert float(score(y == index, decided(found["value"]))) == pytest.approx(best, abs=1e-12)


def _best(result: runner.Result) -> Any:
    from atoll.runs.best import BestRound

    trained = result.trained
    assert trained is not None
    return BestRound(result.best_round, trained.state, trained.memory)


def test_test_nodes_do_not_move_the_threshold() -> None:
    """With other test labels the threshold is the same, and what it decides is judged by them."""
    config = small("fedavg", rounds=3, **TWO, threshold="f1")
    results = []
    for flip in (False, True):
        experiment = runner.prepare(config)
        parts = experiment.party_data.parts
        if flip:
            flipped = replace(parts, y=torch.where(parts.test, 1 - parts.y, parts.y))
            for cohort in experiment.engine.cohorts:  # type: ignore[attr-defined]
                cohort.graph = flipped
            make = experiment.engine.make  # type: ignore[attr-defined]

            def made(parties: Any, blank: bool, make: Any = make, graph: Any = flipped) -> Any:
                cohort = make(parties, blank)
                cohort.graph = graph
                return cohort

            experiment.engine.make = made  # type: ignore[attr-defined]
        results.append(runner.rounds(experiment))
    plain, flipped_labels = results
    assert plain.detail["threshold"] == flipped_labels.detail["threshold"]
    assert plain.detail["overall"]["accuracy"] == pytest.approx(1 - flipped_labels.detail["overall"]["accuracy"])


def test_a_given_threshold_and_one_that_cannot_be_chosen() -> None:
    """A number needs no validation nodes; without both classes among them there is a warning and the likeliest class."""
    given = runner.run(small("fedavg", rounds=2, **TWO, threshold="0.9"))
    assert given.detail["threshold"] == {"class": "1", "index": 1, "value": 0.9, "by": "given"}
    assert given.detail["overall"]["accuracy"] != given.metrics["accuracy"]
    there = runner.rounds(runner.prepare(small("fedavg", rounds=2, **TWO, threshold="0.9"), engine=Wrapper)).detail
    assert there["confusion"] == given.detail["confusion"]
    graph = atoll.load("csbm", nodes=90, classes=2)
    graph = replace(graph, train=graph.y >= 0, val=torch.zeros_like(graph.val), test=graph.y >= 0)
    with pytest.warns(atoll.AtollWarning, match="do not have both classes"):
        result = atoll.run("fedavg", dataset=graph, parties=2, partition="random", rounds=2, threshold="f1")
    assert result.detail["threshold"] is None
    assert "do not have both classes" in result.warnings[0]
