"""Pseudo graphs (FedGL, Eqs. 9 and 14): every node joined to those whose embeddings are nearest, never holding N × N numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.kernels import Sparse

FORMS = ("joint", "literal", "counts", "cosine")
ENTRIES = 1 << 20  # similarities held at a time: 4 MB, what a cache holds


def discover(embeddings: Tensor, neighbours: int, form: str, search: str = "exact") -> tuple[Tensor, Tensor]:
    """Ā = φ(H·Hᵀ), Eq. 14, its s largest entries a row: columns (N, s) int32 and weights (N, s), rows summing to 1 (or all 0).

    `joint` and `cosine` take the rows of H at length 1 first.
    """
    if form in ("joint", "cosine"):
        embeddings = F.normalize(embeddings, dim=1)
    count = min(neighbours, embeddings.shape[0])
    scores, columns = nearest(embeddings, count) if search == "exact" else approximate(embeddings, count)
    weights = scores.clamp_(min=0)  # φ
    return columns.int(), weights / weights.sum(1, keepdim=True).clamp(min=1e-12)


def nearest(embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest `count` entries of every row of H·Hᵀ and their columns, block of rows by block of rows.

    Columns are dealt into groups first: the largest entries lie in the groups with the largest maxima, so that sorting sees
    few numbers and the result is exact.
    """
    nodes = embeddings.shape[0]
    groups = min(nodes, max(count, int((nodes * count) ** 0.5)))  # balances the two sorts
    depth = -(-nodes // groups)
    padded = F.pad(embeddings, (0, 0, 0, groups * depth - nodes)).t().contiguous()
    scores, columns = embeddings.new_empty(nodes, count), torch.empty(nodes, count, dtype=torch.int32)
    step = min(nodes, max(1, ENTRIES // (groups * depth)))
    buffer = embeddings.new_empty(step, groups * depth)  # fresh memory for every block would take longer than the product
    for start in range(0, nodes, step):
        rows = embeddings[start : start + step]
        block = torch.mm(rows, padded, out=buffer[: len(rows)])
        block[:, nodes:] = -torch.inf
        best, places = _grouped(block.view(-1, depth, groups), count) if depth > 1 else block.topk(count, dim=1)
        scores[start : start + step], columns[start : start + step] = best, places
    return scores, columns


def _grouped(block: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(B, depth, groups): the largest entries of each of the B, and their places in it."""
    depth, groups = block.shape[1:]
    chosen = block.amax(1).topk(count, dim=1).indices  # (B, count) groups
    candidates = block.gather(2, chosen[:, None].expand(-1, depth, -1)).flatten(1)  # (B, depth · count)
    best, within = candidates.topk(count, dim=1)
    return best, (within // count) * groups + chosen.gather(1, within % count)


def approximate(embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Nearly the same by an inverted file of clusters (faiss); a row that finds too few is filled with zeros."""
    faiss = _faiss()
    points = np.ascontiguousarray(embeddings.numpy())
    nodes, width = points.shape
    clusters = max(1, int(nodes**0.5))
    quantizer = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(quantizer, width, clusters, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    index.train(points[:: max(1, nodes // (64 * clusters))])
    index.add(points)
    index.nprobe = max(1, clusters // 16)
    scores, columns = (torch.from_numpy(found) for found in index.search(points, count))
    return scores.masked_fill(columns < 0, 0), columns.clamp_(min=0)


def _faiss() -> Any:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ImportError:
        raise AtollError("search=approximate needs the package faiss-cpu; install it, or take search=exact.") from None
    return faiss


def project(graph: Graph, columns: Tensor, weights: Tensor) -> sp.csr_array:
    """Ā⁽ᵏ⁾, Fig. 4, of every party: the pseudo graph's entries between nodes that the party holds, block-diagonal (N, N)."""
    counts, places, values = [], [], []
    entries, scores = columns.numpy(), weights.numpy()
    row_of = np.full(len(entries), -1, np.int32)
    for start, end in graph.blocks.ranges:
        ids = graph.ids[start:end].numpy()
        row_of[ids] = np.arange(start, end, dtype=np.int32)
        local, own = row_of[entries[ids]], scores[ids]
        kept = (local >= 0) & (own > 0)
        chosen = np.flatnonzero(kept)
        counts.append(kept.sum(1))
        places.append(local.ravel()[chosen])
        values.append(own.ravel()[chosen])
        row_of[ids] = -1
    starts = np.concatenate([[0], np.concatenate(counts).cumsum()]).astype(np.int32)
    matrix = sp.csr_array((np.concatenate(values), np.concatenate(places), starts), shape=(graph.num_nodes, graph.num_nodes))
    return sp.csr_array(matrix.T.tocsr().T.tocsr())  # sorts every row, in a third of the time of `sort_indices`


def normalise(matrix: sp.csr_array, form: str) -> sp.csr_array:
    """D̄^(-1/2)·Ā·D̄^(-1/2), Eq. 9: D̄ the row sums; `counts`: the number of neighbours; `cosine` makes Ā symmetric first."""
    if form == "cosine":
        matrix = symmetric(matrix)
    return scaled(matrix, np.diff(matrix.indptr) if form == "counts" else matrix.sum(1))


def complement(graph: Graph, columns: Tensor, weights: Tensor, beta: float, form: str) -> Graph:
    """The same graph with A_k = Â_k + β·D̄^(-1/2)·Ā⁽ᵏ⁾·D̄^(-1/2), Eq. 9, in the place of Â_k.

    Deviation: `joint` adds pseudo neighbours before the normalisation, A_k = D^(-1/2)·(A + I + β·Ā⁽ᵏ⁾)·D^(-1/2) with Ā⁽ᵏ⁾
    symmetric and D the degrees of both: a node's neighbourhood keeps its scale, and a model trained so works without Ā as well.
    """
    pseudo = project(graph, columns, weights)
    if form != "joint":
        return graph.with_adjacency(Sparse(sp.csr_array(graph.normalized.astype(np.float32) + beta * normalise(pseudo, form))))
    pseudo = symmetric(pseudo)
    pseudo.setdiag(0)
    looped = graph.adjacency + sp.eye_array(graph.num_nodes, format="csr")
    both = sp.csr_array(looped.astype(np.float32) + beta * pseudo)
    return graph.with_adjacency(Sparse(scaled(both, both.sum(1)), symmetric=graph.symmetric))


def symmetric(matrix: sp.csr_array) -> sp.csr_array:
    """(M + Mᵀ) / 2."""
    return sp.csr_array(0.5 * (matrix + matrix.T))


def scaled(matrix: sp.csr_array, degree: NDArray[Any]) -> sp.csr_array:
    """D^(-1/2)·M·D^(-1/2); a degree of 0 counts as 1."""
    scale = np.where(degree > 0, degree, 1).astype(np.float32) ** -0.5
    values = matrix.data * np.repeat(scale, np.diff(matrix.indptr)) * scale[matrix.indices]
    return sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
