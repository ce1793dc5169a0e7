"""Twitch: friendships of streamers in seven countries, each a party (MUSAE, Rozemberczki et al., 2021).

Features are games, location and habits as 3,170 binary columns, the same in all countries; the label is whether a streamer uses
mature language, or is a partner of the platform. The files `twitch/COUNTRY.npz` hold x in CSR parts, `edge_index` with every
friendship once, `y` (mature) and `partner`. They are not those of PyG's `Twitch`, whose 128 columns are learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import scipy.sparse as sp

from atoll.data.builder import build_graph, check_fold, row_normalize
from atoll.data.catalog import raw_folder
from atoll.data.natural import as_one_graph
from atoll.data.npz import read_npz
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.settings import setting

COUNTRIES = ("DE", "EN", "ES", "FR", "PT", "RU", "TW")
LABELS = {"mature": ("y", ("general", "mature")), "partner": ("partner", ("other", "partner"))}  # array, names of the classes


@dataclass(frozen=True)
class TwitchSettings:
    """What is predicted, and the scale of the features."""

    normalize_features: bool = setting(False, "Divide each node's features by their sum.")
    label: str = setting("mature", "What is predicted of a streamer: mature language, or partner.", choices=LABELS)


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
    except (ValueError, KeyError) as error:
        raise AtollError(f"{path} cannot be read ({error}); put a fresh copy there.") from error
    graph = build_graph(x, edges, y, where=str(path), num_classes=len(classes), class_names=classes)
    return row_normalize(graph) if settings.normalize_features else graph


TWITCH = TwitchDataset()
