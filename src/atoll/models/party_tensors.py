"""What optimizers do with tensors that have a leading party axis: name them, cut them into pieces, take rows, clip."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor, nn

from atoll.device import CPU, precise
from atoll.errors import AtollError

MAX_PIECES = 64  # parties, or groups of parties with equal step counts, that are stepped one after the other
LANES = 16  # float32 numbers in a vector register
FUSED = frozenset({"cpu", "cuda"})  # types of devices whose fused kernels step the optimizers

Parameters = nn.Module | Mapping[str, Tensor] | Iterable[Tensor]


def party_pieces(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors, on the CPU split by party where a party's share does not fill whole vector registers.

    The fused kernels of the CPU round a tensor's tail differently, so a party's results would depend on its position.
    """
    cut = [t.unbind() if t.is_cpu and t.shape[0] <= MAX_PIECES and t[0].numel() % LANES else (t,) for t in tensors]
    return [piece for pieces in cut for piece in pieces]


def named_tensors(params: Parameters) -> dict[str, Tensor]:
    """The parameters by name; by number where they have none."""
    if isinstance(params, nn.Module):
        return dict(params.named_parameters())
    if isinstance(params, Mapping):
        return dict(params)
    return {str(index): tensor for index, tensor in enumerate(params)}


def decay_groups(
    params: Mapping[str, Tensor], weight_decay: float, decayed: Collection[str] | None
) -> list[tuple[float, list[str]]]:
    """The names of the parameters by their weight decay: that of `decayed`, without it of all, and none of the others."""
    kept = [name for name in params if decayed is None or name in decayed]
    groups = [(weight_decay, kept), (0.0, [name for name in params if name not in kept])]
    return [(decay, names) for decay, names in groups if names]


def number_of_parties(params: Mapping[str, Tensor]) -> int:
    """How many parties the parameters have; refused where they differ."""
    counts = {tensor.shape[0] for tensor in params.values()}
    if len(counts) != 1:
        raise AtollError(f"the parameters of one optimizer need the same number of parties, not {sorted(counts)}")
    return counts.pop()


def has_fused_kernels(device: torch.device) -> bool:
    """Whether torch's fused kernels step the optimizers of parameters on this device."""
    return device.type in FUSED


def device_of(params: Mapping[str, Tensor]) -> torch.device:
    """Where the parameters are."""
    return next((tensor.device for tensor in params.values()), CPU)


def restore_tensors(live: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Copy a state into live tensors of the same names and shapes."""
    if live.keys() != state.keys():
        odd = sorted(live.keys() ^ state.keys())
        raise AtollError(f"this optimizer state belongs to other parameters: {', '.join(odd)} should be in both or neither")
    for name, tensor in live.items():
        if tensor.shape != state[name].shape:
            raise AtollError(f"optimizer state {name!r} has shape {tuple(state[name].shape)}, not {tuple(tensor.shape)}")
        if not is_same(tensor, state[name]):
            with torch.no_grad():
                tensor.copy_(state[name])


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same memory, so that there is nothing to copy."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def rows_of(values: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    """A copy of some parties' rows."""
    return {name: value.detach()[rows] for name, value in values.items()}


def party_views(*parts: Mapping[str, Tensor]) -> list[dict[str, tuple[Tensor, ...]]]:
    """Each tensor's parties, one view each."""
    return [{name: value.detach().unbind() for name, value in part.items()} for part in parts]


def put_rows(live: Mapping[str, Tensor], rows: Tensor, values: Mapping[str, Tensor]) -> None:
    """Write some parties' rows back."""
    for name, value in values.items():
        live[name][rows] = value


def clipped(gradients: list[Tensor], clip: float) -> list[Tensor]:
    """Each party's gradients, scaled to the norm `clip` where theirs, over all parameters, is longer; 0 does not clip.

    A party's sum of squares is taken on a copy of its own numbers, so that it does not depend on the party's position.
    """
    if not clip:
        return gradients
    squares = [torch.stack([precise(party.clone()).square().sum() for party in gradient]) for gradient in gradients]
    norms = torch.stack(squares).sum(0).sqrt()  # (P,)
    factors = (clip / norms.clamp(min=clip)).float()
    return [gradient * factors.view(-1, *[1] * (gradient.ndim - 1)) for gradient in gradients]
