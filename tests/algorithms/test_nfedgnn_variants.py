"""The promises of placement, memory and resume for what is not the default of nFedGNN and CNFGNN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import wire
from atoll.runs import runner
from small import small

VARIANTS = {
    "three layers of sage, adamw": ("nfedgnn", {"model": "sage", "layers": 3, "optimizer": "adamw", "loss": "sum"}),
    "late, mean": ("nfedgnn", {"late": 0.25, "join": "mean"}),
    "late, neighbors, gin": ("nfedgnn", {"late": 0.25, "model": "gin", "lr": 0.01}),
    "mean after the step, adamw": ("cnfgnn", {"averaging": "after", "optimizer": "adamw", "weight_decay": 0.05}),
    "late": ("cnfgnn", {"late": 0.25}),
}
pytestmark = pytest.mark.parametrize(("algorithm", "values"), VARIANTS.values(), ids=VARIANTS)


def leaves(result: runner.Result) -> dict[str, torch.Tensor]:
    """State and memory, by name."""
    return {
        name: value for name, value in wire.leaves({"state": result.state, "memory": result.memory}) if torch.is_tensor(value)
    }


@pytest.mark.parametrize("other", [{"placement": "apart"}, {"amnesia": "true"}], ids=["apart", "amnesia"])
def test_placement_and_forgetting_do_not_matter(algorithm: str, values: dict[str, Any], other: dict[str, str]) -> None:
    """Each user at a site of its own, or rebuilt before every message: the same state, metrics and bytes."""
    one, two = (runner.run(small(algorithm, **values, **more)) for more in ({}, other))
    assert one.bytes == two.bytes
    assert one.metrics.keys() == two.metrics.keys()
    for name, value in wire.leaves(one.state):
        torch.testing.assert_close(dict(wire.leaves(two.state))[name], value, atol=1e-5, rtol=1e-5)
    assert one.metrics["val_loss"] == pytest.approx(two.metrics["val_loss"], rel=1e-5)


def test_resume_is_exact(algorithm: str, values: dict[str, Any], tmp_path: Path) -> None:
    """Broken off and resumed, a run ends with the same bits."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    config = small(algorithm, rounds=4, checkpoint_every=2, **values)
    whole = runner.run(config, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    resumed = runner.resume(tmp_path / "broken")
    assert whole.metrics == resumed.metrics
    assert leaves(whole).keys() == leaves(resumed).keys()
    assert all(torch.equal(value, leaves(resumed)[name]) for name, value in leaves(whole).items())
