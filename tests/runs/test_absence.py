"""A missing party must not improve the score: such rounds are marked, are not the best, and lists stay aligned by party."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atoll import reports
from atoll.cli import console
from atoll.federation.federation import Engine
from atoll.papers import exhibits, recorded
from atoll.papers.execute import folder_of, jobs_of
from atoll.runs import absence, runner
from atoll.runs.folder import Folder
from atoll.runs.progress import Progress, Selection
from atoll.runs.runner import Result
from small import Absent, small

ROUNDS = 6


def run(absent: dict[int, set[int]], folder: Path | None = None, **values: Any) -> Result:
    """FedAvg on three parties; `absent`: round → parties that do not answer in it."""
    config = small("fedavg", rounds=ROUNDS, **values)

    def engine(engine: Engine) -> Engine:
        for round, parties in absent.items():
            engine = Absent(engine, {round}, parties)
        return engine

    if folder is None:
        return runner.rounds(runner.prepare(config, engine=engine))
    return runner.rounds(runner.prepare(config, engine=engine), Folder.create(folder, config))


def worst_party() -> int:
    """The party whose accuracy is lowest at the end of an undisturbed run."""
    accuracies = run({}).last["party_accuracy"]
    return int(min(range(3), key=lambda party: accuracies[party]))


@pytest.mark.parametrize("select", ["loss", "accuracy"])
def test_the_worst_party_drops_out_and_the_score_does_not_rise(select: str) -> None:
    """The attack: the party the model is worst for stays away in the last rounds, and what is left looks better.

    The best round stays one that everybody was part of; `allow_partial_best` shows that the attack works where it is allowed to.
    """
    worst = worst_party()
    gone = {round: {worst} for round in range(4, ROUNDS + 1)}
    fooled = run(gone, select_by=select, allow_partial_best=True)
    honest = run(gone, select_by=select)
    assert fooled.best_round >= 4  # otherwise this test shows nothing
    assert fooled.metrics["accuracy"] > honest.metrics["accuracy"]
    assert fooled.partial
    assert honest.best_round < 4
    assert not honest.partial
    undisturbed = run({}, select_by=select)
    assert honest.metrics == best_of(undisturbed.rows[:3], select)


def best_of(rows: list[dict[str, Any]], select: str) -> dict[str, Any]:
    """The naive choice: the metrics of the first row with the best validation score."""
    best = min(rows, key=lambda row: row["val_loss"] if select == "loss" else -row["val_accuracy"])
    return {name: value for name, value in best.items() if name not in ("round", "up", "down", "seconds")}


def test_rounds_are_marked_and_counted(tmp_path: Path) -> None:
    """`partial` in the history, counts in result.json; who was there is not named."""
    result = run({2: {1}, 3: {0, 1}, 6: {1}}, tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row.get("partial") for row in rows] == [None, True, True, None, None, True]
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["missing"] == {"0": 1, "1": 3}
    assert written["partial"] is False
    assert written["last_partial"] is True
    again = runner.read(tmp_path / "run")
    assert (again.missing, again.partial, again.last_partial) == (result.missing, False, True)


def test_an_undisturbed_run_says_so() -> None:
    """No marks, no counts."""
    result = run({})
    assert (result.missing, result.partial, result.last_partial) == ({}, False, False)
    assert not any("partial" in row or "missing" in row for row in result.rows)


def test_lists_stay_aligned_by_party() -> None:
    """The others' accuracies stay at their own places; null stands at the missing one's."""
    whole, without = run({}), run({ROUNDS: {1}})
    before, after = whole.rows[ROUNDS - 2], without.rows[ROUNDS - 2]
    assert before["party_accuracy"] == after["party_accuracy"]
    for name in ("party_accuracy", "party_minority_accuracy"):
        listed = without.last[name]
        assert len(listed) == 3
        assert listed[1] is None
        assert listed[0] is not None
        assert listed[2] is not None
    alone = run({ROUNDS: {0, 1}}).last["party_accuracy"]
    assert alone[:2] == [None, None]


def test_where_somebody_is_always_missing_the_best_of_those_is_told_as_such() -> None:
    """There is a best round, and result and summary say that it leaves parties out."""
    result = run({round: {2} for round in range(1, ROUNDS + 1)})
    assert result.best_round > 0
    assert result.partial
    assert result.missing == {"2": ROUNDS}
    told = text(result)
    assert "party 2 in 6 of 6 rounds" in told
    assert "every evaluated round lacked a party" in told


def test_the_first_complete_round_takes_the_place_of_a_partial_one() -> None:
    """However good the partial one looked."""
    book = Progress()
    for round, (loss, partial) in enumerate([(0.1, True), (0.9, False), (0.2, True), (0.8, False)], start=1):
        book.round = round
        book.update({"val_loss": loss}, Selection(), partial=partial)
        assert book.best_round == {1: 1, 2: 2, 3: 2, 4: 4}[round]
        assert book.partial == (round == 1)


@pytest.mark.parametrize("partials", [set(), {3, 4}, {2}, {1, 2, 3, 4, 5, 6}])
def test_patience_counts_only_rounds_that_can_be_compared(partials: set[int]) -> None:
    """An absence does not end a run early; where nothing but partial rounds exist they count as any other.

    Against a naive reading: list the comparable rounds after the best one and stop when there are `patience` of them.
    """
    patience, losses = 2, [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]
    book = Progress()
    while not book.finished(len(losses), patience):
        book.round += 1
        book.update({"val_loss": losses[book.round - 1]}, Selection(), partial=book.round in partials)
    comparable = [round for round in range(1, 7) if round not in partials] or list(range(1, 7))
    worse = [round for round in comparable if round > comparable[0]]
    assert book.round == worse[patience - 1]


def test_patience_with_rare_evaluations() -> None:
    """A partial evaluation stands for all rounds since the one before."""
    book = Progress()
    for round in range(1, 31):
        book.round = round
        if round % 5 == 0:
            book.update({"val_loss": 1.0}, Selection(), partial=round in (10, 15))
        assert book.finished(99, 10) == (round >= 25)


def test_a_target_is_not_reached_without_a_party() -> None:
    """The accuracy of those who are left does not end a run."""
    for partial, ends in ((False, True), (True, False)):
        book = Progress(round=1)
        book.update({"val_accuracy": 0.9}, Selection("accuracy", higher_is_better=True), partial=partial)
        assert book.finished(9, 0, 0.8) is ends


def test_a_resumed_run_remembers_its_marks(tmp_path: Path) -> None:
    """Counts and best round are those of a run that was not interrupted."""
    absent = {2: {1}, 4: {1}}
    whole = run(absent, patience=5)
    config = small("fedavg", rounds=ROUNDS, patience=5, checkpoint_every=1)
    folder = Folder.create(tmp_path / "run", config)

    class Stop(Exception):
        """The process ends."""

    def stop(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise Stop

    def engine(engine: Engine) -> Engine:
        return Absent(engine, set(absent), {1})

    with pytest.raises(Stop):
        runner.rounds(runner.prepare(config, engine=engine), folder, stop)
    resumed = runner.rounds(runner.prepare(config, engine=engine), folder, None, folder.load())
    assert resumed.missing == whole.missing == {"1": 2}
    assert resumed.best_round == whole.best_round
    assert resumed.metrics == whole.metrics


def text(result: Result) -> str:
    """What the command line shows."""
    said = Console(width=300, file=io.StringIO())
    said.print(console.result_table(result))
    return " ".join(said.file.getvalue().split())  # type: ignore[attr-defined]


def test_summary_and_report_say_who_was_missing(tmp_path: Path) -> None:
    """The table at the end and the page; nothing where nobody was."""
    result = run({2: {1}, 3: {0, 1}, 6: {1}}, tmp_path / "run")
    told = text(result)
    assert "party 1 in 3 of 6 rounds, party 0 in 1 no such round is the best" in told
    assert "(a party missing)" in told
    reports.write(reports.make([tmp_path / "run"], embeddings="none"), html=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "run: missing: party 1 in 3 of 6 rounds, party 0 in 1; no such round is the best." in page
    run({}, tmp_path / "whole")
    assert not reports.make([tmp_path / "whole"], embeddings="none").notes


def test_the_report_of_a_run_in_progress_chooses_as_the_run_does(tmp_path: Path) -> None:
    """Without result.json the best round is told from the history, by the same rule."""
    worst = worst_party()
    result = run({round: {worst} for round in range(4, ROUNDS + 1)}, tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    (row,) = reports.make([tmp_path / "run"], embeddings="none").rows
    assert row.runs[0].result.best_round == result.best_round
    assert "no such round is the best" in row.runs[0].absence


def test_words() -> None:
    """Names where they are known; many parties are not all listed."""
    assert absence.summary({"0": 1}, 1) == "party 0 in 1 of 1 round"
    assert absence.summary({"0": 1, "1": 2}, 9, ("bank-a", "bank-b")) == "bank-b in 2 of 9 rounds, bank-a in 1"
    assert absence.summary({str(party): 1 for party in range(7)}, 9).endswith("party 4 in 1 and 2 more parties")
    assert absence.summary({}, 9) == absence.verdict({}, False, False) == ""


def test_recorded_results_are_still_found() -> None:
    """A new setting of a run does not change the digests of recorded runs while it is at its default."""
    jobs = jobs_of([each for each in exhibits("fedspray") if each.name.endswith("/table2")], False, 1)
    known = recorded("fedspray")
    names = [folder_of(config, Path()).name for configs in jobs.values() for config in configs]
    assert sum(name in known for name in names) > len(names) / 2
    config = small("fedavg")
    assert folder_of(config, Path()) != folder_of(small("fedavg", allow_partial_best=True), Path())
