"""Users who join a federation of one node per party after training: they are predicted among the trained ones, who keep what they
learned. The algorithm says what a user begins with who has no weights of its own (its `join` setting, and its `admit`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from atoll import algorithms
from atoll.data.new_edges import joined
from atoll.data.new_nodes import NewNodes, read_new
from atoll.data.partition import partition
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.runs.experiment import extent_of
from atoll.runs.inference import Nodes, infer
from atoll.runs.known_nodes import training_context
from atoll.runs.outputs import Outputs
from atoll.settings import known as settings_of

if TYPE_CHECKING:
    from atoll.runs.trained import TrainedModel

FROM_THE_START = "start"  # the choice of `join` that is for training only


def can_join(model: TrainedModel) -> bool:
    """Whether the algorithm admits users who have no weights of their own."""
    return hasattr(algorithms.find(model.config.algorithm), "admit")


def of_joining_users(model: TrainedModel, data: Any, rule: str | None) -> Outputs:
    """The outputs for users who join; `rule` is what they begin with, that of the run by default."""
    settings = replace(model.config.settings, join=_rule(model, rule))
    alone = read_new(data, model.form(), training_context(model, None))
    new = _among_trained_users(model, alone)
    users = partition(new.graph, "node", None, model.config.partition_settings, model.config.seed)
    known = _numbers_in_training(model, new)
    public = {"edge_index": users.party[new.graph.edge_index], "y_train": torch.full((users.parties,), -1)}
    schema, parties = replace(model.schema, parties=users.parties), Parties(range(users.parties))
    algorithm: Any = algorithms.find(model.config.algorithm)
    files = replace(model.files, state=algorithm.admit(model.files.state, known, model.config.settings))
    nodes = Nodes(users, parties, "node", schema, public, known=known, before=model.training_data.parts)
    logits = infer(files, replace(model.config, settings=settings), nodes).logits[: new.count]
    return Outputs(alone.graph.rows(torch.arange(new.count)), logits, Parties([0]), ("",))


def _rule(model: TrainedModel, rule: str | None) -> str:
    """What a user who joins begins with."""
    field = settings_of(type(model.config.settings))["join"]
    choices = [choice for choice in field.metadata["choices"] if choice != FROM_THE_START]
    if rule is not None and rule not in choices:
        raise AtollError(f"--join is {rule!r} but must be one of {', '.join(choices)}.")
    chosen: str = rule or model.config.settings.join
    return chosen if chosen in choices else str(field.default)


def _among_trained_users(model: TrainedModel, new: NewNodes) -> NewNodes:
    """The new users with all trained ones; those that no new edge names are there, too."""
    if new.graph.num_nodes > new.count:
        return new
    trained = _named(model.training_data.whole)
    names = new.graph.node_names
    if names is None:  # they are nobody of the training data
        names = np.array([f"new user {row}" for row in range(new.count)], dtype=object)
    graph = replace(new.graph, node_names=names, ids=torch.arange(new.count))
    graph = replace(graph, feature_names=trained.feature_names, class_names=trained.class_names)
    form = model.form()
    return NewNodes(joined(graph, trained, np.empty((2, 0), np.int64), (), form.directed, False, None), new.count)


def _numbers_in_training(model: TrainedModel, new: NewNodes) -> Tensor:
    """(N,) each user's number in training, −1 for those who join."""
    parts = model.training_data.parts
    before = model.description.get("data") or {}
    if before and extent_of(parts) != {name: before.get(name) for name in extent_of(parts)}:
        raise AtollError(
            f"{model.config.dataset} has changed since the model was trained, so that the users' weights fit nobody; restore it."
        )
    assert new.graph.node_names is not None
    names = _named(model.training_data.whole).node_names
    assert names is not None
    known = torch.full((new.graph.num_nodes,), -1)
    known[new.count :] = torch.from_numpy(pd.Index(names.astype(str)).get_indexer(new.graph.node_names[new.count :].astype(str)))
    return known


def _named(graph: Graph) -> Graph:
    """The graph with names of its nodes: their numbers where they have none."""
    return graph if graph.node_names is not None else replace(graph, node_names=graph.ids.numpy().astype(str).astype(object))
