"""The ledger: sums by round, verb, purpose and party, many parties, and a round trip through a checkpoint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atoll import wire
from atoll.federation import ledger
from atoll.federation.ledger import Ledger, message_sizes


def filled(parties: int = 4) -> Ledger:
    """Two rounds of training and an evaluation."""
    book = Ledger(parties)
    book.record(1, "fit", True, range(parties), up=10, down=np.arange(parties), messages=1)
    book.record(1, "evaluate", False, range(parties), up=3, messages=1)
    book.record(2, "fit", True, [0, 2], up=np.array([5, 7]), messages=1)
    book.wait(2, 0.5)
    book.wait(2, 0.25)
    return book


def test_sums_by_round_verb_and_purpose() -> None:
    """Evaluation is counted apart, and by_party holds training only."""
    book = filled()
    assert book.total()["up"] == 40 + 12
    assert book.total(round=2) == {"up": 12, "down": 0, "wire_up": 0, "wire_down": 0, "messages": 2}
    assert book.total(verb="fit", training=False)["up"] == 0
    assert book.summary()["evaluation"]["up"] == 12
    assert list(book.summary()["by_verb"]) == ["fit"]
    assert book.by_party[:, 0].tolist() == [15, 10, 17, 10]
    assert book.by_party[:, 1].tolist() == [0, 1, 2, 3]
    assert book.seconds == {2: 0.75}


def test_many_parties_have_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit a round keeps one row for all parties; sums and the parties' totals are the same."""
    detailed = filled()
    monkeypatch.setattr(ledger, "MAX_DETAILED", 3)
    summed = filled()
    assert summed.rounds[1]["fit", True].shape[0] == 1
    assert detailed.rounds[1]["fit", True].shape[0] == 4
    assert summed.summary() == detailed.summary()
    assert np.array_equal(summed.by_party, detailed.by_party)


def test_parties_that_are_alike_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a checkpoint, until one of them differs."""
    detailed = Ledger(4)
    monkeypatch.setattr(ledger, "MAX_DETAILED", 3)
    book = Ledger(4)
    for one in (detailed, book):
        one.record(1, "fit", True, range(4), up=10, down=2, messages=1)
    saved = book.state()["by_party"]
    assert wire.rows_are_shared(saved)
    restored = Ledger(4)
    restored.restore(wire.decode(wire.encode({"ledger": book.state()}, compact=True))["ledger"])
    assert wire.rows_are_shared(restored.state()["by_party"])
    for one in (detailed, book, restored):
        one.record(2, "fit", True, [2], up=1)
        one.record(2, "fit", True, range(4), up=np.arange(4))
        one.record(3, "fit", True, range(4), up=1)
        assert np.array_equal(one.by_party, detailed.by_party)
    assert detailed.by_party[:, 0].tolist() == [11, 12, 14, 14]


@pytest.mark.parametrize("book", [filled(), Ledger(4)], ids=["filled", "empty"])
def test_state_and_restore(book: Ledger) -> None:
    """Through bytes, as a checkpoint writes it; the restored ledger goes on independently."""
    restored = Ledger(4)
    restored.restore(wire.decode(wire.encode({"ledger": book.state()}))["ledger"])
    assert restored.summary() == book.summary()
    assert restored.seconds == book.seconds
    before = book.summary()
    restored.record(1, "fit", True, range(4), up=1)
    assert restored.total()["up"] == before["up"] + 4
    assert book.summary() == before


@pytest.mark.parametrize("ragged", [False, True])
def test_message_sizes_are_those_of_the_encoded_messages(ragged: bool) -> None:
    """Payload and wire bytes of each party's message, by encoding each on its own."""
    common: dict[str, Any] = {"model": {"w": torch.zeros(3, 2)}, "round": 7}
    each: dict[str, Any] = {"x": [torch.zeros(p, 3) for p in range(3)]} if ragged else {"x": torch.zeros(3, 5)}
    payload, encoded = message_sizes(common, each, {"verb": "fit"})
    for party in range(3):
        rows = [each["x"][party]] if ragged else each["x"][party : party + 1]
        message = {"verb": "fit", **common, "x": rows}
        tensors = [value for _, value in wire.leaves(message) if isinstance(value, torch.Tensor)]
        assert int(np.broadcast_to(payload, 3)[party]) == sum(value.nbytes for value in tensors)
        assert int(np.broadcast_to(encoded, 3)[party]) == len(wire.encode(message))
