"""FedSpray's settings, and the recipes that its text and its authors' code make of them."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from atoll.errors import AtollError
from atoll.settings import BatchedTraining, setting


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The paper's settings, and what its text and its authors' code do differently, all of it by `variant` or one by one."""

    soft_target_weight: float = setting(
        5.0, "Weight of the soft targets in a GNN's loss; 0 is Local.", low=0, was="lambda1"
    )  # λ₁
    belief_weight: float = setting(1.0, "Weight of a GNN's beliefs in the encoder's loss.", low=0, was="lambda2")  # λ₂
    proxy_dim: int = setting(64, "Width of the feature embeddings and of the structure proxies.", low=1, high=10**6)  # d_s
    proxy_lr: float = setting(0.02, "Learning rate of the structure proxies.", low=0)
    proxies: bool = setting(True, "Learn structure proxies; if false, they stay zero (S = 0).")
    variant: str = setting(
        "default",
        "Which recipe: the most accurate on all and minority validation nodes, Algorithm 1 to the letter, or the authors' code.",
        choices=("default", "paper", "authors"),
    )
    confidence: float | None = setting(
        None,
        "Distill on unlabeled nodes whose projected class has a higher probability than this (default: the variant's).",
        low=0,
        high=1,
    )
    refresh_proxies: bool | None = setting(
        None, "Labeled nodes take the server's proxies every round instead of keeping their own (default: the variant's)."
    )
    tie_projector: bool | None = setting(
        None, "Start the projector of every round's second phase from the classifier (default: the variant's)."
    )
    initial_proxies: str | None = setting(
        None,
        "The server's initial proxies: zero, or 0.01 times the class index (default: the variant's).",
        choices=("zero", "class"),
        was="first_proxies",
    )
    initial_proxy_value: float | None = setting(
        None, "Initial value of the proxies that labeled nodes keep (default: the variant's).", was="proxy_start"
    )
    encoder_init: str | None = setting(
        None,
        "Bound of the initial encoder weights: 1/√inputs, as in torch's linear layers, or 1/√outputs (default: the variant's).",
        choices=("inputs", "outputs"),
    )
    uniform_weights: bool | None = setting(None, "Draw a GNN's initial weights from U(0, 1) (default: the variant's).")
    combine: str = setting(
        "add",
        "How the classifier takes a node's embedding and its structure proxy: their sum, or side by side.",
        choices=("add", "concat"),
        since="0.2",
    )
    models: tuple[str, ...] = setting(
        (), "Backbones by party, in turn: the k-th party has the k-th, then again from the first; empty: `model`.", since="0.2"
    )


@dataclass(frozen=True)
class Recipe:
    """The switches of a variant; the fields are those of `Settings`."""

    confidence: float
    refresh_proxies: bool
    tie_projector: bool
    initial_proxies: str
    initial_proxy_value: float
    encoder_init: str
    uniform_weights: bool


RECIPES = {
    "paper": Recipe(0.0, True, False, "zero", 0.0, "inputs", False),  # Algorithm 1 does not say how ω, S and θ begin
    "authors": Recipe(0.7, False, True, "class", 0.1, "outputs", True),
    "default": Recipe(0.8, False, False, "class", 0.1, "outputs", True),
}


def recipe(settings: Settings) -> Recipe:
    """The variant's switches, those that were set by hand replaced."""
    given = {field.name: getattr(settings, field.name) for field in fields(Recipe)}
    chosen = replace(RECIPES[settings.variant], **{name: value for name, value in given.items() if value is not None})
    if chosen.tie_projector and settings.combine == "concat":
        raise AtollError(
            "fedspray: with combine=concat the classifier is wider than the projector, which cannot begin as its copy; "
            "set tie_projector=false."
        )
    if not settings.proxies:
        chosen = replace(chosen, initial_proxies="zero", initial_proxy_value=0.0)
    return (
        chosen if settings.soft_target_weight else replace(chosen, uniform_weights=False)
    )  # λ₁ = 0 is Local: it begins as Local does
