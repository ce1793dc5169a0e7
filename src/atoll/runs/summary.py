"""Results in a few lines of plain text, as `print(result)` and the command line show them."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from atoll.errors import shown
from atoll.runs import absence
from atoll.runs.columns import column_of
from atoll.runs.config import GIVEN
from atoll.runs.metrics import in_order, metric_format
from atoll.runs.progress import Selection
from atoll.runs.scores import score_of, selected_metric
from atoll.tasks import LAST

if TYPE_CHECKING:
    from atoll.runs.result import Result
    from atoll.tasks import Metric

WIDTH = 80
MAX_METRICS, MAX_WARNINGS = 9, 2  # lines of each; result.json has all
HIDDEN = ("local_loss", "local_minority_accuracy", "local_macro_f1", "val_threshold")
MAX_LABEL = 25  # as wide as a table of 80 columns allows
MAX_NAMES = 4  # of sites in a title
Fact = tuple[str, str, str]  # a label, a value, and a note


def title(result: Result) -> str:
    """What was run, in one line."""
    config = result.config
    parties = f"{result.parties} part{'y' if result.parties == 1 else 'ies'}"
    scenario = f", {result.scenario}" if result.scenario else ""
    data = f"on {config.dataset}"
    if config.dataset == GIVEN and result.names:  # the data is at the sites
        data = f"at {', '.join(result.names[:MAX_NAMES])}{', …' if len(result.names) > MAX_NAMES else ''}"
    place = "" if config.device == "cpu" else f", on {config.device}"
    return shown(f"{config.algorithm} {data}: {parties}{scenario}, seed {config.seed}{place}")


def short(result: Result) -> str:
    """A result in less than a line: `Result(fedavg on csbm, 3 parties, round 3 of 5: accuracy 0.9194)`."""
    config, first = result.config, _metrics(result)[:1]
    score = "".join(f": {name} {result.metrics[name]:.4g}" for name in first)
    done = "" if result.finished else " so far"
    return shown(
        f"Result({config.algorithm} on {config.dataset}, {result.parties} parties, "
        f"best round {result.best_round} of {result.rounds}{done}{score})"
    )


def facts(result: Result) -> list[Fact]:
    """The lines of a summary: metrics at the best and at the last round, rounds, bytes, seconds, and what went wrong."""
    lines = _selected(result) + [_metric(result, name) for name in _metrics(result)[:MAX_METRICS]] + _decision(result)
    run = result.config.run
    early = "" if result.rounds >= run.rounds else ", stopped early" if result.finished else " so far"
    by = "the last round" if run.select_by == LAST else f"by {metric_format(f'val_{run.select_by}').words}"
    if run.select_by != LAST and not any(name.startswith("val_") for name in result.metrics):
        by = "last: nothing validates"
    note = by if result.metrics else "no round was evaluated"
    words = result.protocol
    lines.append(("evaluation", f"{words['evaluation']}, {words['average']}", "whose model, how averaged"))
    lines.append(("best round", f"{result.best_round} of {result.rounds}{early}", note))
    if (mark := result.config.tuned) is not None:
        lines.append(("tuned", mark.budget, f"by {metric_format(mark.objective).words}"))
    if result.start:
        lines.append(("began with", f"{result.start['path']}, round {result.start['round']}", result.start["carried"]))
    if (epsilon := result.last.get("epsilon")) is not None:
        lines.append(("privacy", f"ε = {epsilon:.4g}", f"at δ = {result.config.dp.delta:g}"))
    if result.missing:
        often = absence.summary(result.missing, result.rounds, result.names)
        lines.append(("missing", often, absence.verdict(result.missing, result.partial, run.allow_partial_best)))
    traffic = result.bytes
    messages = f"{traffic['messages']} messages" if "messages" in traffic else ""
    lines.append(("bytes", f"{traffic['up'] / 1e6:.2f} MB up, {traffic['down'] / 1e6:.2f} MB down", messages))
    lines.append(("seconds", f"{result.seconds['total']:.1f}", f"{1e3 * result.seconds['per_round']:.1f} ms per round"))
    if "simulated" in result.seconds:
        lines.append(("simulated seconds", f"{result.seconds['simulated']:.1f}", "of messages"))
    lines += [("warning", text, "") for text in result.warnings[:MAX_WARNINGS]]
    if len(result.warnings) > MAX_WARNINGS:
        lines.append(("", f"{len(result.warnings) - MAX_WARNINGS} more warnings", ""))
    if result.folder is not None:
        lines.append(("written to", str(result.folder), ""))
    return [(label, shown(value), note) for label, value, note in lines]


def text(result: Result) -> str:
    """The summary as plain text of at most 80 columns, where names are not longer."""
    lines = facts(result)
    label = max(len(line[0]) for line in lines) + 2
    value = max((len(line[1]) for line in lines if line[2] and len(line[1]) <= 30), default=0) + 2
    written = [title(result)]
    for name, content, note in lines:
        whole = f"{content:<{value}}{note}" if len(content) < value else f"{content}  {note}"
        written += textwrap.wrap(
            whole.rstrip(),
            WIDTH,
            initial_indent=f"{name:<{label}}",
            subsequent_indent=" " * label,
            drop_whitespace=True,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(written)


def _metrics(result: Result) -> list[str]:
    """The metrics to be shown: test ones, then validation ones, of these first the one that selects."""
    hidden = (*HIDDEN, "epsilon", *(f"val_{selected_metric(result.config)}" for _ in _selected(result)))
    scalars = [name for name, value in result.metrics.items() if isinstance(value, float) and name not in hidden]
    chosen = f"val_{Selection.of(result.config.run).metric}"
    return sorted(in_order(scalars), key=lambda name: (name.startswith("val_") + 2 * name.startswith("train_"), name != chosen))


def _selected(result: Result) -> list[Fact]:
    """The metric of `select_by`, of test nodes, where the metrics of each round do not have it."""
    name = selected_metric(result.config)
    value = score_of(result, name) if name and name not in result.metrics else None
    if value is None:
        return []
    form, validation = metric_format(name), result.metrics.get(f"val_{name}")
    note = "" if validation is None else f"validation {_number(form, validation)}"
    return [(f"test {form.words}"[:MAX_LABEL], _number(form, value), note)]


def _decision(result: Result) -> list[Fact]:
    """The threshold, and what it decides about test nodes; the metrics of each round are those of the likeliest class."""
    decided = result.detail.get("threshold")
    if not decided:
        return []
    name = shown(decided["class"])
    row = result.detail["by_class"].get(str(decided["class"]), {})
    shares = {
        "accuracy": result.detail["overall"].get("accuracy"),
        "recall": row.get("recall"),
        "precision": row.get("precision"),
    }
    return [
        ("threshold", f"{decided['value']:.4g}", f"of {name}, {'given' if decided['by'] == 'given' else 'by ' + decided['by']}"),
        *(
            (f"  test {share}", f"{100 * value:.2f} %", "with the threshold" if share == "accuracy" else f"of {name}")
            for share, value in shares.items()
            if value is not None
        ),
    ]


def _number(form: Metric, value: float) -> str:
    return f"{100 * value:.2f} %" if form.percent else f"{value:.4g}"


def _metric(result: Result, name: str) -> Fact:
    form, last = metric_format(name), result.last.get(name)
    prefix = "test " if column_of(name) != name else ""
    words = prefix + (form.words if len(prefix + form.words) <= MAX_LABEL else form.heading)
    without = " (a party missing)" if result.last_partial else ""
    note = f"last round {_number(form, last)}{without}" if last is not None else ""
    return words[:MAX_LABEL], _number(form, result.metrics[name]), note
