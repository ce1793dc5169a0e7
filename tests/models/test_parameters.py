"""Parameters as dicts of tensors: live views, copies, broadcasting to parties, and models that do not fit."""

from __future__ import annotations

import pytest
import torch

from atoll.errors import AtollError, AtollWarning
from atoll.models.parameters import choose, get_parameters, scale, set_parameters, weighted
from atoll.models.registry import build


def model(parties: int = 2, hidden: int = 4) -> torch.nn.Module:
    """A small backbone."""
    return build("gcn", parties=parties, features=3, classes=2, hidden=hidden)


def test_parameters_are_live_unless_copied() -> None:
    """A change of the model shows in the views and not in the copy."""
    network = model()
    live, copied = get_parameters(network), get_parameters(network, copy=True)
    for value in network.parameters():
        value.data.add_(1)
    for name, value in network.named_parameters():
        assert torch.equal(live[name], value)
        assert torch.equal(copied[name] + 1, value)
        assert not live[name].requires_grad


def test_parameters_go_to_every_party() -> None:
    """With a party axis as they are; without one, to each party."""
    source, target = model(), model()
    set_parameters(target, get_parameters(source))
    assert all(torch.equal(a, b) for a, b in zip(target.parameters(), source.parameters(), strict=True))
    shared = {name: torch.full_like(value[0], 3.0) for name, value in get_parameters(source).items()}
    set_parameters(target, shared)
    assert all(bool((value == 3).all()) for value in target.parameters())


def test_parameters_of_another_model_are_refused_before_anything_changes() -> None:
    """Other names, or another shape."""
    target = model()
    before = get_parameters(target, copy=True)
    with pytest.raises(AtollError, match=r"these parameters belong to another model: .*extra"):
        set_parameters(target, get_parameters(target) | {"extra": torch.zeros(1)})
    with pytest.raises(AtollError, match="has shape"):
        set_parameters(target, get_parameters(model(hidden=5)))
    assert all(torch.equal(before[name], value) for name, value in target.named_parameters())


def test_scaled_and_weighted() -> None:
    """A number for all, or one per party."""
    network = model()
    parameters = get_parameters(network)
    doubled, by_party = scale(parameters, 2), weighted(network, torch.tensor([1.0, 3.0]))
    for name, value in parameters.items():
        assert torch.equal(doubled[name], 2 * value)
        assert torch.equal(by_party[name][0], value[0])
        assert torch.equal(by_party[name][1], 3 * value[1])


def test_names_of_0_1_are_still_found() -> None:
    """A user's algorithm of 0.1 gets what it imports, and is told the new name."""
    with pytest.warns(AtollWarning, match=r"atoll\.models\.read is atoll\.models\.parameters\.get_parameters now"):
        from atoll.models import read
    assert read is get_parameters
    with pytest.raises(ImportError):
        from atoll.models import nothing_of_the_kind  # noqa: F401


def test_chosen_party_by_party() -> None:
    """Each party has one or the other, whatever the parameter's shape."""
    chosen, others = ({"w": torch.full((3, 2), value), "b": torch.full((3,), value)} for value in (1.0, 2.0))
    result = choose(torch.tensor([True, False, True]), chosen, others)
    assert result["w"].tolist() == [[1, 1], [2, 2], [1, 1]]
    assert result["b"].tolist() == [1, 2, 1]
