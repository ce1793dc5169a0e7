"""Copies of tensors on the disk: the same numbers, another file than memory, no file left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import spilled, storage, wire
from atoll.errors import AtollError
from atoll.federation.fields import copied
from atoll.runs import runner
from small import small


def test_a_copy_on_the_disk_is_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later changes of the one do not reach the other, in either direction, and the folder stays empty."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(spilled, "MAX_BYTES_AT_ONCE", 64)
    for tensor in (torch.randn(33, 5, 2), torch.arange(40).view(8, 5).t(), torch.zeros(3, dtype=torch.bool)):
        before = tensor.clone()
        copy = spilled.spilled(tensor)
        assert copy.dtype == tensor.dtype
        assert torch.equal(copy, before)
        tensor.zero_()
        assert torch.equal(copy, before)
        copy.fill_(1)
        assert not tensor.any()
    assert not list(tmp_path.iterdir())


def test_the_edges_of_millions_of_users_are_on_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """And training reads the same numbers."""
    before = runner.run(small("nfedgnn")).state["latent"]
    asked: list[torch.Size] = []
    plain = spilled.spilled
    monkeypatch.setattr(spilled, "spilled", lambda tensor: (asked.append(tensor.shape), plain(tensor))[1])
    monkeypatch.setattr(spilled, "LARGE", 1)
    experiment = runner.prepare(small("nfedgnn"))
    assert asked == [experiment.party_data.public["edge_index"].shape]
    monkeypatch.setattr(spilled, "LARGE", 1 << 30)
    assert torch.equal(runner.rounds(experiment).state["latent"], before)


def test_only_large_tensors_go_to_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what all parties share is one row in memory."""
    asked: list[torch.Size] = []
    plain = spilled.spilled
    monkeypatch.setattr(spilled, "spilled", lambda tensor: (asked.append(tensor.shape), plain(tensor))[1])
    fields = {"small": torch.ones(3), "deep": {"large": torch.ones(30, 4)}, "shared": torch.ones(1, 40).expand(9, 40)}
    again = copied(fields, copied(fields), large=480)
    assert asked == [torch.Size([30, 4])]
    assert all(torch.equal(value, dict(wire.leaves(fields))[name]) for name, value in wire.leaves(again))


def test_a_full_disk_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with pytest.raises(AtollError, match=r"copy of 0\.0 GB cannot be written to .*none.*TMPDIR"):
        spilled.spilled(torch.ones(3))


@pytest.mark.parametrize("more", [{}, {"select_by": "last"}, {"select_by": "last", "on_missing": "stop"}], ids=str)
@pytest.mark.parametrize("algorithm", ["nfedgnn", "local"])
def test_the_best_round_is_the_same_on_the_disk(
    algorithm: str, more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file of a run, and a resumed one, is what it is without; where each round replaces the last, nothing is copied."""
    config = small(algorithm, rounds=4, checkpoint_every=2, **more)
    usual = runner.run(config, out=tmp_path / "usual")
    monkeypatch.setattr(spilled, "LARGE", 64)
    copies: list[int] = []
    plain = spilled.spilled
    monkeypatch.setattr(spilled, "spilled", lambda tensor: (copies.extend([1] * tensor.is_floating_point()), plain(tensor))[1])

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise KeyboardInterrupt

    spilling = runner.run(config, out=tmp_path / "spilled")
    assert bool(copies) == (more.get("on_missing") != "stop")
    with pytest.raises(KeyboardInterrupt):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    resumed = runner.resume(tmp_path / "broken")
    assert spilling.metrics == resumed.metrics == usual.metrics
    tensors = (tmp_path / "usual" / "model" / "model.safetensors").read_bytes()
    for name in ("spilled", "broken"):
        assert (tmp_path / name / "model" / "model.safetensors").read_bytes() == tensors


def test_a_large_document_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same payload, which outlives the file; one changed bit is still damage."""
    path, source = tmp_path / "a.safetensors", torch.randn(50, 3)
    payload = {"state": {"w": source, "n": torch.tensor([1, 2])}, "shared": torch.ones(1, 4).expand(5, 4), "round": 3}
    storage.write_document(path, payload, compact=True)
    usual = storage.read_document(path)
    monkeypatch.setattr(spilled, "LARGE", 100)
    again = storage.read_document(path)
    data = path.read_bytes()
    path.unlink()
    assert again["state"]["w"].add_(1).sub_(1).shape == (50, 3)
    assert [name for name, _ in wire.leaves(again)] == [name for name, _ in wire.leaves(usual)]
    assert torch.equal(again["state"]["n"], torch.tensor([1, 2]))
    assert again["shared"].stride(0) == 0
    for byte in (20, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :])
        with pytest.raises(storage.DamagedError):
            storage.read_document(path)
