"""The command `atoll theory`: the constants of an algorithm's theorem on a run's data. Heavy imports wait until needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import Quiet, Threads, prepare_torch


def theory(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run of gfl_appnp.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: symbol → value.")] = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Measure what a method's convergence theorem assumes: constants of the data at the trained model, and the bound's terms."""
    prepare_torch(threads)
    from rich import box
    from rich.table import Table

    from atoll.cli.console import show, stage
    from atoll.runs.documents import finite
    from atoll.runs.theory import measure

    with stage("Measuring", quiet=quiet):
        quantities = measure(run)
    if as_json:
        print(json.dumps(finite({one.symbol: one.value for one in quantities}), indent=1, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for name, side in (("", "left"), ("value", "right"), ("", "left")):
        table.add_column(name, justify=side)  # type: ignore[arg-type]
    for one in quantities:
        table.add_row(one.symbol, f"{one.value:.4g}", one.meaning)
    show(table)
