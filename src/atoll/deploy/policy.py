"""What a site insists on, whatever the server asks; checked before anything that a configuration names is looked up."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from atoll import algorithms
from atoll.errors import AtollError
from atoll.models import user
from atoll.privacy.noise_settings import NoiseSettings
from atoll.privacy.releases import Budget
from atoll.runs.config import GIVEN, Config


@dataclass(frozen=True)
class SitePolicy:
    """The conditions under which a site takes part; by default there are none."""

    only: tuple[str, ...] = ()  # the algorithms it takes part in; empty for all
    secure: bool = False  # whether it requires secure aggregation
    secure_min: int = 3  # the fewest parties of a secure total
    dp_epsilon: float = 0.0  # the largest ε at `dp_delta`, per party, over all runs with the kit; 0 for no limit
    dp_delta: float = 1e-5
    simulated: bool = False  # on its user's own machine: it may load datasets that the configuration names
    files: tuple[str, ...] = ()  # the user's own algorithm and model files, in a simulation

    def check_document(self, document: Any, *, own_data: bool) -> None:
        """Refuse a configuration as received from the server, before anything that it names is looked up, imported or read."""
        if not isinstance(document, dict):
            raise AtollError("the server's configuration is not a table.")
        algorithm, run = document.get("algorithm"), document.get("run", {})
        if not isinstance(algorithm, str):
            raise AtollError("the server's configuration names no algorithm.")
        if self.only and algorithm not in self.only:
            raise AtollError(f"this site takes part in {', '.join(self.only)} only, not in {algorithm[:100]}.")
        if self.secure and not (isinstance(run, dict) and run.get("secure")):
            raise AtollError("this site insists on secure aggregation.")
        if algorithm not in algorithms.names() and not (self.simulated and algorithm in self.files):
            raise AtollError(
                f"the algorithm {algorithm[:100]!r} is not installed at this site, and none is loaded from the server."
            )
        models = [table["model"] for table in document.values() if isinstance(table, dict) and "model" in table]
        for model in models:
            if user.is_user_model(model) and not (self.simulated and model in self.files):
                raise AtollError(f"the model {model[:100]!r} is not installed at this site, and none is loaded from the server.")
        if own_data and document.get("dataset") != GIVEN:
            raise AtollError("this site has its own data and loads no other.")

    def check(self, config: Config) -> None:
        """Refuse a configuration that does not satisfy the policy."""
        if self.only and config.algorithm not in self.only:
            raise AtollError(f"this site takes part in {', '.join(self.only)} only, not in {config.algorithm}.")
        if self.secure and not config.run.secure:
            raise AtollError("this site insists on secure aggregation.")
        if self.dp_epsilon:
            self._check_noise(config.dp, config.split.split)

    @property
    def budget(self) -> Budget | None:
        """The privacy budget of the site over all its runs; None if it sets none."""
        return Budget(self.dp_epsilon, self.dp_delta) if self.dp_epsilon else None

    @staticmethod
    def _check_noise(dp: NoiseSettings, split: str) -> None:
        """Require noise, per party, on everything computed from the data that leaves."""
        wrong = ""
        if not dp.verb or not dp.clip or not dp.noise:
            wrong = "dp.verb, dp.clip and dp.noise must be set"
        elif dp.protected_unit != "party":
            wrong = "dp.protected_unit must be party"
        elif dp.fields:
            wrong = "dp.fields must be left out"
        elif not dp.evaluation_noise:
            wrong = "dp.evaluation_noise must be set, or evaluation reveals its counts"
        elif split in ("per_class", "stratified"):
            wrong = "split must be auto, public or random, or the number of training nodes reveals the size of each class"
        if wrong:
            raise AtollError(f"this site insists on differential privacy: {wrong}.")

    def min_total_parties(self, parties: int) -> int:
        """The fewest parties of a secure total; refuses a federation that has fewer."""
        if parties < self.secure_min:
            raise AtollError(
                f"this site takes part in secure totals of at least {self.secure_min} parties, but the federation has {parties}; "
                f"`atoll join --secure-min {parties}` lowers that."
            )
        return self.secure_min

    def to_json(self) -> str:
        """The policy as text, for the site's process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SitePolicy:
        """The policy that `to_json` wrote."""
        fields: dict[str, Any] = json.loads(text)
        values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        return cls(**values)
