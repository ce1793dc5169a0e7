"""From a configuration to the parties' graphs: what each scenario gives, and data that cannot be trained on."""

from __future__ import annotations

import pytest
import torch

from atoll.data import load
from atoll.data.federated import federate
from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.data.unions import union
from atoll.errors import AtollError, AtollWarning
from atoll.runs.config import resolve
from small import small


def test_horizontal_parties_divide_the_nodes() -> None:
    """Every node is at one party; the whole graph has the edges between parties and the parties' splits."""
    data = federate(small("fedavg"), None, ("horizontal",))
    assert (data.scenario, data.parts.parties) == ("horizontal", 3)
    assert sorted(data.parts.ids.tolist()) == list(range(60))
    assert data.whole.edge_index.shape[1] == data.source.edge_index.shape[1] > data.parts.edge_index.shape[1]
    for name in ("train", "val", "test"):
        assert torch.equal(getattr(data.whole, name)[data.parts.ids], getattr(data.parts, name))
    assert not data.public


def test_the_server_sees_what_the_node_scenario_publishes() -> None:
    """The edges between users and the training labels, and no label of another node."""
    data = federate(small("nfedgnn"), None, ("node",))
    assert (data.scenario, data.parts.parties, data.parts.edge_index.shape[1]) == ("node", 60, 0)
    assert torch.equal(data.public["edge_index"], data.whole.edge_index)
    labels = data.public["y_train"]
    assert torch.equal(labels[data.whole.train], data.whole.y[data.whole.train])
    assert bool((labels[~data.whole.train] == -1).all())


def test_one_party_with_everything() -> None:
    """An algorithm for the whole graph gets the union of the parties as one block."""
    data = federate(small("centralized"), None, ("whole",))
    assert (data.scenario, data.parts.parties) == ("whole", 1)
    assert data.parts is data.whole


@pytest.mark.parametrize("merged", [False, True])
def test_the_union_of_overlapping_parties(merged: bool) -> None:
    """Each node once, in its first party's majority class; merged, only with the edges that some party holds."""
    graph = load("csbm", nodes=40, degree=4)
    parts = partition(graph, "overlap", 2, PartitionSettings(proportions="0.5"), 0)
    parts.train[:] = torch.arange(parts.num_nodes) % 2 == 0
    whole = union(parts, graph, merged=merged)
    held = sorted(set(parts.ids.tolist()))
    assert whole.ids.tolist() == held
    local = {tuple(edge) for edge in parts.ids[parts.edge_index].t().tolist()}
    induced = {tuple(edge) for edge in graph.edge_index.t().tolist() if set(edge) <= set(held)}
    assert {tuple(edge) for edge in whole.ids[whole.edge_index].t().tolist()} == (local if merged else induced)
    trained = set(parts.ids[parts.train].tolist())
    assert set(whole.ids[whole.train].tolist()) == trained


def test_a_partition_that_the_algorithm_is_not_made_for() -> None:
    """One sentence names both."""
    with pytest.raises(AtollError, match="fedavg is for horizontal parties, but the partition 'vertical' is vertical"):
        federate(resolve("fedavg", dataset="csbm", partition="vertical", parties=2), None, ("horizontal",))


def test_a_party_without_training_nodes() -> None:
    """As many parties as nodes leave some without a training node."""
    with pytest.raises(AtollError, match=r"Party \d+ has 1 nodes but no training nodes"):
        federate(resolve("fedavg", dataset="csbm", partition="random", parties=60, values={"nodes": 60}), None, ("horizontal",))


def test_the_datas_own_split_is_not_replaced_silently() -> None:
    """A graph given as an object with a split: random replaces it with a warning, auto keeps it."""
    graph = load("csbm", nodes=60)
    graph.train[:20], graph.val[20:40], graph.test[40:] = True, True, True
    values = {"split": "random"}
    config = resolve("fedavg", dataset="given", partition="random", parties=2, values=values)
    with pytest.warns(AtollWarning, match="The graph has a split of its own, which split='random' replaces"):
        federate(config, graph, ("horizontal",))
    config = resolve("fedavg", dataset="given", partition="random", parties=2, values={"split": "auto"})
    data = federate(config, graph, ("horizontal",))
    assert torch.equal(data.parts.train, graph.train[data.parts.ids])
