"""Tuning: on validation nodes alone, the same trials however they are run, and never on seeds that are reported."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError, AtollWarning
from atoll.runs import search
from atoll.runs.comparison import Comparison
from atoll.runs.space import Choices, Range
from atoll.runs.trial import Trial
from atoll.runs.tuned import Tuned, read_tuned
from atoll.runs.tuning import Tuning, TuningRequest

SMALL: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 2}
SPACE: dict[str, Any] = {"lr": {"low": 0.001, "high": 1.0, "log": True}, "hidden": [4, 8]}


class Pretended:
    """Runs whose validation loss is a known function of their settings; counts them, and may be killed."""

    def __init__(self, loss: Any = None, *, die_after: int = 10**9) -> None:
        self.loss = loss or (lambda config: (config.settings.lr - 0.1) ** 2 + config.settings.hidden / 1000)
        self.count, self.die_after = 0, die_after

    def __call__(self, todo: Sequence[tuple[Trial, Path | None]]) -> Iterator[tuple[Trial, Any]]:
        """The trials from last to first, as processes may end them."""
        for trial, _ in reversed(todo):
            if self.count >= self.die_after:
                raise KeyboardInterrupt
            self.count += 1
            value = self.loss(trial.config)
            failed = isinstance(value, AtollError)
            yield trial, value if failed else SimpleNamespace(metrics={"val_loss": value, "loss": -value}, best_round=1, rounds=2)


def tuning(trials: int = 10, space: Mapping[str, Any] = SPACE, **options: Any) -> Tuning:
    """A tuning of FedProx."""
    values = {"nodes": 60, "rounds": 2}
    comparison = Comparison(["fedprox"], dataset="csbm", partition="random", parties=2, values=values)
    [made] = comparison.tunings(TuningRequest(trials, options.pop("seeds", (7, 8)), space, **options)).values()
    return made


def test_the_best_by_validation_is_chosen() -> None:
    """The first trial is the settings as they are; the chosen one has the lowest mean validation loss; test is not looked at."""
    tuned = tuning(12).run(Pretended())
    scores = [trial.score for trial in tuned.trials]
    assert tuned.score == min(scores) < tuned.default_score == scores[0]
    assert tuned.trials[0].values == {"lr": 0.003, "hidden": 64}  # 64 is outside the space, and tried all the same
    assert tuned.values == tuned.trials[scores.index(tuned.score)].values
    assert (tuned.objective, tuned.higher_is_better, tuned.seeds) == ("val_loss", False, (7, 8))
    assert len(tuned.trials) == 12
    assert all(trial.values["hidden"] in (4, 8) and 0.001 <= trial.values["lr"] <= 1 for trial in tuned.trials[1:])


def test_higher_is_better_where_select_by_says_so() -> None:
    """The objective is the metric of select_by."""
    comparison = Comparison(["local"], dataset="csbm", values={"select_by": "accuracy"})
    [made] = comparison.tunings(TuningRequest(5, (7,), {"lr": [0.1, 0.2]})).values()

    def execute(todo: Sequence[tuple[Trial, Path | None]]) -> Iterator[tuple[Trial, Any]]:
        for trial, _ in todo:
            yield trial, SimpleNamespace(metrics={"val_accuracy": trial.config.settings.lr}, best_round=1, rounds=1)

    assert made.run(execute).values == {"lr": 0.2}


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_the_same_seed_gives_the_same_trials(sampler: str) -> None:
    """In whatever order runs end; another seed gives others; more trials begin with the same ones."""
    one, again = (tuning(14, sampler=sampler).run(Pretended()) for _ in range(2))
    assert one == again
    assert tuning(14, sampler=sampler, sampler_seed=1).run(Pretended()).trials[1:] != one.trials[1:]
    assert tuning(6, sampler=sampler).run(Pretended()).trials == one.trials[:6]


@pytest.mark.parametrize("die_after", [0, 1, 7, 19])
def test_a_killed_tuning_continues(die_after: int, tmp_path: Path) -> None:
    """What had ended is not run again, and the result is that of a tuning that was never interrupted."""
    whole = tuning(12).run(Pretended())
    with pytest.raises(KeyboardInterrupt):
        tuning(12).run(Pretended(die_after=die_after), tmp_path / "t")
    rest = Pretended()
    assert tuning(12).run(rest, tmp_path / "t") == whole
    total = Pretended()
    tuning(12).run(total)
    assert rest.count == total.count - die_after
    assert read_tuned(tmp_path / "t") == whole
    nothing = Pretended()
    assert tuning(12).run(nothing, tmp_path / "t") == whole
    assert nothing.count == 0
    assert len(tuning(16).run(nothing, tmp_path / "t").trials) == 16  # a finished one takes more trials


def test_a_cut_line_is_not_a_record(tmp_path: Path) -> None:
    """A process that was killed while it wrote."""
    tuning(5).run(Pretended(), tmp_path)
    file = tmp_path / "trials.jsonl"
    file.write_text(file.read_text()[:-9])
    rest = Pretended()
    tuning(5).run(rest, tmp_path)
    assert rest.count == 1
    file.write_text("{}\n")
    with pytest.raises(AtollError, match=r"trials.jsonl is damaged"):
        tuning(5).run(rest, tmp_path)


def test_a_folder_of_another_tuning_is_refused(tmp_path: Path) -> None:
    """Other seeds, another space or other data; and a folder that holds something else."""
    tuning(5).run(Pretended(), tmp_path / "a")
    for other, name in ((tuning(5, seeds=(9,)), "seeds"), (tuning(5, {"lr": [1]}), "space")):
        with pytest.raises(AtollError, match=f"a holds a tuning with another {name}"):
            other.run(Pretended(), tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").touch()
    with pytest.raises(AtollError, match="b holds something else than a tuning"):
        tuning(5).run(Pretended(), tmp_path / "b")


def written(folder: Path, shift: float = 0.0) -> str:
    """A dataset of 40 nodes in a ring; `shift` changes one of its values."""
    folder.mkdir(exist_ok=True)
    nodes = [f"{node},{node % 2 + node / 100 + shift * (node == 3)},{'yes' if node % 2 else 'no'}" for node in range(40)]
    (folder / "nodes.csv").write_text("\n".join(["id,size,label", *nodes]) + "\n")
    (folder / "edges.csv").write_text("\n".join(["source,target", *(f"{node},{(node + 2) % 40}" for node in range(40))]) + "\n")
    return str(folder)


def test_changed_data_is_noticed(tmp_path: Path) -> None:
    """The same dataset folder with another value in it: the tuning is not continued, and what it chose is not used silently."""
    run: dict[str, Any] = {"partition": "random", "parties": 2, "rounds": 1, "dataset": written(tmp_path / "data")}
    arguments: dict[str, Any] = {"trials": 2, "seeds": 1, "space": {"lr": [0.1]}, "sampler": "grid", "out": tmp_path / "out"}
    tuned = atoll.tune("fedavg", **arguments, **run)
    assert atoll.tune("fedavg", **arguments, **run) == tuned == read_tuned(tmp_path / "out")
    assert not [note for note in atoll.compare("fedavg", tuned=[tuned], seeds=1, **run).notes if "other data" in note]
    written(tmp_path / "data", 0.5)
    with pytest.raises(AtollError, match="out holds trials on other data: the data has as many nodes and edges as before, but"):
        atoll.tune("fedavg", **arguments, **run)
    with pytest.warns(AtollWarning, match="fedavg was tuned on other data: the data has as many nodes and edges as before, but"):
        atoll.run("fedavg", tuned=tuned, **run)
    assert "fedavg was tuned on other data" in atoll.compare("fedavg", tuned=[tuned], seeds=1, **run).notes[-1]


def test_failed_trials_are_passed_over_and_said() -> None:
    """Runs that diverge, by an error or by a loss that is not a number; where all fail, the first reason is the error."""

    def loss(config: Any) -> Any:
        if config.settings.lr > 0.1:
            return AtollError("the training diverges") if config.seed == 7 else 1.0
        return float("nan") if config.settings.hidden == 4 else config.settings.lr

    tuned = tuning(20).run(Pretended(loss))
    bad = [trial for trial in tuned.trials if trial.values["lr"] > 0.1 or trial.values["hidden"] == 4]
    assert tuned.failed == bad
    assert 0 < len(bad) < 20
    assert {trial.error for trial in bad} == {"the training diverges", "val_loss is nan: the training diverges"}
    assert tuned.score == min(trial.score for trial in tuned.trials if trial not in bad)
    json.dumps(tuned.to_dict(), allow_nan=False)
    with pytest.raises(AtollError, match=r"fedprox: all of the first 4 trials failed: it rains"):
        tuning(8).run(Pretended(lambda config: AtollError("it rains")))


def test_values_that_were_tried_are_not_run_again() -> None:
    """A small space has few points."""
    runs = Pretended()
    tuned = tuning(12, {"hidden": [4, 8]}).run(runs)
    assert len(tuned.trials) == 12
    assert runs.count == 2 * len({trial.values["hidden"] for trial in tuned.trials}) <= 6


def test_a_grid_is_covered() -> None:
    """Every combination once, after the settings as they are."""
    tuned = tuning(7, {"lr": [0.003, 0.1], "hidden": [4, 64, 8]}, sampler="grid").run(Pretended())
    points = [(trial.values["lr"], trial.values["hidden"]) for trial in tuned.trials]
    assert points[0] == (0.003, 64)
    assert sorted(points) == sorted((lr, hidden) for lr in (0.003, 0.1) for hidden in (4, 8, 64))
    assert tuned.values == {"lr": 0.1, "hidden": 4}
    assert tuned.optuna == ""


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"trials": 1}, r"--trials is 1 but must be at least 2 \(the first is the settings as they are\)"),
        ({"trials": 10**6}, "at most 100000"),
        ({"sampler": "guess"}, "--sampler is 'guess' but must be one of tpe, random, grid"),
        ({"seeds": ()}, "at least one seed"),
        ({"seeds": (1, 1)}, "each named once"),
        ({"sampler": "grid"}, "A grid needs values, but lr is a range"),
        ({"sampler": "grid", "space": {"hidden": [1, 2, 3]}, "trials": 3}, "The grid needs 4 trials, but --trials is 3"),
    ],
)
def test_bad_requests(options: dict[str, Any], sentence: str) -> None:
    """Refused before anything runs."""
    with pytest.raises(AtollError, match=sentence):
        tuning(**options)


def test_without_validation_nodes() -> None:
    """There is nothing to choose by."""
    with pytest.raises(AtollError, match="Tuning needs validation nodes: fedprox has no val_loss"):
        tuning(5).run(lambda todo: iter([(todo[0][0], SimpleNamespace(metrics={}, best_round=1, rounds=1))]))  # type: ignore[arg-type]


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named; a grid does not need it."""
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(AtollError, match=r'pip install "atoll\[tune\]"'):
        search.open_search({"lr": Range(0.1, 1.0)}, "tpe", 0, higher_is_better=True, first={"lr": 0.2})
    search.open_search({"lr": Choices((0.1,))}, "grid", 0, higher_is_better=True, first={"lr": 0.2})


def test_processes_give_the_same_result(tmp_path: Path) -> None:
    """Real runs: two processes, or this one with one thread, killed folders left behind; and the chosen values can be run."""
    arguments = SMALL | {"space": {"lr": [0.003, 0.05], "hidden": [4, 64]}, "trials": 4, "seeds": 1, "sampler": "grid"}
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = atoll.tune("fedavg", out=tmp_path / "here", **arguments)
    finally:
        torch.set_num_threads(threads)
    there = atoll.tune("fedavg", jobs=2, out=tmp_path / "there", **arguments)
    assert here == there
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["trials.jsonl", "tune.json", "tuned.json"]
    result = atoll.run("fedavg", tuned=tmp_path / "there" / "tuned.json", **SMALL)
    assert {name: getattr(result.config.settings, name) for name in here.values} == here.values
    with pytest.warns(AtollWarning, match=r"fedavg was tuned with rounds=2 \(here 3\)"):
        atoll.run("fedavg", tuned=here, **(SMALL | {"rounds": 3}))
    for wrong, sentence in (
        ({"algorithm": "local"}, "--tuned is for fedavg, but local is run"),
        ({"lr": 0.1}, "lr is set and tuned"),
        ({"seed": 1000}, "Seed 1000 was used to tune fedavg"),
    ):
        with pytest.raises(AtollError, match=sentence):
            atoll.run(**({"algorithm": "fedavg", "tuned": here} | SMALL | wrong))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"cannot be read \(No such file"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "is not the tuned.json of"),
        ('{"kind": "tuned"}', "is damaged: algorithm is missing"),
    ],
)
def test_bad_tuned_files(content: str | None, sentence: str, tmp_path: Path) -> None:
    """One sentence each."""
    file = tmp_path / "x.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(AtollError, match=sentence):
        read_tuned(file)


def made_up(algorithm: str = "fedprox", **other: Any) -> Tuned:
    """A result of tuning as a file would hold it."""
    tuned = tuning(4).run(Pretended())
    return Tuned(**(vars(tuned) | {"algorithm": algorithm} | other))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score", "good"),
        ("score", 0.99),
        ("seeds", [1, 2]),
        ("values", {"lr": 0.5, "hidden": 8}),
        ("values", {"rounds": 500}),
        ("objective", "val_accuracy"),
        ("algorithm", "fedavg"),
        ("trials", []),
    ],
)
def test_files_edited_by_hand(name: str, value: Any, tmp_path: Path) -> None:
    """The file says what tuning did, so nothing in it may be another."""
    made_up().save(tmp_path / "tuned.json")
    document = json.loads((tmp_path / "tuned.json").read_text())
    assert read_tuned(tmp_path) == made_up()
    (tmp_path / "tuned.json").write_text(json.dumps(document | {name: value}))
    with pytest.raises(AtollError, match="its checksum does not match; run `atoll tune` again"):
        read_tuned(tmp_path)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rounds": 500}, "--tuned has rounds, which tuning does not choose for fedprox"),
        ({"split_seed": 3}, "--tuned has split_seed, which tuning does not choose for fedprox"),
        ({"lr": 0.77, "hidden": 8}, "--tuned has lr=0.77, hidden=8, but no trial of fedprox had these"),
    ],
)
def test_values_that_were_not_tuned(values: dict[str, Any], sentence: str) -> None:
    """Neither a run nor a comparison takes them."""
    tuned = made_up(values=values)
    with pytest.raises(AtollError, match=sentence):
        atoll.run("fedprox", tuned=tuned, **(SMALL | {"seed": 0}))
    with pytest.raises(AtollError, match=sentence):
        atoll.compare("local,fedprox", tuned=[tuned], seeds=1, **SMALL)


def test_comparisons_tune_every_row_alike(tmp_path: Path) -> None:
    """The same trials, seeds and space of shared settings; values and where they come from are in the summary."""
    space = {"lr": [0.003, 0.1], "fedprox.proximal": [0.01, 1.0]}
    compared = atoll.compare("local,fedprox", tune=3, tune_seeds=1, space=space, seeds=2, out=tmp_path, **SMALL)
    local, fedprox = compared.tuned["local"], compared.tuned["fedprox"]
    assert (len(local.trials), local.seeds) == (len(fedprox.trials), fedprox.seeds) == (3, (1000,))
    assert local.space == {"lr": [0.003, 0.1]}
    assert fedprox.space == local.space | {"proximal": [0.01, 1.0]}
    for row, tuned in compared.tuned.items():
        for result in compared.results[row]:
            assert {name: getattr(result.config.settings, name) for name in tuned.values} == tuned.values
    row = compared.summary()[1]
    assert row["tuned"] == fedprox.brief()
    assert row["tuned"]["seeds"] == [1000]
    assert not compared.notes
    assert (tmp_path / "tuning" / "fedprox" / "tuned.json").is_file()


def test_reported_seeds_are_others() -> None:
    """Neither tuned in the comparison nor before."""
    with pytest.raises(AtollError, match=r"Seed 0, 1 would be both tuned on and reported"):
        atoll.compare("local", tune=3, tune_seeds=[0, 1, 5], seeds=2, **SMALL)
    with pytest.raises(AtollError, match=r"Seeds 7, 8 were used to tune fedprox"):
        atoll.compare("local,fedprox", tuned=[made_up()], seeds=[7, 8, 9], **SMALL)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tuned": ["no"], "tune": 3}, "--tuned no cannot be read"),
        ({"tuned": "made", "tune": 3}, "leave one of them out"),
        ({"tuned": "made", "lr": 0.1}, "lr of fedprox is set and tuned"),
        ({"tuned": "made", "fedprox.lr": 0.1}, "lr of fedprox is set and tuned"),
        ({"tuned": "made", "sweep": {"lr": [0.1]}}, "lr of fedprox lr=0.1 is set and tuned"),
        ({"tuned": "other"}, "--tuned is for fedavg, which is not compared"),
        ({"tuned": "two"}, "--tuned is given twice for fedprox"),
        ({"tune": 3, "space": {"lr": [1]}, "sweep": {"lr": [0.1]}}, "lr is set and in the search space"),
        ({"tune": 3, "space": {"nothing": [1]}}, "names 'nothing', which fedprox or local does not have"),
    ],
)
def test_bad_comparisons(arguments: dict[str, Any], sentence: str) -> None:
    """One sentence each, before anything runs."""
    files = {"made": [made_up()], "other": [made_up("fedavg")], "two": [made_up(), made_up(score=0.5)]}
    if isinstance(name := arguments.get("tuned"), str):
        arguments = arguments | {"tuned": files[name]}
    with pytest.raises(AtollError, match=sentence):
        atoll.compare("local,fedprox", seeds=1, **SMALL, **arguments)


def test_unequal_tuning_is_said() -> None:
    """A contestant that was not tuned, and values that were tuned with other data."""
    compared = Comparison(["local", "fedprox"], dataset="csbm", partition="random", parties=3, seeds=[0], values={"nodes": 60})
    compared.tuned_files = [made_up()]
    compared.trials()
    assert compared.notes[0] == "Not tuned alike: local not at all, fedprox 4 trials on the seeds 7, 8."
    assert compared.notes[1] == "fedprox was tuned with parties=2 (here 3), rounds=2 (here 60)."
