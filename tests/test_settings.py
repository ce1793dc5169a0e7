"""Settings: types, bounds, choices, mistyped names and earlier names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from atoll.errors import AtollError
from atoll.settings import build, first_named, setting


@dataclass(frozen=True)
class Example:
    """One field of every kind."""

    count: int = setting(3, "A count.", low=1, high=9)
    rate: float = setting(0.5, "A rate.", low=0)
    on: bool = setting(False, "A switch.")
    kind: str = setting("a", "A choice.", choices=("a", "b"))
    shares: tuple[float, ...] = setting((0.5,), "A list.")
    maybe: int | None = setting(None, "Perhaps a count.")
    share: float = setting(1.0, "A share.", above=0, high=1)


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
        ("share", "-1", "here: share is -1 but must be more than 0."),
        ("share", "0", "here: share is 0 but must be more than 0."),
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


@dataclass(frozen=True)
class Renamed:
    """A setting that was renamed twice, and one that was added later."""

    on_failure: str = setting("stop", "What to do.", was=("failure", "if_failed"))
    tries: int = setting(1, "How often.", since="0.2")


@pytest.mark.parametrize("name", ["failure", "if_failed", "on_failure"])
def test_earlier_names_of_a_setting_are_accepted(name: str) -> None:
    """All names that a setting has had mean the same."""
    assert build(Renamed, {name: "go"}, "here") == Renamed(on_failure="go")


def test_first_names_are_the_same_across_versions() -> None:
    """A renamed setting keeps its first name; one that was added later counts only where it is set."""
    assert first_named(Renamed(on_failure="go")) == {"failure": "go"}
    assert first_named(Renamed(tries=2)) == {"failure": "stop", "tries": 2}


def test_earlier_names_are_not_suggested() -> None:
    """Who mistypes a name is led to the present one."""
    with pytest.raises(
        AtollError, match=r"here has no setting 'failures'; (did you mean 'on_failure'|there is on_failure, tries)"
    ):
        build(Renamed, {"failures": 1}, "here")
