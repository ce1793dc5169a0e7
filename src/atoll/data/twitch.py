"""Twitch: friendships of streamers in seven countries, each a party (MUSAE, Rozemberczki et al., 2021).

Features are games, location and habits as 3,170 binary columns, the same in all countries; the class is whether a streamer uses
mature language, or is a partner of the platform; or both are labels; or the logarithm of the views is a value. The files
`twitch/COUNTRY.npz` hold x in CSR parts, `edge_index` with every friendship once, `y` (mature), `partner` and `views`. They are
not those of PyG's `Twitch`, whose 128 columns are learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.data.builder import build_graph, check_fold, row_normalize
from atoll.data.catalog import raw_folder
from atoll.data.natural_parties import as_one_graph
from atoll.data.npz import Arrays, read_npz
from atoll.data.target_columns import CLASS, TARGETS, with_targets
from atoll.data.target_columns import LABELS as LABELS_TARGET
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.settings import setting

COUNTRIES = ("DE", "EN", "ES", "FR", "PT", "RU", "TW")
LABELS = {"mature": ("y", ("general", "mature")), "partner": ("partner", ("other", "partner"))}  # array, names of the classes


@dataclass(frozen=True)
class TwitchSettings:
    """What is predicted, and the scale of the features."""

    normalize_features: bool = setting(False, "Divide each node's features by their sum.")
    label: str = setting("mature", "The class of a streamer: mature language, or partner of the platform.", choices=LABELS)
    target: str = setting(
        CLASS,
        "What is predicted of a streamer: a class (see label), both labels (mature, partner), or values, log(1 + views).",
        choices=TARGETS,
        since="0.2",
    )
    labels: tuple[str, ...] = setting(tuple(LABELS), "With target=labels: which of them.", since="0.2")

    def __post_init__(self) -> None:
        """Refuse labels that streamers do not have."""
        if unknown := [name for name in self.labels if name not in LABELS]:
            raise AtollError(f"labels names {unknown[0]!r}, which streamers do not have{suggest(unknown[0], tuple(LABELS))}")
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise AtollError(f"labels is {','.join(self.labels)!r}; name each of {', '.join(LABELS)} once, or some of them.")


@dataclass(frozen=True)
class TwitchDataset:
    """The dataset `twitch`: a graph per country, or all of them as one graph without edges between countries."""

    Settings: ClassVar[type] = TwitchSettings

    name: str = "twitch"
    nodes: int = 36890
    edges: int = 492575
    features: int = 3170
    classes: int = 2
    folder: str = "twitch"

    @property
    def available(self) -> bool:
        """Whether the files of all countries are here."""
        return raw_folder(self.folder, self._files) is not None

    @property
    def _files(self) -> tuple[str, ...]:
        return tuple(f"{country}.npz" for country in COUNTRIES)

    def load_parties(self, settings: TwitchSettings, *, seed: int = 0, fold: int = 0) -> dict[str, Graph]:
        """The graph of each country."""
        check_fold(fold, 1, self.name)
        folder = raw_folder(self.folder, self._files)
        if folder is None:
            raise AtollError(
                "Dataset 'twitch' is not here and it cannot be downloaded; put DE.npz, EN.npz, ES.npz and 4 more into the folder "
                "`twitch` under ATOLL_DATA."
            )
        return {country: _read(folder / f"{country}.npz", settings) for country in COUNTRIES}

    def load(self, settings: TwitchSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """All countries as one graph (P = 1)."""
        return as_one_graph(self.load_parties(settings, seed=seed, fold=fold))


def _read(path: Path, settings: TwitchSettings) -> Graph:
    array, classes = LABELS[settings.label]
    try:
        arrays = read_npz(path)
        x = sp.csr_array(
            (arrays["x_data"], arrays["x_indices"], arrays["x_indptr"]), shape=tuple(int(size) for size in arrays["x_shape"])
        )
        edges, y = arrays["edge_index"], arrays[array]
        targets = None if settings.target == CLASS else _targets(arrays, settings)
    except (ValueError, KeyError) as error:
        raise AtollError(f"{path} cannot be read ({error}); put a fresh copy there.") from error
    graph = build_graph(x, edges, y, where=str(path), num_classes=len(classes), class_names=classes)
    if targets is not None:
        graph = with_targets(graph, targets, settings.labels if settings.target == LABELS_TARGET else ("log_views",))
    return row_normalize(graph) if settings.normalize_features else graph


def _targets(arrays: Arrays, settings: TwitchSettings) -> Tensor:
    """The labels, or the logarithm of one more than the number of views."""
    if settings.target == LABELS_TARGET:
        return torch.from_numpy(np.stack([arrays[LABELS[name][0]] for name in settings.labels], 1).astype(np.float32))
    return torch.from_numpy(np.log1p(arrays["views"].astype(np.float64))[:, None].astype(np.float32))


TWITCH = TwitchDataset()
