"""What a run's settings were tuned by: the table [tuned] of its config.toml, so that a run read back says that it was tuned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from atoll.errors import AtollError

TABLE = "tuned"
KINDS = {"trials": int, "seeds": list, "sampler": str, "sampler_seed": int, "objective": str, "sha256": str}
KINDS |= {"values": dict, "space": dict, "data": dict}


@dataclass(frozen=True)
class TunedBy:
    """The choice that a run's settings rest on, without its trials."""

    trials: int
    seeds: tuple[int, ...]  # that the values were chosen on
    sampler: str
    sampler_seed: int
    objective: str  # the metric of validation nodes
    sha256: str  # of tuned.json
    values: Mapping[str, Any]
    space: Mapping[str, Any]
    data: Mapping[str, Any]  # data, budget and model of the trials

    def to_dict(self) -> dict[str, Any]:
        """The table in config.toml."""
        return asdict(self) | {"seeds": list(self.seeds)}

    def brief(self) -> dict[str, Any]:
        """For result.json, which has the run's own data beside it."""
        return {name: value for name, value in self.to_dict().items() if name != "data"}

    @property
    def budget(self) -> str:
        """For instance `20 trials on the seeds 1000, 1001`."""
        seeds = f"the seeds {', '.join(map(str, self.seeds))}" if len(self.seeds) > 1 else f"the seed {self.seeds[0]}"
        return f"{self.trials} trial{'s' if self.trials > 1 else ''} on {seeds}"

    def holds_for(self, settings: Any) -> bool:
        """Whether the settings of an algorithm and its model are still the chosen ones."""
        for full, value in self.values.items():
            group, _, name = full.rpartition(".")
            now = getattr(getattr(settings, "architecture", None) if group == "model" else settings, name, value)
            if (list(now) if isinstance(now, tuple) else now) != value:
                return False
        return True


def read_tuned_by(table: Any, where: str) -> TunedBy | None:
    """The table of a config.toml; None where there is none."""
    if table is None:
        return None
    if not isinstance(table, dict) or not all(isinstance(table.get(name), kind) for name, kind in KINDS.items()):
        raise AtollError(f"{where} has a damaged table [{TABLE}]; restore it, or delete the table.")
    seeds = table["seeds"]
    if not seeds or not all(isinstance(seed, int) and not isinstance(seed, bool) for seed in seeds):
        raise AtollError(f"{where}: seeds of [{TABLE}] must be whole numbers; restore it, or delete the table.")
    named = {field.name: table[field.name] for field in fields(TunedBy)}
    return TunedBy(**named | {"seeds": tuple(seeds)})
