"""Search spaces: files and defaults are checked setting by setting, and shared settings have one space for all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll import algorithms
from atoll.errors import AtollError
from atoll.runs import config, defaults
from atoll.runs.space import Choices, Range, asked_space, check_names, grid, inside, plain_space, read_space, space_for
from atoll.settings import known


@pytest.mark.parametrize("name", algorithms.names())
def test_the_defaults_hold_the_papers_own_settings(name: str) -> None:
    """Every default space fits its algorithm, has a learning rate, and the paper's settings are inside it."""
    chosen = config.resolve(name)
    space = space_for(chosen, None)
    assert "lr" in space
    assert inside(space, {setting: getattr(chosen.settings, setting) for setting in space})


def test_shared_settings_have_one_space_for_all() -> None:
    """No method's own file says anything else of a setting that methods share."""
    shared = defaults._document(defaults.SHARED)["space"]
    for name in [*algorithms.names(), "vertical_network"]:
        assert not defaults._document(name).get("space", {}).keys() & shared.keys(), name
        assert {key: value for key, value in defaults.spaces(name).items() if key in shared} == shared


def test_every_name_in_a_space_is_a_setting_of_its_method() -> None:
    """No table is misspelled."""
    for name in algorithms.names():
        own = defaults._document(name).get("space", {})
        assert own.keys() <= known(algorithms.find(name).Settings).keys(), name
    assert "proximal" in space_for(config.resolve("fedprox"), None)
    assert "proximal" not in space_for(config.resolve("fedavg"), None)


def test_a_file(tmp_path: Path) -> None:
    """Lists, ranges, names of one algorithm and of the model; numbers become what their setting is."""
    file = tmp_path / "space.toml"
    file.write_text(
        "hidden = {low = 8, high = 64}\nlr = {low = 0.01, high = 1, log = true}\ndropout = [0, 0.5]\n"
        'fedprox.proximal = [0, 1]\nmodel.heads = [2, 4]\nsettings.weight_decay = ["5e-4"]\n'
    )
    asked = read_space(file)
    gat = config.resolve("fedprox", values={"model": "gat"})
    check_names(asked, [gat, config.resolve("fedavg")])
    space = space_for(gat, asked, contestants=["fedavg", "fedprox"])
    assert space == {
        "hidden": Range(8, 64),
        "lr": Range(0.01, 1.0, log=True),
        "dropout": Choices((0.0, 0.5)),
        "proximal": Choices((0.0, 1.0)),
        "model.heads": Choices((2, 4)),
        "weight_decay": Choices((5e-4,)),
    }
    assert isinstance(space["hidden"].low, int)
    assert isinstance(space["lr"].high, float)
    assert list(space_for(config.resolve("fedavg"), asked, contestants=["fedavg", "fedprox"])) == [
        "hidden",
        "lr",
        "dropout",
        "weight_decay",
    ]
    assert plain_space(space)["lr"] == {"low": 0.01, "high": 1.0, "log": True}
    assert asked_space("defaults") is None
    assert asked_space(file) == asked


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "names no setting to tune"),
        ("lr = ", "is not valid TOML"),
        ("lr = 0.1", "space of lr is 0.1 but must be a list or a range"),
        ("lr = []", "space of lr is empty"),
        ("lr = [0.1, 0.2, 0.1]", "space of lr has 0.1 twice; list each value once"),
        ('lr = ["fast"]', "space of lr is 'fast' but must be a number"),
        ("lr = [-1]", "space of lr is -1 but must be at least 0"),
        ("hidden = [1.5]", "space of hidden is 1.5 but must be a whole number"),
        ('optimizer = ["adm"]', "must be one of .*; did you mean 'adam'"),
        ('optimizer = {low = "adam", high = "sgd"}', "is a range, but optimizer is not a number"),
        ("lr = {low = 1}", "space of lr has no high"),
        ("lr = {low = 1, high = 1}", "low must be below high"),
        ("lr = {low = 0, high = 1, log = true}", "logarithmic from 0.0, but low must be above 0"),
        ("lr = {low = 0.1, high = 1, log = 1}", "log is 1 but must be true or false"),
        ("lr = {low = 0.1, high = 1, logg = true}", "has 'logg'; did you mean 'log'"),
        ("lr = {low = nan, high = 1}", "must be at least 0"),
        ("lrr = [1]", "names 'lrr', which fedprox does not have; did you mean 'lr'"),
        ("rounds = [1, 2]", "rounds in the search space is of data or budget"),
        ("seed = [1, 2]", "seed in the search space is of data or budget"),
        ("split.split = ['random']", "is of data or budget"),
        ("model.heads = [1]", "names 'model.heads', which fedprox does not have"),
        ("lr = [1]\nfedprox.lr = [2]", "names lr twice"),
    ],
)
def test_bad_files(text: str, sentence: str, tmp_path: Path) -> None:
    """One sentence each."""
    file = tmp_path / "space.toml"
    file.write_text(text)

    def use(chosen: config.Config) -> None:
        asked = read_space(file)
        check_names(asked, [chosen])
        space_for(chosen, asked, contestants=["fedprox"])

    with pytest.raises(AtollError, match=sentence):
        use(config.resolve("fedprox"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """Its path is named."""
    with pytest.raises(AtollError, match=r"--space .*nothing.toml cannot be read \(No such file"):
        asked_space(tmp_path / "nothing.toml")
    with pytest.raises(AtollError, match="names no setting to tune"):
        asked_space({})


def test_fixed_settings_are_not_tuned() -> None:
    """The defaults leave them out; a space that names them contradicts."""
    chosen = config.resolve("fedprox")
    assert "lr" not in space_for(chosen, None, fixed={"lr"})
    with pytest.raises(AtollError, match="lr is set and in the search space"):
        space_for(chosen, {"lr": [1]}, fixed={"lr"})


def test_a_grid() -> None:
    """Every combination; ranges and too many combinations are refused."""
    space: dict[str, Any] = {"a": Choices((1, 2)), "b": Choices(("x", "y"))}
    assert grid(space) == [{"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(AtollError, match=r"lr is a range from 0.1 to 1.0; list its values"):
        grid({"lr": Range(0.1, 1.0)})
    with pytest.raises(AtollError, match="may have at most"):
        grid({name: Choices(tuple(range(100))) for name in "abc"})
