"""The comparison as a table: for the page, for a paper (LaTeX, booktabs) and for a README (Markdown)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atoll.errors import shown
from atoll.federation.averages import POOLED
from atoll.reports.figures.figure import PALETTE
from atoll.reports.figures.ranks import data_names
from atoll.reports.page_table import escape, unbroken
from atoll.reports.runs import Row, by_data
from atoll.reports.titles import count, inequalities
from atoll.runs.metrics import in_order, mean_std, mean_text, metric_format, metrics_table
from atoll.runs.protocol import described_rows
from atoll.tasks import LAST, Metric


@dataclass(frozen=True)
class TableCell:
    """A number, its standard deviation and how many digits are shown."""

    value: float | None
    std: float | None = None
    digits: int = 2

    def text(self, plus_minus: str = " ± ") -> str:
        """For instance 84.21 ± 0.30."""
        return "–" if self.value is None else mean_text(self.value, self.std, self.digits, plus_minus)


@dataclass(frozen=True)
class TableColumn:
    """A column: its heading, its cells, and whether the best is the highest (None: no best)."""

    heading: str
    cells: list[TableCell]
    highest: bool | None = None

    def best(self) -> int | None:
        """The index of the best of several cells."""
        values = [cell.value for cell in self.cells]
        if self.highest is None or len(values) < 2 or None in values:
            return None
        sign = 1 if self.highest else -1
        return max(range(len(values)), key=lambda index: sign * (values[index] or 0.0))


@dataclass(frozen=True)
class ComparisonTable:
    """Rows by label, columns by heading."""

    labels: list[str]
    columns: list[TableColumn]
    caption: str
    colors: list[int]  # of each row, as in the figures


def tables(rows: Sequence[Row], majority: Callable[[Row], tuple[float, float | None] | None]) -> list[ComparisonTable]:
    """One table for each data: runs with different graphs, partitions, splits or features never stand in one table."""
    groups = by_data(rows)
    if len(groups) == 1:
        return [table(rows, majority)]
    figures = []
    for name, group in zip(data_names(groups), groups, strict=True):
        made = table(group, majority)
        colors = [next(number for number, row in enumerate(rows) if row is each) for each in group]
        figures.append(replace(made, caption=f"{name}: {made.caption[0].lower()}{made.caption[1:]}", colors=colors))
    return figures


def table(rows: Sequence[Row], majority: Callable[[Row], tuple[float, float | None] | None]) -> ComparisonTable:
    """Mean ± standard deviation over the seeds of every metric, then rounds, megabytes and seconds."""
    comparable = len({row.data for row in rows}) == 1
    columns = [TableColumn("seeds", [TableCell(len(row.runs), digits=0) for row in rows])]
    known = metrics_table()
    for name in metrics_of(rows):
        pairs = [majority(row) if name == "majority" else row.mean(name) for row in rows]
        if not any(pairs):
            continue
        shown = metric_format(name)
        highest = shown.higher_is_better if comparable and name.removeprefix("local_") in known else None
        heading = shown.heading + (" (pooled)" if _only_pooled(rows, name) else "") + (" %" if shown.percent else "")
        columns.append(TableColumn(heading, [_cell(pair, shown) for pair in pairs], highest))
    measures: dict[str, tuple[list[list[float]], int]] = {
        "best round": ([[run.result.best_round for run in row.runs] for row in rows], 0),
        "rounds": ([[run.result.rounds for run in row.runs] for row in rows], 0),
        "MB up": ([[run.megabytes("up") for run in row.runs] for row in rows], 2),
        "MB down": ([[run.megabytes("down") for run in row.runs] for row in rows], 2),
        "seconds": ([[run.result.seconds.get("total", 0.0) for run in row.runs] for row in rows], 1),
    }
    if all(run.axis("simulated_seconds") for row in rows for run in row.runs):
        measures["simulated s"] = ([[run.axis("simulated_seconds")[-1] for run in row.runs] for row in rows], 2)
    for heading, (values, digits) in measures.items():
        columns.append(TableColumn(heading, [TableCell((mean_std(each) or (0.0,))[0], digits=digits) for each in values]))
    return ComparisonTable([row.label for row in rows], columns, _caption(rows), list(range(len(rows))))


def _only_pooled(rows: Sequence[Row], name: str) -> bool:
    """Whether a metric is of all nodes together though the table has another average: `detail` has no other."""
    runs = [run for row in rows for run in row.runs if run.config.run.average != POOLED]
    return any(name in run.metrics and name not in run.result.metrics for run in runs)


def _cell(pair: tuple[float, float | None] | None, shown: Metric) -> TableCell:
    """A metric's mean and standard deviation, in % where it is a share."""
    if pair is None:
        return TableCell(None)
    factor, digits = (100, 2) if shown.percent else (1, 4)
    return TableCell(factor * pair[0], None if pair[1] is None else factor * pair[1], digits)


def _caption(rows: Sequence[Row]) -> str:
    words = {row.label: row.runs[0].result.protocol for row in rows}
    chosen = {each["select"] == LAST for each in words.values()}
    rounds = {"last round": True in chosen, "round with the best validation score": False in chosen}
    caption = f"Test metrics at the {' or the '.join(name for name, there in rounds.items() if there)}"
    if any(row.several for row in rows):
        caption += f": mean ± standard deviation (n − 1) over {count({len(row.runs) for row in rows}, 'seed', 'seeds')}"
        caption += "; rounds, megabytes and seconds are means"
    going = sum(not run.result.finished for row in rows for run in row.runs)
    meaning = described_rows(words)
    sentences = [f"{caption}.", f"{meaning[0].upper()}{meaning[1:]}.", *inequalities(rows)]
    return " ".join([*sentences, f"Runs still going: {going}."] if going else sentences)


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """The metrics that some run has, the usual ones first."""
    names = dict.fromkeys(
        name
        for row in rows
        for run in row.runs
        for name, value in run.metrics.items()
        if isinstance(value, float) and not name.startswith("val_") and not name.endswith("loss")
    )
    return in_order([*names, *(["majority"] if "minority_accuracy" in names else [])])


def html(table: ComparisonTable) -> str:
    """A table whose headings sort it; the color of each row is that of its curves."""
    heads = ["<th scope=col aria-sort=none><button type=button>run</button></th>"]
    heads += [
        f"<th scope=col class=n aria-sort=none><button type=button>{unbroken(column.heading)}</button></th>"
        for column in table.columns
    ]
    lines = []
    for number, label in enumerate(table.labels):
        color = PALETTE[table.colors[number] % len(PALETTE)]
        swatch = f"<i class=swatch style='--c:{color}'></i>" if len(table.labels) > 1 or table.colors != [0] else ""
        cells = [f"<th scope=row data-v='{escape(label, quote=True)}'>{swatch}{escape(label)}</th>"]
        for column in table.columns:
            cell = column.cells[number]
            mark = " best" if column.best() == number else ""
            value = "" if cell.value is None else repr(float(cell.value))
            mean, sign, std = cell.text().partition(" ± ")
            text = f"{mean} <span class=std>± {std}</span>" if sign else mean
            cells.append(f"<td class='n{mark}' data-v='{value}'>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head, body = "".join(heads), "\n".join(lines)
    return f"<table class=results><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def markdown(table: ComparisonTable) -> str:
    """A Markdown table."""
    heads = ["run", *(column.heading for column in table.columns)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * len(table.columns) + "|"]
    for number, label in enumerate(table.labels):
        cells = [
            f"**{column.cells[number].text()}**" if column.best() == number else column.cells[number].text()
            for column in table.columns
        ]
        lines.append("| " + " | ".join([shown(label).replace("|", "\\|").replace("<", "&lt;"), *cells]) + " |")
    return "\n".join([*lines, "", table.caption, ""])


def latex(table: ComparisonTable) -> str:
    """A LaTeX table for the booktabs package."""
    lines = ["\\begin{table}", "\\centering", f"\\caption{{{_tex(table.caption)}}}"]
    lines += [f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}", "\\toprule"]
    lines += [" & ".join(["", *(_tex(column.heading) for column in table.columns)]) + " \\\\", "\\midrule"]
    for number, label in enumerate(table.labels):
        cells = []
        for column in table.columns:
            text = column.cells[number].text(r" \pm ")
            bold = f"\\mathbf{{{text}}}" if column.best() == number else text
            cells.append("--" if column.cells[number].value is None else f"${bold}$")
        lines.append(" & ".join([_tex(label), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _tex(text: str) -> str:
    signs = {"\\": "\\textbackslash ", "~": "\\textasciitilde ", "^": "\\textasciicircum "}
    text = "".join(signs.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in shown(text))
    return text.replace("±", "$\\pm$")
