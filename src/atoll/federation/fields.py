"""Payload fields with a party axis: choosing, replacing, joining and adding up the rows of parties.

A field is a tensor (or a `Deferred`) whose first axis is the party, a list with one tensor per party where their shapes differ,
or a dict of such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import spilled
from atoll.deferred import Deferred
from atoll.wire import rows_are_shared

Fields = dict[str, Any]


def pick(fields: Mapping[str, Any], index: Sequence[int] | NDArray[np.int64]) -> Fields:
    """The rows of some parties from fields with a party axis."""
    rows = torch.from_numpy(np.array(index, dtype=np.int64))
    return {name: take(value, rows) for name, value in fields.items()}


def take(value: Any, index: Tensor) -> Any:
    """The rows of some parties of one field."""
    if isinstance(value, Mapping):
        return {name: take(item, index) for name, item in value.items()}
    if isinstance(value, list):
        return [value[i] for i in index.tolist()]
    if isinstance(value, Deferred):
        return value.take(index)
    return value[:1].expand(len(index), *value.shape[1:]) if rows_are_shared(value) else value[index]


def put(value: Any, index: Tensor, new: Any) -> Any:
    """The field with the rows of some parties replaced: in place, unless all rows share one piece of memory."""
    if isinstance(value, Mapping):
        return {name: put(value[name], index, new[name]) for name in value}
    if isinstance(value, list):
        for row, item in zip(index.tolist(), new, strict=True):
            value[row] = item
        return value
    if rows_are_shared(value):
        value = value.clone(memory_format=torch.contiguous_format)
    value[index] = new
    return value


def copied(value: Any, into: Any = None, *, large: int = 0) -> Any:
    """A copy that later changes in place do not reach; in the memory of an earlier copy `into` where its shapes fit.

    That of a tensor of `large` bytes or more (`spilled.LARGE`, where 0 is given) is on the disk.
    """
    if isinstance(value, Mapping):
        kept = into if isinstance(into, Mapping) else {}
        return {name: copied(item, kept.get(name), large=large) for name, item in value.items()}
    if isinstance(value, list):
        return [copied(item, large=large) for item in value]
    if not isinstance(value, Tensor):
        return value
    if rows_are_shared(value):
        return value[:1].detach().clone().expand_as(value)
    fits = value.nbytes < (large or spilled.LARGE)
    if fits and isinstance(into, Tensor) and (into.shape, into.dtype) == (value.shape, value.dtype) and not rows_are_shared(into):
        return into.copy_(value.detach())
    return value.detach().clone(memory_format=torch.contiguous_format) if fits else spilled.spilled(value)


def row(value: Any, index: int) -> Any:
    """One party's row of a field, without the party axis."""
    if isinstance(value, Mapping):
        return {name: row(item, index) for name, item in value.items()}
    return value.take(torch.tensor([index])).dense()[0] if isinstance(value, Deferred) else value[index]


def sum_over_parties(value: Any) -> Any:
    """The sum of a field over the parties, in their order."""
    if isinstance(value, Tensor):
        return value.sum(0)
    if isinstance(value, Mapping):
        return {name: sum_over_parties(item) for name, item in value.items()}
    return value.total() if isinstance(value, Deferred) else value.sum(0)


def concatenate(chunks: Sequence[Fields]) -> Fields:
    """The fields of several sites one after the other; those of a single site, and rows that lie so already, as they are."""
    if len(chunks) <= 1:
        return chunks[0] if chunks else {}
    joined: Fields = {}
    for name, first in chunks[0].items():
        values = [chunk[name] for chunk in chunks]
        if isinstance(first, Mapping):
            joined[name] = concatenate(values)
        elif isinstance(first, list):
            joined[name] = [item for value in values for item in value]
        else:
            tensors = [value.dense() if isinstance(value, Deferred) else value for value in values]
            whole = _whole(tensors)
            joined[name] = torch.cat(tensors) if whole is None else whole
    return joined


def _whole(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensor whose rows these are, all of them and in order, so that nothing is to be copied; None where there is none."""
    first, end = tensors[0], 0
    storage = first.untyped_storage()
    for tensor in tensors:
        alike = (tensor.dtype, tensor.shape[1:]) == (first.dtype, first.shape[1:]) and tensor.is_contiguous()
        if not alike or tensor.requires_grad or tensor.untyped_storage().data_ptr() != storage.data_ptr():
            return None
        if tensor.storage_offset() != end:
            return None
        end += tensor.numel()
    if end * first.itemsize != storage.nbytes():
        return None
    strides = math.prod(first.shape[1:]), *first.stride()[1:]
    return torch.as_strided(first, (sum(map(len, tensors)), *first.shape[1:]), strides, 0)


def split_rows(value: Any, sizes: Sequence[int]) -> list[Any]:
    """The inverse of `concatenate` for one field: the first `sizes[0]` rows are the first site's, and so on."""
    if isinstance(value, Mapping):
        parts = {name: split_rows(item, sizes) for name, item in value.items()}
        return [{name: part[site] for name, part in parts.items()} for site in range(len(sizes))]
    if isinstance(value, Tensor):
        return list(torch.split(value, list(sizes)))
    ends = np.cumsum(sizes).tolist()
    return [value[end - size : end] for size, end in zip(sizes, ends, strict=True)]
