"""Replies of several sites that are read into one tensor per field: the bits, memory and refusals of replies on their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from atoll import wire
from atoll.engines.hosted import Lost
from atoll.engines.joint import Joint
from atoll.federation import fields
from atoll.federation.fields import concatenate
from atoll.runs import runner
from atoll.runs.result import Result
from hosts import DirectHosts, hosted
from small import small

WEIGHT = "answers/0/fields/model/layers.0.weight"
Change = Callable[[dict[str, Any]], dict[str, Any]]


def shorter(flat: dict[str, Any]) -> dict[str, Any]:
    """Without its last party, which is said to have failed."""
    failed = int(flat["answers/0/parties"][-1])
    cut = {name: value[:-1] if name.startswith("answers/") else value for name, value in flat.items()}
    return cut | {"failures": [*flat["failures"], [failed, "gone"]]}


CHANGES: dict[str, Change] = {
    "nothing": lambda flat: flat,
    "type": lambda flat: flat | {WEIGHT: flat[WEIGHT].double()},
    "shape": lambda flat: flat | {WEIGHT: flat[WEIGHT][:, 1:]},
    "field": lambda flat: {name: value for name, value in flat.items() if name != WEIGHT},
    "number": lambda flat: flat | {WEIGHT: flat[WEIGHT].index_fill(0, torch.tensor([0]), torch.nan)},
    "shared rows": lambda flat: flat | {WEIGHT: flat[WEIGHT][:1].expand_as(flat[WEIGHT])},
    "party": shorter,
}


class Late(DirectHosts):
    """Hosts that answer in the opposite order, of which one changes its answer to the second round's training."""

    change: Change = staticmethod(CHANGES["nothing"])
    changed = 1

    def send(self, shared: bytes, own: Mapping[int, bytes]) -> Iterator[tuple[int, bytes | Lost]]:
        """The last site first."""
        for site, raw in reversed(list(super().send(shared, own))):
            request = wire.decode(own[site]) if own[site] else {}
            if site != self.changed or request.get("round") != 2 or not request["training"] or isinstance(raw, Lost):
                yield site, raw
                continue
            changed = self.change(dict(wire.leaves(wire.decode(raw))))
            yield site, wire.encode(wire.nest(changed), compact=True)


def run(kind: str, changed: int, *, joint: bool, monkeypatch: pytest.MonkeyPatch) -> Result:
    """Six parties at three sites; with `joint` their replies are read into one tensor per field."""
    with monkeypatch.context() as patch, hosted() as engine:
        if not joint:
            patch.setattr(Joint, "_place", lambda *about: None)
        patch.setattr(Late, "change", staticmethod(CHANGES[kind]))
        patch.setattr(Late, "changed", changed)
        engine.hosts = Late
        config = small("fedavg", rounds=3, sites=3)
        return runner.run(replace(config, engine="hosted", parties=6))


@pytest.mark.parametrize("changed", [0, 1, 2])
@pytest.mark.parametrize("kind", CHANGES)
def test_nothing_depends_on_it(kind: str, changed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits, the same parties refused for the same reasons, whichever site answers otherwise than the others."""
    one, other = (run(kind, changed, joint=joint, monkeypatch=monkeypatch) for joint in (True, False))
    for (name, value), (_, same) in zip(wire.leaves(one.state), wire.leaves(other.state), strict=True):
        assert torch.equal(value, same), name
    assert [row.get("missing") for row in one.rows] == [row.get("missing") for row in other.rows]
    assert bool(one.rows[1].get("missing")) == (kind not in ("nothing", "shared rows"))
    assert one.bytes == other.bytes


def test_replies_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is put together that was read into one tensor; and whatever was not, is."""
    joined: list[Any] = []
    usual = torch.cat

    def counting(tensors: Any, *more: Any, **options: Any) -> torch.Tensor:
        joined.append(tensors)
        return usual(tensors, *more, **options)

    monkeypatch.setattr(torch, "cat", counting)
    counts = []
    for joint in (True, False):
        run("nothing", 0, joint=joint, monkeypatch=monkeypatch)
        counts.append(sum(all(len(one) == 2 for one in tensors) and len(tensors) == 3 for tensors in joined))
        joined.clear()
    assert counts[0] < counts[1]
    assert counts[1] - counts[0] == 3 * (5 + 4)  # rounds, each with the fields of a model with its weight, and of an evaluation


def test_rows_of_one_tensor_are_joined_without_a_copy() -> None:
    """Only all of its rows, in order; anything else is a copy."""
    whole = torch.arange(24.0).reshape(6, 2, 2)
    pieces = [whole[:1], whole[1:4], whole[4:]]
    joined = concatenate([{"x": piece} for piece in pieces])["x"]
    assert torch.equal(joined, whole)
    assert joined.data_ptr() == whole.data_ptr()
    apart = [
        [whole[:1], whole[1:4]],  # not all
        [whole[1:4], whole[:1], whole[4:]],  # another order
        [whole[:3], whole[:3]],  # twice the same
        [whole[:3].clone(), whole[3:]],
        [whole[:, :1], whole[:, 1:]],  # not one below the other
        [whole[:3], whole[3:].view(torch.int32)],
        [whole[:3], whole[3:].view(3, 4, 1)],
    ]
    for parts in apart[:5]:
        joined = concatenate([{"x": part} for part in parts])["x"]
        assert torch.equal(joined, torch.cat(parts))
        assert joined.data_ptr() != whole.data_ptr()
    assert fields._whole(apart[5]) is None
    assert fields._whole(apart[6]) is None


def test_an_incomplete_one_is_known() -> None:
    """A field that not every site has filled, with as many rows as it was asked for."""
    ask = {0: 2, 3: 1}
    for second, complete in [({"x": torch.ones(1, 3)}, True), ({"x": torch.ones(2, 3)}, False), ({}, False)]:
        joint = Joint(ask)
        for site, reply in ((3, second), (0, {"x": torch.zeros(2, 3)})):
            read = joint.read(site, wire.encode({"answers": {"0": {"fields": reply}}}))
            assert not reply or torch.equal(read["answers"]["0"]["fields"]["x"], reply["x"])
        assert joint.complete == complete
        if complete:
            assert torch.equal(joint.fields["answers/0/fields/x"], torch.tensor([[0.0] * 3, [0.0] * 3, [1.0] * 3]))
