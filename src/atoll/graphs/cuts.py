"""Some of the small graphs of a graph: spans of its rows and of its stored matrices, of one step or of several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from atoll.graphs.blocks import spans
from atoll.graphs.sparse import SparseMatrix, Stored, stored

if TYPE_CHECKING:
    from atoll.graphs.graph import Graph


class Cut:
    """Some of the small graphs of a block-diagonal graph: where their rows are there, and where they are here."""

    def __init__(self, graph: Graph, graphs: Tensor, ptr: Tensor | None = None) -> None:
        """`ptr`: where the blocks begin, of other blocks than small graphs."""
        ptr = graph.graph_ptr if ptr is None else ptr
        assert ptr is not None
        self.graph, self.starts, self.ends = graph, ptr[graphs], ptr[graphs + 1]
        self.graph_ptr = pad((self.ends - self.starts).cumsum(0), (1, 0))
        self.rows = spans(self.starts, self.ends)

    @cached_property
    def shift(self) -> Tensor:
        """By how much the rows of each graph move down."""
        return self.starts - self.graph_ptr[:-1]

    def matrix(self, matrix: SparseMatrix) -> SparseMatrix:
        """The diagonal blocks of these graphs: spans of the stored values; only columns are shifted, nothing is sorted."""
        return _CutMatrix(matrix, self)

    def csr(self, whole: Stored) -> Stored:
        """The same of a matrix as it is stored."""
        return cut_rows(whole, self.starts, self.ends, self.shift, (len(self.rows), len(self.rows)))


class Cuts:
    """Several cuts of a graph, made at once, one after the other: each is a span of arrays that they have in common."""

    def __init__(self, graph: Graph, parts: Sequence[Tensor]) -> None:
        assert graph.graph_ptr is not None
        self.graph, graphs = graph, torch.cat(list(parts))
        self.starts, self.ends = graph.graph_ptr[graphs], graph.graph_ptr[graphs + 1]
        self.graph_ptr = pad((self.ends - self.starts).cumsum(0), (1, 0))
        self.bounds = np.cumsum([0, *map(len, parts)]).tolist()  # where each part's graphs begin
        first = self.graph_ptr[torch.tensor(self.bounds).to(graph.device)]
        self.row_bounds: list[int] = first.tolist()
        self.rows = spans(self.starts, self.ends)
        before = torch.repeat_interleave(first[:-1], torch.tensor([len(part) for part in parts]).to(graph.device))
        self.shift = self.starts - (self.graph_ptr[:-1] - before)
        self.matrices: dict[int, tuple[Stored, Stored, list[int]]] = {}  # by identity: a matrix, its rows here, where parts begin

    def part(self, number: int) -> Cut:
        """One of the cuts."""
        (a, b), (first, last) = self.bounds[number : number + 2], self.row_bounds[number : number + 2]
        cut: Cut = object.__new__(_Part)
        graph_ptr = self.graph_ptr[a : b + 1] - first
        cut.__dict__.update(graph=self.graph, starts=self.starts[a:b], ends=self.ends[a:b], graph_ptr=graph_ptr)
        cut.__dict__.update(rows=self.rows[first:last], shift=self.shift[a:b], cuts=self, number=number)
        return cut

    def csr(self, whole: Stored, number: int) -> Stored:
        """One of the cuts of a matrix."""
        if id(whole) not in self.matrices:
            made = cut_rows(whole, self.starts, self.ends, self.shift, (len(self.rows), len(self.rows)))
            ends: list[int] = made.crow_indices()[torch.tensor(self.row_bounds).to(made.device)].tolist()
            self.matrices[id(whole)] = whole, made, ends
        _, made, ends = self.matrices[id(whole)]
        (first, last), (start, end) = self.row_bounds[number : number + 2], ends[number : number + 2]
        pointer = made.crow_indices()[first : last + 1] - start
        return stored(pointer, made.col_indices()[start:end], made.values()[start:end], (last - first, last - first))


class _Part(Cut):
    """One of several cuts."""

    cuts: Cuts
    number: int

    def csr(self, whole: Stored) -> Stored:
        """The same of a matrix as it is stored."""
        return self.cuts.csr(whole, self.number)


def cut_rows(whole: Stored, starts: Tensor, ends: Tensor, shift: Tensor, size: tuple[int, int]) -> Stored:
    """Spans of rows of a matrix, from `starts` to `ends`, with their columns moved down by the `shift` of each span."""
    indptr = whole.crow_indices()
    first, last = indptr[starts].long(), indptr[ends].long()
    entries = spans(first, last)
    columns = whole.col_indices()[entries] - torch.repeat_interleave(shift, last - first).int()
    pointer = pad(indptr.diff()[spans(starts, ends)].cumsum(0, dtype=torch.int32), (1, 0))
    return stored(pointer, columns, whole.values()[entries], size)


class _CutMatrix(SparseMatrix):
    """Diagonal blocks of a sparse matrix."""

    def __init__(self, whole: SparseMatrix, cut: Cut) -> None:
        self.forward = cut.csr(whole.forward)
        self.shape, self.symmetric = (len(cut.rows), len(cut.rows)), whole.symmetric
        self._whole, self._cut = whole, cut

    @cached_property
    def transposed(self) -> Stored:
        """Mᵀ, cut out of the whole matrix's."""
        return self.forward if self.symmetric else self._cut.csr(self._whole.transposed)


class operator(cached_property[SparseMatrix]):  # used as `cached_property` is
    """A sparse matrix of a graph, computed on first use; for a batch of graphs it is cut out of the whole graph's."""

    def __init__(self, function: Callable[[Any], SparseMatrix]) -> None:
        def find(graph: Any) -> SparseMatrix:
            cut: Cut | None = graph.__dict__.get("_cut")
            return function(graph) if cut is None else cut.matrix(getattr(cut.graph, function.__name__))

        find.__doc__ = function.__doc__
        super().__init__(find)
