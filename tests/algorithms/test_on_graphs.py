"""Methods on parties with many small graphs, beside a loop over parties and batches; and their degenerate cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import atoll
import plain
from atoll.algorithms.gcfl.clusters import min_cut, time_warping
from atoll.federation.fields import concatenate
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.runner import Result
from plain_graphs import GraphParty, OneGraph, Weights, convolved, embedded, pooled, prepare
from small_graphs import graph_data, small_graphs

__all__ = ["graph_data"]
pytestmark = pytest.mark.usefixtures("graph_data")

LR, ROUNDS = 0.02, 2
PLAIN = {"optimizer": "sgd", "lr": LR, "weight_decay": 0, "dropout": 0, "rounds": ROUNDS}
Train = Callable[[GraphParty, Weights, Weights, int], Weights]


def run(algorithm: str, dataset: str = "chem", **values: Any) -> Result:
    """A run without files."""
    return runner.rounds(runner.prepare(small_graphs(algorithm, dataset, **values)))


def memory_of(result: Result) -> dict[str, Any]:
    """The memory of all parties, in party order."""
    return concatenate(list(result.memory.values()))


def close(found: dict[str, Tensor], expected: Weights) -> None:
    """The same parameters, up to rounding."""
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value.detach(), atol=1e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def rounds_of(train: Train, algorithm: str, **values: Any) -> tuple[Weights, list[Weights], Result, list[GraphParty]]:
    """The layers after some rounds of a loop, the parties' models, and atoll's run of the same configuration."""
    experiment, parties, models = prepare(small_graphs(algorithm, **{**PLAIN, **values}))
    server = experiment.algorithm.start(experiment.federation, experiment.config.settings)["model"]
    for round in range(1, ROUNDS + 1):
        models = [train(party, models[party.number], server, round) for party in parties]
        server = average(models, [party.n for party in parties], list(server))
    return server, models, runner.rounds(experiment), parties


def average(models: list[Weights], n: list[int], names: list[str]) -> Weights:
    """Σ n_k·w_k / n of the parameters that travel."""
    return plain.average([{name: w[name] for name in names} for w in models], n)


def descend(w: Weights, loss: Tensor, lr: float = LR) -> None:
    """A step of SGD."""
    plain.descend(w, loss, lr)


def detached(w: Weights) -> Weights:
    """Values without gradients."""
    return {name: value.detach().clone() for name, value in w.items()}


def test_moon_contrasts_the_graphs_of_a_batch() -> None:
    """A party's own layers stand under the server's convolutions and under its last ones alike."""
    previous: dict[int, Weights] = {}

    def train(party: GraphParty, own: Weights, server: Weights, round: int) -> Weights:
        received = {**own, **server}
        w, last = plain.leaves(received), previous.get(party.number)
        for batch in party.batches(round):
            loss = party.loss(w, batch)
            if last is not None:
                rows = [torch.stack([embedded(v, graph, "sum", "gin") for graph in batch]) for v in (w, received, last)]
                near, far = (F.cosine_similarity(rows[0], other.detach()) / 0.5 for other in rows[1:])
                loss = loss + 5 * F.softplus(far - near).mean()
            descend(w, loss)
        previous[party.number] = detached(w)
        return detached(w)

    server, models, result, _ = rounds_of(train, "moon", contrast_weight=5)
    close(result.state["model"], server)
    for p, w in enumerate(models):
        close(
            {name: value[p] for name, value in memory_of(result)["model"].items() if name not in server},
            {name: value for name, value in w.items() if name not in server},
        )


@pytest.mark.parametrize("control", [1, 2])
def test_scaffold_controls_what_is_shared(control: int) -> None:
    """Controls are those of the convolutions; the party's own layers go down their own gradient."""
    values = {**PLAIN, "control": control, "weighting": "parties", "batch_size": 16 if control == 2 else 0}
    experiment, parties, models = prepare(small_graphs("scaffold", **values))
    server = experiment.algorithm.start(experiment.federation, experiment.config.settings)["model"]
    c = {name: torch.zeros_like(value) for name, value in server.items()}
    own = [dict(c) for _ in parties]
    for round in range(1, ROUNDS + 1):
        changes = []
        for p, party in enumerate(parties):
            w = plain.leaves({**models[p], **server})
            everything = [party.role("train")]
            before, batches = own[p], party.batches(round) if control == 2 else everything
            if control == 1:
                gradients = torch.autograd.grad(party.loss(w, everything[0]), [w[name] for name in c])
                own[p] = dict(zip(c, gradients, strict=True))
            for batch in batches:
                correction = sum((w[name] * (c[name] - before[name])).sum() for name in c)
                descend(w, party.loss(w, batch) + correction)
            if control == 2:
                steps = len(batches) * LR
                own[p] = {name: before[name] - c[name] + (server[name] - w[name].detach()) / steps for name in c}
            changes.append({name: own[p][name] - before[name] for name in c})
            models[p] = detached(w)
        server = average(models, [1] * len(parties), list(server))
        mean = average(changes, [1] * len(parties), list(c))
        c = {name: c[name] + mean[name] for name in c}
    result = runner.rounds(experiment)
    close(result.state["model"], server)
    close(result.state["control"], c)


def test_feddyn_regularizes_what_is_shared() -> None:
    """The drift is that of the convolutions."""
    values = {**PLAIN, "alpha": 0.1, "weighting": "parties"}
    experiment, parties, models = prepare(small_graphs("feddyn", **values))
    server = experiment.algorithm.start(experiment.federation, experiment.config.settings)["model"]
    drifts = [{name: torch.zeros_like(value) for name, value in server.items()} for _ in parties]
    h = {name: torch.zeros_like(value) for name, value in server.items()}
    for round in range(1, ROUNDS + 1):
        for p, party in enumerate(parties):
            w = plain.leaves({**models[p], **server})
            for batch in party.batches(round):
                terms = [(w[n] * drifts[p][n]).sum() + (w[n] - server[n]).square().sum() / 2 for n in server]
                descend(w, party.loss(w, batch) + 0.1 * torch.stack(terms).sum())
            models[p] = detached(w)
            drifts[p] = {name: drifts[p][name] + models[p][name] - server[name] for name in server}
        mean = average(models, [1] * len(parties), list(server))
        h = {name: h[name] + mean[name] - server[name] for name in server}
        server = {name: mean[name] + h[name] for name in server}
    close(runner.rounds(experiment).state["model"], server)


def test_ditto_holds_what_is_shared() -> None:
    """Personal models are held near the server's convolutions; their other layers are free."""
    experiment, parties, models = prepare(small_graphs("ditto", **PLAIN, proximal=0.5))
    server = experiment.algorithm.start(experiment.federation, experiment.config.settings)["model"]
    personal = [{name: v[p].clone() for name, v in experiment.engine.state()["0"]["personal"].items()} for p in range(7)]
    for round in range(1, ROUNDS + 1):
        for p, party in enumerate(parties):
            w, v = plain.leaves({**models[p], **server}), plain.leaves(personal[p])
            for batch in party.batches(round):
                distance = torch.stack([(v[name] - server[name]).square().sum() for name in server]).sum()
                descend(v, party.loss(v, batch) + 0.25 * distance)
                descend(w, party.loss(w, batch))
            models[p], personal[p] = detached(w), detached(v)
        server = average(models, [party.n for party in parties], list(server))
    result = runner.rounds(experiment)
    close(result.state["model"], server)
    for p, party in enumerate(parties):
        close({name: value[p] for name, value in memory_of(result)["personal"].items()}, personal[p])
        assert result.rows[-1]["party_accuracy"][p] == pytest.approx(party.accuracy(personal[p]))


def test_apfl_mixes_what_is_shared() -> None:
    """v̄ = α·v + (1 − α)·w of the convolutions; the other layers are those of v, and w has its own."""
    experiment, parties, models = prepare(small_graphs("apfl", **PLAIN, mixture=0.3, mixture_lr=0))
    server = experiment.algorithm.start(experiment.federation, experiment.config.settings)["model"]
    personal = [{name: v[p].clone() for name, v in experiment.engine.state()["0"]["personal"].items()} for p in range(7)]

    def mixed(v: Weights, w: Weights) -> Weights:
        return v | {name: 0.3 * v[name] + 0.7 * w[name].detach() for name in server}

    for round in range(1, ROUNDS + 1):
        for p, party in enumerate(parties):
            w, v = plain.leaves({**models[p], **server}), plain.leaves(personal[p])
            for batch in party.batches(round):
                descend(v, party.loss(mixed(v, w), batch))
                descend(w, party.loss(w, batch))
            models[p], personal[p] = detached(w), detached(v)
        server = average(models, [party.n for party in parties], list(server))
    result = runner.rounds(experiment)
    close(result.state["model"], server)
    for p, party in enumerate(parties):
        close({name: value[p] for name, value in memory_of(result)["personal"].items()}, personal[p])
        assert result.rows[-1]["party_accuracy"][p] == pytest.approx(party.accuracy(mixed(personal[p], server)))


def test_fedrep_trains_one_part_at_a_time() -> None:
    """Head and input first, then what is shared, in one order of batches after the other."""
    config = small_graphs("fedrep", **PLAIN, head_epochs=2)
    experiment, parties, models = prepare(config)
    server = experiment.algorithm.start(experiment.federation, config.settings)["base"]
    assert not any(name.startswith(("input", "output")) for name in server)
    for round in range(1, ROUNDS + 1):
        for p, party in enumerate(parties):
            w, draws = {**models[p], **server}, Draws(config.seed, [p], "fit", round, 1)
            for names, epochs in (([n for n in w if n not in server], 2), (list(server), 1)):
                for batch in party.batches(round, epochs, draws):
                    live = plain.leaves(w)
                    gradients = torch.autograd.grad(party.loss(live, batch), [live[name] for name in names])
                    w = {**w, **{name: w[name] - LR * g for name, g in zip(names, gradients, strict=True)}}
            models[p] = w
        server = average(models, [party.n for party in parties], list(server))
    close(runner.rounds(experiment).state["base"], server)


def test_fedproto_has_prototypes_of_graphs() -> None:
    """Means of what the last layer takes, over the training graphs of a class; the next round is held near them."""
    experiment, parties, models = prepare(small_graphs("fedproto", "nci1", **PLAIN, prototype_weight=2))
    prototypes: Tensor | None = None
    for round in range(1, ROUNDS + 1):
        sums, counts = torch.zeros(2, 8), torch.zeros(2)
        for p, party in enumerate(parties):
            w = plain.leaves(models[p])
            for batch in party.batches(round):
                loss = party.loss(w, batch)
                if prototypes is not None:
                    rows = torch.stack([embedded(w, graph, "sum", "gin") for graph in batch])
                    loss = loss + 2 * (rows - prototypes[[graph.y for graph in batch]]).square().mean(1).mean()
                descend(w, loss)
            models[p] = detached(w)
            for c in range(2):
                members = [embedded(models[p], graph, "sum", "gin") for graph in party.role("train") if graph.y == c]
                if members:
                    sums[c] += torch.stack(members).mean(0)
                    counts[c] += 1
        prototypes = sums / counts[:, None]
    assert prototypes is not None
    close(runner.rounds(experiment).state, {"prototypes": prototypes})


def structure_of(graph: OneGraph, walks: int, degrees: int) -> Tensor:
    """[diag(M), …, diag(M^walks) ‖ one-hot degree, at least 1], M = A·D⁻¹."""
    degree = graph.adjacency.sum(1)
    step = graph.adjacency / degree.clamp(min=1)
    powers, power = [], torch.eye(len(step))
    for _ in range(walks):
        power = power @ step
        powers.append(power.diagonal())
    onehot = F.one_hot(degree.clamp(1, degrees).long() - 1, degrees).float()
    return torch.cat([torch.stack(powers, 1), onehot], 1)


def star_logits(w: Weights, graph: OneGraph, readout: str, model: str) -> Tensor:
    """The authors' network on one graph."""
    h = graph.x @ w["input.weight"] + w["input.bias"]
    s = structure_of(graph, 4, 3) @ w["s.embedding.weight"] + w["s.embedding.bias"]
    for layer in range(2):
        h = convolved(w, f"layers.{layer}.layers.0", torch.cat([h, s], 1), graph.adjacency, model)
        normal = plain.normalized(graph.adjacency)
        s = torch.tanh(normal @ s @ w[f"s.layers.{layer}.weight"] + w[f"s.layers.{layer}.bias"])
    both = torch.cat([h, s], 1)
    if "inner.0.weight" not in w:
        return pooled(both, readout) @ w["output.weight"] + w["output.bias"]
    z = pooled(both @ w["inner.0.weight"] + w["inner.0.bias"], readout)
    return (z @ w["inner.1.weight"] + w["inner.1.bias"]).relu() @ w["output.weight"] + w["output.bias"]


@pytest.mark.parametrize("head", ["authors", "linear"])
def test_fedstar_shares_the_structure_encoder(head: str) -> None:
    """Unequal columns and classes, uneven graphs, some of one node: the loop's encoders and accuracies."""
    values = {**PLAIN, "walk_steps": 4, "max_degree": 3, "head": head}
    experiment, parties, _ = prepare(small_graphs("fedstar", **values))
    memory = experiment.engine.state()["0"]
    personal = [{name: value[p].clone() for name, value in memory["features"].items()} for p in range(7)]
    first = experiment.algorithm.start(experiment.federation, experiment.config.settings)["structure"]
    server = {f"s.{name}": value for name, value in first.items()}
    for round in range(1, ROUNDS + 1):
        for p, party in enumerate(parties):
            w = plain.leaves({**personal[p], **server})
            for batch in party.batches(round):
                descend(w, party.loss(w, batch, star_logits))
            personal[p] = detached(w)
        server = average(personal, [party.n for party in parties], list(server))
    result = runner.rounds(experiment)
    close({f"s.{name}": value for name, value in result.state["structure"].items()}, server)
    for p, party in enumerate(parties):
        w = {**personal[p], **server}
        close(
            {name: value[p] for name, value in memory_of(result)["features"].items()},
            {name: value for name, value in w.items() if not name.startswith("s.")},
        )
        assert result.rows[-1]["party_accuracy"][p] == pytest.approx(party.accuracy(w, star_logits))


def test_fedstar_shares_the_published_number_of_parameters() -> None:
    """14,592 at width 64 with three layers: 58,368 bytes down, 58,376 up."""
    result = run("fedstar", rounds=1, hidden=64, layers=3)
    fit = result.bytes["by_verb"]["fit"]
    assert sum(value.numel() for value in result.state["structure"].values()) == 14_592
    assert (fit["down"], fit["up"]) == (7 * 58_368, 7 * 58_376)


def test_gcfl_as_its_authors_run_it() -> None:
    """Norms of the last batch's gradients, a cut that waits for all and clears all, and the maximum over test accuracies."""
    values = {"rounds_before_split": 2, "mean_update_threshold": 1e9, "longest_update_threshold": 0.0, "rounds": 4}
    sequences = {"variant": "authors", "use_sequences": "true", "sequence_length": 2}
    experiment, parties, _ = prepare(small_graphs("gcfl", **{**PLAIN, **sequences, **values}))
    models = [{name: v[p].clone() for name, v in experiment.engine.state()["0"]["personal"].items()} for p in range(7)]
    first = experiment.algorithm.start(experiment.federation, experiment.config.settings)["model"]
    servers, clusters = [{name: value[0] for name, value in first.items()}], [list(range(7))]
    norms: list[list[float]] = [[] for _ in parties]
    accuracies: list[list[float]] = []
    for round in range(1, 5):
        for server, members in zip(servers, clusters, strict=True):
            for p in members:
                w = plain.leaves({**models[p], **server})
                for batch in parties[p].batches(round):
                    gradients = torch.autograd.grad(parties[p].loss(w, batch), [w[name] for name in server])
                    descend(w, parties[p].loss(w, batch))
                norms[p].append(float(torch.cat([g.flatten() for g in gradients]).norm()))
                models[p] = detached(w)
        if round == 3:
            distance = time_warping(torch.tensor(norms)[:, -2:], standardize=False)
            leaving = min_cut(distance.max() - distance)
            clusters = [[p for p in range(7) if bool(leaving[p]) == part] for part in (False, True)]
        servers = [average([models[p] for p in c], [parties[p].n for p in c], list(servers[0])) for c in clusters]
        of_party = {p: server for server, members in zip(servers, clusters, strict=True) for p in members}
        accuracies.append([party.accuracy({**models[p], **of_party[p]}) for p, party in enumerate(parties)])
    result = runner.rounds(experiment)
    found = [sorted(p for p in range(7) if result.state["cluster"][p] == c) for c in range(2)]
    assert found == clusters
    assert result.state["heard"].tolist() == [1] * 7  # all waited for, all cleared
    for c, server in enumerate(servers):
        close({name: value[c] for name, value in result.state["model"].items()}, server)
    highest = [max(before, last) for before, last in zip(accuracies[1], accuracies[3], strict=True)]
    assert result.last["party_accuracy"] == pytest.approx(accuracies[3])
    assert result.last["max_cached_accuracy"] == pytest.approx(sum(highest) / 7)
    fit = result.bytes["by_verb"]["fit"]
    assert fit["up"] == fit["down"] + 4 * 7 * 12  # a weight and a norm


SGD = {"optimizer": "sgd", "lr": 0.05}
DEGENERATE = {  # method → settings with which it is another one, that one and its settings
    "fedprox": ({"proximal": 0}, "fedavg", {}),
    "fedopt": ({"server_optimizer": "sgd", "server_momentum": 0, "server_lr": 1}, "fedavg", {}),
    "moon": ({"contrast_weight": 0}, "fedavg", {}),
    "scaffold": ({**SGD, "freeze_controls": "true", "weighting": "train"}, "fedavg", SGD),
    "feddyn": ({"alpha": 0, "weighting": "train"}, "fedavg", {}),
    "feddc": ({"correction": "none", "drift": "false", "alpha": 0, "optimizer": "adam", "lr": 0.001}, "fedavg", {}),
    "fedala": ({"mixed_tensors": 0}, "fedavg", {}),
    "gcfl": ({"mean_update_threshold": 0}, "fedavg", {}),
    "fedper": ({"personal_layers": 2}, "fedavg", {}),
    "ditto": ({"proximal": 0, "start": "own"}, "local", {}),
    "apfl": ({"mixture": 1, "mixture_lr": 0}, "local", {}),
    "fedproto": ({"prototype_weight": 0}, "local", {}),
}


@pytest.mark.parametrize("algorithm", DEGENERATE)
def test_degenerate_cases(algorithm: str) -> None:
    """Bit for bit, with dropout, momentum of Adam and uneven batches."""
    values, other, others = DEGENERATE[algorithm]
    dataset = "nci1" if algorithm == "fedproto" else "chem"
    one, two = run(algorithm, dataset, **values), run(other, dataset, **others)
    for row, same in zip(one.rows, two.rows, strict=True):
        assert {name: row[name] for name in same if name not in ("up", "down", "seconds")} == {
            name: value for name, value in same.items() if name not in ("up", "down", "seconds")
        }


def test_centralized_has_all_graphs() -> None:
    """One party with every party's graphs, and their splits."""
    experiment = runner.prepare(small_graphs("centralized", "nci1"))
    assert experiment.party_data.parts.parties == 1
    assert len(experiment.party_data.parts.y) == 60


def test_a_comparison_shows_the_maximum_over_test_accuracies_beside() -> None:
    """What GCFL's authors report is a sentence below the table, of the last round; no other method has one."""
    comparison = atoll.compare("fedavg,gcfl", dataset="chem", seeds=1, rounds=1, hidden=8)
    *_, before, said = str(comparison).splitlines()
    assert before.startswith("gcfl ")
    highest = comparison.results["gcfl"][0].last["max_cached_accuracy"]
    assert said.startswith(f"gcfl: {100 * highest:.2f} is the mean of each party's highest test accuracy")
    assert said.endswith("nothing is selected by it.")
