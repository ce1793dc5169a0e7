"""Noise at the party: clipped to the norm, noised to the deviation, counted as it is spent; it hides what it should hide."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll import wire
from atoll.errors import AtollError
from atoll.federation.cohort import Message
from atoll.federation.federation import Answer
from atoll.parties import Parties
from atoll.privacy.noise import Noise
from atoll.privacy.noise_settings import NoiseSettings
from atoll.privacy.releases import epsilon_of
from atoll.privacy.sampling import system_normal
from atoll.random import Draws
from atoll.runs import config, runner
from privacy.accounting import epsilon_after
from small import Recorded, small


def guarded(settings: NoiseSettings, fields: dict[str, Any], each: dict[str, Any] | None = None, **common: Any) -> dict[str, Any]:
    """What leaves three parties."""
    message = Message("fit", 1, 1, True, Parties(range(3)), common, each or {})
    return Noise(settings)(message, fields, Draws(0, range(3), "guard"))


def test_a_partys_whole_reply_is_cut_to_the_norm() -> None:
    """All named fields of a party together have norm C at the most; a shorter reply is left as it is; other verbs too."""
    fields = {"a": torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), "b": {"c": torch.tensor([12.0, 0.0, 0.0])}}
    cut = guarded(NoiseSettings(verb="fit", clip=1.0, noise=0.0), fields)
    assert cut["a"][0].tolist() == pytest.approx([3 / 13, 4 / 13])
    assert float(cut["b"]["c"][0]) == pytest.approx(12 / 13)
    assert torch.equal(cut["a"][1:], fields["a"][1:])
    assert guarded(NoiseSettings(verb="other", clip=1.0), fields) is fields


def test_rows_are_cut_one_by_one() -> None:
    """By row, each node's representation has norm C at the most; a party's single number is a row, not all parties'."""
    settings = NoiseSettings(verb="fit", clip=1.0, noise=0.0, protected_unit="row")
    cut = guarded(settings, {"h": torch.tensor([[[3.0, 4.0], [0.3, 0.4]]] * 3)})
    torch.testing.assert_close(cut["h"][0], torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    cut = guarded(settings, {"number": torch.tensor([7.0, 0.5, -2.0])})
    torch.testing.assert_close(cut["number"], torch.tensor([1.0, 0.5, -1.0]))


def test_a_row_is_cut_in_all_fields_together() -> None:
    """Prediction and embedding of one node are one vector: together they have norm C at the most."""
    p, h = torch.tensor([[3.0], [0.3]]), torch.tensor([[4.0, 12.0], [0.4, 0.0]])
    settings = NoiseSettings(verb="fit", clip=1.0, noise=0.0, protected_unit="row")
    for fields in ({"p": p.expand(3, 2, 1), "h": h.expand(3, 2, 2)}, {"p": [p] * 3, "h": [h] * 3}):
        cut = guarded(settings, fields)
        for party in range(3):
            torch.testing.assert_close(cut["p"][party], torch.tensor([[3 / 13], [0.3]]))
            torch.testing.assert_close(cut["h"][party], torch.tensor([[4 / 13, 12 / 13], [0.4, 0.0]]))


@pytest.mark.parametrize(
    "fields",
    [
        {"h": torch.ones(3, 4, 2), "w": torch.ones(3, 5, 2)},
        {"h": torch.ones(3, 4, 2), "b": torch.ones(3, 2)},
        {"h": torch.ones(3, 4, 2), "r": [torch.ones(4, 2)] * 3},
        {"h": [torch.ones(4, 2)] * 3, "r": [torch.ones(4, 2), torch.ones(3, 2), torch.ones(4, 2)]},
    ],
)
def test_fields_that_have_no_rows_in_common_are_refused(fields: dict[str, Any]) -> None:
    """What one node adds to them is not known: they cannot be clipped together, and apart ε would be too low."""
    with pytest.raises(AtollError, match="different numbers of rows"):
        guarded(NoiseSettings(verb="fit", protected_unit="row"), fields)


def test_replies_of_different_shapes_are_cut_and_noised_by_row() -> None:
    """A tensor a party: each draws its own noise, the same whoever else is in its cohort."""
    fields = {"h": [torch.full((rows, 2), 3.0) for rows in (1, 4, 2)]}
    settings = NoiseSettings(verb="fit", clip=1.0, noise=0.0, protected_unit="row")
    assert [rows.norm(dim=1).tolist() for rows in guarded(settings, fields)["h"]] == [pytest.approx([1.0] * n) for n in (1, 4, 2)]
    noisy = replace(settings, noise=1.0)
    together = guarded(noisy, fields)["h"]
    message = Message("fit", 1, 1, True, Parties([1]), {}, {})
    (alone,) = Noise(noisy)(message, {"h": [fields["h"][1]]}, Draws(0, [1], "guard"))["h"]
    assert torch.equal(alone, together[1])
    with pytest.raises(AtollError, match="shape differs by party"):
        guarded(replace(settings, protected_unit="party"), fields)


def test_what_is_cut_of_a_model_is_its_update() -> None:
    """Where the server sent a model, the distance from it per unit weight is cut: n·w becomes n·(sent + cut update)."""
    sent = torch.tensor([10.0, 10.0])
    n = torch.tensor([2, 5, 1])
    update = torch.tensor([[3.0, 4.0], [0.0, 0.1], [0.0, 0.0]])
    reply = {"model": {"w": (sent + update) * n[:, None]}, "n": n}
    cut = guarded(NoiseSettings(verb="fit", clip=1.0, noise=0.0), reply, model={"w": sent})
    torch.testing.assert_close(cut["model"]["w"][0], (sent + torch.tensor([0.6, 0.8])) * 2)
    torch.testing.assert_close(cut["model"]["w"][1:], reply["model"]["w"][1:])
    assert torch.equal(cut["n"], n)
    own = {"model": {"w": sent + update}, "nodes": n}  # a model of the party's own, back without a weight
    cut = guarded(NoiseSettings(verb="fit", clip=1.0, noise=0.0), own, each={"model": {"w": sent.expand(3, 2)}})
    torch.testing.assert_close(cut["model"]["w"][0], sent + torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(cut["model"]["w"][1:], own["model"]["w"][1:])


@pytest.mark.parametrize("source", ["seed", "system"])
def test_the_noise_has_the_deviation(source: str) -> None:
    """Standard deviation σ·C, mean zero, every party its own; whole numbers stay whole."""
    fields = {"a": torch.zeros(3, 20_000), "n": torch.tensor([1, 2, 3])}
    noised = guarded(NoiseSettings(verb="fit", clip=0.5, noise=3.0, noise_source=source), fields)
    assert noised["a"].std(1).tolist() == pytest.approx([1.5] * 3, rel=0.03)
    assert noised["a"].mean(1).tolist() == pytest.approx([0.0] * 3, abs=0.05)
    assert not torch.equal(noised["a"][0], noised["a"][1])
    assert torch.equal(noised["n"], fields["n"])


def test_noise_of_the_system_cannot_be_foreseen() -> None:
    """Two calls never give the same numbers, whatever the seed; they are finite and normal."""
    torch.manual_seed(0)
    one = system_normal(50_001)
    torch.manual_seed(0)
    assert not torch.equal(one, system_normal(50_001))
    assert one.shape == (50_001,)
    assert float(one.std()) == pytest.approx(1, rel=0.02)
    assert float((one.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.01)


def test_epsilon_is_the_gaussian_mechanisms() -> None:
    """Close above the analytic ε of the Gaussian mechanism, growing with releases, falling with noise."""
    settings = NoiseSettings(verb="fit", clip=1.0, noise=2.0, delta=1e-5)

    def delta(eps: float, multiplier: float) -> float:
        """Balle and Wang, ICML 2018, Theorem 8: the exact δ of sensitivity 1 and this multiplier."""
        normal = torch.distributions.Normal(0.0, 1.0)
        half, ratio = 1 / (2 * multiplier), eps * multiplier
        return float(normal.cdf(torch.tensor(half - ratio)) - math.exp(eps) * normal.cdf(torch.tensor(-half - ratio)))

    spent = epsilon_after(settings, 1)
    assert delta(spent, 1.0) <= 1e-5  # what is promised holds
    assert delta(spent * 0.7, 1.0) > 1e-5  # and is not far off
    assert epsilon_after(settings, 10) > spent > epsilon_after(replace(settings, noise=6.0), 1)
    assert epsilon_after(replace(settings, noise=4.0), 4) == pytest.approx(spent)
    assert epsilon_after(NoiseSettings(verb="fit", clip=1.0, noise=0.0), 1) == math.inf
    assert epsilon_after(NoiseSettings(verb="fit", clip=0.0, noise=1.0), 1) == math.inf
    assert epsilon_after(settings, 0) == 0


def test_the_history_tells_what_is_spent(tmp_path: Any) -> None:
    """ε grows round by round; placement and memory change nothing, nor do secure totals: others' noise is not counted on."""
    dp: dict[str, Any] = {"dp.verb": "fit", "dp.clip": 1.0, "dp.noise": 4.0}
    plain = runner.run(small("fedavg", **dp))
    spent = [row["epsilon"] for row in plain.rows]
    assert 0 < spent[0] < spent[1] < spent[2]
    settings = NoiseSettings(verb="fit", noise=4.0)
    assert spent == pytest.approx([epsilon_after(settings, rounds) for rounds in (1, 2, 3)])
    secure = runner.run(small("fedavg", secure=True, **dp))
    assert [row["epsilon"] for row in secure.rows] == spent
    for other in ({"placement": "apart"}, {"amnesia": True}):
        again = runner.run(small("fedavg", **dp, **other))
        for name, value in wire.leaves(plain.state):
            torch.testing.assert_close(value, dict(wire.leaves(again.state))[name], atol=1e-5, rtol=1e-5)


def test_a_party_that_was_left_out_has_spent_less() -> None:
    """ε is of the party that released most: by its own count, not by the number of rounds, nor of parties."""
    dp: dict[str, Any] = {"dp.verb": "fit", "dp.clip": 1.0, "dp.noise": 4.0, "participation": 0.34}
    experiment = runner.prepare(small("fedavg", rounds=4, **dp))
    runner.rounds(experiment)
    each = experiment.releases.costs / NoiseSettings(noise=4.0).cost
    assert each.sum() == pytest.approx(4)  # one of three parties in each of four rounds
    assert each.max() < 4
    assert epsilon_of(experiment.spent, 1e-5) == pytest.approx(epsilon_after(NoiseSettings(noise=4.0), round(each.max())))


@pytest.mark.parametrize("upload", ["sum", "rows"])
def test_rows_of_fedgl_cost_the_same_with_and_without_secure_totals(upload: str) -> None:
    """Predictions and embeddings are a node's row together; others' noise is not counted on. The model has other rows."""
    rows: dict[str, Any] = {"dp.verb": "fit", "dp.protected_unit": "row", "dp.noise": 4.0, "upload": upload}
    spent = [epsilon_after(NoiseSettings(verb="fit", protected_unit="row", noise=4.0), count) for count in (1, 2, 3)]
    for secure in (False, True) if upload == "sum" else (False,):
        result = runner.run(small("fedgl", secure=secure, **rows, **{"dp.fields": "predictions,embeddings"}))
        assert [row["epsilon"] for row in result.rows] == pytest.approx(spent)
    with pytest.raises(AtollError, match="different numbers of rows"):
        runner.run(small("fedgl", **rows))


def test_a_planted_feature_is_found_without_noise_and_not_with_it() -> None:
    """The server tells from a party's first model update whether a rare feature occurs there; noise takes that away.

    A feature that no training node of a party has leaves its row of the first layer untouched: the server sees exactly zero.
    """

    def guesses(**values: Any) -> list[tuple[bool, bool]]:
        recorders: list[Recorded] = []
        chosen = small("fedavg", rounds=1, optimizer="sgd", lr=0.5, **{"data.features": 12, **values})
        experiment = runner.prepare(chosen, planted(chosen), engine=lambda e: recorders.append(Recorded(e)) or recorders[0])
        runner.rounds(experiment)
        message, answers = next(pair for pair in recorders[0].delivered if pair[0].verb == "fit")
        answer = answers[0]
        assert isinstance(answer, Answer)
        n = answer.fields["n"][:, None, None]
        update = answer.fields["model"]["layers.0.weight"] / n - message.common["model"]["layers.0.weight"]
        seen = update[:, 0].abs().amax(1) > 1e-4
        parts = experiment.party_data.parts
        x = parts.x if isinstance(parts.x, torch.Tensor) else torch.from_numpy(parts.x.toarray())
        held = [bool((x[parts.party == party, 0] != 0).any()) for party in range(3)]
        return list(zip(seen.tolist(), held, strict=True))

    clear = guesses()
    assert {held for _, held in clear} == {True, False}
    assert all(seen == held for seen, held in clear)
    noised = guesses(**{"dp.verb": "fit", "dp.clip": 1.0, "dp.noise": 1.0})
    assert all(seen for seen, _ in noised)  # every party looks as if it had the feature: the server learns nothing


def planted(chosen: config.Config) -> Any:
    """The small graph with a feature that only the first party's nodes have."""
    data = runner.prepare(chosen).party_data
    graph = data.source
    x = graph.x.clone() if isinstance(graph.x, torch.Tensor) else torch.from_numpy(graph.x.toarray())
    x[:, 0] = 0.0
    x[data.parts.ids[data.parts.party == 0], 0] = 1.0
    return replace(graph, x=x)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"dp.verb": "fitt"}, "dp.verb is 'fitt', which fedavg does not have; did you mean 'fit'?"),
        ({"dp.verb": "fit", "dp.noise": -1}, "must be at least 0"),
        ({"dp.verb": "fit", "dp.protected_unit": "node"}, "must be one of party, row"),
        ({"delta": 1e-5}, "fedavg has no setting 'delta'"),
    ],
)
def test_mistakes_get_one_sentence(values: dict[str, Any], sentence: str) -> None:
    """What is wrong, and what would be right."""
    with pytest.raises(AtollError, match=sentence.replace("?", r"\?")):
        small("fedavg", **values)


@pytest.mark.parametrize(
    ("algorithm", "values", "sentence"),
    [
        ("fedavg", {"dp.verb": "fit", "dp.fields": "modle"}, "dp.fields names modle, but 'fit' replies model."),
        ("fedavg", {"dp.verb": "fit", "dp.fields": "model,m"}, "dp.fields names m, but 'fit' replies model."),
        ("fedavg", {"dp.verb": "fit", "dp.fields": "n"}, "dp.fields names n, but 'fit' replies model."),
        ("gfl_appnp", {"dp.verb": "represent", "dp.fields": "gradients"}, "but 'represent' replies hidden, gradient."),
        ("gfl_appnp", {"dp.verb": "represent", "dp.fields": "gradient", "compensation": "none"}, ""),
        ("local", {"dp.verb": "fit"}, "dp.verb is 'fit', which replies nothing that can be noised; name another verb."),
        (
            "glasu",
            {"dp.verb": "sample"},
            "dp.verb is 'sample', which replies nothing that can be noised; name another verb.",
        ),
        ("glasu", {"dp.verb": "sample", "dp.fields": "nodes"}, "'sample' replies nothing that can be noised."),
    ],
)
def test_noise_on_what_is_not_there_is_a_mistake(algorithm: str, values: dict[str, Any], sentence: str) -> None:
    """Not a silent gap in the protection: a field the verb does not reply, a whole number, a verb that replies nothing."""
    config = small(algorithm, **values)
    if sentence:
        with pytest.raises(AtollError, match=f"{re.escape(sentence)}$"):
            runner.run(config)
    else:  # nobody asks for what is not to leave unnoised: nothing to complain of
        runner.run(config)
