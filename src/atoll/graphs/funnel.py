"""A diffusion at a few rows alone: its last steps compute only the rows from which those are reached."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.sparse import SparseMatrix, Stored, csr, multiply

MOST = 0.5  # share of all rows that a step may have and be cut down to them


@dataclass(frozen=True)
class Narrowed:
    """One step at some rows, from the rows that the step before it has left."""

    matrix: Stored
    rows: Tensor


class Funnel:
    """Zᴷ of `sparse.diffuse` at chosen rows: the same sums in the same order, without those that nobody asks for.

    A row of the last step reads its neighbors, one of the step before it the neighbors of these. With T of N rows of a graph of
    average degree d the last steps cost about T·d, T·d², … instead of N·d, until they reach most of the graph.
    """

    def __init__(self, matrix: SparseMatrix, rows: Tensor, steps: int, teleport: float) -> None:
        self.matrix, self.steps, self.teleport = matrix, steps, teleport
        source = sp.csr_array(matrix.arrays, shape=matrix.shape)
        wanted, index = np.unique(rows.cpu().numpy(), return_inverse=True)
        self.index = torch.from_numpy(index).to(rows.device)
        self.narrowed: list[Narrowed] = []  # the last step first
        cut_down = True  # the last step always is
        while len(self.narrowed) < steps and cut_down:
            near = source[wanted]
            before = np.unique(near.indices)
            cut_down = len(before) <= MOST * matrix.shape[0]
            if cut_down:
                columns = np.searchsorted(before, near.indices).astype(np.int32)
                near = sp.csr_array((near.data, columns, near.indptr), shape=(len(wanted), len(before)))
            self.narrowed.append(Narrowed(csr(near, rows.device), torch.from_numpy(wanted).to(rows.device)))
            wanted = before.astype(np.int64)
        self.read = torch.from_numpy(wanted).to(rows.device) if cut_down else None  # where the first narrowed step reads

    def __matmul__(self, start: Tensor) -> Tensor:
        """(rows, …) Zᴷ there, for Z⁰."""
        state = start
        for _ in range(self.steps - len(self.narrowed)):
            state = multiply(self.matrix.forward, state).lerp_(start, self.teleport)
        state = state if self.read is None else state[self.read]
        for step in reversed(self.narrowed):
            state = multiply(step.matrix, state).lerp_(start[step.rows], self.teleport)
        return state[self.index]
