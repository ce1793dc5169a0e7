"""Embeddings of a run's test nodes in the plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from atoll.errors import AtollError
from atoll.reports import embedding
from atoll.reports.embedding import embed, silhouette, tsne
from atoll.runs import runner
from small import small


@pytest.mark.parametrize("algorithm", ["fedgl", "centralized"])
def test_every_test_node_has_a_point(algorithm: str) -> None:
    """One finite point and class for each test node of the union graph; the same each time."""
    experiment = runner.prepare(small(algorithm, rounds=1))
    result = runner.rounds(experiment)
    embeddings, classes = embed(result)
    whole = experiment.party_data.whole
    assert embeddings.shape == (int(whole.test.sum()), 3)
    assert classes.tolist() == whole.y[whole.test].tolist()
    picture = tsne(result)
    assert picture.points.shape == (len(classes), 2)
    assert np.isfinite(picture.points).all()
    assert np.array_equal(picture.points, tsne(result).points)


@pytest.mark.parametrize("algorithm", ["fedgl", "centralized"])
def test_the_model_is_that_of_the_best_round(algorithm: str) -> None:
    """The embeddings give the loss that is reported, where the best round is not the last."""
    result = runner.rounds(runner.prepare(small(algorithm, rounds=40, lr=0.1, seed=5)))
    assert result.best_round < result.rounds
    loss = float(torch.nn.functional.cross_entropy(*embed(result)))
    assert loss == pytest.approx(result.metrics["loss"], rel=1e-5)
    assert loss != pytest.approx(result.last["loss"], rel=1e-2)


def test_without_a_shared_model_there_is_nothing_to_embed() -> None:
    """Local's models are personal."""
    with pytest.raises(AtollError, match="local has no model"):
        embed(runner.rounds(runner.prepare(small("local", rounds=1))))


def test_a_finished_run_is_read_from_its_folder(tmp_path: Path) -> None:
    """What its folder gives is what the run gave, once it is over and before."""
    config = small("fedgl", rounds=2)
    result = runner.run(config, out=tmp_path / "run")
    again = runner.read(tmp_path / "run")
    assert (again.metrics, again.rounds, again.rows) == (result.metrics, 2, result.rows)
    assert silhouette(again) == pytest.approx(silhouette(result))
    (tmp_path / "run" / "result.json").unlink()
    assert silhouette(runner.read(tmp_path / "run")) == pytest.approx(silhouette(result))


def test_the_silhouette_is_of_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tight groups far apart are near 1, groups that are mixed near 0 or below."""
    points, classes = torch.tensor([[0.0], [0.1], [9.0], [9.1]]), torch.tensor([0, 0, 1, 1])
    monkeypatch.setattr(embedding, "embed", lambda _: (points, classes))
    assert embedding.silhouette(None) > 0.98  # type: ignore[arg-type]
    monkeypatch.setattr(embedding, "embed", lambda _: (points, torch.tensor([0, 1, 0, 1])))
    assert embedding.silhouette(None) < 0  # type: ignore[arg-type]
