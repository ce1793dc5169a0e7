"""The command `atoll evaluate`: how good a trained model is, by class and by party. Heavy imports wait until needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import (
    Device,
    KitRun,
    OwnAlgorithm,
    OwnModel,
    PartyName,
    Quiet,
    RunOrKit,
    Threads,
    prepare_torch,
    say_device,
)
from atoll.cli.predict import Join, Known


def evaluate(
    run: RunOrKit,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labeled nodes or graphs that arrived later: a folder of tables, an .npz, or a folder with one per party."
        ),
    ] = None,
    party: PartyName = None,
    known: Known = None,
    join: Join = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as `detail` in result.json.")] = False,
    name: KitRun = None,
    algorithm: OwnAlgorithm = None,
    model: OwnModel = None,
    device: Device = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Judge a trained model on labeled nodes, graphs or pairs: overall, by class and by party; of test items or, without, all."""
    prepare_torch(threads)
    from atoll.cli.console import out as console
    from atoll.cli.console import stage
    from atoll.cli.predict import open_model
    from atoll.runs.documents import finite

    say_device(device, quiet=quiet or as_json)
    with stage("Predicting", quiet=quiet):
        judged = open_model(run, name, algorithm, model, device).evaluate(data, party, known, join)
    if as_json:
        print(json.dumps(finite(judged.to_dict()), indent=1, ensure_ascii=False))
    else:
        console.print(str(judged), soft_wrap=True)
