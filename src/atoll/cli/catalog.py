"""The commands that list what there is: `atoll algorithms`, `atoll datasets`. Heavy imports wait until needed."""

from __future__ import annotations

from typing import Annotated

import typer


def algorithms(name: Annotated[str | None, typer.Argument(help="Show this algorithm's settings.")] = None) -> None:
    """List the algorithms, or the settings of one."""
    from rich.table import Table

    from atoll import algorithms
    from atoll.cli.console import out as console
    from atoll.cli.console import settings_table
    from atoll.runs import config

    if name is not None:
        chosen = config.resolve(name)
        console.print((algorithms.find(name).__doc__ or "").strip() + "\n")
        console.print(settings_table(config.groups_of(name, chosen.dataset, getattr(chosen.settings, "model", "")), chosen))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("algorithm", "scenario", ""):
        table.add_column(column)
    for each in algorithms.names():
        module = algorithms.find(each)
        table.add_row(each, ", ".join(module.SCENARIOS), (module.__doc__ or "").strip().splitlines()[0].split(": ", 1)[-1])
    console.print(table)


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
