"""A comparison as rows of means and standard deviations, and as a plain table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import TYPE_CHECKING, Any

from atoll.errors import shown
from atoll.runs.metrics import in_order, mean_std, mean_text, metric_format
from atoll.runs.protocol import described_rows
from atoll.runs.result import Result
from atoll.runs.scores import score_of, selected_metric

MAXIMUM = "max_cached_accuracy"  # GCFL's of graphs: chosen by test accuracy

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison


def summarize(row: str, results: Sequence[Result]) -> dict[str, Any]:
    """Means ± standard deviations (n − 1) of the test metrics, megabytes both ways, seconds.

    `selected` names the metric of `select_by` where it is not the loss or the accuracy; `val_…` is that of validation nodes.
    """
    summary: dict[str, Any] = {"row": row, "seeds": len(results)}
    names = in_order(name for result in results for name in result.metrics if not name.startswith("val_"))
    if selected := selected_metric(results[0].config):
        summary["selected"] = selected
        names += [name for name in (selected, f"val_{selected}") if name not in names]
    for name in names:
        pair = mean_std([value for result in results if isinstance(value := score_of(result, name), float)])
        if pair is not None:
            summary[name], std = pair
            summary[f"{name}_std"] = math.nan if std is None else std
    summary["mb_up"] = mean(result.bytes["up"] for result in results) / 1e6
    summary["mb_down"] = mean(result.bytes["down"] for result in results) / 1e6
    summary["seconds"] = mean(result.seconds["total"] for result in results)
    return summary


def comparison_title(comparison: Comparison) -> str:
    """What was compared."""
    config = next(iter(comparison.results.values()))[0].config
    count = len(comparison.seeds)
    unit = " (%)" if metric_format(comparison.metric).percent else ""
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    title = f"{config.dataset}, {config.partition}, mean ± standard deviation (n − 1) over {seeds}{unit}"
    protocols = {row: results[0].protocol for row, results in comparison.results.items()}
    damage = f"; training graphs damaged: {config.noise.words}" if config.noise.active else ""
    return f"{shown(title)}\n{shown(described_rows(protocols))}{damage}"


def comparison_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The head and the rows of a comparison's table."""
    selected = next((row["selected"] for row in rows if row.get("selected") in row), "")
    if selected:  # a user who selects by AUC wants to see it, and chooses by that of validation nodes
        columns = {selected: f"test {metric_format(selected).words}", f"val_{selected}": metric_format(f"val_{selected}").words}
    else:
        second = "local" if any("local_accuracy" in row for row in rows) else "minority"
        score = "accuracy" if any("accuracy" in row for row in rows) else _score(rows)
        columns = {score: score.replace("_", " "), f"{second}_accuracy": second}
    cells = [["", *columns.values(), "MB up", "MB down", "seconds"]]
    for row in rows:
        scores = [_percent(row, name) for name in columns]
        cells.append([row["row"], *scores, f"{row['mb_up']:.2f}", f"{row['mb_down']:.2f}", f"{row['seconds']:.1f}"])
    return cells


def _score(rows: Sequence[Mapping[str, Any]]) -> str:
    """The most important metric of a task without accuracy."""
    known = {"row", "seeds", "selected", "tuned", "mb_up", "mb_down", "seconds"}
    names = in_order(name for row in rows for name in row if name not in known and not name.endswith("_std"))
    return next(iter(names), "accuracy")


def _percent(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        return "–"
    scale = 100 if metric_format(name).percent else 1
    return mean_text(scale * row[name], scale * row[f"{name}_std"], 2)


def comparison_text(comparison: Comparison) -> str:
    """A comparison as a plain table."""
    cells = [[shown(cell) for cell in row] for row in comparison_cells(comparison.summary())]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        ).rstrip()
        for row in cells
    ]
    return "\n".join([comparison_title(comparison), "", *lines, *beside(comparison)])


def beside(comparison: Comparison) -> list[str]:
    """What authors report and nothing is selected by, in one sentence for each row that has it."""
    said = []
    for row, results in comparison.results.items():
        pair = mean_std([result.last[MAXIMUM] for result in results if isinstance(result.last.get(MAXIMUM), float)])
        if pair is not None:
            mean_of, std = pair
            text = mean_text(100 * mean_of, 100 * (math.nan if std is None else std), 2)
            said.append(
                f"{shown(row)}: {text} is the mean of each party's highest test accuracy ({MAXIMUM}), which its authors report; "
                "nothing is selected by it."
            )
    return said
