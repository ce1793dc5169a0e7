"""Mini-batches against loops over nodes and edges."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.graphs import neighbors as neighbor_lists
from atoll.graphs.graph import Graph, stack
from atoll.graphs.hops import SampledHop
from atoll.graphs.inference import block, party_groups, row_ranges
from atoll.graphs.minibatch import CLUSTERS_PER_BATCH, MiniBatch, Sampled, epoch
from atoll.graphs.neighbors import subsets
from atoll.graphs.sparse import SparseMatrix
from atoll.random import Draws

SIZES = (30, 17, 41)


def random_graph(nodes: int, seed: int, *, weighted: bool = False) -> Graph:
    """A directed graph with about 6 edges into a node; the last two nodes have none."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, nodes - 2, (2, 6 * nodes)), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    return Graph(
        x=torch.from_numpy(rng.normal(size=(nodes, 5)).astype(np.float32)),
        edge_index=torch.from_numpy(pairs),
        edge_weight=torch.from_numpy(rng.random(pairs.shape[1]).astype(np.float32)) if weighted else None,
        y=torch.from_numpy(rng.integers(0, 3, nodes)),
        train=torch.from_numpy(rng.random(nodes) < 0.6),
        val=torch.zeros(nodes, dtype=torch.bool),
        test=torch.zeros(nodes, dtype=torch.bool),
        num_classes=3,
        ids=torch.arange(nodes),
        ptr=torch.tensor([0, nodes]),
    )


@pytest.fixture(params=[False, True], ids=["unweighted", "weighted"])
def graphs(request: pytest.FixtureRequest) -> list[Graph]:
    """The graphs of three parties."""
    return [random_graph(size, seed, weighted=request.param) for seed, size in enumerate(SIZES)]


@pytest.fixture
def graph(graphs: list[Graph]) -> Graph:
    """Three parties in one graph."""
    return stack(graphs)


def neighbors(graph: Graph, node: int) -> set[int]:
    """By a loop over the edges."""
    return {s for s, t in graph.edge_index.t().tolist() if t == node}


def draws(*parties: int, call: str = "sample") -> Draws:
    """The parties' randomness."""
    return Draws(3, parties, call)


def test_subsets_are_uniform() -> None:
    """Every subset of 2 of 5 comes up as often as the others."""
    words = np.random.default_rng(0).integers(0, 2**64, (30_000, 2), np.uint64)
    chosen = subsets(np.full(30_000, 5), 2, words)
    counts = Counter(map(frozenset, chosen.tolist()))
    assert len(counts) == 10
    assert all(abs(count - 3000) < 250 for count in counts.values())


def test_subsets_are_floyds() -> None:
    """The numbers of his loop over one subset at a time, of as many subsets as are drawn together."""
    rng = np.random.default_rng(1)
    sizes, words = rng.integers(5, 9, 6), rng.integers(0, 2**64, (6, 4), np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbor_lists, "ROWS_AT_ONCE", 4)
        drawn = subsets(sizes, 4, words).tolist()
    for size, row, numbers in zip(sizes.tolist(), words.tolist(), drawn, strict=True):
        chosen: list[int] = []
        for step, word in enumerate(row):
            number = int((word >> 11) * 2.0**-53 * (size - 4 + step + 1))
            chosen.append(size - 4 + step if number in chosen else number)
        assert numbers == chosen


@pytest.mark.parametrize("sampler", ["neighbors", "layers"])
def test_a_batch_reaches_sampled_neighbors_only(graph: Graph, sampler: str) -> None:
    """A node's edges in the batch are edges of the graph, no more than the fan-out where nodes are sampled one by one; each node
    is expanded once, with the fan-out of the hop that reached it."""
    seeds = np.array([0, 3, 7, 31, 35, 50, 60, 61])
    fan_outs = [3, 2]
    sampled = Sampled(graph, seeds, fan_outs, sampler, draws(0, 1, 2))
    depth = dict(zip(sampled.rows.tolist(), sampled.depth.tolist(), strict=True))
    assert {node for node, steps in depth.items() if steps == 0} == set(seeds.tolist())
    known = {node: set() for node, steps in depth.items() if steps < 2}
    whole, index = sampled.union
    for source, target in whole.edge_index.t().tolist():
        known[int(sampled.rows[target])].add(int(sampled.rows[source]))
    for node, found in known.items():
        assert found <= neighbors(graph, node)
        assert all(depth[other] <= depth[node] + 1 for other in found)
        if sampler == "neighbors":
            assert len(found) == min(fan_outs[depth[node]], len(neighbors(graph, node)))
    assert sum(map(len, known.values())) == whole.edge_index.shape[1]  # none twice
    assert sampled.rows[index.numpy()].tolist() == seeds.tolist()
    if sampler == "layers":
        for party, (start, end) in enumerate(zip(graph.ptr[:-1].tolist(), graph.ptr[1:].tolist(), strict=True)):
            own = [steps for node, steps in depth.items() if start <= node < end]
            assert own.count(1) <= 3 * own.count(0), party


@pytest.mark.parametrize("kind", ["normalized_adjacency", "mean_adjacency", "summed_adjacency", "unlooped_adjacency", "given"])
def test_weights_are_those_of_the_whole_graph_times_what_a_neighbor_stands_for(graph: Graph, kind: str) -> None:
    """M_ij·d_i / s_i for a sampled neighbor, M_ii for the node itself, by a loop; and M itself with all neighbors."""
    if kind == "given":  # another matrix over the same edges, which is no function of degrees
        full = graph.normalized_adjacency.forward.to_dense() * torch.rand(88, 88, generator=torch.Generator().manual_seed(0))
        graph, kind = graph.with_adjacency(SparseMatrix(sp.csr_array(full.numpy()))), "normalized_adjacency"
    full = getattr(graph, kind).forward.to_dense()
    for fan_out in (2, 0):
        sampled = Sampled(graph, np.array([1, 2, 32, 70]), [fan_out, fan_out], "neighbors", draws(0, 1, 2))
        for index in (0, 1):
            hop = sampled.hop(index)
            assert isinstance(hop, SampledHop)
            got = getattr(hop, kind).forward.to_dense()
            bounds = hop.counts.cumsum()
            for row, (node, end) in enumerate(zip(hop.rows[hop.out].tolist(), bounds.tolist(), strict=True)):
                wanted = torch.zeros(len(hop.rows))
                near = hop.columns[end - hop.counts[row] : end]
                for column in near:
                    factor = len(neighbors(graph, node)) / len(near)
                    wanted[int(column)] = full[node, int(hop.rows[column])] * factor
                wanted[int(hop.out[row])] = full[node, node]
                torch.testing.assert_close(got[row], wanted)
                if not fan_out:
                    torch.testing.assert_close(got[row], full[node, hop.index])


def test_a_sampled_layer_is_right_on_average(graph: Graph) -> None:
    """The mean of Â·X over many samples is Â·X."""
    seeds = np.array([5, 40, 66])
    total = torch.zeros(3, 5)
    for number in range(800):
        hop = Sampled(graph, seeds, [2], "neighbors", draws(0, 1, 2, call=f"{number}")).hop(0)
        total += hop.normalized_adjacency @ graph.x[hop.index]
    expected = (graph.normalized_adjacency @ graph.x)[torch.from_numpy(seeds)]
    torch.testing.assert_close(total / 800, expected, atol=0.08, rtol=0.0)


@pytest.mark.parametrize("sampler", ["neighbors", "layers", "clusters"])
def test_an_epoch_passes_every_training_node_once(graph: Graph, sampler: str) -> None:
    """Each party's training nodes come once, at most `size` at a time; a party that is done takes no step."""
    batches = list(epoch(graph, 4, [2, 2], sampler, draws(0, 1, 2)))
    fitted = torch.cat([batch.index[batch.train] for batch in batches])
    assert fitted.sort().values.tolist() == graph.train.nonzero()[:, 0].tolist()
    for batch in batches:
        for party in range(3):
            present = batch.blocks.sizes[party] > 0
            assert present == (batch.active is None or bool(batch.active[party]))
        assert torch.equal(batch.y, graph.y[batch.index])
    if sampler != "clusters":
        steps = [-(-int(count) // 4) for count in graph.num_train]
        assert len(batches) == max(steps)
        active = torch.stack([torch.ones(3, dtype=torch.bool) if one.active is None else one.active for one in batches])
        assert active.sum(0).tolist() == steps


@pytest.mark.parametrize("sampler", ["neighbors", "layers", "clusters"])
def test_a_party_has_the_same_batches_alone(graphs: list[Graph], graph: Graph, sampler: str) -> None:
    """Whoever else is in the cohort, a party's batches are the same, edges and all."""

    def reached(batch: MiniBatch, start: int, end: int) -> list[tuple[int, int]]:
        whole = batch if batch.sampled is None else batch.sampled.union[0]
        rows = batch.index if batch.sampled is None else torch.from_numpy(batch.sampled.rows)
        edges = rows[whole.edge_index]
        return sorted((s - start, t - start) for s, t in edges.t().tolist() if start <= s < end)

    together = list(epoch(graph, 5, [2, 1], sampler, draws(0, 1, 2)))
    for party, own in enumerate(graphs):
        start, end = graph.ptr[party : party + 2].tolist()
        for batch, same in zip(epoch(own, 5, [2, 1], sampler, draws(party)), together, strict=False):
            mine = (same.index >= start) & (same.index < end)
            assert torch.equal(same.index[mine] - start, batch.index)
            assert reached(same, start, end) == reached(batch, 0, own.num_nodes)


def test_clusters_are_induced_subgraphs(graph: Graph) -> None:
    """A batch of clusters has all edges among its nodes, with their weights, and no others; every node is in one batch."""
    everything = replace(graph, train=torch.ones(graph.num_nodes, dtype=torch.bool))
    batches = list(epoch(everything, 10, [], "clusters", draws(0, 1, 2)))
    assert len(batches) > 1
    assert torch.cat([batch.index for batch in batches]).sort().values.tolist() == list(range(graph.num_nodes))
    for batch in batches:
        naive = graph.rows(batch.index)
        torch.testing.assert_close(batch.weighted_adjacency.toarray(), naive.weighted_adjacency.toarray())
        assert batch.hop(1) is batch
    alone = next(iter(epoch(everything, 1000, [], "clusters", draws(0, 1, 2))))
    assert alone.num_nodes == graph.num_nodes
    assert CLUSTERS_PER_BATCH > 1


def test_a_party_without_training_nodes_takes_one_empty_step(graphs: list[Graph]) -> None:
    """As on the whole graph: one step per epoch, with nothing to fit."""
    empty = replace(graphs[1], train=torch.zeros(17, dtype=torch.bool))
    for sampler in ("neighbors", "clusters"):
        (batch,) = epoch(empty, 4, [2], sampler, draws(1))
        assert (batch.num_nodes, batch.active) == (0, None)


def test_blocks_of_rows_have_all_neighbors(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of Â in blocks are Â; blocks keep both limits, and no party's rows are left out."""
    from atoll.graphs import inference

    monkeypatch.setattr(inference, "MAX_ROWS", 8)
    monkeypatch.setattr(inference, "MAX_NEIGHBORS", 30)
    full = graph.normalized_adjacency.forward.to_dense()
    assert list(party_groups(graph.sizes)) == [(0, 1), (1, 2), (2, 3)]
    assert list(party_groups([3, 4, 5, 1])) == [(0, 2), (2, 4)]
    ranges = list(row_ranges(graph, 0, graph.num_nodes, 1))
    assert [start for start, _ in ranges[1:]] == [end for _, end in ranges[:-1]]
    assert ranges[-1][1] == graph.num_nodes
    for first, last in ranges:
        hop = block(graph, first, last, 1)
        assert last - first <= 8
        assert len(hop.columns) <= 30 or last == first + 1
        torch.testing.assert_close(hop.normalized_adjacency.forward.to_dense(), full[first:last][:, hop.index])
