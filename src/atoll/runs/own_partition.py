"""A partition that a script gave as an object: its node lists lie in the run's folder, where config.toml names them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from atoll.data.builder import Ints
from atoll.data.node_lists import write_node_lists
from atoll.runs.config import Config

PARTITION = "partition.npz"
NodeLists: TypeAlias = Sequence[Ints] | None  # None where the configuration names the partition


def store(folder: Path, node_lists: NodeLists) -> None:
    """Write the node lists, where there are any."""
    if node_lists is not None:
        write_node_lists(folder / PARTITION, node_lists)


def located(config: Config, folder: Path) -> Config:
    """The configuration with the path of the node lists, wherever the run's folder is now."""
    stored = folder / PARTITION
    return replace(config, partition=str(stored)) if config.partition == PARTITION and stored.is_file() else config


def unlocated(config: Config, folder: Path | None) -> Config:
    """The configuration as config.toml has it."""
    located = folder is not None and config.partition == str(folder / PARTITION)
    return replace(config, partition=PARTITION) if located else config
