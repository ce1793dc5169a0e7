"""Pictures of what a model has learned: the test nodes' embeddings in the plane, by t-SNE."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import AtollError
from atoll.federation.cohort import backbone
from atoll.models.parameters import set_parameters
from atoll.reports.projection import in_plane
from atoll.runs.experiment import prepare
from atoll.runs.result import Result


@dataclass(frozen=True)
class ClassMap:
    """Points in the plane and their classes."""

    points: NDArray[np.float32]  # (n, 2)
    classes: NDArray[np.int64]  # (n,)


def tsne(result: Result, *, perplexity: float = 30.0, seed: int = 0) -> ClassMap:
    """The test nodes of the union graph, as the one model of a run (at its best round) embeds them: FedGL's Figures 5 to 7."""
    embeddings, classes = embed(result)
    points = in_plane(embeddings.double().numpy(), "tsne", perplexity=perplexity, seed=seed)
    return ClassMap(points.astype(np.float32), classes.numpy())


def silhouette(result: Result) -> float:
    """How well the classes of the test nodes are separated in H, from −1 to 1: the mean silhouette (Rousseeuw, 1987)."""
    from sklearn.metrics import silhouette_score

    embeddings, classes = embed(result)
    return float(silhouette_score(embeddings.numpy(), classes.numpy()))


def embed(result: Result) -> tuple[Tensor, Tensor]:
    """H, the network's output before softmax, of the labeled test nodes of the union graph, and their classes.

    The network is that of the best round, whose metrics are reported.
    """
    experiment = prepare(replace(result.config, engine="inprocess", device="cpu"))
    whole, settings = experiment.party_data.whole, result.config.settings
    network = backbone(settings, experiment.federation.schema, 1, None)
    set_parameters(network, _model(result))
    tested = whole.test & (whole.y >= 0)
    with torch.no_grad():
        return network(whole)[tested], whole.y[tested]


def _model(result: Result) -> dict[str, Tensor]:
    """The server's model at the best round, or that of a single party."""
    trained = result.model().files
    if "model" in trained.state:
        shared: dict[str, Tensor] = trained.state["model"]
        return shared
    if result.parties == 1 and "model" in trained.memory:
        return dict(trained.memory["model"])
    raise AtollError(f"{result.config.algorithm} has no model that all parties share; there is nothing to embed.")
