"""Pseudo graphs (FedGL, Eqs. 9 and 14): every node is joined to those with the nearest embeddings, without N × N numbers."""

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
from atoll.graphs.sparse import SparseMatrix

FORMS = ("joint", "literal", "counts", "cosine")
MAX_SIMILARITIES = 1 << 20  # computed at a time: 4 MB, which fit in a cache


def nearest_neighbors(
    embeddings: Tensor, neighbors: int, form: str, search: str = "exact", *, itself: bool = True
) -> tuple[Tensor, Tensor]:
    """The s largest entries per row of Ā = φ(H·Hᵀ), Eq. 14: columns (N, s) int32, weights (N, s) with row sums 1 (or 0).

    `joint` and `cosine` scale the rows of H to length 1 first. Without `itself` the diagonal is left out: s other nodes.
    """
    if form in ("joint", "cosine"):
        embeddings = F.normalize(embeddings, dim=1)
    count = entries_per_row(neighbors, embeddings.shape[0], itself=itself)
    find = exact_search if search == "exact" else approximate_search
    scores, columns = find(embeddings, count, itself=itself)
    weights = scores.clamp_(min=0)  # φ
    return columns.int(), weights / weights.sum(1, keepdim=True).clamp(min=1e-12)


def entries_per_row(neighbors: int, nodes: int, *, itself: bool = True) -> int:
    """How many entries a row of the pseudo graph of that many nodes has."""
    return min(neighbors, nodes if itself else max(nodes - 1, 0))


def exact_search(embeddings: Tensor, count: int, *, itself: bool = True) -> tuple[Tensor, Tensor]:
    """The largest `count` entries of every row of H·Hᵀ and their columns, block of rows by block of rows.

    Columns are dealt into groups first: the largest entries are in the groups with the largest maxima, so few numbers are
    sorted and the result is exact.
    """
    nodes = embeddings.shape[0]
    if not count:
        return embeddings.new_empty(nodes, 0), torch.empty(nodes, 0, dtype=torch.int32, device=embeddings.device)
    groups = min(nodes, max(count, int((nodes * count) ** 0.5)))  # balances the two sorts
    depth = -(-nodes // groups)
    padded = F.pad(embeddings, (0, 0, 0, groups * depth - nodes)).t().contiguous()
    scores = embeddings.new_empty(nodes, count)
    columns = torch.empty(nodes, count, dtype=torch.int32, device=embeddings.device)
    step = min(nodes, max(1, MAX_SIMILARITIES // (groups * depth)))
    buffer = embeddings.new_empty(step, groups * depth)  # allocating every block would take longer than the product
    for start in range(0, nodes, step):
        rows = embeddings[start : start + step]
        block = torch.mm(rows, padded, out=buffer[: len(rows)])
        block[:, nodes:] = -torch.inf
        if not itself:
            block.diagonal(start).fill_(-torch.inf)
        best, index = _grouped(block.view(-1, depth, groups), count) if depth > 1 else block.topk(count, dim=1)
        scores[start : start + step], columns[start : start + step] = best, index
    return scores, columns


def _grouped(block: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(B, depth, groups): the largest entries of each of the B, and their columns."""
    depth, groups = block.shape[1:]
    selected = block.amax(1).topk(count, dim=1).indices  # (B, count) groups
    candidates = block.gather(2, selected[:, None].expand(-1, depth, -1)).flatten(1)  # (B, depth · count)
    best, within = candidates.topk(count, dim=1)
    return best, (within // count) * groups + selected.gather(1, within % count)


def approximate_search(embeddings: Tensor, count: int, *, itself: bool = True) -> tuple[Tensor, Tensor]:
    """Nearly the same entries by an inverted file of clusters (faiss); a row with too few matches is filled with zeros."""
    if not itself:
        return _others(*approximate_search(embeddings, count + 1))
    faiss = _faiss()
    points = np.ascontiguousarray(embeddings.cpu().numpy())  # faiss searches on the CPU
    nodes, width = points.shape
    clusters = max(1, int(nodes**0.5))
    quantizer = faiss.IndexFlatIP(width)
    index = faiss.IndexIVFFlat(quantizer, width, clusters, faiss.METRIC_INNER_PRODUCT)
    index.cp.seed = 0
    index.train(points[:: max(1, nodes // (64 * clusters))])
    index.add(points)
    index.nprobe = max(1, clusters // 16)
    scores, columns = (torch.from_numpy(matches).to(embeddings.device) for matches in index.search(points, count))
    return scores.masked_fill(columns < 0, 0), columns.clamp_(min=0)


def _others(scores: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """The entries without the row's own, or without the last and smallest where the own one is not among them."""
    is_self = columns == torch.arange(len(columns), device=columns.device)[:, None]
    is_self[~is_self.any(1), -1] = True
    rest = ~is_self | (is_self.cumsum(1) > 1)  # where zeros fill a row, its own column may stand there several times
    shape = (len(columns), columns.shape[1] - 1)
    return scores[rest].view(shape), columns[rest].view(shape)


def _faiss() -> Any:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ImportError:
        raise AtollError(
            "neighbor_search=approximate needs the package faiss-cpu; install it, or set neighbor_search=exact."
        ) from None
    return faiss


def project(graph: Graph, columns: Tensor, weights: Tensor) -> sp.csr_array:
    """Ā⁽ᵏ⁾, Fig. 4, of every party: the pseudo graph's entries between nodes that the party holds, block-diagonal (N, N)."""
    counts, rows, values = [], [], []
    entries, scores, every = columns.cpu().numpy(), weights.cpu().numpy(), graph.host.ids.numpy()
    row_of = np.full(len(entries), -1, np.int32)
    for start, end in graph.blocks.ranges:
        ids = every[start:end]
        row_of[ids] = np.arange(start, end, dtype=np.int32)
        local_rows, local_scores = row_of[entries[ids]], scores[ids]
        kept = (local_rows >= 0) & (local_scores > 0)
        selected = np.flatnonzero(kept)
        counts.append(kept.sum(1))
        rows.append(local_rows.ravel()[selected])
        values.append(local_scores.ravel()[selected])
        row_of[ids] = -1
    indptr = np.concatenate([[0], np.concatenate(counts).cumsum()]).astype(np.int32)
    matrix = sp.csr_array((np.concatenate(values), np.concatenate(rows), indptr), shape=(graph.num_nodes, graph.num_nodes))
    return sp.csr_array(matrix.T.tocsr().T.tocsr())  # sorts every row in a third of the time of `sort_indices`


def normalize(matrix: sp.csr_array, form: str) -> sp.csr_array:
    """D̄^(-1/2)·Ā·D̄^(-1/2), Eq. 9: D̄ the row sums; `counts`: the number of neighbors; `cosine` makes Ā symmetric first."""
    if form == "cosine":
        matrix = symmetric(matrix)
    return scaled(matrix, np.diff(matrix.indptr) if form == "counts" else matrix.sum(1))


def complement(graph: Graph, columns: Tensor, weights: Tensor, beta: float, form: str) -> Graph:
    """The same graph with A_k = Â_k + β·D̄^(-1/2)·Ā⁽ᵏ⁾·D̄^(-1/2), Eq. 9, instead of Â_k.

    Deviation: `joint` adds pseudo neighbors before the normalization, A_k = D^(-1/2)·(A + I + β·Ā⁽ᵏ⁾)·D^(-1/2) with Ā⁽ᵏ⁾
    symmetric and D the degrees of both: a node's neighborhood keeps its scale, and a model trained so also works without Ā.
    """
    pseudo = project(graph, columns, weights)
    if form != "joint":
        added = sp.csr_array(graph.normalized.astype(np.float32) + beta * normalize(pseudo, form))
        return graph.with_adjacency(SparseMatrix(added, device=graph.device))
    pseudo = symmetric(pseudo)
    pseudo.setdiag(0)
    looped = graph.weighted_adjacency + sp.eye_array(graph.num_nodes, format="csr")
    both = sp.csr_array(looped.astype(np.float32) + beta * pseudo)
    made = SparseMatrix(scaled(both, both.sum(1)), symmetric=graph.symmetric, device=graph.device)
    return graph.with_adjacency(made)


def complement_attention(graph: Graph, columns: Tensor, weights: Tensor, beta: float, form: str) -> Graph:
    """The same graph for a model that attends, GAT: the pseudo graph enters its coefficients as `complement` enters Â.

    `joint`: α_ij is proportional to (A + I + β·Ā⁽ᵏ⁾)_ij·exp(e_ij), Ā⁽ᵏ⁾ symmetric: a pseudo neighbor is attended to as a neighbor
    is, but counts β·ā_ij, where a neighbor counts 1, and one that is both counts 1 + β·ā_ij. With β → 0 it is GAT, with e = 0
    the mean over A + I + β·Ā⁽ᵏ⁾. Every other form is Eq. 9 with the attention in the place of Â: α + β·D̄^(-1/2)·Ā⁽ᵏ⁾·D̄^(-1/2).
    """
    pseudo = project(graph, columns, weights)
    if form != "joint":
        return graph.with_attention(beside=SparseMatrix(sp.csr_array(beta * normalize(pseudo, form)), device=graph.device))
    pseudo = symmetric(pseudo)
    pseudo.setdiag(0)
    return graph.with_attention(weights=sp.csr_array(beta * pseudo))


def symmetric(matrix: sp.csr_array) -> sp.csr_array:
    """(M + Mᵀ) / 2."""
    return sp.csr_array(0.5 * (matrix + matrix.T))


def scaled(matrix: sp.csr_array, degree: NDArray[Any]) -> sp.csr_array:
    """D^(-1/2)·M·D^(-1/2); a degree of 0 counts as 1."""
    scale = np.where(degree > 0, degree, 1).astype(np.float32) ** -0.5
    values = matrix.data * np.repeat(scale, np.diff(matrix.indptr)) * scale[matrix.indices]
    return sp.csr_array((values, matrix.indices, matrix.indptr), shape=matrix.shape)
