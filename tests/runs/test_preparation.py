"""The encoding is fitted through the federation: same numbers for any placement and under secure totals, every byte counted."""

from pathlib import Path
from typing import Any

import pytest

from atoll.errors import AtollError
from atoll.federation.cohort import Cohort
from atoll.runs import config, runner
from atoll.runs.preparation import TableCohort

pytestmark = pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")


def folder(path: Path) -> str:
    """Ninety patients in a ring."""
    lines = ["id,age,ward,seen,label"]
    for row in range(90):
        age = "" if row % 11 == 0 else str(20 + row * 7 % 60)
        lines.append(f"p{row},{age},{('icu', 'surgery', 'ward')[row * row % 3]},2025-01-{1 + row % 28:02d},{row * 5 % 7 % 2}")
    (path / "nodes.csv").write_text("\n".join(lines) + "\n")
    (path / "edges.csv").write_text("source,target\n" + "".join(f"p{row},p{(row + 1) % 90}\n" for row in range(90)))
    return str(path)


def run(path: str, **values: Any) -> Any:
    """Two rounds of FedAvg at three parties."""
    chosen = {"split": "random", "rounds": 2} | values
    return runner.run(config.resolve("fedavg", dataset=path, partition="random", parties=3, values=chosen))


def test_placement_and_secure_totals_give_the_same_encoding(tmp_path: Path) -> None:
    """Everything that is summed is a whole number."""
    path = folder(tmp_path)
    plain = run(path)
    assert run(path, placement="apart").last == plain.last
    assert run(path, amnesia=True).last == plain.last
    makes = [
        runner.prepare(config.resolve("fedavg", dataset=path, partition="random", parties=3, values={"split": "random", **more}))
        for more in ({}, {"secure": True})
    ]
    first, second = (each.data.encoding for each in makes if each.data is not None)
    assert first is not None
    assert first == second
    assert first.names == ("age", "age=missing", "ward=surgery", "ward=icu", "seen")


def test_every_byte_is_counted_under_its_verb(tmp_path: Path) -> None:
    """In result.json beside the verbs of the algorithm."""
    sent = run(folder(tmp_path)).bytes["by_verb"]
    own = TableCohort.verbs().keys() - Cohort.verbs().keys()
    assert own <= sent.keys()
    assert sent["count_columns"]["up"] == 3 * 8 * (1 + 3 + 3)


def test_noise_refuses_exact_counts(tmp_path: Path) -> None:
    """The guarantee would not hold for them."""
    with pytest.raises(AtollError, match="does not cover the counts"):
        run(folder(tmp_path), **{"dp.verb": "fit", "dp.noise": 1.0})
