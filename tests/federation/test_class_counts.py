"""`class_weight=balanced`: counts pass through the federation once; placement, memory, resume and secure totals hold with it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll.errors import AtollError
from atoll.federation import class_counts
from atoll.federation.cohort import Message
from atoll.federation.federation import Answer, Failure
from atoll.runs import runner
from atoll.tasks.class_weights import balanced
from small import ALGORITHMS, Absent, Wrapper, small


def uneven(algorithm: str, **values: Any) -> Any:
    """A run whose training classes are not equally frequent, as far as the algorithm's split allows."""
    return small(algorithm, **({"class_weight": "balanced", "rounds": 2} | values))


def close(algorithm: str, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """The same numbers; GFL-APPNP's sums depend on the placement in their last digits, without weights too."""
    if algorithm != "gfl_appnp":
        return one == other
    return all(value == pytest.approx(other[name], abs=1e-5) for name, value in one.items())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_placement_and_amnesia_do_not_matter(algorithm: str) -> None:
    """The weights are declared memory, and the same for every party."""
    together = runner.run(uneven(algorithm)).last
    assert close(algorithm, together, runner.run(uneven(algorithm, placement="apart")).last)
    assert close(algorithm, together, runner.run(uneven(algorithm, amnesia=True)).last)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_trains_with_the_weights(algorithm: str) -> None:
    """Weights of 1 change no bit; others change what is learned."""
    plain, ones, heavy = (runner.run(small(algorithm, rounds=2, class_weight=text)).last for text in ("none", "1,1,1", "1,9,0.1"))
    assert plain == ones
    assert plain["val_loss"] != heavy["val_loss"]


def test_balanced_is_giving_the_balanced_weights() -> None:
    """n / (C·n_c) of all parties' training nodes, as if they had been written into the configuration."""
    experiment = runner.prepare(uneven("fedavg"))
    parts = experiment.party_data.parts
    weights = balanced(torch.bincount(parts.y[parts.train & (parts.y >= 0)], minlength=3))
    assert len(set(weights.tolist())) == 3
    given = runner.run(uneven("fedavg", class_weight=",".join(map(repr, weights.tolist()))))
    result = runner.rounds(experiment)
    assert result.rows[-1]["val_loss"] == given.rows[-1]["val_loss"]
    sent = result.bytes["by_verb"]
    assert sent["count_classes"]["up"] == sent["set_class_weights"]["down"] == 3 * 8 * 3
    assert not given.bytes["by_verb"].keys() & set(class_counts.VERBS)


def test_secure_totals_mask_the_counts() -> None:
    """The same weights, whole numbers being summed."""
    experiments = [runner.prepare(uneven("fedavg", secure=secure)) for secure in (False, True)]
    for experiment in experiments:
        experiment.federation.begin(0)
        class_counts.agree(experiment.federation)
    plain, secure = (class_counts.state(experiment.federation) for experiment in experiments)
    assert plain == secure
    assert experiments[1].federation.ledger.summary()["by_verb"]["secure_keys"]["messages"] == 3


@pytest.mark.parametrize("algorithm", ["fedavg", "nfedgnn", "fedper"])
@pytest.mark.parametrize("weights", ["balanced", "1,9,0.1"])
def test_resume_is_exact(algorithm: str, weights: str, tmp_path: Path) -> None:
    """The server's weights are in its checkpoint, the parties' in their memory; nothing is counted again."""
    whole = runner.run(uneven(algorithm, rounds=4, class_weight=weights))
    runner.run(uneven(algorithm, rounds=2, class_weight=weights), out=tmp_path / "a")
    extended = runner.resume(tmp_path / "a", ending={"rounds": 4})
    assert extended.last == whole.last
    assert extended.bytes == whole.bytes


def test_a_missing_party_is_named_before_the_first_round() -> None:
    """Weights of some parties only would not be the federation's."""
    experiment = runner.prepare(uneven("fedavg"), engine=lambda engine: Absent(engine, {0}, {1}))
    with pytest.raises(AtollError, match=r"needs the class counts of every party \(party 1: timed out\)"):
        runner.rounds(experiment)


class Restarting(Wrapper):
    """One party loses its weights before the second round."""

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Forget once."""
        if message.round == 2 and message.verb == "fit" and not hasattr(self, "lost"):
            self.lost = True
            cohort = self.engine.cohorts[1]  # type: ignore[attr-defined]
            class_counts.declare(cohort)
        return self.engine.deliver(message)


def test_a_party_that_lost_the_weights_is_told_again() -> None:
    """It is missing in one round instead of training with others."""
    experiment = runner.prepare(uneven("fedavg", placement="apart", rounds=4), engine=Restarting)
    result = runner.rounds(experiment)
    assert [list(row.get("missing", {})) for row in result.rows] == [[], ["1"], [], []]
    assert class_counts.UNKNOWN in result.rows[1]["missing"]["1"]


def test_noise_does_not_cover_the_counts() -> None:
    """So they are refused, before anything runs."""
    with pytest.raises(AtollError, match="class_weight=balanced needs exact class counts"):
        uneven("fedavg", **{"dp.verb": "fit"})


def test_without_balanced_no_party_remembers_weights() -> None:
    """Checkpoints and messages are what they were."""
    experiment = runner.prepare(small("fedavg"))
    runner.rounds(copy.copy(experiment))
    assert class_counts.MEMORY not in experiment.engine.state()["0"]
    assert class_counts.MEMORY not in runner.run(uneven("fedper")).trained.memory  # type: ignore[union-attr]


def asked(cohort: Any, verb: str, call: int = 0, **common: Any) -> Any:
    """What a cohort answers before the first round."""
    return cohort.answer(Message(verb, 0, call, True, cohort.parties, common, {}))


def test_classes_are_counted_once_and_only_for_balanced() -> None:
    """A server that asks in any run, again, or for other weights in the middle of a run gets nothing."""
    plain = runner.prepare(small("fedavg")).engine.cohorts[0]  # type: ignore[attr-defined]
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    with pytest.raises(AtollError, match="do not follow from class counts"):
        asked(plain, "count_classes")
    with pytest.raises(AtollError, match="do not follow from class counts"):
        asked(plain, "set_class_weights", weights=weights)
    cohort = runner.prepare(uneven("fedavg")).engine.cohorts[0]  # type: ignore[attr-defined]
    first = asked(cohort, "count_classes", 1)
    assert torch.equal(asked(cohort, "count_classes", 1)["counts"], first["counts"])
    with pytest.raises(AtollError, match="counted once in a run"):
        asked(cohort, "count_classes", 2)
    asked(cohort, "set_class_weights", 2, weights=weights)
    asked(cohort, "set_class_weights", 3, weights=weights)
    with pytest.raises(AtollError, match="do not change"):
        asked(cohort, "set_class_weights", 4, weights=weights * 2)
    with pytest.raises(AtollError, match="counted once in a run"):
        asked(cohort, "count_classes", 1)
