"""The command `atoll evaluate`: how good a trained model is, by class and by party. Heavy imports wait until needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import Threads, prepare_torch


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Labeled nodes that arrived later: a folder with nodes and edges, an .npz, or a folder with one per party."
        ),
    ] = None,
    party: Annotated[
        str | None, typer.Option(help="Name or number of a party: whose nodes, or whose model for --data.", metavar="NAME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as `detail` in result.json.")] = False,
    threads: Threads = None,
) -> None:
    """Judge a trained model on labeled nodes: overall, by class and by party; the test nodes or, where none are marked, all."""
    prepare_torch(threads)
    from atoll.cli.console import out as console
    from atoll.runs.evaluation import judge
    from atoll.runs.folder import finite
    from atoll.runs.trained import load_model  # type: ignore[import-not-found, unused-ignore]

    model = load_model(run)
    found = model.outputs(None if data is None else str(data), party)
    judged = judge(found.graph, found.logits, found.party_names, model.classes, model.description.get("threshold"))
    if as_json:
        print(json.dumps(finite(judged.to_dict()), indent=1, ensure_ascii=False))
    else:
        console.print(str(judged), soft_wrap=True)
