"""What a run's numbers mean, in four words that stand in every result: whose model, how averaged, how selected, and where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atoll import algorithms
from atoll.errors import AtollError
from atoll.federation.averages import POOLED
from atoll.federation.metrics import FINETUNED
from atoll.runs.metrics import metric_format
from atoll.runs.run_settings import RunSettings
from atoll.tasks import LAST, class_weights

AUTO = "auto"
PARTIES = "parties"  # where the validation scores that select are computed


def words_of(algorithm: str, scenario: str, run: RunSettings) -> dict[str, str]:
    """`evaluation`, `average`, `select` and `select_on` of a run, as result.json has them.

    `evaluation` is `union` where parties overlap and the model is the server's: metrics without `local_` are of the union.
    """
    evaluation = run.evaluation
    if evaluation == AUTO:
        known = algorithms.evaluations(algorithms.find(algorithm)) if algorithms.is_imported(algorithm) else (AUTO,)
        evaluation = "union" if scenario == "overlapping" and "union" in known else known[0]
    return {"evaluation": evaluation, "average": run.average, "select": run.select_by, "select_on": PARTIES}


def described(words: Mapping[str, str]) -> str:
    """The words in one line: `evaluation global, average pooled, best round by validation loss`."""
    return described_rows({"": words})


def described_rows(rows: Mapping[str, Mapping[str, str]]) -> str:
    """The words of several rows in one line; where rows differ in a word, each value is named with its rows."""
    evaluation, average, select = (
        with_rows({row: words[key] for row, words in rows.items()}) for key in ("evaluation", "average", "select")
    )
    by = {row: metric_format(words["select"]).words for row, words in rows.items()}
    chosen = "last round" if select == LAST else f"best round by validation {with_rows(by)}"
    return f"evaluation {evaluation}, average {average}, {chosen}"


def with_rows(values: Mapping[str, str]) -> str:
    """The value that all rows have or, where they differ, each with its rows.

    >>> with_rows({"local": "personal", "fedavg": "global", "fedprox": "global"})
    'personal (local) and global (fedavg, fedprox)'
    """
    by_value: dict[str, list[str]] = {}
    for row, value in values.items():
        by_value.setdefault(value, []).append(row)
    several = (f"{value} ({', '.join(names)})" for value, names in by_value.items())
    return " and ".join(several) if len(by_value) > 1 else next(iter(by_value))


def check(algorithm: str, run: RunSettings, dp: Any) -> None:
    """Refuse words that have no meaning for an algorithm, or that the server cannot know."""
    known = algorithms.evaluations(algorithms.find(algorithm))
    if run.evaluation not in (AUTO, *known):
        raise AtollError(
            f"evaluation={run.evaluation} has no meaning for {algorithm}, whose evaluation is {' or '.join(known)}; leave it out."
        )
    if run.evaluation == "union" and run.average != POOLED:
        raise AtollError(
            f"average={run.average} is over parties, and evaluation=union judges the union of their graphs; leave one out."
        )
    if run.evaluation == FINETUNED and run.class_weight == class_weights.BALANCED:
        raise AtollError("evaluation=finetuned does not know the weights of class_weight=balanced; give them: class_weight=1,5.")
    if run.average != POOLED and (run.secure or not run.evaluate_at_server or dp.evaluation_noise):
        why = "secure" if run.secure else "dp.evaluation_noise" if dp.evaluation_noise else "evaluate_at_server=false"
        raise AtollError(
            f"average={run.average} needs each party's counts, which the server does not get with {why}; set average=pooled."
        )
