"""Named partitions: node lists of published work, with their digests, so that numbers can be set beside the papers'.

A list is in the package where its rule is ours to apply again (`partitions/NAME.npz`), else in the folder `partitions` under
`ATOLL_DATA`. What is read must have the digest of the published list.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import io
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from atoll.data.builder import Ints
from atoll.data.node_lists import read_node_lists
from atoll.errors import AtollError
from atoll.graphs.graph import Graph


@dataclass(frozen=True)
class NamedPartition:
    """A published partition of one dataset."""

    name: str
    dataset: str
    nodes: int  # of the dataset
    parties: int
    sha256: str  # of the lists, as `digest` computes it; the first digits suffice
    source: str  # who published it, and how it came about
    split: str = ""  # what its own split is, where it has one

    def lists(self) -> tuple[list[Ints], Ints | None]:
        """Each party's nodes in ascending order and, where the partition has a split, each node's role (0, 1, 2; −1 none)."""
        shipped = importlib.resources.files("atoll.data").joinpath("partitions", f"{self.name}.npz")
        roles = None
        if shipped.is_file():
            with np.load(io.BytesIO(shipped.read_bytes()), allow_pickle=False) as arrays:
                owner = arrays["owner"].astype(np.int64)
                roles = arrays["roles"].astype(np.int64) if "roles" in arrays else None
            lists = [np.flatnonzero(owner == party) for party in range(self.parties)]
        else:
            lists = [np.sort(nodes) for nodes in read_node_lists(self._path(), self.nodes)]
        if not digest(lists).startswith(self.sha256):
            raise AtollError(
                f"The node lists of {self.name} are not the published ones (their SHA-256 is {digest(lists)[:16]}…)."
            )
        return lists, roles

    def _path(self) -> Path:
        root = os.environ.get("ATOLL_DATA")
        path = Path(root or ".").expanduser() / "partitions" / f"{self.name}.npz"
        if root is None or not path.is_file():
            raise AtollError(
                f"The partition {self.name} is not part of the package; put {self.name}.npz, with the authors' node lists "
                "party_0, party_1, …, into the folder `partitions` under ATOLL_DATA."
            )
        return path

    def check(self, graph: Graph) -> None:
        """Refuse another graph than the one it belongs to."""
        if graph.num_nodes != self.nodes:
            raise AtollError(
                f"The partition {self.name} is for {self.dataset} with {self.nodes} nodes, but this graph has {graph.num_nodes}; "
                f"use --dataset {self.dataset}."
            )


@cache
def named_partitions() -> dict[str, NamedPartition]:
    """All named partitions, in the order of the table beside this module."""
    text = importlib.resources.files("atoll.data").joinpath("partitions", "named.toml").read_text(encoding="utf-8")
    return {entry["name"]: NamedPartition(**entry) for entry in tomllib.loads(text)["partition"]}


def digest(lists: Sequence[Ints]) -> str:
    """SHA-256 over parties of their sorted node numbers (int64, little-endian) and a bar.

    >>> digest([np.array([2, 0]), np.array([1])])[:12]
    'e7c3bac84e59'
    """
    total = hashlib.sha256()
    for nodes in lists:
        total.update(np.sort(nodes).astype("<i8").tobytes() + b"|")
    return total.hexdigest()


def with_roles(graph: Graph, roles: Ints) -> Graph:
    """The whole graph with a partition's own split."""
    role = torch.from_numpy(roles)
    return replace(graph, train=role == 0, val=role == 1, test=role == 2)
