"""What a run's configuration says about noise (`dp.…`), and what one noised reply costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll.errors import AtollError
from atoll.settings import setting

EVALUATE = "evaluate"  # the verb whose replies are counts
MIN_NOISE = 2.0**-10  # below it, squared steps would overflow 64 bits; ε is above a million by then
MIN_CLIP = 1e-30  # below it, squares would underflow in double precision


@dataclass(frozen=True)
class NoiseSettings:
    """What is noised, and how much; without a verb nothing is."""

    verb: str = setting("", "The verb whose replies are clipped and noised; empty means none.")
    fields: tuple[str, ...] = setting(
        (), "The reply's fields, by the first part of their name; empty means all that are not integers."
    )
    clip: float = setting(
        1.0,
        "The norm C to which a reply (or each row, with protected_unit=row) is clipped; 0 does not clip and guarantees nothing.",
        low=0,
        high=1e30,
    )
    noise: float = setting(1.0, "Standard deviation of the noise, in units of the clip if there is one.", low=0, high=1e12)
    protected_unit: str = setting(
        "party", "What is protected: all of a party's data, or one row of the reply.", choices=("party", "row"), was="unit"
    )
    delta: float = setting(1e-5, "The δ of the (ε, δ) guarantee in the history.", low=1e-15, high=0.5)
    noise_source: str = setting(
        "seed",
        "Where noise comes from: the run's seed (repeatable, but whoever knows the seed knows the noise) or the system.",
        choices=("seed", "system"),
        was="source",
    )
    evaluation_noise: float = setting(
        0.0,
        "Noise on each party's evaluation counts, in units of evaluation_clip; 0 adds none.",
        low=0,
        high=1e12,
        was="evaluation",
    )
    evaluation_clip: float = setting(1.0, "The norm to which each party's evaluation counts are clipped.", low=1e-6, high=1e12)

    def __post_init__(self) -> None:
        for name, value in (("noise", self.noise if self.clip else 0.0), ("evaluation_noise", self.evaluation_noise)):
            if 0 < value < MIN_NOISE:
                raise AtollError(f"dp.{name} is {value:g}, which hides nothing; use at least {MIN_NOISE:g}, or 0 for none.")
        if 0 < self.clip < MIN_CLIP:
            raise AtollError(f"dp.clip is {self.clip:g}, which leaves nothing; use at least {MIN_CLIP:g}, or 0 for no clip.")
        if self.evaluation_noise and self.verb == EVALUATE:
            raise AtollError("dp.evaluation_noise noises the replies of 'evaluate' already; let dp.verb name another verb.")

    @property
    def active(self) -> bool:
        """Whether anything is noised."""
        return bool(self.verb or self.evaluation_noise)

    @property
    def cost(self) -> float:
        """ρ of one reply of the verb; infinite without a clip or noise."""
        return cost_of(self.noise) if self.clip else math.inf


def cost_of(noise: float) -> float:
    """ρ of one reply with noise of this multiplier: (2·C)² / 2·(noise·C)²."""
    return 2.0 / noise**2 if noise else math.inf
