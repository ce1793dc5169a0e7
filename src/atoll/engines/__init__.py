"""Engines carry messages between the server and the parties; each is registered under a name.

An engine is a module, or any object, with one of two functions. `connect(make, parties, settings)` gives an `Engine` to a
server in this process. `launch(config, given, out=…, watch=…, resume=…)` runs the whole federation elsewhere and returns
the `Result`. One whose parties live in other processes says `HOSTED = True`: `make` then has what these need (see
`engines.hosted`), and the server's process reads no shards.
"""

from __future__ import annotations

from typing import Any

import torch

from atoll import device as devices
from atoll.errors import AtollError
from atoll.registry import Registry

ENGINES: Registry[Any] = Registry(
    "engine", {"inprocess": "atoll.engines.inprocess", "nvflare": "atoll.deploy.launch", "ray": "atoll.engines.ray"}
)


def connecting(name: str, *, hosted: bool = True) -> Any:
    """The engine of that name; the in-process one where that has no `connect`, or is hosted and must not be."""
    kind = ENGINES.find(name)
    return kind if hasattr(kind, "connect") and (hosted or not is_hosted(name)) else ENGINES.find("inprocess")


def close(engine: Any) -> None:
    """End the processes of an engine that has any."""
    end = getattr(engine, "close", None)
    if end is not None:
        end()


def server_device(engine: str, device: str) -> torch.device:
    """Where the process of the server computes; it may do without the device of parties that live in other processes."""
    return (devices.find_or_cpu if is_hosted(engine) else devices.find)(device)


def check_address(engine: str, address: str) -> None:
    """Refuse the address of a cluster for an engine that would not go there."""
    if address and not is_hosted(engine):
        raise AtollError(f"address={address} is a cluster's, but the engine is {engine}; add --engine ray, or leave address out.")


def is_hosted(name: str) -> bool:
    """Whether the parties live in processes of the engine's own."""
    return bool(getattr(ENGINES.find(name), "HOSTED", False))
