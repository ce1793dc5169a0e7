"""The server's part of GLASU's algorithms: what it asks of the parties, and what it makes of their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch

from atoll.algorithms.glasu.settings import Settings, sampled, shared
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.federation.federation import Federation
from atoll.models.split import SPLITS

Reply = TypeVar("Reply")


def sample(federation: Federation, settings: Settings) -> Fields:
    """Algorithm 2, the server: unite the parties' index sets level by level; the next message carries the lowest."""
    payload: Fields = {}
    if not sampled(settings, federation.training):
        return payload
    if settings.label_holder >= 0 and settings.shared_layers and federation.training:  # Algorithm 5, the server
        drawn = require_all(federation, federation.ask("draw", to=[settings.label_holder]))
        payload = {"nodes": drawn.stack("nodes")[0]}  # S[L]
    for layer in reversed(shared(settings)[:-1] if SPLITS[settings.model].edges else []):
        replies = require_all(federation, federation.ask("sample", level=layer + 1, **payload))
        payload = {"nodes": torch.unique(torch.cat(replies.stack("nodes")))}  # ⋃_m S_m[l]
    return payload


def label_holders(federation: Federation, settings: Settings) -> Sequence[int]:
    """The parties that have labels: all, or the one; where everything is in one place, that place."""
    alone = settings.label_holder >= 0 and federation.schema.parties > 1
    return [settings.label_holder] if alone else federation.parties


def joint_inference(federation: Federation, settings: Settings, payload: Fields) -> Fields:
    """Algorithm 3, the server: aggregate layer by layer; the next message carries the last aggregate."""
    for layer in shared(settings):
        call: Fields = {"verb": "embed"} if layer == shared(settings)[0] else {"verb": "infer", "layer": layer}
        if settings.aggregation == "mean":
            total = require_all(federation, federation.total(**call, **payload))["hidden"]
            payload = {"aggregate": total / federation.schema.parties}
        else:
            replies = require_all(federation, federation.ask(**call, **payload))
            payload = {"aggregate": replies.stack("hidden").transpose(0, 1).flatten(1)}
    return payload


def train_with_one_label_holder(federation: Federation, holder: int, payload: Fields) -> None:
    """Algorithm 6, the server, lines 6-7: the holder's gradient goes to all others; then Algorithms 4 and 7."""
    replies = require_all(federation, federation.ask("differentiate", to=[holder], **payload))
    gradient = replies.stack("gradient")[0]  # ∇L_1
    federation.tell("train", to=[holder])
    federation.tell("train", to=[party for party in federation.parties if party != holder], gradient=gradient, **payload)


def backpropagate_all(federation: Federation, settings: Settings, payload: Fields) -> None:
    """Exact gradients: an aggregate's, summed over the parties, is passed on to the representations it was made of."""
    total = require_all(federation, federation.total("differentiate", **payload))["gradient"]
    for layer in reversed(shared(settings)):
        if settings.aggregation == "mean":
            shares: Fields = {"share": total / federation.schema.parties}
        else:
            shares = {"each": {"share": total.view(len(total), -1, settings.hidden).transpose(0, 1).contiguous()}}
        if layer == shared(settings)[0]:
            federation.tell("train", **shares)
        else:
            total = require_all(federation, federation.total("backpropagate", layer=layer, **shares))["gradient"]


def require_all(federation: Federation, replies: Reply) -> Reply:
    """The replies, if all parties are there: the others cannot make up for the columns of a missing one."""
    if federation.missing:
        missing = federation.reasons(federation.missing)
        raise AtollError(
            f"Round {federation.round}: parties that hold the same nodes are all needed, and some are missing ({missing})."
        )
    return replies
