"""What the parties' data depends on."""

from __future__ import annotations

from typing import Any, Protocol

from atoll.data.damage import DamageSettings
from atoll.data.partition_settings import PartitionSettings
from atoll.data.splits import SplitSettings


class DataConfig(Protocol):
    """The part of a run's configuration that defines the parties' data."""

    @property
    def algorithm(self) -> str:
        """The algorithm, for error messages."""
        ...

    @property
    def dataset(self) -> str:
        """A known dataset, a path, or the name of a dataset given as an object."""
        ...

    @property
    def partition(self) -> str:
        """The kind of partition, or a file of node lists."""
        ...

    @property
    def parties(self) -> int | None:
        """The number of parties; None where the partition fixes it."""
        ...

    @property
    def seed(self) -> int:
        """The seed of everything random."""
        ...

    @property
    def data(self) -> Any:
        """The dataset's settings."""
        ...

    @property
    def partition_settings(self) -> PartitionSettings:
        """The partition's settings."""
        ...

    @property
    def noise(self) -> DamageSettings:
        """What is wrong with the graphs that the parties train on."""
        ...

    @property
    def borders(self) -> bool:
        """Whether the algorithm wants the edges between parties, known to both ends' owners."""
        ...

    @property
    def split(self) -> SplitSettings:
        """The split's settings."""
        ...
