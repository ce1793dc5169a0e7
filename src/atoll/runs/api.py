"""What scripts and notebooks call: `atoll.run`, `atoll.resume`, `atoll.compare`. No files are needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from atoll.data.builder import check
from atoll.data.pyg import from_pyg
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import config, runner
from atoll.runs.comparison import Comparison, Trial
from atoll.runs.loop import Watch
from atoll.runs.result import Result


def run(
    algorithm: str,
    *,
    dataset: Any = None,
    partition: str | None = None,
    parties: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Result:
    """Run an algorithm. What is not said is as in the algorithm's own paper.

    `dataset` is a name, a path to an own graph, a torch_geometric `Data` or an atoll `Graph`; `settings` are any of the
    algorithm's, model's, partition's, split's or run's (`atoll algorithms NAME` lists them).
    """
    name, graph = _dataset(dataset)
    chosen = config.resolve(algorithm, dataset=name, partition=partition, parties=parties, seed=seed, values=settings)
    with _progress(progress, algorithm) as watch:
        return runner.run(chosen, graph, out=out, watch=watch)


def resume(path: str | Path, *, dataset: Any = None, algorithm: str | Path | None = None, progress: bool = False) -> Result:
    """Go on with a run that was written to a folder.

    What the folder cannot hold must be given again: a dataset that was an object, an `algorithm` that is a file.
    """
    with _progress(progress, str(path)) as watch:
        return runner.resume(path, _dataset(dataset)[1], algorithm=algorithm, watch=watch)


def compare(
    algorithms: Sequence[str] | str,
    *,
    dataset: Any = None,
    seeds: int | Iterable[int] = 5,
    models: Sequence[str] | str = (),
    partition: str | None = None,
    parties: int | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Comparison:
    """Run several algorithms on the same data, splits and seeds. A setting goes to every algorithm that knows it."""
    name, graph = _dataset(dataset)
    comparison = Comparison(
        _listed("algorithms", algorithms),
        dataset=name,
        models=_listed("models", models),
        seeds=_listed("seeds", range(seeds) if isinstance(seeds, int) else seeds),
        partition=partition,
        parties=parties,
        values=settings,
    )

    def one(trial: Trial, folder: Path | None) -> Result:
        with _progress(progress, trial.label) as watch:
            return trial.run(folder, graph, watch)

    comparison.run(one, Path(out) if out is not None else None)
    return comparison


def _dataset(dataset: Any) -> tuple[str | None, Graph | None]:
    """A dataset's name and, where it was given as an object, the graph."""
    if dataset is None or isinstance(dataset, (str, Path)):
        return None if dataset is None else str(dataset), None
    if isinstance(dataset, Graph):
        check(dataset, "The graph")
        return config.GIVEN, dataset
    if not any(hasattr(dataset, name) for name in ("x", "edge_index", "y")):
        raise AtollError(f"dataset is a {type(dataset).__name__}; give a name, a path, a torch_geometric Data or an atoll Graph.")
    return config.GIVEN, from_pyg(dataset)


def _listed(what: str, items: Any) -> list[Any]:
    """Several of something, from a list or from text with commas."""
    if isinstance(items, str):
        return items.split(",")
    if not isinstance(items, Iterable):
        raise AtollError(f"{what} is {items!r} but must be a list.")
    return list(items)


def _progress(shown: bool, label: str) -> Any:
    from contextlib import nullcontext

    from atoll.runs.loggers import LOGGERS

    return LOGGERS.find("progress")(label, None) if shown else nullcontext(None)


__all__ = ["Watch", "compare", "resume", "run"]
