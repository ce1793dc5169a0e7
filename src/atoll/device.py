"""Where tensors live: the CPU, or an accelerator that torch finds on this machine."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor

from atoll.errors import AtollError

CPU = torch.device("cpu")
AUTO = "auto"
FORM = re.compile(r"([a-z]\w*)(?::(\d+))?")


def _mps() -> int:
    return int(torch.backends.mps.is_available())


KINDS: dict[str, Callable[[], int]] = {"cuda": torch.cuda.device_count, "mps": _mps}  # accelerators → how many there are here
# in the order in which `auto` looks for them
NARROW = {"mps"}  # types of devices without double precision


def check(text: str) -> str:
    """The text, if it has the form of a device's name; whether the device is here is another question.

    >>> check("cuda:1")
    'cuda:1'
    """
    match = FORM.fullmatch(text)
    if match is None or match[1] not in ("cpu", AUTO, *KINDS) or (match[2] is not None and match[1] not in KINDS):
        raise AtollError(f"device is {text!r} but must be cpu, {', '.join(KINDS)}, {next(iter(KINDS))}:1 (a number), or {AUTO}.")
    return text


def find(text: str) -> torch.device:
    """The device of that name; `auto` is the first accelerator that is here, else the CPU.

    >>> find("cpu")
    device(type='cpu')
    """
    match = FORM.fullmatch(check(text))
    assert match is not None
    kind, index = match[1], int(match[2] or 0)
    if kind == AUTO:
        kind = next((kind for kind, count in KINDS.items() if count()), "cpu")
    if kind == "cpu":
        return CPU
    if index >= KINDS[kind]():
        raise AtollError(
            f"There is no {text} here: this machine has {available()}; choose from these, or {AUTO}, the best of them."
        )
    return torch.device(kind, index)


def find_or_cpu(text: str) -> torch.device:
    """The device of that name where it is here, else the CPU.

    >>> find_or_cpu("cuda:99")
    device(type='cpu')
    """
    try:
        return find(text)
    except AtollError:
        check(text)
        return CPU


def name(device: torch.device) -> str:
    """A device's name as settings have it.

    >>> name(find("cpu"))
    'cpu'
    """
    return "cpu" if device == CPU else str(device)


def precise(values: Tensor) -> Tensor:
    """The numbers in double precision, or in single precision where their device has no other.

    >>> precise(torch.ones(2)).dtype
    torch.float64
    """
    return values.to(wide(values.device))


def wide(device: torch.device) -> torch.dtype:
    """Double precision, or single where a device has no other.

    >>> wide(CPU)
    torch.float64
    """
    return torch.float32 if device.type in NARROW else torch.float64


def holdable(values: Tensor, device: torch.device) -> Tensor:
    """The numbers, before they are moved to a device: double precision becomes single where it has no other.

    >>> holdable(torch.ones(2), torch.device("mps")).dtype
    torch.float32
    """
    return values.to(wide(device)) if values.dtype == torch.float64 else values


def available() -> str:
    """The names of this machine's devices.

    >>> available().startswith("cpu")
    True
    """
    return ", ".join(["cpu", *(f"{kind}:{index}" for kind, count in KINDS.items() for index in range(count()))])
