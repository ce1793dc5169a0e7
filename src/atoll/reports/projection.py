"""Vectors in the plane: the one t-SNE of reports and papers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def in_plane(hidden: NDArray[np.float64], method: str, *, perplexity: float = 30.0, seed: int = 0) -> NDArray[np.float64]:
    """Two dimensions by PCA, or by t-SNE (van der Maaten and Hinton, 2008) of the first fifty principal components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    hidden = hidden + 1e-9 * np.random.default_rng(0).standard_normal(hidden.shape)  # no two rows are equal
    nodes, width = hidden.shape
    if width < 2 or nodes < 3:
        return np.pad(hidden, ((0, 0), (0, max(0, 2 - width))))[:, :2]
    if method == "pca" or nodes < 10:
        return np.asarray(PCA(2, random_state=0).fit_transform(hidden))
    first = PCA(min(50, width, nodes), random_state=0).fit_transform(hidden)
    tsne = TSNE(init="pca", perplexity=min(perplexity, (nodes - 1) / 3), max_iter=500, random_state=seed)
    return np.asarray(tsne.fit_transform(first), dtype=np.float64)
