"""The settings of GFL-APPNP."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.errors import AtollError
from atoll.settings import setting


@dataclass(frozen=True)
class Settings:
    """Which of the paper's experiments, the local steps and what is sent for them."""

    experiment: str = setting(
        "dnc",
        "dnc: one vector and one label per node; snc: several vectors, one label; sc: one label per vector.",
        choices=("dnc", "snc", "sc"),
        was="task",
    )
    local_steps: int = setting(10, "Steps between two rounds, I.", low=1, high=10**5)
    batch_size: int = setting(0, "Training vectors per step, redrawn at every step; 0 uses all of a party's.", low=0, high=10**9)
    compensation: str = setting(
        "full",
        "What parties send of the gradient of ĥ: all of it, all of it with Gaussian noise (V1), or nothing (V2).",
        choices=("full", "noisy", "none"),
    )
    share: str = setting(
        "all",
        "The vectors whose mean output is ĥ: all of a party's, or its training vectors where it has any (the authors').",
        choices=("all", "train"),
        since="0.2",
    )
    init: str = setting(
        "glorot",
        "First weights: by Glorot's rule, or by torch's for linear layers, as `centralized` draws them with the same seed.",
        choices=("glorot", "torch"),
        since="0.2",
    )
    encoding: str = setting(
        "jacobian", "Gradients as the paper's Jacobians, or as their factors, C times smaller.", choices=("jacobian", "factored")
    )
    joint_noise: bool = setting(
        True, "In one process, draw the summed noise directly instead of each party's: same distribution, far fewer numbers."
    )
    teleport: float = setting(0.1, "α, the teleport probability of the propagation.", low=0, high=1)
    steps: int = setting(10, "M, number of propagation steps; 0 ignores the graph (FedMLP).", low=0, high=10**5)
    hidden: int = setting(64, "Width of the hidden layers.", low=1, high=10**6)
    layers: int = setting(
        2, "Layers of the MLP; with 1 and teleport=0 the method is SGC's linear classifier.", low=1, high=100, since="0.2"
    )
    propagation: str = setting(
        "ppr",
        "Ã: personalized PageRank, or generalized PageRank, whose weights γ of the steps begin as that and are learned.",
        choices=("ppr", "gpr"),
        since="0.2",
    )
    propagation_lr: float = setting(0.05, "Learning rate of γ, one step per round (propagation=gpr).", low=0, since="0.2")
    lr: float = setting(0.5, "Learning rate, η.", low=0)
    weight_decay: float = setting(0.0, "L2 penalty on the weights.", low=0)

    def __post_init__(self) -> None:
        if self.encoding == "factored" and self.layers != 2:
            raise AtollError(f"encoding=factored is for an MLP of two layers, not of {self.layers}; use encoding=jacobian.")
        if self.compensation == "noisy" and self.encoding == "factored":
            raise AtollError("compensation=noisy puts noise on Jacobians, which then have no factors; use encoding=jacobian.")
