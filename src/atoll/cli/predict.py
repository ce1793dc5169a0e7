"""The command `atoll predict`: what a trained model says of every node. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from atoll.errors import AtollError

if TYPE_CHECKING:
    import pandas as pd

    from atoll.runs.outputs import Outputs
    from atoll.runs.trained import TrainedModel

ENDINGS = (".csv", ".parquet")
MAX_CLASSES = 30  # that the summary counts
Known = Annotated[
    Path | None, typer.Option(help="At a site: its data of before, where edges of new nodes name nodes of it.", metavar="FOLDER")
]
Join = Annotated[
    str | None,
    typer.Option(help="nfedgnn, cnfgnn: what users who join begin with: mean, initial or neighbors.", metavar="RULE"),
]

Pairs = Annotated[
    Path | None,
    typer.Option(help="Link prediction: the pairs to score, a .csv or .parquet with the columns source, target.", metavar="FILE"),
]


def predict(
    run: RunOrKit,
    data: Annotated[
        Path | None,
        typer.Option(help="Nodes or graphs that arrived later: a folder of tables, an .npz, or a folder with one per party."),
    ] = None,
    party: PartyName = None,
    known: Known = None,
    join: Join = None,
    pairs: Pairs = None,
    out: Annotated[Path | None, typer.Option(help="Write the predictions there: .csv or .parquet.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file that --out names.")] = False,
    name: KitRun = None,
    algorithm: OwnAlgorithm = None,
    model: OwnModel = None,
    device: Device = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Predict every node, graph or pair with a trained model: those of its training data, or new ones."""
    prepare_torch(threads)
    if out is not None:
        _check_target(out, force)
    from atoll.cli.console import out as console
    from atoll.cli.console import stage

    say_device(device, quiet=quiet)
    opened = open_model(run, name, algorithm, model, device)
    if party is not None:
        opened.party_number(party)
    if data is None and known is None:
        with stage("Loading the training data", quiet=quiet):
            _ = opened.training_data
    with stage("Predicting", quiet=quiet):
        outputs = opened.outputs(data, party, known, join, pairs)
        frame = opened.table(outputs)
    if out is not None:
        with stage(f"Writing {out}", quiet=quiet):
            write(frame, out)
    _print_summary(opened, outputs, frame, trained_on=data is None)
    if out is not None:
        console.print(f"Written to {out}")


def open_model(
    path: Path, name: str | None, algorithm: Path | None, model: str | None, device: str | None = None
) -> TrainedModel:
    """The model of a run, or of a run at a site."""
    from atoll.deploy.site_predictions import is_kit, open_site_model

    if is_kit(path):
        return open_site_model(path, name, device=device or "cpu")
    if name is not None:
        raise AtollError(f"{path} is not a kit, so it holds one run; leave --run out.")
    from atoll.runs.trained import load_model

    return load_model(path, algorithm=algorithm, model=model, device=device or "cpu")


def _check_target(path: Path, force: bool) -> None:
    """Refuse what could not be written, before anything is computed."""
    if path.suffix not in ENDINGS:
        raise AtollError(f"--out is {path}; name a file that ends in {' or '.join(ENDINGS)}.")
    if path.is_dir() or (path.exists() and not force):
        raise AtollError(f"{path} exists already; choose another --out, or overwrite it with --force.")


def write(frame: pd.DataFrame, path: Path) -> None:
    """Write the table as its ending says; it appears whole or not at all."""
    from atoll import storage

    with storage.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with storage.replacing(path) as file:
        if path.suffix == ".csv":
            frame.to_csv(file, index=False, mode="wb")
        else:
            frame.to_parquet(file, index=False)


def _print_summary(model: TrainedModel, outputs: Outputs, frame: pd.DataFrame, *, trained_on: bool) -> None:
    """Nodes by class, and metrics where labels are known."""
    from rich.table import Table

    from atoll.cli.console import out as console
    from atoll.runs.evaluation_text import decision_text, together
    from atoll.runs.metrics import in_order, metric_format
    from atoll.tasks.levels import items_of

    rows = len(frame)
    console.print(f"{model.config.algorithm}, round {model.description['best_round']}: {rows:,} row{'' if rows == 1 else 's'}")
    threshold = model.description.get("threshold")
    if threshold is not None:
        console.print(decision_text(threshold, items_of(model.task)), soft_wrap=True)
    counts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    if "class" in frame:
        for label, count in frame["class"].value_counts(sort=model.classes is None).head(MAX_CLASSES).items():
            counts.add_row(f"class {label}", f"{count:,}", f"{100 * count / rows:.1f} %")
    local = "local_" if trained_on and model.description["scenario"] == "overlapping" else ""
    computed = outputs.metrics(model.task).items()
    metrics = {f"{local}{each}": value for each, value in computed if not each.startswith(("val_", "train_"))}
    items = items_of(model.task)
    judged = f"of test {items}" if bool(outputs.graph.test.any()) else f"of labeled {items}"
    judged += "" if threshold is None else ", by the likeliest class"
    for each in in_order(metrics):
        form = metric_format(each)
        value = f"{100 * metrics[each]:.2f} %" if form.percent else f"{metrics[each]:.4f}"
        counts.add_row(form.words, value, judged)
    if metrics and trained_on:
        for line in together(items, model.average_words):
            console.print(line, soft_wrap=True)
    if counts.row_count:
        console.print(counts)
