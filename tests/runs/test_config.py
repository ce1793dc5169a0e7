"""Configurations: the papers' defaults, documents read back, earlier names of settings."""

from __future__ import annotations

import pytest

from atoll.errors import AtollError
from atoll.runs import config


def test_the_papers_defaults_come_first_then_the_datasets_then_the_users() -> None:
    """`fedavg` on PubMed is the FedSpray paper's; Physics has twelve parties; what the user says wins."""
    pubmed = config.resolve("fedavg", dataset="pubmed")
    assert (pubmed.partition, pubmed.parties, pubmed.run.rounds, pubmed.split.split) == ("louvain", 7, 300, "random")
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
