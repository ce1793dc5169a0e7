"""FedGCN: degenerate cases, exchanged sums against loops over nodes, and what a party can compute from what it receives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

import plain
from atoll.algorithms import fedgcn
from atoll.data.graph_fields import from_fields, to_fields
from atoll.errors import AtollError
from atoll.graphs import minibatch
from atoll.graphs.border_batches import with_sums
from atoll.graphs.border_sums import exchanged, needed_rows, shares
from atoll.graphs.borders import Borders, borders_between
from atoll.graphs.graph import Graph, stack
from atoll.models.parameters import get_parameters
from atoll.random import Draws
from atoll.runs import api, runner
from small import Recorded, small

EXACT = {"optimizer": "sgd", "lr": 0.5, "epochs": 1, "dropout": 0.0, "weighting": "train", "min_contributors": 1}


def parts_and_whole(**values: Any) -> tuple[Graph, Graph]:
    """The parties' graphs with their borders, and the graph that they are of."""
    data = runner.prepare(small("fedgcn", **values)).party_data
    return data.parts, data.whole


def rows_received(parts: Graph, hops: int, normalization: str = "sym", least: int = 1) -> list[Tensor]:
    """What each party receives from a server that adds."""
    needed = needed_rows(parts, hops)
    rows = torch.unique(torch.cat(needed))
    settings = fedgcn.Settings(min_contributors=least)
    sums = fedgcn.released(shares(parts, rows, normalization).sum(0), settings, 0)
    return [sums[torch.searchsorted(rows, ids)] for ids in needed]


def of_whole(result: runner.Result) -> dict[str, Tensor]:
    """The model that was trained on the whole graph."""
    return {name: value[0] for name, value in result.memory["0"]["model"].items()}


def test_without_hops_it_is_fedavg_with_equal_weights() -> None:
    """hops=0: the same bits, with dropout, too."""
    ours = runner.run(small("fedgcn", hops=0, dropout=0.3, weighting="parties"))
    avg = runner.run(small("fedavg", dropout=0.3, weighting="parties"))
    plain.same(ours.state["model"], avg.state["model"])
    assert plain.metrics(ours) == plain.metrics(avg)


def test_a_single_party_trains_the_centralized_model() -> None:
    """P = 1: nothing is exchanged, and the bits are those of training on the whole graph."""
    alone = runner.run(replace(small("fedgcn", dropout=0.3), parties=1))
    whole = runner.run(replace(small("centralized", dropout=0.3, start="shared"), parties=1))
    plain.same(alone.state["model"], of_whole(whole))
    assert [row["val_loss"] for row in alone.rows] == [row["val_loss"] for row in whole.rows]


@pytest.mark.parametrize("model", ["gcn", "gcn_head"])
def test_with_two_hops_it_trains_the_centralized_model_step_by_step(model: str) -> None:
    """One step per round, weights by training nodes, every row sent: in every round the model and metrics of the whole graph."""
    for rounds in (1, 2, 5):
        ours = runner.run(small("fedgcn", rounds=rounds, model=model, **EXACT))
        values = {name: value for name, value in EXACT.items() if name in ("optimizer", "lr", "epochs", "dropout")}
        whole = runner.run(small("centralized", rounds=rounds, model=model, start="shared", **values))
        plain.close(ours.state["model"], of_whole(whole), 1e-6)
        assert ours.rows[-1]["val_accuracy"] == whole.rows[-1]["val_accuracy"]
        assert ours.rows[-1]["val_loss"] == pytest.approx(whole.rows[-1]["val_loss"], abs=1e-6)


def test_without_the_exchange_it_does_not() -> None:
    """The same with one hop, and with none, is another model: the test above can fail."""
    whole = runner.run(small("centralized", optimizer="sgd", lr=0.5, epochs=1, start="shared"))
    for hops in (0, 1):
        ours = runner.run(small("fedgcn", **{**EXACT, "hops": hops}))
        assert (ours.state["model"]["layers.0.weight"] - of_whole(whole)["layers.0.weight"]).abs().max() > 1e-3


def naive_rows(whole: Graph, normalization: str) -> tuple[Tensor, Tensor]:
    """Every node's sum over its neighbors and itself, and its degree, one edge after the other."""
    x = whole.x if isinstance(whole.x, Tensor) else torch.from_numpy(whole.x.toarray())
    weights = torch.ones(whole.edge_index.shape[1]) if whole.edge_weight is None else whole.edge_weight
    degree = torch.ones(whole.num_nodes)
    for (_, target), weight in zip(whole.edge_index.t().tolist(), weights.tolist(), strict=True):
        degree[target] += weight
    scale = degree**-0.5 if normalization == "sym" else torch.ones_like(degree)
    sums = scale[:, None] * x
    for (source, target), weight in zip(whole.edge_index.t().tolist(), weights.tolist(), strict=True):
        sums[target] += weight * scale[source] * x[source]
    return sums, degree


def cut(whole: Graph, owner: Tensor) -> Graph:
    """The parties' graphs of a whole one, with their borders, made one party at a time."""
    parts = stack([whole.rows((owner == party).nonzero()[:, 0]) for party in range(int(owner.max()) + 1)])
    between = borders_between(parts.ids, parts.party, whole.edge_index, whole.edge_weight, whole.ids)
    return replace(parts, borders=between)


def odd_graph(*, sparse: bool) -> tuple[Graph, Graph]:
    """A directed graph with weights, and its four parties; one of them has no edge to another."""
    generator = torch.Generator().manual_seed(1)
    owner = torch.arange(24) % 3
    owner[20:] = 3
    edges = torch.randint(0, 20, (2, 60), generator=generator)
    edges = torch.unique(torch.cat([edges[:, edges[0] != edges[1]], torch.tensor([[20, 21], [21, 22]])], 1), dim=1)
    x = torch.randn(24, 5, generator=generator) * (torch.rand(24, 5, generator=generator) < 0.5)
    none = torch.zeros(24, dtype=torch.bool)
    whole = Graph(
        *(sp.csr_array(x.numpy()) if sparse else x, edges, torch.zeros(24, dtype=torch.int64), none, none, none, 2),
        ids=torch.arange(24) * 3 + 1,
        ptr=torch.tensor([0, 24]),
        edge_weight=torch.rand(edges.shape[1], generator=generator) + 0.1,
    )
    return cut(whole, owner), whole


@pytest.mark.parametrize("normalization", ["sym", "none"])
@pytest.mark.parametrize("sparse", [True, False])
def test_rows_are_the_sums_over_all_neighbors(normalization: str, sparse: bool) -> None:
    """Shares add up to each needed node's sum and degree on the whole graph, directed and with weights; feeders are counted."""
    parts, whole = odd_graph(sparse=sparse)
    sums, degree = naive_rows(whole, normalization)
    rows = torch.unique(torch.cat(needed_rows(parts, 2)))
    total = shares(parts, rows, normalization).sum(0)
    at = (rows - 1) // 3
    torch.testing.assert_close(total[:, :-2], sums[at])
    torch.testing.assert_close(total[:, -2], degree[at])
    owner = dict(zip(parts.ids.tolist(), parts.party.tolist(), strict=True))
    for row, fed in zip(rows.tolist(), total[:, -1].tolist(), strict=True):
        sources = whole.ids[whole.edge_index[0][whole.ids[whole.edge_index[1]] == row]].tolist()
        assert fed == len({owner[row], *(owner[source] for source in sources)})


@pytest.mark.parametrize("sparse", [True, False])
def test_two_propagations_are_those_of_the_whole_graph(sparse: bool) -> None:
    """Â·X of own nodes and neighbors elsewhere, then Â of the whole graph from these to own nodes; some parties or all."""
    parts, whole = odd_graph(sparse=sparse)
    sums, degree = naive_rows(whole, "sym")
    first = sums * degree[:, None] ** -0.5
    adjacency = torch.zeros(24, 24)
    for (source, target), weight in zip(whole.edge_index.t().tolist(), whole.edge_weight.tolist(), strict=True):  # type: ignore[union-attr]
        adjacency[target, source] = weight
    full = plain.normalized(adjacency)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    received = rows_received(parts, 2)
    for parties in ([0, 1, 2, 3], [2, 0], [3]):
        some = parts.select(parties)
        graph = exchanged(some, [received[p] for p in parties], 2, "sym")
        hidden = (graph.hop(0).features @ weight.expand(len(parties), 5, 3)).relu()
        out = graph.hop(1).normalized_adjacency @ hidden
        wanted = (full @ (first @ weight).relu())[(some.ids - 1) // 3]
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
        own = graph.hop(1).targets(hidden)
        torch.testing.assert_close(own, (first @ weight).relu()[(some.ids - 1) // 3], atol=1e-5, rtol=1e-5)
        assert graph.hop(2) is graph


def test_a_row_that_is_suppressed_is_the_partys_own_share() -> None:
    """A node whose row does not come has Σ over its party's nodes, with the whole graph's degrees; far ones are left out."""
    parts, _ = odd_graph(sparse=False)
    received = [torch.zeros_like(rows) for rows in rows_received(parts, 2)]
    graph = exchanged(parts, received, 2, "sym")
    assert graph.hop(1).blocks.sizes == parts.sizes
    degree = naive_rows(odd_graph(sparse=False)[1], "sym")[1][(parts.ids - 1) // 3]
    x = parts.x
    assert isinstance(x, Tensor)
    wanted = x / degree[:, None]
    for (source, target), weight in zip(parts.edge_index.t().tolist(), parts.edge_weight.tolist(), strict=True):  # type: ignore[union-attr]
        wanted[target] += weight * x[source] / (degree[source] * degree[target]) ** 0.5
    torch.testing.assert_close(graph.hop(0).features.values, wanted, atol=1e-5, rtol=1e-5)


def test_one_hop_goes_on_over_the_partys_own_edges() -> None:
    """1 hop: the second propagation is the party's own graph's; against dense matrices."""
    experiment = runner.prepare(small("fedgcn", hops=1, min_contributors=1))
    state = experiment.algorithm.start(experiment.federation, experiment.config.settings)
    (cohort,) = experiment.engine.cohorts  # type: ignore[attr-defined]
    parts, whole = experiment.party_data.parts, experiment.party_data.whole
    sums, degree = naive_rows(whole, "sym")
    at = torch.searchsorted(whole.ids, parts.ids)
    first = (sums * degree[:, None] ** -0.5)[at]
    model = {name: value[0] for name, value in get_parameters(cohort.model).items()}
    model = {name: torch.randn(value.shape, generator=torch.Generator().manual_seed(0)) for name, value in model.items()}
    with torch.no_grad():
        out, hidden = cohort.predict(model), cohort.embeddings(model)
    middle = (first @ model["layers.0.weight"] + model["layers.0.bias"]).relu()
    assert state["model"].keys() == model.keys()
    torch.testing.assert_close(hidden, middle, atol=1e-4, rtol=1e-4)
    for party, dense in enumerate(plain.parties(parts)):
        rows = parts.party == party
        wanted = dense.normalized_adjacency @ middle[rows] @ model["layers.1.weight"] + model["layers.1.bias"]
        torch.testing.assert_close(out[rows], wanted, atol=1e-4, rtol=1e-4)


def attack(parts: Graph, received: list[Tensor], whole: Graph) -> int:
    """How many feature rows of single nodes elsewhere the parties find by subtracting their own share from what they received."""
    sums, found = naive_rows(whole, "sym")[1], 0
    x = whole.x if isinstance(whole.x, Tensor) else torch.from_numpy(whole.x.toarray())
    needed = needed_rows(parts, 2)
    for party in range(parts.parties):
        own = shares(parts.select([party]), needed[party], "sym")[0, :, :-2]
        rest = received[party][:, :-1] - own
        theirs = ~torch.isin(whole.ids, parts.select([party]).ids)
        unit = torch.nn.functional.normalize(rest, dim=1) @ torch.nn.functional.normalize(x[theirs], dim=1).t()
        found += int(((unit > 1 - 1e-5).any(1) & (received[party][:, -1] > 0)).sum())
    assert len(sums) == whole.num_nodes
    return found


def test_a_row_of_a_single_contributor_is_a_feature_row_and_is_not_returned() -> None:
    """min_contributors=1, the paper's form: neighbors' features come out of received rows up to scale. By default none does."""
    parts, whole = parts_and_whole()
    assert attack(parts, rows_received(parts, 2, least=1), whole) > 10
    received = rows_received(parts, 2, least=2)
    assert sum(int((rows[:, -1] > 0).sum()) for rows in received) > 10  # some rows are returned
    assert attack(parts, received, whole) == 0


def test_lone_rows_with_noise() -> None:
    """lone_rows=noise: these rows and no others are noised, and the attack fails on them."""
    parts, whole = parts_and_whole()
    needed = needed_rows(parts, 2)
    rows = torch.unique(torch.cat(needed))
    total = shares(parts, rows, "sym").sum(0)
    noised = fedgcn.released(total, fedgcn.Settings(lone_rows="noise"), 0)
    lone = total[:, -1] < 3
    assert 0 < int(lone.sum()) < len(lone)
    assert torch.equal(noised[~lone], total[~lone, :-1])
    assert bool(((noised - total[:, :-1])[lone, :-1].std(1) > 0.3).all())
    assert attack(parts, [noised[torch.searchsorted(rows, ids)] for ids in needed], whole) == 0


@pytest.mark.parametrize("hops", [1, 2])
def test_bytes(hops: int) -> None:
    """Before the first round 4·M and 4·(d + 2)·R up, 4·R and 4·(d + 1)·M down; then FedAvg's 4·w + 8 and 4·w."""
    config = small("fedgcn", hops=hops, rounds=2)
    recorded: list[Recorded] = []
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])  # type: ignore[func-returns-value]
    result = runner.rounds(experiment)
    parts = experiment.party_data.parts
    needed = needed_rows(parts, hops)
    count, d = len(torch.unique(torch.cat(needed))), parts.num_features
    w = plain.size(result.state["model"])
    for party, rows in enumerate(needed):
        at_start = [recorded[0].bytes[0, verb, True, party][:2] for verb in ("border", "contribute", "receive")]
        assert at_start == [[4 * len(rows), 0], [4 * (d + 2) * count, 4 * count], [0, 4 * (d + 1) * len(rows)]]
        assert recorded[0].bytes[1, "fit", True, party][:2] == [4 * w + 8, 4 * w]


def test_the_exchange_in_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows go in several messages; the sums are the same bits."""
    once = runner.run(small("fedgcn"))
    monkeypatch.setattr(fedgcn, "MAX_NUMBERS", 200)
    pieces = runner.run(small("fedgcn"))
    plain.same(once.state["model"], pieces.state["model"])


def test_secure_totals() -> None:
    """--secure masks the shares of the rows, and the numbers are those without it."""
    masked, open_ = runner.run(small("fedgcn", secure="true")), runner.run(small("fedgcn"))
    plain.close(masked.state["model"], open_.state["model"], 1e-3)


def test_borders_are_kept_where_an_algorithm_wants_them(tmp_path: Path) -> None:
    """Other algorithms' data has none; some parties', and a copy for another process, have theirs."""
    assert runner.prepare(small("fedavg")).party_data.borders is None
    assert runner.prepare(small("fedgcn", hops=0)).party_data.borders is None
    parts, whole = parts_and_whole()
    assert parts.borders is not None
    pairs = set(map(tuple, torch.stack([parts.ids[parts.borders.row], parts.borders.other]).t().tolist()))
    owner = dict(zip(parts.ids.tolist(), parts.party.tolist(), strict=True))
    wanted = {(i, j) for i, j in whole.ids[whole.edge_index].t().tolist() if owner[i] != owner[j]}
    assert pairs == wanted  # undirected: both directions, each seen from both ends
    copy = from_fields(to_fields(parts)).borders
    assert copy is not None
    assert all(torch.equal(value, copy.arrays()[name]) for name, value in parts.borders.arrays().items())
    for some in (parts.select([2, 1]), parts.slice(np.array([2, 1]))):
        assert isinstance(some.borders, Borders)
        seen = set(map(tuple, torch.stack([some.ids[some.borders.row], some.borders.other]).t().tolist()))
        assert seen == {(i, j) for i, j in wanted if owner[i] in (1, 2)}


def test_folders_of_parties_have_no_borders(tmp_path: Path) -> None:
    """Where the parties' graphs are given one by one, one sentence says that nobody knows the edges between them."""
    graph = runner.prepare(small("fedavg")).party_data.parts
    with pytest.raises(AtollError, match="nobody knows the edges between them"):
        api.run("fedgcn", dataset=[graph.select([0]), graph.select([1])], rounds=1)
    api.run("fedgcn", dataset=[graph.select([0]), graph.select([1])], rounds=1, hops=0)


def test_a_party_that_is_away_during_the_exchange_trains_on_its_own_graph() -> None:
    """Without party 1 before the first round, the others' rows lack its share, and it predicts as in FedAvg."""
    from small import Absent

    result = runner.rounds(runner.prepare(small("fedgcn", rounds=2), engine=lambda engine: Absent(engine, {0}, {1})))
    sums = result.memory["0"]["sums"]
    assert len(sums[1]) == 0
    assert len(sums[0]) > 0


def test_predictions_and_export(tmp_path: Path) -> None:
    """On its training data a saved model gives the run's metrics; an export would lack the sums, and a sentence says so."""
    result = runner.run(small("fedgcn", select_by="accuracy"), out=tmp_path / "run")
    found = result.model().outputs()
    recomputed = found.metrics(result.model().task)
    assert recomputed["accuracy"] == result.metrics["accuracy"]
    with pytest.raises(AtollError, match="fedgcn has no model that can be exported: its parties predict with sums"):
        result.model().export("torchscript", tmp_path / "out")


@pytest.mark.parametrize("values", [{}, {"hops": 1}, {"layers": 3}, {"layers": 1}, {"normalization": "none", "hops": 1}], ids=str)
@pytest.mark.parametrize("sampler", ["neighbors", "layers"])
def test_one_batch_with_all_neighbors_is_the_whole_graph(sampler: str, values: dict[str, Any]) -> None:
    """Whatever was exchanged, and also where lone rows are kept."""
    values = {"dropout": 0.0, "rounds": 2, "min_contributors": 1, **values}
    whole = runner.run(small("fedgcn", **values))
    batched = runner.run(small("fedgcn", batch_size=1000, fan_out="0", sampler=sampler, **values))
    for name, value in whole.state["model"].items():
        torch.testing.assert_close(batched.state["model"][name], value, atol=1e-5, rtol=1e-5)


def test_sampled_neighbors_elsewhere_are_right_on_average() -> None:
    """The mean of many samples of the second propagation is the whole one; a cluster's lacks only edges within its party."""
    experiment = runner.prepare(small("fedgcn", rounds=1, min_contributors=1))
    runner.rounds(experiment)
    (cohort,) = experiment.engine.cohorts  # type: ignore[attr-defined]
    graph, whole = cohort.graph, cohort.exchanged(cohort.graph)
    rows, (first, second) = np.array([0, 7, 30, 55]), whole.propagations
    expected, total = (second.normalized_adjacency @ first.x)[rows], torch.zeros(4, graph.num_features)
    for number in range(1000):
        draws = Draws(0, range(3), "sample", number)
        sums, across = with_sums(minibatch.batch_of(graph, rows, [1], "neighbors", draws), whole, [1], draws).propagations
        assert (np.diff(across.matrix.indptr) <= 3).all()
        total += across.normalized_adjacency @ sums.x
    torch.testing.assert_close(total / 1000, expected, atol=0.1, rtol=0)
    every = np.arange(graph.num_nodes)
    sums, across = with_sums(minibatch.batch_of(graph, every, [], "clusters", draws), whole, [0], draws).propagations
    torch.testing.assert_close(across.normalized_adjacency @ sums.x, second.normalized_adjacency @ first.x)
    _, across = with_sums(minibatch.batch_of(graph, every[::2], [], "clusters", draws), whole, [0], draws).propagations
    own, entries = second.own.numpy(), second.matrix[every[::2]]
    lost = np.isin(entries.indices, np.setdiff1d(own, own[::2]))
    assert lost.any()
    np.testing.assert_array_equal(np.sort(across.matrix.data), np.sort(entries.data[~lost]))
