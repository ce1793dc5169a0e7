"""The command `atoll partition`: how a graph falls into parties, as a table with one line per party."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import Dataset, Parties, Partition, Sets, read_values
from atoll.errors import shown

if TYPE_CHECKING:
    from rich.table import Table

    from atoll.data.statistics import PartitionStatistics

BARS = " ▁▂▃▄▅▆▇█"
MAX_CLASS_NAME = 16


def partition(
    dataset: Dataset = "csbm",
    partition: Partition = None,
    parties: Parties = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    sets: Sets = None,
    algorithm: Annotated[str, typer.Option(help="Cut and split as a run of this algorithm does by default.")] = "local",
    out: Annotated[Path | None, typer.Option(help="Write the parties' graphs there, a shard each: --dataset takes it.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the published partitions that have names.")] = False,
) -> None:
    """Show how a graph falls into parties: sizes, edges kept and lost, labels, homophily of majority and minority nodes."""
    from atoll.cli.console import out as console
    from atoll.cli.console import show

    if listed:
        show(named_table())
        return
    from atoll.algorithms import takes_unlabeled
    from atoll.data.federated import SCENARIOS, federate
    from atoll.data.statistics import partition_statistics
    from atoll.runs import config

    values = read_values(sets)
    chosen = config.resolve(algorithm, dataset=dataset, partition=partition, parties=parties, seed=seed, values=values)
    data = federate(chosen, None, SCENARIOS, unlabeled=takes_unlabeled(algorithm))
    classes = data.parts.class_names or ()
    show(partition_table(partition_statistics(data.parts, data.source), names=data.names, classes=classes))
    if out is not None:
        from atoll.runs.stored_shards import cut

        manifest = cut(chosen, data, out, partition)
        size = sum(size for size, _ in manifest.files.values())
        console.print(
            f"Written to {out}: {len(manifest.cuts) - 1} shards, {size / 1e6:,.1f} MB; run on them with --dataset {out}"
        )


def named_table() -> Table:
    """The named partitions: lists of published work, and kinds of partition with a paper's settings."""
    from rich import box
    from rich.table import Table

    from atoll.data.named_partitions import named_partitions
    from atoll.data.presets import PRESETS

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("--partition", "--dataset", "parties", "SHA-256", "split", "source"):
        table.add_column(heading, justify="right" if heading == "parties" else "left", no_wrap=heading != "source")
    for one in named_partitions().values():
        table.add_row(one.name, one.dataset, str(one.parties), one.sha256[:16], "its own" if one.split else "", one.source)
    for name, preset in PRESETS.items():
        table.add_row(name, "any", "any", "", str(preset.values["split"]), preset.source)
    return table


def partition_table(
    statistics: PartitionStatistics, most: int = 20, names: Sequence[str] = (), classes: Sequence[str] = ()
) -> Table:
    """A table for the terminal: a line per party, at most `most` of them; parties and classes by name where they have names."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(caption=_caption(statistics), caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("party", "nodes", "edges", "parts", "train/val/test", "main", "main/other", "homophily", "classes"):
        table.add_column(heading, justify="left" if heading == "classes" else "right", no_wrap=True)
    for number, one in enumerate(statistics.parties[:most]):
        table.add_row(
            Text(shown(names[number]) if number < len(names) else str(number)),
            f"{one.nodes:,}",
            f"{one.edges:,}",
            f"{one.components:,}",
            f"{one.train}/{one.val}/{one.test}",
            Text("-" if one.majority_class is None else _class_name(one.majority_class, classes)),
            f"{one.majority_nodes}/{one.minority_nodes}",
            f"{_share(one.majority_homophily)}/{_share(one.minority_homophily)}",
            "".join(BARS[-(-(len(BARS) - 1) * count // max(*one.labels, 1))] for count in one.labels),
        )
    if len(statistics.parties) > most:
        table.add_row("…", f"{len(statistics.parties) - most:,} more")
    return table


def _class_name(number: int, classes: Sequence[str]) -> str:
    return shown(classes[number])[:MAX_CLASS_NAME] if number < len(classes) else str(number)


def _caption(statistics: PartitionStatistics) -> str:
    nodes, edges = f"{statistics.nodes:,} nodes", f"{statistics.edges_kept:,} edges kept"
    if statistics.edges_lost is None or statistics.nodes_lost is None:
        return f"{nodes}, {edges}"
    lost = f"{nodes} kept, {statistics.nodes_lost:,} lost; {edges}, {statistics.edges_lost:,} lost"
    meaning = (
        "parts: connected components; main: the most frequent class; "
        "homophily: the share of neighbors of a node's own class, main/other nodes"
    )
    return f"{lost}\n{meaning}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
