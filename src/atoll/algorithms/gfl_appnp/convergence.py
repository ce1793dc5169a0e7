"""The constants of GFL-APPNP's Theorem 4.1 and Corollary 4.2, measured at one model: what the assumptions bound, on real data.

Assumptions hold for all W; here they are measured at W̄ and along one round of local steps from it, so every constant is a lower
bound of the theorem's. F_k is the mean loss over party k's training vectors; parties without any have none and are left out of
the sums over parties, and the graph of Assumption 3 is that of the others. Local steps use all training vectors and no noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.compensation import to_means
from atoll.algorithms.gfl_appnp.propagation import Propagation, connectivity
from atoll.algorithms.gfl_appnp.settings import Settings
from atoll.algorithms.gfl_appnp.vectors import training_vectors
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.stages import tracked

MAX_WORK = 10**11  # multiplications of one Jacobian per training party
MAX_MATRIX = 4000  # parties whose Laplacian is decomposed


@dataclass(frozen=True)
class Quantity:
    """One line of the report."""

    symbol: str
    value: float
    meaning: str


class Objective:
    """F_k of the K parties that train, as functions of their own weights and of the weights behind the others' ĥ."""

    def __init__(self, graph: Graph, shared: Graph, propagation: Propagation, training: Tensor) -> None:
        self.graph, self.shared, self.training = graph, shared, training
        self.x = graph.dense_features((graph.train & (graph.y >= 0)).nonzero()[:, 0]).double()
        self.y = graph.y[graph.train & (graph.y >= 0)]
        self.party = graph.party[graph.train & (graph.y >= 0)]
        self.shared_x = shared.dense_features(torch.arange(shared.num_nodes)).double()
        rows = propagation.columns(training).t().double()
        self.own = rows[torch.arange(len(training)), training].clone()  # Ã_kk
        rows[torch.arange(len(training)), training] = 0
        self.others = rows  # A_o

    def hidden(self, weights: list[Tensor]) -> Tensor:
        """(N, C) every party's mean output."""
        return to_means(outputs(self.shared_x, weights), self.shared)

    def gradient(
        self, k: int, own: list[Tensor], other: list[Tensor], compensated: bool = True, row: int | None = None
    ) -> Tensor:
        """φ_k = (ŷ − y)(Ã_kk·∇h(own) + ∇C_k(other)), flat: the mean over party k's training vectors, or of one of them."""
        index = (self.party == self.training[k]).nonzero()[:, 0]
        index = index if row is None else index[row : row + 1]
        own, other = ([w.detach().requires_grad_() for w in weights] for weights in (own, other))
        here, context = outputs(self.x[index], own), self.others[k] @ self.hidden(other)
        targets = torch.nn.functional.one_hot(self.y[index], here.shape[1])
        errors = ((self.own[k] * here + context).softmax(1) - targets).detach() / len(index)
        grads = torch.autograd.grad((errors * self.own[k] * here).sum(), own)
        if not compensated:
            return flat(grads)
        return flat(grads) + flat(torch.autograd.grad((errors.sum(0) * context).sum(), other))

    def exact(self, k: int, weights: list[Tensor]) -> Tensor:
        """∇F_k(W)."""
        return self.gradient(k, weights, weights)

    def count(self, k: int) -> int:
        """n_k."""
        return int((self.party == self.training[k]).sum())


def outputs(x: Tensor, weights: list[Tensor]) -> Tensor:
    """relu(x·W₁)·W₂."""
    return (x @ weights[0]).relu() @ weights[1]


def flat(tensors: tuple[Tensor, ...] | list[Tensor]) -> Tensor:
    """All numbers in one vector."""
    return torch.cat([tensor.flatten() for tensor in tensors])


def theory(graph: Graph, public: Mapping[str, Any], state: Mapping[str, Any], settings: Settings, rounds: int) -> list[Quantity]:
    """The constants at the state's model, and the terms of the bounds after `rounds`; `public` is what the server knows."""
    edge_index, shared = public["edge_index"], graph if settings.share == "all" else training_vectors(graph)
    training = torch.unique(graph.party[graph.train & (graph.y >= 0)])
    if settings.layers != 2:
        raise AtollError(f"The constants are known for an MLP of two layers, but this run's has layers={settings.layers}.")
    if settings.propagation != "ppr":
        raise AtollError("The constants are known for a fixed propagation, but this run's has propagation=gpr.")
    weights = [value.double() for value in state["model"].values()]
    work = shared.num_nodes * sum(value.numel() for value in weights) * len(training) * settings.local_steps
    if work > MAX_WORK or graph.parties > MAX_MATRIX:
        raise AtollError(
            f"The constants of {graph.parties:,} parties, {len(training):,} of them training, would take too long; "
            "choose a run with fewer parties, training nodes, features or local steps."
        )
    propagation = Propagation(edge_index, graph.parties, settings.teleport, settings.steps)
    objective = Objective(graph, shared, propagation, training)
    measured = _along_a_round(objective, weights, settings)
    return _report(graph, training, edge_index, measured, settings, rounds * settings.local_steps)


@dataclass(frozen=True)
class RoundMeasurement:
    """What one round of local steps from W̄ shows."""

    gradients: Tensor  # (K, w) ∇F_k(W̄)
    variance: float  # σ_G²
    error: float  # σ_H²
    largest: Tensor  # (K,) Δ_k
    lipschitz: float  # ρ_h
    smooth: float  # ρ_f
    smooth_hidden: float  # ρ_φ


def _along_a_round(objective: Objective, weights: list[Tensor], s: Settings) -> RoundMeasurement:
    count, compensated = len(objective.training), s.compensation != "none"
    gradients = torch.stack([objective.exact(k, weights) for k in range(count)])
    before = objective.hidden(weights)  # ĥ
    variance, largest = 0.0, torch.zeros(count, dtype=torch.float64)
    worst = torch.zeros(len(before), dtype=torch.float64)  # σ_j²
    smooth = smooth_hidden = 0.0
    for k in tracked(range(count), "Local steps of the training parties", count):
        each = torch.stack([objective.gradient(k, weights, weights, row=row) for row in range(objective.count(k))])
        variance += float((each - gradients[k]).square().sum(1).mean())
        largest[k] = each.square().sum(1).max()
        local = weights
        for step in range(s.local_steps):
            if step:  # the first step is taken at W̄ itself, where ĥ is exact
                error = (objective.hidden(local) - before).square().sum(1)
                error[objective.training[k]] = 0  # its own vectors are evaluated with its own weights
                worst = torch.maximum(worst, error)
            taken = objective.gradient(k, local, weights, compensated=compensated)
            local = _moved(local, taken, s)
        moved = float((flat(local) - flat(weights)).norm())
        exact = objective.exact(k, local)
        smooth = max(smooth, float((exact - gradients[k]).norm()) / moved) if moved else smooth
        drift = float((objective.hidden(local) - before).square().sum().sqrt())
        biased = objective.gradient(k, local, weights)
        smooth_hidden = max(smooth_hidden, float((exact - biased).norm()) / drift) if drift else smooth_hidden
    return RoundMeasurement(
        gradients, variance, float(worst.sum()), largest, _lipschitz(objective, weights), smooth, smooth_hidden
    )


def _moved(weights: list[Tensor], gradient: Tensor, s: Settings) -> list[Tensor]:
    parts = torch.split(gradient, [value.numel() for value in weights])
    return [(1 - s.lr * s.weight_decay) * value - s.lr * part.view_as(value) for value, part in zip(weights, parts, strict=True)]


def _lipschitz(objective: Objective, weights: list[Tensor]) -> float:
    """ρ_h at W: the largest singular value of ∂h/∂W over all vectors; its square is λ_max(‖x‖²·W₂ᵀ·diag(m)·W₂ + ‖r‖²·I)."""
    x = torch.cat([objective.x, objective.shared_x])
    inner = (x @ weights[0]).relu()
    products = torch.einsum("su,uc,ud->scd", (inner > 0).double(), weights[1], weights[1])
    own = inner.square().sum(1)[:, None, None] * torch.eye(weights[1].shape[1], dtype=torch.float64)
    return float(torch.linalg.eigvalsh(x.square().sum(1)[:, None, None] * products + own)[:, -1].max().sqrt())


def _report(graph: Graph, training: Tensor, edges: Tensor, m: RoundMeasurement, s: Settings, updates: int) -> list[Quantity]:
    """The constants, and the terms of both bounds without their unnamed factors."""
    index = torch.full((graph.parties,), -1).index_copy_(0, training, torch.arange(len(training)))
    among = index[edges][:, (index[edges] >= 0).all(0)]
    once = torch.unique(among.sort(0).values, dim=1)
    heterogeneity = float((m.gradients[once[0]] - m.gradients[once[1]]).square().sum())  # κ²
    n, steps, eta = len(training), s.local_steps, s.lr
    spread = connectivity(among, n) if n > 1 else float("inf")
    condition = 13 * m.smooth**2 * steps * eta**2
    scale = steps**2 * eta**2
    return [
        Quantity("N", n, f"parties that train, of {graph.parties}"),
        Quantity("λ_max(B_N·L†)", spread, "connectivity of their graph, 1 / (N·λ₂); infinite where it is not connected"),
        Quantity("λ_max(B_N·L†), all", connectivity(edges, graph.parties), "connectivity of the graph of all parties"),
        Quantity("‖∇F(W̄)‖²", float(m.gradients.mean(0).square().sum()), "what the theorem bounds the mean of, at this model"),
        Quantity("κ²", heterogeneity, "Assumption 3: Σ ‖∇F_i − ∇F_j‖² over edges"),
        Quantity("σ_H²", m.error, "Assumption 2: Σ_j max_k ‖ĥ_j→k − h_j‖² during the local steps"),
        Quantity("σ_G²", m.variance, "Assumption 4: Σ_k variance of the gradient over k's training vectors"),
        Quantity("ρ_f", m.smooth, "Assumption 1: smoothness of F_k, between W̄ and W_k"),
        Quantity("ρ_φ", m.smooth_hidden, "Assumption 4: gradient error per error of ĥ"),
        Quantity("ρ_h", m.lipschitz, "Assumption 5: Lipschitz constant of the MLP in its weights"),
        Quantity("Δ", float(m.largest.sum()), "Assumption 6: Σ_k largest squared gradient"),
        Quantity("2η²ρ_h²I²Δ", 2 * scale * m.lipschitz**2 * float(m.largest.sum()), "Lemma A.1's bound of σ_H²"),
        Quantity("13ρ_f²Iη²", condition, "must be below 1 for Theorem 4.1" + ("" if condition < 1 else ": it is not")),
        Quantity("1/(ηT)", 1 / (eta * updates) if eta else float("inf"), f"Theorem 4.1, T = {updates} updates"),
        Quantity("I²η²σ_G²/N", scale * m.variance / n, "Theorem 4.1"),
        Quantity("I²η²σ_H²", scale * m.error, "Theorem 4.1"),
        Quantity("I²η²κ²λ/N", scale * heterogeneity * spread / n if heterogeneity else 0.0, "Theorem 4.1"),
        Quantity("1/√(NT)", (n * updates) ** -0.5, "Corollary 4.2, with η = √(N/T)"),
        Quantity("NI²/T", n * steps**2 / updates, "Corollary 4.2"),
        Quantity("λI²/T", spread * steps**2 / updates, "Corollary 4.2"),
    ]
