"""Weights of many users with one feature vector each, kept only where a user's feature is not zero.

A row of W_i whose feature is zero at user i never touches x_i·W_i and gets no gradient: leaving it out changes nothing.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from .errors import AtollError
from .graph import Graph
from .kernels import csr, multiply
from .random import Streams


class Entries:
    """The E stored features of N users, one vector each: entry e is `value[e]` at feature `feature[e]` of user `user[e]`."""

    def __init__(self, graph: Graph) -> None:
        if graph.parties != graph.num_nodes:
            party = int((graph.ptr.diff() != 1).nonzero()[0])
            raise AtollError(
                f"Party {party} has {int(graph.ptr[party + 1] - graph.ptr[party])} feature vectors but users here have one each; "
                "use --partition node and data with one sample a node."
            )
        stored = graph.stored
        self.users, self.features = stored.shape
        self.starts = torch.from_numpy(stored.indptr.astype(np.int64))
        self.feature = torch.from_numpy(stored.indices.astype(np.int64))
        self.value = torch.from_numpy(stored.data)
        places = np.arange(len(stored.data))
        self.matrix = csr(type(stored)((stored.data, places, stored.indptr), shape=(self.users, len(places))))

    @cached_property
    def user(self) -> Tensor:
        """(E,) whose feature an entry is."""
        return torch.repeat_interleave(torch.arange(self.users), self.starts.diff())

    def product(self, rows: Tensor) -> Tensor:
        """(E, h) → (N, h): x_i·W_i = Σ_f x_if·W_if of every user."""
        return multiply(self.matrix, rows)

    def outer(self, gradient: Tensor) -> Tensor:
        """(N, h) → (E, h): the gradient x_if·g_i of every kept row."""
        return gradient.index_select(0, self.user).mul_(self.value[:, None])


class Weights(nn.Module):
    """The kept rows (E, h) of the users' weights (N, d, h)."""

    def __init__(self, entries: Entries, width: int) -> None:
        super().__init__()
        self.entries = entries
        self.rows = nn.Parameter(torch.zeros(len(entries.value), width), requires_grad=False)

    def share(self, weight: Tensor) -> None:
        """Every user starts with the same weight (d, h)."""
        torch.index_select(weight, 0, self.entries.feature, out=self.rows.data)

    def draw(self, streams: Streams, bound: float) -> None:
        """Every user draws its own W_i from U(−bound, bound); only the kept rows are made."""
        width = self.rows.shape[1]
        self.rows.data = streams.rows(self.entries.user, self.entries.feature, width, low=-bound, high=bound)
