"""Class weights, thresholds and details across sites: what the simulation has, and each site's own beside its model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")

from atoll.data.federated import federate
from atoll.errors import AtollError
from atoll.federation import class_counts
from atoll.federation.cohort import Schema
from atoll.runs import runner
from atoll.runs.model_files import ModelFiles
from sites import DirectCarrier, remote_engine, simulated_sites
from small import small


def across_sites(folder: Path, **values: Any) -> tuple[runner.Result, runner.Result, list[dict[str, Any]]]:
    """A run across three sites, the same in one process, and the descriptions of the sites' models."""
    config = small("fedavg", rounds=4, lr=0.1, **values)
    data = federate(config, None, ("horizontal",))
    carrier = DirectCarrier(simulated_sites(folder))
    engine, schema = remote_engine(config, carrier), Schema(12, data.parts.num_classes, 3)
    engine.schema = schema
    result = runner.rounds(runner.build_experiment(config, engine, schema, data, data.scenario))
    engine.finish(result.detail["threshold"])
    models = [ModelFiles.read(next((folder / f"site-{party}").glob("*/model"))) for party in range(3)]
    return result, runner.run(config), [model.description for model in models]


def test_balanced_weights_reach_the_sites(tmp_path: Path) -> None:
    """The same bits as in one process, and what a site predicts with does not include them."""
    result, simulated, _ = across_sites(tmp_path, class_weight="balanced")
    assert [row["val_loss"] for row in result.rows] == [row["val_loss"] for row in simulated.rows]
    assert set(class_counts.VERBS) <= result.bytes["by_verb"].keys()
    assert result.bytes["up"] == simulated.bytes["up"]


@pytest.mark.parametrize("threshold", ["f1", "0.3"])
def test_every_site_ends_with_the_threshold_and_its_own_detail(tmp_path: Path, threshold: str) -> None:
    """The federation's threshold, the class by its name there; the sites' confusion matrices add up to the server's."""
    result, simulated, models = across_sites(tmp_path, threshold=threshold, **{"data.classes": 2, "data.nodes": 90})
    assert result.detail["threshold"] == simulated.detail["threshold"]
    assert result.detail["confusion"] == simulated.detail["confusion"]
    assert (result.detail["ranking"] == "histogram") == (threshold == "f1")
    assert [model["threshold"] for model in models] == [result.detail["threshold"]] * 3
    own = [model["detail"]["confusion"] for model in models]
    assert [party["confusion"] for party in result.detail["parties"].values()] == own
    summed = [[sum(matrix[row][column] for matrix in own) for column in range(2)] for row in range(2)]
    assert summed == result.detail["confusion"]


def test_a_threshold_that_is_not_a_probability_is_refused(tmp_path: Path) -> None:
    """The server's number is checked before it is written."""
    from atoll.deploy import requests

    for value in (1.5, True, "0.5", float("nan")):
        with pytest.raises(AtollError, match=r"value is .*, not a number between 0 and 1"):
            requests.threshold({"value": value, "index": 1})
    with pytest.raises(AtollError, match="index is 2"):
        requests.threshold({"value": 0.5, "index": 2})
    assert requests.threshold({}) == (None, None)
