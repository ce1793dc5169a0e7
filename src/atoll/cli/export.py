"""The command `atoll export`. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import KitRun, OwnAlgorithm, OwnModel, RunOrKit, prepare_torch
from atoll.errors import AtollError


def export(
    run: RunOrKit,
    to: Annotated[str, typer.Option(help="pyg, safetensors (plain torch), torchscript, pt2 (torch.export) or onnx.")],
    out: Annotated[Path, typer.Option(help="A new folder for the model and the program that loads it.")],
    name: KitRun = None,
    party: Annotated[str | None, typer.Option(help="The party whose model it is, where each party has its own.")] = None,
    algorithm: OwnAlgorithm = None,
    model: OwnModel = None,
) -> None:
    """Write what was trained for other programs: the best round's model, and a loader that does not need atoll."""
    prepare_torch(None)
    from atoll.cli.console import err
    from atoll.cli.console import out as console
    from atoll.deploy.site_predictions import is_kit, open_site_model
    from atoll.runs.export import check_out, check_target, export_model

    check_target(to)
    check_out(out)
    if name is not None and not is_kit(run):
        raise AtollError(f"{run} is not a kit, so it holds one run; leave --run out.")
    with err.status(f"Writing {to} and comparing it with atoll"):
        if is_kit(run):
            files = open_site_model(run, name).export(to, out, party)
        else:
            files = export_model(run, to, out, party=party, algorithm=algorithm, model=model)
    console.print(f"Written to {out}: {', '.join(sorted(file.name for file in files))}", soft_wrap=True)
    console.print(f"Its outputs equal atoll's; try it with `python {out / 'load.py'}`.", soft_wrap=True)
