"""Metrics of each party, as the server lists them."""

from __future__ import annotations

import torch

from atoll.federation import metrics
from atoll.runs import runner
from small import small


def test_a_party_that_did_not_answer_has_no_metrics() -> None:
    """Its place in the list is kept, so that lists of different rounds can be compared."""
    federation = runner.prepare(small("local")).federation
    counts = {"test": torch.tensor([[4.0, 3, 0, 2, 1], [2.0, 1, 0, 0, 0]], dtype=torch.float64)}
    listed = metrics.by_party(federation, (0, 2), counts)
    assert listed == {"party_accuracy": [0.75, None, 0.5], "party_minority_accuracy": [0.5, None, None]}
