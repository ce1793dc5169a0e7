"""Partitions with a name of their own: a kind of partition with the settings, split and features that a paper uses with it.

`--partition fedpub` is `--partition metis` with these settings as defaults; each of them can be set alone, also with other kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Preset:
    """A kind of partition and the defaults that a paper's protocol gives to settings of partition, split and data."""

    kind: str  # of `partition.SCENARIO_OF`
    values: Mapping[str, Any]
    source: str
    shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of train, val and test, for some datasets

    def defaults(self, dataset: str) -> dict[str, Any]:
        """The values for a dataset."""
        return dict(self.values) | dict(self.shares.get(dataset.lower(), {}))


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
OPENFGL = {"split": "by_class", **TWENTY_FORTY_FORTY}
OPENFGL_SHARES = {
    dataset: dict(zip(("train", "val", "test"), shares, strict=True))
    for datasets, shares in (
        (("chameleon", "squirrel"), (0.48, 0.32, 0.2)),
        (("arxiv", "ogbn-arxiv"), (0.6, 0.2, 0.2)),
        (("products", "ogbn-products"), (0.1, 0.05, 0.85)),
        (("actor", "roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"), (0.5, 0.25, 0.25)),
    )
    for dataset in datasets
}
OPENFGL_KINDS: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    (
        "louvain",
        "louvain_balanced",
        {"louvain_program": "scikit-network"},
        "scikit-network's Louvain, filled to nearly equal parties",
    ),
    ("louvain_plus", "louvain_plus", {"louvain_program": "scikit-network"}, "communities clustered by their shares of classes"),
    ("metis", "metis", {}, "METIS on the whole graph"),
    ("metis_plus", "metis_plus", {}, "100 METIS parts clustered by their shares of classes"),
    (
        "label_skew",
        "label_skew",
        {"concentration": 10.0, "min_nodes": 5},
        "Dirichlet shares of each class, parties below N / P only",
    ),
)
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
} | {
    f"openfgl_{name}": Preset(
        kind,
        OPENFGL | values,
        f"OpenFGL, Li et al., 2024 (also FedGB): {what}; each class of a party split 20/40/40, or in the shares of its dataset.",
        OPENFGL_SHARES,
    )
    for name, kind, values, what in OPENFGL_KINDS
}
