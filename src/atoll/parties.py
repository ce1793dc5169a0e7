"""Party numbers as one int64 array: cheap for millions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray


def divide_evenly(parties: int, sites: int) -> list[range]:
    """The parties of each site if they are divided evenly, in order."""
    bounds = [round(parties * site / sites) for site in range(sites + 1)]
    return [range(first, end) for first, end in pairwise(bounds)]


class Parties(Sequence[int]):
    """Party numbers in a fixed order, each once; equal to any sequence of the same numbers."""

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
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Parties: ...
    def __getitem__(self, index: int | slice) -> int | Parties:
        return Parties(self.numbers[index]) if isinstance(index, slice) else int(self.numbers[index])

    def __contains__(self, party: object) -> bool:
        return bool((self.numbers == party).any())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Parties):
            if self.numbers is other.numbers:
                return True
            if len(self.numbers) != len(other.numbers) or not (self.numbers == other.numbers).all():
                return False
            self.numbers = other.numbers  # neither changes, and the next comparison is free
            return True
        if isinstance(other, Sequence) and not isinstance(other, str):
            return len(other) == len(self) and self.numbers.tolist() == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.numbers.tolist()))  # that of the equal tuple

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array: NDArray[Any] = self.numbers.astype(dtype or np.int64, copy=bool(copy))
        return array

    def __repr__(self) -> str:
        shown = ", ".join(map(str, self.numbers[:5].tolist()))
        return f"Parties({shown}{f', … {len(self)} in all' if len(self) > 5 else ''})"

    def index(self, party: int, start: int = 0, stop: int | None = None) -> int:
        """The index of a party."""
        matches = np.flatnonzero(self.numbers[start:stop] == party)
        if not len(matches):
            raise ValueError(f"party {party} is not among these")
        return int(matches[0]) + start

    def indices(self, parties: Sequence[int]) -> NDArray[np.int64]:
        """The indices of some of these parties."""
        wanted = np.asarray(parties, dtype=np.int64)
        if len(self) == 0:
            indices, known = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        else:
            ordered = bool((self.numbers[1:] > self.numbers[:-1]).all())
            order = None if ordered else np.argsort(self.numbers, kind="stable")
            indices = np.searchsorted(self.numbers, wanted, sorter=order).clip(max=len(self) - 1)
            indices = indices if order is None else order[indices]
            known = self.numbers[indices] == wanted
        if not known.all():
            raise ValueError(f"party {wanted[~known][0]} is not among these")
        return indices

    def ascending(self) -> Parties:
        """These parties in ascending order; these themselves where they are."""
        ordered = bool((self.numbers[1:] >= self.numbers[:-1]).all())
        return self if ordered else Parties(np.sort(self.numbers))

    def without(self, excluded: Collection[int]) -> Parties:
        """These parties except some."""
        if not excluded:
            return self
        rest = self.numbers[~np.isin(self.numbers, np.fromiter(excluded, np.int64, len(excluded)))]
        return self if len(rest) == len(self) else Parties(rest)

    def among(self, others: Parties) -> Parties:
        """Those of these parties that are among the others, too."""
        if self == others:
            return self
        return Parties(self.numbers[np.isin(self.numbers, others.numbers)])
