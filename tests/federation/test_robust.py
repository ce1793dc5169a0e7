"""Robust totals: each rule against a loop over coordinates, and runs in which f of P parties lie."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from atoll import algorithms, wire
from atoll.deferred import dense
from atoll.errors import AtollError, AtollWarning
from atoll.federation.cohort import Message
from atoll.federation.federation import Answer, Engine, Failure
from atoll.federation.robust import RULES, Robust, needed
from atoll.runs import config, runner
from atoll.runs.config import Config
from small import Absent, Wrapper, small

ROBUST = RULES[1:]
PARTIES, LIARS = 7, (1, 4)
AVERAGED = [name for name in algorithms.names() if algorithms.find(name).Cohort.averaged()]
SENT = {"a": torch.tensor([0.5, -0.5, 0.0]), "b": torch.zeros(2, 2)}


def replies(parties: int = PARTIES, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Models (P, …) and whole weights (P,)."""
    random = torch.Generator().manual_seed(seed)
    model = {name: value + torch.randn(parties, *value.shape, generator=random) for name, value in SENT.items()}
    return model, torch.randint(1, 50, (parties,), generator=random)


def total(rule: str, model: dict[str, Tensor], n: Tensor, liars: int = 2, norm: float = 0.0) -> dict[str, Tensor]:
    """The rule's model, as FedAvg's server computes it."""
    fields = {"model": {name: value * n.view(-1, *[1] * (value.ndim - 1)) for name, value in model.items()}, "n": n}
    result = Robust(rule, liars, norm, {"fit": {"model": "n"}}).total("fit", fields, {"model": SENT})
    assert result["n"] == 1
    assert result["n"].dtype == n.dtype
    return {name: value / result["n"] for name, value in result["model"].items()}


def vectors(model: dict[str, Tensor]) -> list[list[float]]:
    """Each party's model as one list of numbers."""
    joined = torch.cat([value.flatten(1) for value in model.values()], 1)
    return [[float(x) for x in row] for row in joined]


def naive(rule: str, rows: list[list[float]], f: int, norm: float) -> list[float]:
    """The rule by loops over parties and coordinates."""
    count, width = len(rows), len(rows[0])
    if rule in ("median", "trimmed"):
        trim = f if rule == "trimmed" else (count - 1) // 2
        result = []
        for j in range(width):
            kept = sorted(row[j] for row in rows)[trim : count - trim]
            result.append(sum(kept) / len(kept))
        return result
    if rule == "clipped":
        sent = [float(x) for value in SENT.values() for x in value.flatten()]
        updates = [[x - y for x, y in zip(row, sent, strict=True)] for row in rows]
        lengths = [math.sqrt(sum(x * x for x in update)) for update in updates]
        middle = sorted(lengths)
        longest = norm or (middle[(count - 1) // 2] + middle[count // 2]) / 2
        short = [[x * min(1, longest / length) for x in update] for update, length in zip(updates, lengths, strict=True)]
        return [y + sum(update[j] for update in short) / count for j, y in enumerate(sent)]
    scores = []
    for i, row in enumerate(rows):
        others = [sum((x - y) ** 2 for x, y in zip(row, other, strict=True)) for k, other in enumerate(rows) if k != i]
        scores.append(sum(sorted(others)[: count - f - 2]))
    best = sorted(range(count), key=lambda i: scores[i])[: 1 if rule == "krum" else count - f - 2]
    return [sum(rows[i][j] for i in best) / len(best) for j in range(width)]


CASES = [(rule, p, f) for rule in ROBUST for p in (5, 8, 11) for f in (0, 1, 2) if p >= needed(rule, f)]


@pytest.mark.parametrize(("rule", "parties", "f"), CASES)
def test_a_rule_is_what_loops_make_of_it(rule: str, parties: int, f: int) -> None:
    """Every rule coordinate by coordinate, for odd and even numbers of parties."""
    for norm in (0.0, 0.7) if rule == "clipped" else (0.0,):
        model, n = replies(parties, seed=f)
        found = [float(x) for value in total(rule, model, n, f, norm).values() for x in value.flatten()]
        assert found == pytest.approx(naive(rule, vectors(model), f, norm), abs=1e-5)


@pytest.mark.parametrize("rule", ROBUST)
def test_no_lie_takes_the_result_out_of_the_honest_range(rule: str) -> None:
    """Whatever two of seven reply, no coordinate leaves what the others span; clipped, no update is longer than theirs."""
    for seed, size in itertools.product(range(5), (1.0, 1e3, 1e30)):
        model, n = replies(seed=seed)
        honest = [i for i in range(PARTIES) if i not in LIARS]
        for value in model.values():
            value[list(LIARS)] = size * torch.randn(len(LIARS), *value.shape[1:], generator=torch.Generator().manual_seed(seed))
        found = total(rule, model, n)
        longest = max(sum(float((model[k][i] - SENT[k]).square().sum()) for k in SENT) ** 0.5 for i in honest)
        for name, value in found.items():
            if rule == "clipped":
                assert float((value - SENT[name]).norm()) <= longest * 1.001
            elif size > 1:
                low, high = model[name][honest].amin(0), model[name][honest].amax(0)
                assert bool(((value >= low - 1e-5) & (value <= high + 1e-5)).all())


def test_krum_returns_an_honest_reply() -> None:
    """Two far away, even side by side, are not chosen: what comes out is one of the others', number by number."""
    model, n = replies()
    for value in model.values():
        value[list(LIARS)] = 30.0
    found = total("krum", model, n)
    matches = [i for i in range(PARTIES) if all(torch.allclose(found[k], model[k][i], atol=1e-6) for k in found)]
    assert len(matches) == 1
    assert matches[0] not in LIARS


@pytest.mark.parametrize("rule", ROBUST)
def test_a_lying_weight_does_not_matter(rule: str) -> None:
    """A party with a million times its nodes has the same say; one with none, or fewer, has no say."""
    model, n = replies()
    usual = total(rule, model, n)
    lying = n.clone()
    lying[4] *= 2**20  # both the weight and the weighted model: exact in floating point
    assert all(torch.equal(value, usual[name]) for name, value in total(rule, model, lying).items())
    for nothing in (0, -5):
        lying[4] = nothing
        others = [i for i in range(PARTIES) if i != 4]
        without = total(rule, {name: value[others] for name, value in model.items()}, n[others], liars=1)
        found = total(rule, model, lying, liars=1)
        assert all(torch.equal(value, without[name]) for name, value in found.items())


def test_a_mean_that_is_not_finite_has_no_say() -> None:
    """A float weight near zero makes a quotient overflow: that reply is left out, not the run spoiled."""
    model, n = replies()
    weights = n.double()
    fields = {"model": {name: value * weights.view(-1, *[1] * (value.ndim - 1)) for name, value in model.items()}, "n": weights}
    fields["n"][3] = 1e-320
    result = Robust("median", 2, 0.0, {"fit": {"model": "n"}}).total("fit", fields, {"model": SENT})
    others = [i for i in range(PARTIES) if i != 3]
    without = total("median", {name: value[others] for name, value in model.items()}, n[others])
    assert all(torch.allclose(result["model"][name].float(), value, atol=1e-6) for name, value in without.items())


@pytest.mark.parametrize("rule", ROBUST)
def test_rows_that_only_some_parties_have(rule: str) -> None:
    """Class proxies are averaged over the parties with the class, and left alone where too few have it for the rule."""
    share = torch.ones(PARTIES, 3)
    share[5:, 0] = 0  # five have the first class
    share[1:, 1] = 0  # one has the second
    proxies = torch.arange(PARTIES * 3.0).view(PARTIES, 3, 1) * share[:, :, None]
    fields = {"model": torch.zeros(PARTIES, 2), "n": torch.ones(PARTIES), "proxies": proxies, "share": share}
    kept = Robust(rule, 2, 0.0, {"fit": {"model": "n", "proxies": "share"}}).total("fit", fields, {})
    if rule in ("median", "trimmed"):
        assert float(kept["proxies"][0]) == 6  # of 0, 3, 6, 9, 12
        assert float(kept["proxies"][2]) == 11  # of 2, 5, …, 20
    if rule in ("median", "trimmed", "clipped"):
        assert kept["share"].tolist() == [1, 0, 1]
        assert float(kept["proxies"][1]) == 0
    else:
        assert set(kept["share"].tolist()) <= {0, 1}


def test_fields_that_are_not_declared_stay_sums() -> None:
    """Only what a verb declares is replaced."""
    model, n = replies()
    fields = {"model": model, "n": n, "links": torch.arange(PARTIES), "more": {"x": torch.ones(PARTIES, 2)}}
    result = Robust("median", 2, 0.0, {"fit": {"model": "n"}}).total("fit", fields, {})
    assert list(result) == list(fields)
    assert int(result["links"]) == 21
    assert result["more"]["x"].tolist() == [7, 7]


# Runs in which two of seven parties lie.

Attack = Callable[[Message, dict[str, Any], list[int], dict[str, str]], None]


def each_lie(message: Message, fields: dict[str, Any], averaged: dict[str, str]) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Of every averaged tensor: the replies (P, …), their weights, and what the server sent (or 0)."""
    found = []
    for name, weight in averaged.items():
        if name not in fields:
            continue
        sent = message.common.get(name)
        for key, value in fields[name].items() if isinstance(fields[name], dict) else [("", fields[name])]:
            around = sent[key] if isinstance(sent, dict) else sent
            reach = fields[weight].view(*fields[weight].shape, *[1] * (value.ndim - fields[weight].ndim))
            found.append((value, reach, torch.zeros(()) if around is None else around))
    return found


def huge(message: Message, fields: dict[str, Any], liars: list[int], averaged: dict[str, str]) -> None:
    """Random numbers in the thousands."""
    random = torch.Generator().manual_seed(message.round)
    for value, reach, _ in each_lie(message, fields, averaged):
        for liar in liars:
            value[liar] = 1e4 * torch.randn(value.shape[1:], generator=random) * reach[liar]


def flip(message: Message, fields: dict[str, Any], liars: list[int], averaged: dict[str, str]) -> None:
    """The update backwards, five times as long."""
    for value, reach, sent in each_lie(message, fields, averaged):
        value[liars] = (sent - 5 * (value[liars] / reach[liars].clamp(min=1) - sent)) * reach[liars]


def weight(message: Message, fields: dict[str, Any], liars: list[int], averaged: dict[str, str]) -> None:
    """The update backwards, with a million times the weight."""
    flip(message, fields, liars, averaged)
    for value, _, _ in each_lie(message, fields, averaged):
        value[liars] *= 10**6
    for name in {weight for weight in averaged.values() if weight in fields}:
        fields[name][liars] *= 10**6


def little(message: Message, fields: dict[str, Any], liars: list[int], averaged: dict[str, str]) -> None:
    """All liars as far from the mean as honest parties sometimes are (Baruch et al., NeurIPS 2019)."""
    for value, reach, _ in each_lie(message, fields, averaged):
        means = value / reach.clamp(min=1e-9)
        value[liars] = ((means.mean(0) - 1.0 * means.std(0)) * reach)[liars]


def same(message: Message, fields: dict[str, Any], liars: list[int], averaged: dict[str, str]) -> None:
    """All liars the same vector, side by side: they vouch for each other."""
    random = torch.Generator().manual_seed(message.round)
    for value, reach, sent in each_lie(message, fields, averaged):
        value[liars] = ((sent + 100 * torch.randn(value.shape[1:], generator=random)) * reach)[liars]


class Lying(Wrapper):
    """An engine some of whose parties do not reply what they computed."""

    def __init__(self, engine: Engine, attack: Attack, averaged: dict[str, dict[str, str]], liars: tuple[int, ...]) -> None:
        super().__init__(engine)
        self.attack, self.averaged, self.liars = attack, averaged, liars

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Replace the liars' replies."""
        results = self.engine.deliver(message)
        if message.verb in self.averaged:
            for result in results:
                assert isinstance(result, Answer)
                result.fields.update(copied(dense(result.fields)))
                self.attack(message, result.fields, list(self.liars), self.averaged[message.verb])
        return results


def copied(value: Any) -> Any:
    """The numbers on their own: lies must not reach what a party keeps."""
    return {name: copied(item) for name, item in value.items()} if isinstance(value, dict) else value.clone()


OWN: dict[str, dict[str, Any]] = {
    "fedgl": {"partition": "overlap", "proportions": ",".join(["0.9"] * PARTIES), "neighbors": 5},
    "gfl_appnp": {
        "partition": "node",
        "data.nodes": 120,
        "connected_train_share": 0,
        "train": 0.6,
        "val": 0.2,
        "test": 0.2,
        "lr": 0.5,
    },
    "fedmlp": {"samples": 1, "lr": 0.3, "redraw": "features"},
}


def chosen(algorithm: str, rule: str, **values: Any) -> Config:
    """An easy graph on seven parties."""
    graph = {
        "data.nodes": 420,
        "data.features": 24,
        "data.degree": 6,
        "data.classes": 3,
        "data.feature_signal": 120,
        "split": "random",
    }
    given = {**graph, "rounds": 20, "evaluate_every": 20, "lr": 0.02, "hidden": 16, "robust": rule, "byzantine": len(LIARS)}
    given |= OWN.get(algorithm, {}) | values
    partition = given.pop("partition", "random")
    parties = None if partition == "node" else PARTIES
    return config.resolve(algorithm, dataset="csbm", partition=partition, parties=parties, seed=1, values=given)


@cache
def accuracy(algorithm: str, rule: str, attack: Attack | None) -> float:
    """Of the last round's model; 0 where lies have driven plain averaging to numbers that are not finite."""
    averaged = algorithms.find(algorithm).Cohort.averaged()
    lying = None if attack is None else lambda engine: Lying(engine, attack, averaged, LIARS)
    experiment = runner.prepare(chosen(algorithm, rule), engine=lying)
    experiment.federation.limits = None  # declared bounds would refuse some of these lies before the rule sees them
    try:
        return float(runner.rounds(experiment).last["accuracy"])
    except AtollError as error:
        if rule == "none" and "is not finite" in str(error):
            return 0.0
        raise


WEAK = {("gfl_appnp", "median"), ("gfl_appnp", "krum")}  # nodes of one class each: the middle of their models is not a model
# Servers that add up what they hear over the rounds (FedDyn's correction, SCAFFOLD's control): a bias of the rule adds up too
ADDS_UP = {("feddyn", "median"), ("feddyn", "trimmed"), ("feddyn", "clipped"), ("feddyn", "krum"), ("scaffold", "clipped")}
LOSES = {("fgssl", "clipped")}  # found by this test; the cause is not known
NEAR = 0.15  # some 18 of 126 test nodes


@pytest.mark.parametrize(
    ("algorithm", "rule"), [pair for pair in itertools.product(AVERAGED, ROBUST) if pair not in WEAK | ADDS_UP | LOSES]
)
def test_lies_do_not_spoil_a_run(algorithm: str, rule: str) -> None:
    """Two of seven lie: the plain mean is lost, every rule stays near what honest parties reach together."""
    honest = accuracy(algorithm, "none", None)
    for attack in (huge, weight):
        assert accuracy(algorithm, rule, attack) > honest - NEAR, attack.__name__
    if algorithm != "fedproto":  # lies spoil its shared prototypes, to which a party's own model is only drawn
        assert accuracy(algorithm, "none", huge) < honest - 2 * NEAR


@pytest.mark.parametrize(("algorithm", "rule"), sorted(ADDS_UP | LOSES))
def test_some_lose_more(algorithm: str, rule: str) -> None:
    """Said in the documentation: do not count on these rules there."""
    honest = accuracy(algorithm, "none", None)
    assert min(accuracy(algorithm, rule, attack) for attack in (huge, weight)) < honest - NEAR


@pytest.mark.parametrize("attack", [flip, little, same])
@pytest.mark.parametrize("rule", ROBUST)
def test_other_lies_do_not_either(rule: str, attack: Attack) -> None:
    """Updates turned around; liars who hide among the others; liars who vouch for each other."""
    honest = accuracy("fedavg", "none", None)
    assert accuracy("fedavg", rule, attack) > honest - NEAR
    if attack is not little:  # which a mean of seven does not mind so soon
        assert accuracy("fedavg", "none", attack) < honest - 2 * NEAR


@pytest.mark.parametrize("rule", ["median", "trimmed", "clipped", "multikrum"])
def test_robustness_costs_little_where_nobody_lies(rule: str) -> None:
    """All honest: about as accurate as the mean."""
    assert accuracy("fedavg", rule, None) > accuracy("fedavg", "none", None) - 0.05


@pytest.mark.parametrize(("algorithm", "rule"), sorted(WEAK))
def test_where_parties_differ_too_much_a_majority_is_not_the_mean(algorithm: str, rule: str) -> None:
    """Said in the documentation: with one vector of one class at each party, the middle loses what the mean keeps."""
    assert accuracy(algorithm, rule, None) < accuracy(algorithm, "none", None) - NEAR


def test_more_liars_than_assumed_are_not_withstood() -> None:
    """The number matters: two liars against byzantine=1 reach the trimmed mean."""
    fields, n = replies()
    for value in fields.values():
        value[list(LIARS)] = 1e6
    assert float(total("trimmed", fields, n, liars=1)["a"].abs().max()) > 1e4
    assert float(total("trimmed", fields, n, liars=2)["a"].abs().max()) < 10


# The run around it.


@pytest.mark.parametrize("algorithm", AVERAGED)
def test_placement_does_not_matter(algorithm: str) -> None:
    """All parties together, or each at a site of its own: the same numbers."""
    values = {"robust": "trimmed", "byzantine": 1}
    here = runner.rounds(runner.prepare(small(algorithm, **values)))
    there = runner.rounds(runner.prepare(small(algorithm, placement="apart", **values)))
    for (name, one), (_, other) in zip(wire.leaves(here.state), wire.leaves(there.state), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5, msg=name)


def test_resume_is_exact(tmp_path: Path) -> None:
    """Nothing of a rule is kept from round to round."""
    values = {"robust": "median", "byzantine": 1, "checkpoint_every": 1}
    whole = runner.run(small("fedavg", rounds=4, **values), out=tmp_path / "whole")
    runner.run(small("fedavg", rounds=2, **values), out=tmp_path / "half")
    text = (tmp_path / "half" / "config.toml").read_text()
    (tmp_path / "half" / "config.toml").write_text(text.replace("rounds = 2", "rounds = 4"))
    (tmp_path / "half" / "result.json").unlink()
    with pytest.warns(AtollWarning, match=r"run\.rounds in config\.toml is 4"):
        resumed = runner.resume(tmp_path / "half")
    assert resumed.rounds == 4
    for (name, one), (_, other) in zip(wire.leaves(whole.state), wire.leaves(resumed.state), strict=True):
        assert torch.equal(one, other), name


def refusal(algorithm: str = "fedavg", **values: Any) -> str:
    """The sentence with which a run is refused."""
    with pytest.raises(AtollError) as caught:
        runner.prepare(small(algorithm, **values))
    return str(caught.value)


def test_refusals() -> None:
    """Before anything runs, in one sentence: too few parties for the liars, secure totals, nothing to average."""
    assert "needs at least 5 parties in a round, and there are 3" in refusal(robust="median", byzantine=2)
    assert "needs at least 5 parties in a round, and there are 3" in refusal(robust="krum", byzantine=1)
    assert "there are 2; lower byzantine" in refusal(robust="median", participation=0.67)
    assert "which secure aggregation hides" in refusal(robust="median", secure=True)
    for algorithm in sorted(set(algorithms.names()) - set(AVERAGED)):
        assert f"{algorithm} has none" in refusal(algorithm, robust="median")
    assert "must be one of none, median" in refusal(robust="mean")


def test_fedgl_is_refused_where_nobody_says_who_holds_a_node() -> None:
    """Rows are asked for, not totaled; and literal fusion divides by all parties' nodes."""
    for values in ({"upload": "rows"}, {"fusion": "literal"}):
        with pytest.raises(AtollError, match="upload=sum and fusion=holders"):
            runner.rounds(runner.prepare(small("fedgl", robust="median", **values)))


def test_a_round_with_too_few_replies_stops() -> None:
    """Of three, one away: two replies cannot outvote a liar. The run says so instead of averaging."""
    experiment = runner.prepare(small("fedavg", robust="median"), engine=lambda engine: Absent(engine, {2}, {0}))
    with pytest.raises(AtollError, match="needs at least 3 replies to 'fit', and 2 of 2 can be counted"):
        runner.rounds(experiment)


def test_parties_without_training_nodes_have_no_say_and_do_no_harm() -> None:
    """n = 0 and n·w = 0: left out, as in the weighted mean."""
    model, n = replies()
    n[0] = 0
    others = list(range(1, PARTIES))
    expected = total("median", {name: value[others] for name, value in model.items()}, n[others])
    assert all(torch.equal(value, expected[name]) for name, value in total("median", model, n).items())
