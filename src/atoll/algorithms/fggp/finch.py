"""FINCH: Sarfraz et al., CVPR 2019. Clusters without a given number of them: rows that share a nearest neighbor form one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def finch(rows: Tensor, *, last: bool = True) -> Tensor:
    """(R,) the cluster of each row: of the last partition before there is one cluster only, or of the first partition.

    Clusters are the components of the graph that joins each row to the one with the largest cosine; their means are clustered
    again. A single cluster at once is kept.
    """
    labels = components(rows)
    while last:
        means = cluster_means(rows, labels)
        above = components(means)
        if len(means) < 2 or int(above.max()) in (0, len(means) - 1):
            break
        labels = above[labels]
    return labels


def components(rows: Tensor) -> Tensor:
    """(R,) the components of the 1-nearest-neighbor graph by cosine, numbered by their first rows."""
    count = len(rows)
    if count < 2:
        return torch.zeros(count, dtype=torch.int64)
    unit = F.normalize(rows, dim=1)
    nearest = (unit @ unit.t()).fill_diagonal_(-torch.inf).argmax(1)
    labels, before = torch.arange(count), torch.full((count,), -1)
    while not torch.equal(labels, before):  # each takes the lowest number of those it is joined to
        before = labels
        lowest = torch.minimum(labels, labels[nearest])
        labels = lowest.scatter_reduce(0, nearest, lowest, "amin")
    numbered: Tensor = labels.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
    return numbered


def cluster_means(rows: Tensor, labels: Tensor) -> Tensor:
    """(K, h) the mean of each cluster's rows."""
    count = int(labels.max()) + 1 if len(labels) else 0
    sums = rows.new_zeros(count, rows.shape[1]).index_add(0, labels, rows)
    return sums / torch.bincount(labels, minlength=count)[:, None]
