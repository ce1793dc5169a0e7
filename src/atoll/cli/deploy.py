"""The commands of deployment: `atoll provision`, `atoll serve`, `atoll join`. Heavy imports wait until needed."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.options import (
    Device,
    Log,
    Quiet,
    Threads,
    bound_spinning,
    check_threads,
    open_loggers,
    print_result,
    read_toml,
    say_device,
    split_names,
)
from atoll.errors import AtollError


def provision(
    parties: Annotated[str, typer.Option(help="Names of the parties, separated by commas: bank-a,bank-b,bank-c.")],
    server: Annotated[str, typer.Option(help="Host name or address under which the sites reach the server.")],
    out: Annotated[Path, typer.Option(help="Folder for the kits.")],
    port: Annotated[int, typer.Option(help="Port of the server.")] = 8102,
) -> None:
    """Make a kit for the server and one for each party: keys, certificates and what each end allows."""
    from atoll.cli.console import out as console
    from atoll.deploy.kit import provision as make

    first, *kits = make(split_names(parties), server, out, port=port)
    console.print(f"For the server: {first}", soft_wrap=True)
    for kit in kits:
        console.print(f"For {kit.name}: {kit}", soft_wrap=True)
    console.print("Bring every kit to its own machine, by a way you trust, and delete it here: it holds a private key.")


def serve(
    kit: Annotated[Path, typer.Argument(help="The server's kit, from `atoll provision`.")],
    config: Annotated[Path, typer.Option(help="The run as TOML: algorithm, settings, rounds; without dataset and parties.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the run; `result` in the kit by default.")] = None,
    log: Log = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Be the server of a federation for one run. Started again, it goes on from the last checkpoint."""
    _threads(threads)
    from atoll.deploy import launch
    from atoll.deploy.kit import Kit

    opened = Kit.open(kit, server=True)
    chosen, target = launch.deployment_config(read_toml(config), str(config), opened.sites), out or opened.path / "result"
    say_device(chosen.device, quiet=quiet)
    with open_loggers(chosen.algorithm, quiet=quiet, log=log, folder=target, config=chosen) as watch:
        result = launch.serve(opened, chosen, target, watch=watch)
        watch.finish(result)
    print_result(result)


def join(
    kit: Annotated[Path, typer.Argument(help="The site's kit, from `atoll provision`.")],
    data: Annotated[Path, typer.Option(help="The site's own graph: a folder or .npz. It never leaves.")],
    only: Annotated[str, typer.Option(help="Take part in these algorithms only, separated by commas.")] = "",
    secure: Annotated[bool, typer.Option("--secure", help="Take part under secure aggregation only.")] = False,
    secure_min: Annotated[int, typer.Option(help="Take part in secure totals of at least this many parties.")] = 3,
    dp_epsilon: Annotated[
        float, typer.Option(help="Take part with noise only, up to this ε over all runs with this kit; 0 insists on none.")
    ] = 0.0,
    dp_delta: Annotated[float, typer.Option(help="The δ of --dp-epsilon.")] = 1e-5,
    device: Device = None,
    threads: Threads = None,
) -> None:
    """Be a site of a federation, until the run is over. Started again, it goes on from what it saved."""
    _threads(threads)
    from atoll.deploy import launch
    from atoll.deploy.policy import SitePolicy

    say_device(device)
    names = tuple(split_names(only))
    if secure_min < 2:
        raise AtollError(f"--secure-min is {secure_min} but must be at least 2: the sum of one party is its reply.")
    if not math.isfinite(dp_epsilon) or dp_epsilon < 0:
        raise AtollError(f"--dp-epsilon is {dp_epsilon:g} but must be a number above 0, or 0 to insist on none.")
    if not 0 < dp_delta < 1:
        raise AtollError(f"--dp-delta is {dp_delta:g} but must be above 0 and below 1.")
    policy = SitePolicy(only=names, secure=secure, secure_min=secure_min, dp_epsilon=dp_epsilon, dp_delta=dp_delta)
    launch.join(kit, data, policy, device=device or "cpu")


def _threads(threads: int | None) -> None:
    """Set up torch for the processes that this one starts: they inherit its environment."""
    bound_spinning()
    if threads is not None:
        check_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
