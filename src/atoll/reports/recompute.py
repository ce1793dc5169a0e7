"""What the trained model of a run folder predicts: computed again, where the parties' data is here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.engines import is_hosted
from atoll.errors import AtollError
from atoll.federation.cohort import Observation
from atoll.graphs.graph import Graph
from atoll.reports.partitions import NO_GRAPH, partition_of
from atoll.reports.projection import in_plane
from atoll.reports.runs import StoredRun
from atoll.runs.experiment import prepare
from atoll.runs.folder import Folder
from atoll.runs.model_files import FOLDER, TENSORS, ModelFiles
from atoll.runs.predictions import observe
from atoll.tasks import DEFAULT_TASK, confusion, details
from atoll.tasks.counting import evaluated_rows

MAX_BYTES = 300_000_000  # of a saved model that is still read
MAX_PARTIES = 100  # whose metrics are computed one by one
TOLERANCE = 0.01  # of the accuracy: another machine may round a few predictions differently


@dataclass(frozen=True, eq=False)
class Predictions:
    """What the parties of a run predict with its saved model."""

    observations: list[Observation]
    parts: Graph
    scenario: str
    names: tuple[str, ...]
    round: int  # whose model it is: the best, or the last where an earlier version did not keep the best


@dataclass(frozen=True, eq=False)
class RecomputedDetail:
    """`detail` as result.json has it."""

    document: dict[str, Any]
    round: int


@dataclass(frozen=True, eq=False)
class Embedding:
    """Nodes in two dimensions."""

    points: NDArray[np.float64]  # (n, 2)
    label: NDArray[np.int64]  # class, −1 where unlabeled
    party: NDArray[np.int64]
    of: int  # nodes in all
    what: str  # which representation of which nodes was projected
    round: int


class NodeEmbeddings(NamedTuple):
    """A representation of nodes."""

    values: NDArray[np.float32]
    label: NDArray[np.int64]
    party: NDArray[np.int64]
    what: str


@lru_cache(maxsize=1)
def predictions(run: StoredRun) -> Predictions | str:
    """What the parties predict with the best round's model, or the checkpoint's where there is no other; or why it is not known.

    Only the last one is kept in memory: ask for everything of one run before the next.
    """
    divided = partition_of(run.config)
    if isinstance(divided, str) and divided.startswith(NO_GRAPH):
        return divided
    try:
        predicted = _predictions(run)
    except (AtollError, OSError) as error:
        return str(error).rstrip(".")
    return predicted if isinstance(predicted, str) else _checked(run, predicted)


def _predictions(run: StoredRun) -> Predictions | str:
    config, folder = run.config, Folder(run.path)
    model, checkpoint = run.path / FOLDER / TENSORS, folder.checkpoint
    saved = model if model.exists() else checkpoint
    if not saved.exists():
        return "there is no saved model"
    if saved.stat().st_size > MAX_BYTES:
        return "the saved model is too large"
    if saved == model:
        files = ModelFiles.read(run.path)
        state, memory, number = files.state, {"0": files.memory}, int(files.description["best_round"])
    else:
        document = run.checkpoint()
        if document is None:
            return "the checkpoint cannot be read"
        state, memory, number = document.get("state", {}), document.get("memory", {}), int(document["progress"]["round"])
    if saved == model or is_hosted(config.engine):  # all parties' memory is that of one cohort
        config = replace(config, engine="inprocess", run=replace(config.run, placement="together"))
    experiment = prepare(replace(config, device="cpu"))
    experiment.engine.restore(memory)
    data = experiment.party_data
    return Predictions(observe(experiment, state), data.parts, data.scenario, tuple(data.names), number)


def _checked(run: StoredRun, predicted: Predictions) -> Predictions | str:
    """Refuse predictions that do not have the accuracy that was reported: the data has changed, or models are at the sites."""
    row = next((row for row in run.rows if row["round"] == predicted.round), {})
    reported = row.get("local_accuracy" if predicted.scenario == "overlapping" else "accuracy")
    tested = [_tested(one) for one in predicted.observations]
    count = sum(len(y) for _, y, _ in tested)
    if reported is None or not count or row.get("partial") or run.config.dp.evaluation_noise:
        return predicted
    if run.config.run.task != DEFAULT_TASK:
        return predicted
    accuracy = sum(int((logits.argmax(1) == y).sum()) for logits, y, _ in tested) / count
    if abs(accuracy - reported) > TOLERANCE:
        return f"what is here has an accuracy of {accuracy:.1%}, but {reported:.1%} were reported: other data, or another model"
    return predicted


def _tested(one: Observation) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Outputs, classes and parties of the labeled test nodes."""
    rows = (one.graph.test & (one.graph.y >= 0)).nonzero().squeeze(1)
    numbers = torch.as_tensor(np.array(one.parties))
    return one.output[rows], one.graph.y[rows], numbers[one.graph.owner[rows]]


def recomputed_detail(run: StoredRun) -> RecomputedDetail | str:
    """Confusion, metrics of each class and party and calibration of the test nodes; or why they cannot be computed."""
    if run.config.run.task != DEFAULT_TASK:
        return f"the task is {run.config.run.task}"
    if run.config.dp.evaluation_noise:
        return "counts are noised in this run, so exact ones are not shown"
    predicted = predictions(run)
    if isinstance(predicted, str):
        return predicted
    tested = [_tested(one) for one in predicted.observations]
    if not sum(len(y) for _, y, _ in tested):
        return "there are no labeled test nodes"
    logits, y, party = (torch.cat(each) for each in zip(*tested, strict=True))
    names = list(predicted.parts.class_names or map(str, range(logits.shape[1])))
    document = _document(logits, y, names)
    parties = predicted.parts.parties
    if 1 < parties <= MAX_PARTIES and predicted.scenario in ("horizontal", "overlapping"):
        called = predicted.names or [f"party {number}" for number in range(parties)]
        document["parties"] = {name: _of_party(logits[party == number], y[party == number]) for number, name in enumerate(called)}
    return RecomputedDetail(document, predicted.round)


def _document(logits: torch.Tensor, y: torch.Tensor, names: Sequence[str]) -> dict[str, Any]:
    counts = _counts(logits, y, ("confusion", "calibration", "histogram"))
    by_class = confusion.by_class(counts["confusion"])
    for index, values in enumerate(by_class):
        values |= {kind: details.class_value(kind, index, counts) for kind in ("auc", "average_precision")}
    return {
        "classes": list(names),
        "confusion": counts["confusion"].tolist(),
        "by_class": dict(zip(names, by_class, strict=True)),
        "calibration": counts["calibration"].tolist(),
        "threshold": None,
    }


def _of_party(logits: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    if not len(y):
        return {}
    counts = _counts(logits, y, ("confusion", "histogram"))
    accuracy = float((logits.argmax(1) == y).double().mean())
    return {"accuracy": accuracy, **details.metrics_of(counts, len(y), logits.shape[1])}


def _counts(logits: torch.Tensor, y: torch.Tensor, fields: Sequence[str]) -> dict[str, torch.Tensor]:
    """The counts of these nodes, as those of one party."""
    zeros = torch.zeros_like(y)
    counted = details.count(fields, logits, y, zeros, zeros, 1)
    return {name: (value if isinstance(value, torch.Tensor) else value.dense())[0] for name, value in counted.items()}


def embedding(run: StoredRun, method: str, most: int) -> Embedding | str:
    """A representation of at most `most` nodes by the saved model, in the plane, or why there is none."""
    predicted = predictions(run)
    if isinstance(predicted, str):
        return predicted
    hidden = hidden_of(predicted)
    if hidden is None:
        return f"{run.config.algorithm} predicts no classes of nodes"
    nodes = len(hidden.values)
    selected = np.sort(np.random.default_rng(0).permutation(nodes)[:most])
    points = in_plane(hidden.values[selected].astype(np.float64), method)
    return Embedding(points, hidden.label[selected], hidden.party[selected], nodes, hidden.what, predicted.round)


def hidden_of(predicted: Predictions) -> NodeEmbeddings | None:
    """The last hidden layer of the model that predicts.

    Where no single model does (split over parties and server, several channels), the class scores of the evaluated nodes.
    """
    parts = predicted.parts
    hidden = [one.hidden for one in predicted.observations if one.hidden is not None]
    if hidden and sum(map(len, hidden)) == len(parts.y) and predicted.scenario != "node":
        return NodeEmbeddings(torch.cat(hidden).numpy(), parts.y.numpy(), parts.owner.numpy(), "the last hidden layer")
    return _evaluated(predicted.observations)


def _evaluated(observations: Sequence[Observation]) -> NodeEmbeddings | None:
    """The class scores of the nodes that were evaluated; their parties where each holds more than one node."""
    values, labels, owners = [], [], []
    for one in observations:
        graph, rows = one.graph, evaluated_rows(one.graph)
        several = len(graph.y) > graph.parties
        owners.append(torch.as_tensor(np.array(one.parties))[graph.owner[rows]] if several else torch.zeros_like(rows))
        values.append(one.output[rows])
        labels.append(graph.y[rows])
    if not values:
        return None
    what = "the class scores of validation and test nodes"
    return NodeEmbeddings(torch.cat(values).numpy(), torch.cat(labels).numpy(), torch.cat(owners).numpy(), what)
