"""What a report is about, in a title and a line."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.errors import AtollError
from atoll.reports.runs import Row, by_data, listed
from atoll.runs.metrics import mean_text, metric_format
from atoll.runs.own_partition import unlocated
from atoll.runs.protocol import described_rows, with_rows
from atoll.runs.tuned import tuned_by, tuning_notes
from atoll.tasks import LAST, TASKS

MAX_NAMES = 4  # algorithms or datasets in a title
BUDGET = ("rounds", "patience", "participation", "target_accuracy")  # settings of a run that decide how long it may train


def title(rows: Sequence[Row]) -> str:
    """For instance `fedavg and local on cora`; `fedavg at bank-a and bank-b` for a run across sites."""
    algorithms = list(dict.fromkeys(row.runs[0].config.algorithm for row in rows))
    datasets = list(dict.fromkeys(row.data_name for row in rows))
    at_sites = all(row.names and row.runs[0].config.engine == "nvflare" for row in rows)
    text = f"{_shortened(algorithms, 'algorithms')} {'at' if at_sites else 'on'} {_shortened(datasets, 'datasets')}"
    configurations = len(rows) if len(rows) > len(algorithms) * len(datasets) else 0
    return f"{text}: {configurations} configurations" if configurations else text


def _shortened(names: Sequence[str], what: str) -> str:
    return listed(names) if len(names) <= MAX_NAMES else f"{len(names)} {what}"


def subtitle(rows: Sequence[Row]) -> str:
    """Parties, partition, scenario, task, rounds and seeds: each where all rows share it; and what the numbers mean."""
    runs = [run for row in rows for run in row.runs]
    parties = {run.result.parties for run in runs}
    partitions = {run.config.partition for run in runs}
    scenarios = {run.result.scenario for run in runs}
    tasks = {run.config.run.task for run in runs}
    rounds = {run.result.rounds for run in runs}
    seeds = {len(row.runs) for row in rows}
    words = [f"{count(parties, 'party', 'parties')}"] if parties != {0} else []
    words += [f"{name} partition" for name in sorted(partitions) if len(partitions) == 1 and name not in scenarios]
    words += [name for name in sorted(scenarios) if len(scenarios) == 1 and name]
    words += [name.replace("-", " ") for name in sorted(tasks) if len(tasks) == 1]
    words += [count(rounds, "round", "rounds"), count(seeds, "seed", "seeds")]
    words.append(described_rows({row.label: row.runs[0].result.protocol for row in rows}))
    return " · ".join(words)


def inequalities(rows: Sequence[Row]) -> list[str]:
    """Sentences about rows of one table that did not have the same budget or the same seeds, and about those that were tuned."""
    sentences = []
    for name in BUDGET:
        values = {row.label: f"{getattr(row.runs[0].config.run, name):g}" for row in rows}
        if len(set(values.values())) > 1:
            sentences.append(f"Budgets differ: {name} is {with_rows(values)}.")
    seeds = {row.label: _seeds(sorted({run.config.seed for run in row.runs})) for row in rows}
    if len(set(seeds.values())) > 1:
        sentences.append(f"Seeds differ: {with_rows(seeds)}.")
    return sentences + _tuning(rows)


def _tuning(rows: Sequence[Row]) -> list[str]:
    """What rows were tuned by, and where they were not tuned alike or with other data."""
    configs = {row.label: unlocated(row.runs[0].config, row.runs[0].path) for row in rows}
    marks = {label: mark for label, config in configs.items() if (mark := tuned_by(config)) is not None}
    if not marks:
        return []
    budgets = {f"with {mark.budget} by {metric_format(mark.objective).words}": None for mark in marks.values()}
    which = "" if len(marks) == len(rows) else f" ({listed(list(marks))})"
    alike = [f"Tuned rows{which} were tuned {next(iter(budgets))}."] if len(budgets) == 1 else []
    return alike + tuning_notes(configs)


def _seeds(seeds: Sequence[int]) -> str:
    """`0 to 9` where there is no gap between several, otherwise each."""
    gapless = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if gapless else ", ".join(map(str, seeds))


def count(numbers: set[int], one: str, many: str) -> str:
    """`1 round`, `30 rounds`, `20 to 30 rounds`."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return f"{low:,} {one if low == 1 else many}"
    return f"{low:,} to {high:,} {many}"


def summary(rows: Sequence[Row]) -> str:
    """The result in a sentence: the score of the only row, or the row with the best mean score of a table.

    Empty where there is none, and where rows stand in several tables: their scores do not compare.
    """
    if len(by_data(rows)) > 1 or len({row.runs[0].config.run.task for row in rows}) > 1:
        return ""
    try:
        name = TASKS.find(rows[0].runs[0].config.run.task).score
    except AtollError:
        return ""
    name = name if any(row.mean(name) for row in rows) else f"local_{name}"
    scores = [(row, pair) for row in rows if (pair := row.mean(name)) is not None]
    if not scores:
        return ""
    shown = metric_format(name)
    row, pair = max(scores, key=lambda score: score[1][0] if shown.higher_is_better else -score[1][0])
    factor, unit = (100, " %") if shown.percent else (1, "")
    value = mean_text(factor * pair[0], None if pair[1] is None else factor * pair[1], 2) + unit
    if len(scores) == 1:
        run = row.runs[0]
        chosen = "the last" if run.config.run.select_by == LAST else "the best by validation"
        where = f" at round {run.result.best_round} of {run.result.rounds}, {chosen}" if not row.several else ""
        return f"Test {shown.words}: {value}{where}."
    rank = "highest" if shown.higher_is_better else "lowest"
    return f"{row.label} has the {rank} {'mean ' if row.several else ''}test {shown.words}: {value}."
