"""The command line: `atoll run`, `resume`, `compare`, `report`, `algorithms` and so on, one module per command."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, NoReturn, TextIO

import typer

from atoll.cli.catalog import algorithms, datasets
from atoll.cli.compare import compare
from atoll.cli.data import data
from atoll.cli.deploy import join, provision, serve
from atoll.cli.evaluate import evaluate
from atoll.cli.export import export
from atoll.cli.journal import journal
from atoll.cli.models import models
from atoll.cli.partition import partition
from atoll.cli.predict import predict
from atoll.cli.report import report
from atoll.cli.reproduce import reproduce
from atoll.cli.run import resume, run
from atoll.cli.theory import theory
from atoll.cli.tune import tune
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
COMMANDS = (
    *(run, resume, compare, tune, predict, evaluate, export, partition, report, reproduce, theory),
    *(provision, serve, join, journal, algorithms, models, datasets),
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data, name="data")

OUT_OF_MEMORY = "allocate memory", "out of memory"  # how torch says it of the CPU, and of a device


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False) -> None:
    """Federated graph learning."""
    if version:
        print(f"atoll {__version__}")
        raise typer.Exit


def main() -> None:
    """The entry point: a mistake that the user can correct is one sentence on stderr and exit code 2."""
    _printed.clear()
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        try:
            app()
        except AtollError as error:
            _refuse(str(error))
        except OSError as error:
            path, reason = error.filename or "A file", error.strerror or error
            _refuse(f"{path} cannot be read or written ({reason}); check the path and the rights to it.")
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not any(words in str(error) for words in OUT_OF_MEMORY):
                raise
            _refuse("There is not enough memory for this; choose a smaller model, fewer parties or a smaller graph.")
        except KeyboardInterrupt:
            print("atoll: stopped.", file=sys.stderr)
            sys.exit(130)


def _refuse(sentence: str) -> NoReturn:
    print(f"atoll: {shown(sentence)}", file=sys.stderr)
    sys.exit(2)


_show_warning = warnings.showwarning
_printed: set[str] = set()


def _print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print atoll's own warnings once each, without file and line."""
    if issubclass(category, AtollWarning):
        if str(message) not in _printed:  # a comparison reads the same data many times
            _printed.add(str(message))
            print(f"atoll: {shown(message)}", file=sys.stderr)
    else:
        _show_warning(message, category, filename, lineno, file, line)


if __name__ == "__main__":
    main()
