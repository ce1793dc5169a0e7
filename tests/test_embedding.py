"""Embeddings of a run's test nodes in the plane."""

from __future__ import annotations

import numpy as np
import pytest

from atoll import runner
from atoll.embedding import embed, tsne
from atoll.errors import AtollError
from small import small


@pytest.mark.parametrize("algorithm", ["fedgl", "centralized"])
def test_every_test_node_has_a_point(algorithm: str) -> None:
    """One finite point and class for each test node of the union graph; the same each time."""
    experiment = runner.prepare(small(algorithm, rounds=1))
    result = runner.rounds(experiment)
    embeddings, classes = embed(result)
    whole = experiment.spread.whole
    assert embeddings.shape == (int(whole.test.sum()), 3)
    assert classes.tolist() == whole.y[whole.test].tolist()
    picture = tsne(result)
    assert picture.points.shape == (len(classes), 2)
    assert np.isfinite(picture.points).all()
    assert np.array_equal(picture.points, tsne(result).points)


def test_without_a_shared_model_there_is_nothing_to_embed() -> None:
    """Local's models are personal."""
    with pytest.raises(AtollError, match="local has no model"):
        embed(runner.rounds(runner.prepare(small("local", rounds=1))))
