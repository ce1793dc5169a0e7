"""Options and helpers that several commands share. Heavy imports wait until needed."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.errors import AtollError

if TYPE_CHECKING:
    from atoll.runs.config import Config
    from atoll.runs.loggers import RunLoggers
    from atoll.runs.result import Result
    from atoll.runs.tuning import TuningRequest

MAX_THREADS = 256
MAX_SEEDS = 10_000

Dataset = Annotated[str | None, typer.Option(help="A known graph (`atoll datasets`), `csbm`, or a folder or .npz of your own.")]
Partition = Annotated[
    str | None,
    typer.Option(
        help="metis, louvain_balanced, dirichlet, label_skew, random, overlap, vertical, node, whole, natural (the dataset's), "
        "files (one folder per party), a name of `atoll partition --list`, or an .npz of node lists."
    ),
]
Parties = Annotated[int | None, typer.Option(help="Number of parties.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; `atoll algorithms NAME` lists them.")
]
Model = Annotated[str | None, typer.Option(help="One of `atoll models`, or a FILE.py with a torch.nn.Module.")]
Address = Annotated[
    str | None, typer.Option(help="Engine ray: the cluster, as HOST:PORT, or auto for the one that this machine belongs to.")
]
Rounds = Annotated[int | None, typer.Option(help="Maximum number of rounds.")]
Device = Annotated[
    str | None,
    typer.Option(help="Where the parties compute: cpu, cuda, cuda:1, mps, or auto, the first of these that is here."),
]
Threads = Annotated[int | None, typer.Option(help="Threads of torch; all cores by default.")]
Jobs = Annotated[int, typer.Option(help="Runs at the same time, each in a process with one thread.")]
OwnAlgorithm = Annotated[
    Path | None, typer.Option(help="The file of an algorithm of your own: a folder alone never makes atoll run one.")
]
OwnModel = Annotated[str | None, typer.Option(help="The file of a model of your own: a folder alone never makes atoll run one.")]
RunOrKit = Annotated[Path, typer.Argument(metavar="RUN|KIT", help="The folder of a run, or a site's kit.")]
KitRun = Annotated[str | None, typer.Option("--run", help="Of a kit: which run; the newest finished one by default.")]
PartyName = Annotated[
    str | None, typer.Option(help="Name or number of a party: whose nodes, or whose model for --data.", metavar="NAME")
]
Space = Annotated[str, typer.Option(metavar="FILE|defaults", help="What to search: a TOML file with one line per setting.")]
TuningSeeds = Annotated[str, typer.Option(help="Seeds of tuning: a number (1000, 1001, …), or the seeds themselves.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress line.")]
Log = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="Also log every round: csv, tensorboard, wandb, mlflow, or another package's."),
]


def read_values(sets: list[str] | None, **named: Any) -> dict[str, Any]:
    """Settings from `--set KEY=VALUE` and from options of their own that were given."""
    values = {name: value for name, value in named.items() if value is not None}
    for item in sets or []:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise AtollError(f"--set {item!r} is not of the form key=value; write for instance --set lr=0.01.")
        if key.strip() in values:
            raise AtollError(f"--set {key.strip()} is given twice; give it once.")
        values[key.strip()] = value.strip()
    return values


def read_toml(path: Path) -> dict[str, Any]:
    """A configuration file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AtollError(f"{path} cannot be read ({error.strerror}); give the path of a configuration.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AtollError(f"{path} is not valid TOML: {error}.") from error


def split_names(text: str | None) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def read_seeds(text: str, option: str = "--seeds", first: int = 0) -> list[int]:
    """`5` → 0, 1, 2, 3, 4 (from `first` on); `0,3,7` and `7,` → those."""
    parts = split_names(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise AtollError(f"{option} is {text!r} but must be a number of seeds, or seeds separated by commas, for instance 0,3,7.")
    if "," in text:
        return [int(part) for part in parts]
    if not 1 <= int(text) <= MAX_SEEDS:
        raise AtollError(
            f"{option} is {text} but must be at least 1 and at most {MAX_SEEDS}; for the seed {text} alone write {text},"
        )
    return list(range(first, first + int(text)))


def read_tuning(
    trials: int, seeds: str, space: str, sampler: str = "tpe", sampler_seed: int = 0, *, within: bool = False
) -> TuningRequest:
    """The options of tuning as one request; `within` a comparison they have other names."""
    from atoll.runs.space import asked_space
    from atoll.runs.tuning import FIRST_SEED, TuningRequest

    chosen = read_seeds(seeds, "--tune-seeds" if within else "--seeds", FIRST_SEED)
    return TuningRequest(trials, chosen, asked_space(space), sampler, sampler_seed, "--tune" if within else "--trials")


def check_threads(threads: int) -> None:
    """Refuse numbers that torch cannot take; far too many would end the process without a message."""
    if not 1 <= threads <= MAX_THREADS:
        raise AtollError(f"--threads is {threads} but must be at least 1 and at most {MAX_THREADS}.")


def bound_spinning() -> None:
    """Bound how long idle OpenMP threads spin, before torch is imported: good on an idle machine and on a busy one."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "100000"


def prepare_torch(threads: int | None) -> None:
    """Set up torch for this process, before it is imported."""
    bound_spinning()
    if threads is not None:
        check_threads(threads)
        import torch

        torch.set_num_threads(threads)


def say_device(device: str | None, *, engine: str | None = None, quiet: bool = False) -> None:
    """Refuse a device that is not here; say which one `auto` is. What an engine's other processes have is theirs to say."""
    if device is None:
        return
    from atoll import device as devices
    from atoll.cli.console import out as console
    from atoll.engines import is_hosted

    devices.check(device)
    if engine is not None and is_hosted(engine):
        return
    name = devices.name(devices.find(device))
    if device == devices.AUTO and not quiet:
        console.print(f"Device {name} (this machine has {devices.available()})")


def open_loggers(
    label: str, *, quiet: bool, log: Sequence[str] | None = None, folder: Path | None = None, config: Config | None = None
) -> RunLoggers:
    """The progress line, unless `quiet`, and the loggers that `--log` named, as one."""
    from atoll.runs.loggers import open_loggers as opened

    return opened([*([] if quiet else ["progress"]), *(log or [])], label, folder, config)


def print_result(result: Result) -> None:
    """Print what a run came to, and where it was written."""
    from atoll.cli.console import out as console
    from atoll.cli.console import result_table
    from atoll.runs.summary import title

    console.print(title(result))
    console.print(result_table(result))
