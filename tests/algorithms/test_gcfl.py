"""GCFL against FedAvg, a naive loop over parties and clusters, and its parts against brute force."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

import plain
from atoll.algorithms import gcfl
from atoll.algorithms.gcfl.clusters import cut, min_cut, time_warping
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import Absent, small

MODELS = ["gcn", "sgc", "sage"]
CUTS: dict[str, Any] = {  # as soon as a cluster has three members
    "mean_update_threshold": 1e9,
    "longest_update_threshold": 0.0,
    "rounds_before_split": 0,
}


@pytest.mark.parametrize("model", MODELS)
def test_without_a_cut_it_is_fedavg(model: str) -> None:
    """One cluster for ever gives FedAvg's model and metrics, bit for bit."""
    gcfl = runner.run(small("gcfl", model=model, dropout=0.3, mean_update_threshold=0.0))
    avg = runner.run(small("fedavg", model=model, dropout=0.3))
    plain.same({name: value[0] for name, value in gcfl.state["model"].items()}, avg.state["model"])
    assert plain.metrics(gcfl) == plain.metrics(avg)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sequences", [False, True])
def test_rounds_with_a_cut_equal_a_loop_over_clusters(model: str, sequences: bool) -> None:
    """Parties train one by one; the cluster is cut as the updates (or their norms) say, and each part goes its own way."""
    values = CUTS | {"rounds_before_split": 1, "use_sequences": sequences, "sequence_length": 2}
    config = small("gcfl", model=model, rounds=3, optimizer="sgd", lr=0.2, epochs=3, **values)
    experiment, parties = plain.prepare(config)
    clusters, norms = [[0, 1, 2]], [[], [], []]  # type: ignore[var-annotated]
    models = [first_model(config.settings, experiment.federation.schema, config.seed)]
    for round in (1, 2, 3):
        trained, updates = {}, {}
        for members, server in zip(clusters, models, strict=True):
            for p in members:
                own = plain.leaves(server)
                for _ in range(3):
                    plain.descend(own, parties[p].loss(plain.forward(model, own, parties[p])), 0.2)
                trained[p] = own
                updates[p] = torch.cat([(own[name] - server[name]).detach().flatten() for name in own])
                norms[p].append(float(updates[p].norm()))
        if round == 2:
            clusters = naive_cut(updates, norms if sequences else None)
        models = [plain.average([trained[p] for p in members], [parties[p].n for p in members]) for members in clusters]
    state = runner.rounds(experiment).state
    found = [sorted(p for p in range(3) if state["cluster"][p] == c) for c in range(2)]
    assert sorted(found) == sorted(clusters)
    for members, expected in zip(clusters, models, strict=True):
        plain.close({name: value[found.index(members)] for name, value in state["model"].items()}, expected)


def naive_cut(updates: dict[int, Tensor], norms: list[list[float]] | None) -> list[list[int]]:
    """Of the three ways to part three parties, the one with the weakest ties."""

    def tie(p: int, q: int) -> float:
        if norms is None:
            return float(torch.cosine_similarity(updates[p], updates[q], dim=0)) + 1
        return max(warped(norms[a], norms[b]) for a, b in combinations(range(3), 2)) - warped(norms[p], norms[q])

    alone = min(range(3), key=lambda p: sum(tie(p, q) for q in range(3) if q != p))
    return [[alone], [q for q in range(3) if q != alone]]


def warped(one: list[float], other: list[float]) -> float:
    """Dynamic time warping by trying every path."""

    def best(i: int, j: int) -> float:
        cost = (one[i] - other[j]) ** 2
        if i == 0 and j == 0:
            return cost
        return cost + min(best(a, b) for a, b in ((i - 1, j), (i, j - 1), (i - 1, j - 1)) if a >= 0 and b >= 0)

    return float(best(len(one) - 1, len(other) - 1) ** 0.5)


@pytest.mark.parametrize("size", [2, 3, 5, 6])
def test_the_cut_is_the_weakest(size: int) -> None:
    """Against all ways to part the members."""
    generator = torch.Generator().manual_seed(size)
    for _ in range(10):
        ties = torch.rand(size, size, generator=generator)
        ties = ties + ties.t()
        leaving = min_cut(ties)
        assert not leaving[0]
        assert leaving.any()
        weights = []
        for count in range(1, size):
            for chosen in combinations(range(1, size), count):
                inside = torch.zeros(size, dtype=torch.bool)
                inside[list(chosen)] = True
                weights.append(float(ties[inside][:, ~inside].sum()))
        assert float(ties[leaving][:, ~leaving].sum()) == pytest.approx(min(weights), rel=1e-5)


@pytest.mark.parametrize("standardize", [False, True])
def test_time_warping(standardize: bool) -> None:
    """All pairs at once equal one pair after the other."""
    sequences = torch.rand(4, 5, generator=torch.Generator().manual_seed(1))
    distances = time_warping(sequences, standardize)
    if standardize:
        sequences = sequences / sequences.std(1, correction=0, keepdim=True)
    for p in range(4):
        for q in range(4):
            assert float(distances[p, q]) == pytest.approx(warped(sequences[p].tolist(), sequences[q].tolist()), abs=1e-5)
    assert float(time_warping(torch.tensor([[1.0, 2.0, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0]]), False)[0, 1]) == 0  # warped only


def test_pairs_stay_together_and_cuts_wait() -> None:
    """A cluster of two is never cut, and nothing is cut before `wait` rounds, nor while the norms say no."""
    assert int(runner.run(small("gcfl", rounds=6, **CUTS)).state["cluster"].max()) == 1
    for held in (
        {"rounds_before_split": 3},
        {"mean_update_threshold": 1e-9},
        {"longest_update_threshold": 1e9},
        {"use_sequences": True, "sequence_length": 4},
    ):
        assert int(runner.run(small("gcfl", rounds=3, **(CUTS | held))).state["cluster"].max()) == 0


@pytest.mark.parametrize(("relative", "cut"), [(True, True), (False, False)])
def test_the_thresholds_unit(relative: bool, cut: bool) -> None:
    """The same thresholds cut in units of the first round's longest update, which is about 0.01 here, and not as they are."""
    values = CUTS | {
        "mean_update_threshold": 2.0,
        "longest_update_threshold": 0.5,
        "relative_thresholds": relative,
        "optimizer": "sgd",
        "lr": 0.01,
    }
    state = runner.run(small("gcfl", rounds=2, **values)).state
    assert bool(state["cluster"].max() > 0) is cut
    assert float(state["unit"]) < 0.5 or not relative


def test_who_is_missing_stays_in_its_cluster() -> None:
    """A cluster of which nobody answers keeps its model; one of which some answer goes on without the others."""
    config = small("gcfl", rounds=2, **CUTS)
    before = runner.run(small("gcfl", rounds=1, **CUTS)).state
    lone = int((torch.bincount(before["cluster"]) == 1).nonzero())
    absent = int((before["cluster"] == lone).nonzero())
    after = runner.rounds(runner.prepare(config, engine=lambda engine: Absent(engine, {2}, {absent}))).state
    assert torch.equal(after["cluster"], before["cluster"])
    for name, value in after["model"].items():
        assert torch.equal(value[lone], before["model"][name][lone])
        assert not torch.equal(value[1 - lone], before["model"][name][1 - lone])


def test_a_party_not_yet_heard_holds_the_cut() -> None:
    """Before every member has answered once there is no cut."""
    config = small("gcfl", rounds=2, **CUTS)
    state = runner.rounds(runner.prepare(config, engine=lambda engine: Absent(engine, {1, 2}, {1}))).state
    assert int(state["cluster"].max()) == 0
    assert state["n"].tolist()[1] == 0


def test_placement_does_not_matter_after_a_cut() -> None:
    """With clusters, partial participation and amnesia: the same numbers."""
    usual = runner.run(small("gcfl", rounds=5, participation=0.7, **CUTS))
    apart = runner.run(small("gcfl", rounds=5, participation=0.7, placement="apart", amnesia="true", **CUTS))
    assert int(usual.state["cluster"].max()) == 1
    assert torch.equal(usual.state["cluster"], apart.state["cluster"])
    plain.close(usual.state["model"], apart.state["model"])


def test_secure_aggregation_refuses_it() -> None:
    """The server must see every update, so `fit` is private and may not be asked."""
    experiment = runner.prepare(small("gcfl"))
    experiment.federation.secure = True
    with pytest.raises(AtollError, match="'fit' is private"):
        runner.rounds(experiment)


def test_bytes() -> None:
    """4·w down; 4·w + 8 up, also with several clusters."""
    result = runner.run(small("gcfl", rounds=2, **CUTS))
    parameters = sum(value[0].numel() for value in result.state["model"].values())
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)


def test_convolutions_alone_are_shared() -> None:
    """`share=convolutions`: one cluster, by a loop: the server averages the convolutions, dense layers stay with their party."""
    values = {"mean_update_threshold": 0.0, "share": "convolutions", "optimizer": "sgd", "lr": 0.2, "epochs": 3}
    config = small("gcfl", rounds=2, **values)
    experiment, parties = plain.prepare(config)
    memory = experiment.engine.state()["0"]["personal"]
    personal = [{name: value[p].clone() for name, value in memory.items()} for p in range(3)]
    state = gcfl.start(experiment.federation, config.settings)
    server = {name: value[0] for name, value in state["model"].items()}
    assert all(name.startswith("convolutions.") for name in server)
    for _ in range(2):
        trained = []
        for p, party in enumerate(parties):
            own = plain.leaves({**personal[p], **server})
            for _ in range(3):
                plain.descend(own, party.loss(framed(own, party)), 0.2)
            personal[p] = {name: own[name].detach() for name in personal[p]}
            trained.append({name: own[name] for name in server})
        server = plain.average(trained, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close({name: value[0] for name, value in result.state["model"].items()}, server)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.memory["0"]["personal"].items()}, personal[p])
    parameters = 2 * (64 * 64 + 64)
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)


def framed(w: plain.Weights, party: plain.Party) -> Tensor:
    """A linear layer, two convolutions, a linear layer with relu, a linear layer."""
    x = party.x @ w["input.weight"] + w["input.bias"]
    for layer in (0, 1):
        at = f"convolutions.{layer}.layers.0"
        x = (party.normalized_adjacency @ x @ w[f"{at}.weight"] + w[f"{at}.bias"]).relu()
    return (x @ w["post.weight"] + w["post.bias"]).relu() @ w["output.weight"] + w["output.bias"]


def test_the_mean_update_may_be_plain() -> None:
    """Two long opposite updates and a short one: the plain mean is short enough to cut, the weighted one is not."""
    updates = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.1]])
    state = {
        "cluster": torch.zeros(3, dtype=torch.int64),
        "update": updates,
        "n": torch.tensor([98, 1, 1]),
        "unit": torch.ones(()),
        "heard": torch.ones(3, dtype=torch.int64),
        "model": {"w": torch.zeros(1, 2)},
    }
    cuts = {}
    for mean in ("weighted", "plain"):
        settings = gcfl.Settings(mean_update_threshold=0.3, longest_update_threshold=0.5, mean_update=mean)
        cuts[mean] = len(cut(state, 0, settings)["model"]["w"])
    assert cuts == {"weighted": 1, "plain": 2}
