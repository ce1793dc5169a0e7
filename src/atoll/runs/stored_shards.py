"""A run's configuration where its dataset is a folder of shards: defaults are those of what the shards were cut from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.data.catalog import DataSettings
from atoll.data.manifest import Manifest, is_sharded
from atoll.data.partition_settings import PartitionSettings
from atoll.data.registry import lookup
from atoll.data.shard_writer import write_shards
from atoll.data.sharded import SHARDS
from atoll.data.splits import SplitSettings
from atoll.errors import AtollError
from atoll.runs.data_task import task_of_manifest

if TYPE_CHECKING:
    from atoll.data.federated_data import FederatedData
    from atoll.runs.config import Config

ORIGIN = ("dataset", "partition", "parties", "seed", "partition_settings", "split", "data")  # what makes the parties' data
GROUPS: dict[str, type] = {"partition": PartitionSettings, "split": SplitSettings, "data": DataSettings}  # fixed by the cut


@dataclass(frozen=True)
class StoredShards:
    """The shards that a dataset's name stands for."""

    dataset: str
    manifest: Manifest
    partition: str = SHARDS

    @property
    def asked(self) -> dict[str, Any]:
        """What decides the defaults: the dataset that was cut, and the partition, where its user chose one."""
        origin = self.manifest.origin
        return {"dataset": origin["dataset"]} | ({"partition": origin["asked"]} if origin.get("asked") else {})

    @property
    def scaled(self) -> bool:
        """Whether columns that are still to be encoded are to be scaled then, as where they were cut."""
        later = any(name.endswith("table.npy") for name in self.manifest.files)
        return later and bool(self.manifest.origin.get("data", {}).get("normalize_features", False))

    def without_data(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults without those of the partition, the split and the dataset, which are done."""
        done = {"partition", "parties", *(field.name for group in GROUPS.values() for field in fields(group))} - {"target"}
        kept = {name: value for name, value in chosen.items() if name.rpartition(".")[2] not in done}
        return kept | ({"normalize_features": True} if self.scaled else {})


def check_fixed(stored: StoredShards | None, built: Mapping[str, Any]) -> None:
    """Refuse settings of what is done where the dataset is shards."""
    if stored is None:
        return
    expected = {name: group() for name, group in GROUPS.items()}
    budget = built["data"].memory_budget
    kept = {"memory_budget": budget, "target": built["data"].target}
    expected["data"] = replace(expected["data"], normalize_features=stored.scaled, **kept)
    for group, wanted in expected.items():
        for name in (field.name for field in fields(wanted)):
            value, fixed = getattr(built[group], name), getattr(wanted, name)
            if value != fixed:
                raise AtollError(
                    f"{name} is {value!r}, but {stored.dataset} holds shards, which are cut and split already; leave it out, or "
                    "give it to `atoll partition`."
                )


def require_task(stored: StoredShards | None, task: object) -> None:
    """Refuse another task than that which shards were cut for: their splits are of its items."""
    if stored is not None and task != (own := task_of_manifest(stored.manifest)):
        raise AtollError(f"The task is {task}, but {stored.dataset} holds shards for {own}; leave it out, or cut again.")


def shards_of(dataset: str, partition: str | None) -> StoredShards | None:
    """The shards that a dataset's name stands for; None where it is something else, or its folders are read as parties' own."""
    if lookup(dataset) is not None or not is_sharded(dataset) or partition == "files":
        return None
    if partition not in (None, SHARDS):
        raise AtollError(
            f"{dataset} holds shards, which are cut already; leave --partition out (files reads them as folders of the parties)."
        )
    return StoredShards(dataset, Manifest.read(Path(dataset).expanduser()))


def cut(config: Config, data: FederatedData, folder: Path, asked: str | None = None) -> Manifest:
    """Write the data of a configuration as shards; `asked` is the partition that its user chose, where it is not a default."""
    origin = {name: value for name, value in config.to_dict().items() if name in ORIGIN}
    return write_shards(data, folder, origin | {"asked": asked or "", "task": config.run.task})
