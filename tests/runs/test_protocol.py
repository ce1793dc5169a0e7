"""The words that say what a run's numbers mean, and the models that they name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll import algorithms
from atoll.errors import AtollError
from atoll.federation.cohort import backbone, first_model
from atoll.federation.metrics import KEPT
from atoll.models.parameters import set_parameters
from atoll.runs import runner
from atoll.runs.protocol import described
from small import ALGORITHMS, small

PAIRS = [(name, word) for name in ALGORITHMS for word in KEPT if word in algorithms.evaluations(algorithms.find(name))]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_result_has_the_words(name: str) -> None:
    """`evaluation` names what the algorithm judges by itself; asking for that very word changes nothing."""
    result = runner.run(small(name, rounds=2))
    plain = result.to_dict()
    own = algorithms.evaluations(algorithms.find(name))[0]
    scenario = algorithms.find(name).SCENARIOS[0]
    assert plain["evaluation"] == ("union" if scenario == "overlapping" and own == "global" else own)
    assert (plain["average"], plain["select"], plain["select_on"]) == ("pooled", result.config.run.select_by, "parties")
    for metric, value in plain["averages"]["pooled"].items():
        assert plain["metrics"][metric] == value
    if scenario != "overlapping":
        assert runner.run(small(name, rounds=2, **{"run.evaluation": own})).metrics == result.metrics


@pytest.mark.parametrize(("name", "word"), PAIRS)
def test_training_does_not_depend_on_what_is_judged(name: str, word: str) -> None:
    """The server's state and the bytes of training are the same; evaluation traffic is counted apart."""
    plain, other = runner.run(small(name)), runner.run(small(name, evaluation=word))
    flat = {key: value for key, value in plain.state.items() if isinstance(value, dict)}
    for key, values in flat.items():
        for part, value in values.items():
            assert torch.equal(value, other.state[key][part])
    assert {way: plain.bytes[way] for way in ("up", "down")} == {way: other.bytes[way] for way in ("up", "down")}


@pytest.mark.parametrize(("name", "word"), PAIRS)
@pytest.mark.parametrize("values", [{"placement": "apart"}, {"amnesia": True}], ids=str)
def test_kept_models_keep_the_promises(name: str, word: str, values: dict[str, Any]) -> None:
    """Placement and memory: the same metrics in every round."""
    result = runner.run(small(name, evaluation=word, participation=0.7))
    other = runner.run(small(name, evaluation=word, participation=0.7, **values))
    for one, two in zip(result.rows, other.rows, strict=True):
        assert one["val_loss"] == two["val_loss"]
        assert one["accuracy"] == two["accuracy"]


@pytest.mark.parametrize(("name", "word"), PAIRS)
def test_kept_models_predict_what_was_reported(name: str, word: str, tmp_path: Any) -> None:
    """From the folder alone, also after a resume; the detail is of the same models."""
    out = tmp_path / "run"
    runner.run(small(name, evaluation=word, rounds=4, checkpoint_every=1), out=out, watch=lambda row, rounds: row["round"] < 2)
    resumed, whole = runner.resume(out), runner.run(small(name, evaluation=word, rounds=4))
    assert resumed.metrics == whole.metrics
    assert resumed.model().evaluate().to_dict()["overall"]["accuracy"] == whole.metrics["accuracy"]
    assert whole.detail["overall"]["accuracy"] == whole.metrics["accuracy"]


def test_trained_and_finetuned_are_the_models_they_say() -> None:
    """One round by hand: each party's own training from the first model; and once more from the server's mean."""
    experiment = runner.prepare(small("fedavg", rounds=1))
    config, schema, task = experiment.config, experiment.federation.schema, experiment.federation.task
    first = first_model(config.settings, schema, config.seed)

    def trained_from(model: dict[str, torch.Tensor]) -> dict[str, float]:
        fresh = runner.prepare(small("fedavg", rounds=1))
        fresh.federation.begin(1)
        replies = fresh.federation.ask("fit", model=model)
        network = backbone(config.settings, schema, 3, None)
        weights = replies.stack("n").view(-1, 1)
        stacked = replies.stack("model")
        set_parameters(network, {key: value / weights.view(-1, *[1] * (value.ndim - 1)) for key, value in stacked.items()})
        counts = task.counts(network(fresh.party_data.parts), fresh.party_data.parts)
        return task.metrics({key: value.sum(0) for key, value in counts.items()})

    trained = runner.run(small("fedavg", rounds=1, evaluation="trained"))
    assert trained.metrics["val_loss"] == pytest.approx(trained_from(first)["val_loss"], rel=1e-5)
    tuned = runner.run(small("fedavg", rounds=1, evaluation="finetuned"))
    expected = trained_from(runner.rounds(experiment).state["model"])  # without dropout, draws do not matter
    assert tuned.metrics["val_loss"] == pytest.approx(expected["val_loss"], rel=1e-5)
    assert tuned.bytes["evaluation"]["down"] == tuned.bytes["down"]  # one model per party and round


def test_union_is_the_whole_graph() -> None:
    """The server's model with all edges; what the parties measure is `local_…`, and selects."""
    experiment = runner.prepare(small("fedavg", evaluation="union"))
    result = runner.rounds(experiment)
    whole, task = experiment.party_data.whole, experiment.federation.task
    network = backbone(experiment.config.settings, experiment.federation.schema, 1, None)
    set_parameters(network, result.state["model"])
    metrics = task.metrics({key: value[0] for key, value in task.counts(network(whole), whole).items()})
    assert result.last["accuracy"] == metrics["accuracy"]
    plain = runner.run(small("fedavg"))
    assert result.last["local_accuracy"] == plain.last["accuracy"]
    assert result.best_round == plain.best_round


def test_last_selects_the_last_round() -> None:
    """Whatever its scores; patience never ends such a run."""
    result = runner.run(small("fedavg", rounds=5, select_by="last", lr=5.0, patience=1))
    assert (result.best_round, result.rounds) == (5, 5)
    assert result.metrics == result.last
    assert described(result.protocol) == "evaluation global, average pooled, last round"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"evaluation": "personal"}, "evaluation=personal has no meaning for fedavg, whose evaluation is global or trained or"),
        (
            {"average": "mean", "secure": True},
            "average=mean needs each party's counts, which the server does not get with secure",
        ),
        ({"average": "worst", "evaluate_at_server": False}, "does not get with evaluate_at_server=false; set average=pooled"),
        ({"evaluation": "finetuned", "class_weight": "balanced"}, "does not know the weights of class_weight=balanced"),
        ({"average": "median"}, "average is .median. but must be one of pooled, mean, nodes, worst"),
        ({"evaluation": "union", "average": "worst"}, "average=worst is over parties, and evaluation=union judges the union"),
    ],
)
def test_words_without_meaning_are_refused(values: dict[str, Any], sentence: str) -> None:
    """In one sentence, before anything runs."""
    with pytest.raises(AtollError, match=sentence):
        small("fedavg", **values)


def test_algorithms_that_keep_nothing_refuse_trained() -> None:
    """Where there is no local training of one model, `trained` has no meaning."""
    for name in ("fedspray", "nfedgnn", "glasu"):
        with pytest.raises(AtollError, match=f"evaluation=trained has no meaning for {name}"):
            small(name, **{"run.evaluation": "trained"})
