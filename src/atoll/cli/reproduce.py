"""The command `atoll reproduce`: the papers' tables and figures, ours beside theirs. Heavy imports wait until needed."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import Jobs, prepare_torch
from atoll.errors import AtollError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from atoll.papers import Exhibit, Line
    from atoll.papers.execute import Finished
    from atoll.papers.record import Jobs as Work
    from atoll.papers.results import Results
    from atoll.runs.trial import Trial


def reproduce(
    what: Annotated[str | None, typer.Argument(metavar="PAPER[/TABLE]", help="For instance fedspray or fedspray/table2.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show every table and figure with its state.")] = False,
    quick: Annotated[bool, typer.Option(help="A small version: fewer seeds and rounds.")] = False,
    only: Annotated[
        str | None, typer.Option(help="Run only the line with this label, or else those whose label contains this text.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds; as many as the paper's by default.")] = None,
    jobs: Jobs = 1,
    out: Annotated[Path, typer.Option(help="Folder for the runs; those already there are not run again.")] = Path(
        "runs/reproduce"
    ),
    page: Annotated[
        Path | None,
        typer.Option(
            help="Write a page of results to this file, with pictures in img beside it; without PAPER, all to a folder."
        ),
    ] = None,
    rerun: Annotated[bool, typer.Option("--run/--no-run", help="Run what is missing, or only show what is there.")] = True,
    new: Annotated[
        bool, typer.Option("--new", help="Run only what our record does not have; with --record, also where it has means only.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--record", help="Keep what comes out, run by run, as data of the package (for a source checkout).")
    ] = False,
) -> None:
    """Reproduce the papers' tables and figures: ours beside theirs.

    Where there are no runs of a line, our recorded result is shown. Exit code 1 when runs do not come out as recorded.
    """
    from atoll import papers as library
    from atoll.cli.console import stage

    prepare_torch(None)
    if what is None and page is not None:
        with stage("Writing the pages"):
            _write_all(page, out)
        return
    if listed or what is None:
        with stage("Reading the papers' tables and our records"):
            table = _list(library.find(what) if what else library.all_exhibits(), out)
        _print(table)
        return
    from atoll.papers import execute, record, results

    chosen = library.find(what)
    if keep:
        if quick:
            raise AtollError("--record keeps full results only; leave out --quick.")
        record.ready()
    rows = library.selected([cell.row for exhibit in chosen for cell in exhibit.cells], only)
    if only is not None and not rows:
        raise AtollError(f"No line of {what} has {only!r} in its label; `atoll reproduce {what} --no-run` shows all lines.")
    paper = what.partition("/")[0]
    with stage("Looking for runs that are already there"):
        work = execute.jobs_of(chosen, quick, seeds)
        some = {(name, row): each for (name, row), each in work.items() if row in rows}
        todo = execute.waiting(record.unrecorded(chosen, some, means=not keep) if new else some, out) if rerun else []
    _run(todo, jobs, partial(record.add, paper) if keep else None)
    with stage("Collecting results"):
        reported = [(exhibit, execute.lines(exhibit, work, out)) for exhibit in chosen]
    if keep:
        for word in record.write(paper, {exhibit.name: lines for exhibit, lines in reported}, work, out):
            print(word, file=sys.stderr)
    reported = [(exhibit, record.filled(exhibit, lines, work)) for exhibit, lines in reported]
    if not quick:
        with stage("Comparing with the ranges"):
            reported = [(exhibit, record.judged(exhibit, lines)) for exhibit, lines in reported]
    _show(reported, rows)
    if page is not None:
        with stage("Drawing the figures"):
            _write(results.Results(paper, reported, out), work, out, page)
    if any(line.deviates() for _, lines in reported for line in lines):
        raise typer.Exit(1)


def _run(todo: Sequence[tuple[Trial, Path]], jobs: int, keep: Finished | None) -> None:
    """Run the trials, show how far they are, and keep each as it ends."""
    from atoll.cli.board import RunBoard
    from atoll.papers import execute

    board = RunBoard(len(todo))
    with board.screen:

        def finished(trial: Trial, folder: Path) -> None:
            if keep is not None:
                keep(trial, folder)
            board.finished(trial, folder)

        execute.execute(todo, jobs, finished, board.watch)


def _list(exhibits: list[Exhibit], out: Path) -> Group:
    from atoll.cli.papers import status_table

    return status_table(exhibits, out)


def _print(table: Group) -> None:
    from atoll.cli.console import show

    show(table)


def _show(reported: list[tuple[Exhibit, list[Line]]], rows: set[str]) -> None:
    from atoll.cli.console import show
    from atoll.cli.papers import exhibit_table

    for exhibit, lines in reported:
        chosen = [line for line in lines if line.cell.row in rows]
        if chosen:
            show(exhibit_table(exhibit, chosen))


def _write(results: Results, work: Work, out: Path, page: Path) -> None:
    """The page of a paper or of one of its tables, with its figures in `img` beside it; curves are of the runs in `out`."""
    from atoll import storage
    from atoll.papers import claims, pages, pictures

    shown = {exhibit.name.partition("/")[2] for exhibit, _ in results.shown}
    claimed = [claim for claim in claims.claims(results.paper) if claim.table in shown]
    page.parent.mkdir(parents=True, exist_ok=True)
    drawn = {name: f"img/{file.name}" for name, file in pictures.save(results.shown, work, out, page.parent / "img").items()}
    if pictures.claims([claims.judge(claim, results) for claim in claimed], page.parent / "img" / f"{page.stem}-claims.svg"):
        drawn["claims"] = f"img/{page.stem}-claims.svg"
    storage.write_whole(page, pages.markdown(results, drawn, claimed, claims.tuning(results.paper)).encode())


def _write_all(folder: Path, out: Path) -> None:
    """The pages of all papers and their index, from the record, and what the algorithms' pages beside them show of it."""
    from atoll import storage
    from atoll.papers import execute, pages, prose, sections

    every = pages.everything()
    for results in every:
        work = execute.jobs_of([exhibit for exhibit, _ in results.shown], False, None)
        _write(results, work, out, folder / f"{results.paper}.md")
    storage.write_whole(folder / "index.md", pages.index(every).encode())
    sections.write(folder.parent / "algorithms", every)
    prose.write(folder.parent / "algorithms", every)
