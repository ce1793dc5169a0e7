"""The settings of nFedGNN, and of every method that splits a network between users and server."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.settings import setting

JOIN = ("mean", "initial", "neighbors", "start")


@dataclass(frozen=True)
class Split:
    """A network split between users and server: Section 4.1 and Appendix B."""

    model: str = setting("gcn", "The network that is split between users and server.", choices=("gcn", "gat", "sage", "gin"))
    hidden: int = setting(16, "Length of a user's latent vector, per head.", low=1, high=10**6)
    heads: int = setting(8, "Attention heads of gat; every user has separate weights for each.", low=1, high=1000)
    dropout: float = setting(0.5, "Dropout rate between the layers and, with gat, on the attention.", low=0, high=0.99)
    lr: float = setting(0.1, "Learning rate, on both sides.", low=0)
    weight_decay: float = setting(5e-4, "L2 penalty on the weights, on both sides; with adamw, decoupled decay.", low=0)
    optimizer: str = setting(
        "adam",
        "Optimizer of the users and of the server: adam, or adamw with decoupled decay.",
        choices=("adam", "adamw"),
        since="0.2",
    )
    moments: str = setting(
        "weight",
        "What users keep Adam's moments for: every weight, or the latent vector alone, which is enough with adamw or without "
        "weight decay and takes far less memory.",
        choices=("weight", "user"),
        since="0.2",
    )
    layers: int = setting(2, "Layers of the network; the users have a part of the first.", low=2, high=100, since="0.2")
    loss: str = setting(
        "mean", "Cross-entropy: a mean over the training nodes, or Eq. 3's sum.", choices=("mean", "sum"), since="0.2"
    )
    late: float = setting(
        0.0, "Share of the users, none with a training label, who join after training.", low=0, high=0.9, since="0.2"
    )
    join: str = setting(
        "mean",
        "What users who join late begin with: the mean of the others' weights, the initial ones, or vectors like their "
        "neighbors'; start: they are there from the start, for comparison.",
        choices=JOIN,
        since="0.2",
    )

    @property
    def width(self) -> int:
        """The length of x̄_i."""
        return self.hidden * {"gat": self.heads, "sage": 2}.get(self.model, 1)


@dataclass(frozen=True)
class Settings(Split):
    """The split network's, Eq. 7's λ, and how users start."""

    regularization: float = setting(
        100.0, "λ, how strongly the latent vectors of neighbors are pulled together.", low=0, was="regularisation"
    )
    initial_weights: str = setting(
        "shared", "Whether all users start with the same weights or each draws its own.", choices=("shared", "own"), was="first"
    )
    join: str = setting(
        "neighbors",
        "What users who join late begin with: vectors like their neighbors', the mean of the others' weights, or the initial "
        "ones; start: they are there from the start, for comparison.",
        choices=JOIN,
        since="0.2",
    )
    regularized: str = setting(
        "heads", "With gat, what λ pulls together: each head's vectors, or their mean.", choices=("heads", "mean"), since="0.2"
    )
