"""The matrices of a graph: what a layer multiplies by, each made once, on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs import edges
from atoll.graphs.attention import Attention
from atoll.graphs.cuts import operator
from atoll.graphs.sparse import SparseMatrix
from atoll.graphs.symmetric_matrices import Looped


class Matrices:
    """What a graph's edges make: adjacency, its normalizations, the Laplacian, the entries of attention."""

    edge_index: Tensor
    edge_weight: Tensor | None
    looped: Looped | None

    if TYPE_CHECKING:

        @property
        def num_nodes(self) -> int:
            """N."""

        @property
        def device(self) -> torch.device:
            """Where the tensors are."""

    @cached_property
    def adjacency(self) -> sp.csr_array:
        """(N, N) float64, 1 for every edge whatever its weight; row i holds the sources of the edges into i."""
        return edges.adjacency_matrix(self.edge_index, None, self.num_nodes)

    @cached_property
    def weighted_adjacency(self) -> sp.csr_array:
        """(N, N) float64, the weights of the edges; the same matrix as `adjacency` where they have none."""
        if self.edge_weight is None:
            return self.adjacency
        return edges.adjacency_matrix(self.edge_index, self.edge_weight, self.num_nodes)

    @cached_property
    def symmetric(self) -> bool:
        """Whether every edge has its reverse, of the same weight."""
        if self.looped is not None:
            return True
        adjacency = self.weighted_adjacency
        return bool((adjacency != adjacency.T).nnz == 0)

    @property
    def normalized(self) -> sp.csr_array:
        """D^(-1/2)·(A + I)·D^(-1/2) with weights as PyG's gcn_norm, D the in-degrees of A + I."""
        return edges.normalized_matrix(self.weighted_adjacency)

    @operator
    def normalized_adjacency(self) -> SparseMatrix:
        """The normalized adjacency as an operator."""
        if self.looped is not None:
            return self.looped.normalized()
        return SparseMatrix(self.normalized, symmetric=self.symmetric, device=self.device)

    @operator
    def summed_adjacency(self) -> SparseMatrix:
        """A + I: the sum over a node's neighbors, by the weights of the edges, and itself."""
        looped = edges.looped_matrix(self.weighted_adjacency)
        return SparseMatrix(looped, symmetric=self.symmetric, device=self.device)

    @operator
    def unlooped_adjacency(self) -> SparseMatrix:
        """D_in^(-1/2)·A·D_out^(-1/2): normalized without self loops."""
        unlooped = edges.unlooped_matrix(self.weighted_adjacency)
        return SparseMatrix(unlooped, symmetric=self.symmetric, device=self.device)

    @operator
    def spectral_adjacency(self) -> SparseMatrix:
        """D^(-1/2)·A·D^(-1/2) without self loops, D the degrees of an edge's source: I minus the normalized Laplacian."""
        return SparseMatrix(edges.spectral_matrix(self.weighted_adjacency), symmetric=self.symmetric, device=self.device)

    @cached_property
    def laplacian(self) -> SparseMatrix:
        """L with Σ_i xᵢᵀ(L·x)ᵢ = Σ ‖x_i − x_j‖² over all edges (i, j): D_in + D_out − A − Aᵀ."""
        if self.looped is not None:
            return self.looped.laplacian()
        laplacian = edges.laplacian_matrix(self.weighted_adjacency, symmetric=self.symmetric)
        return SparseMatrix(laplacian, symmetric=True, device=self.device)

    @operator
    def mean_adjacency(self) -> SparseMatrix:
        """D⁻¹·A: the mean over a node's neighbors by the weights of the edges, 0 for a node without any."""
        return SparseMatrix(edges.mean_matrix(self.weighted_adjacency), device=self.device)

    def attention(self, heads: int) -> Attention:
        """The entries of attention with that many heads: every node's neighbors and itself."""
        if heads not in self._attention:
            self._attention[heads] = Attention(self.adjacency, heads, self.attention_weights, device=self.device)
        return self._attention[heads]

    @cached_property
    def attention_weights(self) -> sp.csr_array | None:
        """(N, N) what is added to the weight 1 of every neighbor, and of the node itself, in attention; None: nothing."""
        return None

    @cached_property
    def beside_attention(self) -> SparseMatrix | None:
        """(N, N) a matrix that is added to that of the attention coefficients; None: nothing."""
        return None

    @cached_property
    def _attention(self) -> dict[int, Attention]:
        return {}
