"""Weights of many users with one feature vector each, kept only where a user's feature is not zero.

A row of W_i whose feature is zero at user i never touches x_i·W_i and gets no gradient: leaving it out changes nothing.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from atoll.deferred import Deferred
from atoll.device import wide
from atoll.errors import AtollError
from atoll.graphs.blocks import spans
from atoll.graphs.graph import Graph
from atoll.graphs.segments import occurrences
from atoll.graphs.sparse import Stored, multiply, stored
from atoll.random import Streams

MAX_TOGETHER = 1 << 20  # entries whose users and columns are held: of more, those of some at a time are made when needed
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
        nonzero = graph.nonzero_features
        self.users, self.features = nonzero.shape
        self.starts = torch.from_numpy(nonzero.indptr.astype(np.int64)).to(graph.device)
        self.feature = torch.from_numpy(nonzero.indices).to(graph.device)
        self.value = torch.from_numpy(nonzero.data).to(graph.device)
        self._users = 0, torch.empty(0, dtype=torch.int32, device=graph.device)

    @cached_property
    def columns(self) -> Tensor:
        """0, 1, …: the columns of `matrix`."""
        count = len(self.value) if len(self.pieces) == 1 else min(len(self.value), MAX_TOGETHER + self.most)
        return torch.arange(count, dtype=torch.int32, device=self.value.device)

    @cached_property
    def most(self) -> int:
        """The most entries of a user."""
        return int(self.starts.diff().max()) if self.users else 0

    def matrix(self, users: slice) -> Stored:
        """(n, e) CSR: the values of some users in a row, each in a column of its own."""
        starts = self.starts[users.start : users.stop + 1]
        first, count = 0, len(self.value)
        if len(self.pieces) > 1:
            first, count = int(starts[0]), int(starts[-1] - starts[0])
        return stored((starts - first).int(), self.columns[:count], self.value[first : first + count], (len(starts) - 1, count))

    @cached_property
    def pieces(self) -> list[slice]:
        """The users in groups with about `MAX_TOGETHER` entries each."""
        if not self.value.is_cpu:
            return [slice(0, self.users)]
        marks = torch.arange(0, len(self.value), MAX_TOGETHER)
        cuts = torch.searchsorted(self.starts, marks).unique().tolist() if len(marks) > 1 else [0]  # type: ignore[no-untyped-call]
        return [slice(first, last) for first, last in pairwise([*cuts, self.users])]

    @property
    def user(self) -> Tensor:
        """(E,) whose feature an entry is."""
        return self.users_of(slice(0, len(self.value)))

    def users_of(self, entries: slice) -> Tensor:
        """(e,) whose features some entries in a row are; those after them are kept for the next call."""
        first, kept = self._users
        if not (first <= entries.start and entries.stop <= first + len(kept)):
            if not self.value.is_cpu:  # all at once, without a wait
                every = torch.arange(self.users, dtype=torch.int32, device=self.value.device)
                self._users = 0, torch.repeat_interleave(every, self.starts.diff(), output_size=len(self.value))
                return self._users[1][entries]
            first, last = entries.start, min(max(entries.stop, entries.start + MAX_TOGETHER), len(self.value))
            start = max(int(torch.searchsorted(self.starts, first, right=True)) - 1, 0)
            end = int(torch.searchsorted(self.starts, last))
            counts = self.starts[start : end + 1].clamp(first, last).diff()
            kept = torch.repeat_interleave(torch.arange(start, start + len(counts), dtype=torch.int32), counts)
            self._users = first, kept
        return kept[entries.start - first : entries.stop - first]

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
        part._users = 0, self._users[1][:0]
        return part

    def product(self, rows: Tensor) -> Tensor:
        """(E, h) → (N, h): x_i·W_i = Σ_f x_if·W_if of every user."""
        if len(self.pieces) == 1:
            return multiply(self.matrix(slice(0, self.users)), rows)
        result = rows.new_empty(self.users, rows.shape[1])
        for users in self.pieces:
            result[users] = multiply(self.matrix(users), rows[int(self.starts[users.start]) : int(self.starts[users.stop])])
        return result

    def outer(self, gradient: Tensor, out: Tensor, entries: slice) -> Tensor:
        """(N, h) → (e, h): the gradient x_if·g_i of some kept rows, in `out`: fresh memory would cost more than the product."""
        return torch.index_select(gradient, 0, self.users_of(entries), out=out).mul_(self.value[entries, None])


class Weights(nn.Module):
    """The kept rows (E, h) of the users' weights (N, d, h)."""

    def __init__(self, entries: Entries, width: int) -> None:
        super().__init__()
        self.entries = entries
        self.rows = nn.Parameter(entries.value.new_zeros(len(entries.value), width), requires_grad=False)
        self.buffer = entries.value.new_empty(0, width)  # overwritten by every piece of `backward`
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
            self.buffer = self.rows.new_empty(count, self.rows.shape[1])
        return self.entries.outer(gradient, self.buffer[:count], entries)

    @torch.no_grad()
    def share(self, weight: Tensor) -> None:
        """Every user starts with the same weight (d, h)."""
        torch.index_select(weight.to(self.rows.device), 0, self.entries.feature, out=self.rows)

    @torch.no_grad()
    def draw(self, streams: Streams, bound: float) -> None:
        """Every user draws its own W_i from U(−bound, bound); only the kept rows are made."""
        width = self.rows.shape[1]
        here = self.entries.user.cpu(), self.entries.feature.cpu()
        self.rows.copy_(streams.rows(*here, width, low=-bound, high=bound))


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
        precise = wide(self.rows.device) if self.dtype.is_floating_point else torch.int64
        if not self.shared:
            return self.dense().sum(0, dtype=precise)
        idle = self.entries.users - occurrences(self.entries.feature, self.entries.features)
        result: Tensor = idle[:, None] * self.rest[0].to(precise)
        step = max(1, MAX_DOUBLES // self.rows.shape[1])
        for start in range(0, len(self.rows), step):
            piece = slice(start, start + step)
            result.index_add_(0, self.entries.feature[piece], self.rows[piece].to(precise))
        return result
