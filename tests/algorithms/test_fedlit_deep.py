"""FedLit against FedAvg, a naive loop over parties, links and channels, and its alignment against brute force."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import plain
from atoll import wire
from atoll.algorithms import fedlit_deep
from atoll.errors import AtollError
from atoll.runs import runner
from small import small

MODELS = ["gcn", "sgc", "sage"]


@pytest.mark.parametrize("model", [*MODELS, "gat", "gcnii"])
def test_with_one_link_type_it_is_fedavg(model: str) -> None:
    """One channel sees all links: FedAvg's model and metrics, bit for bit, with dropout too."""
    lit = runner.run(small("fedlit_deep", model=model, dropout=0.3, link_types=1))
    avg = runner.run(small("fedavg", model=model, dropout=0.3))
    plain.same({name: value[0] for name, value in lit.state["model"].items()}, avg.state["model"])
    assert plain.metrics(lit) == plain.metrics(avg)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("iterations", [1, 2])
def test_two_rounds_equal_a_loop_over_parties_and_channels(model: str, iterations: int) -> None:
    """Links are typed one by one, channels run on dense matrices of their links, parties are aligned by trying all orders."""
    values: dict[str, Any] = {"link_types": 2, "em_steps": iterations, "hidden": 8, "optimizer": "sgd", "lr": 0.2, "epochs": 3}
    config = small("fedlit_deep", model=model, rounds=2, **values)
    experiment, parties = plain.prepare(config)
    server = fedlit_deep.start(experiment.federation, config.settings)
    channels, centers = server["model"], server["centres"]
    for _ in range(2):
        replies = [fit(model, party, channels, centers, iterations) for party in parties]
        orders = [best_order(own, centers) for _, own, _ in replies]
        aligned = [{name: value[list(o)] for name, value in r[0].items()} for r, o in zip(replies, orders, strict=True)]
        channels = plain.average(aligned, [party.n for party in parties])
        counts = [r[2][list(o)] for r, o in zip(replies, orders, strict=True)]
        assert all((count > 0).all() for count in counts)
        sums = sum(r[1][list(o)] * c[:, None] for r, o, c in zip(replies, orders, counts, strict=True))
        centers = sums / sum(counts)[:, None]
    state = runner.rounds(runner.prepare(config)).state
    plain.close(state["model"], channels)
    torch.testing.assert_close(state["centres"], centers, atol=1e-5, rtol=1e-4)


def fit(
    model: str, party: plain.Party, channels: plain.Weights, centers: Tensor, iterations: int
) -> tuple[plain.Weights, Tensor, Tensor]:
    """A party's channels, centers and number of links of each type after a round."""
    lonely = replace(party, adjacency=torch.zeros_like(party.adjacency))
    nodes = sum(hidden(model, {name: value[k] for name, value in channels.items()}, lonely) for k in range(2))
    ends = [(u, v) for u in range(len(party.y)) for v in range(u) if party.adjacency[u, v] or party.adjacency[v, u]]
    links = [F.normalize(torch.cat([nodes[u] + nodes[v], (nodes[u] - nodes[v]).abs()]), dim=0) for u, v in ends]
    own = centers.clone()
    for _ in range(iterations):
        types = [max(range(2), key=lambda k, link=link: float(F.cosine_similarity(link, own[k], dim=0))) for link in links]
        for k in range(2):
            chosen = [link for link, kind in zip(links, types, strict=True) if kind == k]
            own[k] = torch.stack(chosen).mean(0) if chosen else own[k]
    adjacencies = torch.zeros(2, *party.adjacency.shape)
    for (u, v), kind in zip(ends, types, strict=True):
        adjacencies[kind, u, v], adjacencies[kind, v, u] = party.adjacency[u, v], party.adjacency[v, u]
    weights = plain.leaves(channels)
    for _ in range(3):
        logits = sum(
            plain.forward(model, {name: value[k] for name, value in weights.items()}, replace(party, adjacency=adjacencies[k]))
            for k in range(2)
        )
        plain.descend(weights, party.loss(logits), 0.2)
    return weights, own, torch.tensor([types.count(0), types.count(1)])


def hidden(model: str, w: plain.Weights, party: plain.Party) -> Tensor:
    """The hidden layer of a node without links; SGC, which has none, gives its output."""
    if model == "sage":
        return (party.x @ w["layers.0.own.weight"] + w["layers.0.near.bias"]).relu()
    linear = party.x @ w["layers.0.weight"] + w["layers.0.bias"]
    return linear if model == "sgc" else linear.relu()


def best_order(own: Tensor, centers: Tensor) -> tuple[int, ...]:
    """Of all orders of a party's types the one nearest to the server's."""

    def likeness(order: tuple[int, ...]) -> float:
        return float(F.cosine_similarity(own[list(order)], centers, dim=1).sum())

    return max(permutations(range(len(own))), key=likeness)


def test_alignment_finds_a_shuffled_order() -> None:
    """Types a party numbers otherwise come back to their places, with their channels; against trying all orders."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(4, 6, generator=generator)
    orders = torch.stack([torch.randperm(4, generator=generator) for _ in range(5)])
    shuffled = torch.stack([reference[order] + 0.05 * torch.randn(4, 6, generator=generator) for order in orders])
    found = fedlit_deep.align(shuffled, reference)
    for own, order in zip(shuffled, found, strict=True):
        assert tuple(order.tolist()) == best_order(own, reference)
    torch.testing.assert_close(fedlit_deep.reorder(shuffled, found), reference.expand(5, -1, -1), atol=0.3, rtol=0)
    assert torch.equal(fedlit_deep.reorder(orders, found), torch.arange(4).expand(5, -1))


def test_every_link_is_in_one_channel() -> None:
    """The typed graph has every edge once, both directions in the channel of their link, and leaves parties apart."""
    experiment = runner.prepare(small("fedlit_deep", link_types=3))
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    graph = cohort.graph
    types = torch.arange(cohort.links.ends.shape[1]) % 3
    typed = cohort.channels.nodes.linked(types)
    edges = typed.edge_index
    assert torch.equal(typed.ids[edges], graph.ids[graph.edge_index])
    blocks = typed.party[edges]
    assert torch.equal(blocks[0], blocks[1])
    assert torch.equal(blocks // 3, graph.party[graph.edge_index])
    channel = {(int(u), int(v)): int(c) for (u, v), c in zip(graph.edge_index.t(), blocks[0] % 3, strict=True)}
    assert all(channel[u, v] == channel[v, u] for u, v in channel)
    assert cohort.links.ends.shape[1] * 2 == graph.edge_index.shape[1]
    assert (cohort.links.party.diff() >= 0).all()


def test_a_party_without_links_of_a_type_stays_out_of_its_channel() -> None:
    """The channel's mean is over those who have such links, in the server's order; with everybody where nobody has any."""
    channels = {"w": torch.tensor([[[1.0], [2.0], [3.0]], [[10.0], [20.0], [30.0]]])}
    order = torch.tensor([[0, 1, 2], [1, 0, 2]])  # the second party's types 0 and 1 are the server's 1 and 0
    links = torch.tensor([[5, 0, 0], [4, 7, 0]])
    mean = fedlit_deep.average(channels, links, torch.tensor([1, 3]), order)["w"]
    torch.testing.assert_close(mean, torch.tensor([[(1 + 3 * 20) / 4], [10.0], [(3 + 3 * 30) / 4]]))


def test_a_center_nobody_is_near_keeps_its_place() -> None:
    """Centers are weighted by links."""
    centers = torch.tensor([[[2.0, 0.0], [0.0, 4.0]], [[6.0, 0.0], [0.0, 8.0]]])
    order = torch.tensor([[0, 1], [0, 1]])
    merged = fedlit_deep.merge(centers, torch.tensor([[3, 0], [1, 0]]), order, torch.tensor([[9.0, 9.0], [7.0, 7.0]]))
    assert merged.tolist() == [[3.0, 0.0], [7.0, 7.0]]


@pytest.mark.parametrize("links", ["none", "few"])
def test_parties_with_hardly_any_links(links: str) -> None:
    """Parties whose graphs have no links at all, or a single one, go along."""
    config = small("fedlit_deep", link_types=3)
    graph = runner.prepare(config).party_data.whole
    few = graph.edge_index[:, :0] if links == "none" else torch.cat([graph.edge_index[:, :1], graph.edge_index[:, :1].flip(0)], 1)
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    result = runner.run(config, replace(graph, edge_index=few, train=none, val=none, test=none))
    assert all(torch.isfinite(value).all() for value in (*result.state["model"].values(), result.state["centres"]))


def test_secure_aggregation_refuses_it() -> None:
    """The server must see every party's centers."""
    experiment = runner.prepare(small("fedlit_deep"))
    experiment.federation.secure = True
    with pytest.raises(AtollError, match="is private"):
        runner.rounds(experiment)


@pytest.mark.parametrize(("model", "width"), [("gcn", 2 * 64), ("sgc", 2 * 3)])
def test_bytes(model: str, width: int) -> None:
    """4·K·(w + r) down and 4·K·(w + r) + 8·K + 8 up a round; 4·K·w and 4·K·r + 8·K once."""
    result = runner.run(small("fedlit_deep", model=model, rounds=2, link_types=3))
    channel = sum(value[0].numel() for value in result.state["model"].values())
    assert result.state["centres"].shape == (3, width)
    assert result.bytes["by_verb"]["cluster"]["down"] == 3 * 4 * 3 * channel
    assert result.bytes["by_verb"]["cluster"]["up"] == 3 * (4 * 3 * width + 8 * 3)
    assert result.bytes["by_verb"]["fit"]["down"] == 2 * 3 * 4 * 3 * (channel + width)
    assert result.bytes["by_verb"]["fit"]["up"] == 2 * 3 * (4 * 3 * (channel + width) + 8 * 3 + 8)


@pytest.mark.parametrize("model", ["gcn", "gat", "appnp"])
def test_one_batch_with_all_neighbors_is_the_whole_graph(model: str) -> None:
    """Also with a network that reads over more links than it has layers."""
    values: dict[str, Any] = {"model": model, "dropout": 0.0, "epochs": 3, "rounds": 2, "optimizer": "sgd", "lr": 0.2}
    whole = runner.run(small("fedlit_deep", **values))
    batched = runner.run(small("fedlit_deep", batch_size=1000, fan_out="0", **values))
    for (name, value), (_, other) in zip(wire.leaves(whole.state), wire.leaves(batched.state), strict=True):
        torch.testing.assert_close(other, value, atol=1e-5, rtol=1e-5, msg=name)
