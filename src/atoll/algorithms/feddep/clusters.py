"""Clusters of one party's embeddings: k-means, or deep clustering (DEC: Xie et al., ICML 2016) of an autoencoder's codes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.algorithms.feddep.settings import Settings
from atoll.graphs.blocks import Blocks
from atoll.models import optim
from atoll.models.layers import Dense
from atoll.random import Draws

MAX_STEPS = 50  # of k-means
LEAST = 1e-12  # of a share whose logarithm is taken


class Prototypes:
    """What a party's nodes are replaced by.

    Attributes:
        cluster: (N,) the cluster of each node.
        means: (K, z) the mean embedding of each cluster; zeros for an empty one.
        sizes: (K,) its nodes.
    """

    def __init__(self, rows: Tensor, cluster: Tensor, count: int) -> None:
        self.cluster = cluster
        sums = rows.new_zeros(count, rows.shape[1]).index_add(0, cluster, rows)
        self.sizes = torch.bincount(cluster, minlength=count)
        self.means = sums / self.sizes.clamp(min=1)[:, None]


def prototypes(rows: Tensor, settings: Settings, draws: Draws) -> Prototypes:
    """Cluster one party's embeddings (N, z)."""
    count = settings.num_prototypes
    if settings.clustering == "kmeans":
        return Prototypes(rows, nearest(rows, kmeans(rows, count, draws)), count)
    return Prototypes(rows, DeepClustering(rows, settings, draws).run(), count)


def kmeans(rows: Tensor, count: int, draws: Draws) -> Tensor:
    """(K, z) centers, at most as many as there are rows: first ones far from each other (k-means++), then Lloyd's steps."""
    (source,) = draws.generators
    index = [int(torch.randint(len(rows), (1,), generator=source))]
    while len(index) < min(count, len(rows)):
        far = squared_distances(rows, rows[torch.tensor(index).to(rows.device)]).amin(1).cpu()
        left = float(far.sum()) > 0  # else all rows are the same as one of them
        index.append(int(torch.multinomial(far if left else torch.ones_like(far), 1, generator=source)))
    centers = rows[torch.tensor(index).to(rows.device)]
    for _ in range(MAX_STEPS):
        made = Prototypes(rows, nearest(rows, centers), len(centers))
        moved = torch.where(made.sizes[:, None] > 0, made.means, centers)
        if torch.equal(moved, centers):
            break
        centers = moved
    return centers


def nearest(rows: Tensor, centers: Tensor) -> Tensor:
    """(N,) the nearest center of each row."""
    return squared_distances(rows, centers).argmin(1)


def squared_distances(rows: Tensor, centers: Tensor) -> Tensor:
    """(N, K) ‖x_i − μ_c‖²."""
    products = rows @ centers.t()
    return (rows.square().sum(1, keepdim=True) - 2 * products + centers.square().sum(1)).clamp(min=0)


class DeepClustering:
    """A denoising autoencoder z → code → z; then codes and centers descend KL(P ‖ Q), Q soft assignments, P sharper ones."""

    def __init__(self, rows: Tensor, settings: Settings, draws: Draws) -> None:
        width, code = rows.shape[1], settings.code_width
        self.rows, self.settings, self.draws = rows, settings, draws
        self.blocks = Blocks([len(rows)], rows.device)
        self.encoder, self.decoder = (Dense(1, *pair, draws).to(rows.device) for pair in ((width, code), (code, width)))

    def run(self) -> Tensor:
        """(N,) clusters."""
        s = self.settings
        both = nn.ModuleList([self.encoder, self.decoder])
        optimizer = optim.Adam(both, s.encoder_lr)
        for _ in range(s.code_epochs):
            kept = self.draws.keep(1 - s.code_noise, [len(self.rows)], self.rows.shape[1])
            restored = self.decoder(self.encode(self.rows * kept), self.blocks)
            optim.descend(optimizer, (restored - self.rows).square().mean())
        with torch.no_grad():
            centers = nn.ParameterDict({"centers": kmeans(self.encode(self.rows), s.num_prototypes, self.draws)[None]})
        optimizer = optim.Adam(nn.ModuleList([self.encoder, centers]), s.encoder_lr)
        for _ in range(s.code_epochs):
            shares = self.shares(centers["centers"][0])
            optim.descend(optimizer, divergence(sharpened(shares.detach()), shares))
        with torch.no_grad():
            return self.shares(centers["centers"][0]).argmax(1)

    def encode(self, rows: Tensor) -> Tensor:
        """(N, code)."""
        code: Tensor = self.encoder(rows, self.blocks)
        return code

    def shares(self, centers: Tensor) -> Tensor:
        """(N, K) q_ic ∝ 1 / (1 + ‖code_i − μ_c‖²), Student's t with one degree of freedom."""
        near = 1 / (1 + (self.encode(self.rows)[:, None] - centers).square().sum(2))
        return near / near.sum(1, keepdim=True)


def sharpened(shares: Tensor) -> Tensor:
    """(N, K) p_ic ∝ q_ic² / Σ_i q_ic."""
    squared = shares.square() / shares.sum(0)
    return squared / squared.sum(1, keepdim=True)


def divergence(wanted: Tensor, shares: Tensor) -> Tensor:
    """Mean over rows of KL(P ‖ Q)."""
    return (wanted * (wanted.clamp(min=LEAST).log() - shares.clamp(min=LEAST).log())).sum(1).mean()
