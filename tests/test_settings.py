"""Settings: types, bounds, choices and mistyped names; defaults from the papers."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from atoll.errors import AtollError
from atoll.runs import config
from atoll.settings import build, setting


@dataclass(frozen=True)
class Example:
    """One field of every kind."""

    count: int = setting(3, "A count.", low=1, high=9)
    rate: float = setting(0.5, "A rate.", low=0)
    on: bool = setting(False, "A switch.")
    kind: str = setting("a", "A choice.", choices=("a", "b"))
    shares: tuple[float, ...] = setting((0.5,), "A list.")
    maybe: int | None = setting(None, "Perhaps a count.")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("count", "4", 4),
        ("count", 4.0, 4),
        ("rate", "1e-3", 0.001),
        ("rate", 2, 2.0),
        ("on", "true", True),
        ("on", "No", False),
        ("kind", "b", "b"),
        ("shares", "0.1, 0.2", (0.1, 0.2)),
        ("shares", [1, 2], (1.0, 2.0)),
        ("shares", 0.3, (0.3,)),
        ("maybe", "7", 7),
        ("maybe", "none", None),
    ],
)
def test_values_take_the_type_of_their_field(name: str, given: object, expected: object) -> None:
    """Text from the command line and values from files mean the same."""
    built = build(Example, {name: given}, "here")
    assert getattr(built, name) == expected
    assert type(getattr(built, name)) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("count", "x", "here: count is 'x' but must be a whole number."),
        ("count", "1.5", "here: count is '1.5' but must be a whole number."),
        ("count", True, "here: count is True but must be a whole number."),
        ("count", "0", "here: count is 0 but must be at least 1."),
        ("count", "99", "here: count is 99 but must be at most 9."),
        ("rate", "nan", "here: rate is nan but must be at least 0."),
        ("rate", "fast", "here: rate is 'fast' but must be a number."),
        ("on", "perhaps", "here: on is 'perhaps' but must be true or false."),
        ("kind", "c", "here: kind is 'c' but must be one of a, b."),
        ("shares", "0.1,x", "here: shares is 'x' but must be a number."),
        ("cuont", "3", "here has no setting 'cuont'; did you mean 'count'?"),
    ],
)
def test_wrong_values_get_one_sentence(name: str, given: object, sentence: str) -> None:
    """What is wrong, where, and what would be right."""
    with pytest.raises(AtollError) as caught:
        build(Example, {name: given}, "here")
    assert str(caught.value) == sentence


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
