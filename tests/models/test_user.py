"""Models that the user gives, by file and by object."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.models import user
from atoll.models.gcn import GCN
from atoll.models.registry import build, find_model

FILE = """
import torch

class {name}(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.linear = torch.nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        return self.linear(x)
"""


class Linear(nn.Module):
    """A linear layer."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.linear(x)


def names(name: str) -> list[str]:
    """The parameters of a model that was loaded."""
    return [key for key, _ in build(name, parties=2, features=4, classes=3).named_parameters()]


def test_a_file_is_imported_when_the_user_names_it_only(tmp_path: Path) -> None:
    """`load` runs the file and `find_model` does not; the digest is that of the bytes that ran."""
    path = tmp_path / "mine.py"
    path.write_text(FILE.format(name="Net"))
    with pytest.raises(AtollError, match="not run because a folder or a server names it"):
        find_model(str(path))
    assert user.digest(str(path)) is None
    assert user.load(path) == str(path)
    assert names(str(path)) == ["linear.weight", "linear.bias"]
    assert user.digest(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_which_class_of_a_file(tmp_path: Path) -> None:
    """The only one, the one called Model, or the one that is named after a colon."""
    path = tmp_path / "several.py"
    path.write_text(FILE.format(name="First") + FILE.format(name="Second"))
    with pytest.raises(AtollError, match=r"it has First, Second; say which: --model .*several.py:Second"):
        user.load(str(path))
    assert names(user.load(f"{path}:Second")) == ["linear.weight", "linear.bias"]
    with pytest.raises(AtollError, match=r"has no torch\.nn\.Module 'Third'"):
        user.load(f"{path}:Third")
    path.write_text(FILE.format(name="Part") + FILE.format(name="Model"))  # changed: it is read again
    user.load(str(path))
    path.write_text("x = 1\n")
    with pytest.raises(AtollError, match=r"must define one torch\.nn\.Module, or one called Model, but it has none"):
        user.load(str(path))
    path.write_text("\nraise ValueError('no')\n")
    with pytest.raises(AtollError, match=r"cannot be imported \(ValueError: no, line 2\)"):
        user.load(str(path))
    with pytest.raises(AtollError, match="no such file"):
        user.load(str(tmp_path / "nowhere.py"))


def test_objects_have_names() -> None:
    """A class or a function is remembered under its qualified name; an instance is not a model."""
    name = user.load(Linear)
    assert name == f"{__name__}:Linear"
    assert names(name) == ["linear.weight", "linear.bias"]

    def make(in_channels: int, out_channels: int) -> nn.Module:
        return nn.Linear(in_channels, out_channels)

    assert names(user.load(make)) == ["weight", "bias"]
    assert find_model(user.load(GCN)) is GCN
    with pytest.raises(AtollError, match="give the class, so that every party gets its own"):
        user.load(Linear(4, 3))
    with pytest.raises(AtollError, match="model is a int"):
        user.load(3)
    with pytest.raises(AtollError, match=r"dict is not a torch\.nn\.Module"):
        user.load(dict)
    with pytest.raises(AtollError, match="was given as an object; give it again: model=Other"):
        find_model("somewhere:Other")
