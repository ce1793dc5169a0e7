"""The comparison as a table: for the page, for a paper (LaTeX, booktabs) and for a README (Markdown)."""

from __future__ import annotations

import html as markup
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atoll.errors import shown
from atoll.reports.runs import Row
from atoll.runs.metrics import in_order, mean_std, mean_text, metric_format


@dataclass(frozen=True)
class TableCell:
    """A number as it is shown, and by which it is sorted."""

    value: float | None
    std: float | None = None
    digits: int = 2

    def text(self, plus_minus: str = " ± ") -> str:
        """For instance 84.21 ± 0.30."""
        return "–" if self.value is None else mean_text(self.value, self.std, self.digits, plus_minus)


@dataclass(frozen=True)
class Column:
    """A column: its heading, its cells, and whether the best is the highest (None: no best)."""

    heading: str
    cells: list[TableCell]
    highest: bool | None = None

    def best(self) -> int | None:
        """The place of the best of several cells."""
        values = [cell.value for cell in self.cells]
        if self.highest is None or len(values) < 2 or None in values:
            return None
        return max(range(len(values)), key=lambda place: values[place] or 0.0)


@dataclass(frozen=True)
class ComparisonTable:
    """Rows by label, columns by heading."""

    labels: list[str]
    columns: list[Column]
    caption: str


def table(rows: Sequence[Row], majority: Callable[[Row], tuple[float, float | None] | None]) -> ComparisonTable:
    """Mean ± standard deviation over the seeds of every metric (%), rounds, megabytes and seconds."""
    comparable = True if len({row.runs[0].config.dataset for row in rows}) == 1 else None
    columns = [Column("seeds", [TableCell(len(row.runs), digits=0) for row in rows])]
    for name in metrics_of(rows):
        found = [majority(row) if name == "majority" else row.mean(name) for row in rows]
        share = not any(pair and abs(pair[0]) > 1 for pair in found)
        factor, digits = (100, 2) if share else (1, 4)
        cells = [
            TableCell(None)
            if pair is None
            else TableCell(factor * pair[0], None if pair[1] is None else factor * pair[1], digits)
            for pair in found
        ]
        if any(cell.value is not None for cell in cells):
            columns.append(Column(metric_format(name).heading + (" %" if share else ""), cells, comparable))
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
        columns.append(Column(heading, [TableCell((mean_std(each) or (0.0,))[0], digits=digits) for each in values]))
    going = sum(not run.result.finished for row in rows for run in row.runs)
    caption = "Test metrics at the round with the best validation score; mean ± standard deviation over the seeds."
    return ComparisonTable([row.label for row in rows], columns, caption + (f" Runs still going: {going}." if going else ""))


def metrics_of(rows: Sequence[Row]) -> list[str]:
    """The metrics some run has, the usual ones first."""
    there = dict.fromkeys(
        name
        for row in rows
        for run in row.runs
        for name, value in run.metrics.items()
        if isinstance(value, float) and not name.startswith("val_") and not name.endswith("loss")
    )
    return in_order([*there, *(["majority"] if "minority_accuracy" in there else [])])


def escape(text: str, *, quote: bool = True) -> str:
    """Somebody else's text as text in HTML: no tags, and nothing that turns what is read around."""
    return markup.escape(shown(text, lines=True), quote=quote)


def html(table: ComparisonTable) -> str:
    """A table whose headings sort it."""
    heads = ["<th scope=col aria-sort=none><button type=button>run</button></th>"]
    heads += [
        f"<th scope=col class=n aria-sort=none><button type=button>{escape(column.heading)}</button></th>"
        for column in table.columns
    ]
    lines = []
    for place, label in enumerate(table.labels):
        cells = [f"<th scope=row data-v='{escape(label, quote=True)}'>{escape(label)}</th>"]
        for column in table.columns:
            cell = column.cells[place]
            mark = " best" if column.best() == place else ""
            value = "" if cell.value is None else repr(float(cell.value))
            cells.append(f"<td class='n{mark}' data-v='{value}'>{escape(cell.text())}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    head, body = "".join(heads), "\n".join(lines)
    return f"<table id=comparison><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def markdown(table: ComparisonTable) -> str:
    """A Markdown table."""
    heads = ["run", *(column.heading for column in table.columns)]
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * len(table.columns) + "|"]
    for place, label in enumerate(table.labels):
        cells = [
            f"**{column.cells[place].text()}**" if column.best() == place else column.cells[place].text()
            for column in table.columns
        ]
        lines.append("| " + " | ".join([shown(label).replace("|", "\\|").replace("<", "&lt;"), *cells]) + " |")
    return "\n".join([*lines, "", table.caption, ""])


def latex(table: ComparisonTable) -> str:
    """A LaTeX table for the booktabs package."""
    lines = ["\\begin{table}", "\\centering", f"\\caption{{{_tex(table.caption)}}}"]
    lines += [f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}", "\\toprule"]
    lines += [" & ".join(["", *(_tex(column.heading) for column in table.columns)]) + " \\\\", "\\midrule"]
    for place, label in enumerate(table.labels):
        cells = []
        for column in table.columns:
            text = column.cells[place].text(r" \pm ")
            bold = f"\\mathbf{{{text}}}" if column.best() == place else text
            cells.append("--" if column.cells[place].value is None else f"${bold}$")
        lines.append(" & ".join([_tex(label), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _tex(text: str) -> str:
    words = {"\\": "\\textbackslash ", "~": "\\textasciitilde ", "^": "\\textasciicircum "}
    text = "".join(words.get(sign, f"\\{sign}" if sign in "&%$#_{}" else sign) for sign in shown(text))
    return text.replace("±", "$\\pm$")
