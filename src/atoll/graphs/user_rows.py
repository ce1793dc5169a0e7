"""Weights of many users with one feature vector each, kept only where a user's feature is not zero.

A row of W_i whose feature is zero at user i never touches x_i·W_i and gets no gradient: leaving it out changes nothing.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from atoll.deferred import Deferred
from atoll.errors import AtollError
from atoll.graphs.blocks import spans
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import csr, multiply
from atoll.random import Streams

MAX_DOUBLES = 1 << 17  # numbers converted to float64 at once, so that they stay in the cache


class Entries:
    """The E stored features of N users, one vector each: entry e is `value[e]` at feature `feature[e]` of user `user[e]`."""

    def __init__(self, graph: Graph) -> None:
        if graph.parties != graph.num_nodes:
            party = int((graph.ptr.diff() != 1).nonzero()[0])
            raise AtollError(
                f"Party {party} has {int(graph.ptr[party + 1] - graph.ptr[party])} feature vectors but users here have one each; "
                "use --partition node and data with one sample a node."
            )
        stored = graph.nonzero_features
        self.users, self.features = stored.shape
        self.starts = torch.from_numpy(stored.indptr.astype(np.int64))
        self.feature = torch.from_numpy(stored.indices)
        self.value = torch.from_numpy(stored.data)

    @cached_property
    def matrix(self) -> Tensor:
        """(N, E) CSR: the users' values, each in a column of its own."""
        entries = np.arange(len(self.value), dtype=np.int32)
        return csr(sp.csr_array((self.value.numpy(), entries, self.starts.numpy()), shape=(self.users, len(entries))))

    @cached_property
    def user(self) -> Tensor:
        """(E,) whose feature an entry is."""
        return torch.repeat_interleave(torch.arange(self.users, dtype=torch.int32), self.starts.diff())

    def of(self, users: Tensor) -> Tensor:
        """The entries of some users."""
        return spans(self.starts[users], self.starts[users + 1])

    def take(self, users: Tensor) -> Entries:
        """Those of some users, as if there were no others."""
        chosen = self.of(users)
        part = object.__new__(Entries)
        part.users, part.features = len(users), self.features
        part.starts = nn.functional.pad(self.starts.diff()[users].cumsum(0), (1, 0))
        part.feature, part.value = self.feature[chosen], self.value[chosen]
        return part

    def product(self, rows: Tensor) -> Tensor:
        """(E, h) → (N, h): x_i·W_i = Σ_f x_if·W_if of every user."""
        return multiply(self.matrix, rows)

    def outer(self, gradient: Tensor, out: Tensor, entries: slice = slice(None)) -> Tensor:
        """(N, h) → (E, h): the gradient x_if·g_i of some kept rows, in `out`: fresh memory would cost more than the product."""
        return torch.index_select(gradient, 0, self.user[entries], out=out).mul_(self.value[entries, None])


class Weights(nn.Module):
    """The kept rows (E, h) of the users' weights (N, d, h)."""

    def __init__(self, entries: Entries, width: int) -> None:
        super().__init__()
        self.entries = entries
        self.rows = nn.Parameter(torch.zeros(len(entries.value), width), requires_grad=False)
        self.buffer = torch.empty(0, width)  # overwritten by every piece of `backward`
        self.latent: Tensor | None = None  # the last product,
        self.version = -1  # and the version of `rows` that it is of

    def forward(self) -> Tensor:
        """(N, h): x_i·W_i of every user; not to be changed in place, because it is kept until the weights change."""
        if self.latent is None or self.version != self.rows._version:
            self.latent, self.version = self.entries.product(self.rows), self.rows._version
        return self.latent

    def backward(self, gradient: Tensor, entries: slice) -> Tensor:
        """(N, h), the gradient of `forward` → that of some of the kept rows, which lasts until the next call."""
        self.latent = None  # a step follows, and the fused optimizers change rows without a new version
        count = entries.stop - entries.start
        if len(self.buffer) < count:
            self.buffer = torch.empty(count, self.rows.shape[1])
        return self.entries.outer(gradient, self.buffer[:count], entries)

    @torch.no_grad()
    def share(self, weight: Tensor) -> None:
        """Every user starts with the same weight (d, h)."""
        torch.index_select(weight, 0, self.entries.feature, out=self.rows)

    @torch.no_grad()
    def draw(self, streams: Streams, bound: float) -> None:
        """Every user draws its own W_i from U(−bound, bound); only the kept rows are made."""
        width = self.rows.shape[1]
        self.rows.copy_(streams.rows(self.entries.user, self.entries.feature, width, low=-bound, high=bound))


class Patched(Deferred):
    """Whole weights (N, d, h), deferred: a user's kept rows (E, h) are its own, all others are those of `rest` (N, d, h)."""

    def __init__(self, entries: Entries, rows: Tensor, rest: Tensor) -> None:
        self.entries, self.rows, self.rest = entries, rows, rest
        self.dtype = rows.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, d, h)."""
        return tuple(self.rest.shape)

    def dense(self) -> Tensor:
        """The weights themselves."""
        weights = self.rest.clone(memory_format=torch.contiguous_format)
        weights[self.entries.user, self.entries.feature] = self.rows
        return weights

    def take(self, index: Tensor) -> Patched:
        """Those of some users."""
        return Patched(self.entries.take(index), self.rows[self.entries.of(index)], self.rest[index])

    @property
    def shared(self) -> bool:
        """Whether all users' `rest` is one."""
        return len(self.rest) > 1 and not self.rest.stride(0)

    def probe(self) -> Tensor:
        """Finite if and only if all numbers that matter are."""
        return self.rows.sum() + (self.rest[0] if self.shared else self.rest).sum()

    def total(self) -> Tensor:
        """(d, h) the sum over the users, float64 or int64; where they share `rest`, without computing any user's weights."""
        precise = torch.float64 if self.dtype.is_floating_point else torch.int64
        if not self.shared:
            return self.dense().sum(0, dtype=precise)
        idle = self.entries.users - torch.bincount(self.entries.feature, minlength=self.entries.features)
        result: Tensor = idle[:, None] * self.rest[0].to(precise)
        step = max(1, MAX_DOUBLES // self.rows.shape[1])
        for start in range(0, len(self.rows), step):
            piece = slice(start, start + step)
            result.index_add_(0, self.entries.feature[piece], self.rows[piece].to(precise))
        return result
