"""The command line: `atoll run`, `resume`, `compare`, `report`, `algorithms` and so on. Heavy imports wait until needed."""

from __future__ import annotations

import os
import sys
import tomllib
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from atoll.cli import deploy as deployment
from atoll.cli import journal, reproduce
from atoll.errors import AtollError, AtollWarning, shown
from atoll.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="Federated graph learning: train graph neural networks on graphs that cannot be put in one place.\n\n"
    "Start with `atoll compare local,fedavg,centralized`: a small synthetic graph, no data needed.",
)

Dataset = Annotated[str | None, typer.Option(help="A known graph (`atoll datasets`), `csbm`, or a folder or .npz of your own.")]
Partition = Annotated[
    str | None,
    typer.Option(help="louvain, metis, dirichlet, random, overlap, vertical, node, whole, or an .npz of node lists."),
]
Parties = Annotated[int | None, typer.Option(help="Number of parties.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; `atoll algorithms NAME` lists them.")
]
Rounds = Annotated[int | None, typer.Option(help="Rounds at the most.")]
Threads = Annotated[int | None, typer.Option(help="Threads of torch; all cores by default.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress line.")]
Engine = Annotated[str | None, typer.Option(help="What carries the messages: inprocess, or nvflare (processes on this machine).")]


@app.command()
def run(
    what: Annotated[
        str, typer.Argument(metavar="ALGORITHM|FILE", help="An algorithm, a FILE.py with one, or the FILE.toml of a run.")
    ],
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Annotated[str | None, typer.Option(help="gcn, sgc, sage, gat, gcnii, appnp or mlp.")] = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    sets: Sets = None,
    engine: Engine = None,
    secure: Annotated[bool, typer.Option("--secure", help="Secure aggregation: the server sees sums only.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the configuration, history, checkpoint and result.")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write every round for TensorBoard as well, into --out.")
    ] = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Run one algorithm. What you do not say is as in the algorithm's own paper."""
    _prepare_torch(threads)
    from atoll.runs import config, runner

    values = _values(sets, model=model, rounds=rounds) | ({"secure": True} if secure else {})
    if what.endswith(".toml"):
        document = _read_toml(_path(what))
        said = {"dataset": dataset, "partition": partition, "parties": parties, "seed": seed, "engine": engine}
        document |= {name: value for name, value in said.items() if value is not None}
        chosen = config.from_dict(document, what, values)
    else:
        chosen = config.resolve(
            what,
            dataset=dataset,
            partition=partition,
            parties=parties,
            seed=seed or 0,
            engine="inprocess" if engine is None else engine,
            values=values,
        )
    if tensorboard and out is None:
        raise AtollError("--tensorboard writes beside the history; give --out as well.")
    with _watch(chosen.algorithm, quiet) as watch, _board(out if tensorboard else None) as board:
        result = runner.run(chosen, out=out, watch=_both(watch, board))
    _tell(result, out)


@app.command()
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder that --out named.")],
    algorithm: Annotated[
        Path | None, typer.Option(help="The file of an algorithm of your own: one is not run because a folder names it.")
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Go on with a run from its last checkpoint."""
    _prepare_torch(threads)
    from atoll.runs import runner

    with _watch(str(folder), quiet) as watch:
        result = runner.resume(folder, algorithm=algorithm, watch=watch)
    _tell(result, folder)


@app.command()
def compare(
    algorithms: Annotated[str, typer.Argument(help="Algorithms, separated by commas.")],
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Annotated[str | None, typer.Option(help="One or several models, separated by commas.")] = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds: 0, 1, 2, …")] = 5,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs; those already there are not run again.")] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same data, splits and seeds."""
    _prepare_torch(threads)
    from atoll.cli.console import comparison_table
    from atoll.cli.console import out as console
    from atoll.runs.comparison import Comparison, Trial
    from atoll.runs.result import Result

    comparison = Comparison(
        [name.strip() for name in algorithms.split(",") if name.strip()],
        dataset=dataset,
        models=[name.strip() for name in (model or "").split(",") if name.strip()],
        seeds=range(seeds),
        partition=partition,
        parties=parties,
        values=_values(sets, rounds=rounds),
    )

    def one(trial: Trial, folder: Path | None) -> Result:
        with _watch(trial.label, quiet) as watch:
            return trial.run(folder, None, watch)

    comparison.run(one, out)
    first = next(iter(comparison.results.values()))[0]
    title = f"{first.config.dataset}, {first.config.partition}, mean ± std over {seeds} seed{'s' if seeds > 1 else ''} (%)"
    console.print(comparison_table(comparison.summary(), title))
    if out is not None:
        comparison.save(out / "comparison.json")
        console.print(f"Written to {out}")


@app.command()
def partition(
    dataset: Dataset = "csbm",
    partition: Partition = "louvain",
    parties: Parties = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Save each party's graph there, in a folder of its own.")] = None,
) -> None:
    """Show how a graph falls into parties: sizes, edges kept and lost, labels, homophily of majority and minority nodes."""
    from atoll.cli.console import out as console
    from atoll.cli.partition import partition_table
    from atoll.data.federated import SCENARIOS, federate
    from atoll.data.statistics import facts
    from atoll.runs import config

    chosen = config.resolve("local", dataset=dataset, partition=partition, parties=parties, seed=seed, values=_values(sets))
    data = federate(chosen, None, SCENARIOS)
    console.print(partition_table(facts(data.parts, data.source), names=data.names))
    if out is not None:
        from atoll.data.files import save

        for party in range(data.parts.parties):
            save(data.parts.select([party]), out / f"party-{party}")
        console.print(f"Written to {out}")


@app.command()
def report(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN", help="Folders that --out named, or folders of such.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="One page with everything, to open anywhere; report.html by default.")] = None,
    png: Annotated[Path | None, typer.Option(metavar="DIR", help="Every figure as PNG, for a paper.")] = None,
    svg: Annotated[Path | None, typer.Option(metavar="DIR", help="Every figure as SVG, for a paper.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="The comparison as a LaTeX table.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="The comparison as a Markdown table.")] = None,
    embeddings: Annotated[str, typer.Option(help="How nodes are drawn in two dimensions: tsne, pca or none.")] = "tsne",
    watch: Annotated[bool, typer.Option(help="Write the page anew every few seconds until all runs are over.")] = False,
) -> None:
    """Show what came of runs: a page, figures and tables. Runs that differ only in their seed are told as mean ± std."""
    _prepare_torch(None)
    from atoll import reports as library
    from atoll.cli.console import out as console

    if watch or not (html or png or svg or latex or markdown):
        html = html or Path("report.html")
    chosen = folders or []
    if watch and html is not None:
        found = library.follow(chosen, html, embeddings=embeddings)
    else:
        found = library.make(chosen, embeddings=embeddings)
    written = library.write(found, html=html, png=png, svg=svg, latex=latex, markdown=markdown)
    for path in dict.fromkeys(path.parent if path.suffix[1:] in ("png", "svg") else path for path in written):
        console.print(f"Written to {path}", soft_wrap=True)


for command in (reproduce.reproduce, deployment.provision, deployment.serve, deployment.join, journal.journal):
    app.command()(command)


@app.command("algorithms")
def list_algorithms(name: Annotated[str | None, typer.Argument(help="Show this one's settings.")] = None) -> None:
    """List the algorithms, or the settings of one."""
    from rich.table import Table

    from atoll import algorithms
    from atoll.cli.console import out as console
    from atoll.cli.console import settings_table
    from atoll.runs import config

    if name is not None:
        chosen = config.resolve(name)
        console.print((algorithms.find(name).__doc__ or "").strip() + "\n")
        console.print(settings_table(config.groups_of(name, chosen.dataset), chosen))
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("algorithm", "setting", ""):
        table.add_column(column)
    for each in algorithms.names():
        module = algorithms.find(each)
        table.add_row(each, ", ".join(module.SCENARIOS), (module.__doc__ or "").strip().splitlines()[0].split(": ", 1)[-1])
    console.print(table)


@app.command()
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


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    """Federated graph learning."""
    if version:
        print(f"atoll {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point: what a person can mend is one sentence on stderr and exit code 2."""
    _told.clear()
    with warnings.catch_warnings():
        warnings.showwarning = _tell_warning
        try:
            app()
        except AtollError as error:
            _refuse(str(error))
        except OSError as error:
            place, reason = error.filename or "A file", error.strerror or error
            _refuse(f"{place} cannot be read or written ({reason}); check the path and the rights to it.")
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            _refuse("There is not enough memory for this; choose a smaller model, fewer parties or a smaller graph.")
        except KeyboardInterrupt:
            print("atoll: stopped.", file=sys.stderr)
            sys.exit(130)


def _refuse(sentence: str) -> NoReturn:
    print(f"atoll: {shown(sentence)}", file=sys.stderr)
    sys.exit(2)


_show_warning = warnings.showwarning
_told: set[str] = set()


def _tell_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """What atoll itself says is one line without a place in its code."""
    if issubclass(category, AtollWarning):
        if str(message) not in _told:  # a comparison reads the same data many times
            _told.add(str(message))
            print(f"atoll: {shown(message)}", file=sys.stderr)
    else:
        _show_warning(message, category, filename, lineno, file, line)


def _prepare_torch(threads: int | None) -> None:
    """Bound how long idle OpenMP threads spin, before torch is imported: good on an idle machine and on a busy one."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = "100000"
    if threads is not None:
        deployment.check_threads(threads)
        import torch

        torch.set_num_threads(threads)


def _values(sets: list[str] | None, **named: Any) -> dict[str, Any]:
    values = {name: value for name, value in named.items() if value is not None}
    for item in sets or []:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise AtollError(f"--set {item!r} is not of the form key=value; write for instance --set lr=0.01.")
        values[key.strip()] = value.strip()
    return values


def _path(text: str) -> Path:
    if "\0" in text:
        raise AtollError(f"{text!r} is no path; give the path of a configuration.")
    return Path(text)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise AtollError(f"{path} cannot be read ({error.strerror}); give the path of a configuration.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AtollError(f"{path} is not valid TOML: {error}.") from error


def _watch(label: str, quiet: bool) -> Any:
    from contextlib import nullcontext

    from atoll.cli.console import ProgressLine

    return nullcontext(None) if quiet else ProgressLine(label)


def _board(out: Path | None) -> Any:
    from contextlib import nullcontext

    if out is None:
        return nullcontext(None)
    from atoll.runs.loggers import LOGGERS

    return LOGGERS.find("tensorboard")("", out)


def _both(*watchers: Any) -> Any:
    present = [watcher for watcher in watchers if watcher is not None]

    def watch(row: dict[str, Any], rounds: int) -> None:
        for watcher in present:
            watcher(row, rounds)

    return watch


def _tell(result: Any, folder: Path | None) -> None:
    from atoll.cli.console import out as console
    from atoll.cli.console import result_table

    plain = result.to_dict()
    console.print(
        f"{plain['algorithm']} on {plain['dataset']}: {plain['parties']} parties, {plain['setting']}, seed {plain['seed']}"
    )
    console.print(result_table(plain | {"count_missing": result.config.run.count_missing}))
    if folder is not None:
        console.print(f"Written to {folder}")


if __name__ == "__main__":
    main()
