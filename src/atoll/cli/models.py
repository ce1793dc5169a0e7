"""The command `atoll models`: the backbones there are, and the settings of one. Heavy imports wait until needed."""

from __future__ import annotations

import inspect
from typing import Annotated

import typer


def models(name: Annotated[str | None, typer.Argument(help="Show this one's settings; a FILE.py is imported.")] = None) -> None:
    """List the models that parties can train, or the settings of one."""
    from rich.table import Table

    from atoll.cli.console import out as console
    from atoll.models import user
    from atoll.models.registry import MODELS, find_model
    from atoll.settings import known

    table = Table(box=None, padding=(0, 2, 0, 0))
    if name is not None:
        model = find_model(user.load(name))
        console.print((inspect.getdoc(model) or name) + "\n", markup=False)
        for column in ("setting", "default", ""):
            table.add_column(column)
        for key, field in known(model.settings_type).items():
            table.add_row(f"model.{key}", str(field.default), field.metadata["help"])
        console.print(table if table.row_count else "It has no settings beyond the algorithm's (hidden, layers, dropout, …).")
        return
    for column in ("model", "settings", ""):
        table.add_column(column)
    for each in MODELS.names():
        model = MODELS.find(each)
        summary = " ".join((inspect.getdoc(model) or "").split("\n\n")[0].split())
        table.add_row(each, ", ".join(f"model.{key}" for key in known(model.settings_type)), summary)
    console.print(table)
    console.print("\nOne of your own: --model FILE.py with a torch.nn.Module. `atoll models NAME` explains the settings.")
