"""Configurations: the papers' defaults, documents read back, earlier names of settings."""

from __future__ import annotations

import warnings

import pytest

from atoll import algorithms
from atoll.errors import AtollError, AtollWarning
from atoll.runs import config
from atoll.runs.comparison import Comparison
from atoll.runs.described_config import described
from atoll.runs.setting_names import PREFIXED
from atoll.settings import known, renamed


def test_the_papers_defaults_come_first_then_the_datasets_then_the_users() -> None:
    """`fedavg` on PubMed is the FedSpray paper's; Physics has twelve parties; what the user says wins."""
    pubmed = config.resolve("fedavg", dataset="pubmed")
    assert (pubmed.partition, pubmed.parties, pubmed.run.rounds, pubmed.split.split) == ("louvain_largest", 7, 300, "random")
    assert (pubmed.settings.lr, pubmed.settings.epochs, pubmed.settings.hidden) == (0.003, 5, 64)
    assert config.resolve("fedavg", dataset="Physics").parties == 12
    said = config.resolve(
        "fedavg", dataset="physics", parties=3, values={"rounds": "9", "settings.lr": "0.1", "fedavg.epochs": 2}
    )
    assert (said.parties, said.run.rounds, said.settings.lr, said.settings.epochs) == (3, 9, 0.1, 2)


def test_another_partition_does_not_inherit_the_papers_number_of_parties() -> None:
    """A partition file knows its own number of parties."""
    assert config.resolve("fedavg", dataset="pubmed", partition="lists.npz").parties is None


def test_a_configuration_written_down_is_the_same_read_back() -> None:
    """config.toml is everything: read back it gives the same configuration."""
    chosen = config.resolve("fedavg", dataset="csbm", seed=7, values={"lr": 0.5, "nodes": 100, "split.train": 0.5})
    assert config.from_dict(chosen.to_dict(), "there") == chosen


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({}, "there names no algorithm"),
        ({"algorithm": "fedavgg"}, "There is no algorithm 'fedavgg'; did you mean 'fedavg'?"),
        ({"algorithm": "fedavg", "sede": 1}, "there has an unknown key 'sede'; did you mean 'seed'?"),
        ({"algorithm": "fedavg", "seed": "one"}, "there: seed is 'one' but must be a whole number"),
        ({"algorithm": "fedavg", "runn": {"rounds": 1}}, r"there has an unknown table \[runn\]; did you mean 'run'\?"),
        ({"algorithm": "fedavg", "run": {"round": 1}}, "fedavg has no setting 'run.round'; did you mean"),
        ({"algorithm": "fedavg", "parties": 0}, "parties is 0 but must be a whole number of at least 1"),
        ({"algorithm": "fedavg", "run": {"participation": 0}}, "participation is 0"),
    ],
)
def test_wrong_documents_get_one_sentence(document: dict[str, object], sentence: str) -> None:
    """A file with a mistake says where and what."""
    with pytest.raises(AtollError, match=sentence):
        config.from_dict(document, "there")


@pytest.mark.parametrize("name", ["wait", "settings.wait", "gcfl.wait"])
def test_an_earlier_name_is_accepted_and_the_new_one_told(name: str) -> None:
    """However the setting is named, one warning says what it is called now."""
    new = name.replace("wait", "rounds_before_split")
    with pytest.warns(AtollWarning, match=rf"{name} is now {new}, .*\. The old names still work\.") as caught:
        chosen = config.resolve("gcfl", values={name: "7", "run.target": 0.5})
    assert len(caught) == 1
    assert "run.target is now run.target_accuracy" in str(caught[0].message)
    assert (chosen.settings.rounds_before_split, chosen.run.target_accuracy) == (7, 0.5)
    assert config.resolve("gcfl", values={new: "7", "run.target_accuracy": 0.5}) == chosen


def test_a_persons_file_with_earlier_names_is_a_warning_and_a_folders_is_not() -> None:
    """Who wrote a file learns the new names; a run's own folder is read in silence."""
    document = {"algorithm": "fedavg", "run": {"missing": "stop"}, "dp": {"verb": "fit", "unit": "party"}}
    with pytest.warns(AtollWarning, match=r"run.missing is now run.on_missing, dp.unit is now dp.protected_unit"):
        chosen = config.from_dict(document, "there")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert described(document, "there") == chosen
    assert chosen.run.on_missing == "stop"


def test_the_last_of_two_names_wins() -> None:
    """The command line comes after the file, whichever name each has."""
    document = {"algorithm": "fedavg", "run": {"target": 0.5}}
    with pytest.warns(AtollWarning):
        chosen = config.from_dict(document, "there", {"target_accuracy": 0.75})
    assert chosen.run.target_accuracy == 0.75


def test_a_comparison_accepts_earlier_names() -> None:
    """A setting goes to every algorithm that has it, under its old name too."""
    comparison = Comparison(["fedavg", "fedper"], seeds=[0], values={"personal": 0, "select": "accuracy"})
    with pytest.warns(AtollWarning, match="personal is now personal_layers"), pytest.warns(AtollWarning, match=": select is now"):
        trials = comparison.trials()
    assert trials[1].config.settings.personal_layers == 0
    assert {trial.config.run.select_by for trial in trials} == {"accuracy"}


@pytest.mark.parametrize("algorithm", algorithms.names())
@pytest.mark.parametrize("dataset", ["csbm", "subcora", "cora"])
def test_no_earlier_name_is_a_present_one(algorithm: str, dataset: str) -> None:
    """An old configuration would set something else. A few are told apart by their values."""
    groups = config.groups_of(algorithm, dataset)
    present = {name for group, kind in groups.items() if group not in PREFIXED for name in known(kind)}
    for group, kind in groups.items():
        taken = set(known(kind)) if group in PREFIXED else present
        assert not (taken & renamed(kind).keys()) - {"task", "threshold", "evaluation", "average", "target"}, group


def test_glasus_old_evaluation_is_told_by_its_value() -> None:
    """Old configurations mean what they meant; the run's own words are the run's."""
    for name in ("evaluation", "settings.evaluation", "glasu.evaluation"):
        with pytest.warns(AtollWarning, match="is now .*evaluation_neighbors"):
            chosen = config.resolve("glasu", dataset="csbm", values={name: "sampled"})
        assert (chosen.settings.evaluation_neighbors, chosen.run.evaluation) == ("sampled", "auto")
    assert config.resolve("fedavg", dataset="csbm", values={"evaluation": "trained"}).run.evaluation == "trained"


def test_a_number_is_fedgls_old_threshold_and_a_way_to_choose_one_is_the_runs() -> None:
    """Old configurations and commands mean what they meant."""
    for name in ("threshold", "settings.threshold", "fedgl.threshold"):
        with pytest.warns(AtollWarning, match="is now .*pseudo_label_threshold"):
            chosen = config.resolve("fedgl", dataset="csbm", values={name: "0.7"})
        assert (chosen.settings.pseudo_label_threshold, chosen.run.threshold) == (0.7, "none")
    assert config.resolve("fedgl", dataset="csbm", values={"threshold": "f1"}).run.threshold == "f1"
    assert config.resolve("fedgl", dataset="csbm", values={"run.threshold": 0.7}).run.threshold == "0.7"
    assert config.resolve("fedavg", dataset="csbm", values={"threshold": 0.7}).run.threshold == "0.7"


def test_weights_are_given_as_text_list_or_dict() -> None:
    """From Python as from the command line and config.toml."""
    for value, text in (("1,5", "1,5"), ([1, 0.5], "1,0.5"), ({"well": 1, "sick": 5.0}, "well:1,sick:5.0")):
        chosen = config.resolve("fedavg", dataset="csbm", values={"class_weight": value})
        assert chosen.run.class_weight == text
        assert config.from_dict(chosen.to_dict(), "there") == chosen


def test_the_old_experiment_is_accepted_in_capitals() -> None:
    """GFL-APPNP's `task` of 0.1 was read in any case, by its baselines too."""
    with pytest.warns(AtollWarning, match="task is now experiment"):
        chosen = config.resolve("fedmlp", dataset="csbm", values={"task": "SC"})
    assert chosen.settings == config.resolve("fedmlp", dataset="csbm").settings


def test_momentum_needs_sgd() -> None:
    """Adam has its own; with SGD it is accepted."""
    with pytest.raises(AtollError, match=r"momentum is 0\.9 but only optimizer=sgd has one"):
        config.resolve("fedavg", values={"momentum": 0.9, "optimizer": "adam"})
    assert config.resolve("fedavg", values={"momentum": 0.9, "optimizer": "sgd"}).settings.momentum == 0.9
