"""Parties by number: what a tuple of ints would be, if a million of them were no million objects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


def divide_evenly(parties: int, sites: int) -> list[range]:
    """The parties of each site where they are spread evenly, in order; one each where there are as many of both."""
    cuts = [round(parties * place / sites) for place in range(sites + 1)]
    return [range(first, end) for first, end in pairwise(cuts)]


class Parties(Sequence[int]):
    """Some parties, in a fixed order and each once; equal to any sequence of the same numbers."""

    __slots__ = ("numbers",)

    def __init__(self, numbers: Sequence[int] | NDArray[np.int64]) -> None:
        self.numbers: NDArray[np.int64]
        if isinstance(numbers, Parties):
            self.numbers = numbers.numbers
        elif isinstance(numbers, range):
            self.numbers = np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
        else:
            self.numbers = np.array(numbers, dtype=np.int64)
        self.numbers.flags.writeable = False

    def __len__(self) -> int:
        return len(self.numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers.tolist())

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Parties: ...
    def __getitem__(self, place: int | slice) -> int | Parties:
        return Parties(self.numbers[place]) if isinstance(place, slice) else int(self.numbers[place])

    def __contains__(self, party: object) -> bool:
        return bool((self.numbers == party).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Parties):
            return self.numbers is other.numbers or np.array_equal(self.numbers, other.numbers)
        if isinstance(other, Sequence) and not isinstance(other, str):
            return len(other) == len(self) and self.numbers.tolist() == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.numbers.tolist()))  # that of the tuple it is equal to

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = self.numbers.astype(dtype or np.int64, copy=bool(copy))
        return array

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.numbers[:5].tolist()))
        return f"Parties({shown}{f', … {len(self)} in all' if len(self) > 5 else ''})"

    def index(self, party: int, start: int = 0, stop: int | None = None) -> int:
        """The place of a party."""
        found = np.flatnonzero(self.numbers[start:stop] == party)
        if not len(found):
            raise ValueError(f"party {party} is not among these")
        return int(found[0]) + start

    def indices(self, parties: Sequence[int]) -> NDArray[np.int64]:
        """The places of some of these parties."""
        wanted = np.asarray(parties, dtype=np.int64)
        if len(self) == 0:
            places, known = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        else:
            ordered = bool((self.numbers[1:] > self.numbers[:-1]).all())
            order = None if ordered else np.argsort(self.numbers, kind="stable")
            places = np.searchsorted(self.numbers, wanted, sorter=order).clip(max=len(self) - 1)
            places = places if order is None else order[places]
            known = self.numbers[places] == wanted
        if not known.all():
            raise ValueError(f"party {wanted[~known][0]} is not among these")
        return places

    def without(self, gone: Collection[int]) -> Parties:
        """These parties but for some."""
        if not gone:
            return self
        left = self.numbers[~np.isin(self.numbers, np.fromiter(gone, np.int64, len(gone)))]
        return self if len(left) == len(self) else Parties(left)
