"""The replies of several sites in one tensor per field, as the server needs them: no reply is copied a second time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from atoll import wire
from atoll.engines.host import Bytes
from atoll.federation.fields import Fields

ANSWER = "answers/0/fields/"  # what a host of one cohort calls the fields of its reply


class Reply(NamedTuple):
    """What a host answered."""

    fields: Fields
    raw: Bytes

    def apart(self) -> Reply:
        """The same with tensors of its own, which are in no joint one."""
        return Reply(wire.unpack(self.raw), self.raw)


class Joint:
    """One tensor per field for the replies to one message, in which every site has its rows; a reply is read into them.

    The rows of a site whose reply has another form than the first one, or lacks parties, are not filled: then the replies are
    not `complete`, and every site's have to be read again into memory of their own.

    Parameters:
        parties: How many parties each site was asked for, in the order of the rows.
    """

    def __init__(self, parties: Mapping[int, int]) -> None:
        self.first: dict[int, int] = {}
        self.rows = 0
        for site, count in parties.items():
            self.first[site] = self.rows
            self.rows += count
        self.parties = parties
        self.fields: dict[str, Tensor] = {}
        self.filled: dict[str, int] = {}  # how many rows

    @property
    def complete(self) -> bool:
        """Whether every row of every field was filled."""
        return all(rows == self.rows for rows in self.filled.values())

    def read(self, site: int, raw: Bytes) -> Fields:
        """A site's reply; its tensors are this site's rows where they fit."""
        return wire.unpack(raw, lambda name, dtype, shape: self._place(site, name, dtype, shape))

    def _place(self, site: int, name: str, dtype: torch.dtype, shape: list[int]) -> Tensor | None:
        if not name.startswith(ANSWER) or name.endswith("]") or shape[:1] != [self.parties[site]]:
            return None
        whole = self.fields.get(name)
        if whole is None:
            whole = self.fields[name] = torch.empty((self.rows, *shape[1:]), dtype=dtype)
            self.filled[name] = 0
        if whole.dtype != dtype or list(whole.shape[1:]) != shape[1:]:
            return None
        self.filled[name] += shape[0]
        return whole[self.first[site] : self.first[site] + shape[0]]
