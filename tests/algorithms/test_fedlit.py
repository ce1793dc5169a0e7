"""FedLit against a naive loop over parties, links and branches, its matching against plain words, its bytes and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll import wire
from atoll.algorithms import fedlit
from atoll.errors import AtollError
from atoll.graphs.links import LinkEnds, greedy_matching
from atoll.runs import runner
from small import small

MODELS = ["gcn", "sgc", "sage"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("iterations", [1, 2])
def test_two_rounds_equal_a_loop_over_parties_and_branches(model: str, iterations: int) -> None:
    """Links are typed one by one in every epoch, branches run on the dense graph of the nodes that their links touch."""
    values: dict[str, Any] = {"link_types": 2, "em_steps": iterations, "hidden": 8, "optimizer": "sgd", "lr": 0.2, "epochs": 3}
    config = small("fedlit", model=model, rounds=2, **values)
    experiment, parties = plain.prepare(config)
    server = fedlit.start(experiment.federation, config.settings)
    shared, branches, centers = server["shared"], server["branches"], server["centres"]
    for _ in range(2):
        replies = [fit(model, party, shared, branches, centers, iterations) for party in parties]
        orders = [greedy_order(reply[2], centers) for reply in replies]
        shared = plain.average([reply[0] for reply in replies], [party.n for party in parties])
        for k in range(2):
            trained = [(r, o) for r, o in zip(replies, orders, strict=True) if r[3][o[k]]]
            for name in branches:
                branches[name][k] = torch.stack([r[1][name][o[k]].detach() for r, o in trained]).mean(0)
        centers = torch.stack([reply[2][order] for reply, order in zip(replies, orders, strict=True)]).mean(0)
    state = runner.rounds(runner.prepare(config)).state
    plain.close(state["shared"], shared)
    plain.close(state["branches"], branches)
    torch.testing.assert_close(state["centres"], centers, atol=1e-5, rtol=1e-4)


def fit(
    model: str, party: plain.Party, shared: plain.Weights, branches: plain.Weights, centers: Tensor, iterations: int
) -> tuple[plain.Weights, plain.Weights, Tensor, list[int]]:
    """A party's layers, branches, centers and training nodes that each type touches, after a round of three epochs."""
    ends = [(v, u) for u in range(len(party.y)) for v in range(u) if party.adjacency[u, v] or party.adjacency[v, u]]
    weights = plain.leaves({**shared, **{f"branch.{name}": value for name, value in branches.items()}})
    own, trained = centers.clone(), [0, 0]
    for _ in range(3):
        embedded = party.x @ weights["input.weight"] + weights["input.bias"]
        links = [torch.cat([embedded[low], embedded[high]]).detach() for low, high in ends]
        for _ in range(iterations):
            types = [max((0, 1), key=lambda k, link=link: float(F.cosine_similarity(link, own[k], dim=0))) for link in links]
            for k in (0, 1):
                selected = [link for link, kind in zip(links, types, strict=True) if kind == k]
                own[k] = torch.stack(selected).mean(0) if selected else own[k]
        summed = torch.zeros_like(embedded)
        for k in (0, 1):
            pairs = [pair for pair, kind in zip(ends, types, strict=True) if kind == k]
            nodes = sorted({node for pair in pairs for node in pair})
            adjacency = torch.zeros(len(nodes), len(nodes))
            for low, high in pairs:
                adjacency[nodes.index(low), nodes.index(high)] = adjacency[nodes.index(high), nodes.index(low)] = 1
            one = {name.removeprefix("branch."): value[k] for name, value in weights.items() if name.startswith("branch.")}
            summed = summed.index_add(0, torch.tensor(nodes), convolve(model, one, embedded[nodes], adjacency))
            trained[k] = int(party.train[nodes].sum())
        plain.descend(weights, party.loss(summed @ weights["output.weight"] + weights["output.bias"]), 0.2)
    layers = {name: weights[name] for name in shared}
    return layers, {name: weights[f"branch.{name}"] for name in branches}, own, trained


def convolve(model: str, w: plain.Weights, x: Tensor, adjacency: Tensor) -> Tensor:
    """One branch on the nodes of its type alone; every one of them has a link."""
    degree = adjacency.sum(1)
    normalized = adjacency / (degree[:, None] * degree).sqrt()
    x = x @ w["projection.weight"] + w["projection.bias"]
    if model == "sgc":
        return normalized @ normalized @ x @ w["layers.0.weight"] + w["layers.0.bias"]
    for layer in (0, 1):
        if model == "gcn":
            x = (normalized @ x @ w[f"layers.{layer}.weight"] + w[f"layers.{layer}.bias"]).relu()
        else:
            near = adjacency / degree[:, None] @ x @ w[f"layers.{layer}.near.weight"] + w[f"layers.{layer}.near.bias"]
            x = (near + x @ w[f"layers.{layer}.own.weight"]).relu()
    return x


def greedy_order(own: Tensor, centers: Tensor) -> list[int]:
    """For each of the server's types the party's: the best pair first, then the best pair of what is left."""
    cosines = {(s, p): float(F.cosine_similarity(own[p], centers[s], dim=0)) for s in range(len(own)) for p in range(len(own))}
    order = [-1] * len(own)
    while cosines:
        s, p = max(cosines, key=lambda pair: cosines[pair])
        order[s] = p
        cosines = {pair: value for pair, value in cosines.items() if pair[0] != s and pair[1] != p}
    return order


def test_greedy_matching_takes_the_best_pair_first() -> None:
    """Not the best sum: 0.9 is taken although it leaves 0.0; random scores against plain words."""
    scores = torch.tensor([[[0.9, 0.8], [0.8, 0.0]]])
    assert greedy_matching(scores).tolist() == [[0, 1]]
    generator = torch.Generator().manual_seed(0)
    reference, centers = torch.randn(4, 6, generator=generator), torch.randn(5, 4, 6, generator=generator)
    assert fedlit.match(centers, reference).tolist() == [greedy_order(one, reference) for one in centers]


def test_a_type_that_a_party_does_not_have_is_left_to_the_others() -> None:
    """Plain means in the server's order; where nobody has the type, what was before."""
    values = torch.tensor([[[1.0], [2.0], [3.0]], [[10.0], [20.0], [30.0]]])
    order = torch.tensor([[0, 1, 2], [1, 0, 2]])  # the second party's types 0 and 1 are the server's 1 and 0
    present = torch.tensor([[True, False, False], [True, True, False]])
    mean = fedlit.mean_of_types(values, present, order, torch.tensor([[7.0], [8.0], [9.0]]))
    assert mean.tolist() == [[10.5], [10.0], [9.0]]


def test_links_are_the_ends_side_by_side() -> None:
    """Nearest centers and means equal those of the vectors [a ‖ b] written out; first centers are links of their party."""
    experiment = runner.prepare(small("fedlit"))
    graph = experiment.party_data.parts
    links, generator = LinkEnds(graph), torch.Generator().manual_seed(1)
    nodes, centers = (torch.randn(*shape, generator=generator) for shape in ((graph.num_nodes, 5), (graph.parties, 3, 10)))
    written = nodes[links.ends].transpose(0, 1).flatten(1)  # (L, 2·h)
    cosines = F.cosine_similarity(written[:, None], centers[links.party], dim=2)
    types = links.nearest(nodes, centers)
    assert torch.equal(types, cosines.argmax(1))
    means = links.means(nodes, types, centers)
    for p in range(graph.parties):
        own = written[links.party == p]
        for k in range(3):
            torch.testing.assert_close(means[p, k], own[types[links.party == p] == k].mean(0))
        first = links.first_centers(nodes, torch.rand(graph.parties, 3, generator=generator))[p]
        assert all((own == center).all(1).any() for center in first)
        assert len({tuple(center.tolist()) for center in first}) == 3  # a link at distance 0 is never taken again


@pytest.mark.parametrize("links", ["none", "few"])
def test_parties_with_hardly_any_links(links: str) -> None:
    """Parties whose graphs have no links at all, or a single one, go along."""
    config = small("fedlit", link_types=3)
    graph = runner.prepare(config).party_data.whole
    few = graph.edge_index[:, :0] if links == "none" else torch.cat([graph.edge_index[:, :1], graph.edge_index[:, :1].flip(0)], 1)
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    result = runner.run(config, replace(graph, edge_index=few, train=none, val=none, test=none))
    values = [*result.state["shared"].values(), *result.state["branches"].values(), result.state["centres"]]
    assert all(torch.isfinite(value).all() for value in values)


def test_other_convolutions_are_refused_in_a_sentence() -> None:
    """It names those it has and the method that takes any backbone."""
    with pytest.raises(AtollError, match="of gcn, sgc, sage, not gat; choose one of these, or fedlit_deep"):
        runner.run(small("fedlit", model="gat"))


def test_secure_aggregation_refuses_it() -> None:
    """The server must see every party's centers."""
    experiment = runner.prepare(small("fedlit"))
    experiment.federation.secure = True
    with pytest.raises(AtollError, match="is private"):
        runner.rounds(experiment)


def test_bytes() -> None:
    """4·w_S + 4·K·(w_B + r) down, 16·K + 8 more up; 4·w_S and 4·K·r + 8·K once."""
    result = runner.run(small("fedlit", rounds=2, link_types=3))
    shared = sum(value.numel() for value in result.state["shared"].values())
    one = sum(value[0].numel() for value in result.state["branches"].values())
    assert result.state["centres"].shape == (3, 128)
    assert shared == 12 * 64 + 64 + 64 * 3 + 3
    assert one == 3 * (64 * 64 + 64)
    assert result.bytes["by_verb"]["cluster"]["down"] == 3 * 4 * shared
    assert result.bytes["by_verb"]["cluster"]["up"] == 3 * (4 * 3 * 128 + 8 * 3)
    assert result.bytes["by_verb"]["fit"]["down"] == 2 * 3 * (4 * shared + 4 * 3 * (one + 128))
    assert result.bytes["by_verb"]["fit"]["up"] == 2 * 3 * (4 * shared + 4 * 3 * (one + 128) + 16 * 3 + 8)


@pytest.mark.parametrize("model", ["gcn", "sgc", "sage"])
def test_one_batch_with_all_neighbors_is_the_whole_graph(model: str) -> None:
    """Also with a network that reads over more links than it has layers."""
    values: dict[str, Any] = {"model": model, "dropout": 0.0, "epochs": 3, "rounds": 2, "optimizer": "sgd", "lr": 0.2}
    whole = runner.run(small("fedlit", **values))
    batched = runner.run(small("fedlit", batch_size=1000, fan_out="0", **values))
    for (name, value), (_, other) in zip(wire.leaves(whole.state), wire.leaves(batched.state), strict=True):
        torch.testing.assert_close(other, value, atol=1e-5, rtol=1e-5, msg=name)
