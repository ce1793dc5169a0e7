"""Whether the parties have training nodes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from atoll.data.splits import SplitSettings
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph, majority_class


def check_training(parts: Graph, scenario: str, settings: SplitSettings, names: Sequence[str] = (), *, unlabeled: bool) -> Graph:
    """Refuse data without training nodes, or with a party without any where each party trains.

    Where that is allowed, such a party has no minority nodes: it has no most frequent training class.
    """
    if not bool(parts.train.any()):
        labeled = int((parts.y >= 0).sum())
        if not labeled:
            raise AtollError(
                "No node has a class to learn (in tables: the column `label`); add some, or name what else there is to learn: "
                "--set target=labels, --set target=values or --set task=link-prediction."
            )
        raise AtollError(
            f"The graph has no training nodes: split={settings.split!r} selects none of the parties' {labeled} labeled nodes; "
            "label more nodes, or choose another split, for instance --set split=per_class."
        )
    if scenario in ("horizontal", "overlapping") and int(parts.num_train.min()) == 0:
        party = int(parts.num_train.argmin())
        if unlabeled:
            none = parts.num_train == 0
            sentence = f"{int(none.sum())} of {parts.parties} parties have no training nodes; they learn from the others alone."
            warnings.warn(sentence, AtollWarning, stacklevel=3)
            return replace(parts, majority=torch.where(none[parts.party], parts.y, majority_class(parts)))
        raise AtollError(
            f"Party {names[party] if names else party} has {parts.sizes[party]} nodes but no training nodes; "
            f"{'label some there' if names else 'use fewer parties, another partition'} or another split."
        )
    return parts
