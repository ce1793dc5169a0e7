"""Link prediction across vertical parties: GLASU beside a loop over parties, and what the label holder alone knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import plain_vertical as naive
from atoll.algorithms.glasu.settings import shared
from atoll.deploy.site_data import load_run
from atoll.errors import AtollError
from atoll.federation.cohort import Schema
from atoll.graphs.graph import Graph
from atoll.graphs.pairs import EDGE
from atoll.parties import Parties
from atoll.random import Draws
from atoll.runs import config as configurations
from atoll.runs import runner
from atoll.runs.runner import Experiment
from atoll.tasks import TASKS
from plain import dense
from small import Recorded
from small_links import LinkParty, small_links

TASK = TASKS.find("link-prediction")
HOLDER, LR = 1, 0.2
PLAIN: dict[str, Any] = {"hidden": 8, "dropout": 0.0, "momentum": 0.0, "lr": LR, "layers": 2, "model": "gcn", "data.nodes": 40}


def stood_up(algorithm: str = "glasu", **values: Any) -> Experiment:
    """A small experiment without chance but for the pairs."""
    return runner.prepare(small_links(algorithm, "vertical", **{**PLAIN, **values}))


def steps(experiment: Experiment, rounds: int = 1) -> None:
    """Some rounds without evaluation."""
    experiment.algorithm.start(experiment.federation, experiment.config.settings)
    for number in range(1, rounds + 1):
        experiment.federation.begin(number)
        experiment.algorithm.step(experiment.federation, {}, experiment.config.settings)


def memory(experiment: Experiment) -> dict[str, Any]:
    """What the parties remember."""
    return experiment.engine.state()["0"]


def everything(experiment: Experiment) -> list[naive.Levels]:
    """Each party's graph, dense, with all nodes at every level."""
    parties = [dense(experiment.party_data.parts.select([p])) for p in range(3)]
    return [naive.Levels(party, [torch.arange(len(party.x))] * 3) for party in parties]


def pair_loss(w: naive.Weights, top: Tensor, batch: Graph, decoder: str) -> Tensor:
    """The holder's mean binary cross-entropy, pair by pair."""
    z = naive.classify(w, top)
    assert batch.pairs is not None
    scores = torch.stack([LinkParty.score(w, z[u], z[v], decoder) for u, v in batch.pairs.t().tolist()])
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, batch.y.float())


def pairs_of_round(experiment: Experiment, round: int) -> Graph:
    """All training edges of the holder and as many other pairs."""
    graph = experiment.party_data.parts.select([HOLDER])
    (batch,) = TASK.batches(graph, 0, Draws(experiment.config.seed, [HOLDER], "pairs", round))
    return batch


def edge_set(pairs: Tensor) -> set[tuple[int, int]]:
    """Undirected pairs."""
    return {(min(u, v), max(u, v)) for u, v in pairs.t().tolist()}


def assert_weights(experiment: Experiment, expected: list[naive.Weights]) -> None:
    """Every party has these weights."""
    for name, value in memory(experiment)["model"].items():
        for p, w in enumerate(expected):
            torch.testing.assert_close(value[p], w[name].detach(), atol=1e-5, rtol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("decoder", ["dot", "bilinear", "mlp"])
def test_stale_steps_are_those_of_a_loop_over_parties(decoder: str) -> None:
    """Two rounds of three steps: the holder descends the loss of its pairs, the others along its gradient (Algorithms 6, 7)."""
    experiment = stood_up(decoder=decoder, batch_size=0, local_steps=3)
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    levels = everything(experiment)
    before = [{name: value.detach().clone() for name, value in w.items()} for w in ws]
    steps(experiment, 2)
    for round in (1, 2):
        tops, sent = naive.joint("gcn", ws, levels, 2, shared(experiment.config.settings))
        pairs = pairs_of_round(experiment, round)
        top = tops[HOLDER].detach().requires_grad_()
        (gradient,) = torch.autograd.grad(pair_loss(ws[HOLDER], top, pairs, decoder), top)
        frozen = {layer: [h.detach() for h in local] for layer, local in sent.items()}
        for p, w in enumerate(ws):
            for _ in range(3):
                own = naive.local_step("gcn", w, p, levels[p], 2, frozen)
                naive.descend(w, pair_loss(w, own, pairs, decoder) if p == HOLDER else (gradient * own).sum(), LR)
    assert_weights(experiment, ws)
    moved = [name for name in ws[0] if not torch.equal(before[0][name], ws[0][name])]
    assert "encoder.weight" in moved  # the others learn
    assert not [name for name in moved if name.startswith(("classifier", "decoder"))]  # but what the holder's loss is made of


@pytest.mark.parametrize("algorithm", ["glasu", "simulated"])
def test_gradients_through_the_server_are_those_of_the_joint_network(algorithm: str) -> None:
    """`backward=server`: autograd through the aggregation itself, of the holder's loss."""
    experiment = stood_up(algorithm, batch_size=0, **({"local_steps": 1, "backward": "server"} if algorithm == "glasu" else {}))
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    levels = everything(experiment)
    steps(experiment, 2)
    for round in (1, 2):
        tops, _ = naive.joint("gcn", ws, levels, 2, [0, 1])
        joint = {(p, name): value for p, w in enumerate(ws) for name, value in w.items()}
        naive.descend(joint, pair_loss(ws[HOLDER], tops[HOLDER], pairs_of_round(experiment, round), "dot"), LR)
    assert_weights(experiment, ws)


def test_others_learn_the_ends_of_the_pairs_alone() -> None:
    """S[L] are the ends of the holder's pairs as a set; the other parties get no pair, and the bill is that of these rows."""
    recorded: list[Recorded] = []
    config = small_links("glasu", "vertical", **{**PLAIN, "batch_size": 4, "shared_layers": 1, "local_steps": 2, "fan_out": 1})
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    steps(experiment)
    graph = experiment.party_data.parts.select([HOLDER])
    draws = Draws(config.seed, [HOLDER], "pairs", 1)
    (order,) = draws.orders(graph.num_train.tolist())
    fitted = graph.pairs[:, graph.train][:, order[:4]]  # type: ignore[index]
    nodes = next(message.common["nodes"] for message, _ in recorded[0].delivered if "nodes" in message.common)
    assert set(fitted.flatten().tolist()) < set(nodes.tolist())
    assert bool((nodes.diff() > 0).all())
    assert len(nodes) <= 4 * 4
    for message, _ in recorded[0].delivered:
        assert message.common.keys() | message.each.keys() <= {"nodes", "aggregate", "gradient"}
    hidden, batch = len(nodes) * 8 * 4, len(nodes) * 4
    row = experiment.federation.ledger.by_party
    assert row[:, 0].tolist() == [hidden, hidden + batch + hidden, hidden]
    assert row[:, 1].tolist() == [batch + hidden + hidden, batch + hidden, batch + hidden + hidden]


def test_the_edges_of_the_label_holder_are_split_for_all() -> None:
    """It alone has pairs; its validation and test edges are in the graph of no party, nor in that of all columns."""
    parts = stood_up(edge_fraction=0.9).party_data.parts
    whole = stood_up("centralized_vertical", edge_fraction=0.9).party_data.parts
    assert parts.pairs is not None
    assert whole.pairs is not None
    assert parts.items.sizes[0] == parts.items.sizes[2] == 0
    held_out = edge_set(parts.ids[parts.pairs[:, (parts.val | parts.test) & (parts.y == EDGE)]])
    assert held_out
    for p in range(3):
        assert not held_out & edge_set(parts.select([p]).edge_index)
    assert not held_out & edge_set(whole.edge_index)
    for name in ("val", "test"):
        judged = [edge_set(graph.ids[graph.pairs[:, getattr(graph, name)]]) for graph in (parts, whole)]  # type: ignore[index]
        assert judged[0] == judged[1]


def test_standalone_is_the_label_holder_alone() -> None:
    """The other parties take no step, not even one of momentum or decay, and are not judged."""
    experiment = stood_up("standalone", batch_size=3, momentum=0.9, weight_decay=0.1)
    before = {name: value.clone() for name, value in memory(experiment)["model"].items()}
    result = runner.rounds(experiment)
    for name, value in memory(experiment)["model"].items():
        assert torch.equal(value[[0, 2]], before[name][[0, 2]]), name
        assert not torch.equal(value[HOLDER], before[name][HOLDER]), name
    assert [auc is None for auc in result.rows[-1]["party_auc"]] == [True, False, True]
    assert result.bytes["by_verb"].keys() <= {"train", "evaluate"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"label_holder": 5}, "set label_holder to a party, 0 to 2"),
        ({"label_holder": -1}, "set label_holder to a party, 0 to 2"),
        ({"disjoint": 0.3}, "set disjoint=0"),
        ({"evaluation_neighbors": "sampled"}, "evaluated on the whole graph"),
        ({"theory": 1}, "no label_holder"),
    ],
)
def test_refusals(values: dict[str, Any], words: str) -> None:
    """One sentence before the first round."""
    with pytest.raises(AtollError, match=words):
        runner.rounds(stood_up(**values))


def write_parties(folder: Path, *, split: bool = True) -> Path:
    """Two parties with the same 24 nodes in another order, columns of their own, edges in common, and no labels."""
    rng = np.random.default_rng(3)
    ends = sorted({(int(min(p)), int(max(p))) for p in rng.integers(24, size=(90, 2)) if p[0] != p[1]})
    roles = ["test" if i % 5 == 0 else "val" if i % 7 == 0 else "train" for i in range(len(ends))]
    for name, kept, order in (("bank", slice(None), range(24)), ("shop", slice(0, 60), range(23, -1, -1))):
        (folder / name).mkdir(parents=True)
        nodes = {"id": [f"n{i}" for i in order]} | {f"{name}{c}": rng.normal(size=24) for c in range(3)}
        pd.DataFrame(nodes).to_csv(folder / name / "nodes.csv", index=False)
        table = pd.DataFrame({"source": [f"n{u}" for u, _ in ends[kept]], "target": [f"n{v}" for _, v in ends[kept]]})
        if split:
            table["split"] = roles[kept]
        table.to_csv(folder / name / "edges.csv", index=False)
    return folder


def test_own_folders_in_one_process_and_at_their_sites(tmp_path: Path) -> None:
    """The data's own roles hold at both parties; a site's part is that of the simulation; without roles a site is refused."""
    values = {"task": "link-prediction", "rounds": 2, "hidden": 8, "layers": 2, "model": "gcn", "label_holder": 0}
    folder = write_parties(tmp_path / "data")
    config = configurations.resolve("glasu", dataset=str(folder), partition="files", values=values)
    result = runner.run(config, out=tmp_path / "run")
    assert "auc" in result.metrics
    parts = runner.prepare(config).party_data.parts
    held_out = edge_set(parts.ids[parts.pairs[:, (parts.val | parts.test) & (parts.y == EDGE)]])  # type: ignore[index]
    assert len(held_out) > 10
    assert not held_out & edge_set(parts.ids[parts.edge_index])
    for number, name in enumerate(("bank", "shop")):
        at_site = replace(config, partition="vertical")
        alone = _at_site(folder / name, at_site, number)
        there = parts.select([number])
        for field in ("edge_index", "pairs", "y", "train", "val", "test"):
            assert torch.equal(getattr(alone, field), getattr(there, field)), (name, field)
    bare = write_parties(tmp_path / "bare", split=False)
    with pytest.raises(AtollError, match="give edges a column `split`"):
        _at_site(bare / "shop", replace(config, partition="vertical"), 1)


def _at_site(folder: Path, config: Any, number: int) -> Graph:
    """What a site makes of its folder when the nodes that all hold are in the first party's order."""
    from atoll.deploy.node_matching import digests

    order = {"nodes": digests([f"n{i}" for i in range(24)], "node", b"key")}
    return load_run(folder, config, Schema(3, 2, 2, 24), Parties([number]), order, None, b"key", print)[0]
