"""Partitions with a name of their own: a kind of partition with the settings, split and features that a paper uses with it.

`--partition fedpub` is `--partition metis` with these settings as defaults; each of them can be set alone, also with other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A kind of partition and the defaults that a paper's protocol gives to settings of partition, split and data."""

    kind: str  # of `partition.SCENARIO_OF`
    values: Mapping[str, Any]
    source: str


TWENTY_FORTY_FORTY = {"train": 0.2, "val": 0.4, "test": 0.4}
FEDPUB = {
    "largest_component": True,
    "normalize_features": True,
    "split": "random",
    "split_scope": "graph",
    "split_rounding": "round",
    **TWENTY_FORTY_FORTY,
    "metis_method": "kway",
    "metis_seed": -1,
}
PRESETS = {
    "fedpub": Preset(
        "metis",
        FEDPUB,
        "FED-PUB, Baek et al., ICML 2023 (also FedAux, FedIIH): METIS on the largest component, rows of the features divided by "
        "their sums, 20/40/40 of the whole graph drawn before the cut.",
    ),
    "fedpub_overlap": Preset(
        "metis_overlap",
        FEDPUB,
        "FED-PUB, overlapping: five parties per METIS part, each with a random half of its nodes; the rest as fedpub.",
    ),
}
