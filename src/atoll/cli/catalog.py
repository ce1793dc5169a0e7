"""The commands that list what there is: `atoll algorithms`, `atoll datasets`. Heavy imports wait until needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table


def algorithms(
    name: Annotated[str | None, typer.Argument(help="Show this algorithm's settings.")] = None,
    scenario: Annotated[str | None, typer.Option(help="List only those for this scenario.")] = None,
    task: Annotated[str | None, typer.Option(help="List only those for this task.")] = None,
) -> None:
    """List the algorithms by scenario and task, or the settings of one."""
    from atoll import algorithms
    from atoll.cli.console import out as console
    from atoll.cli.console import settings_table
    from atoll.runs import config

    if name is not None:
        chosen = config.resolve(name)
        console.print((algorithms.find(name).__doc__ or "").strip() + "\n")
        console.print(settings_table(config.groups_of(name, chosen.dataset, getattr(chosen.settings, "model", "")), chosen))
        return
    for (scenarios, tasks), names in _listed(scenario, task).items():
        console.print(f"{', '.join(scenarios)}: {', '.join(tasks)}", style="bold")
        console.print(_one_line_each(names))
        console.print()


def _listed(scenario: str | None, task: str | None) -> dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]]:
    """The algorithms by the scenarios and the tasks that they are for; with a scenario or a task, only those for it."""
    from atoll import algorithms
    from atoll.errors import AtollError, suggest
    from atoll.runs.data_task import tasks_of
    from atoll.tasks import TASKS

    if scenario is not None and scenario not in algorithms.SCENARIOS:
        raise AtollError(f"There is no scenario {scenario!r}{suggest(scenario, algorithms.SCENARIOS)}")
    if task is not None:
        TASKS.check(task)
    groups: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for name in algorithms.names():
        module = algorithms.find(name)
        scenarios = tuple(each for each in algorithms.SCENARIOS if each in module.SCENARIOS)
        tasks = tasks_of(name)
        if scenario in (None, *scenarios) and task in (None, *tasks):
            groups.setdefault((scenarios, tasks), []).append(name)
    order = {each: place for place, each in enumerate(algorithms.SCENARIOS)}
    return dict(sorted(groups.items(), key=lambda group: ([order[each] for each in group[0][0]], -len(group[0][1]))))


def _one_line_each(names: list[str]) -> Table:
    """Each algorithm with the first line of its docstring."""
    from rich.table import Table

    from atoll import algorithms

    table = Table(box=None, padding=(0, 2, 0, 2), show_header=False)
    for name in names:
        table.add_row(name, (algorithms.find(name).__doc__ or "").strip().splitlines()[0].split(": ", 1)[-1])
    return table


def datasets() -> None:
    """List the graphs atoll knows, and whether their files are here."""
    from rich.table import Table

    from atoll.cli.console import out as console
    from atoll.data.registry import known

    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("dataset", "nodes", "edges", "features", "classes", "here"):
        table.add_column(column, justify="left" if column in ("dataset", "here") else "right")
    for each in known():
        numbers = [f"{number:,}" if number else "–" for number in (each.nodes, each.edges, each.features, each.classes)]
        table.add_row(each.name, *numbers, "yes" if each.available else f"no: {each.folder}")
    console.print(table)
    console.print("\nFiles are looked for under ATOLL_DATA, then in the cache; what is missing is downloaded on first use.")
