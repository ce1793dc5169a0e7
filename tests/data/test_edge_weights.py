"""Edge weights: read, kept through every partition and file, used where a model can, refused where they are not numbers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch

import atoll
from atoll import algorithms
from atoll.data import build_graph, files
from atoll.data.federated import federate
from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.data.party_graphs import pooled
from atoll.data.script_data import ScriptData
from atoll.data.unions import union
from atoll.data.vertical_files import joined
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph, stack
from atoll.runs import runner
from atoll.runs.config import resolve
from graphs import dense, make_graph
from small import ALGORITHMS, PARTITIONS, small

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch_geometric.data import Data, HeteroData


def weighted(nodes: int = 40, edges: int = 120, seed: int = 0, *, directed: bool = False) -> Graph:
    """A random graph with weights, the same in both directions unless directed."""
    graph = make_graph(nodes, edges, seed)
    rng = np.random.default_rng(seed)
    values = torch.from_numpy(rng.random((nodes, nodes)).astype(np.float32) * 3)
    source, target = graph.edge_index
    low, high = (source, target) if directed else (torch.minimum(source, target), torch.maximum(source, target))
    return replace(graph, edge_weight=values[low, high])


def by_ids(graph: Graph) -> dict[tuple[int, int, int], float]:
    """Every edge's weight by party and the ends' ids."""
    assert graph.edge_weight is not None
    source, target = graph.edge_index
    party = graph.party[source] if graph.parties > 1 else torch.zeros(len(source), dtype=torch.int64)
    keys = zip(party.tolist(), graph.ids[source].tolist(), graph.ids[target].tolist(), strict=True)
    return dict(zip(keys, graph.edge_weight.tolist(), strict=True))


def weights_by_pair(graph: Graph) -> dict[tuple[int, int], float]:
    """Every edge's weight by the ends' ids, which is the same at all parties."""
    found: dict[tuple[int, int], float] = {}
    for (_, source, target), weight in by_ids(graph).items():
        assert found.setdefault((source, target), weight) == weight
    return found


def arrays(source: list[int], target: list[int], weight: Any, **options: Any) -> Graph:
    """A graph of four nodes with these edges."""
    x, y = np.ones((4, 1), np.float32), np.array([0, 1, 0, 1])
    return build_graph(x, np.array([source, target]), y, where="test", edge_weight=np.array(weight), **options)


def test_parallel_edges_are_added_and_directions_agree() -> None:
    """Each direction's parallel edges are summed; listing both directions is the same as listing one."""
    once = arrays([0, 0, 1], [1, 1, 2], [1.0, 2.0, 0.5])
    assert weights_by_pair(once) == {(0, 1): 3, (1, 0): 3, (1, 2): 0.5, (2, 1): 0.5}
    twice = arrays([0, 0, 1, 1, 1, 2, 3], [1, 1, 0, 0, 2, 1, 3], [1.0, 2.0, 2.0, 1.0, 0.5, 0.5, 9.0])
    assert weights_by_pair(twice) == weights_by_pair(once)
    with pytest.warns(AtollWarning, match="another weight in the other direction; the larger one counts for both"):
        assert weights_by_pair(arrays([0, 1], [1, 0], [1.0, 5.0])) == {(0, 1): 5, (1, 0): 5}
    assert weights_by_pair(arrays([0, 1], [1, 0], [1.0, 5.0], directed=True)) == {(0, 1): 1, (1, 0): 5}


def test_weights_of_one_are_no_weights() -> None:
    """The graph without weights, bit for bit."""
    plain = build_graph(np.ones((4, 1)), np.array([[0, 1], [1, 2]]), np.array([0, 1, 0, 1]), where="test")
    ones = arrays([0, 1], [1, 2], [1, 1])
    assert ones.edge_weight is None
    assert ones.digest == plain.digest
    assert weighted().digest != replace(weighted(), edge_weight=None).digest


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        ([1.0, -0.5], "the weight of edge 1 is -0.5; give finite numbers that are not negative, or set edge_weights=false"),
        ([np.nan, 1.0], "the weight of edge 0 is nan"),
        ([1.0, np.inf], "the weight of edge 1 is inf"),
        ([1.0], r"the edge weights have shape \(1,\) and type float64 for 2 edges"),
        ([[1.0, 2.0], [1.0, 2.0]], "give one number per edge"),
        (["a", "b"], "give one number per edge"),
    ],
)
def test_what_is_refused(weight: Any, sentence: str) -> None:
    """One sentence, for arrays; `edge_weights=false` ignores such weights."""
    with pytest.raises(AtollError, match=sentence):
        arrays([0, 1], [1, 2], weight)
    if np.asarray(weight).dtype.kind == "f":
        data = Data(x=torch.ones(3, 1), edge_index=torch.tensor([[0, 1], [1, 2]]), y=torch.arange(3))
        data.edge_weight = torch.tensor(weight)
        with pytest.raises(AtollError, match=sentence.replace("float64", "float32")):
            atoll.load(data)
        assert atoll.load(data, edge_weights=False).edge_weight is None


def test_tables(tmp_path: Path) -> None:
    """The column `weight`, its mistakes by line, and edge_weights=false."""
    (tmp_path / "nodes.csv").write_text("id,x,label\na,1,0\nb,2,1\nc,3,0\n")
    (tmp_path / "edges.csv").write_text("source,target,Weight\na,b,2.5\na,b,1\nb,c,0\n")
    with pytest.warns(AtollWarning, match="1 repeated edge: the weights of parallel edges are added"):
        graph = atoll.load(tmp_path)
    assert weights_by_pair(graph) == {(0, 1): 3.5, (1, 0): 3.5, (1, 2): 0, (2, 1): 0}
    (tmp_path / "edges.csv").write_text("source,target,weight\na,b,0.5\na,b,0.5\n")
    with pytest.warns(AtollWarning, match="the weights of parallel edges are added"):
        assert atoll.load(tmp_path).edge_weight is None  # all are 1
    with pytest.warns(AtollWarning, match="1 repeated edge is dropped"):
        assert atoll.load(tmp_path, edge_weights=False).edge_weight is None
    for text, problem in (("-1", "is '-1'"), ("", "is empty"), ("much", "is 'much'"), ("inf", "is 'inf'")):
        (tmp_path / "edges.csv").write_text(f"source,target,weight\na,b,2\nb,c,{text}\n")
        with pytest.raises(AtollError, match=rf"The weight \(column `weight`\) in line 3 of .*edges.csv {problem}; give finite"):
            atoll.load(tmp_path)
        assert atoll.load(tmp_path, edge_weights=False).edge_weight is None
    (tmp_path / "edges.csv").write_text("source,target,w,weight\na,b,2,3\n")
    with pytest.warns(AtollWarning, match="column `w` is not used: another column holds the weights"):
        assert weights_by_pair(atoll.load(tmp_path)) == {(0, 1): 3, (1, 0): 3}


@pytest.mark.parametrize("form", ["npz", "csv", "parquet"])
def test_files_keep_weights(tmp_path: Path, form: str) -> None:
    """Written and read again, exactly."""
    graph = weighted()
    files.save(graph, tmp_path / "graph", form)
    again = atoll.load(tmp_path / "graph")
    assert by_ids(again) == by_ids(graph)
    assert files.graph_of(files.arrays(graph)).digest == graph.digest
    assert atoll.load(tmp_path / "graph", edge_weights=False).edge_weight is None


def test_every_form_in_python() -> None:
    """PyG, NetworkX and pandas give the same weights; types and features of edges are named as not used."""
    graph = weighted()
    wanted = weights_by_pair(graph)
    data = Data(x=dense(graph), edge_index=graph.edge_index, y=graph.y, edge_weight=graph.edge_weight)
    net = nx.Graph()
    net.add_nodes_from((node, {"x": 1.0 + node / 2, "label": node % 2}) for node in range(40))
    net.add_weighted_edges_from(
        (*map(int, ends), float(w)) for ends, w in zip(graph.edge_index.t(), graph.edge_weight, strict=True)
    )
    nodes = pd.DataFrame({"id": range(40), "x": np.arange(40) / 2, "label": np.arange(40) % 2})
    edges = pd.DataFrame({"source": graph.edge_index[0], "target": graph.edge_index[1], "weight": graph.edge_weight})
    for given in (data, net, (nodes, edges), graph):
        assert weights_by_pair(atoll.load(given)) == pytest.approx(wanted)
        assert atoll.load(given, edge_weights=False).edge_weight is None
    data.edge_type, data.edge_attr = torch.zeros(graph.edge_index.shape[1]), torch.ones(graph.edge_index.shape[1], 2)
    with pytest.warns(AtollWarning, match="field `edge_(type|attr)` is not used") as said:
        atoll.load(data)
    assert len(said) == 2


def test_networkx_without_some_weights() -> None:
    """An edge without a weight has 1; parallel edges are added."""
    net = nx.MultiGraph()
    net.add_nodes_from((node, {"x": 1.0, "label": 0}) for node in range(3))
    net.add_edges_from([(0, 1, {"weight": 2.5}), (0, 1, {}), (1, 2, {})])
    for directed in (False, True):
        with pytest.warns(AtollWarning, match="the weights of parallel edges are added"):
            found = weights_by_pair(atoll.load(net, directed=directed))
        assert found == {(0, 1): 3.5, (1, 0): 3.5, (1, 2): 1, (2, 1): 1}


@pytest.mark.filterwarnings("ignore:.*heterogeneous")
def test_weights_of_some_types_of_edges() -> None:
    """A type without weights has 1."""
    data = HeteroData()
    data["a"].x, data["a"].y, data["b"].x = torch.ones(2, 1), torch.tensor([0, 1]), torch.ones(1, 1)
    data["a", "to", "a"].edge_index, data["a", "to", "a"].edge_weight = torch.tensor([[0], [1]]), torch.tensor([4.0])
    data["a", "of", "b"].edge_index = torch.tensor([[0], [0]])
    assert weights_by_pair(atoll.load(data)) == {(0, 1): 4, (1, 0): 4, (0, 2): 1, (2, 0): 1}


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("kind", ["random", "louvain_largest", "metis", "dirichlet", "overlap", "vertical", "whole"])
def test_every_partition_keeps_the_weights(kind: str, directed: bool) -> None:
    """An edge at a party has the weight that it has in the graph; so has the union of the parties."""
    graph = weighted(60, 200, directed=directed)
    parts = partition(graph, kind, None if kind == "whole" else 2, PartitionSettings(proportions="0.6"), 0)
    wanted = weights_by_pair(graph)
    assert weights_by_pair(parts).items() <= wanted.items()
    for party in range(parts.parties):
        assert by_ids(parts.select([party])) == {
            (0, *key[1:]): weight for key, weight in by_ids(parts).items() if key[0] == party or kind == "whole"
        }
    parts = replace(parts, train=parts.y >= 0)
    if kind == "vertical":
        assert weights_by_pair(joined(parts)) == weights_by_pair(parts)
        return
    for merged in (False, True):
        together = weights_by_pair(union(parts, graph, merged=merged))
        assert together.items() <= wanted.items()
        assert together.items() >= weights_by_pair(parts).items()
    assert weights_by_pair(pooled(parts)) == weights_by_pair(parts)


def test_parties_with_and_without_weights() -> None:
    """Where some parties have weights, the others' edges weigh 1."""
    plain, heavy = make_graph(10, 20, seed=1), weighted(12, 20)
    both = stack([plain, heavy])
    assert both.edge_weight is not None
    assert both.edge_weight[: plain.edge_index.shape[1]].unique().tolist() == [1]
    assert by_ids(both.select([1])) == by_ids(heavy)
    config = resolve("fedavg", dataset="given", partition="files", values={"split": "auto", "edge_weights": False})
    given = ScriptData([replace(each, train=each.y >= 0) for each in (plain, heavy)])
    assert federate(config, given, ("horizontal",)).parts.edge_weight is None


def state_of(algorithm: str, graph: Graph, **values: Any) -> dict[str, Any]:
    """What two rounds leave at the server, and its metrics."""
    settings = dict(PARTITIONS[algorithms.find(algorithm).SCENARIOS[0]])
    kind, parties = settings.pop("partition"), settings.pop("parties")
    shared = {"split": "random", "rounds": 2, "patience": 0, **settings, **values}
    config = resolve(algorithm, dataset="given", partition=kind, parties=parties, seed=3, values=shared)
    result = runner.run(config, graph)
    return {"state": result.state, "metrics": result.metrics}


def equal(one: Any, other: Any) -> bool:
    """Whether two nested values are the same, up to rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(value, other[name]) for name, value in one.items())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and bool(torch.allclose(one.double(), other.double(), atol=1e-5, equal_nan=True))
    return bool(one == other) or (isinstance(one, float) and abs(one - other) < 1e-5)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_use_weights_or_say_so(algorithm: str) -> None:
    """Weights change what is learned, wherever a party runs; methods for single nodes warn, and an MLP needs no edges."""
    graph = replace(runner.prepare(small("local")).party_data.source, edge_weight=None)
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.random((60, 60)).astype(np.float32) * 5)
    heavy = replace(graph, edge_weight=(values + values.T)[graph.edge_index[0], graph.edge_index[1]])
    if algorithms.find(algorithm).SCENARIOS[0] == "node":
        with pytest.warns(AtollWarning, match="Edge weights are not used: where every node is a party"):
            weighted_state = state_of(algorithm, heavy)
        assert equal(weighted_state, state_of(algorithm, graph))
        return
    together = state_of(algorithm, heavy)
    assert not equal(together, state_of(algorithm, graph))
    assert equal(together, state_of(algorithm, heavy, placement="apart"))
    assert equal(state_of(algorithm, heavy, edge_weights=False), state_of(algorithm, graph))


def test_a_model_that_cannot_use_weights_says_so() -> None:
    """gat, in a federation and in GLASU's split network."""
    graph = replace(weighted(), train=make_graph(40, 120, 0).y >= 0, val=torch.zeros(40, dtype=torch.bool))
    graph = replace(graph, test=torch.zeros(40, dtype=torch.bool))
    sentence = "Edge weights are not used: gat weighs edges by attention alone"
    for algorithm, kind in (("fedavg", "random"), ("glasu", "vertical")):
        with pytest.warns(AtollWarning, match=sentence):
            atoll.run(algorithm, dataset=graph, partition=kind, parties=2, model="gat", rounds=1, hidden=16)
