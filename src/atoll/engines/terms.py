"""What a site insists on, whatever the server asks: checked before anything else of a configuration is used."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from atoll.config import Config
from atoll.errors import AtollError


@dataclass(frozen=True)
class Terms:
    """The terms under which a site takes part; by default it takes part in everything."""

    only: tuple[str, ...] = ()  # these algorithms; all where empty
    secure: bool = False  # under secure aggregation only
    secure_min: int = 3  # secure totals of at least as many parties

    def check(self, config: Config) -> None:
        """Refuse a configuration that does not meet the terms."""
        if self.only and config.algorithm not in self.only:
            raise AtollError(f"this site takes part in {', '.join(self.only)} only, not in {config.algorithm}.")
        if self.secure and not config.run.secure:
            raise AtollError("this site insists on secure aggregation.")

    def least(self, parties: int) -> int:
        """The fewest parties of a secure total, in a federation of so many."""
        if parties < self.secure_min:
            raise AtollError(
                f"this site takes part in secure totals of at least {self.secure_min} parties, and the federation has {parties}; "
                f"`atoll join --secure-min {parties}` lowers that."
            )
        return self.secure_min

    def to_json(self) -> str:
        """The terms as text, for the site's process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Terms:
        """What `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return cls(**values)
