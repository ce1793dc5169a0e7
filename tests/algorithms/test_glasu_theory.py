"""Theorem 1's quantities against a loop over dense parties; Appendix C's noise against the accountant."""

from __future__ import annotations

import doctest
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_glasu import PLAIN, drawn, memory, parties, steps, stood_up
from torch import Tensor

import plain_vertical as naive
from atoll.algorithms.glasu import node_noise, theory
from atoll.algorithms.glasu.settings import Settings, rate, shared
from atoll.errors import AtollError
from atoll.privacy.releases import epsilon_of
from atoll.runs import runner
from plain import dense
from small import Recorded, small

QUICK = {"rounds": 2, "data.nodes": 30}


def drawn_levels(**values: Any) -> list[naive.Levels]:
    """The levels of round 1, from the messages of another run of the same seed."""
    recorded: list[Recorded] = []
    config = small("glasu", **PLAIN, **values)
    experiment = runner.prepare(config, engine=lambda engine: recorded.append(Recorded(engine)) or recorded[0])
    steps(experiment)
    return [drawn(experiment, recorded[0], party) for party in range(3)]


def gradient(ws: list[naive.Weights], levels: list[naive.Levels], s: Settings) -> list[Tensor]:
    """∇L of all parties' weights, L the sum of their losses, by autograd through the aggregation."""
    tops, _ = naive.joint(s.model, ws, levels, s.layers, shared(s), s.aggregation == "concatenation")
    loss = sum(naive.loss(w, top, own) for w, top, own in zip(ws, tops, levels, strict=True))
    assert isinstance(loss, Tensor)
    return list(torch.autograd.grad(loss, [value for w in ws for value in w.values()], materialize_grads=True))


def squared(tensors: list[Tensor]) -> float:
    """The squared norm of everything."""
    return sum(float(tensor.double().square().sum()) for tensor in tensors)


def others(sent: dict[int, list[Tensor]], party: int, concatenate: bool) -> list[Tensor]:
    """H_−m of one party at every shared layer."""
    if concatenate:
        return [torch.cat([local for p, local in enumerate(each) if p != party], 1) for each in sent.values()]
    return [sum(local for p, local in enumerate(each) if p != party) / len(each) for each in sent.values()]  # type: ignore[misc]


@pytest.mark.parametrize("aggregation", ["mean", "concatenation"])
@pytest.mark.parametrize("sampled", [False, True])
def test_meters_equal_a_loop_over_parties(aggregation: str, sampled: bool) -> None:
    """‖∇L‖² along the steps, the variance of the batch, how stale the others are afterwards: all by dense matrices."""
    batch = {"batch_size": 4, "fan_out": 1} if sampled else {"batch_size": 0}
    experiment = stood_up(aggregation=aggregation, local_steps=3, theory=1, **batch)
    s = experiment.config.settings
    ws = [naive.weights(memory(experiment), p) for p in range(3)]
    whole = [naive.everything(party, 4) for party in parties(experiment)]
    levels = drawn_levels(aggregation=aggregation, local_steps=3, **batch) if sampled else whole
    experiment.federation.begin(1)
    measured = {name: value.double().sum(0) for name, value in experiment.federation.ask("measure").fields.items()}
    first = gradient(ws, whole, s)
    variance = squared([a - b for a, b in zip(gradient(ws, levels, s), first, strict=True)])
    concatenate = aggregation == "concatenation"
    _, sent = naive.joint(s.model, ws, levels, 4, shared(s), concatenate)
    frozen = {place: [h.detach() for h in local] for place, local in sent.items()}
    norms, last = [], first
    for step in range(3):
        norms.append(squared(last))
        before = [value.detach().clone() for w in ws for value in w.values()]
        for p, w in enumerate(ws):
            naive.descend(w, naive.loss(w, naive.local_step(s.model, w, p, levels[p], 4, frozen, concatenate), levels[p]), s.lr)
        now = gradient(ws, whole, s)
        moved = squared([value.detach() - old for value, old in zip((v for w in ws for v in w.values()), before, strict=True)])
        change = squared([a - b for a, b in zip(now, last, strict=True)])
        assert float(measured["moved"][step]) == pytest.approx(moved, rel=1e-3)
        assert float(measured["change"][step]) == pytest.approx(change, rel=1e-3)
        last = now
    _, again = naive.joint(s.model, ws, levels, 4, shared(s), concatenate)
    pairs = [zip(others(frozen, p, concatenate), others(again, p, concatenate), strict=True) for p in range(3)]
    stale = sum(squared([old - new.detach() for old, new in pair]) for pair in pairs)
    assert float(measured["gradient"]) == pytest.approx(sum(norms) / 3, rel=1e-3)
    assert float(measured["variance"]) == pytest.approx(variance, rel=1e-3, abs=1e-9)
    assert (variance > 0) == sampled
    assert float(measured["stale"]) == pytest.approx(stale, rel=1e-3)
    assert stale > 0


def test_measuring_changes_nothing_but_the_bill() -> None:
    """The same numbers and states with and without; 4·(5 + 2Q) bytes per party and measured round; without, not a byte."""
    plain = runner.run(small("glasu", **PLAIN, **QUICK, local_steps=2))
    results = {every: runner.run(small("glasu", **PLAIN, **QUICK, local_steps=2, theory=every)) for every in (1, 2)}
    assert "measure" not in plain.bytes["by_verb"]
    for every, result in results.items():
        assert result.last["val_loss"] == plain.last["val_loss"]
        assert result.bytes["by_verb"]["measure"]["up"] == 3 * (2 // every) * 4 * (5 + 2 * 2)
        assert result.last["gradient_norm"] > 0
        assert not any(name.startswith(("theorem", "gradient")) for name in plain.last)


def test_the_bound_holds_where_its_conditions_do() -> None:
    """Plain SGD at less than the largest rate: what is measured is below the bound; Q = 1 is not stale after no step at all."""
    values: dict[str, Any] = {**PLAIN, **QUICK, "local_steps": 2, "theory": 1, "rounds": 4, "lr": 1e-3}
    last = runner.run(small("glasu", **values)).last
    assert values["lr"] <= last["theorem_rate"]
    assert last["gradient_norm"] < last["theorem_bound"]
    still = runner.run(small("glasu", **{**values, "lr": 0.0})).last
    assert still["staleness"] == 0
    assert math.isinf(still["theorem_rate"])


@pytest.mark.parametrize("values", [{"backward": "server", "local_steps": 1}, {"label_holder": 0}, {"shared_layers": 0}])
def test_theory_is_about_algorithms_1_to_4(values: dict[str, Any]) -> None:
    """Anything else is refused before the first round."""
    with pytest.raises(AtollError, match="theory is about Algorithms 1 to 4"):
        runner.run(small("glasu", **{**PLAIN, **QUICK, "theory": 1, **values}))


def test_parties_apart_cannot_be_measured() -> None:
    """A cohort that is not of all parties says so."""
    experiment = stood_up(theory=1)
    cohort = experiment.engine.cohorts[0]  # type: ignore[attr-defined]
    cohort.schema = replace(cohort.schema, parties=4)
    experiment.federation.begin(1)
    with pytest.raises(AtollError, match="theory needs all parties in one process"):
        experiment.federation.ask("measure")


def test_the_rate_grows_with_the_parties() -> None:
    """lr·M / lr_parties with local gradients; not through the server, and not where nothing is shared."""
    scaled = Settings(lr=0.3, lr_parties=3)
    assert [rate(scaled, 1, parties) for parties in (3, 5, 7)] == pytest.approx([0.3, 0.5, 0.7])
    assert rate(replace(scaled, lr_parties=0), 1, 7) == 0.3
    assert rate(replace(scaled, backward="server", local_steps=1), 1, 7) == 0.3
    assert rate(replace(scaled, shared_layers=0), 1, 7) == 0.3
    assert rate(replace(scaled, lr_decay=0.5, lr_every=10), 11, 6) == pytest.approx(0.3)
    assert runner.run(small("glasu", **PLAIN, **QUICK, lr_parties=1)).last["val_loss"] == pytest.approx(
        runner.run(small("glasu", **{**PLAIN, "lr": 3 * 0.2}, **QUICK)).last["val_loss"]
    )


def test_rows_reached_against_a_tree() -> None:
    """A regular tree has exactly as many nodes within that many edges; a graph never has more."""
    for degree, hops in ((1, 3), (2, 4), (3, 3), (5, 2)):
        ring, seen = [(None, 0)], 1
        for _ in range(hops):
            ring = [(node, 0) for node in ring for _ in range(degree if node[0] is None else degree - 1)]  # type: ignore[misc]
            seen += len(ring)
        assert node_noise.rows_reached(degree, hops, 10**6) == seen
    assert node_noise.rows_reached(0, 5, 10) == 1


def test_features_move_no_more_than_the_sensitivity() -> None:
    """Two graphs that differ in one node's features: the clipped rows of a layer differ by at most 2C·√R, and in R rows."""
    experiment = stood_up(batch_size=0, **{"data.nodes": 30})
    party = dense(experiment.party_data.parts.select([0]))
    degree, clip = int(party.adjacency.sum(1).max()), 0.1
    w = naive.weights(memory(experiment), 0)

    def reply(x: Tensor) -> Tensor:
        levels = naive.everything(replace(party, x=x), 4)
        hidden = [naive.encode(w, levels)]
        for number in range(2):
            hidden.append(naive.layer("gcnii", number, w, hidden, levels, 4))
        rows = hidden[-1].detach()
        return rows * (clip / rows.norm(dim=1, keepdim=True)).clamp(max=1)

    reached = node_noise.rows_reached(degree, 2, 30)
    for node in range(30):
        other = party.x.clone()
        other[node] = -7 * other[node] + 3
        difference = reply(other) - reply(party.x)
        assert int((difference.abs().amax(1) > 0).sum()) <= reached
        assert float(difference.norm()) <= node_noise.sensitivity(clip, reached)


def test_noise_reaches_epsilon_and_no_less() -> None:
    """The accountant gives ε with it and more with one percent less; more rounds and degrees need more."""
    noise = node_noise.node_noise(2.0, 1e-5, 100, max_degree=4, hops=1, nodes=1000)
    for factor, fits in ((1.0, True), (0.99, False)):
        cost = 100 * 2 * 5 / (noise * factor) ** 2
        assert (epsilon_of(cost, 1e-5) <= 2.0) == fits
    assert node_noise.node_noise(2.0, 1e-5, 400, max_degree=4, hops=1, nodes=1000) == pytest.approx(2 * noise, rel=1e-3)
    assert node_noise.node_noise(2.0, 1e-5, 100, max_degree=19, hops=1, nodes=1000) == pytest.approx(2 * noise, rel=1e-3)
    with pytest.raises(AtollError, match="needs epsilon above 0"):
        node_noise.node_noise(0.0, 1e-5, 1, max_degree=1, hops=1, nodes=1)


@pytest.mark.parametrize("module", [theory, node_noise])
def test_examples(module: Any) -> None:
    """The examples in the docstrings."""
    assert doctest.testmod(module).failed == 0
