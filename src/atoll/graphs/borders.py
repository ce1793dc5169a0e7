"""Borders: the edges between parties, each known to the owners of both of its ends, by the other end's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from atoll.graphs.blocks import spans


@dataclass(frozen=True, eq=False)
class Borders:
    """What parties know of their edges to other parties; in the memory of the CPU.

    Attributes:
        row: (M,) the row of the party's own end, ascending.
        other: (M,) the number (`Graph.ids`) of the other end.
        into: (M,) whether the edge comes into the own end; otherwise it leaves it.
        weight: (M,) the edges' weights; None where every edge counts the same.
    """

    row: Tensor
    other: Tensor
    into: Tensor
    weight: Tensor | None = None

    def select(self, ptr: Tensor, parties: Tensor) -> Borders:
        """Those of some parties, in that order; `ptr` (P + 1,) is where all parties' rows begin."""
        begins, ends = ptr[parties], ptr[parties + 1]
        first, last = torch.searchsorted(self.row, begins), torch.searchsorted(self.row, ends)
        entries, sizes = spans(first, last), ends - begins
        down = begins - (sizes.cumsum(0) - sizes)
        return self._at(entries, -torch.repeat_interleave(down, last - first))

    def _at(self, entries: Tensor, shift: Tensor) -> Borders:
        weight = None if self.weight is None else self.weight[entries]
        return Borders(self.row[entries] + shift, self.other[entries], self.into[entries], weight)

    def arrays(self) -> dict[str, Tensor]:
        """Its tensors, by names that say whose they are."""
        return {f"border_{f.name}": getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}

    @staticmethod
    def of(arrays: dict[str, Tensor]) -> Borders | None:
        """The inverse of `arrays`; None where they are not among these."""
        if "border_row" not in arrays:
            return None
        weight = arrays.get("border_weight")
        return Borders(arrays["border_row"], arrays["border_other"], arrays["border_into"], weight)


def stacked_borders(borders: Sequence[Borders | None], starts: Sequence[int]) -> Borders | None:
    """Those of graphs one after the other, which begin at these rows; None where one of the graphs does not know its own."""
    known = [one for one in borders if one is not None]
    if len(known) < len(borders):
        return None
    rows = torch.cat([one.row + start for one, start in zip(known, starts, strict=True)])
    weights = [one.weight for one in known if one.weight is not None]
    weight = torch.cat(weights) if len(weights) == len(known) else None
    return Borders(rows, torch.cat([one.other for one in known]), torch.cat([one.into for one in known]), weight)


def borders_between(ids: Tensor, party: Tensor, edge_index: Tensor, edge_weight: Tensor | None, edge_ids: Tensor) -> Borders:
    """The edges of a graph that join two parties.

    Parameters:
        ids: (N,) the numbers of the parties' nodes, each once.
        party: (N,) whose they are.
        edge_index: (2, E) the whole graph's edges.
        edge_weight: (E,) their weights, or None.
        edge_ids: The numbers of the whole graph's nodes, to which `edge_index` points.
    """
    order = ids.argsort()
    position = torch.searchsorted(ids[order], edge_ids).clamp(max=len(ids) - 1)
    rows = torch.where(ids[order][position] == edge_ids, order[position], -1)  # of each node of the whole graph
    source, target = rows[edge_index]
    crossing = ((source >= 0) & (target >= 0) & (party[source] != party[target])).nonzero()[:, 0]
    source, target = source[crossing], target[crossing]
    row, other = torch.cat([target, source]), torch.cat([ids[source], ids[target]])
    into = torch.arange(len(row)) < len(target)
    tidy = torch.from_numpy(row.numpy().argsort(kind="stable"))
    weight = None if edge_weight is None else edge_weight[crossing].repeat(2)[tidy]
    return Borders(row[tidy], other[tidy], into[tidy], weight)
